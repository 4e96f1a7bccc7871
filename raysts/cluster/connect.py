"""The connection to a Ray cluster: the one we run in, the one that is named or running, else a private local one.

Ray is imported by what is called here and not before: it reads some of its environment then.
"""

import contextlib
import importlib.util
import logging
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from raysts.errors import InputError, RunFailed

OLDEST = [2, 51]
"""The oldest Ray that is tried (``pyproject.toml``)."""

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Dead workers are reported by us, once, with what follows from it.
    "RAY_DEDUP_LOGS_SKIP_REGEX": r"A worker died or was killed|^Task .* failed\.",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
"""Environment of the driver and what it starts. What the user has set stays."""

LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""The variable whose 0, when Ray is imported, keeps a cluster on this machine's loopback, on every system."""
PRIVATE = {
    LOOPBACK: "0",
    # A node starts a worker process for each of its CPUs when the first driver comes, which waits for all of them. Ours asks
    # for as many as it needs, most of them with an environment of their own.
    "RAY_prestart_worker_first_driver": "0",
}
"""Environment of a private cluster."""

AUTH_MODE = "RAY_AUTH_MODE"
"""The variable whose ``token`` means that a process shows a token and asks those that call it for one; ``disabled``: neither."""
CURRENT_CLUSTER = "ray_current_cluster"
"""File in which ``ray start`` writes the cluster's address. ``ray.init(address="auto")`` reads it too, but joins any head
that it finds among the machine's processes first."""

REACHABLE_SECONDS = 3.0
HEAD_SECONDS = 60.0
PROBE = """
import os, sys, ray
ray.init(sys.argv[1], log_to_driver=False, logging_level=50)
if os.environ.get("RAY_AUTH_MODE") == "token":
    actor = ray.remote(num_cpus=0)(type("Probe", (), {"answer": lambda self: 1})).remote()
    try:
        ray.get(actor.answer.remote(), timeout=30)
    except ray.exceptions.RayActorError:
        sys.exit("raysts: refused")
print("raysts: joined", flush=True)
"""
"""Join a cluster and leave. A cluster that has no token lets one in that shows one, and its actors die of it.

In a process of its own: what is wrong with a token may end it, and where no head answers it waits for most of a minute."""


@contextlib.contextmanager
def connected(address: str | None = None, dashboard: bool = False) -> Iterator[bool]:
    """Connect to Ray for the length of the block; gives whether the cluster is a private one.

    Args:
        address: of a running cluster; none: that of the job we run in (``RAY_ADDRESS``), a cluster that
            ``ray start`` runs on this machine, else a private one on all CPUs of this machine that ends with us.
        dashboard: give a private cluster its dashboard (on loopback).

    Raises:
        InputError: there is no such cluster, or no Ray that can join it.
    """
    _check_ray()
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        yield False
        return
    before = {name: os.environ.get(name) for name in (AUTH_MODE, *PRIVATE)}
    try:
        cluster = find_cluster(address)
        private = cluster == "local"
        for name, value in PRIVATE.items() if private else ():
            os.environ.setdefault(name, value)
        _init(cluster, {"include_dashboard": dashboard, "dashboard_host": "127.0.0.1"} if private else {})
        if not private:
            _keep_statistics_here()
        yield private
    finally:
        if "ray" in sys.modules:
            sys.modules["ray"].shutdown()
        for name, old in before.items():
            os.environ.pop(name, None)
            if old is not None:
                os.environ[name] = old


def _check_ray() -> None:
    install = "install it with pip install 'ray[default,data,train,tune]', or run in this process with --address none"
    if importlib.util.find_spec("ray") is None:
        raise InputError(f"Ray is not installed here; {install}")
    if [int(number) for number in re.findall(r"\d+", version("ray"))[:2]] < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise InputError(
            f"Ray {version('ray')} is installed here, and Ray {oldest} is the oldest that can be used; {install}"
        )


def _init(address: str, options: dict[str, Any]) -> None:
    try:
        import ray.data
        import ray.train
        import ray.tune
    except ImportError as error:
        raise InputError(
            f"a part of Ray {version('ray')} is missing here ({error}); install it with pip install "
            f"'ray[default,data,train,tune]=={version('ray')}', or run in this process with --address none"
        ) from error
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except SystemExit:  # Ray's answer to SIGTERM while it starts
        raise KeyboardInterrupt from None
    except OSError as error:
        if address != "local":
            raise
        raise RunFailed(
            f"a private cluster cannot be started ({error}): Ray keeps its files in $RAY_TMPDIR (/tmp), and its token in "
            f"~/.ray/auth_token; name folders that can be written to with RAY_TMPDIR and HOME, or do without Ray with --address "
            f"none"
        ) from error
    if address == "local":  # Ray lets everybody read it
        with contextlib.suppress(OSError):  # where the token is in the environment there is no file
            Path("~/.ray/auth_token").expanduser().chmod(0o600)
    quiet_data()
    # Ray's own handler for SIGTERM leaves processes behind; an exception takes the way of Ctrl-C. Set after ray.init,
    # which installs its own.
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def _keep_statistics_here() -> None:
    """Have Ray Data's statistics on our node, which stays.

    They are kept by a detached actor on the node of the process that first reads data, one for the life of the cluster.
    On a node that an autoscaler has started for training, that node would never again be idle, and paid for ever.
    """
    from raysts.cluster.capacity import may_grow

    if may_grow():
        import ray.data

        ray.data.range(1).materialize()


def quiet_data() -> None:
    """Have Ray Data without progress bars and chatter, here and in what this process starts."""
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    for name in ("ray.data", "ray.train", "ray.tune"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def find_cluster(address: str | None) -> str:
    """Return the address of the cluster to join; ``local`` when there is none.

    ``ray.init(address="auto")`` would join any head it finds among the processes of this machine, private ones of other
    runs included; this looks only where ``ray start`` says where it is.

    Raises:
        InputError: an address was given (or ``RAY_ADDRESS`` is set) and this process cannot join what answers there.
    """
    given = address or os.environ.get("RAY_ADDRESS")
    if given == "local":
        return given
    if given and given.startswith("ray://"):
        raise InputError(
            f"--address '{given}': Ray's client (ray://) cannot run raysts, whose driver must be in the cluster; run the "
            f"command on the head, or submit it: ray job submit --working-dir . -- python jobs/run.py ..."
        )
    if given and given != "auto":
        if not _answers(given):
            raise InputError(
                f"--address '{given}': no Ray cluster answers there within {REACHABLE_SECONDS:g} s; give host:port of a "
                f"running head (6379 unless said otherwise), or no --address to use this machine"
            )
        _check_head(given, f"--address '{given}'", [os.environ.get(AUTH_MODE, "")])
        return given
    folder = Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray"
    try:
        started = (folder / CURRENT_CLUSTER).read_text(encoding="utf-8").strip()
    except OSError:
        return "local"
    if not _answers(started):
        return "local"
    # The token of this machine opens a cluster of this machine, as Ray has it.
    mode = os.environ.get(AUTH_MODE, "")
    _check_head(started, f"the cluster of this machine, {started}", [mode] if mode else ["", "token"])
    return started


def _check_head(address: str, what: str, modes: list[str]) -> None:
    """Take the first mode of ``RAY_AUTH_MODE`` (empty: unset) in which the head lets us in; refuse a head that lets us in in
    none of them, one of another version, and what is no head."""
    stderr = ""
    for mode in modes:
        environment = {name: value for name, value in os.environ.items() if name != AUTH_MODE}
        if mode:
            environment[AUTH_MODE] = mode
        command = [sys.executable, "-c", PROBE, address]
        try:
            probe = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False, timeout=HEAD_SECONDS
            )
        except subprocess.TimeoutExpired:
            continue
        if "raysts: joined" in probe.stdout:
            if mode:
                os.environ[AUTH_MODE] = mode
            return
        stderr = probe.stderr
        if "raysts: refused" in stderr:
            raise InputError(
                f"{what}: the cluster asks for no token, and this process, with {AUTH_MODE}=token, would ask it for one; unset "
                f"{AUTH_MODE}, or start the cluster with {AUTH_MODE}=token"
            )
        versions = re.findall(r"started with:\s+Ray: (\S+)\s+Python: (\S+)", stderr)
        if len(versions) == 2:
            (their_ray, their_python), (our_ray, our_python) = versions
            raise InputError(
                f"{what}: the cluster runs Ray {their_ray} with Python {their_python}, and this process has Ray {our_ray} with "
                f"Python {our_python}; they must be the same: pip install 'ray[default,data,train,tune]=={their_ray}' here, or "
                f"run the command in the environment of the cluster"
            )
    if "auth" in stderr.lower():
        raise InputError(
            f"{what}: the cluster asks for a token, and none or another one was shown; set {AUTH_MODE}=token, and have the "
            f"cluster's token in ~/.ray/auth_token or RAY_AUTH_TOKEN"
        )
    last = stderr.strip().splitlines()[-1:] or [f"it has not answered for {HEAD_SECONDS:g} s"]
    raise InputError(
        f"{what}: something listens there, but no Ray head that lets this process in ({last[0]}); give host:port of a running "
        f"head (6379 unless said otherwise)"
    )


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), REACHABLE_SECONDS):
            return True
    except (OSError, ValueError):
        return False

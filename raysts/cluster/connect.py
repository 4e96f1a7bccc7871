"""The connection to a Ray cluster. Functions import Ray after they set its variables."""

import contextlib
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from raysts.errors import InputError, RunFailed
from raysts.log import VERBOSE, logger, screen

OLDEST = (2, 51)  # the oldest Ray that is tried (``pyproject.toml``)
REACHABLE_SECONDS, HEAD_SECONDS = 3.0, 60.0
AUTH_MODE = "RAY_AUTH_MODE"  # ``token``: a process shows a token and asks its callers for one
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # 0, when Ray is imported: a cluster stays on loopback, on every system

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # The driver reports a dead worker, once, with what follows from it.
    "RAY_DEDUP_LOGS_SKIP_REGEX": r"A worker died or was killed|^Task .* failed\.",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
"""Environment of the driver and what it starts, while it is connected. Variables of the user stay."""

PRIVATE = {LOOPBACK: "0", "RAY_prestart_worker_first_driver": "0"}
"""Environment of a private cluster, which starts no worker before there is work."""

INSTALL = "install it with pip install 'ray[default,data,train,tune]', or run in this process with --address none"
NOT_STARTED = (
    "a private cluster cannot be started ({}): Ray keeps its files in $RAY_TMPDIR (/tmp), its token in ~/.ray/auth_token, and "
    "some twenty processes; name folders that can be written to with RAY_TMPDIR and HOME, allow more processes (ulimit -u, the "
    "limit of the container), or do without Ray: --address none"
)
PROBE = """
import os, sys, ray
ray.init(sys.argv[1], log_to_driver=False, logging_level=50)
if os.environ.get("RAY_AUTH_MODE") == "token":
    actor = ray.remote(num_cpus=0)(type("Probe", (), {"answer": lambda self: 1})).remote()
    try:
        ray.get(actor.answer.remote(), timeout=30)
    except ray.exceptions.RayActorError:
        sys.exit("raysts: asks for no token")
print("raysts: joined", flush=True)
"""
"""Join a cluster and leave. A cluster without a token lets a process with one join, and its actors die of it. Another process
does so: a wrong token may end it, and where no head answers it waits for most of a minute."""

REFUSALS = {
    r"started with:\s+Ray: (\S+)\s+Python: (\S+)[\s\S]+started with:\s+Ray: (\S+)\s+Python: (\S+)": (
        "the cluster runs Ray {0} with Python {1}, and this process has Ray {2} with Python {3}; they must be the same: pip "
        "install 'ray[default,data,train,tune]=={0}' here, or run the command in the environment of the cluster"
    ),
    "raysts: asks for no token": (
        f"the cluster asks for no token, and this process, with {AUTH_MODE}=token, would ask it for one; unset {AUTH_MODE}, or "
        f"start the cluster with {AUTH_MODE}=token"
    ),
    "(?i)auth": (
        f"the cluster asks for a token, and none or another one was shown; set {AUTH_MODE}=token, and have the cluster's token "
        f"in ~/.ray/auth_token or RAY_AUTH_TOKEN"
    ),
    r"(.*)\Z": "something listens there, but no Ray head that lets this process in ({0}); give host:port of a running head",
}
"""The message for what a probe says at its end; the first that matches."""

_joined: set[str] = set()  # addresses of the clusters that this process has had, ``local`` of private ones


@contextlib.contextmanager
def connection(address: str | None = None) -> Iterator[bool]:
    """Connect to Ray for the length of the block. The value is True for a private cluster.

    Without an address that is the cluster of the job (``RAY_ADDRESS``), the one that ``ray start`` runs on this machine, else
    a private one on all CPUs of this machine that ends with the block.
    """
    _check_installed()
    before = {*os.environ}
    is_ready = "ray" in sys.modules and sys.modules["ray"].is_initialized()
    os.environ.update(SETTINGS | os.environ)
    try:
        yield not is_ready and _init(find_cluster(address))
    finally:
        if not is_ready and "ray" in sys.modules:
            sys.modules["ray"].shutdown()
        for name in {*os.environ} - before:
            del os.environ[name]


def _check_installed() -> None:
    try:
        installed = version("ray")
    except PackageNotFoundError:
        raise InputError(f"Ray is not installed here; {INSTALL}") from None
    if tuple(map(int, installed.split(".")[:2])) < OLDEST:
        raise InputError(f"Ray {installed} is installed here; raysts needs {OLDEST[0]}.{OLDEST[1]} or newer; {INSTALL}")


def _init(address: str) -> bool:
    """Connect, and return True for a private cluster."""
    private = address == "local"
    if not private and "local" in _joined:
        raise InputError(
            f"this process has had a private cluster, whose token and address Ray keeps: it cannot join the one at {address}; "
            f"join it from a new process (restart the kernel of a notebook), or go on here with address='local'"
        )
    _joined.add(address)
    os.environ.update(PRIVATE | os.environ if private else {})
    options: dict[str, Any] = {"include_dashboard": False} if private else {}
    if (verbose := screen.level == logging.DEBUG) and not private:  # those of a private cluster have this environment
        options["runtime_env"] = {"env_vars": {VERBOSE: "1"}}
    try:
        import ray.data
        import ray.train
        import ray.tune

        from raysts.cluster.capacity import may_grow
    except ImportError as error:
        raise InputError(f"a part of Ray {version('ray')} is missing here ({error}); {INSTALL}") from error
    try:
        ray.init(address=address, log_to_driver=verbose, logging_level=logging.ERROR, **options)
    except SystemExit:  # Ray's answer to SIGTERM while it starts
        raise KeyboardInterrupt from None
    except Exception as error:  # a folder that is read-only, a process that does not come up, a limit of the machine
        if not private:
            raise
        raise RunFailed(NOT_STARTED.format(error)) from error
    logger.debug("Ray %s answers at %s", version("ray"), ray.get_runtime_context().gcs_address)
    quiet_data()
    with contextlib.suppress(OSError):  # Ray lets everybody read the file, which a token of the environment replaces
        if private:
            Path("~/.ray/auth_token").expanduser().chmod(0o600)
    if not private and may_grow():
        # A detached actor of Ray Data's stays for ever on the node of the process that first reads data. A node that an
        # autoscaler has started would be paid for as long; this one stays anyway.
        ray.data.range(1).materialize()
    with contextlib.suppress(ValueError):  # not in the main thread
        # Ray's own handler for SIGTERM leaves processes behind; an exception takes the way of Ctrl-C.
        signal.signal(signal.SIGTERM, _interrupt if private else signal.default_int_handler)
    return private


def _interrupt(number: int, frame: Any) -> None:
    """Raise KeyboardInterrupt when a private cluster, which gets the signal too, has had time to end."""
    time.sleep(2.0)
    raise KeyboardInterrupt


def head_answers() -> bool:
    """Return True if this process has a living head. Ray ends a process that asks a dead one for a minute."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized() and _answers(ray.get_runtime_context().gcs_address)


def quiet_data() -> None:
    """Have Ray Data without progress bars and chatter in this process and its tasks."""
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    for name in ("ray.data", "ray.train", "ray.tune"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def find_cluster(address: str | None) -> str:
    """Return the address of the cluster to join, or ``local``.

    ``ray.init(address="auto")`` would join any head among the processes of this machine, also the private one of another
    command. This function reads the file in which ``ray start`` leaves its address.
    """
    address = address or os.environ.get("RAY_ADDRESS") or "auto"
    if address == "local":
        return address
    name, modes = f"--address '{address}'", ["disabled"]
    if address.startswith("ray://"):
        raise InputError(
            f"{name}: Ray's client (ray://) cannot run raysts, whose driver must be in the cluster; run the command on the "
            f"head, or submit it: ray job submit --working-dir . -- python jobs/run.py ..."
        )
    if address == "auto":
        file = Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray" / "ray_current_cluster"
        address = file.read_text(encoding="utf-8").strip() if file.is_file() else ""
        if not _answers(address):
            return "local"
        # As with Ray, the token of this machine opens a cluster of this machine.
        name, modes = f"the cluster of this machine, {address}", ["disabled", "token"]
    elif not _answers(address):
        raise InputError(
            f"{name}: no Ray cluster answers there within {REACHABLE_SECONDS:g} s; give host:port of a running head (6379 "
            f"unless said otherwise), or no --address to use this machine"
        )
    answer = f"it has not answered for {HEAD_SECONDS:g} s"
    for mode in [os.environ[AUTH_MODE]] if os.environ.get(AUTH_MODE) else modes:
        # Ray asks a head that turns it away 20 times, a second each, unless told otherwise.
        env = {**os.environ, "RAY_NUM_REDIS_GET_RETRIES": "2", AUTH_MODE: mode}
        command = [sys.executable, "-c", PROBE, address]
        with contextlib.suppress(subprocess.TimeoutExpired):
            probe = subprocess.run(command, capture_output=True, text=True, timeout=HEAD_SECONDS, env=env)
            if "raysts: joined" in probe.stdout:
                os.environ[AUTH_MODE] = mode
                return address
            answer = probe.stderr.strip()
    refusals = ((message, re.search(pattern, answer)) for pattern, message in REFUSALS.items())
    raise InputError(next(f"{name}: {message.format(*match.groups())}" for message, match in refusals if match))


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), REACHABLE_SECONDS):
            return True
    except (OSError, ValueError):
        return False

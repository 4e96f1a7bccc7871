"""The connection to a Ray cluster: the one we run in, the one that is named or running, else a private local one."""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raysts.errors import InputError, RunFailed

STATES = "RAY_TRAIN_ENABLE_STATE_TRACKING"
"""The variable that makes Ray's dashboard keep the runs of Ray Train (``/api/train/v2/runs/v1``)."""
PRESTART = "RAY_prestart_worker_first_driver"
"""The variable whose 0 keeps a node from starting a worker process for each of its CPUs when the first driver comes, which
waits for all of them. Ours asks for as many as it needs, most of them with an environment of their own."""
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Dead workers are reported by us, once, with what follows from it.
    "RAY_DEDUP_LOGS_SKIP_REGEX": r"A worker died or was killed|^Task .* failed\.",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # how soon the end or death of a worker is seen
    # A member that waits for room is waiting, not failing: by default its request is dropped and repeated each minute.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "1000000",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
"""Environment of the driver, which Ray Train hands on to its processes. What the user has set stays."""

REACHABLE_SECONDS = 3.0
HEAD_SECONDS = 20.0

AUTH_MODE = "RAY_AUTH_MODE"
"""The variable whose ``token`` means that a process shows a token and asks those that call it for one; ``disabled``: neither."""
PROBE = f"""
import os, sys, ray._raylet as r
for mode in sys.argv[2:]:
    os.environ["{AUTH_MODE}"] = mode
    r.Config.initialize("")
    try:
        r.GcsClient(address=sys.argv[1]).internal_kv_keys(b"raysts", namespace=None)
        sys.exit(print(mode))
    except Exception as error:
        print(error, file=sys.stderr)
"""
"""Ask a head for nothing in particular; says with which mode it first answers. In a process of its own: what is wrong with a
token ends it, and where no head answers it waits for most of a minute."""


@contextlib.contextmanager
def connected(address: str | None = None, dashboard: bool = False) -> Iterator[bool]:
    """Connect to Ray for the length of the block; gives whether the cluster is a private one.

    Args:
        address: of a running cluster; none: that of the job we run in (``RAY_ADDRESS``), a cluster that
            ``ray start`` runs on this machine, else a private one on all CPUs of this machine that ends with us.
        dashboard: give a private cluster its dashboard (on loopback).
    """
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    import ray

    from raysts.cluster.capacity import may_grow
    from raysts.cluster.ray_internals import (
        apart_from_signals,
        keep_statistics_here,
        on_loopback,
        set_auth_mode,
        without_helpers,
    )

    if ray.is_initialized():
        yield False
        return
    mode, cluster = os.environ.get(AUTH_MODE), find_cluster(address)
    private = cluster == "local"
    if private:
        # Two actor processes less per training run; on a real cluster a notice of preemption is worth them.
        os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
        os.environ.setdefault(PRESTART, "0")
    reaper = _start_reaper() if private else None
    loopback = contextlib.ExitStack()
    try:
        if private:
            loopback.enter_context(on_loopback())
            loopback.enter_context(apart_from_signals())
            loopback.enter_context(without_helpers(dashboard))
        shown = _init(cluster, {"include_dashboard": dashboard, "dashboard_host": "127.0.0.1"} if private else {})
        if not private:
            # For the dashboard, which a private cluster does not have; 0.1 GB of the head. Where there is none the actor that
            # keeps them looks for it for 40 seconds, in which every member waits for that actor.
            if shown:
                os.environ.setdefault(STATES, "1")
            if may_grow():
                keep_statistics_here()
        yield private
    finally:
        started = ray.is_initialized()
        ray.shutdown()
        loopback.close()
        if os.environ.get(AUTH_MODE) != mode:  # was set for this cluster, and the next may ask for no token
            set_auth_mode(mode)
        if reaper is not None and started:  # what did not start well may leave something for it to do
            reaper.kill()
            reaper.wait()


def _init(address: str, options: dict[str, Any]) -> str:
    """The address of the cluster's dashboard; empty: it has none."""
    import ray

    try:
        context = ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
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
    return context.dashboard_url or ""


def _start_reaper() -> subprocess.Popen[bytes] | None:
    """The process that cleans up after us, should we be killed; started first, to know of our end at any moment."""
    from raysts.cluster.ray_internals import CHILDREN_OF_A_RAYLET, RAYLET

    if not Path("/proc/self/stat").exists():
        return None  # then two agents need a minute to see that they are orphans
    reaper = subprocess.Popen(
        [sys.executable, "-S", "-E", str(Path(__file__).with_name("reaper.py")), str(os.getsid(0))],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert reaper.stdin is not None
    # Not as arguments: then its own command line would look like that of a worker.
    reaper.stdin.write("\t".join([RAYLET, *CHILDREN_OF_A_RAYLET]).encode() + b"\n")
    reaper.stdin.flush()
    return reaper


def quiet_data() -> None:
    """Ray Data without progress bars and chatter, here and in what this process starts."""
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    for name in ("ray.data", "ray.train", "ray.tune"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def find_cluster(address: str | None) -> str:
    """Address of the cluster to join; ``local`` when there is none.

    ``ray.init(address="auto")`` would join any head it finds among the processes of this machine, private ones of other
    runs included; this looks only where ``ray start`` says where it is.

    Raises:
        InputError: an address was given (or ``RAY_ADDRESS`` is set) and nothing answers there.
    """
    from raysts.cluster.ray_internals import CURRENT_CLUSTER

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
                f"running head (6379 unless said otherwise), or leave the option out to use this machine"
            )
        _check_head(given, f"--address '{given}'", os.environ.get(AUTH_MODE, "disabled").lower())
        return given
    folder = Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray"
    try:
        started = (folder / CURRENT_CLUSTER).read_text(encoding="utf-8").strip()
    except OSError:
        return "local"
    if not _answers(started):
        return "local"
    mode = _check_head(started, f"the cluster of this machine, {started}", os.environ.get(AUTH_MODE, "").lower())
    if mode == "token":
        from raysts.cluster.ray_internals import set_auth_mode

        set_auth_mode(mode)
    return started


def _check_head(address: str, what: str, mode: str) -> str:
    """Refuse what is no head, one that wants another token, and one that wants none where we do; the mode in which it answers.

    ``mode``: ours; empty: that of the head, as Ray has it of a cluster that it finds itself.
    """
    modes = ["disabled"] if mode == "disabled" else ["disabled", "token"]
    command = [sys.executable, "-c", PROBE, address, *modes]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HEAD_SECONDS)
    except subprocess.TimeoutExpired:
        raise InputError(
            f"{what}: something listens there, but no Ray head answered within {HEAD_SECONDS:g} s; give host:port of a "
            f"running head (6379 unless said otherwise)"
        ) from None
    found = asked.stdout.strip()
    if not found and "auth" in asked.stderr.lower():
        raise InputError(
            f"{what}: the cluster asks for a token, and none or another one was shown; set {AUTH_MODE}=token, and have the "
            f"cluster's token in ~/.ray/auth_token or RAY_AUTH_TOKEN"
        )
    if found == "disabled" and mode == "token":
        raise InputError(
            f"{what}: the cluster asks for no token, and this process, with {AUTH_MODE}=token, would ask it for one; unset "
            f"{AUTH_MODE}, or start the cluster with {AUTH_MODE}=token"
        )
    return found


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), REACHABLE_SECONDS):
            return True
    except (OSError, ValueError):
        return False

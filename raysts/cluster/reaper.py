"""A small process that outlives the driver of a private cluster and ends what Ray leaves behind.

However a driver dies, most processes of its cluster end with it within seconds; two agents try for a minute to reach the
dead head first, and workers that were just starting wait as long. Run as a file, without importing raysts or Ray: the
first line of its input says how Ray's processes are called (``raysts.cluster.ray_internals``).
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

LOOKING_SECONDS = 2.0
"""A raylet dies with its driver; what it was starting at that moment shows within this time."""


def reap(session: int) -> None:
    """Wait until stdin ends, which the driver holds open, then kill the orphans of its session.

    Args:
        session: id of the driver's session. Workers and agents without a raylet above them are of no use to anyone, so
            other clusters of the session lose nothing.
    """
    raylet, *marks = sys.stdin.buffer.readline().rstrip(b"\n").split(b"\t")
    sys.stdin.buffer.read()
    deadline = time.monotonic() + LOOKING_SECONDS
    while time.monotonic() < deadline:
        for pid in orphans(session, raylet.decode(), marks):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)


def orphans(session: int, raylet: str, marks: list[bytes]) -> list[int]:
    """Ids of the Ray workers and agents of a session, and of what they have forked, that have no raylet above them."""
    processes = {int(folder.name): _stat(folder) for folder in Path("/proc").iterdir() if folder.name.isdigit()}

    def has_raylet(pid: int) -> bool:
        while pid in processes:
            name, state, parent, _ = processes[pid]
            if name == raylet and state != "Z":
                return True
            pid = int(parent)
        return False

    return [
        pid
        for pid, (_, state, _, leader) in processes.items()
        if leader == str(session) and state != "Z" and _is_one_of(pid, marks) and not has_raylet(pid)
    ]


def _is_one_of(pid: int, marks: list[bytes]) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return any(mark in command for mark in marks)


def _stat(folder: Path) -> tuple[str, str, str, str]:
    try:
        name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(") ")
        state, parent, _, session = rest.split()[:4]
        return name, state, parent, session
    except (OSError, ValueError):
        return "", "Z", "0", ""


if __name__ == "__main__":
    reap(int(sys.argv[1]))

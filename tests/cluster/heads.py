"""Head nodes of ``ray start --head`` that nothing else on this machine learns of."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ports import free_ports
from processes import Command, wait_until

from raysts.cluster.connect import LOOPBACK, PRIVATE

ROOT = Path(__file__).parents[2]
TOKEN = "token-of-the-test-head"
RAY = ["-m", "ray.scripts.scripts"]


@dataclass(frozen=True)
class Head:
    """A running head node with its dashboard on loopback."""

    gcs: str
    dashboard: str
    environment: dict[str, str]
    temporary: Path
    command: Command

    def ray(self, *arguments: object, cwd: Path = ROOT) -> subprocess.Popen[str]:
        """``ray ARGUMENTS`` with the token; a job command needs ``--address`` among them."""
        return subprocess.Popen(
            [sys.executable, *RAY, *map(str, arguments)],
            env={**os.environ, **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=cwd,
        )

    def submit(self, job: str, *arguments: object, name: str | None = None) -> subprocess.Popen[str]:
        """``ray job submit --working-dir . -- python jobs/JOB ARGUMENTS``, in the checkout."""
        options = ["--submission-id", name] if name else []
        entry = [sys.executable, f"jobs/{job}", *arguments]
        return self.ray("job", "submit", "--address", self.dashboard, *options, "--working-dir", ".", "--", *entry)

    def alive(self) -> int:
        """How many nodes the dashboard knows to be alive; it answers before the head is one."""
        _, page = self.ask("/nodes?view=summary")
        nodes = page["data"]["summary"] if page else []
        return sum(node.get("raylet", {}).get("state") == "ALIVE" for node in nodes)

    def ask(self, path: str, token: str | None = TOKEN, method: str = "GET") -> tuple[int, Any]:
        """HTTP status and JSON of a page of the dashboard; 0 when nobody answers."""
        request = urllib.request.Request(self.dashboard + path, method=method)
        if token is not None:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return int(answer.status), json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, None
        except OSError:
            return 0, None


@contextlib.contextmanager
def running_head(
    logs: Path, cpus: int, environment: dict[str, str] | None = None, autoscaling: dict[str, Any] | None = None
) -> Iterator[Head]:
    """``ray start --head`` with token authentication, ended with all that it started.

    Args:
        logs: folder for what it prints.
        cpus: of the head node.
        environment: added to ours.
        autoscaling: what the cluster's file says, in the provider ``fake_multinode``: its nodes are processes here.
    """
    # Sockets lie in it, and their paths must be short.
    temporary = Path(tempfile.mkdtemp(prefix="rh", dir="/tmp"))  # noqa: S108
    (temporary / "token").write_text(TOKEN)
    (temporary / "token").chmod(0o600)
    given = {
        **PRIVATE | {LOOPBACK: "1"},  # unlike private clusters: nodes have the address of the machine
        "RAY_TMPDIR": str(temporary),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(temporary / "token"),
        "RAY_JOB_STOP_WAIT_TIME_S": "60",  # before SIGKILL; three seconds are too few where much else runs
        "HOME": str(temporary),
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
        **(environment or {}),
    }
    gcs, dashboard, client, listen, grpc, metrics = free_ports(6)
    address = f"{_own_address()}:{gcs}"
    more: Sequence[str] = []
    if autoscaling is not None:
        file = temporary / "cluster.yaml"
        provider = {"type": "fake_multinode", "gcs_address": address, "use_node_id_as_ip": True}
        provider["disable_node_updaters"] = True
        file.write_text(json.dumps({**CLUSTER_FILE, "provider": provider} | autoscaling))
        more = [f"--autoscaling-config={file}"]
        given |= {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1", "AUTOSCALER_HEARTBEAT_TIMEOUT_S": "8"}
    # Without --block: that ends the node when any of its processes ends, and the server of Ray's client, which nobody
    # uses, gives up on a machine that is slow for half a minute.
    arguments = [
        *RAY, "start", "--head", f"--num-cpus={cpus}", f"--port={gcs}", "--dashboard-host=127.0.0.1",
        f"--dashboard-port={dashboard}", f"--ray-client-server-port={client}", "--disable-usage-stats",
        f"--dashboard-agent-listen-port={listen}", f"--dashboard-agent-grpc-port={grpc}",
        f"--metrics-export-port={metrics}", "--object-store-memory=150000000", *more,
    ]  # fmt: skip
    command = Command(arguments, logs / "head.log", given)
    try:
        for _ in range(TRIES - 1):
            if command.process.wait(timeout=300):
                command.sweep()
                command = Command(arguments, logs / "head.log", given)
        head = Head(address, f"http://127.0.0.1:{dashboard}", given, temporary, command)
        wait_until(lambda: head.alive() or command.process.poll(), pause=0.2)
        assert not command.process.poll(), command.stderr() + command.stdout()
        yield head
    finally:
        command.sweep()
        shutil.rmtree(temporary, ignore_errors=True)


TRIES = 4
"""Ray gives a node thirty seconds to start, come what may; a machine that does much else can need more."""

CLUSTER_FILE = {
    "cluster_name": "fake", "upscaling_speed": 100.0, "docker": {}, "auth": {}, "head_node_type": "ray.head.default",
    "file_mounts": {}, "cluster_synced_files": [], "file_mounts_sync_continuously": False, "rsync_exclude": [],
    "rsync_filter": [],
    **{f"{which}_commands": [] for which in ("initialization", "setup", "head_setup", "worker_setup")},
    **{f"{which}_start_ray_commands": [] for which in ("head", "worker")},
}  # fmt: skip
"""What every cluster file has by the time the autoscaler reads it."""


def _own_address() -> str:
    """The address that a node of this machine takes."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # as Ray does; nothing is sent
        with contextlib.suppress(OSError):
            probe.connect(("8.8.8.8", 53))
        return str(probe.getsockname()[0])

from __future__ import annotations

import os
import re

import psutil
import pytest
import ray

from raysts.cluster.capacity import may_grow
from raysts.cluster.connect import connected
from raysts.cluster.ray_internals import LOOPBACK_SWITCH, set_auth_mode
from raysts.errors import RunFailed

LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def listening() -> dict[str, set[str]]:
    """Addresses on which the processes below this one, and it itself, take connections, by process."""
    found: dict[str, set[str]] = {}
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            command = " ".join(process.cmdline())
            for socket in process.net_connections("inet"):
                if socket.status == psutil.CONN_LISTEN:
                    found.setdefault(f"{process.pid} {command[:200]}", set()).add(socket.laddr.ip)
        except psutil.NoSuchProcess:
            continue
    return found


def test_nothing_of_a_private_cluster_listens_beyond_this_machine(
    own_nodes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(LOOPBACK_SWITCH, raising=False)
    constants = ray._private.ray_constants
    before = constants.ENABLE_RAY_CLUSTER

    @ray.remote(num_cpus=1)
    def worker() -> int:
        return os.getpid()

    with connected("local", dashboard=True) as private:
        assert private
        # What nobody asks for is not started: workers before there is work, lines for drivers, looks at an autoscaler.
        words = [word for process in psutil.Process().children(recursive=True) for word in process.cmdline()]
        unasked = re.compile(r".*(default_worker|monitor)\.py|ray::IDLE.*")
        assert not [word for word in words if unasked.fullmatch(word)]
        at_work = ray.get(worker.remote())
        assert [node["NodeManagerAddress"] for node in ray.nodes()] == ["127.0.0.1"]
        found = listening()
        assert not may_grow()
    for name in ("gcs_server", "raylet", "dashboard", str(at_work), str(os.getpid())):
        assert any(name in process for process in found), (name, found)
    assert {process: addresses for process, addresses in found.items() if addresses - LOOPBACK} == {}
    # The next cluster may be a real one.
    assert LOOPBACK_SWITCH not in os.environ and constants.ENABLE_RAY_CLUSTER is before


def test_a_home_that_cannot_be_written_to_is_said(own_nodes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray keeps the token of a private cluster there."""
    monkeypatch.setenv("HOME", "/proc")
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    set_auth_mode(None)
    with pytest.raises(RunFailed, match=r"cannot be started .*/proc/\.ray.*HOME.*--address none"), connected("local"):
        pass

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import s3_server
from processes import Command, wait_until
from run_commands import plan_of as plan_recipe

from raysts.cluster.connect import PRIVATE, SETTINGS, connection
from raysts.pipeline.plan import Plan

# Before anything imports Ray, which reads some of them then.
for _name, _value in {**SETTINGS, **PRIVATE}.items():
    os.environ.setdefault(_name, _value)
# By default workers stand behind everything else that runs on the machine.
os.environ.setdefault("RAY_worker_niceness", "0")
# A thread of Ray Data's that still asks for something when the cluster ends would start another one in this process.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")


@pytest.fixture(scope="session")
def mirrors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the cluster's nodes mirror what they bring from the S3 server."""
    return tmp_path_factory.mktemp("mirrors")


@pytest.fixture(scope="session")
def cluster_is_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that is there when the cluster of :func:`cluster` is, whichever worker of pytest-xdist has it."""
    own = tmp_path_factory.getbasetemp()
    return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "cluster-is-up"


@pytest.fixture(scope="session")
def own_nodes(request: pytest.FixtureRequest, cluster_is_up: Path) -> None:
    """For tests that start nodes of Ray: another worker's cluster, if one is to come, has started before them."""
    if any("cluster" in getattr(item, "fixturenames", ()) for item in request.session.items):
        with contextlib.suppress(TimeoutError):  # its worker has ended
            wait_until(cluster_is_up.exists, 180, pause=0.2)


@pytest.fixture
def commands(own_nodes: None) -> Iterator[list[Command]]:
    """Commands that a test starts; whatever is left of them when it ends is swept away."""
    started: list[Command] = []
    yield started
    for command in started:
        command.sweep()


def head_lives() -> bool:
    """Whether the head that this process has started has its two servers. A node ends with each of its agents, and the next
    call to Ray, or a minute without its head, then ends this process, and what it has written is lost with it."""
    children = [child.name() for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return {"gcs_server", "raylet"} <= {*children}


SELDOM = {
    "RAY_LOG_MONITOR_MANY_FILES_THRESHOLD": "0",
    "LOG_NAME_UPDATE_INTERVAL_S": "10",
    "REPORTER_UPDATE_INTERVAL_MS": "60000",
}
"""Two of Ray's processes look around ten times a second and every few seconds unless told otherwise."""
_running = contextlib.ExitStack()
"""The connection to the cluster of :func:`cluster`."""


@pytest.fixture(scope="session")
def processes_at_start() -> list[str]:
    """The words of the command lines of that cluster's processes before it had anything to do."""
    return []


@pytest.fixture(scope="session")
def start_cluster(
    s3_endpoint: str, mirrors: Path, cluster_is_up: Path, processes_at_start: list[str]
) -> Callable[[], None]:
    """Starts the cluster of :func:`cluster`, unless it runs, and anew if it has died: for what is made before it."""

    def start() -> None:
        import ray

        if ray.is_initialized():
            if head_lives():
                return
            warnings.warn("the cluster of the tests has died; another one takes its place", stacklevel=1)
            _running.close()
        with pytest.MonkeyPatch.context() as patch:
            s3_server.environment(s3_endpoint, mirrors, patch.setenv)
            for name, value in SELDOM.items():
                patch.setenv(name, value)
            small = {"num_cpus": 2, "object_store_memory": 100 << 20}  # the latter is less than what test_stream reads
            patch.setattr(ray, "init", partial(ray.init, **small))
            try:
                _running.enter_context(connection("local"))
            finally:
                cluster_is_up.touch()
        processes = psutil.Process().children(recursive=True)
        processes_at_start[:] = [word for process in processes for word in process.cmdline()]

    return start


@pytest.fixture
def cluster(start_cluster: Callable[[], None]) -> None:
    """A private cluster of two CPUs, whatever else runs on this machine, whose nodes have the credentials of the S3 server;
    one for all tests that want it: they come first."""
    start_cluster()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the cluster where the next test has no use for it."""
    if "cluster" in item.fixturenames and (nextitem is None or "cluster" not in nextitem.fixturenames):
        _running.close()


PlanMaker = Callable[..., Plan]


@pytest.fixture(scope="session")
def planned(small_world: Path) -> PlanMaker:
    """Plans a system on the small world: ``planned(storage, "nli-ct-sed", {"members": 2})``."""

    def make(storage: Path | str, system: str, overrides: dict[str, Any] | None = None) -> Plan:
        return plan_recipe(system, overrides, small_world, storage)

    return make

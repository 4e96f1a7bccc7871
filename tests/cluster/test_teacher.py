from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import small_windows
from run_commands import listening
from small_runs import tokenize_table

from raysts.data.windows import Windows, shard_name
from raysts.models.pretrained import load_tokenizer
from raysts.pipeline.executor import LocalExecutor
from raysts.pipeline.plan import Plan
from raysts.pipeline.step import Context
from raysts.pipeline.steps import vectors as teacher
from raysts.recipes.recipe import Resources
from raysts.storage.atomic import ASIDE, draft_name
from raysts.storage.store import Store


@pytest.fixture(scope="module")
def made(planned, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], Path]:
    """Two models and a token store of 19 windows."""
    with small_windows(64):
        models = []
        for seed in range(2):
            plan: Plan = planned(tmp_path_factory.mktemp("storage"), "nli-sed", {"seed": seed, "members": 1})
            plan.write_backbone()
            models.append(plan.backbone)
        (spec,) = [spec for spec in plan.specs.values() if spec.table == "wikipedia/sentences"]
        tokenize_table(plan.corpus, spec, load_tokenizer(plan.backbone), plan.store_folder(spec))
        return models, plan.store_folder(spec)


def _bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("[!.]*") if path.is_file()}


def test_means_by_actors_survive_a_kill(made: tuple[list[Path], Path], tmp_path: Path, cluster: None) -> None:
    from raysts.cluster.executor import RayExecutor

    models, store = made
    sources = [teacher.TeacherSource(model, store, "mean", 1, "") for model in models]
    teacher.write_targets(Context(LocalExecutor(threads=1), Store.of(tmp_path)), sources, tmp_path / "here")
    here, there, killed, said = tmp_path / "here", tmp_path / "there", tmp_path / "killed", []

    class Deadly(teacher.EmbedTeachers):
        """An actor that is killed in the middle of writing its third shard. It has brought the others from here: that needs no
        model, which takes seconds to load."""

        def __init__(self, *how: Any) -> None:
            if killed.exists():
                teacher.EmbedTeachers.__init__(self, *how)

        def __call__(self, block: teacher.Block) -> None:
            if killed.exists():
                teacher.EmbedTeachers.__call__(self, block)
            elif len(list(there.glob("[!.]*"))) < 2:
                there.mkdir(exist_ok=True)
                shutil.copy(here / shard_name(block.window), there)
            else:
                killed.touch()
                (there / draft_name(shard_name(block.window))).write_bytes(b"half a shard")
                os.kill(os.getpid(), signal.SIGKILL)

    class Executor(RayExecutor):
        def map(self, worker: Any, *how: Any) -> Iterator[Any]:
            return super().map(Deadly, *how)

    alone = Resources(cpus=2)  # with all of the cluster's
    with listening(said.append):
        teacher.write_targets(Context(Executor(), Store.of(tmp_path), alone), sources, there)
    assert killed.exists() and said[-1].startswith("teachers: ") and len(said) >= 10
    expected, found = _bytes(here), _bytes(there)
    assert len(expected) == len(Windows(store)) + 1
    assert found.keys() == expected.keys() and not list(there.glob(f"{ASIDE}*")), "no draft of the killed actor"
    assert [name for name in expected if found[name] != expected[name]] == []

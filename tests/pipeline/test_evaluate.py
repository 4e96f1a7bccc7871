"""What pipelines share of their evaluations, and the sums that an evaluation keeps. Killed ones: test_damage.py."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from run_commands import plan_of as plan_recipe
from small_runs import Interrupted

from raysts.pipeline.local import LocalExecutor
from raysts.pipeline.run import Driver
from raysts.pipeline.steps.agreement import EmbedTexts
from raysts.pipeline.steps.scores import PartialSums
from raysts.storage.store import Store

USUAL = {
    "members": 2, "train.max_steps": 2, "train.eval_every": 2, "evaluation.tasks": ["sts12", "stsb"],
    "evaluation.resamples": 3,
}  # fmt: skip
OF_STUDENTS = {"students": 2, "sed.data.sample": 40}


class Watched(LocalExecutor):
    """An executor that says which models it embeds texts with, and how many texts."""

    def __init__(self) -> None:
        super().__init__(threads=1)
        self.embedded: list[tuple[str, int]] = []

    def map(self, worker: Any, args: tuple[Any, ...], units: Sequence[Any], resources: Any) -> Iterator[Any]:
        if worker is EmbedTexts:
            self.embedded += [(unit[0].parent.name, len(args[0])) for unit in units]
        return super().map(worker, args, units, resources)


def test_pipelines_share_what_is_measured_of_an_equal_model(
    few_world: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    """The backbone is measured for the first of them, members and ensemble for the first that has them; rows are each
    pipeline's own: where other rows are clean, they are a mask on what was measured."""
    data = Path(shutil.copytree(few_world, tmp_path / "data"))
    train, test = (pq.read_table(data / f"sts/{name}.parquet") for name in ("stsb_train", "sts12"))
    pq.write_table(
        pa.concat_tables([train, test.slice(0, 30)], promote_options="permissive"), data / "sts/stsb_train.parquet"
    )
    seen: dict[str, list[tuple[str, int]]] = {}
    for system in ("nli-sed", "nli-ensemble", "sts-ensemble"):
        changes = {"backbone": str(tiny_backbone), **USUAL, **(OF_STUDENTS if system == "nli-sed" else {})}
        plan = plan_recipe(system, changes, data, tmp_path / "storage")
        executor = Watched()
        found = Driver(plan, executor, system, "").run()["results"]
        seen[system] = executor.embedded
        assert {row["system"] for row in found} == {system}
        rows = Counter((row["role"], row["rows"]) for row in found)
        for part in ("all", "clean") if system.startswith("sts") else ("all",):
            assert rows["backbone", part] == rows["ensemble", part] == rows["member", part] / 2 > 0
        for node in plan.evaluations:
            for model in [each.id for each in node.models] or ["backbone"]:
                assert node.row_scores(model)["mean", "1"].keys() == {"sts12", "stsb"}
    assert len(seen["nli-sed"]) == 1 + 2 + 2 and seen["nli-ensemble"] == [] and len(seen["sts-ensemble"]) == 2


def test_sums_are_those_of_one_go(tmp_path: Path) -> None:
    """Vectors are added in order in float32, whoever does it; a choice of layers keeps its type."""
    draws = np.random.default_rng(0)
    vectors = [{k: draws.normal(size=(5, 3)).astype(np.float32) for k in (1, "first_last")} for _ in range(3)]
    for number, each in enumerate(vectors):
        part = PartialSums(Store.of(tmp_path), "node")
        assert part.count == number
        part.add(each)
    found = PartialSums(Store.of(tmp_path), "node")
    for k in (1, "first_last"):
        expected = vectors[0][k] + vectors[1][k] + vectors[2][k]
        assert found.totals[k].dtype == np.float32 and np.array_equal(found.totals[k], expected)
    assert [path.name for path in found.file.parent.glob("[!.]*")] == ["members.npz"]


def test_what_was_half_written_counts_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    PartialSums(Store.of(tmp_path), "node").add({1: np.ones((2, 2), np.float32)})
    replace = Path.replace

    def killed(self: Path, target: Path) -> Path:
        if Path(target).name == "members.npz":
            raise Interrupted
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(Interrupted):
        PartialSums(Store.of(tmp_path), "node").add({1: np.ones((2, 2), np.float32)})
    monkeypatch.undo()
    found = PartialSums(Store.of(tmp_path), "node")
    assert found.count == 1 and found.totals[1][0, 0] == 1.0
    found.add({1: np.ones((2, 2), np.float32)})
    again = PartialSums(Store.of(tmp_path), "node")
    assert again.count == 2 and again.totals[1][0, 0] == 2.0

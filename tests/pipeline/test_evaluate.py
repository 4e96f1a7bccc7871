"""An evaluation that is killed again and again gets to its end: every model that is done is kept."""

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
from small_runs import Interrupted

from raysts.commands.look import plan as plan_recipe
from raysts.pipeline import run as driver
from raysts.pipeline.local import LocalExecutor
from raysts.pipeline.steps.agreement import EmbedTexts
from raysts.pipeline.steps.scores import PartialSums
from raysts.storage.store import Store

CHANGES = {
    "backbone": "tiny",
    "members": 3,
    "students": 2,
    "select_top": 2,
    "train.max_steps": 2,
    "train.eval_every": 2,
    "sed.data.sample": 40,
    "evaluation.tasks": ["sts12", "stsb"],
    "evaluation.resamples": 3,
}


class Short(LocalExecutor):
    """An executor that lives for one model of an evaluation of several, and says which it began."""

    def __init__(self, most: int = 1) -> None:
        super().__init__(threads=1)
        self.most, self.begun, self.texts = most, [], []

    def map(self, worker: Any, args: tuple[Any, ...], units: Sequence[Any], resources: Any) -> Iterator[Any]:
        for number, made in enumerate(super().map(worker, args, units, resources)):
            if worker is EmbedTexts:
                if number == self.most:
                    raise Interrupted
                self.begun.append(units[number][0].parent.name)
                self.texts.append(len(args[0]))
            yield made


def results_of(storage: Path) -> dict[str, list[dict[str, Any]]]:
    """Every part of the results table without when it was written."""
    parts = {path.name: pq.read_table(path).drop_columns(["created_at"]) for path in storage.glob("results/*.parquet")}
    return {name: part.to_pylist() for name, part in parts.items()}


def test_every_start_evaluates_one_model_more(small_world: Path, tmp_path: Path) -> None:
    calm, short = (plan_recipe("nli-sed", CHANGES, small_world, tmp_path / name) for name in ("calm", "short"))
    whole = Short(most=100)
    driver.run(calm, whole, "calm", "")

    begun: list[list[str]] = []
    for _ in range(20):
        executor = Short()
        begun.append(executor.begun)
        try:
            driver.run(short, executor, "short", "")
            break
        except Interrupted:
            assert list((tmp_path / "short" / "row_scores").glob("*.parquet"))
    # The backbone with the first member, then a member each; the last one with its ensemble and a student, a student.
    assert [len(models) for models in begun] == [2, 1, 2, 1]
    assert [model for models in begun for model in models] == whole.begun  # in order, none twice
    found = results_of(tmp_path / "short")
    assert found == results_of(tmp_path / "calm") and len(found) == 3
    assert {row["role"] for rows in found.values() for row in rows} == {"backbone", "member", "ensemble", "student"}
    assert not [path for path in (tmp_path / "short" / "evaluations").iterdir() if path.is_dir()]


def test_pipelines_share_what_is_measured_of_an_equal_model(small_world: Path, tmp_path: Path) -> None:
    """The backbone is measured for the first of them, members and ensemble for the first that has them; rows are each
    pipeline's own: where other rows are clean, they are a mask on what was measured."""
    data = Path(shutil.copytree(small_world, tmp_path / "data"))
    train, test = (pq.read_table(data / f"sts/{name}.parquet") for name in ("stsb_train", "sts12"))
    pq.write_table(
        pa.concat_tables([train, test.slice(0, 30)], promote_options="permissive"), data / "sts/stsb_train.parquet"
    )
    usual = {**CHANGES, "select_top": None}
    of_students = {key: usual.pop(key) for key in ("students", "sed.data.sample")}
    seen: dict[str, list[tuple[str, int]]] = {}
    for system in ("nli-sed", "nli-ensemble", "sts-ensemble"):
        plan = plan_recipe(system, usual | (of_students if system == "nli-sed" else {}), data, tmp_path / "storage")
        executor = Short(most=100)
        found = driver.run(plan, executor, system, "")["results"]
        seen[system] = list(zip(executor.begun, executor.texts, strict=True))
        assert {row["system"] for row in found} == {system}
        rows = Counter((row["role"], row["rows"]) for row in found)
        for part in ("all", "clean") if system.startswith("sts") else ("all",):
            assert rows["backbone", part] == rows["ensemble", part] == rows["member", part] / 3 > 0
        for node in plan.evaluations:
            for model in [each.id for each in node.models] or ["backbone"]:
                assert node.row_scores(model)["mean", "1"].keys() == {"sts12", "stsb"}
    assert len(seen["nli-sed"]) == 1 + 3 + 2 and seen["nli-ensemble"] == [] and len(seen["sts-ensemble"]) == 3


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

"""An evaluation that is killed again and again gets to its end: every model that is done is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from small_runs import Interrupted

from raysts.commands.plan import plan as plan_recipe
from raysts.pipeline import run as driver
from raysts.pipeline.local import LocalExecutor
from raysts.pipeline.nodes.evaluate import EmbedTexts, PartialResults
from raysts.storage.store import Store

CHANGES = {
    "backbone": "tiny",
    "members": 4,
    "students": 2,
    "select_top": 3,
    "train.max_steps": 2,
    "sed.data.sample": 40,
    "evaluation.tasks": ["sts12", "stsb"],
    "evaluation.resamples": 3,
}


class Short(LocalExecutor):
    """An executor that lives for one model of an evaluation of several, and says which it began."""

    def __init__(self, most: int = 1) -> None:
        super().__init__(threads=1)
        self.most, self.begun = most, []

    def map(self, worker: Any, args: tuple[Any, ...], units: Sequence[Any], resources: Any, say: Any) -> Iterator[Any]:
        for number, made in enumerate(super().map(worker, args, units, resources, say)):
            if worker is EmbedTexts:
                if number == self.most:
                    raise Interrupted
                self.begun.append(units[number][0].parent.name)
            yield made


def results_of(storage: Path) -> dict[str, list[dict[str, Any]]]:
    """Every part of the results table without when it was written."""
    parts = {path.name: pq.read_table(path).drop_columns(["created_at"]) for path in storage.glob("results/*.parquet")}
    return {name: part.to_pylist() for name, part in parts.items()}


def test_every_start_evaluates_one_model_more(small_world: Path, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    calm, short = (plan_recipe("nli-sed", CHANGES, small_world, tmp_path / name) for name in ("calm", "short"))
    whole = Short(most=100)
    driver.run(calm, whole, "calm", "", lambda line: None)

    begun: list[list[str]] = []
    for _ in range(20):
        executor = Short()
        begun.append(executor.begun)
        try:
            driver.run(short, executor, "short", "", lambda line: None)
            break
        except Interrupted:
            assert list((tmp_path / "short" / "evaluations").glob("*/model-*"))
    # The backbone with the first member, then a member each; the last one with its ensemble and a student, a student.
    assert [len(models) for models in begun] == [2, 1, 1, 2, 1]
    assert [model for models in begun for model in models] == whole.begun  # in order, none twice
    found = results_of(tmp_path / "short")
    assert found == results_of(tmp_path / "calm") and len(found) == 3
    assert {row["role"] for rows in found.values() for row in rows} == {"backbone", "member", "ensemble", "student"}
    assert not list((tmp_path / "short" / "evaluations").iterdir())


def test_sums_are_those_of_one_go(tmp_path: Path) -> None:
    """Vectors are added in order in float32, whoever does it; a choice of layers keeps its type."""
    draws = np.random.default_rng(0)
    vectors = [{k: draws.normal(size=(5, 3)).astype(np.float32) for k in (1, "first_last")} for _ in range(4)]
    vectors[2] = {}  # not chosen
    row = {"run_id": "a", "value": 0.1, "parent_run_ids": ["b"], "n": 3}
    for number, each in enumerate(vectors):
        part = PartialResults(Store.of(tmp_path), "node")
        assert part.count == number and len(part.rows) == number
        part.add([row], each)
    found = PartialResults(Store.of(tmp_path), "node")
    assert [{key: got[key] for key in row} for got in found.rows] == [row] * 4
    for k in (1, "first_last"):
        expected = vectors[0][k] + vectors[1][k] + vectors[3][k]
        assert found.sums[k].dtype == np.float32 and np.array_equal(found.sums[k], expected)
    assert sorted(path.name[:5] for path in found.folder.glob("[!.]*")) == ["model"] * 4 + ["sums-"]
    next(found.folder.glob("sums-*")).unlink()
    assert (
        PartialResults(Store.of(tmp_path), "node").count == 0
    )  # an ensemble without the first members would be another
    found.close()
    assert not found.folder.exists()


@pytest.mark.parametrize("moment", ["model-001.parquet", "sums-002.npz"])
def test_what_was_half_written_counts_for_nothing(moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    PartialResults(Store.of(tmp_path), "node").add([{"value": 1.0}], {1: np.ones((2, 2), np.float32)})
    replace = Path.replace

    def killed(self: Path, target: Path) -> Path:
        if Path(target).name == moment:
            raise Interrupted
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(Interrupted):
        PartialResults(Store.of(tmp_path), "node").add([{"value": 2.0}], {1: np.ones((2, 2), np.float32)})
    monkeypatch.undo()
    found = PartialResults(Store.of(tmp_path), "node")
    assert found.count == 1 and found.sums[1][0, 0] == 1.0
    found.add([{"value": 2.0}], {1: np.ones((2, 2), np.float32)})
    again = PartialResults(Store.of(tmp_path), "node")
    assert [row["value"] for row in again.rows] == [1.0, 2.0] and again.sums[1][0, 0] == 2.0

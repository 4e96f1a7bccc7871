"""Every table of an experiment is filled by its command, on few rows of the embedded world."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_runs import write_backbone

from raysts.commands.run import run
from raysts.evaluation.words import SETS
from raysts.papers.experiments import EXPERIMENTS, experiment_of
from raysts.papers.measured import report_data

pytestmark = pytest.mark.whole


DEPTH = 3
ROWS = {"wikipedia/sentences": 200, "nli/train": 600}
"""Rows of the tables that train, where 40 are too few for a batch."""
QUICK: dict[str, Any] = {
    "members": 1, "train.max_steps": 1, "train.max_length": 16, "data.sample": 300, "evaluation.resamples": 0,
}  # fmt: skip
OWN = {
    "sed-stability": {"members": 2, "students": 2}, "sed-supervised": {"seeds": 1, "space.lower_bound": "0,0.5"},
}  # fmt: skip
"""Deviations are over models, and a search needs points."""
ELSEWHERE = re.compile(
    r"which needs the file (glove\.840B\.300d\.txt|GoogleNews-vectors-negative300\.bin) in the working directory$"
    r"|^(raw|latte) was measured, but not with (split=test, )?layers=only-(?!1\b|2\b|3\b)\d+\b"
)
"""Reasons of rows that need what is not here: word vectors, a deeper backbone."""


def few(table: pa.Table, name: str) -> pa.Table:
    """First rows of a table: of each subset, so that it has scores that differ, and of each of SentEval's labels."""
    column = "subset" if name.startswith("sts/") else "label" if name.startswith("senteval/") else None
    if column is None:
        return table.slice(0, ROWS.get(name, 40))
    seen: Counter[str] = Counter()
    kept = []
    for number, group in enumerate(table.column(column).to_pylist()):
        seen[group] += 1
        kept += [number] if seen[group] <= {"subset": 6, "label": 3}[column] else []
    return table.take(kept)


def renamed(table: pa.Table, name: str) -> pa.Table:
    """The world's words under the names of the paper's sets."""
    column = table.column_names.index("dataset")
    if "a" in table.column_names:
        table = table.append_column("score", pa.array([float(len(word)) for word in table.column("c").to_pylist()]))
    return pa.concat_tables([table.set_column(column, "dataset", pa.array([of] * len(table))) for of in SETS[name]])


@pytest.fixture(scope="module")
def world(small_world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("few")
    for path in small_world.rglob("*.parquet"):
        name = path.relative_to(small_world).with_suffix("").as_posix()
        table = few(pq.read_table(path), name)
        table = renamed(table, name) if name in SETS else table
        if name == "nli/train":
            column = table.column_names.index("source")
            table = table.set_column(column, "source", pa.array(["snli"] * len(table)))
        (folder / name).parent.mkdir(exist_ok=True)
        pq.write_table(table, folder / f"{name}.parquet")
    write_backbone(folder / "bert", "bert", depth=DEPTH)
    return folder


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One storage, in which what experiments share is trained once."""
    return tmp_path_factory.mktemp("storage")


USUAL = ("sed-supervised",)
"""The experiment that has a search. That the command of a table makes each of its rows is in test_experiments.py, which rows
fill which cells in test_match.py; Table 3 of SED and latte-layers are also in tests/commands/test_experiment.py."""
NAMES = [*(name for name, each in EXPERIMENTS.items() if each.paper), "gausscse-main@paper-text", "sed-main@paper-text"]
RECIPES = [pytest.param(name, marks=() if name in USUAL else pytest.mark.slow) for name in NAMES]


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_table_is_filled_by_its_command(recipe: str, world: Path, storage: Path, tmp_path: Path) -> None:
    experiment = experiment_of(recipe)
    assert experiment.paper is not None
    data = world
    if recipe in USUAL:  # without the sets that stand in no cell of its table
        others = shutil.ignore_patterns("bert", "sick", "senteval", "web", "retrieval", "sts1*", "snli*", "xnli*")
        data = shutil.copytree(world, tmp_path / "data", ignore=others)
    overrides = {**QUICK, "backbone": str(world / "bert"), **OWN.get(recipe, {})}
    run(recipe, overrides, data, storage, address="none")
    for shown in report_data(experiment.paper, storage, experiment.tables).tables:
        empty = {(row.group, row.name): why for row, why in shown.empty if why != row.unmade}
        later: list[tuple[str | None, str]] = []
        if not recipe.endswith("@paper-text"):
            later = [(row.group, row.name) for row in shown.table.rows if row.scale == "paper-text"]
            assert all(empty.pop(row).endswith(f"'raysts run {recipe}@paper-text'") for row in later)
        strange = {row: why for row, why in empty.items() if not ELSEWHERE.search(why)}
        assert not strange, shown.table.number
        for i, row in enumerate(shown.table.rows):
            cells = {(i, j, k) for j, cell in enumerate(row.cells) for k, value in enumerate(cell) if value}
            if (row.group, row.name) in later:
                continue
            assert row.unmade or (row.group, row.name) in empty or cells <= shown.measured.keys(), row.name
        assert shown.measured, shown.table.number

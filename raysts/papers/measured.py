"""The data of a paper's page, read from the storage: results rows with their runs."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from raysts.data.corpora import Corpus
from raysts.errors import InputError, nearest
from raysts.evaluation import results
from raysts.evaluation.entailment import DEV
from raysts.evaluation.results import ResultRow
from raysts.evaluation.scores import AREAS
from raysts.models.head import NAMES
from raysts.papers import published
from raysts.papers.match import MeasuredRow, PaperTable, paper_tables
from raysts.papers.published import Paper
from raysts.recipes import names
from raysts.recipes.overrides import apply_overrides
from raysts.recipes.recipe import DISTILLATION, Pipeline
from raysts.recipes.tree import build, to_plain
from raysts.schema import RESULTS
from raysts.storage.store import Store

NOT_ON_RECORD = "backbone not on record"


class PaperData(NamedTuple):
    """A paper and its tables with the measurements of a storage."""

    paper: Paper
    tables: Sequence[PaperTable]

    def as_plain(self) -> dict[str, Any]:
        """Return the fields of the JSON line.

        ``tables`` holds ``number``, ``about``, ``cells``, their number (``cells_count``), that of the measured ones
        (``filled``) and ``empty``: row, group and why of the rows without any. A cell has row, group, system, backbone,
        column, metric, published and std (times 100), remark, measured (backbone, value and std not times 100, n, run,
        run_ids, remarks).
        """
        tables = []
        for shown in self.tables:
            table, empty = shown.table, [{"row": r.name, "group": r.group, "why": why} for r, why in shown.empty]
            counts = {"cells_count": len(table.values), "filled": len(shown.measured)}
            tables.append(
                {"number": table.number, "about": table.about, **counts, "empty": empty, "cells": _cells(shown)}
            )
        return {"tables": tables}


def report_data(paper: str, storage: Path, numbers: Sequence[int] | None = None) -> PaperData:
    """Return the data of a paper's page, for the tables of these ``numbers`` or all.

    Raises:
        InputError: the paper is unknown, or results cannot be read.
    """
    if paper not in published.PAPERS:
        choices = ", ".join(published.PAPERS)
        raise InputError(f"--paper '{paper}'{nearest(paper, published.PAPERS)}: must be one of {choices}")
    rows = [row for row in every_row(storage) if row.row["subset"] is None]
    tables = [table for table in paper_tables(paper, rows) if numbers is None or table.table.number in numbers]
    return PaperData(published.load(paper), tables)


def _cells(shown: PaperTable) -> list[dict[str, Any]]:
    cells = []
    for (i, j, k), value in shown.table.values.items():
        row, column = shown.table.rows[i], shown.table.columns[j]
        measured = [
            {
                "backbone": backbone, "value": score.value, "std": score.std, "n": score.n,
                "run": score.source.run, "run_ids": [*score.source.ids], "remarks": [*score.source.remarks],
            }
            for backbone, score in shown.measured.get((i, j, k), {}).items()
        ]  # fmt: skip
        place = {"row": row.name, "group": row.group, "system": row.system, "backbone": row.backbone}
        printed = {"published": value.value, "std": value.std, "remark": value.remark or row.remark}
        place |= {"column": column.name, "metric": column.metrics[k]}
        cells.append({**place, **printed, "measured": measured})
    return cells


def every_row(storage: Path) -> list[MeasuredRow]:
    """Return every value in the storage's results that measures the system of its name.

    A system on a model of this storage does not count: ``ct`` from an ``nli`` model is ``nli-ct``. Nor does a YAML
    pipeline with another's name. Trials of a study have their score on the development set.

    Raises:
        InputError: a part of the results cannot be read.
    """
    store = Store.of(storage.absolute())
    records = [record for path in store.get_all("pipelines", "*.json") if (record := store.read_json(path))]
    by_part = {step["id"]: record for record in records for step in record.get("steps", ())}
    backbones = {record["backbone_id"]: record["pipeline"]["backbone"] for record in records}
    named = {record["name"]: _as_named(record["pipeline"]) for record in records}
    runs = {path.parent.name for path in store.get_all("runs", "run.json", "recipe.json") if path.name == "run.json"}
    rows: list[MeasuredRow] = []
    chain = cache(partial(_run_and_before, store))
    for path in store.get_all("results", "*.parquet"):
        evaluation = path.stem.startswith(results.EVALUATION)
        for row in _repeat_aggregations(results.read_rows(path)):
            if row["rows"] != "all" or row["value"] is None or not math.isfinite(row["value"]):
                continue
            # A model that 'raysts evaluate' measured again is still one of its pipeline's.
            record = by_part.get(row["run_id"] if evaluation else path.stem)
            if record is None or named[record["name"]] or row["role"] == "backbone":
                rows.append(_pipeline_row(row, record) if record else _part_row(row, path.stem, chain, backbones))
    rows += _study_rows(store)
    return _label_backbones([row for row in rows if not _made_here(row.backbone, store.path("runs"), runs)])


def _repeat_aggregations(rows: Sequence[ResultRow]) -> list[ResultRow]:
    """Return the rows, and those of a set without subsets again as its ``mean`` and ``wmean``."""
    divided = {row["dataset"] for row in rows if row["subset"] is not None or row["aggregation"] == "mean"}
    single = [row for row in rows if row["aggregation"] == "all" and row["dataset"] not in divided]
    return [*rows, *({**row, "aggregation": name} for row in single for name in ("mean", "wmean"))]


def _as_named(tree: Mapping[str, Any]) -> bool:
    try:
        usual = names.pipeline(tree["name"])
    except InputError:
        return False
    return (list(usual.recipes), usual.combine) == (list(tree["recipes"]), tree["combine"])


def _made_here(backbone: str, folder: Path, runs: Iterable[str]) -> bool:
    """Return True if a backbone is a run of the storage: its folder, or a prefix of its id."""
    in_runs = folder in Path(backbone).absolute().parents
    return in_runs if "/" in backbone else any(run.startswith(backbone) for run in runs)


def _pipeline_row(row: ResultRow, record: Mapping[str, Any]) -> MeasuredRow:
    tree = record["pipeline"]
    stages = list(tree["recipes"])
    if row["role"] != "student" and DISTILLATION in stages:
        stages = stages[: stages.index(DISTILLATION)]
    origin = {"backbone": tree["backbone"], "backbone_id": record["backbone_id"]}
    recipes = {stage: tree["recipes"][stage] for stage in stages}
    return MeasuredRow(row=row, run=record["name"], stages=recipes, **origin)


Chain = list[tuple[dict[str, Any], dict[str, Any]]]


def _run_and_before(store: Store, run_id: str) -> Chain:
    """Return records and recipes of a run and its ancestors in the storage."""
    chain = []
    while run_id and (record := store.read_json(f"runs/{run_id}/run.json")):
        chain.append((record, store.read_json(f"runs/{run_id}/recipe.json") or {}))
        run_id = next(iter(record.get("parents") or ()), "")
    return chain


def _part_row(row: ResultRow, part: str, chain: Callable[[str], Chain], backbones: Mapping[str, str]) -> MeasuredRow:
    """Return a row that no recorded pipeline has (a study's, or rerun), from its runs' records."""
    run_id = row["run_id"] or next(iter(row["parent_run_ids"] or ()), "")
    runs, evaluation = chain(run_id), part.startswith(results.EVALUATION)
    backbone_id = runs[-1][0]["backbone_id"] if runs else run_id
    # What has no run on record is itself what it started from
    unnamed = str(row["system"]) if evaluation and row["role"] == "backbone" else NOT_ON_RECORD
    named = {record["backbone_id"]: record["backbone"] for record, _ in runs} | {**backbones}
    trial = "/".join(text for text in (row["study"], row["trial"]) if text)
    return MeasuredRow(
        row=row,
        run=trial or f"evaluation {part.removeprefix(results.EVALUATION)[:8]}",
        backbone=named.get(backbone_id, unnamed),
        backbone_id=backbone_id,
        stages={record["stage"]: recipe for record, recipe in runs},
    )


def _study_rows(store: Store) -> Iterator[MeasuredRow]:
    """Return the scores of trials on SNLI dev, the only searches with a table in a paper."""
    files = store.get_all("studies", "study.json", "trials/*.json")
    for file in (file for file in files if file.name == "study.json"):
        study, size = store.read_json(file) or {}, None  # damaged, and said so
        try:
            pipeline = build(Pipeline, study.get("pipeline"))
        except InputError:  # of another version
            continue
        measured = next(reversed(pipeline.recipes.values()), None)
        own_dev = (study.get("own") or {}).get("dev")
        if measured is None or measured.spec.dev != DEV or own_dev or study.get("metric", AREAS[0]) != AREAS[0]:
            continue
        with contextlib.suppress(InputError, OSError):  # the data may have gone
            size = Corpus(study["data"]).rows(DEV)
        for trial in map(store.read_json, (path for path in files if path.parent == file.parent / "trials")):
            if not trial or trial.get("status") != "finished":
                continue
            tree = to_plain(apply_overrides(pipeline, trial["point"]))
            stages = tree["recipes"]
            recipe = [*stages.values()][-1]
            row = dict.fromkeys(RESULTS.names) | {
                "run_id": trial["id"], "study": study["name"], "system": tree["name"], "role": "member",
                "member": trial["seed"], "dataset": "snli-2way", "split": "dev", "rows": "all", "metric": "auc_pr",
                "pooling": recipe["pooling"], "layers": str(recipe["layers"]),
                "similarity": NAMES[recipe["settings"]["similarity"]], "selected_by": "snli-dev", "value": trial["value"],
                "n": size, "created_at": trial["finished_at"],
            }  # fmt: skip
            origin = {"backbone": tree["backbone"], "backbone_id": study["identity"]["backbone"]}
            yield MeasuredRow(row=row, run=study["name"], stages=stages, **origin)


def _label_backbones(rows: list[MeasuredRow]) -> list[MeasuredRow]:
    """Return the rows with the last part of the backbone's path, and an id prefix on a clash."""
    paths = {row.backbone: Path(row.backbone) for row in rows}
    labels = {name: path.name if path.is_absolute() or path.exists() else name for name, path in paths.items()}
    ids: dict[str, set[str]] = {}
    for row in rows:
        ids.setdefault(labels[row.backbone], set()).add(row.backbone_id)
    endings = {row.backbone_id: f" ({row.backbone_id[:8]})" for row in rows if len(ids[labels[row.backbone]]) > 1}
    return [replace(row, backbone=labels[row.backbone] + endings.get(row.backbone_id, "")) for row in rows]

"""Results rows with what the results table does not say of them: the run, its backbone, how it was made."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raysts.data.corpora import Corpus
from raysts.errors import InputError
from raysts.evaluation import results
from raysts.evaluation.entailment import DEV
from raysts.evaluation.results import ResultRow
from raysts.models.gaussian import NAMES
from raysts.objectives import OBJECTIVES
from raysts.pipeline import outcome
from raysts.recipes import names
from raysts.recipes.tree import set_path
from raysts.schema import RESULTS
from raysts.storage.atomic import read_json
from raysts.storage.store import fetch

NOT_ON_RECORD = "backbone not on record"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One results row.

    Attributes:
        row: the row.
        run: name of the run in the storage, of study and trial, or else of the evaluation.
        backbone: what it started from; models of one name are told apart by their content.
        backbone_id: content id of the backbone.
        stages: the plain recipe of each of its stages by the stage's name.
    """

    row: ResultRow
    run: str
    backbone: str
    backbone_id: str
    stages: Mapping[str, Any]


def measured(storage: Path, subsets: bool = False) -> list[Measured]:
    """Every value of a whole data set in the storage's results, where the system is what it is called.

    With ``subsets`` those of parts of data sets instead.

    What starts from a model of this storage is not: ``ct`` from an ``nli`` model is ``nli-ct``. Nor is a pipeline that a
    YAML file gives the name of another. The trials of a study have their score on the development set.

    Raises:
        InputError: a part of the results cannot be read.
    """
    records = [record for path in sorted((storage / "pipelines").glob("*.json")) if (record := read_json(path))]
    by_part = {node: record for record in records for node in record.get("nodes", ())}
    backbones = {record["backbone_id"]: record["pipeline"]["backbone"] for record in records}
    named = {record["name"]: _as_named(record["pipeline"]) for record in records}
    found = []
    fetch(storage / "results", (".parquet",))
    for path in sorted((storage / "results").glob("*.parquet")):
        if path.name.startswith("."):
            continue
        evaluation = path.stem.startswith(results.EVALUATION)
        for row in results.read_part(storage, path.stem):
            if (row["subset"] is not None) != subsets or row["rows"] != "all":
                continue
            if row["value"] is None or not math.isfinite(row["value"]):
                continue
            # a model that 'raysts evaluate' measured again is still one of its pipeline's
            record = by_part.get(row["run_id"] if evaluation else path.stem)
            each = _of_pipeline(row, record) if record else _of_part(row, path.stem, storage, backbones)
            as_named = record is None or named[record["name"]]
            if (as_named or row["role"] == "backbone") and not _made_here(each.backbone, storage):
                found.append(each)
    if subsets:
        return _told_apart(found)
    found += [each for each in _of_studies(storage) if not _made_here(each.backbone, storage)]
    return _told_apart(found)


def system_of(row: ResultRow) -> str | None:
    """The system that a row measures; see :func:`raysts.pipeline.outcome.system_of`."""
    return outcome.system_of(row["system"] or "", row["role"])


def _as_named(tree: Mapping[str, Any]) -> bool:
    try:
        usual = names.pipeline(tree["name"])
    except InputError:
        return False
    return (list(usual.stages), usual.combine, list(usual.post)) == (
        list(tree["stages"]), tree["combine"], list(tree.get("post", ()))
    )  # fmt: skip


def _made_here(backbone: str, storage: Path) -> bool:
    runs = storage.absolute() / "runs"
    if "/" in backbone:
        return runs in Path(backbone).absolute().parents
    return any(runs.glob(f"{backbone}*/run.json"))


def _of_pipeline(row: ResultRow, record: Mapping[str, Any]) -> Measured:
    tree = record["pipeline"]
    of_student = {**({"sed": tree["sed"]} if tree.get("sed") else {}), **tree.get("post", {})}
    return Measured(
        row=row,
        run=record["name"],
        backbone=tree["backbone"],
        backbone_id=record["backbone_id"],
        stages={**tree["stages"], **(of_student if row["role"] == "student" else {})},
    )


def _of_part(row: ResultRow, part: str, storage: Path, backbones: Mapping[str, str]) -> Measured:
    """A row of no pipeline on record (a study's, or one that ran again with other settings): what its runs say."""
    ids = [row["run_id"]] if row["run_id"] else list(row["parent_run_ids"] or ())
    stages: dict[str, Any] = {}
    run_id, backbone_id = ids[0] if ids else None, None
    while run_id and (record := read_json(storage / "runs" / run_id / "run.json")):
        stages[record["stage"]] = read_json(storage / "runs" / run_id / "recipe.json") or {}
        backbone_id, backbones = record["backbone_id"], {record["backbone_id"]: record["backbone"], **backbones}
        run_id = next(iter(record.get("parents") or ()), None)
    backbone_id = backbone_id or run_id or ""
    evaluation = part.startswith(results.EVALUATION)
    # what has no run on record is itself what it started from
    unnamed = row["system"] if evaluation and row["role"] == "backbone" else NOT_ON_RECORD
    return Measured(
        row=row,
        run="/".join(text for text in (row["study"], row["trial"]) if text)
        or f"evaluation {part.removeprefix(results.EVALUATION)[:8]}",
        backbone=backbones.get(backbone_id, unnamed),
        backbone_id=backbone_id,
        stages=stages,
    )


def _of_studies(storage: Path) -> Iterator[Measured]:
    """The scores of trials on SNLI dev: the only searches that a paper has a table of."""
    for file in sorted((storage / "studies").glob("*/study.json")):
        study = read_json(file) or {}
        tree = study["pipeline"]
        recipes = {
            stage: recipe for stage, recipe in tree["stages"].items() if OBJECTIVES[recipe["objective"]].dev == DEV
        }
        size = None
        with contextlib.suppress(InputError, OSError):  # the data may have gone
            size = Corpus(study["data"]).rows(DEV) if recipes else None
        for path in sorted(file.parent.glob("trials/[!.]*.json")):
            trial = read_json(path) or {}
            if not recipes or trial["status"] != "finished":
                continue
            stages = copy.deepcopy(recipes)
            for option, value in trial["point"].items():
                set_path(stages, option, value)
            (recipe,) = stages.values()
            row = dict.fromkeys(RESULTS.names) | {
                "run_id": trial["id"], "study": study["name"], "system": tree["name"], "role": "member",
                "member": trial["seed"], "dataset": "snli-2way", "split": "dev", "rows": "all", "metric": "auc_pr",
                "pooling": recipe["pooling"], "layers": str(recipe["layers"]),
                "similarity": NAMES[recipe["settings"]["similarity"]], "selected_by": "snli-dev", "value": trial["value"],
                "n": size, "created_at": trial["finished_at"],
            }  # fmt: skip
            yield Measured(
                row=row,
                run=study["name"],
                backbone=tree["backbone"],
                backbone_id=study["identity"]["backbone"],
                stages=stages,
            )


def _told_apart(found: list[Measured]) -> list[Measured]:
    """With the last part of a backbone's path for its name, and the beginning of its id where two have that name."""
    labels = {each.backbone: _label(each.backbone) for each in found}
    ids: dict[str, set[str]] = {}
    for each in found:
        ids.setdefault(labels[each.backbone], set()).add(each.backbone_id)
    several = {label for label, known in ids.items() if len(known) > 1}
    return [
        replace(each, backbone=label + (f" ({each.backbone_id[:8]})" if label in several else ""))
        for each in found
        for label in [labels[each.backbone]]
    ]


def _label(backbone: str) -> str:
    path = Path(backbone)
    return path.name if path.is_absolute() or path.exists() else backbone

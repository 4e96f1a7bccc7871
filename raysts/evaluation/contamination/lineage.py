"""What a model was trained on, as the records of the runs behind it say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysts.errors import InputError
from raysts.recipes.recipe import Data
from raysts.recipes.tree import build
from raysts.storage.atomic import read_json

TINY = "tiny"


@dataclass(frozen=True, slots=True)
class TrainingText:
    """Rows of a canonical table that some stage was trained on; ``sha256`` is that of the table."""

    table: str
    data: Data
    sha256: str


@dataclass(frozen=True, slots=True)
class TrainedOn:
    """The training text of a model with all that went before it: its parents, its teachers and theirs.

    ``unknown`` says of what the training text is not on record (a backbone from elsewhere, for one).
    """

    texts: tuple[TrainingText, ...] = ()
    unknown: tuple[str, ...] = ()


def together(several: Iterable[TrainedOn]) -> TrainedOn:
    """The training text of all of these."""
    several = list(several)
    return TrainedOn(
        tuple(dict.fromkeys(text for one in several for text in one.texts)),
        tuple(dict.fromkeys(what for one in several for what in one.unknown)),
    )


def trained_on(model: Path) -> TrainedOn:
    """What the records say of the model in the folder ``model``; a run's is ``runs/<id>/model``."""
    return _of(model, set())


def _of(model: Path, seen: set[Path]) -> TrainedOn:
    run = model.absolute().parent
    if run in seen:
        return TrainedOn()
    seen.add(run)
    record, recipe = (read_json(run / name) if model.name == "model" else None for name in ("run.json", "recipe.json"))
    if not record or not recipe:
        name = str(model.absolute())
        return TrainedOn() if f"/{TINY}-" in name else TrainedOn(unknown=(f"'{model}' (no record of a run beside it)",))
    storage = run.parent.parent
    parent, *teachers = record["parents"]
    found = [TrainedOn((TrainingText(record["data"]["table"], _data(run, recipe), record["data"]["sha256"]),))]
    if (run.parent / parent).is_dir():
        found.append(_of(run.parent / parent / "model", seen))
    elif parent == record["backbone_id"]:
        found.append(_of_backbone(str(record["backbone"]), run.parent, seen))
    # else the start of a student, made of its teachers
    for teacher in teachers:
        manifest = read_json(storage / "embeddings" / teacher / "manifest.json") or {"members": [teacher]}
        for member in manifest["members"]:
            if (run.parent / member).is_dir():
                found.append(_of(run.parent / member / "model", seen))
            else:
                found.append(TrainedOn(unknown=(f"teacher {member} (not a run of this storage)",)))
    return together(found)


def _of_backbone(name: str, runs: Path, seen: set[Path]) -> TrainedOn:
    if name == TINY:
        return TrainedOn()
    ids = [] if "/" in name else [path for path in runs.glob(f"{name}*") if (path / "model").is_dir()]
    if len(ids) == 1 or (Path(name).is_dir() and (Path(name).parent / "run.json").is_file()):
        return _of(ids[0] / "model" if ids else Path(name), seen)
    return TrainedOn(unknown=(f"backbone '{name}'",))


def _data(run: Path, recipe: dict[str, Any]) -> Data:
    problems: list[str] = []
    found = build(Data, recipe["data"], problems)
    if found is None:
        raise InputError([f"{run / 'recipe.json'}: {problem}" for problem in problems])
    return found

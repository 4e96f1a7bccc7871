"""Which models a study keeps, and how much disk that takes."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from raysts.errors import InputError
from raysts.evaluation.run_metric import rank
from raysts.models.pretrained import load
from raysts.objectives import OBJECTIVES
from raysts.recipes.recipe import Recipe
from raysts.search.record import Record
from raysts.search.search import Search
from raysts.search.space import corners, numeric
from raysts.storage.atomic import read_json
from raysts.storage.manifests import remove
from raysts.storage.store import fetch, place_of, write_json
from raysts.training import checkpoint

if TYPE_CHECKING:
    from raysts.search.study import Study

RECORDS = 200_000
"""Bytes that recipe, records, metrics, error log and scalars of a trial take at most."""

WEIGHTS = (".safetensors", ".bin", ".pt", ".h5", ".onnx", ".msgpack")
"""Endings of files that hold weights."""


def best(study: Study) -> list[Record]:
    """The trials whose models are kept, best first; of a study by points, those of the best points."""
    mode = study.search.objective.mode
    if study.search.by == "trial":
        finished = [record for record in study.records.values() if record.status == "finished"]
        return sorted(finished, key=lambda record: (-rank(record.value, mode), record.id))[: study.search.keep]
    ranked = sorted((scores for scores in study.scores() if scores.whole), key=lambda scores: -rank(scores.mean, mode))
    return [record for scores in ranked[: study.search.keep] for record in scores.finished]


def retain(study: Study) -> None:
    """Remove the models that are beaten.

    Those of a point that lacks seeds stay, for it may become the best; so do runs that a pipeline of this storage uses, and
    those that were not trained for this study.
    """
    keep = {record.id for record in best(study)}
    if study.search.by == "point":
        keep |= {record.id for scores in study.scores() if scores.missing for record in scores.records}
    folders = [study.run_folder(run_id) for run_id in study.records if run_id not in keep]
    beaten = [folder for folder in folders if (folder / "model").is_dir() or _is_stored(folder)]
    if not beaten:
        return
    fetch(study.plan.storage / "pipelines")
    used = {
        node
        for path in (study.plan.storage / "pipelines").glob("*.json")
        for node in (read_json(path) or {}).get("nodes", ())
    }
    for folder in beaten:
        run = read_json(folder / "run.json") or {}
        if run.get("study") == study.name and folder.name not in used:
            # First the record: a run without a model must not count as done.
            write_json(folder / "run.json", {**run, "status": "pruned"})
            remove(folder / "model")


def _is_stored(folder: Path) -> bool:
    """Whether the model of a run is in an object store."""
    return place_of(folder) is not None and (read_json(folder / "run.json") or {}).get("status") == "done"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of a trial's files: ``model``, the kept model; ``trained``, the weights that training changes, in float32."""

    model: int
    trained: int

    @property
    def running(self) -> int:
        """A running trial: two checkpoints of weights and two moments while one replaces the other, the best weights twice,
        its model."""
        return 8 * self.trained + self.model


def sizes(study: Study) -> Sizes:
    """The largest that a trial of the space has: heads and decoders depend on the point. Reads the backbone, trains nothing."""
    backbone, found = study.plan.backbone, []
    recipes = {recipe.settings: recipe for recipe in _extremes(study.search)}
    encoder = load(backbone, device="cpu", heads=study.kind.post == "pooled").encoder
    for settings, recipe in recipes.items():
        with torch.device("meta"):  # what is new takes no memory
            objective = OBJECTIVES[recipe.objective].variant(settings)(settings, encoder)
        kept = max(_bytes(candidate.state_dict().values()) for candidate in objective.candidates().values())
        found.append((kept, _bytes(checkpoint.trained_state(objective).values())))
    other = sum(path.stat().st_size for path in backbone.iterdir() if path.is_file() and path.suffix not in WEIGHTS)
    return Sizes(max(kept for kept, _ in found) + other, max(trained for _, trained in found))


def disk_bound(study: Study, concurrent: int) -> int:
    """Bytes that a study and its runs take on disk at most, with so many trials at once.

    Not counted: token stores, the report, and runs that another pipeline or study uses.
    """
    search, each = study.search, sizes(study)
    if search.by == "point":
        # Points that trials at once may belong to, before and after one more has come to its end.
        begun = -(-2 * concurrent // search.seeds) + 1
        models = (search.keep + begun) * search.seeds
    else:
        models = search.keep + 1
    return each.model * models + each.running * concurrent + RECORDS * search.points * search.seeds


def _extremes(search: Search) -> Iterator[Recipe]:
    """Recipes of every combination of the settings' smallest and largest values; what has no order is taken whole."""
    first = corners(search.space)[0]
    ends = {
        key: sorted({min(each.ends), max(each.ends)}) if numeric(each.ends) else each.ends
        for key, each in search.space.items()
        if key.startswith(f"{search.stage}.settings.")
    }
    for values in itertools.product(*ends.values()):
        with contextlib.suppress(InputError):  # values that do not go together are no point
            yield search.recipe({**first, **dict(zip(ends, values, strict=True))})


def _bytes(values: Iterable[torch.Tensor]) -> int:
    return sum(value.numel() * value.element_size() for value in values)


def weights(model: Path) -> int:
    """Bytes of a model's weights in float32."""
    from safetensors import safe_open

    total = 0
    for path in model.glob("*.safetensors"):
        with safe_open(path, "numpy") as file:
            shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118 (no mapping)
            total += sum(4 * math.prod(shape) for shape in shapes)
    return total

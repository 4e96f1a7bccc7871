"""Which models a study keeps, and how much disk that takes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from raysts.files import read_json
from raysts.manifests import remove
from raysts.search.record import Record
from raysts.storage import fetch, place_of, write_json

if TYPE_CHECKING:
    from raysts.search.study import Study

RUNNING = 9
"""Times its weights that a running trial takes at most: two checkpoints of weights and two moments while one replaces the
other, the best weights twice, its model."""


def best(study: Study) -> list[Record]:
    """The trials whose models are kept, best first; of a study by points, those of the best points."""
    if study.search.by == "trial":
        finished = [record for record in study.records.values() if record.status == "finished"]
        return sorted(finished, key=lambda record: (-(record.value or 0.0), record.id))[: study.search.keep]
    ranked = sorted((scores for scores in study.scores() if scores.whole), key=lambda scores: -(scores.mean or 0.0))
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


def disk_bound(study: Study, concurrent: int) -> int:
    """Bytes that models and checkpoints of a study take at most, with so many trials at once."""
    seeds = study.search.seeds if study.search.by == "point" else 1
    begun = -(-2 * concurrent // seeds) + 1 if study.search.by == "point" else 1
    return weights(study.plan.backbone) * ((study.search.keep + begun) * seeds + RUNNING * concurrent)


def weights(model: Path) -> int:
    """Bytes of a model's weights in float32."""
    from safetensors import safe_open

    total = 0
    for path in model.glob("*.safetensors"):
        with safe_open(path, "numpy") as file:
            shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118 (no mapping)
            total += sum(4 * math.prod(shape) for shape in shapes)
    return total

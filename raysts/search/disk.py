"""How much disk a study takes at most: said before its first trial, when another --storage can still be chosen."""

import contextlib
import itertools
from collections.abc import Iterable
from typing import NamedTuple

import torch

from raysts.errors import InputError
from raysts.models.pretrained import load
from raysts.objectives import OBJECTIVES
from raysts.objectives.kinds.kind import Settings
from raysts.objectives.objective import module_of
from raysts.search.space import Point, corners
from raysts.search.study import Study
from raysts.training import checkpoint

RECORDS = 200_000
"""Bytes that recipe, records, metrics, error log and scalars of a trial take at most."""

WEIGHTS = (".safetensors", ".bin", ".pt", ".h5", ".onnx", ".msgpack")
"""Endings of files that hold weights."""


class Sizes(NamedTuple):
    """Bytes of a trial's files: ``model``, the kept model; ``trained``, the weights that training changes, in float32."""

    model: int
    trained: int


def disk_bound(study: Study, concurrent: int) -> int:
    """Bytes that a study and its runs take on disk at most, with so many trials at once.

    Not counted: token stores, the report, and runs that another pipeline or study uses.
    """
    search, size = study.search, sizes(study)
    # Two checkpoints of weights and two moments, for a new one is complete before the old one goes; the best weights
    # twice, for the same reason; and the model that is written at the end.
    running = 8 * size.trained + size.model
    if search.by == "point":
        # A point keeps the models of all its seeds until its mean is known, and trials at once may belong to as many
        # points as this, before and after one more has come to its end.
        begun = -(-2 * concurrent // search.seeds) + 1
        models = (search.keep + begun) * search.seeds
    else:
        models = search.keep + 1  # the one that has just ended is there before the worst of the others goes
    return size.model * models + running * concurrent + RECORDS * search.points * search.seeds


def sizes(study: Study) -> Sizes:
    """The largest that a trial of the space has. Reads the backbone, trains nothing.

    Heads and decoders depend on the point, and only the objective knows how: it is built with what is new on ``meta``, where
    tensors have shapes and take no memory. That is done for every combination of the choices and ends of ranges of those
    settings that say something about the size: of two that are large together, neither need be the larger by itself. One says
    nothing that changes no size where it alone is varied, all others at their first values or all at their last.
    """
    backbone, search = study.plan.backbone, study.search
    encoder = load(backbone, device="cpu", heads=study.kind.post == "pooled").encoder
    built: dict[Settings, Sizes] = {}

    def size(point: Point) -> Sizes | None:
        with contextlib.suppress(InputError):  # values that do not go together are no point
            recipe = search.recipe(point)
            if recipe.settings not in built:
                with torch.device("meta"):
                    kind = OBJECTIVES[recipe.objective].variant(recipe.settings)
                    objective = module_of(kind)(recipe.settings, encoder)
                kept = max(_bytes(candidate.state_dict().values()) for candidate in objective.candidates().values())
                built[recipe.settings] = Sizes(kept, _bytes(checkpoint.trained_state(objective).values()))
            return built[recipe.settings]
        return None

    settings = f"{search.stage}.settings."
    ends = {key: dimension.ends for key, dimension in search.space.items() if key.startswith(settings)}
    first = corners(search.space)[0]
    last = first | {key: values[-1] for key, values in ends.items()}
    sized = {
        key: values
        for key, values in ends.items()
        if any(len({size({**others, key: value}) for value in values}) > 1 for others in (first, last))
    }
    for values in itertools.product(*sized.values()):
        size({**first, **dict(zip(sized, values, strict=True))})
    other = sum(path.stat().st_size for path in backbone.iterdir() if path.is_file() and path.suffix not in WEIGHTS)
    return Sizes(max(kept for kept, _ in built.values()) + other, max(trained for _, trained in built.values()))


def _bytes(values: Iterable[torch.Tensor]) -> int:
    return sum(value.numel() * value.element_size() for value in values)

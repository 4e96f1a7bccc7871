"""Systems of a comparison: the models behind a name, and their scores."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raysts.commands.models import System
from raysts.data.corpora import Corpus
from raysts.errors import InputError
from raysts.evaluation import harness
from raysts.evaluation.cost import ModelCost
from raysts.evaluation.scores import ModelScores
from raysts.models import pretrained
from raysts.models.layers import Layers
from raysts.models.prompts import Text
from raysts.ops.similarity import cosine_of_vectors
from raysts.pipeline.local import Say

COMMON = 1
"""Pooled layers of models that have different layers by default."""

EVERY = 15.0
"""Seconds between two lines of progress."""


def comparable_tasks(corpus: Corpus, tasks: Sequence[str] | None) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the tasks to compare on, and the omitted tasks with the reason."""
    checked, by_name = harness.check_tasks(corpus, tasks), harness.tasks_of(corpus)
    unnamed = [name for name in checked if by_name[name].heavy and not tasks]
    left_out = dict.fromkeys(unnamed, "it takes minutes a model; name it in --tasks")
    of_models = [name for name in checked if by_name[name].asks_model]
    left_out |= dict.fromkeys(of_models, "its values are not of single rows, so there is nothing to pair")
    chosen = tuple(name for name in checked if name not in left_out)
    refused = [name for name in tasks or () if name in left_out]
    if refused or not chosen:
        raise InputError([f"task '{name}' cannot be compared: {left_out[name]}" for name in refused or left_out])
    return chosen, left_out


@dataclass(slots=True)
class EmbeddingProgress:
    """Lines on the embedded texts: one when a model begins, and then one every few seconds."""

    title: str
    say: Say
    began: float = 0.0
    spoke: float = 0.0
    seconds: float = 0.0
    """Time that the last model took."""
    cpu_seconds: float = 0.0
    cpu_began: float = 0.0

    def __call__(self, count: int, total: int) -> None:
        """Report ``count`` of ``total`` texts."""
        time_now = time.monotonic()
        if not count:
            self.began, self.spoke, self.cpu_began = time_now, time_now, time.process_time()
        self.seconds, self.cpu_seconds = time_now - self.began, time.process_time() - self.cpu_began
        if not count:
            self.say(f"{self.title}: embedding {total:,} texts")
        elif time_now - self.spoke >= EVERY:
            self.spoke = time_now
            remaining = self.seconds / count * (total - count)
            self.say(f"{self.title}: {count:,} of {total:,} texts, about {remaining:.0f} s left")


# -- scores of rows ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measured:
    """Scores of one model by choice of layers, which include its default (``own``).

    ``costs``: of the model, or of the members of an ensemble.
    """

    own: Layers
    by_layers: dict[Layers, ModelScores]
    costs: list[ModelCost]


def measure(
    system: System,
    corpus: Corpus,
    tasks: Sequence[str],
    texts: Sequence[Text],
    progress: EmbeddingProgress,
    layers: Layers | None = None,
    **options: Any,
) -> list[Measured]:
    """Return the scores of a system's models, or of their mean, by choice of layers.

    ``options`` are those of :func:`raysts.models.pretrained.load`.
    """
    measured: list[Measured] = []
    sums: dict[Layers, np.ndarray] = {}
    default_layers: list[Layers] = []
    costs: list[ModelCost] = []
    sets = harness.sets_of(corpus, tasks)
    for folder in system.folders:
        model = pretrained.load(folder, layers=layers, **options)
        if layers is not None and model.layers != layers:
            raise InputError(
                f"--layers {layers}: {system.name} pools layers '{model.layers}', on which its heads were trained, and no "
                f"other; compare at --layers {model.layers}"
            )
        choices = tuple(dict.fromkeys([model.layers] if layers is not None else [COMMON, model.layers]))
        representations = model.represent_layers(texts, choices, **harness.progress_options(progress, len(texts)))
        costs.append(ModelCost.measure(model, texts, progress.seconds, progress.cpu_seconds))
        if system.ensemble:
            default_layers.append(model.layers)
            for k, representation in representations.items():
                sums[k] = sums.get(k, np.float32(0)) + representation["vectors"]
            continue
        similarity = dict([next(iter(model.similarities.items()))])
        scores = {k: harness.compared_scores(sets, texts, of_k, similarity) for k, of_k in representations.items()}
        measured.append(Measured(model.layers, scores, costs[-1:]))
    if system.ensemble:
        count = np.float32(len(system.folders))
        vectors, similarity = (
            {k: {"vectors": total / count} for k, total in sums.items()},
            {"cosine": cosine_of_vectors},
        )
        means = {k: harness.compared_scores(sets, texts, vectors[k], similarity) for k in vectors}
        measured.append(Measured(default_layers[0] if len(set(default_layers)) == 1 else COMMON, means, costs))
    return measured


def equal_layers(systems: Sequence[System], measured: Sequence[Sequence[Measured]]) -> Layers:
    """Return the choice of layers at which every model was measured."""
    models_of_both = [model for models in measured for model in models]
    default_layers = {model.own for model in models_of_both}
    for layers in (*(default_layers if len(default_layers) == 1 else ()), COMMON):
        if all(layers in model.by_layers for model in models_of_both):
            return layers
    pools = "; ".join(
        f"{system.name} pools '{', '.join(dict.fromkeys(str(model.own) for model in models))}'"
        for system, models in zip(systems, measured, strict=True)
    )
    raise InputError(f"{pools}: a comparison is made at equal layers; name a choice that both have with --layers K")

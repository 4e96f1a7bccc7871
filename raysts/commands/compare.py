"""``raysts compare``: two systems on the same rows, from models or from runs of the storage."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from raysts.commands import options as opt
from raysts.commands.options import Command, Result
from raysts.errors import InputError
from raysts.log import columns, fold, say, screen

if TYPE_CHECKING:
    from raysts.commands.models import System
    from raysts.data.corpora import Corpus
    from raysts.evaluation.cost import ModelCost
    from raysts.evaluation.scores import ModelScores
    from raysts.models.layers import Layers
    from raysts.models.prompts import Text

COMMON = 1
"""Pooled layers of models that have different layers by default."""


def compare(
    a: str | Path,
    b: str | Path,
    tasks: opt.Tasks = None,
    *,
    data: opt.Data = None,
    test: opt.Test = None,
    storage: opt.StoragePlace = None,
    layers: opt.Layers = None,
    prompt: opt.Prompt = None,
    resamples: opt.Resamples = 1000,
    precision: opt.Precision = "fp32",
    margin: Annotated[float | None, Parameter(metavar="M")] = None,
    draw_sets: bool = False,
) -> Result:
    """Test the difference of two systems on the same rows.

    Each has its own similarity, and both have the same choice of pooled layers: ``layers``, else the models' own if all
    agree, else 1.

    Args:
        a: a MODEL, a run or a system of the storage; NAME:members, :ensemble, :student, ... choose a part of a run (default:
            what its name says, all members if nothing combines them; of a run with deliver=best what that delivered).
        b: the other system.
        margin: points (x100) that A may be below B: say if it is shown to be less, or how many rows would show it. It is
            shown if the paired 95 % interval of the difference lies above -M.
        draw_sets: resample the sets too, so that the interval of their mean covers other sets of their kind.

    Returns:
        status, storage, a, b (in words), layers, comparison (rows, columns :data:`raysts.evaluation.compare.COLUMNS`),
        conclusion, margins (:func:`raysts.evaluation.compare.margins`; empty without a margin), models (of A and of B:
        model, role a or b, and :class:`raysts.evaluation.cost.ModelCost`), baselines (rows of BM25 on retrieval sets),
        left_out (tasks on which not both can be compared, with the reason), text.

    Raises:
        InputError: a or b is missing, or they have no choice of layers or no task in common.
    """
    from raysts.commands.context import store_of, warn_generated
    from raysts.commands.models import system_of
    from raysts.data.corpora import corpus_of
    from raysts.data.user import UserData
    from raysts.evaluation import harness
    from raysts.evaluation.compare import compare_systems, conclusion, format_comparison, margin_sentence, margins
    from raysts.models import pretrained
    from raysts.recipes.recipe import resamples_problem

    store = store_of(storage)
    opt.check_precision(precision)
    if problem := resamples_problem(resamples):
        raise InputError(f"--{problem}")
    if margin is not None and not 0 < margin <= 100:
        raise InputError(f"--margin {margin:g}: must be above 0 and at most 100; it is in points (x100), for example 2")
    if not resamples and (margin is not None or draw_sets):
        raise InputError("--resamples 0 gives no interval, which --margin and --draw-sets need; remove it")
    corpus = corpus_of(data, user_data=UserData.of(test=test))
    chosen, left_out = _comparable_tasks(corpus, tasks)
    warn_generated(corpus)
    for line in harness.left_out(corpus, chosen):
        say(line)
    systems = [system_of(str(name), store) for name in (a, b)]
    for folder in (folder for system in systems for folder in system.folders):
        pretrained.check(folder)
    texts = harness.sentences(corpus, chosen)
    progress = EmbeddingProgress("compare", sum(len(system.folders) for system in systems))
    options = {"layers": layers, "prompt": prompt, "precision": precision}
    measured = [_measure(system, corpus, chosen, texts, progress, **options) for system in systems]
    layers_of_both = _equal_layers(systems, measured)
    scores = [[model.by_layers[layers_of_both] for model in models] for models in measured]
    all_scores = [*scores[0], *scores[1]]
    sets = [name for name in all_scores[0] if all(name in model for model in all_scores)]
    silent = "a similarity that does not depend on the order, or no variance, says nothing about the direction"
    left_out |= {name: silent for model in all_scores for name in model if name not in sets}
    datasets = {row_scores.dataset for model in all_scores for row_scores in model.values()}
    datasets |= {name.partition(":")[0] for name in datasets}
    left_out |= {name: silent for name in chosen if name not in datasets}
    refused = [name for name in tasks or () if name in left_out]
    if refused or not sets:
        raise InputError([f"task '{name}': {left_out[name]}" for name in refused or left_out])
    counts = Counter(all_scores[0][name].metrics[0] for name in sets)
    if draw_sets and max(counts.values()) < 2:
        raise InputError("--draw-sets: needs at least two sets of one kind; name more in --tasks, or remove the option")
    of_a, of_b = ([{name: model[name] for name in sets} for model in models] for models in scores)
    rows = compare_systems(of_a, of_b, resamples, draw_sets=draw_sets)
    first, second = (system.name for system in systems)
    named = (first, second) if first != second else (f"A ({first})", f"B ({second})")
    summary = conclusion(*named, rows)
    lines = [
        format_comparison(systems[0].text, systems[1].text, rows, columns(120)),
        f"pooled layers of both: {layers_of_both}",
    ]
    lines += [f"left out: {name}: {reason}" for name, reason in left_out.items()]
    costs = [[cost for model in models for cost in model.costs] for models in measured]
    for side, system, of_side in zip("AB", systems, costs, strict=True):
        lines += [fold(f"{side}: {n}: {cost.text}") for n, cost in zip(system.model_names, of_side, strict=True)]
    baselines = harness.baseline_rows(harness.sets_of(corpus, chosen), {}, resamples)
    main = [row for row in baselines if row["metric"] == "ndcg@10"]
    lines += [f"{row['role']} on {row['dataset']}: {row['metric']} {100 * row['value']:.2f}" for row in main]
    decided = [] if margin is None else margins(rows, margin / 100, draw_sets)
    summary = "\n".join([summary, *(margin_sentence(*named, row) for row in decided)])
    return {
        "status": "done",
        "storage": store.uri,
        "a": systems[0].text,
        "b": systems[1].text,
        "layers": str(layers_of_both),
        "comparison": rows,
        "conclusion": summary,
        "margins": decided,
        "models": [
            {"model": system.name, "role": side, **asdict(cost)}
            for side, system, of_side in zip("ab", systems, costs, strict=True)
            for cost in of_side
        ],
        "baselines": baselines,
        "left_out": left_out,
        "text": "\n".join([*lines, "", *map(fold, summary.split("\n"))]),
    }


def _comparable_tasks(corpus: Corpus, tasks: Sequence[str] | None) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the tasks to compare on, and the omitted tasks with the reason."""
    from raysts.evaluation import harness

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
    """Embedding of texts by ``left`` models, one after another, for the screen.

    The times are those of the last model.
    """

    title: str
    left: int
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    _began: tuple[float, float] = (0.0, 0.0)

    def __call__(self, count: int, total: int) -> None:
        """Take note of ``count`` of ``total`` texts."""
        if not count:
            say(f"{self.title}: embedding {total:,} texts")
            screen.follow(self.title, float(self.left), 1.0, texts=total)
            self.left, self._began = self.left - 1, (time.monotonic(), time.process_time())
        self.seconds, self.cpu_seconds = time.monotonic() - self._began[0], time.process_time() - self._began[1]


@dataclass(frozen=True, slots=True)
class ModelMeasurement:
    """Scores of a model, or of an ensemble's mean, by choice of layers. ``costs``: of its models."""

    default: Layers
    by_layers: dict[Layers, ModelScores]
    costs: list[ModelCost]


def _measure(
    system: System,
    corpus: Corpus,
    tasks: Sequence[str],
    texts: Sequence[Text],
    progress: EmbeddingProgress,
    layers: Layers | None = None,
    **options: Any,
) -> list[ModelMeasurement]:
    """Return the scores of a system's models, or of their mean.

    ``options`` are those of :func:`raysts.models.pretrained.load`.
    """
    from raysts.evaluation import harness
    from raysts.evaluation.cost import ModelCost
    from raysts.models import pretrained
    from raysts.ops.similarity import cosine_of_vectors

    measured: list[ModelMeasurement] = []
    sums: dict[Layers, Any] = {}
    costs: list[ModelCost] = []
    defaults: list[Layers] = []
    sets = harness.sets_of(corpus, tasks)
    for folder in system.folders:
        model = pretrained.load(folder, layers=layers, **options)
        if layers is not None and model.layers != layers:
            raise InputError(
                f"--layers {layers}: {system.name} pools layers '{model.layers}', on which its heads were trained, and no "
                f"other; compare at --layers {model.layers}"
            )
        choices = tuple(dict.fromkeys([model.layers] if layers is not None else [COMMON, model.layers]))
        represented = model.represent_layers(texts, choices, **harness.progress_options(progress, len(texts)))
        costs.append(ModelCost.measure(model, texts, progress.seconds, progress.cpu_seconds))
        defaults.append(model.layers)
        if system.ensemble:
            for k, of_k in represented.items():
                sums[k] = sums.get(k, 0) + of_k["vectors"]
            continue
        similarity = dict([next(iter(model.similarities.items()))])
        scores = {k: harness.compared_scores(sets, texts, of_k, similarity) for k, of_k in represented.items()}
        measured.append(ModelMeasurement(model.layers, scores, costs[-1:]))
    if system.ensemble:
        means = {k: {"vectors": total / len(system.folders)} for k, total in sums.items()}
        cosine = {"cosine": cosine_of_vectors}
        scores = {k: harness.compared_scores(sets, texts, mean, cosine) for k, mean in means.items()}
        measured.append(ModelMeasurement(defaults[0] if len({*defaults}) == 1 else COMMON, scores, costs))
    return measured


def _equal_layers(systems: Sequence[System], measured: Sequence[Sequence[ModelMeasurement]]) -> Layers:
    """Return the choice of layers at which every model was measured."""
    models_of_both = [model for models in measured for model in models]
    defaults = {model.default for model in models_of_both}
    for layers in (*(defaults if len(defaults) == 1 else ()), COMMON):
        if all(layers in model.by_layers for model in models_of_both):
            return layers
    pools = "; ".join(
        f"{system.name} pools '{', '.join(dict.fromkeys(str(model.default) for model in models))}'"
        for system, models in zip(systems, measured, strict=True)
    )
    raise InputError(f"{pools}: a comparison is made at equal layers; name a choice that both have with --layers K")


def _text(result: Result) -> str:
    return str(result.pop("text"))


COMMANDS = (Command("compare", compare, _text, "raysts compare RUN_A RUN_B", opt.MEASURE, ("a", "b")),)

"""Experiments: lists of labelled pipelines, perhaps after a search.

`experiments.yaml` beside this file holds them. Points share their training by content: within an experiment, between
experiments, and with named systems.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Literal, NamedTuple, TypeGuard

from raysts.errors import InputError, Problems
from raysts.models.layers import single_layers
from raysts.papers.published import BACKBONES
from raysts.pipeline.outcome import system_of
from raysts.recipes.names import POST, SystemEntry, apply_scale, papers_pooling, pipeline
from raysts.recipes.overrides import apply_overrides, has_option
from raysts.recipes.recipe import Pipeline
from raysts.recipes.tree import read_data


class SystemPoint(NamedTuple):
    """A pipeline of an experiment, or one for each value that it varies.

    `experiments.yaml` describes the fields.
    """

    system: str
    settings: Mapping[str, Any] = {}
    vary: Mapping[str, Any] = {}
    label: str | None = None
    backbone: Literal["encoders", "words", "any"] = "encoders"
    searched: bool = False
    alone: bool = False
    larger: bool = False

    @property
    def name(self) -> str:
        """Return the label, else the system with its settings: ``latte.tau=0.03``."""
        if self.label is not None:
            return self.label
        varied = [key for key in self.settings if not key.startswith("evaluation.")]
        return ".".join([self.system, *(f"{key.rpartition('.')[2]}={self.settings[key]}" for key in varied)])


class Experiment(NamedTuple):
    """A list of pipelines. `experiments.yaml` describes the fields."""

    entry: SystemEntry
    points: Sequence[SystemPoint]
    paper: str | None = None
    tables: Sequence[int] = ()
    settings: Mapping[str, Any] = {}
    backbones: Sequence[str] = ()
    search: str | None = None
    claims: str | None = None


def _experiment(source: str, shows: str, cost: str, points: Sequence[Any], **fields: Any) -> Experiment:
    read = [SystemPoint(point) if isinstance(point, str) else SystemPoint(**point) for point in points]
    return Experiment(SystemEntry(source, shows, cost), read, **fields)


EXPERIMENTS = {name: _experiment(**plain) for name, plain in read_data(__file__, "experiments.yaml").items()}
"""Every one is a name for ``raysts run``, ``plan`` and ``show``."""

SEARCHED = {("gausscse", 3): "raysts tune gausscse@paper"}
"""Tables that a search fills."""

DEPTHS = {backbone.name: backbone.layers for backbone in BACKBONES.values()}


def commands() -> dict[tuple[str, int], str]:
    """Return the command that fills each table, by paper and table number."""
    runs = {
        (e.paper or "", number): f"raysts run {name}@paper" for name, e in EXPERIMENTS.items() for number in e.tables
    }
    return dict(sorted((runs | SEARCHED).items()))


def is_experiment(recipe: object, overrides: Collection[str] = ()) -> TypeGuard[str]:
    """Return True for the name of an experiment, with or without a scale, and for a system with a space."""
    has_space = any(key.startswith("space.") for key in overrides)
    return isinstance(recipe, str) and (has_space or recipe.partition("@")[0] in EXPERIMENTS)


def experiment_of(recipe: str) -> Experiment:
    """Return the experiment of a name, or of a system that begins with a search over its members."""
    name = recipe.partition("@")[0]
    if name in EXPERIMENTS:
        return EXPERIMENTS[name]
    point = SystemPoint(name, label="", backbone="any", searched=True)
    search, settings = system_of(name, "member"), {"by": "point", "keep": 1}
    return Experiment(SystemEntry("", "", ""), [point], search=search, settings=settings)


def backbones(recipe: str, overrides: Mapping[str, Any]) -> list[str | None]:
    """Return the backbones of an experiment. None means that of its systems."""
    experiment = experiment_of(recipe)
    named = overrides.get("backbone") or (experiment.backbones if "@paper" in recipe else ())
    names: list[str | None] = [str(name) for name in (named if isinstance(named, list | tuple) else [named])]
    if recipe.partition("@")[0] not in EXPERIMENTS and len(names) > 1:
        raise InputError(
            f"backbone={names}: '{recipe}' takes one; --set space.backbone={','.join(map(str, names))} searches over them"
        )
    most = 1 + any(point.larger for point in experiment.points)
    if experiment.claims and len(names) > most:
        raise InputError(f"backbone={names}: '{recipe}' compares at most {most}; name fewer")
    return names or [None]


def label_for(backbone: str | None, label: str) -> str:
    """Return the label of a point, with the name of the backbone where several have it."""
    name = PurePath(backbone).name.removesuffix(".txt").removesuffix(".bin") if backbone else ""
    return ".".join(filter(None, (name, label)))


def pipelines(
    recipe: str,
    overrides: Mapping[str, Any],
    depth: Callable[[str], int],
    best: Mapping[str | None, Mapping[str, Any]] | None = None,
) -> dict[str, Pipeline]:
    """Return the pipelines of an experiment by the labels of its points.

    Args:
        recipe: name of an experiment, perhaps at a scale (``latte-layers@paper``).
        overrides: as for a system; it applies to the points that have the setting.
        depth: returns the layers of a backbone, 0 of word vectors.
        best: best points of the experiment's search, by backbone (of :func:`backbones`).

    Raises:
        InputError: an override fits no point, or sets a value that the experiment varies.
    """
    names, experiment = backbones(recipe, overrides), experiment_of(recipe)
    by_label: dict[str, Pipeline] = {}
    for place, backbone in enumerate(names):
        settings = {**overrides, "backbone": backbone} if backbone else overrides
        points = [point for point in experiment.points if not experiment.claims or point.larger == (place > 0)]
        chosen, of_best = experiment._replace(points=points), (best or {}).get(backbone, {})
        labelled = backbone if len(names) > 1 and not experiment.claims else None
        for label, system in _for_backbone(recipe, chosen, settings, depth, of_best).items():
            by_label[label_for(labelled, label)] = system
    return by_label


def _for_backbone(
    recipe: str,
    experiment: Experiment,
    overrides: Mapping[str, Any],
    depth: Callable[[str], int],
    best: Mapping[str, Any],
) -> dict[str, Pipeline]:
    name, separator, scale = recipe.partition("@")

    def pipeline_of(point: SystemPoint) -> Pipeline:
        base = pipeline(point.system)
        if set(base.stages) - set(POST):
            base = apply_overrides(base, {key: n for key, n in experiment.settings.items() if _takes(base, key)})
        base = apply_scale(base, recipe, scale) if separator else base
        pooling = papers_pooling(base) if experiment.paper == "sed" else {}
        base = apply_overrides(base, {**pooling, **point.settings, **(best if point.searched else {})})
        return base.replace(name=name) if point.label == "" else base

    # The backbone is read only if the points depend on it.
    depends = any(point.vary or point.backbone != "any" for point in experiment.points)
    backbone = overrides.get("backbone", pipeline_of(experiment.points[0]).backbone)
    layers = depth(str(backbone)) if depends else 1
    kinds = ("any", "encoders" if layers else "words")
    points = [part for point in experiment.points if point.backbone in kinds for part in _expand(point, max(1, layers))]
    if not points:
        raise InputError(f"backbone={backbone}: word vectors, of which '{name}' makes nothing; take an encoder")
    before = [pipeline_of(point) for point in points]
    unknown = {key: value for key, value in overrides.items() if not any(_takes(base, key) for base in before)}
    if unknown:
        apply_overrides(max(before, key=lambda base: len(base.recipes)), unknown)  # raises with what is wrong
    varied = dict.fromkeys(key for point in points for key in point.settings if key in overrides)
    by_label: dict[str, Pipeline] = {}
    problems = Problems()
    for point, base in zip(points, before, strict=True):
        settings = {key: value for key, value in overrides.items() if key not in varied and _takes(base, key)}
        if point.alone:
            settings["members"] = 1
        with problems.collect():
            by_label[point.name] = variant = apply_overrides(base, settings)
            for key, value in point.settings.items():
                if apply_overrides(variant, {key: value}) != variant:  # ``settings.tau`` is ``latte.settings.tau`` too
                    varied[key] = None
    problems += [
        f"{key}: is what '{name}' varies, so it cannot be set; a system by its own name can be run with any value"
        for key in varied
    ]
    problems.raise_any()
    return by_label


def _expand(point: SystemPoint, depth: int) -> Iterator[SystemPoint]:
    """Yield a point at each value that it varies, on an encoder with so many layers."""
    if not point.vary:
        yield point._replace(settings=_add_layers(point.settings, depth))
    for key, values in point.vary.items():
        for value in list(single_layers(depth)) if values == "each" else values:
            if not (key.endswith(".layers") and isinstance(value, int) and value > depth):
                yield point._replace(settings=_add_layers({**point.settings, key: value}, depth), vary={})


def _add_layers(settings: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """Return settings with the layers to measure: those that a stage reads and the encoder has."""
    complete = dict(settings)
    for key, layers in settings.items():
        if key == "evaluation.layers" and layers == "each":
            complete[key] = [*single_layers(depth)]
        elif key == "evaluation.layers":
            complete[key] = [count for count in layers if count <= depth]
        elif key == "evaluation.compare":
            complete[key] = min(layers, depth)
        elif key.endswith(".layers"):
            complete |= {"evaluation.layers": [layers], "evaluation.compare": layers}
    return complete


def _takes(pipeline: Pipeline, key: str) -> bool:
    return has_option(pipeline, key) and (pipeline.sed is not None or not key.startswith("student"))

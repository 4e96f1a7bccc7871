"""Description of a search: a pipeline, a space over its options, and the sampling."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from raysts.errors import InputError, Problems, nearest
from raysts.evaluation.dev import DEVS, LOSS, RunMetric
from raysts.recipes import names
from raysts.recipes.overrides import apply_overrides, has_option, targets_of
from raysts.recipes.recipe import DISTILLATION, NEUTRAL, Pipeline, Recipe, name_problem
from raysts.recipes.tree import Tree, get_path, leaves, load_yaml, to_plain
from raysts.search.space import Condition, Dimension, Point, contains, corners, grid, sort

MOST_TRIALS = 100_000
"""Each trial has a record, and all points of a grid are in memory before the first trial."""


class Asha(Tree):
    """Asynchronous successive halving on the metric at dev evaluations (Li et al. 2020).

    At the end of the grace period, and after each further ``reduction`` times as many steps, a trial continues only if it
    is among the best 1 / ``reduction`` of the trials that have reached that step.
    """

    grace: float = Field(0.25, gt=0, lt=1, description="fraction of its steps that every trial may train")
    reduction: float = Field(3.0, gt=1, description="one trial of so many goes on")


class Search(Tree):
    """A search over the options of a pipeline. It optimises the mean of a metric over seeds.

    A trial is a member of the pipeline, or the student of one that distils. What is measured is the last training run of it.
    """

    name: str
    pipeline: Pipeline
    """The pipeline of a trial. Its resources are those of a trial."""
    space: dict[str, Dimension]
    """Options of the pipeline by dotted path, and the values that they may take."""
    metric: str = ""
    """Measure that compares trials: a dev score of the kept model, to maximise, or ``loss``, the training loss at the end, to
    minimise. Empty: the dev score that selects checkpoints."""
    judge: str = ""
    """Score of the user's development set that compares trials, if the set lacks the scores of the objective's."""
    first: tuple[Point, ...] = ()
    """Points to try first."""
    seeds: int = Field(1, ge=1)
    """Number of trials of every point. Their seeds differ as those of the members of an ensemble do."""
    num_samples: int | None = Field(None, ge=1)
    """Number of points, drawn by the sampler after the first ones, of a space with so many. None: every point of choices."""
    concurrency: int | None = Field(None, ge=1)
    """Number of trials that train at once. None: as many as the cluster has room for."""
    keep: int = Field(10, ge=1)
    """Number of points (or trials) that keep their models, best first."""
    by: Literal["point", "trial"] = "trial"
    """Unit that is compared and kept: a point with all its seeds, by its mean, or a single trial."""
    asha: Asha | None = None
    """Early stopping. None: every trial trains to its end."""
    median: bool = False
    """Stop a trial whose best value is below the median of the running means of the others, from a quarter of its steps."""
    race: bool = False
    """Train no third seed of a point that is clearly worse (:data:`raysts.search.scores.RACE`)."""
    sampler: Literal["grid", "random", "tpe", "gp", "nsga2"] | None = None
    """Name of the sampler by which Optuna proposes points. None: the grid, or with ``num_samples`` TPE, NSGA-II
    of two measures."""
    cost: Literal["seconds", "bytes", "latency"] | None = None
    """Second measure, to minimise: training seconds, bytes of the model, or its milliseconds for a text alone, by the driver. The
    report shows the Pareto front."""

    def misfits(self) -> Iterator[str]:
        if problem := name_problem(self.name):
            yield problem
        if not self.pipeline.recipes or self.pipeline.routes or self.pipeline.combine not in (None, DISTILLATION):
            yield (
                f"pipeline: '{self.pipeline.name}' does not end in one training run, which a search measures; take a system of "
                f"stages, or one that distils a student (-{DISTILLATION})"
            )
            return
        if self.pipeline.resources.workers != 1:
            yield "resources.workers: a trial trains in one process, set it to 1"
        table = self.measured_recipe.spec.dev
        metrics = (*DEVS[table], LOSS)
        if self.metric not in ("", *metrics):
            yield (
                f"metric={self.metric}: is never reported by trials of '{self.pipeline.name}'{nearest(self.metric, metrics)}; "
                f"they report {', '.join(metrics[:-1])} (on {table}) and {LOSS}"
            )
        if self.sampler is not None and (self.sampler == "grid") != (self.num_samples is None):
            yield f"sampler={self.sampler}: a grid has all its points, and every other sampler needs num_samples"
        if self.cost and self.sampler in ("gp", "tpe") and self.num_samples:
            yield f"cost={self.cost}: two measures need sampler=nsga2, random, or a grid"
        if self.median and self.asha:
            yield "median: asha stops trials already; take one of them"
        if self.race and self.seeds < 3:
            yield f"race: leaves out third seeds, and seeds={self.seeds}; take 3 or more"
        ranges = [key for key, dimension in self.space.items() if not dimension.choices]
        if self.num_samples is None and ranges:
            yield f"num_samples: needed, for space.{ranges[0]}={self.space[ranges[0]].text} has no end of points"
            return
        points = 0 if ranges else math.prod(len(dimension.choices) for dimension in self.space.values())
        if points > MOST_TRIALS or self.points * self.seeds > MOST_TRIALS:
            yield (
                f"seeds={self.seeds}, num_samples={self.num_samples}, a space of {points or 'any number of'} points: a search "
                f"has at most {MOST_TRIALS:,} trials, and a grid as many points; ask for fewer"
            )
        for point in self.first:
            if not contains(self.space, point):
                yield f"first: {point} is no point of the space"

    @property
    def measured_recipe(self) -> Recipe:
        """Return the recipe of the training run that is measured, the last one."""
        return [*self.pipeline.recipes.values()][-1]

    @property
    def usual(self) -> Point:
        """Return the pipeline's own values of the options."""
        plain = to_plain(self.pipeline)
        return {key: next((get_path(plain, target) for target in targets_of(plain, key)), None) for key in self.space}

    @property
    def objective(self) -> RunMetric:
        table = self.measured_recipe.spec.dev
        return RunMetric(self.judge or self.metric or DEVS[table][0], table, selecting=bool(self.judge))

    @property
    def points(self) -> int:
        grid_points = grid(self.space, most=MOST_TRIALS)
        if grid_points is None:
            assert self.num_samples is not None
            return self.num_samples
        return min(len(grid_points), self.num_samples or len(grid_points))

    def choose(self, trials: Sequence[tuple[Point, int]]) -> dict[str, Any]:
        """Return the overrides by which a pipeline takes the best point, or the best trials as its members.

        Args:
            trials: points and seeds, best first.

        Raises:
            InputError: points make models that cannot be members of one pipeline.
        """
        if self.by == "point" and self.keep == 1:
            return trials[0][0]
        plain, points = to_plain(self.pipeline), [self.pipeline_at(point) for point in corners(self.space)]
        for name in ("backbone", "backbone_layers"):
            if len({getattr(point, name) for point in points}) > 1:
                raise InputError(f"keep={self.keep}: members start alike, and points differ in {name}; {ONE_POINT}")
        for name in ("pooling", "layers"):
            if len({getattr([*point.recipes.values()][-1], name) for point in points}) > 1:
                raise InputError(f"keep={self.keep}: members come out alike, and points differ in {name}; {ONE_POINT}")
        members: list[dict[str, Any]] = []
        for point, seed in trials:
            absent = [target for key in self.space if key not in point for target in targets_of(plain, key)]
            members.append({"point": {**{path: get_path(plain, path) for path in absent}, **point}, "seed": seed})
        first: Point = members[0]["point"]
        return {**first, "members": len(members), "trials": members}

    @property
    def expected_choice(self) -> dict[str, Any]:
        """Return a choice as large as that of the ended search, or {} for the point of the pipeline."""
        if self.by == "point" and self.keep == 1:
            return {}
        trials = [(point, seed) for point in grid(self.space) or corners(self.space) for seed in range(self.seeds)]
        return self.choose(trials[: self.keep * (self.seeds if self.by == "point" else 1)])

    def pipeline_at(self, point: Point) -> Pipeline:
        """Return the pipeline of a point, with a member or a student for every seed.

        Raises:
            InputError: the pipeline refuses a value of the point.
        """
        changed = apply_overrides(self.pipeline, point)
        return changed.replace(**{"students" if changed.sed else "members": self.seeds})


ONE_POINT = "go on with one point (by=point, keep=1)"

OWN = ("seeds", "num_samples", "concurrency", "keep", "by", "metric", "sampler", "cost", "median", "race")
"""Options of a search itself, beside ``space`` and ``asha``. Every other option belongs to its pipeline."""

TRIAL = ("backbone", "seed", "prompt", "precision", "max_seq_length", "resources", "recipes")
"""Options of a pipeline that a trial has too. The others are about the use of trained members."""


VARIED = ("backbone", "backbone_layers", "student_start", "select_top")
"""Options of a pipeline that a space may hold, beside those of its recipes."""


def search_overrides(search: Search, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides of an experiment that its search has."""
    later = Pipeline.model_fields.keys() - {*TRIAL}
    return {
        key: value
        for key, value in overrides.items()
        if _is_own(key) or (key.partition(".")[0] not in later and has_option(search.pipeline, key))
    }


def pipeline_overrides(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides of an experiment that its pipelines may have. Most are of the search too."""
    return {key: value for key, value in overrides.items() if not _is_own(key)}


def _is_own(key: str) -> bool:
    return key.partition(".")[0] in (*OWN, "space", "asha")


def configure(search: Search, overrides: Mapping[str, Any]) -> Search:
    """Return a copy of a search with overrides applied.

    They change options of the search (``seeds``, ``asha.grace``), its space (``space.optim.lr``) or its pipeline.
    ``space.KEY=none`` removes an option from the space. An option of the space cannot have a fixed value.

    Raises:
        InputError: unknown options and wrong values, all in one message.
    """
    if not isinstance(search, Search):
        raise InputError(
            f"search {search!r:.40}: must be the name of a search, or a Search; 'raysts tune --help' lists names"
        )
    problems = Problems()
    overrides = {key: value if isinstance(value, Dimension) else to_plain(value) for key, value in overrides.items()}
    changes = {key: value for key, value in overrides.items() if key in OWN}
    for key, value in overrides.items():
        if key == "asha":
            changes[key] = {} if value is True else value or None
        elif key.startswith("asha."):
            before = changes.get("asha", to_plain(search.asha))
            changes["asha"] = {**(before if isinstance(before, dict) else {}), key.removeprefix("asha."): value}
    space, pipeline = dict(search.space), search.pipeline
    inner = {key: value for key, value in overrides.items() if not _is_own(key)}
    repeated = "students" if pipeline.sed else "members"
    if repeated in inner:
        del inner[repeated]
        problems.append(f"{repeated}: a search has seeds; --set seeds=N trains every point with N seeds")
    with problems.collect():
        pipeline = apply_overrides(pipeline, inner) if inner else pipeline
    for key, value in overrides.items():
        if key.startswith("space."):
            problems += _set_dimension(space, pipeline, key.removeprefix("space."), value)
    try:
        space = sort({key: _resolve_condition(space, pipeline, dimension) for key, dimension in space.items()})
    except ValueError as error:
        problems.append(str(error))
    for key in inner:
        if _sharing(space, pipeline, _full_path(pipeline, key)):
            problems.append(
                f"{key}={inner[key]}: is what this search varies; --set space.{key}={inner[key]} tries that value alone"
            )
    first = tuple(point for point in search.first if contains(space, point))
    changed = search
    with problems.collect():
        changed = search.replace(pipeline=pipeline, space=space, first=first, **changes)
    if not space:
        problems.append(
            "space: is empty, there is nothing to search; say what varies, as --set space.optim.lr=1e-5,3e-5 does"
        )
    for point in [] if problems else corners(space):
        with problems.collect("space"):
            changed.pipeline_at(point)
    problems.raise_any()
    return changed


def _set_dimension(space: dict[str, Dimension], pipeline: Pipeline, key: str, value: Any) -> list[str]:
    full = _full_path(pipeline, key)
    if full is None:
        recipes = {stage: to_plain(recipe) for stage, recipe in pipeline.recipes.items()}
        options = [*VARIED, *leaves(recipes), *(path for recipe in recipes.values() for path in leaves(recipe))]
        return [f"space.{key}: '{key}' is no option of a trial{nearest(key, options)}"]
    if value is None:
        space.pop(full, None)
        return []
    if full.endswith(tuple(NEUTRAL)):
        return [f"space.{key}: changes no number of a run, so its points would be the same trials; give it one value"]
    if rivals := [option for option in _sharing(space, pipeline, full) if option != full]:
        return [f"space.{key}: is an option that space.{rivals[0]} varies too; name it once"]
    try:
        dimension = Dimension.of(value)
        space[full] = replace(
            dimension, choices=tuple(_as_stored(pipeline, full, choice) for choice in dimension.choices)
        )
    except ValueError as error:
        return [f"space.{key}: {error}"]
    return []


def _resolve_condition(space: Mapping[str, Dimension], pipeline: Pipeline, dimension: Dimension) -> Dimension:
    """Return a dimension with the path and the values of its condition as the space has them."""
    if dimension.only is None:
        return dimension
    key = _full_path(pipeline, dimension.only.key)
    if key is None or key not in space:
        return dimension
    values = tuple(_as_stored(pipeline, key, value) for value in dimension.only.values)
    return replace(dimension, only=Condition(key, values))


def _sharing(space: Mapping[str, Dimension], pipeline: Pipeline, key: str | None) -> list[str]:
    """Return the options of a space that set a value which ``key`` sets too."""
    plain = to_plain(pipeline)
    changed = {*targets_of(plain, key)} if key else set()
    return [option for option in space if changed & {*targets_of(plain, option)}]


def _as_stored(pipeline: Pipeline, key: str, value: Any) -> Any:
    """Return a value as the recipe stores it: 0 becomes 0.0 for a float.

    A value that the recipe refuses stays as it is.
    """
    try:
        plain = to_plain(apply_overrides(pipeline, {key: value}))
    except InputError:
        return value
    return get_path(plain, targets_of(plain, key)[0])


def _full_path(pipeline: Pipeline, key: str) -> str | None:
    """Return the path of an option of a trial: ``STAGE.path``, or ``path`` where several stages have it."""
    plain = to_plain(pipeline)
    stages = [f"{stage}.{key}" for stage in pipeline.recipes]
    targets = targets_of(plain, key) or [target for path in stages for target in targets_of(plain, path)]
    targets = [target for target in targets if not isinstance(get_path(plain, target), Mapping)]
    if not targets or not (targets[0].startswith("recipes.") or targets[0] in VARIED):
        return None
    return targets[0].removeprefix("recipes.") if len(targets) == 1 else key


# -- named searches ----------------------------------------------------------------------------------------------------

SEARCHES: dict[str, dict[str, Any]] = load_yaml(Path(__file__).with_name("searches.yaml").read_text(encoding="utf-8"))
"""Commands, help and jobs take the names of searches from here."""


def find_search(name: str, overrides: Mapping[str, Any] | None = None) -> Search:
    """Return the search called ``name``, with overrides applied.

    The name may have a scale (``lower-bound@small``). A system (``simcse-sup``, a YAML file) gives
    the search of the space in the overrides.

    Raises:
        InputError: unknown name or scale, unknown or wrong overrides.
    """
    return configure(search_of(name), overrides or {})


def search_of(name: str) -> Search:
    """Return the search called ``name``, that of a system without a space."""
    plain, separator, scale = name.partition("@")
    fields = dict(SEARCHES.get(plain, {}))
    try:
        system = names.pipeline(f"{fields.pop('system', plain)}{separator}{scale}")
    except InputError as error:
        if plain in SEARCHES:
            raise
        options = f"{', '.join(SEARCHES)}, and any system that ends in one training run, with a space that you give"
        near = nearest(plain, SEARCHES)
        why = "" if near else f": {error.problems[0]}"
        raise InputError(f"unknown search '{name}'{near}; searches are {options}{why}") from None
    space = {key: Dimension.of(value) for key, value in fields.pop("space", {}).items()}
    if first := fields.get("first"):
        varied = fields.pop("vary", {}).items()
        fields["first"] = (first, *({**first, key: value} for key, values in varied for value in values))
    if most := names.SCALES.get(scale, {}).get("members"):
        fields["seeds"] = min(fields.get("seeds", 1), most)
    study = plain if plain in SEARCHES else system.name
    if plain in SEARCHES and scale == "paper-text":
        study = f"{plain}-text"  # both protocols stay on record
    try:
        return Search(name=study, pipeline=system, space=space, **fields)
    except InputError as error:
        raise InputError([f"search '{name}': {problem}" for problem in error.problems]) from None

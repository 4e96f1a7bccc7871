"""A Recipe determines one training run; a Pipeline is a named graph of recipes. Both are frozen, typed trees."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, get_args

from raysts.errors import nearest
from raysts.ids import later
from raysts.models.layers import Layers, PoolingMode, check_layers
from raysts.models.precision import EMBEDS_ALONE, Precision
from raysts.recipes.catalog import CATALOG, Group, ObjectiveSpec, Settings
from raysts.recipes.tree import Tree, build, built, has_path, limit, misfits, paths, require, set_path, to_plain
from raysts.schema import TABLES, TEST_TABLES

NAME = re.compile(r"[\w+=][\w.+=-]{0,99}")
"""Names of runs and systems: they become names of files."""

STAGE = re.compile(r"[A-Za-z][\w-]*")
"""Names of stages: a part of a dotted path."""

Soup = Literal["soup", "greedy-soup"]
SOUPS: tuple[Soup, ...] = get_args(Soup)
"""The weight averages of members: of all, and of those that do the average good (Wortsman et al. 2022, model soups)."""


def name_problem(name: str) -> str | None:
    """What is wrong with the name of a run, or None."""
    if NAME.fullmatch(name):
        return None
    return (
        f"name={name!r} must be 1 to 100 letters, digits and '_', '.', '-', '+' or '=', and not begin with '.' or '-'"
    )


def resamples_problem(resamples: int) -> str | None:
    """What is wrong with a number of bootstrap resamples, or None."""
    if 0 <= resamples <= MOST_RESAMPLES:
        return None
    return f"resamples={resamples} must be from 1 to {MOST_RESAMPLES:,}, or 0 for no intervals"


def _require_objective(name: str) -> None:
    if name not in CATALOG:
        raise ValueError(f"objective={name!r} must be one of {', '.join(CATALOG)}{nearest(name, CATALOG)}")


MOST_MEMBERS = 10_000
"""Members, and students: each is a node of its own, of which a plan writes a line."""

MOST_STAGES = 100
MOST_CPUS = 1_024
"""So many threads are started."""

MOST_RESAMPLES = 100_000
"""For a set of 10,000 rows they take a gigabyte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Data(Tree):
    """Training rows.

    Attributes:
        table: canonical table; none: the objective's own.
        sources: keep only rows whose ``source`` is one of these; empty: all.
        sample: draw this many rows, by ``sample_seed`` alone (all, where the table has no more); none: all.
        sample_seed: seed of the draw (one fixed sample for all members and the student).
        bootstrap: train on as many of these rows drawn with replacement, by the seed of the run, so that every member has its
            own rows (bagging).
    """

    table: str | None = None
    sources: tuple[str, ...] = ()
    sample: int | None = limit(None, lambda rows: rows > 0, "must be positive, or none for all rows")
    sample_seed: int = limit(0, lambda seed: seed >= 0, "must not be negative")
    bootstrap: bool = later(False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Optim(Tree):
    """Optimiser and learning-rate schedule.

    Attributes:
        name: ``adamw``, ``adam``, ``rmsprop``, or ``adamw-uncorrected``: AdamW without bias correction, as the official code
            of BERT-flow has it.
        lr: peak learning rate.
        schedule: after warm-up ``linear`` to 0, ``constant``, or ``steps``.
        warmup: fraction of the steps over which the rate grows linearly from 0.
        milestones: for ``steps``: after this many optimiser steps the next factor applies.
        factors: for ``steps``: one factor on ``lr`` more than there are milestones.
        weight_decay: decoupled for ``adamw``; biases and layer norms are not decayed.
        clip: maximal gradient norm; none: not clipped.
        eps: added to the denominator; none: 1e-8 (adam, adamw), 1e-7 (rmsprop).
        floor: the rate that warm-up begins and ``linear`` ends with, instead of 0.
        decay_all: decay biases and layer norms too.
    """

    name: Literal["adamw", "adam", "rmsprop", "adamw-uncorrected"] = "adamw"
    lr: float = limit(2e-5, lambda lr: 0 < lr < math.inf, "must be positive and finite")
    schedule: Literal["linear", "constant", "steps"] = "linear"
    warmup: float = limit(0.1, lambda part: 0 <= part <= 1, "is a fraction of the steps and must be from 0 to 1")
    milestones: tuple[int, ...] = ()
    factors: tuple[float, ...] = ()
    weight_decay: float = limit(0.0, lambda decay: decay >= 0, "must not be negative")
    clip: float | None = limit(1.0, lambda norm: norm > 0, "must be positive, or none")
    eps: float | None = None
    floor: float = 0.0
    decay_all: bool = False

    def __post_init__(self) -> None:
        Tree.__post_init__(self)  # slots: super() would look for the class before it got them
        require(0 <= self.floor <= self.lr, f"floor={self.floor} must be from 0 to lr, {self.lr}")
        require(self.name != "rmsprop" or not self.weight_decay, "weight_decay: rmsprop has none here, set it to 0")
        rule = f"schedule 'steps' needs one factor more than milestones ({len(self.milestones)})"
        require(self.schedule != "steps" or len(self.factors) == len(self.milestones) + 1, f"factors: {rule}")


def positive_or_none(came_later: bool = False) -> Any:
    """Return a field that is None unless it is set."""
    return limit(None, lambda value: value > 0, "must be positive, or none", came_later)


@dataclass(frozen=True, slots=True, kw_only=True)
class Train(Tree):
    """Length, precision and bookkeeping of one training run.

    Attributes:
        epochs: passes over the rows; fractions are allowed.
        max_steps: at most this many optimiser steps; none: as many as the epochs hold.
        max_length: tokens per text in training, special tokens included.
        dropout: on or off.
        precision: ``auto`` (bf16 where the hardware multiplies it natively, else fp32; the pipeline's ``precision`` goes
            before), ``bf16``, ``fp32`` or ``tf32``.
        keep: the encoder that is kept: of the ``last`` step or ``best`` on dev, or what else the objective offers
            (``ObjectiveSpec.keeps``).
        eval_every: steps between dev evaluations; none: a tenth of the run where dev chooses, else a quarter.
        checkpoint_every: steps between checkpoints; none: a twentieth of the run, at least 50 steps, and after 10 seconds
            in any case (or 20 times as long as it takes to write one).
        patience: stop after this many dev evaluations without a better score; none: never.
        eval_first: evaluate before the first step too, so that the untrained model may be the best.
        drop_last: leave out an epoch's last batch where it is smaller than the others.
        gradient_checkpointing: hold of each of the encoder's layers its input alone, and compute the rest again in backward:
            the same numbers from less memory, for a third more work.
        init: the encoder's weights before the first step: those ``given``, or ``random`` ones, drawn by the seed of the run.
        lora: train adapters of this rank beside the linear layers of the backbone's layers, which stay as they are (LoRA, by the
            package ``peft``); the model that is written has them in its weights. None: all weights are trained.
        attention_dropout: of the weights of attention, where there is dropout: ``on``, or ``auto``: not on GPUs in bf16, whose
            kernel for texts without padding has none (the run's record says so); ``on`` pads texts for attention there.
        compile: the encoder's layers by ``torch.compile``, for any sizes: the same numbers but for rounding, also after a
            restart. It needs a C++ compiler on every node; on CPUs it is no faster, on GPUs it has not been measured.
    """

    epochs: float = limit(1.0, lambda epochs: 0 < epochs < math.inf, "must be positive and finite")
    max_steps: int | None = positive_or_none()
    max_length: int = limit(75, lambda tokens: tokens >= 3, "must be at least 3 tokens")
    dropout: bool = True
    precision: Precision = "auto"
    keep: str = "last"
    eval_every: int | None = positive_or_none()
    checkpoint_every: int | None = positive_or_none()
    patience: int | None = positive_or_none()
    eval_first: bool = False
    drop_last: bool = False
    gradient_checkpointing: bool = later(False)
    init: Literal["given", "random"] = later("given")
    lora: int | None = positive_or_none(came_later=True)
    attention_dropout: Literal["auto", "on"] = later("auto")
    compile: bool = later(False)

    def __post_init__(self) -> None:
        Tree.__post_init__(self)
        rule = f"is for embedding alone: {EMBEDS_ALONE.get(self.precision)}; train in bf16, tf32 or fp32"
        require(self.precision not in EMBEDS_ALONE, f"precision={self.precision} {rule}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(Tree):
    """One training run.

    Attributes:
        objective: name in ``CATALOG``.
        batch: global batch size in examples, over all workers.
        train: length, precision, what is kept.
        pooling: how tokens become one vector while training.
        layers: layers pooled while training: a number of last layers, ``first_last``, or one alone, ``only-3``.
    """

    objective: str
    settings: Settings
    data: Data = field(default_factory=Data)
    batch: int = limit(16, lambda batch: batch > 0, "must be positive")
    optim: Optim = field(default_factory=Optim)
    train: Train = field(default_factory=Train)
    pooling: PoolingMode = "mean"
    layers: Layers = 1

    @classmethod
    def refine_types(cls, plain: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(plain.get("objective"), str):
            return {}
        _require_objective(plain["objective"])
        return {"settings": CATALOG[plain["objective"]].settings}

    def __post_init__(self) -> None:
        _require_objective(self.objective)
        spec, settings = self.spec, self.settings
        rule = f"must be {spec.settings.__name__}, those of {self.objective}"
        require(isinstance(settings, spec.settings), f"settings={settings!r:.40} {rule}")
        if wrong := misfits(self):
            raise ValueError("; ".join(wrong))
        Tree.__post_init__(self)
        problem = spec.batch_problem(self.batch)
        require(problem is None, f"batch={self.batch} {problem}")
        rule = f"must be one of {', '.join(spec.keeps)} for {self.objective}"
        require(self.train.keep in spec.keeps, f"train.keep={self.train.keep!r} {rule}")
        for option, value, usual in (("init", self.train.init, "given"), ("lora", self.train.lora, None)):
            rule = f"{self.objective} is fitted on a finished model, whose weights it leaves"
            require(value == usual or not spec.head, f"train.{option}={value}: {rule}")
        no_vectors = None if spec.vectors else "it is no loss of sentence vectors; leave it out"
        if widths := list(settings.matryoshka):
            problem = no_vectors or spec.matryoshka_problem(settings)
            require(problem is None, f"settings.matryoshka={widths}: {self.objective}: {problem}")
            numbers = min(widths) >= 1 and len({*widths}) == len(widths)
            require(numbers, f"settings.matryoshka={widths} must be numbers of dimensions, each once")
        chunk = settings.grad_cache
        require(chunk is None or spec.vectors, f"settings.grad_cache={chunk}: {self.objective}: {no_vectors}")
        check_layers(self.layers)
        table = f"data.table={self.table!r}"
        if self.table not in TABLES:
            raise ValueError(f"{table} is no canonical table{nearest(self.table, TABLES)}")
        require(self.table not in TEST_TABLES, f"{table} is a test set: dev selects, test reports")
        selecting = {other.dev for other in CATALOG.values()}
        require(self.table not in selecting, f"{table} is a dev set, which selects: train on another table")
        needed = [name for name in (*spec.texts, *spec.values) if name != "teacher"]
        columns = {column.name for column in TABLES[self.table]}
        rule = f"has columns {', '.join(sorted(columns))}; {self.objective} needs {', '.join(needed)}"
        require(columns.issuperset(needed), f"{table} {rule}")

    @property
    def spec(self) -> ObjectiveSpec:
        return CATALOG[self.objective]

    @property
    def group(self) -> Group:
        """Return the rows of a batch that form an example."""
        return self.spec.group_of(self.settings)

    @property
    def has_head(self) -> bool:
        """Return True if the resulting model has a new head, which begins with random weights."""
        return self.spec.has_head(self.settings)

    @property
    def table(self) -> str:
        return self.data.table or self.spec.table

    @property
    def by_dev(self) -> bool:
        """Whether labels of the dev set choose the kept encoder."""
        return self.train.keep in self.spec.keeps_by_dev


def default_recipe(objective: str) -> Recipe:
    """Return the default recipe of an objective."""
    plain: dict[str, Any] = {"objective": objective, "settings": {}, "data": {}, "optim": {}, "train": {}}
    for path, value in CATALOG[objective].default.items():
        set_path(plain, path, value)
    return built(Recipe, plain)


DEFAULTS: dict[str, Recipe] = {objective: default_recipe(objective) for objective in CATALOG}
"""The default recipes by objective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What is measured at the end.

    Attributes:
        tasks: task names; empty: every task whose files exist.
        layers: every model is measured at each of these choices of pooled layers (one with heads at its own).
        compare: the choice of layers at which the summary compares systems; none: that of the model that is delivered.
        resamples: bootstrap resamples behind every interval.
    """

    tasks: tuple[str, ...] = ()
    layers: tuple[Layers, ...] = (1, 2)
    compare: Layers | None = None
    resamples: int = 1000

    def __post_init__(self) -> None:
        require(bool(self.layers), "layers=() must name one choice of layers at least")
        for layers in self.layers:
            check_layers(layers)
        require(
            self.compare is None or self.compare in self.layers,
            f"compare={self.compare} must be one of layers {self.layers}, or none",
        )
        problem = resamples_problem(self.resamples)
        require(problem is None, str(problem))


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources(Tree):
    """What one training run asks of the cluster.

    Attributes:
        workers: processes that train one member together; where ``min_workers`` is given, at most.
        min_workers: the member begins, and after a loss goes on, with as few as that, and takes more as there is room for
            them; the global batch stays. None: always ``workers``.
        cpus: CPUs per worker; also its number of threads.
        gpus: GPUs per worker, fractions allowed; none: one where the cluster has GPUs.
        shard: spread the weights, gradients and moments of a member over its workers (FSDP), for a backbone that does not fit on
            one; only of losses of sentence vectors, and not together with ``grad_cache``. In bf16 or fp16 layers are put together
            in it, from float32.
        memory: GB of main memory per worker; none: on clusters that others share what the model is estimated to take, as
            ``raysts plan`` shows it.
        accelerator_type: the kind of GPU that workers must have, as Ray calls it (``L4``, ``H100``); none: any.
        label_selector: labels that the nodes of workers must have, each ``key=value``; a value may be ``!value``,
            ``in(one,other)`` or ``!in(one,other)``, as Ray reads them.
    """

    workers: int = limit(1, lambda workers: workers >= 1, "must be at least 1")
    min_workers: int | None = None
    cpus: int = limit(1, lambda cpus: 1 <= cpus <= MOST_CPUS, f"must be from 1 to {MOST_CPUS:,}")
    gpus: float | None = limit(None, lambda gpus: gpus >= 0, "must not be negative")
    shard: bool = False
    memory: float | None = limit(None, lambda memory: memory > 0, "must be GB above 0, or none")
    accelerator_type: str | None = None
    label_selector: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        Tree.__post_init__(self)
        require(
            self.min_workers is None or 1 <= self.min_workers <= self.workers,
            f"min_workers={self.min_workers} must be from 1 to workers, {self.workers}, or none",
        )
        require(
            not self.shard or self.workers > 1,
            f"workers={self.workers}: shard spreads a member over several workers; ask for more, or leave shard out",
        )
        require(
            self.accelerator_type is None or self.gpus != 0,
            f"accelerator_type={self.accelerator_type}: workers without GPUs (gpus=0) have none",
        )
        for label in self.label_selector:
            key, equals, value = label.partition("=")
            rule = "must be key=value, for example ray.io/market-type=spot"
            require(bool(key and equals and value), f"label_selector={label!r} {rule}")

    @property
    def least(self) -> int:
        """Workers with which a member begins."""
        return self.min_workers or self.workers

    @property
    def selector(self) -> dict[str, str]:
        return {key: value for key, _, value in (label.partition("=") for label in self.label_selector)}

    @property
    def device(self) -> str | None:
        """Where it computes without Ray, which would not show it a GPU: on CPUs where none is asked for; None: on one if it is
        there."""
        return "cpu" if self.gpus == 0 else None

    @property
    def bundle(self) -> dict[str, float]:
        """What a worker asks of its node, GPUs decided; memory in bytes."""
        asked = {"CPU": float(self.cpus), "GPU": self.gpus or 0.0, "memory": 1e9 * (self.memory or 0.0)}
        if self.accelerator_type:
            asked[f"accelerator_type:{self.accelerator_type}"] = 0.001  # Ray's way to say that it must be there
        return {name: amount for name, amount in asked.items() if amount}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(Tree):
    """Members x stages -> selection -> distillation -> what is fitted on the student -> evaluation.

    Attributes:
        backbone: a run id, a model directory, a Hugging Face name, a file of word vectors, or ``tiny``.
        members: number of ensemble members; they differ in their seeds, and by ``variants``.
        variants: overrides of the members' stages; member m has those of ``variants[m % len(variants)]``. A key is that of an
            override; ``STAGE.objective`` brings the settings of the other objective, and ``STAGE: null`` leaves a stage out.
            The models must come out alike.
        min_members: where some fail, go on with those that finished if they are at least so many; none: all must finish.
        seed: root of every seed.
        stages: recipes of a member's training stages, in order.
        combine: ``sed`` distils a student from the members, ``ensemble`` averages their embeddings, ``soup`` their weights,
            ``greedy-soup`` the weights of those that do the average good on the development set; none leaves them apart.
        deliver: what is handed over: what the ``system``'s name says, or the ``best`` on the development set of backbone (as
            it was distributed too), members, weight averages and students, each at the measured choices of layers.
        sed: recipe of the distillation.
        post: what is fitted on the student afterwards (a flow, a whitening, a mixture); at most one.
        students: number of students distilled from the same ensemble; they differ in their seeds alone.
        teachers: models that form the ensemble, instead of members trained here.
        prompt: what stands before every text that members and students read, and will read by default: a prompt of the
            backbone's by its name, or a text; none: the backbone's default; empty: no prompt.
        teacher_prompt: the same for ``teachers``, each with its own prompt of that name.
        select_top: how many members, best on STS-B dev first, form the ensemble; none: all.
        student_pooling: layers the exported student pools; none: as it was trained (the papers' are trained on the last
            layer and evaluated with 2).
        max_seq_length: tokens per text that the trained models read once they are written; none: as many as the backbone
            does, however short the texts were cut in training.
        student_start: the student starts from the ``backbone``, the first selected ``member``, or the ``average`` of the
            selected members' weights.
        precision: what the teachers' sentences are embedded in, and every training whose ``train.precision`` is ``auto``:
            ``auto`` (bf16 where the hardware multiplies it natively, else fp32), ``bf16``, ``fp32``, ``tf32`` or, where nothing
            is trained in it, ``fp16``. Scores are measured in fp32.
        resources: what one training run asks of the cluster.
    """

    name: str
    backbone: str = "tiny"
    members: int = limit(4, lambda members: members >= 1, "must be at least 1")
    min_members: int | None = None
    seed: int = 0
    stages: dict[str, Recipe] = field(default_factory=dict)
    variants: tuple[dict[str, Any], ...] = ()
    combine: Literal["sed", "ensemble", "soup", "greedy-soup"] | None = None
    deliver: Literal["system", "best"] = "system"
    sed: Recipe | None = None
    post: dict[str, Recipe] = field(default_factory=dict)
    students: int = limit(1, lambda students: 1 <= students <= MOST_MEMBERS, f"must be from 1 to {MOST_MEMBERS:,}")
    teachers: tuple[str, ...] = ()
    prompt: str | None = None
    teacher_prompt: str | None = None
    select_top: int | None = None
    student_pooling: Layers | None = None
    max_seq_length: int | None = limit(
        None, lambda n: n >= 3, "must be at least 3 tokens, or none for as many as the backbone reads"
    )
    student_start: Literal["backbone", "member", "average"] = "backbone"
    precision: Precision = later("auto")
    evaluation: Evaluation = field(default_factory=Evaluation)
    resources: Resources = field(default_factory=Resources)

    def __post_init__(self) -> None:
        Tree.__post_init__(self)
        problem = name_problem(self.name)
        require(problem is None, str(problem))
        require(self.members <= MOST_MEMBERS, f"members={self.members} must be at most {MOST_MEMBERS:,}")
        require(
            self.min_members is None or 1 <= self.min_members <= self.members,
            f"min_members={self.min_members} must be from 1 to members, {self.members}, or none for all",
        )
        require(len(self.stages) <= MOST_STAGES, f"stages: {len(self.stages):,} of them; at most {MOST_STAGES}")
        ways = [self.stages, *(self.stages_of(member) for member in range(len(self.variants)))]
        for stage, recipe in (*chain.from_iterable(stages.items() for stages in ways), *self.post.items()):
            require(
                STAGE.fullmatch(stage) is not None and stage != "sed",
                f"stages: {stage!r} must be of letters, digits, '_' and '-', and not 'sed', which is the distillation",
            )
            require("teacher" not in recipe.spec.values, f"stages.{stage}: a member has no teacher")
        for stage, recipe in chain.from_iterable(list(stages.items())[:-1] for stages in ways):
            rule = "is fitted on a finished model and must be the last stage"
            require(not recipe.spec.head, f"stages.{stage}: {recipe.objective} {rule}")
        self._require_alike(ways[1:])
        for stage, recipe in self.post.items():
            require(bool(recipe.spec.head), f"post.{stage}: {recipe.objective} is no stage of a finished model")
            require(stage not in self.stages, f"post.{stage}: the members have a stage of that name already")
        if self.resources.shard:
            for stage, recipe in self.recipes.items():
                require(
                    recipe.spec.vectors and recipe.settings.grad_cache is None,
                    f"resources.shard: {stage}: only losses of sentence vectors are spread over workers, and those without "
                    f"grad_cache (train.gradient_checkpointing goes with it)",
                )
                require(not recipe.train.compile, f"resources.shard: not together with {stage}.train.compile")
        require(len(self.post) <= (1 if self.sed else 0), "post: one at most, and only after a distillation")
        distilling = [name for name, spec in CATALOG.items() if "teacher" in spec.values]
        distils = self.sed is None or self.sed.objective in distilling
        require(distils, f"sed.objective: must be {' or '.join(distilling)}")
        require(
            self.students == 1 or self.sed is not None,
            f"students={self.students}: '{self.name}' distils no student; take a system with -sed",
        )
        require((self.combine == "sed") == (self.sed is not None), "sed: needed with combine=sed and only then")
        require(not (self.teachers and self.stages), "teachers: models that are there, or stages that train members")
        require(
            self.teacher_prompt is None or bool(self.teachers),
            f"teacher_prompt={self.teacher_prompt!r}: no models are named as teachers; members read by 'prompt'",
        )
        require(not self.combine or bool(self.stages or self.teachers), "combine: there are no members to combine")
        count = len(self.teachers) or self.members
        require(
            self.select_top is None or 1 <= self.select_top <= count,
            f"select_top={self.select_top} must be from 1 to the number of members, {count}",
        )
        require(
            self.min_members is None or (self.select_top or 1) <= self.min_members,
            f"min_members={self.min_members} must be at least select_top, {self.select_top}: so many are chosen from them",
        )
        if self.student_pooling is not None:
            check_layers(self.student_pooling)
        recipes = [*self.stages.values(), *([self.sed] if self.sed else []), *self.post.values()]
        require(
            self.precision not in EMBEDS_ALONE or all(recipe.train.precision != "auto" for recipe in recipes),
            f"precision={self.precision} is for embedding alone: {EMBEDS_ALONE.get(self.precision)}; set train.precision too",
        )

    @property
    def delivered(self) -> Layers:
        """The choice of layers of the model that the system delivers: unless asked for, that of its training."""
        if self.sed is not None and not self.post:
            own = self.sed.layers  # to which a head of the student belongs
            return own if self.sed.has_head else self.student_pooling or own
        trained = list(self.post.values()) or list(self.stages.values())
        return trained[-1].layers if trained else self.evaluation.layers[0]

    @property
    def compared(self) -> Layers:
        return self.delivered if self.evaluation.compare is None else self.evaluation.compare

    @property
    def measured(self) -> tuple[Layers, ...]:
        return tuple(dict.fromkeys([*self.evaluation.layers, self.delivered]))

    def _require_alike(self, ways: Sequence[Mapping[str, Recipe]]) -> None:
        """The members of several ways are averaged, compared and chosen from as one kind of model."""
        ends = [recipe for stages in ways for recipe in list(stages.values())[-1:]]
        require(len(ends) == len(ways), "variants: every member needs a stage that trains it")
        traits: dict[str, list[Any]] = {
            "pooling": [recipe.pooling for recipe in ends],
            "pooled layers": [recipe.layers for recipe in ends],
            "development set": [recipe.spec.dev for recipe in ends],
            "head of its own": [recipe.has_head for recipe in ends],
        }
        for name, values in traits.items():
            rule = f"the members must come out alike, and their last stages differ in {name}"
            require(len({*values}) < 2, f"variants: {rule}: {', '.join(map(str, dict.fromkeys(values)))}")

    def stages_of(self, member: int) -> dict[str, Recipe]:
        """The recipes that a member is trained by, in order.

        Raises:
            ValueError: its variant names what the stages do not have, or a wrong value.
        """
        if not self.variants:
            return self.stages
        number = member % len(self.variants)
        plain: dict[str, Any] = to_plain(self.stages)
        problems: list[str] = []
        # What objective it is says which settings there are.
        for key, value in sorted(self.variants[number].items(), key=lambda item: not item[0].endswith("objective")):
            stage, _, path = key.partition(".")
            places = {stage: path} if stage in plain else dict.fromkeys(plain, key)
            places = {name: inside for name, inside in places.items() if has_path(plain[name], inside)}
            if key in plain and value is None:
                del plain[key]
            elif not places:
                known = [*plain, *(f"{name}.{inside}" for name, tree in plain.items() for inside in paths(tree))]
                problems.append(f"variants[{number}]: '{key}' is no option of the stages{nearest(key, known)}")
            for name, inside in places.items():
                if inside == "objective" and value in CATALOG:
                    plain[name]["settings"] = to_plain(CATALOG[value].settings())
                set_path(plain[name], inside, value)
        found = {name: build(Recipe, tree, problems, f"variants[{number}].{name}") for name, tree in plain.items()}
        require(not problems, "; ".join(problems))
        return {name: recipe for name, recipe in found.items() if recipe is not None}

    @property
    def recipes(self) -> dict[str, Recipe]:
        """All recipes that something is trained by: by stage, those of members that differ by stage and variant; in order."""
        found: dict[str, Recipe] = {}
        for number in range(min(self.members, len(self.variants)) or 1):
            for stage, recipe in self.stages_of(number).items():
                found[stage if recipe == self.stages[stage] else f"{stage} (variant {number})"] = recipe
        return {**found, **({"sed": self.sed} if self.sed else {}), **self.post}

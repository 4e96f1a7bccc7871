"""Recipe (one training run) and Pipeline (source of members, reducer, what follows)."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    SerializeAsAny,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic.json_schema import JsonSchemaValue

from raysts.errors import nearest
from raysts.models.layers import Layers, PoolingMode, check_layers
from raysts.models.precision import EMBEDS_ALONE, Precision
from raysts.recipes.catalog import CATALOG, Group, ObjectiveSpec, Settings
from raysts.recipes.tree import Tree, build, get_path, set_path, to_plain
from raysts.schema import TABLES, TEST_TABLES

NAME = re.compile(r"[\w+=][\w.+=-]{0,99}")
"""Names of runs and systems: they become names of files."""

STAGE = re.compile(r"[A-Za-z][\w-]*")
"""Names of stages: a part of a dotted path."""

Soup = Literal["soup", "greedy-soup"]
SOUPS: tuple[Soup, ...] = get_args(Soup)
"""The weight averages of members: of all, and of those that do the average good (Wortsman et al. 2022, model soups)."""
ROLE_NAMES = {"backbone": "starting model", "soup": "weight average", "greedy-soup": "greedy weight average"}
"""Names of roles in sentences. A role that is not here is named as it is."""

DISTILLATION = "sed"
"""The stage that distils a student; the stages before it are the members', those after it are fitted on the student."""

MOST_MEMBERS = 10_000
"""Members, and students: each is a node of its own, of which a plan writes a line."""

MOST_STAGES = 100
MOST_CPUS = 1_024
"""So many threads are started."""

MOST_RESAMPLES = 100_000
"""For a set of 10,000 rows they take a gigabyte."""


def name_problem(name: str) -> str | None:
    """Return what is wrong with the name of a run, or None."""
    if NAME.fullmatch(name):
        return None
    return (
        f"name={name!r} must be 1 to 100 letters, digits and '_', '.', '-', '+' or '=', and not begin with '.' or '-'"
    )


def resamples_problem(resamples: int) -> str | None:
    """Return what is wrong with a number of bootstrap resamples, or None."""
    if 0 <= resamples <= MOST_RESAMPLES:
        return None
    return f"resamples={resamples} must be from 1 to {MOST_RESAMPLES:,}, or 0 for no intervals"


def _layers(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError("must be a number of last layers (2), 'first_last', or one layer alone ('only-3')")
    try:
        check_layers(value)
    except ValueError as error:
        raise ValueError(str(error).removeprefix(f"layers={value!r}").lstrip(": ")) from None
    return value


PooledLayers = Annotated[Layers, BeforeValidator(_layers)]


def _kept_layers(value: Any) -> Any:
    if value is None or (type(value) is int and value > 0):
        return value
    items = [*value] if isinstance(value, (list, tuple)) else []
    if not items or not all(type(item) is int and item >= 0 for item in items) or sorted({*items}) != items:
        raise ValueError("must be a number of layers (3), or their numbers from 0 in ascending order ([0, 2, 5])")
    return tuple(items)


def _max_length(value: Any) -> Any:
    if value != "auto" and not (type(value) is int and value >= 3):
        raise ValueError("must be a number of at least 3, or auto")
    return value


# fmt: off

class Data(Tree):
    """Training rows."""

    table: str | None = Field(None, description="canonical table; none: the objective's own")
    sources: tuple[str, ...] = Field((), description="keep only rows whose source is one of these; empty: all")
    sample: int | None = Field(None, gt=0, description="draw this many rows, by sample_seed alone (all, where the table has "
        "no more); none: all")
    sample_seed: int = Field(0, ge=0, description="seed of the draw (one fixed sample for all members and the student)")
    spans: int = Field(0, ge=0, le=100, description="train on so many pieces of each text too, drawn by sample_seed and the "
        "text; they stand for short texts, such as queries, beside long ones")
    span_tokens: tuple[int, ...] = Field((4, 64), description="words of the shortest and the longest of these pieces (a sign "
        "of Chinese or Japanese is a word)")
    bootstrap: bool = Field(False, description="train on as many of these rows drawn with replacement, by the seed of the "
        "run, so that every member has its own rows (bagging)")

    def misfits(self) -> Iterator[str]:
        if self.spans and self.sources:
            yield f"spans={self.spans}: pieces of texts have no source; leave sources out"
        if len(self.span_tokens) != 2 or not 1 <= self.span_tokens[0] <= self.span_tokens[1]:
            yield f"span_tokens={list(self.span_tokens)} must be two numbers, the smaller one first, from 1"


class Optim(Tree):
    """Optimiser and learning-rate schedule."""

    name: Literal["adamw", "adam", "rmsprop", "adamw-uncorrected"] = Field("adamw", description="adamw-uncorrected: AdamW "
        "without bias correction, as the official code of BERT-flow has it")
    lr: float = Field(2e-5, gt=0, description="peak learning rate")
    schedule: Literal["linear", "constant", "steps"] = Field("linear", description="after warm-up: linear to 0, constant, or "
        "steps")
    warmup: float = Field(0.1, ge=0, le=1, description="fraction of the steps over which the rate grows linearly from 0")
    milestones: tuple[int, ...] = Field((), description="for steps: after this many optimiser steps the next factor applies")
    factors: tuple[float, ...] = Field((), description="for steps: one factor on lr more than there are milestones")
    weight_decay: float = Field(0.0, ge=0, description="decoupled for adamw; biases and layer norms are not decayed")
    clip: float | None = Field(1.0, gt=0, description="maximal gradient norm; none: not clipped")
    eps: float | None = Field(None, gt=0, description="added to the denominator; none: 1e-8 (adam, adamw), 1e-7 (rmsprop)")
    floor: float = Field(0.0, ge=0, description="the rate that warm-up begins and linear ends with, instead of 0")
    decay_all: bool = Field(False, description="decay biases and layer norms too")

    def misfits(self) -> Iterator[str]:
        if self.floor > self.lr:
            yield f"floor={self.floor} must be from 0 to lr, {self.lr}"
        if self.name == "rmsprop" and self.weight_decay:
            yield "weight_decay: rmsprop has none here, set it to 0"
        if self.schedule == "steps" and len(self.factors) != len(self.milestones) + 1:
            yield f"factors: schedule 'steps' needs one factor more than milestones ({len(self.milestones)})"


class Train(Tree):
    """Length, precision and bookkeeping of one training run."""

    epochs: float = Field(1.0, gt=0, description="passes over the rows; fractions are allowed")
    max_steps: int | None = Field(None, gt=0, description="at most this many optimiser steps; none: as many as the epochs "
        "hold")
    min_steps: int | None = Field(None, gt=0, description="whole passes more until there are so many optimiser steps; none: "
        "as many as the epochs hold")
    max_length: Annotated[int | Literal["auto"], BeforeValidator(_max_length)] = Field(75, description="tokens per text in "
        "training, special tokens included; auto: what 95 % of the texts need, within what teachers and backbone read, and "
        "what the trained model reads")
    dropout: bool = Field(True, description="on or off")
    precision: Precision = Field("auto", description="auto (bf16 where the hardware multiplies it natively, else fp32; the "
        "pipeline's precision goes before), bf16, fp32 or tf32")
    keep: str = Field("last", description="the encoder that is kept: of the last step, or best on dev, or what else the "
        "objective offers")
    eval_every: int | None = Field(None, gt=0, description="steps between dev evaluations; none: a tenth of the run where "
        "dev chooses, else a quarter")
    checkpoint_every: int | None = Field(None, gt=0, description="steps between checkpoints; none: a twentieth of the run, "
        "at least 50 steps, and after 10 seconds in any case (or 20 times as long as it takes to write one)")
    patience: int | None = Field(None, gt=0, description="stop after this many dev evaluations without a better score; none: "
        "never")
    eval_first: bool = Field(False, description="evaluate before the first step too, so that the untrained model may be the "
        "best")
    drop_last: bool = Field(False, description="leave out an epoch's last batch where it is smaller than the others")
    gradient_checkpointing: bool = Field(False, description="hold of each of the encoder's layers its input alone, and "
        "compute the rest again in backward: the same numbers from less memory, for a third more work")
    init: Literal["given", "random"] = Field("given", description="the encoder's weights before the first step: those given, "
        "or random ones, drawn by the seed of the run")
    lora: int | None = Field(None, gt=0, description="train adapters of this rank beside the linear layers of the backbone's "
        "layers, which stay as they are (LoRA, by the package peft); the model that is written has them in its weights. "
        "None: all weights are trained")
    attention_dropout: Literal["auto", "on"] = Field("auto", description="of the weights of attention, where there is "
        "dropout: on, or auto: not on GPUs in bf16, whose kernel for texts without padding has none (the run's record says "
        "so); on pads texts for attention there")
    compile: bool = Field(False, description="the encoder's layers by torch.compile, for any sizes: the same numbers but for "
        "rounding, also after a restart. It needs a C++ compiler on every node; on CPUs it is no faster, on GPUs it has not "
        "been measured")

    def misfits(self) -> Iterator[str]:
        if self.precision in EMBEDS_ALONE:
            yield (
                f"precision={self.precision} is for embedding alone: {EMBEDS_ALONE[self.precision]}; train in bf16, tf32 or "
                f"fp32"
            )


LATER = {"settings.bank": 0.0, "data.spans": 0, "data.span_tokens": [4, 64], "train.min_steps": None}
"""Fields that recipes have had since run ids are fixed, with the values at which an id does not name them."""

NEUTRAL: dict[str, Any] = {"train.checkpoint_every": None, "train.gradient_checkpointing": False}
"""Fields that change no number of a run, with the values that every id names."""


class Recipe(Tree):
    """Everything that determines one training run, except its seed and its parent."""

    objective: str = Field(json_schema_extra={"enum": list(CATALOG)}, description="what is trained for")
    settings: Annotated[SerializeAsAny[Settings], WithJsonSchema({"type": "object"})] = Field(description="of the objective")
    data: Data = Field(Data(), description="training rows")
    batch: int = Field(16, gt=0, description="global batch size in examples, over all workers")
    optim: Optim = Field(Optim(), description="optimiser and learning-rate schedule")
    train: Train = Field(Train(), description="length, precision, what is kept")
    pooling: PoolingMode = Field("mean", description="how tokens become one vector while training")
    layers: PooledLayers = Field(1, description="layers pooled while training: a number of last layers, first_last, or one "
        "alone, only-3")

    @field_validator("objective")
    @classmethod
    def _check_objective(cls, name: str) -> str:
        if name not in CATALOG:
            raise ValueError(f"must be one of {', '.join(CATALOG)}{nearest(name, CATALOG)}")
        return name

    @field_validator("settings", mode="before")
    @classmethod
    def _read_settings(cls, value: Any, about: ValidationInfo) -> Any:
        if "objective" not in about.data:  # which is wrong, and said to be
            return Settings()
        kind = CATALOG[about.data["objective"]].settings
        if isinstance(value, Settings) and not isinstance(value, kind):
            raise ValueError(f"must be {kind.__name__}, those of {about.data['objective']}")
        return value if isinstance(value, kind) else build(kind, value)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core)
        handler.resolve_ref_schema(schema)["allOf"] = [
            {
                "if": {"properties": {"objective": {"const": name}}},
                "then": {"properties": {"settings": spec.settings.model_json_schema()}},
            }
            for name, spec in CATALOG.items()
        ]
        return schema

    def misfits(self) -> Iterator[str]:
        spec, settings = self.spec, self.settings
        if problem := spec.batch_problem(self.batch):
            yield f"batch={self.batch} {problem}"
        if self.train.keep not in spec.keeps:
            yield f"train.keep={self.train.keep!r} must be one of {', '.join(spec.keeps)} for {self.objective}"
        for option, value, usual in (("init", self.train.init, "given"), ("lora", self.train.lora, None)):
            if value != usual and spec.head:
                yield f"train.{option}={value}: {self.objective} is fitted on a finished model, whose weights it leaves"
        no_vectors = "" if spec.vectors else "it is no loss of sentence vectors; leave it out"
        if widths := list(settings.matryoshka):
            if problem := no_vectors or spec.matryoshka_problem(settings):
                yield f"settings.matryoshka={widths}: {self.objective}: {problem}"
            elif min(widths) < 1 or len({*widths}) < len(widths):
                yield f"settings.matryoshka={widths} must be numbers of dimensions, each once"
        if settings.grad_cache is not None and no_vectors:
            yield f"settings.grad_cache={settings.grad_cache}: {self.objective}: {no_vectors}"
        if self.data.spans and spec.texts != ("sentence",):
            yield f"data.spans={self.data.spans}: {self.objective} trains on {', '.join(spec.texts)}, not on single texts"
        if problem := self._table_problem():
            yield f"data.table={self.table!r} {problem}"

    def _table_problem(self) -> str | None:
        if self.table not in TABLES:
            return f"is no canonical table{nearest(self.table, TABLES)}"
        if self.table in TEST_TABLES:
            return "is a test set: dev selects, test reports"
        if self.table in {other.dev for other in CATALOG.values()}:
            return "is a dev set, which selects: train on another table"
        needed = [name for name in (*self.spec.texts, *self.spec.values) if name != "teacher"]
        columns = {column.name for column in TABLES[self.table]}
        if columns.issuperset(needed):
            return None
        return f"has columns {', '.join(sorted(columns))}; {self.objective} needs {', '.join(needed)}"

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
        return bool(self.spec.head) or self.spec.has_head(self.settings)

    @property
    def identity(self) -> dict[str, Any]:
        """Return the fields that a run id is made of."""
        plain: dict[str, Any] = to_plain(self)
        for path, usual in NEUTRAL.items():
            set_path(plain, path, usual)
        for path, value in LATER.items():
            branch, _, leaf = path.rpartition(".")
            if get_path(plain, branch).get(leaf) == value:
                get_path(plain, branch).pop(leaf, None)
        if "bank" not in plain["settings"]:  # with a bank every id names it: an earlier temperature was a constant
            plain["settings"].pop("bank_temperature", None)
        return plain

    @property
    def table(self) -> str:
        return self.data.table or self.spec.table

    @property
    def uses_dev_labels(self) -> bool:
        """Return True if labels of the dev set choose the kept encoder."""
        return self.train.keep in self.spec.keeps_by_dev


def default_recipe(objective: str) -> Recipe:
    """Return the default recipe of an objective."""
    plain: dict[str, Any] = {"objective": objective, "settings": {}, "data": {}, "optim": {}, "train": {}}
    for path, value in CATALOG[objective].default.items():
        set_path(plain, path, value)
    return build(Recipe, plain)


DEFAULTS: dict[str, Recipe] = {objective: default_recipe(objective) for objective in CATALOG}
"""The default recipes by objective."""


class Evaluation(Tree):
    """Tasks, layers and intervals of the final evaluation."""

    tasks: tuple[str, ...] = Field((), description="task names; empty: every task whose files exist, but those that take "
        "minutes a model")
    also: tuple[str, ...] = Field((), description="tasks that take minutes a model (transfer, words), measured besides where "
        "their files exist; unheeded where tasks names some")
    layers: tuple[PooledLayers, ...] = Field((1, 2), description="every model is measured at each of these choices of pooled "
        "layers (one with heads at its own)")
    poolings: tuple[PoolingMode, ...] = Field((), description="the backbone, and members without a head, are measured at these "
        "poolings of their tokens besides; none of these is delivered")
    compare: PooledLayers | None = Field(None, description="the choice of layers at which the summary compares systems; "
        "none: that of the model that is delivered")
    resamples: int = Field(1000, description="bootstrap resamples behind every interval; 0: no intervals")
    margin: float = Field(1.0, gt=0, le=100, description="points (x100) that what comes out may be below its best teacher, or "
        "without one below the starting model, and still be level with it")
    probe: Literal["standard", "senteval"] = Field("standard", description="what transfer fits on the vectors: standard "
        "(logistic regression on standardised vectors), or senteval, the official probes, which take longer")

    def misfits(self) -> Iterator[str]:
        if self.probe != "standard" and "transfer" not in (*self.tasks, *self.also):
            yield f"probe={self.probe}: is of transfer; name it in tasks or also, or leave probe out"
        if not self.layers:
            yield "layers=() must name one choice of layers at least"
        if self.compare is not None and self.compare not in self.layers:
            yield f"compare={self.compare} must be one of layers {self.layers}, or none"
        if problem := resamples_problem(self.resamples):
            yield problem


class Resources(Tree):
    """Processes, CPUs, GPUs and memory of one training run."""

    workers: int = Field(1, ge=1, description="processes that train one member together; where min_workers is given, at most")
    min_workers: int | None = Field(None, ge=1, description="the member begins, and after a loss goes on, with as few as "
        "that, and takes more as there is room for them; the global batch stays. None: always workers")
    cpus: int = Field(1, ge=1, le=MOST_CPUS, description="CPUs per worker; also its number of threads")
    gpus: float | None = Field(None, ge=0, description="GPUs per worker, fractions allowed; none: one where the cluster has "
        "GPUs")
    shard: bool = Field(False, description="spread the weights, gradients and moments of a member over its workers (FSDP), "
        "for a backbone that does not fit on one; only of losses of sentence vectors, and not together with grad_cache. In "
        "bf16 or fp16 layers are put together in it, from float32")
    memory: float | None = Field(None, gt=0, description="GB of main memory per worker; none: on clusters that others share "
        "what the model is estimated to take, as raysts plan shows it")
    accelerator_type: str | None = Field(None, description="the kind of GPU that workers must have, as Ray calls it (L4, "
        "H100); none: any")
    label_selector: tuple[str, ...] = Field((), description="labels that the nodes of workers must have, each key=value; a "
        "value may be !value, in(one,other) or !in(one,other), as Ray reads them")

    def misfits(self) -> Iterator[str]:
        if self.min_workers is not None and self.min_workers > self.workers:
            yield f"min_workers={self.min_workers} must be from 1 to workers, {self.workers}, or none"
        if self.shard and self.workers == 1:
            yield f"workers={self.workers}: shard spreads a member over several workers; ask for more, or leave shard out"
        if self.accelerator_type is not None and self.gpus == 0:
            yield f"accelerator_type={self.accelerator_type}: workers without GPUs (gpus=0) have none"
        for label in self.label_selector:
            if not all(label.partition("=")):
                yield f"label_selector={label!r} must be key=value, for example ray.io/market-type=spot"

    @property
    def least(self) -> int:
        """Return the number of workers with which a member begins."""
        return self.min_workers or self.workers

    @property
    def selector(self) -> dict[str, str]:
        return {key: value for key, _, value in (label.partition("=") for label in self.label_selector)}

    @property
    def device(self) -> str | None:
        """Return ``cpu`` if no GPU is asked for, else None: a GPU if this machine has one."""
        return "cpu" if self.gpus == 0 else None

    @property
    def bundle(self) -> dict[str, float]:
        """Return the resources of a worker for Ray, memory in bytes."""
        bundle = {"CPU": float(self.cpus), "GPU": self.gpus or 0.0, "memory": 1e9 * (self.memory or 0.0)}
        if self.accelerator_type:
            bundle[f"accelerator_type:{self.accelerator_type}"] = 0.001  # Ray's way to say that it must be there
        return {name: amount for name, amount in bundle.items() if amount}


class TrialMember(Tree):
    """Trial of a search that is a member."""

    point: dict[str, Any] = Field(description="options of the trial's point, by path")
    seed: int = Field(0, ge=0, description="number of the trial among those of its point; members without trials have theirs")

    @property
    def text(self) -> str:
        return ", ".join([*(f"{key}={value}" for key, value in self.point.items()), f"seed {self.seed}"])


class Pipeline(Tree):
    """Source of members (stages or existing models), reducer, what follows, what is measured."""

    name: str = Field(description="name of the run: its record and its report are called so")
    backbone: str = Field("tiny", description="a run id, a model directory, a Hugging Face name, a file of word vectors, or "
        "tiny")
    backbone_layers: Annotated[int | tuple[int, ...] | None, BeforeValidator(_kept_layers)] = Field(None, description=
        "what is trained starts from so many of the backbone's layers, evenly spaced with the first and the last, or from the "
        "layers of these numbers, counted from 0; its embeddings, pooling and heads are copied; none: all layers")
    members: int = Field(4, ge=1, le=MOST_MEMBERS, description="number of ensemble members; they differ in their seeds, and "
        "by routes")
    min_members: int | None = Field(None, ge=1, description="where some fail, go on with those that finished if they are at "
        "least so many; none: all must finish")
    seed: int = Field(0, description="root of every seed")
    recipes: dict[str, Recipe] = Field(default_factory=dict, description="what is trained, by stage, in order: the stages of "
        "a member, then sed, which distils a student from the members, then what is fitted on the student (a flow, a "
        "whitening, a mixture; at most one)")
    routes: tuple[tuple[str, ...], ...] = Field((), description="stages that members go through, in turn: member m takes "
        "routes[m % len(routes)]. The models must come out alike. Empty: every member goes through every stage")
    trials: tuple[TrialMember, ...] = Field((), description="trials of a search that the members, or the teachers, are, "
        "one for each; empty: members differ in their seeds")
    combine: Literal["sed", "ensemble", "soup", "greedy-soup"] | None = Field(None, description="sed distils a student from "
        "the members, ensemble averages their embeddings, soup their weights, greedy-soup the weights of those that do the "
        "average good on the development set; none leaves them apart")
    deliver: Literal["system", "best"] = Field("system", description="the delivered model: what the system's name says "
        "(the student of a distillation), or the best on the development set of starting model (as it was distributed too), "
        "members, weight averages and students, each at the measured choices of layers")
    students: int = Field(1, ge=1, le=MOST_MEMBERS, description="number of students distilled from the same ensemble; they "
        "differ in their seeds alone")
    teachers: tuple[str, ...] = Field((), description="models that form the ensemble, instead of members trained here")
    prompt: str | None = Field(None, description="what stands before every text that members and students read, and will "
        "read by default: a prompt of the backbone's by its name, or a text; none: the backbone's default; empty: no prompt")
    teacher_prompt: str | None = Field(None, description="the same for teachers, each with its own prompt of that name")
    student: Literal["encoder", "static"] = Field("encoder", description="what is trained: an encoder that starts from the "
        "backbone; or static, a table of a vector for each token, made of what the backbone gives for the token alone, which "
        "embeds a text as the mean of its tokens, on a CPU some hundred times as fast")
    keep_index: bool = Field(False, description="the student keeps the space and the width of its one teacher, so that its "
        "queries search an index that this teacher embedded; retrieval is measured that way too")
    select_top: int | None = Field(None, description="how many members, best on STS-B dev first, form the ensemble; none: "
        "all")
    student_pooling: PooledLayers | None = Field(None, description="layers the exported student pools; none: as it was "
        "trained (the papers' are trained on the last layer and evaluated with 2)")
    max_seq_length: int | None = Field(None, ge=3, description="tokens per text that the trained models read once they are "
        "written; none: as many as the backbone does, however short the texts were cut in training")
    student_start: Literal["backbone", "member", "average"] = Field("backbone", description="the student starts from the "
        "backbone, the first selected member, or the average of the selected members' weights")
    precision: Precision = Field("auto", description="what the teachers' sentences are embedded in, and every training whose "
        "train.precision is auto: auto (bf16 where the hardware multiplies it natively, else fp32), bf16, fp32, tf32 or, "
        "where nothing is trained in it, fp16. Scores are measured in fp32")
    evaluation: Evaluation = Field(Evaluation(), description="what is measured at the end")
    resources: Resources = Field(Resources(), description="what one training run asks of the cluster")

    def misfits(self) -> Iterator[str]:
        yield from self._misfit_numbers()
        yield from self._misfit_stages()
        yield from self._misfit_members()
        yield from self._misfit_student()

    def _misfit_numbers(self) -> Iterator[str]:
        if problem := name_problem(self.name):
            yield problem
        if self.min_members is not None and self.min_members > self.members:
            yield f"min_members={self.min_members} must be from 1 to members, {self.members}, or none for all"
        count = len(self.teachers) or self.members
        if self.trials and (len(self.trials) != count or self.routes):
            yield f"members={count}: {len(self.trials)} trials are the members; leave members, routes and teachers out"
        if self.select_top is not None and not 1 <= self.select_top <= count:
            yield f"select_top={self.select_top} must be from 1 to the number of members, {count}"
        elif self.min_members is not None and (self.select_top or 1) > self.min_members:
            yield (
                f"min_members={self.min_members} must be at least select_top, {self.select_top}: so many are chosen from them"
            )
        if len(self.recipes) > MOST_STAGES:
            yield f"recipes: {len(self.recipes):,} of them; at most {MOST_STAGES}"

    def _misfit_stages(self) -> Iterator[str]:
        for stage, recipe in self.recipes.items():
            if not STAGE.fullmatch(stage):
                yield f"recipes: {stage!r} must be of letters, digits, '_' and '-', and begin with a letter"
            if stage != DISTILLATION and "teacher" in recipe.spec.values:
                yield f"recipes.{stage}: a member has no teacher; the stage that has one is called {DISTILLATION}"
            if self.resources.shard and not (recipe.spec.vectors and recipe.settings.grad_cache is None):
                yield (
                    f"resources.shard: {stage}: only losses of sentence vectors are spread over workers, and those without "
                    f"grad_cache (train.gradient_checkpointing goes with it)"
                )
            if self.resources.shard and recipe.train.compile:
                yield f"resources.shard: not together with {stage}.train.compile"
            if self.precision in EMBEDS_ALONE and recipe.train.precision == "auto":
                reason = EMBEDS_ALONE[self.precision]
                yield f"precision={self.precision} is for embedding alone: {reason}; set {stage}.train.precision too"

    def _misfit_members(self) -> Iterator[str]:
        stages = self.stages
        for number, route in enumerate(self.routes):
            if not route or list(route) != [stage for stage in stages if stage in route]:
                yield f"routes[{number}]={list(route)} must be stages of a member, in their order: {', '.join(stages)}"
                return
        ways = [list(route) for route in self.routes] or [list(stages)]
        for stage in dict.fromkeys(stage for way in ways for stage in way[:-1] if stages[stage].spec.head):
            yield f"recipes.{stage}: {stages[stage].objective} is fitted on a finished model and must be the last stage"
        ends = [stages[way[-1]] for way in ways if way]
        traits: dict[str, list[Any]] = {
            "pooling": [recipe.pooling for recipe in ends],
            "pooled layers": [recipe.layers for recipe in ends],
            "development set": [recipe.spec.dev for recipe in ends],
            "head of its own": [recipe.has_head for recipe in ends],
        }
        for name, values in traits.items():
            if len({*values}) > 1:
                names = ", ".join(map(str, dict.fromkeys(values)))
                yield f"routes: the members must come out alike, and their last stages differ in {name}: {names}"
        if self.teachers and stages:
            yield "teachers: models that are there, or stages that train members"
        if self.teacher_prompt is not None and not self.teachers:
            yield (
                f"teacher_prompt={self.teacher_prompt!r}: no models are named as teachers; members read by 'prompt'"
            )
        if self.combine and not (stages or self.teachers):
            yield "combine: there are no members to combine"

    def _misfit_student(self) -> Iterator[str]:
        distilling = [name for name, spec in CATALOG.items() if "teacher" in spec.values]
        if self.sed is not None and self.sed.objective not in distilling:
            yield f"recipes.{DISTILLATION}.objective: must be {' or '.join(distilling)}"
        if self.students > 1 and self.sed is None:
            yield f"students={self.students}: '{self.name}' distils no student; take a system with -{DISTILLATION}"
        if (self.combine == DISTILLATION) != (self.sed is not None):
            yield f"{DISTILLATION}: needed with combine={DISTILLATION} and only then"
        if self.student == "static" and (not self.teachers or self.sed is None or self.backbone_layers is not None):
            yield "student=static: it is of distillation by named models, and has no layers; leave backbone_layers out"
        if self.student == "static" and getattr(self.sed and self.sed.settings, "target", None) == "gaussian":
            yield "student=static: a table of tokens has no variance, which sed.target=gaussian needs; take student=encoder"
        if self.keep_index and (len(self.teachers) != 1 or self.sed is None or self.post):
            yield "keep_index: it is of a student that one named model teaches, and that nothing is fitted on"
        for stage, recipe in self.post.items():
            if not recipe.spec.head:
                yield f"recipes.{stage}: {recipe.objective} is no stage of a finished model, and comes before {DISTILLATION}"
        if len(self.post) > 1:
            yield f"recipes: {', '.join(self.post)}: one of them at most is fitted on the student"

    @property
    def _place(self) -> int:
        """Return the number of stages before the distillation."""
        return [*self.recipes, DISTILLATION].index(DISTILLATION)

    @property
    def stages(self) -> dict[str, Recipe]:
        """Return the recipes of the members, in order."""
        return dict([*self.recipes.items()][: self._place])

    @property
    def sed(self) -> Recipe | None:
        return self.recipes.get(DISTILLATION)

    @property
    def post(self) -> dict[str, Recipe]:
        """Return what is fitted on the student."""
        return dict([*self.recipes.items()][self._place + 1 :])

    def stages_of(self, member: int) -> dict[str, Recipe]:
        """Return the recipes that a member is trained by, in order."""
        stages = self.stages
        if not self.routes:
            return stages
        return {stage: stages[stage] for stage in self.routes[member % len(self.routes)]}

    @property
    def delivered_layers(self) -> Layers:
        """Return the layers that the delivered model pools, by default those of its training."""
        if self.sed is not None and not self.post:
            layers = self.sed.layers  # to which a head of the student belongs
            return layers if self.sed.has_head else self.student_pooling or layers
        trained = list((self.post or self.stages).values())
        return trained[-1].layers if trained else self.evaluation.layers[0]

    @property
    def compared_layers(self) -> Layers:
        return self.delivered_layers if self.evaluation.compare is None else self.evaluation.compare

    @property
    def measured_layers(self) -> tuple[Layers, ...]:
        return tuple(dict.fromkeys([*self.evaluation.layers, self.delivered_layers]))

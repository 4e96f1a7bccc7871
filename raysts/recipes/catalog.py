"""Describe each objective without torch: settings, data, names. ``objectives.yaml`` has the recipes."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Field

from raysts.errors import nearest
from raysts.ops.ensemble import Target
from raysts.recipes.tree import Tree, read_data

# -- settings ------------------------------------------------------------------------------------------------------------

BANK_TEXTS = 20_000
"""Texts of a bank at most: a step scores each of its texts against all of them."""

BANK_TEMPERATURE = 0.45
"""Default of ``bank_temperature``, by benchmarks/RESULTS.md; it is 0.05 for all-MiniLM-L6-v2 on paragraphs."""

MOST_WIDE = 10_000
"""Limit of the dimensions and layers of a head: a larger head fills the memory before training starts."""


# fmt: off

class Settings(Tree):
    """Settings of every objective."""

    matryoshka: tuple[int, ...] = Field((), description="numbers of first dimensions that also form sentence vectors: the "
        "loss is the mean over these widths and the whole vectors")
    grad_cache: int | None = Field(None, ge=1, description="examples that are embedded at once (GradCache, Gao et al. 2021): "
        "memory grows with them and not with the batch, for a third more work; none: all")


class MLMSettings(Settings):
    """Settings of ``mlm``."""

    rate: float = Field(0.15, gt=0, lt=1, description="part of a text's tokens that is predicted; at least one token")


class NLISettings(Settings):
    """Settings of ``nli``."""

    bias: bool = Field(True, description="the classifier has a bias (the one of BERT-flow has none)")


class ContrastiveTensionSettings(Settings):
    """Settings of ``ct``."""

    reduction: Literal["mean", "sum"] = Field("mean", description="of the pairs' losses over the global batch: mean "
        "(official code) or sum (sentence-transformers)")
    negatives: Literal["fresh", "anchored"] = Field("fresh", description="fresh: a non-identical pair has two sentences of "
        "its own (official code); anchored: the first sentence of all its group's pairs is the same (sentence-transformers)")


class STSRegressionSettings(Settings):
    """Settings of ``sts``."""

    lower_bound: float = Field(0.0, ge=0, lt=1, description="target cosine of a pair of score 0; a pair of score 5 has "
        "target 1")


class ContrastiveSettings(Settings):
    """Settings of every contrastive objective."""

    temperature: float = Field(0.05, gt=0, description="divides the similarities")
    false_negatives: Literal["kept", "masked"] = Field("kept", description="texts of the global batch that are the anchor's "
        "own text or a positive of that text: negatives (the papers), or masked in the anchor's loss")


class SimCSESettings(ContrastiveSettings):
    """Settings of ``simcse-sup`` and ``simcse-unsup``."""

    head: Literal["tanh", "none"] = Field("tanh", description="a dense layer with tanh after the pooling (the paper), or "
        "none")


GaussLoss = Literal["ent", "ent+con", "ent+rev", "ent+con+rev"]
GAUSS_LOSSES: tuple[GaussLoss, ...] = get_args(GaussLoss)
"""Losses of GaussCSE by the sets in the denominator: entailment, contradiction, reversed (the paper's tables write ``swap``)."""


class GaussCSESettings(ContrastiveSettings):
    """Settings of ``gausscse``."""

    loss: GaussLoss = Field("ent+con", description="the sets in the denominator: entailment, contradiction, reversed")
    similarity: Literal["per_dimension", "paper"] = Field("per_dimension", description="per_dimension: the mean of 1 / (1 + "
        "KL_d) (official code); paper: 1 / (1 + sum KL_d)")
    activation: Literal["tanh", "identity"] = Field("tanh", description="of mu: tanh (official code) or identity (the paper)")


TargetLoss = Literal["mse", "cosine", "similarity", "infonce", "nll", "kl"]
AGREEMENT, BY_DEV = "agreement", "dev"


def _weights(value: Any) -> Any:
    if value in (None, AGREEMENT, BY_DEV):
        return value
    items = value if isinstance(value, (list, tuple)) else [value]
    if not items or not all(type(item) in (int, float) and 0 < item < math.inf for item in items):
        raise ValueError(f"must be one number above 0 for each teacher, as in [2, 1], or {AGREEMENT}, {BY_DEV}, or none")
    return tuple(map(float, items))


def _loss(value: Any) -> Any:
    names = get_args(TargetLoss)
    weights = value if isinstance(value, Mapping) else {value: 1.0}
    if value is None or (weights and all(name in names and type(w) in (int, float) and w > 0 for name, w in weights.items())):
        return {name: float(weight) for name, weight in weights.items()} if isinstance(value, Mapping) else value
    raise ValueError(
        f"must be one of {', '.join(names)}{nearest(str(value), names)}, or several with their weights above 0, as in "
        "{cosine: 1, similarity: 0.5}"
    )


class DistillationSettings(Settings):
    """Settings of ``sed``."""

    projection: int | None = Field(None, ge=1, description="dimensions of a linear layer behind the student's pooling. With "
        "target mean or unit-mean: the teachers' width, if the student has another one; the student keeps the layer. With "
        "concat: the sum of the teachers' widths; the layer is dropped after training. None: concat is reduced to the "
        "student's width")
    target: Target = Field("mean", description="how the teachers are combined: the mean of their vectors, for members of one "
        "start (the papers); unit-mean, of vectors of unit length, for teachers of one width and space; concat, for any "
        "teachers: vectors of unit length one after the other; similarity, for any: the cosines of a batch; gaussian, for one "
        "GaussCSE teacher: its mean and its variance, learnt by a student that has both (of the teacher's width by projection)")
    loss: Annotated[TargetLoss | dict[TargetLoss, float] | None, BeforeValidator(_loss)] = Field(None, description="mse of "
        "the vectors (the papers); cosine, of their directions; similarity, of the cosines within a batch; infonce, which "
        "tells the text's own target from the others of the batch; nll, the likelihood of the target's direction under a "
        "Gaussian around the student's (Formont et al. 2025); kl, the divergence of the teacher's Gaussian from the student's; "
        "or a sum of several, {cosine: 1, similarity: 0.5}. None: similarity for the target of that name, kl for gaussian, "
        "else mse")
    weights: Annotated[tuple[float, ...] | Literal["agreement", "dev"] | None, BeforeValidator(_weights)] = Field(None,
        description="of the teachers, in their order; or agreement: the mean rank correlation (Spearman) of a teacher's cosines "
        "with those of the other teachers, which needs no labels; or dev: those by which the ensemble is best on the development "
        "set. None: equal weights")
    temperature: float | None = Field(None, gt=0, description="of infonce; none: 0.05")
    bank: float = Field(0.0, ge=0, description="weight of the divergence between the teachers' and the student's scores of "
        "each text against all training texts (of more than 20,000 so many are drawn)")
    bank_temperature: float = Field(BANK_TEMPERATURE, gt=0, description="of these scores, in standard deviations of the "
        "teachers' cosines between these texts")
    axes: Literal["teachers", "student"] = Field("teachers", description="axes of the target's vectors: those of the "
        "teachers or of their reduction; or those of the student, to which the target is turned, for a student with another "
        "start")

    def misfits(self) -> Iterator[str]:
        compares_cosines, projected = self.compares_cosines, self.projection is not None
        if (self.target == "gaussian") != ("kl" in self.terms) or (self.target == "gaussian" and len(self.terms) > 1):
            yield f"loss={self.loss}: kl is the loss of target=gaussian, which has no other; leave loss out"
        if self.target == "gaussian" and (self.bank or self.matryoshka or self.axes == "student"):
            yield "target=gaussian: takes no bank, matryoshka or axes=student; leave them out"
        if self.target == "similarity" and not compares_cosines:
            yield (
                f"loss={self.loss}: target=similarity is the cosines of a batch, and no vectors that could be matched; take "
                f"loss=similarity, or target=concat"
            )
        if compares_cosines and projected:
            yield (
                f"projection={self.projection}: loss=similarity compares cosines, which need no common width; leave it out"
            )
        if self.axes == "student" and (compares_cosines or projected):
            yield (
                "axes=student: loss=similarity compares cosines, and a projection finds its own axes; leave one of them out"
            )
        if self.bank and compares_cosines:
            yield f"bank={self.bank}: loss=similarity leaves the student a space of its own, and scores need one; leave it out"
        if self.temperature is not None and "infonce" not in self.terms:
            yield f"temperature={self.temperature} is of loss=infonce alone; leave it out"
        if self.bank_temperature != BANK_TEMPERATURE and not self.bank:
            yield f"bank_temperature={self.bank_temperature} is of a bank; set bank, or leave it out"

    @property
    def terms(self) -> dict[TargetLoss, float]:
        """The losses that are summed, with their weights."""
        if isinstance(self.loss, dict):
            return self.loss
        default: dict[Target, TargetLoss] = {"similarity": "similarity", "gaussian": "kl"}
        return {self.loss or default.get(self.target, "mse"): 1.0}

    @property
    def compares_cosines(self) -> bool:
        """Return True if no vectors are matched, but the cosines of a batch alone."""
        return self.terms.keys() == {"similarity"}

    @property
    def is_reduced(self) -> bool:
        return self.target == "concat" and not self.compares_cosines and self.projection is None

    @property
    def learns_map(self) -> bool:
        """Return True if the student learns a linear map of the combined vectors."""
        return self.is_reduced or self.axes == "student"

    @property
    def keeps_projection(self) -> bool:
        return self.projection is not None and self.target != "concat"


class FlowSettings(Settings):
    """Settings of ``flow``."""

    levels: int = Field(2, ge=1, le=MOST_WIDE, description="each halves the dimensions: 2 (BERT-flow's Table 7) or 3 (its "
        "code)")
    depth: int = Field(3, ge=1, le=MOST_WIDE, description="steps of a level")
    width: int = Field(32, ge=1, le=MOST_WIDE, description="hidden units of the coupling networks")


class WhitenSettings(Settings):
    """Settings of ``whiten``."""

    dimensions: int | None = Field(None, ge=1, description="keep this many, those of largest variance; none: all")


class CentreSettings(Settings):
    """Settings of ``centre``: none."""

    dimensions: ClassVar[None] = None


class AutoencoderSettings(Settings):
    """Settings of ``latte-ae``."""

    dims: int = Field(64, ge=1, le=MOST_WIDE, description="latent dimensions (latte: variables, or for single the dimensions "
        "of a class's embedding)")
    encoder_layers: int = Field(1, ge=1, le=3, description="linear layers of the encoder")
    hidden: int | None = Field(None, ge=1, le=MOST_WIDE, description="width between the layers of encoder and decoder; none: "
        "that of the token vectors")
    reconstruction: Literal["sum", "mean"] = Field("sum", description="squared error, sum or mean over a token vector's "
        "dimensions")
    inputs: Literal["raw", "standardised"] = Field("raw", description="token vectors as they are (raw), or each dimension "
        "with mean 0 and variance 1 over the tokens so far, so that few dimensions of large variance do not fill the code; "
        "the kept model has this map in its first layer")
    variance: float | None = Field(0.5, gt=0, description="of the decoder's Gaussian: the error is divided by twice the "
        "variance; none: learnt, one for all dimensions")


class NormalVAESettings(AutoencoderSettings):
    """Settings of ``latte-normal``."""

    free_bits: float = Field(0.3, ge=0, description="divergence from the prior, in nats, below which the loss does not fall "
        "further")
    free_bits_of: Literal["total", "per_latent"] = Field("total", description="the divergence that this limits: a token's "
        "(total), or that of each latent variable (per_latent)")
    beta_warmup_fraction: float = Field(0.1, ge=0, le=1, description="part of the run over which the weight of the "
        "divergence grows linearly from 0 to beta")
    beta: float = Field(1.0, ge=0, description="weight of the divergence after that")


class LatteMixSettings(NormalVAESettings):
    """Settings of ``latte``."""

    layout: Literal["factorised", "single"] = Field("factorised", description="factorised: dims variables of so many classes "
        "each; single: one variable, whose (nearly) one-hot sample is embedded in dims dimensions before the decoder")
    classes: int = Field(100, ge=2, description="classes of a variable; in a search, more than the memory holds are "
        "infeasible")
    tau: float = Field(0.3, gt=0, description="temperature of the Gumbel-softmax")
    tau_test: float | None = Field(None, gt=0, description="temperature of the probabilities that represent a text; none: "
        "tau")


# fmt: on
# -- specs ---------------------------------------------------------------------------------------------------------------

Names = tuple[str, ...]
Overrides = Mapping[str, Any]
"""Values by dotted path, as in ``--set``."""

Group = tuple[tuple[int, ...], ...]
"""Examples that share rows: for each example, its rows among the consecutive rows of the group."""

EACH: Group = ((0,),)
"""Each row is an example."""
FRESH: Group = tuple((k, k + 7) if k else (0,) for k in range(8))
"""Contrastive Tension: one identical pair and seven non-identical pairs of 15 sentences."""
ANCHORED: Group = tuple((0, k) if k else (0,) for k in range(8))
"""The same of 8 sentences: the identical pair's is the first sentence of every other pair."""


def _single_example_problem(of_one: str) -> Callable[[int], str | None]:
    return lambda batch: None if batch > 1 else f"must be at least 2: {of_one}"


def _width_problem(settings: Settings, dim: int) -> str | None:
    if max(settings.matryoshka, default=0) <= dim:
        return None
    return f"matryoshka={list(settings.matryoshka)}: the vectors have {dim} dimensions"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveSpec:
    """The description of one objective."""

    settings: type[Settings]
    table: str  # the canonical table that it trains on by default
    texts: Names  # its text columns
    values: Names = ()  # its other columns (``label``, ``score``, ``teacher``)
    sentences: int = 1  # sentences that an example sends through an encoder
    vectors: bool = True  # the loss is one of sentence vectors (``objectives.objective.VectorObjective``)
    # It trains a head on a finished, frozen model: on the output of its heads (``pooled``) or on its token vectors
    # (``tokens``). It is the last word of a system's name.
    head: Literal["", "pooled", "tokens"] = ""
    # The rows of a batch that form an example, or a function of the settings that returns them.
    group: Group | Callable[[Any], Group] = EACH
    keeps: Names = ("last", "best")  # allowed values of ``train.keep``; the first is the default
    keeps_by_dev: Names = ("best",)  # those of ``keeps`` that the score on ``dev`` chooses
    dev: str = "sts/stsb_dev"  # table that selects checkpoints (``evaluation.dev``)
    version: int = 1  # part of the run id; raise it when the mathematics changes
    members: int = 1  # members of a system that combines none: the number of runs over which its paper averages
    # Its words in a system's name: the end of the word, and the settings that it stands for.
    suffixes: Mapping[str, Overrides] = field(default_factory=lambda: {"": {}})
    default: Overrides = field(default_factory=dict)  # its default recipe, as changes of a plain ``Recipe``
    scales: Mapping[str, Overrides] = field(default_factory=dict)  # overrides of its recipe (``names.SCALES``)
    pipeline_scales: Mapping[str, Overrides] = field(default_factory=dict)  # of the pipeline, where it has the option
    # Reasons, or None, why the settings do not fit a model of so many dimensions, which rule a batch size breaks, and why the
    # first dimensions cannot have a separate loss.
    settings_problem: Callable[[Any, int], str | None] = _width_problem
    batch_problem: Callable[[int], str | None] = lambda _: None
    matryoshka_problem: Callable[[Any], str | None] = lambda _: None
    has_head: Callable[[Any], bool] = lambda _: False  # the encoder gets a new head, which begins with random weights

    def group_of(self, settings: Settings) -> Group:
        """Return the rows of a batch that form an example."""
        return self.group(settings) if callable(self.group) else self.group


def _tension_batch_problem(batch: int) -> str | None:
    pairs = len(FRESH)
    return None if batch % pairs == 0 else f"must be a multiple of {pairs} (1 identical and 7 non-identical pairs)"


def _distillation_matryoshka_problem(settings: DistillationSettings) -> str | None:
    if settings.projection is None or settings.keeps_projection:
        return None
    return "the projection reads all dimensions and is dropped after training; leave projection out"


def _flow_settings_problem(settings: FlowSettings, dim: int) -> str | None:
    if dim % 2**settings.levels == 0:
        return None
    return f"levels={settings.levels}: every level halves the dimensions, so 2^levels must divide {dim}; take fewer"


def _whiten_settings_problem(settings: WhitenSettings | CentreSettings, dim: int) -> str | None:
    count = settings.dimensions or dim
    return f"dimensions={count} must be at most those of the model, {dim}" if count > dim else None


_RECIPES = read_data(__file__, "objectives.yaml")
_DROPPED_HEAD = "head=tanh reads all dimensions and is dropped after training; set head=none"


def _spec(name: str, settings: type[Settings], table: str, *texts: str, **fields: Any) -> ObjectiveSpec:
    return ObjectiveSpec(settings=settings, table=table, texts=texts or ("sentence",), **fields, **_RECIPES[name])


_WHITEN = _spec(  # one pass, without a parameter that an optimiser moves
    "whiten", WhitenSettings, "targets", vectors=False, head="pooled", keeps=("last",),
    settings_problem=_whiten_settings_problem,
)  # fmt: skip
_LATTE = _spec("latte", LatteMixSettings, "nli/sentences", vectors=False, head="tokens", members=3)
_BEST_FIRST = {"keeps": ("best", "last")}

CATALOG: dict[str, ObjectiveSpec] = {
    "mlm": _spec("mlm", MLMSettings, "wikipedia/sentences", vectors=False),
    "nli": _spec("nli", NLISettings, "nli/train", "premise", "hypothesis", values=("label",), sentences=2),
    "ct": _spec(  # two encoders: "second" is encoder 2 of the last step, "dev" the best of both over all evaluations
        "ct", ContrastiveTensionSettings, "wikipedia/sentences", sentences=2,
        group=lambda settings: {"fresh": FRESH, "anchored": ANCHORED}[settings.negatives],
        keeps=("second", "dev"), keeps_by_dev=("dev",), batch_problem=_tension_batch_problem,
    ),
    "sts": _spec(
        "sts", STSRegressionSettings, "sts/stsb_train", "sentence1", "sentence2", values=("score",), sentences=2, **_BEST_FIRST
    ),
    "simcse-sup": _spec(
        "simcse-sup", SimCSESettings, "nli/triplets", "anchor", "positive", "negative", sentences=3, **_BEST_FIRST,
        has_head=lambda settings: settings.head == "tanh",
    ),
    "simcse-unsup": _spec(
        "simcse-unsup", SimCSESettings, "wikipedia/sentences", sentences=2, **_BEST_FIRST,
        batch_problem=_single_example_problem("a sentence's negatives are the others of its batch"),
        matryoshka_problem=lambda settings: _DROPPED_HEAD if settings.head == "tanh" else None,
    ),
    "gausscse": _spec(
        "gausscse", GaussCSESettings, "nli/triplets", "anchor", "positive", "negative", sentences=3, **_BEST_FIRST,
        dev="nli/snli_dev", members=5, suffixes={f"-{loss}": {"loss": loss} for loss in GAUSS_LOSSES},
        has_head=lambda _: True,
        matryoshka_problem=lambda _: "its similarity is of Gaussians in all their dimensions; leave it out",
    ),
    "sed": _spec(
        "sed", DistillationSettings, "wikipedia/sentences", values=("teacher",),
        settings_problem=lambda settings, dim: _width_problem(settings, settings.projection or dim),
        matryoshka_problem=_distillation_matryoshka_problem,
        has_head=lambda settings: settings.keeps_projection or settings.target == "gaussian",
    ),
    "flow": _spec(
        "flow", FlowSettings, "targets", vectors=False, head="pooled", settings_problem=_flow_settings_problem,
        batch_problem=_single_example_problem("the first batch gives every dimension its variance"),
    ),
    "whiten": _WHITEN,
    "centre": replace(_WHITEN, settings=CentreSettings),
    "latte": _LATTE,
    "latte-ae": replace(_LATTE, settings=AutoencoderSettings),
    "latte-normal": replace(_LATTE, settings=NormalVAESettings),
}  # fmt: skip
"""The objectives by name."""


WITHIN: Overrides = {
    "settings.bank": 0.1, "optim.name": "adamw", "optim.lr": 5e-4, "optim.weight_decay": 0.01, "train.dropout": False,
    "train.min_steps": 500,
}  # fmt: skip
"""Defaults of a student that starts from a teacher, or some of its layers, near its axes (benchmarks/RESULTS.md)."""

Start = Literal["all", "some", "sentences"]
"""All layers of a teacher, some of them, some for a student that reads sentences."""

BY_START: dict[Start, Overrides] = {"all": {"train.min_steps": 2_000}, "some": {}, "sentences": {"batch": 64}}
"""Changes of these defaults: 2,000 steps are four passes of 3,300 documents."""

STATIC: Overrides = {
    "settings.loss": "cosine", "optim.name": "adam", "optim.lr": 3e-3, "optim.schedule": "linear", "batch": 256,
    "train.dropout": False, "train.epochs": 24.0,
}  # fmt: skip
"""Defaults of a static student. It reads whole texts, of which its units are the better ones (benchmarks/RESULTS.md)."""


def text_defaults(documents: bool) -> Overrides:
    """Return what changes in the default recipe of ``sed`` if it reads a user's text: all of it, whole.

    Of documents it reads short pieces too, since they are found by short queries.
    """
    return {"data.sample": None, "train.max_length": "auto", **({"data.spans": 4} if documents else {})}


def student_defaults(settings: DistillationSettings, elsewhere: bool, within: Start | None = None) -> Overrides:
    """Return what changes in the default recipe of ``sed`` if existing models teach.

    Vectors of teachers with another starting model than the student's have nothing to do with its own, other than those of
    members. The student then learns directions, at a larger rate, on its own axes. It keeps the teachers' axes if a projection
    finds its own, or if the first dimensions of a reduced target are to hold most of it.

    ``elsewhere``: the student starts from another encoder than its teachers did. ``within``: it starts from layers of a
    teacher, so that it is near its axes, and learns at a larger rate.
    """
    if settings.target == "gaussian":
        return {"optim.lr": 3e-4, "optim.schedule": "linear"}
    if settings.compares_cosines:
        return {"optim.lr": 1e-4}
    if not elsewhere:
        return {}
    turned = settings.projection is None and not settings.matryoshka and not (within and settings.target == "mean")
    axes = {"settings.axes": "student"} if turned else {}
    if settings.loss in ("mse", "infonce"):
        return axes
    defaults = {"settings.loss": settings.loss or "cosine", "optim.lr": 3e-4, "optim.schedule": "linear", **axes}
    return {**defaults, **WITHIN, **BY_START[within]} if within else defaults

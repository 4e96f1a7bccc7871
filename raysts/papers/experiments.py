"""The papers' ablations and stability studies: pipelines that fill a table together.

Points share their training by content: within an experiment, between experiments, and with named systems.
"""

from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, Literal, NamedTuple, TypeGuard

from raysts.errors import InputError
from raysts.recipes.grammar import POST
from raysts.recipes.names import LATTE_VARIED, Entry, at_scale, papers_pooling, pipeline
from raysts.recipes.overrides import apply_overrides, has_option
from raysts.recipes.recipe import Pipeline


class Point(NamedTuple):
    """One pipeline of an experiment: a system and its settings.

    Attributes:
        label: its name; empty: the system and its settings.
        on: the backbones that it is made of.
        searched: True if it takes the result of the experiment's search.
        alone: True for one model, because nothing in it is random, whatever number of members is asked for.
    """

    system: str
    settings: dict[str, Any] = {}  # noqa: RUF012
    label: str = ""
    on: Literal["encoders", "words", "any"] = "encoders"
    searched: bool = False
    alone: bool = False

    @property
    def name(self) -> str:
        """Return the label, else the system with its settings: ``latte.tau=0.03``."""
        if self.label:
            return self.label
        varied = [key for key in self.settings if not key.startswith("evaluation.")]
        return ".".join([self.system, *(f"{key.rpartition('.')[2]}={self.settings[key]}" for key in varied)])


class Experiment(NamedTuple):
    """A set of pipelines.

    Attributes:
        paper: the name for ``raysts report --paper``; None: an experiment about claims.
        points: the pipelines for a backbone with this number of layers.
        usual: further settings of every point that can take them, members and students for one; overrides and scales
            may
            replace them.
        backbones: those of the paper's tables, the default at the scale ``paper``; None: that of the systems.
        claims: the paper with the claims for which it is run; its report shows their verdicts.
        search: a search on every backbone before its points are run, with the settings ``usual``.
    """

    entry: Entry
    paper: str | None
    tables: tuple[int, ...]
    points: Callable[[int], list[Point]]
    usual: Mapping[str, Any] = {}
    backbones: tuple[str, ...] = ()
    search: str | None = None
    claims: str | None = None


BERT, BERT_LARGE = "bert-base-uncased", "bert-large-uncased"
GLOVE, SKIP_GRAM = "glove.840B.300d.txt", "GoogleNews-vectors-negative300.txt"
"""Files of word vectors under the names that they are distributed with; ``--set backbone=PATH`` where they lie elsewhere."""

DEPTHS = {
    "distilbert-base-uncased": 6, BERT: 12, "roberta-base": 12, BERT_LARGE: 24, "roberta-large": 24, GLOVE: 0, SKIP_GRAM: 0,
}  # fmt: skip
"""Layers of the papers' backbones."""


def _main(depth: int) -> list[Point]:
    """Return every row of the tables for BERT-large, with the teachers of its students."""
    starred = {"flow.layers": "first_last", **_measured_at("first_last")}
    plain = (
        "flow",
        "ct-flow",
        "ct-sed",
        "ct-sed-flow",
        "nli",
        "nli-flow",
        "nli-ct-flow",
        "nli-ct-sed",
        "nli-ct-sed-flow",
    )
    return [
        *(Point(system) for system in plain),
        *(Point(system, starred, f"{system}.first_last") for system in ("flow", "nli-flow")),
        Point("raw", on="words"),
    ]


def _supervised(depth: int) -> list[Point]:
    """Return ensemble, student and flows at the lower bound found, or members at one layer."""
    plain = {"sts.settings.lower_bound": 0.0, "sts.layers": 1, **_measured_at(1)}
    return [
        Point("sts", plain, "sts.one-layer"),
        *(Point(system, searched=True) for system in ("sts-flow", "sts-sed", "sts-sed-flow")),
        *(Point(system) for system in ("ct-sed-flow", "nli-ct-sed-flow")),
    ]


def _sizes(depth: int) -> list[Point]:
    return [Point(members + rest) for members in ("ct", "nli-ct") for rest in ("-flow", "-sed", "-sed-flow")]


def _gausscse(depth: int) -> list[Point]:
    losses = ("ent", "ent+con", "ent+rev", "ent+con+rev")
    return [Point("simcse-sup"), *(Point(f"gausscse-{loss}") for loss in losses)]


def _latte_distances(depth: int) -> list[Point]:
    """Return Latte-Mix by its three distances, on the backbone and on SNLI, with mean pooling."""
    return [Point("latte", on="any"), Point("nli"), Point("nli-latte")]


def _stability(depth: int) -> list[Point]:
    """Return members of CT with flow, their full ensembles, and students of one ensemble."""
    return [Point(system + rest) for system in ("ct", "nli-ct") for rest in ("-sed", "-sed-flow", "-ensemble-flow")]


def _pooling(depth: int) -> list[Point]:
    """Return encoders with 1 to 3 last layers pooled, and a flow fitted on each."""
    counts = tuple(range(1, min(3, depth) + 1))
    every = {"evaluation.layers": list(counts), "evaluation.compare": min(2, depth)}
    plain = [Point(system, every) for system in ("ct-sed", "nli", "nli-ct-sed")]
    fitted = ("flow", "ct-flow", "ct-sed-flow", "nli-flow", "nli-ct-flow", "nli-ct-sed-flow")
    return plain + [
        Point(system, {"flow.layers": count, **_measured_at(count)}) for system in fitted for count in counts
    ]


def _latte_settings(depth: int) -> list[Point]:
    """Return variations of one setting: depth of the encoder, classes, latents, temperature."""
    layers = [Point(f"latte{kind}", {f"latte{kind}.settings.encoder_layers": n}) for kind in ("-ae", "-normal", "")
              for n in (1, 2, 3) if kind or n > 1]  # fmt: skip
    return [
        *layers,
        Point("latte"),
        *(Point("latte", {f"latte.settings.{key}": value}) for key, values in LATTE_VARIED.items() for value in values),
    ]


def _latte_layers(depth: int) -> list[Point]:
    return [
        Point("latte", {"latte.layers": f"only-{layer}", **_measured_at(f"only-{layer}")})
        for layer in range(1, depth + 1)
    ]


OTHER_TEXT = {"data.table": "nli/sentences", "data.sample": 10_000}
"""What is fitted on the sentences of the test sets, fitted on other ones."""


def _fitted(kind: str, alone: bool) -> list[Point]:
    other = {f"{kind}.{key}": value for key, value in OTHER_TEXT.items()}
    return [Point(kind, alone=alone), Point(kind, other, f"{kind}.other-text", alone=alone)]


def _claims_sed(depth: int) -> list[Point]:
    """Return members, flows, students and soups of ``ct``, ``nli-ct`` and ``sts``.

    ``sts`` trains at a bound in the middle.
    """
    bound = {"sts.settings.lower_bound": 0.5}
    return [
        *_fitted("flow", False),
        *_fitted("whiten", True),
        Point("centre", alone=True),
        *(Point(members + rest) for members in ("ct", "nli-ct") for rest in ("-flow", "-sed", "-sed-flow", "-soup")),
        *(Point(system) for system in ("nli", "nli-flow")),
        *(Point(system, bound, system) for system in ("sts-sed", "sts-flow")),
    ]


UNTRAINED = {"train.epochs": 0.02, "optim.lr": 1e-9, "optim.floor": 0.0, "train.keep": "last"}
"""A head as it was drawn: no weight moves by more than 1e-7."""


def _claims_latte(depth: int) -> list[Point]:
    untrained = {f"latte.{key}": value for key, value in UNTRAINED.items()}
    return [
        Point("latte", on="any"),
        Point("latte", untrained, "latte.untrained", "any"),
        Point("latte", {"latte.settings.encoder_layers": 2}, "latte.two-layers", "any"),
        Point("latte", {"latte.settings.tau": 1.0}, "latte.tau-1", "any"),
        *(Point(system, on="any") for system in ("latte-ae", "latte-normal")),
        Point("centre", on="any", alone=True),
        *(Point(system) for system in ("nli", "nli-latte")),
    ]


def _measured_at(layers: int | str) -> dict[str, Any]:
    return {"evaluation.layers": [layers], "evaluation.compare": layers}


def _claimed(title: str, paper: str, cost: str, points: Callable[[int], list[Point]], **students: int) -> Experiment:
    entry = Entry(f"{title}: what 'raysts claims {paper}' runs", "which claims of the paper are seen", cost)
    return Experiment(entry, None, (), points, {"members": 5, **students}, claims=paper)


EXPERIMENTS: dict[str, Experiment] = {
    "sed-main": Experiment(
        Entry(
            "SED Tables 1, 2 and 7: every system on BERT-large, and GloVe averages",
            "77.15 for BERT-L-CT-SED-Flow, 78.32 for BERT-L-NLI-CT-SED-Flow; transfer 83.28 for BERT-L-NLI-CT-SED",
            "10 x ct, 10 x nli-ct, 2 students, a flow on every model",
        ),
        "sed", (1, 2, 7), _main, {"members": 10}, (BERT_LARGE, GLOVE),
    ),
    "sed-supervised": Experiment(
        Entry(
            "SED Table 4: search of the lower bound, then ensemble, student and flows at it; two backbones",
            "86.35 (BERT-L) and 88.50 (RoBERTa-L) on STS-B test; neither student nor flow is above it",
            "per backbone 20 bounds x 10 x sts, 3 students, a flow on every model",
        ),
        "sed", (4,), _supervised, {"members": 10, "sts.layers": 2}, (BERT_LARGE, "roberta-large"), search="lower-bound",
    ),
    "sed-sizes": Experiment(
        Entry(
            "SED Tables 5 and 6: members, flows, students and their flows on three sizes of BERT",
            "74.91, 72.45 and 76.96 for CT-SED of BERT-distil, -base and -large",
            "3 x (10 x ct, 10 x nli-ct, 2 students, a flow on every model)",
        ),
        "sed", (5, 6), _sizes, {"members": 10}, ("distilbert-base-uncased", BERT, BERT_LARGE),
    ),
    "sed-stability": Experiment(
        Entry(
            "SED Table 3: spread over members, over students of one ensemble, full ensembles",
            "std of 10 students 0.20 (members 0.80) for BERT-L-CT-SED, 0.09 (0.32) for BERT-L-NLI-CT-SED",
            "10 x ct, 10 x nli-ct, a flow on each, 10 students of each ensemble with their flows",
        ),
        "sed", (3,), _stability, {"members": 10, "students": 10},
    ),
    "sed-pooling": Experiment(
        Entry(
            "SED Table 8: 1, 2 or 3 pooled last layers, for the systems of Tables 1 and 2",
            "74.76, 75.22, 75.26 for BERT-L-CT; 76.92, 76.96, 76.77 for BERT-L-CT-SED",
            "10 x ct, 10 x nli-ct, 2 students, 3 flows on every model",
        ),
        "sed", (8,), _pooling, {"members": 10},
    ),
    "latte-settings": Experiment(
        Entry(
            "Latte-Mix Tables 2 and 4: encoder layers, classes, latent variables, temperature; the two baselines",
            "56.60 on STS-B test for 1 encoder layer, 45.22 for 2, 41.49 for 3; 47.31 for temperature 1",
            "18 x (SNLI's sentences once, 3 seeds)",
        ),
        "latte-mix", (2, 4), _latte_settings,
    ),
    "latte-layers": Experiment(
        Entry(
            "Latte-Mix Tables 7, 8 (BERT-base), 9 and 10 (BERT-large): every layer alone, mean pooling, Latte-Mix, words",
            "61.47 on STS-B test for layer 1 of BERT-base (mean pooling 58.14), 56.92 for layer 12 (47.29)",
            "every layer x (SNLI's sentences once, 3 seeds)",
        ),
        "latte-mix", (7, 8, 9, 10), _latte_layers, {}, (BERT, BERT_LARGE),
    ),
    "latte-distances": Experiment(
        Entry(
            "Latte-Mix Tables 1, 3, 5, 6: six backbones, as they are and trained on SNLI, by cosine, JS and L2",
            "65.84 for GloVe (mean pooling 61.54) and 56.82 for BERT-base (47.29) on STS-B test",
            "6 x (SNLI's sentences once, 3 seeds), 4 x (SNLI once, then the same, 3 seeds)",
        ),
        "latte-mix", (1, 3, 5, 6), _latte_distances, {"members": 3, "nli.data.sources": ["snli"]},
        (GLOVE, SKIP_GRAM, BERT, BERT_LARGE, "roberta-base", "roberta-large"),
    ),
    "gausscse-main": Experiment(
        Entry(
            "GaussCSE Tables 1 and 2: the four losses and Sup-SimCSE, entailment and its direction",
            "78.33 accuracy on SNLI test for ent+con, 97.09 of its directions for ent+con+rev",
            "4 x 5 seeds of 3 epochs of NLI triplets, one of Sup-SimCSE",
        ),
        "gausscse", (1, 2), _gausscse,
    ),
    "claims-sed": _claimed(
        "SED", "sed", "5 x ct, nli, nli-ct, sts, 5 students of each, a flow on every model", _claims_sed, students=5
    ),
    "claims-gausscse": _claimed("GaussCSE", "gausscse", "5 x 5 x 3 epochs of NLI triplets", _gausscse),
    "claims-latte-mix": _claimed(
        "Latte-Mix", "latte-mix", "5 seeds of 6 x NLI's sentences once, and of nli", _claims_latte
    ),
}  # fmt: skip
"""Every one is a name for ``raysts run``, ``plan`` and ``show``."""

SEARCHED = {("gausscse", 3): "raysts tune gausscse@paper"}
"""Tables that a search fills."""


def commands() -> dict[tuple[str, int], str]:
    """Return the command that fills each table, by paper and table number."""
    runs = {
        (experiment.paper, number): f"raysts run {name}@paper"
        for name, experiment in EXPERIMENTS.items()
        if experiment.paper
        for number in experiment.tables
    }
    return dict(sorted((runs | SEARCHED).items()))


def is_experiment(recipe: object) -> TypeGuard[str]:
    """Return True for the name of an experiment, with or without a scale."""
    return isinstance(recipe, str) and recipe.partition("@")[0] in EXPERIMENTS


def backbones(recipe: str, overrides: Mapping[str, Any]) -> list[str | None]:
    """Return the backbones of an experiment. None means that of its systems."""
    name, _, scale = recipe.partition("@")
    override = overrides.get("backbone")
    return [str(override)] if override else list((scale == "paper" and EXPERIMENTS[name].backbones) or [None])


def prefix(backbone: str | None) -> str:
    """Return the prefix of a backbone's point names, if there are several backbones."""
    return f"{PurePath(backbone).name.replace('.txt', '')}." if backbone else ""


def pipelines(
    recipe: str,
    overrides: Mapping[str, Any],
    depth: Callable[[str], int],
    found: Mapping[str | None, Mapping[str, Any]] | None = None,
) -> dict[str, Pipeline]:
    """Return the pipelines of an experiment by the names of its points.

    Args:
        recipe: name of an experiment, perhaps at a scale (``latte-layers@paper``).
        overrides: as for a system; it applies to the points that have the setting.
        depth: layers of a backbone, 0 of word vectors.
        found: search results as overrides, by backbone (of :func:`backbones`).

    Raises:
        InputError: an override fits no point, or sets a value that the experiment varies.
    """
    names = backbones(recipe, overrides)
    by_name: dict[str, Pipeline] = {}
    for backbone in names:
        choice = {"backbone": backbone} if backbone else {}
        of_one = _on_backbone(recipe, {**overrides, **choice}, depth, (found or {}).get(backbone, {}))
        by_name |= {f"{prefix(backbone) if len(names) > 1 else ''}{name}": one for name, one in of_one.items()}
    return by_name


def _on_backbone(
    recipe: str, overrides: Mapping[str, Any], depth: Callable[[str], int], best: Mapping[str, Any]
) -> dict[str, Pipeline]:
    name, separator, scale = recipe.partition("@")
    experiment = EXPERIMENTS[name]

    def at_point(point: Point) -> Pipeline:
        base = pipeline(point.system)
        if set(base.stages) - set(POST):
            base = apply_overrides(base, {key: n for key, n in experiment.usual.items() if _takes(base, key)})
        base = at_scale(base, recipe, scale) if separator else base
        pooling = papers_pooling(base) if experiment.paper == "sed" else {}
        return apply_overrides(base, {**pooling, **point.settings, **(best if point.searched else {})})

    backbone = overrides.get("backbone", at_point(experiment.points(1)[0]).backbone)
    layers = depth(str(backbone))
    points = [
        point for point in experiment.points(max(1, layers)) if point.on in ("any", "encoders" if layers else "words")
    ]
    if not points:
        raise InputError(f"backbone={backbone}: word vectors, of which '{name}' makes nothing; take an encoder")
    before = [at_point(point) for point in points]
    unknown = {key: value for key, value in overrides.items() if not any(_takes(base, key) for base in before)}
    if unknown:
        apply_overrides(max(before, key=lambda base: len(base.recipes)), unknown)  # says what is wrong with them
    varied = dict.fromkeys(key for point in points for key in point.settings if key in overrides)
    by_point: dict[str, Pipeline] = {}
    problems: list[str] = []
    for point, base in zip(points, before, strict=True):
        settings = {key: value for key, value in overrides.items() if key not in varied and _takes(base, key)}
        settings |= {"members": 1} if point.alone else {}
        try:
            by_point[point.name] = variant = apply_overrides(base, settings)
        except InputError as error:
            problems += error.problems
            continue
        for key, value in point.settings.items():
            if apply_overrides(variant, {key: value}) != variant:  # ``settings.tau`` is ``latte.settings.tau`` too
                varied[key] = None
    problems += [
        f"{key}: is what '{name}' varies, so it cannot be set; a system by its own name can be run with any value"
        for key in varied
    ]
    if problems:
        raise InputError(list(dict.fromkeys(problems)))
    return by_point


def _takes(made: Pipeline, key: str) -> bool:
    return has_option(made, key) and (made.sed is not None or not key.startswith("student"))

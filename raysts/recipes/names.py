"""Pipelines by name: systems of the papers' grammar, ``best``, ``quickstart``, YAML files."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from raysts.errors import InputError, nearest
from raysts.recipes import grammar
from raysts.recipes.overrides import apply_overrides, has_option, load_pipeline
from raysts.recipes.recipe import DEFAULTS, DISTILLATION, Pipeline, Recipe


class Entry(NamedTuple):
    """Line of ``raysts recipes``."""

    source: str
    shows: str
    cost: str


_GAUSSCSE = "3 epochs of NLI triplets, 5 seeds"
_LATTE = "SNLI's sentences once, 3 seeds"

RECIPES: dict[str, Entry] = {
    "quickstart": Entry(
        "the embedded world", "student above the members' mean on the world's STS test", "minutes on 2 CPU cores"
    ),
    "best": Entry(
        "raysts: from an encoder that is good already, a better one of its size",
        "MiniLM: mean of sts12, sts14, sts15, STS-B 78.84 -> 82.61, 82.77, 82.74 (3 seeds) at best@small",
        "9 x NLI pairs, STS-B, or both, + 100,000 sentences",
    ),
    "raw": Entry("SED Table 1, BERT-L", "Spearman 53.56, mean of STS12-16", "evaluation only"),
    "flow": Entry("SED Table 1, BERT-L-Flow", "66.43", "flow: the sentences of the test sets once"),
    "ct": Entry("SED Table 1, BERT-L-CT", "75.49 (mean of members 74.07)", "50,000 steps of 30 sentences a member"),
    "ct-flow": Entry("SED Table 1, BERT-L-CT-Flow", "76.36 (mean of members 74.41)", "ct + flow a member"),
    "ct-ensemble": Entry("SED Table 3, full ensemble", "77.40", "10 x ct"),
    "ct-ensemble-flow": Entry("SED Table 3, full ensemble of BERT-L-CT-Flow", "77.62", "10 x (ct + flow)"),
    "ct-sed": Entry("SED Table 1, BERT-L-CT-SED", "76.96", "10 x ct + 100,000 sentences"),
    "ct-sed-flow": Entry("SED Table 1, BERT-L-CT-SED-Flow", "77.15", "ct-sed + flow"),
    "nli": Entry("SED Table 2, BERT-L-NLI", "74.12", "1M NLI pairs a member"),
    "nli-flow": Entry("SED Table 2, BERT-L-NLI-Flow", "76.60", "nli + flow a member"),
    "nli-ct": Entry("SED Table 2, BERT-L-NLI-CT", "77.96 (mean of members 76.91)", "nli + ct a member"),
    "nli-ct-flow": Entry(
        "SED Table 2, BERT-L-NLI-CT-Flow", "77.77 (mean of members 77.50)", "nli + ct + flow a member"
    ),
    "nli-ct-ensemble": Entry("SED Table 3, full ensemble", "78.06", "10 x (nli + ct)"),
    "nli-ct-ensemble-flow": Entry(
        "SED Table 3, full ensemble of BERT-L-NLI-CT-Flow", "77.91", "10 x (nli + ct + flow)"
    ),
    "nli-ct-sed": Entry("SED Table 2, BERT-L-NLI-CT-SED", "77.91", "10 x (nli + ct) + 100,000 sentences"),
    "nli-ct-sed-flow": Entry("SED Table 2, BERT-L-NLI-CT-SED-Flow", "78.32", "nli-ct-sed + flow"),
    "sts": Entry("SED Table 4, BERT-L", "86.35 on STS-B test", "4 epochs of STS-B train a member"),
    "sts-flow": Entry("SED Table 4, BERT-L-Flow", "83.32 on STS-B test", "sts + flow a member"),
    "sts-sed": Entry("SED Table 4, BERT-L-SED", "85.80 on STS-B test", "10 x sts + 100,000 sentences"),
    "sts-sed-flow": Entry("SED Table 4, BERT-L-SED-Flow", "82.30 on STS-B test", "sts-sed + flow"),
    "simcse-sup": Entry(
        "GaussCSE Table 1, Sup-SimCSE", "@paper: 74.96 accuracy, 66.76 PR-AUC on SNLI test", "3 epochs of NLI pairs"
    ),
    "simcse-unsup": Entry(
        "SimCSE (Gao et al. 2021), Table 5, BERT-base", "@paper: 76.25, mean of 7 sets", "1M sentences, twice"
    ),
    "gausscse-ent": Entry(
        "GaussCSE Tables 1 and 2, ent", "72.50 accuracy on SNLI test, 81.65 of its directions", _GAUSSCSE
    ),
    "gausscse-ent+con": Entry(
        "GaussCSE Tables 1 and 2, ent+con", "78.33 accuracy on SNLI test, 61.56 of its directions", _GAUSSCSE
    ),
    "gausscse-ent+rev": Entry(
        "GaussCSE Tables 1 and 2, ent+swap", "70.64 accuracy on SNLI test, 97.01 of its directions", _GAUSSCSE
    ),
    "gausscse-ent+con+rev": Entry(
        "GaussCSE Tables 1 and 2, ent+con+swap", "77.51 accuracy on SNLI test, 97.09 of its directions", _GAUSSCSE
    ),
    "latte": Entry("Latte-Mix Table 1, BERT-Base + Latte-Mix", "56.82 on STS-B test, 61.26 on SICK-R", _LATTE),
    "latte-ae": Entry("Latte-Mix Table 2, AE (1-layer)", "37.18 on STS-B test, 53.90 on SICK-R", _LATTE),
    "latte-normal": Entry("Latte-Mix Table 2, Normal-VAE (1-layer)", "50.84 on STS-B test, 55.91 on SICK-R", _LATTE),
    "nli-latte": Entry(
        "Latte-Mix Table 3, SBERT-Base + Latte-Mix + JS", "79.62 on STS-B test, 74.38 on SICK-R", f"nli + {_LATTE}"
    ),
}
"""The papers' rows that have a name here; every other sensible combination of stages runs too."""

SCALES: dict[str, dict[str, Any]] = {
    "paper": {"backbone": "bert-large-uncased"}, "paper-text": {}, "small": {"members": 4}
}  # fmt: skip
"""What a scale changes in a pipeline, beside what each objective says of its own recipe (``ObjectiveSpec.scales``) and of the
pipeline (``pipeline_scales``: another paper's backbone).

``paper`` is that of the papers' tables (SED 5.1 and B; labels choose CT's checkpoint, as in its official code), ``paper-text``
the same as the papers' texts have it where the official code differs, ``small``
ends in an hour or so on a few CPU cores with a small encoder; of members and students it has at most so many.
"""


def pipeline(name: str, overrides: Mapping[str, Any] | None = None) -> Pipeline:
    """Return the pipeline of a name with overrides applied.

    Args:
        name: a system name, perhaps at a scale (``nli-ct-sed@small``), ``quickstart``, or a YAML file.
        overrides: ``{"nli.batch": 32, ...}``. They come after those of the scale.

    Raises:
        InputError: an unknown or senseless name, with the reason; unknown or wrong overrides.
    """
    system, separator, scale = name.partition("@")
    if name.endswith((".yaml", ".yml")):
        base = load_pipeline(Path(name))
    elif preset := PRESETS.get(system):
        base = preset.make()
        if separator and scale in SCALES and scale not in preset.scales:
            choices = f"'{system}'" + "".join(f" or '{system}@{scale}'" for scale in preset.scales)
            raise InputError(f"recipe '{name}': '{system}' belongs to no paper and has its own sizes; take {choices}")
        base = apply_overrides(apply_scale(base, name, scale), preset.scales[scale]) if separator else base
    else:
        base = apply_scale(_compose(system), name, scale) if separator else _compose(system)
    return apply_overrides(base, overrides) if overrides else base


def pipeline_of(recipe: str | Pipeline, overrides: Mapping[str, Any] | None) -> Pipeline:
    """Return the pipeline that a recipe names, or is, with overrides applied.

    Raises:
        InputError: as :func:`pipeline`; it is neither a name nor a pipeline.
    """
    if isinstance(recipe, str | Path):
        return pipeline(str(recipe), overrides)
    if not isinstance(recipe, Pipeline):
        raise InputError(
            f"recipe {recipe!r:.40}: must be the name of a system, a YAML file or a Pipeline; 'raysts recipes' lists names"
        )
    return apply_overrides(recipe, overrides) if overrides else recipe


def apply_scale(base: Pipeline, name: str, scale: str) -> Pipeline:
    """Return a pipeline at a scale. ``name`` is the user's."""
    if scale not in SCALES:
        raise InputError(
            f"recipe '{name}': '{scale}' is not a scale{nearest(scale, SCALES)}; scales are {', '.join(SCALES)}"
        )
    base = apply_scale(base, name, "paper") if scale == "paper-text" else base
    changes = {key: value for key, value in SCALES[scale].items() if key != "members"}
    for stage, recipe in base.recipes.items():
        changes |= {f"{stage}.{key}": value for key, value in recipe.spec.scales.get(scale, {}).items()}
    most = SCALES[scale].get("members", base.members)
    changes |= {"members": min(base.members, most), "students": min(base.students, most)}
    for recipe in base.recipes.values():
        pipeline_changes = recipe.spec.pipeline_scales.get(scale, {})
        changes |= {key: value for key, value in pipeline_changes.items() if has_option(base, key)}
    scaled = _pool_as_trained(apply_overrides(base, changes))
    return apply_overrides(scaled, papers_pooling(scaled)) if scale == "paper" else scaled


def _pool_as_trained(base: Pipeline) -> Pipeline:
    """Return a pipeline in which fitted heads read embeddings with the pooling of their model's training."""
    changes: dict[str, Any] = {}
    before: Recipe | None = None
    for stage, recipe in base.recipes.items():
        if recipe.spec.head == "pooled" and before is not None:
            changes |= {f"{stage}.layers": before.layers, f"{stage}.pooling": before.pooling}
        before = before if recipe.spec.head else recipe
    return apply_overrides(base, changes)


def papers_pooling(base: Pipeline) -> dict[str, Any]:
    """Return the overrides by which a pipeline pools as in SED's tables.

    Tuned models are trained on the last layer. They are measured, delivered and fitted with two, a bare backbone with one.
    """
    recipes = {**base.stages, **base.post}
    tuned = [recipe for recipe in base.stages.values() if not recipe.spec.head]
    reads_tokens = any(recipe.spec.head == "tokens" for recipe in recipes.values())
    if not tuned or any(recipe.pooling != "mean" for recipe in tuned) or reads_tokens:
        return {}
    fitted = {f"{stage}.layers": 2 for stage, recipe in recipes.items() if recipe.spec.head}
    return {"evaluation.compare": 2, **fitted, **({"student_pooling": 2} if base.sed else {})}


def _compose(name: str) -> Pipeline:
    if name == "raw":
        return Pipeline(name=name, members=1)
    parsed = grammar.parse(name, tuple(RECIPES))
    members = {grammar.STAGES[word].objective: grammar.STAGES[word] for word in parsed.stages}
    post = {parsed.post: grammar.POST[parsed.post]} if parsed.post else {}
    student: dict[str, Recipe] = {}
    if parsed.combine == DISTILLATION:
        sed = DEFAULTS[DISTILLATION]
        if any("score" in recipe.spec.values for recipe in members.values()):
            # The members saw labels, and so may what chooses the student.
            sed = sed.replace(train=sed.train.replace(keep="best", patience=5, eval_first=True))
        student = {DISTILLATION: sed, **post}
    else:
        members |= post  # on every member
    if parsed.combine == grammar.BOOM:
        members = {stage: recipe.replace(data=recipe.data.replace(bootstrap=True)) for stage, recipe in members.items()}
    count = max((recipe.spec.members for recipe in members.values()), default=1)
    return _pool_as_trained(
        Pipeline(
            name=name,
            members=10 if parsed.combine else count,
            recipes={**members, **student},
            combine="soup" if parsed.combine == grammar.BOOM else parsed.combine,  # type: ignore[arg-type]
        )
    )


def best() -> Pipeline:
    """Return ``best``: members trained on NLI and STS-B or on STS-B, averages, a student of all.

    What a good encoder can gain lies near it: few steps, large batches, small rates. Whether an average or the student is
    above the best member is not known beforehand. The pipeline delivers what scores best on dev.
    """
    base = _compose("simcse-sup-sts-sed")
    changes = {
        "name": "best",
        "members": 9,
        "routes": [["simcse-sup", "sts"], ["simcse-sup", "sts"], ["sts"]],
        "deliver": "best",
        "simcse-sup.batch": 256,
        "simcse-sup.optim.lr": 2e-5,
        "simcse-sup.optim.warmup": 0.1,
        "simcse-sup.train.epochs": 1.0,
        "simcse-sup.train.eval_every": 25,
        "sts.batch": 32,
        "sts.train.epochs": 1.0,
        "sts.train.eval_every": 60,
        "sed.data.table": "sentences",
        "sed.optim.lr": 5e-5,
        "sed.batch": 64,
        "student_start": "average",
    }
    return apply_overrides(base, changes)


def quickstart() -> Pipeline:
    """Return ``quickstart``: ``nli-ct-sed`` of four tiny BERTs on the embedded world, in minutes.

    It delivers the best of members, weight averages and student.

    A randomly initialised BERT bears, and needs, larger learning rates than a pretrained one.
    """
    changes = {
        "name": "quickstart",
        "members": 4,
        "train.max_length": 48,
        "nli.batch": 32,
        "nli.optim.lr": 2e-3,
        "nli.train.epochs": 2.0,
        "nli.train.max_steps": 1000,
        "ct.optim.lr": 1e-4,
        "ct.optim.milestones": [60, 120, 180, 240],
        "ct.train.max_steps": 300,
        "ct.train.eval_every": 100,
        "sed.optim.lr": 1e-3,
        "sed.data.sample": 30_000,
        "deliver": "best",
    }
    return apply_overrides(_compose("nli-ct-sed"), changes)


class Preset(NamedTuple):
    """A pipeline outside the grammar of system names.

    Attributes:
        scales: the scales that it has, each with what it changes beside what the scale changes everywhere.
    """

    make: Callable[[], Pipeline]
    scales: Mapping[str, Mapping[str, Any]]


PRESETS: dict[str, Preset] = {
    "quickstart": Preset(quickstart, {}),
    "best": Preset(
        best,
        {
            "small": {
                "simcse-sup.batch": 128,
                "simcse-sup.train.max_steps": 60,
                "simcse-sup.train.eval_every": 30,
                "sed.data.sample": 20_000,
            }
        },
    ),
}

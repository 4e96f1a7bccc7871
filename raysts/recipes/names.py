"""A system's name is its recipe: stages joined by '-', then what is done with the members.

Grammar (METHODS.md, "Stages"): one or more member stages, then optionally ``-sed`` (a student distilled from the
members) or ``-ensemble`` (the mean of their embeddings); ``raw`` is the bare backbone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from raysts.errors import InputError, nearest
from raysts.recipe import Pipeline, apply_overrides, load_pipeline
from raysts.recipes.quickstart import quickstart
from raysts.recipes.stages import STAGES, sed


class Entry(NamedTuple):
    """One line of ``raysts recipes``."""

    source: str
    shows: str
    cost: str


RECIPES: dict[str, Entry] = {
    "quickstart": Entry(
        "the embedded world", "student above the members' mean on the world's STS test", "minutes on 2 CPU cores"
    ),
    "raw": Entry("SED Table 1, BERT-L", "Spearman 53.56, mean of STS12-16", "evaluation only"),
    "nli": Entry("SED Table 2, BERT-L-NLI", "74.12", "1M NLI pairs a member"),
    "ct": Entry("SED Table 1, BERT-L-CT", "75.49 (mean of members 74.07)", "50,000 steps of 30 sentences a member"),
    "nli-ct": Entry("SED Table 2, BERT-L-NLI-CT", "77.96 (mean of members 76.91)", "nli + ct a member"),
    "ct-ensemble": Entry("SED Table 3, full ensemble", "77.40", "10 x ct"),
    "nli-ct-ensemble": Entry("SED Table 3, full ensemble", "78.06", "10 x (nli + ct)"),
    "ct-sed": Entry("SED Table 1, BERT-L-CT-SED", "76.96", "10 x ct + 100,000 sentences"),
    "nli-ct-sed": Entry("SED Table 2, BERT-L-NLI-CT-SED", "77.91", "10 x (nli + ct) + 100,000 sentences"),
    "sts": Entry("SED Table 4, BERT-L", "86.35 on STS-B test", "4 epochs of STS-B train a member"),
    "sts-sed": Entry("SED Table 4, BERT-L-SED", "85.80 on STS-B test", "10 x sts + 100,000 sentences"),
}
"""The papers' rows that have a name here; every other sensible combination of stages runs too."""


def pipeline(name: str, overrides: Mapping[str, Any] | None = None) -> Pipeline:
    """The pipeline called ``name`` (a system name, ``quickstart``, or a YAML file) with overrides applied.

    Raises:
        InputError: an unknown or senseless name, with the reason; unknown or wrong overrides.
    """
    if name.endswith((".yaml", ".yml")):
        base = load_pipeline(Path(name))
    elif name == "quickstart":
        base = quickstart()
    else:
        base = _compose(name)
    return apply_overrides(base, overrides) if overrides else base


def _compose(name: str) -> Pipeline:
    if name == "raw":
        return Pipeline(name=name, members=1)
    parts = name.split("-")
    combine = parts.pop() if parts[-1] in ("sed", "ensemble") else None
    problems = []
    for part in parts:
        if part in ("sed", "ensemble"):
            problems.append(f"recipe '{name}': '{part}' must come after the member stages, once")
        elif part == "raw":
            problems.append(f"recipe '{name}': 'raw' is the bare backbone and stands alone")
        elif part not in STAGES:
            known = [*STAGES, "sed", "ensemble", "raw", *RECIPES]
            problems.append(
                f"unknown recipe '{name}': '{part}' is no stage{nearest(part if len(parts) > 1 else name, known)}; "
                f"stages are {', '.join(STAGES)}, then -sed or -ensemble; 'raysts recipes' lists examples"
            )
    repeated = sorted({part for part in parts if parts.count(part) > 1 and part in STAGES})
    if repeated:
        problems.append(f"recipe '{name}': stage '{repeated[0]}' stands twice; a member goes through a stage once")
    if not parts:
        problems.append(f"recipe '{name}': '{combine}' needs members to combine, for example nli-{combine}")
    if problems:
        raise InputError(list(dict.fromkeys(problems)))
    supervised = "sts" in parts
    return Pipeline(
        name=name,
        members=10 if combine else 1,
        stages={part: STAGES[part]() for part in parts},
        combine=combine,  # type: ignore[arg-type]
        sed=replace(sed(supervised)) if combine == "sed" else None,
    )

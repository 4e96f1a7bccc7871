"""The outcome of a run: members, ensemble, students, the delivered model and its selection.

Only this module decides it. ``pipelines/<name>.json`` holds it when the run is done. Model card, report, ``compare``,
``distill`` and the papers' tables read it there, so that they mean the same models.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter

from raysts.errors import InputError
from raysts.ids import content_id
from raysts.models.layers import Layers, layers_text
from raysts.recipes import names
from raysts.recipes.recipe import ROLE_NAMES, SOUPS, Pipeline

STSB_DEV = "sts/stsb_dev"
"""The table that chooses the best of models that were there before the run."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A trained model that may be selected."""

    id: str  # of its run; content id of a model without a run record
    score: float | None = None  # of the kept checkpoint on its development set, larger is better
    selected_by: str | None = None  # the development set with the labels that selected its checkpoint

    @classmethod
    def of(cls, model_id: str, run: Mapping[str, Any]) -> Candidate:
        return cls(model_id, (run.get("dev") or {}).get("kept"), run.get("selected_by"))


@dataclass(frozen=True, slots=True)
class Option:
    """A model at one pooling that may be delivered as the best."""

    what: str  # its role
    id: str  # as in an outcome; the backbone's content id
    pooling: str
    layers: Layers
    score: float

    @property
    def pooled_id(self) -> str:
        """Return the id of the model when it is rewritten with this pooling."""
        return content_id([self.id, self.pooling, self.layers])


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a run, by ids of runs (content ids of models without one).

    Attributes:
        ensemble: the members that form the ensemble, or the teacher of the students; empty without a combination.
        students: the last run of each student's chain.
        selected: the delivered model; None for an ensemble, and without training.
        selected_by: the development sets that selected its checkpoint, it among others, or the members behind it.
        candidates: the options for the best, the smallest step away from the backbone first.
    """

    members: tuple[str, ...] = ()
    ensemble: tuple[str, ...] = ()
    soups: Mapping[str, str] = field(default_factory=dict)
    students: tuple[str, ...] = ()
    selected: str | None = None
    selected_by: str | None = None
    candidates: tuple[Option, ...] = ()

    @property
    def chosen(self) -> Option | None:
        """Return the best candidate, or None if the system's name determines the delivered model.

        Ties go to the first.
        """
        return self.candidates[best([option.score for option in self.candidates])] if self.candidates else None

    @property
    def choice(self) -> str | None:
        """Return the note about the delivered model among several, or None without a choice."""
        if chosen := self.chosen:
            name = f"{ROLE_NAMES.get(chosen.what, chosen.what)} {chosen.id}"
            return (
                f"The {name}, {chosen.pooling} of {layers_text(chosen.layers)}, is delivered. It scores highest of "
                f"{len(self.candidates)} variants on the development set ({100 * chosen.score:.2f})."
            )
        kind, models = ("student", self.students) if self.students else ("member", self.members)
        if self.selected not in models or len(models) < 2:
            return None
        why = f", with the highest score on {self.selected_by}" if kind == "member" and self.selected_by else ""
        return f"Of {len(models)} {kind}s, {kind} {models.index(self.selected)} is delivered{why} ({self.selected})."

    def models_of(self, role: str) -> tuple[str, ...]:
        """Return the models of a role. Of several students it is the delivered one."""
        if role == "student":
            return (self.selected,) if self.selected in self.students else self.students[:1]
        if role in SOUPS:
            return (self.soups[role],) if role in self.soups else ()
        return self.ensemble if role == "ensemble" else self.members


def best(scores: Sequence[float | None]) -> int:
    """Return the index of the largest score. Ties go to the first, a missing score ranks last."""
    return top(scores, 1)[0]


def top(scores: Sequence[float | None], count: int | None) -> list[int]:
    """Return the indices of the ``count`` largest scores, ascending, or of all. :func:`best` ranks so too."""
    order = [-math.inf if score is None else score for score in scores]
    return sorted(sorted(range(len(scores)), key=order.__getitem__, reverse=True)[:count])


def decide(
    members: Sequence[Candidate],
    students: Sequence[Candidate],
    *,
    soups: Mapping[str, Candidate] = MappingProxyType({}),
    combine: str | None,
    select_top: int | None,
    dev: str,
    options: Sequence[Option] = (),
) -> Outcome:
    """Return the outcome of a run.

    The first student is selected, so that no label selects; if labels already select each student's checkpoint, the
    best. Of uncombined members it is the best, of an ensemble none, of weight averages that which the pipeline names.

    ``members`` are those that finished, with scores of the last stage. ``students`` (empty before training) have
    scores of the distillation. ``options`` are candidates for the best model, if the pipeline delivers that.
    """
    ensemble = [members[index] for index in top([m.score for m in members], select_top)] if combine else []
    selected, labels = None, {member.selected_by for member in ensemble}
    labels |= {dev} if combine and select_top is not None else set()
    if combine == "sed" and students:
        by_labels = students[0].selected_by is not None
        selected = students[best([student.score for student in students]) if by_labels else 0]
    elif combine is not None and combine in soups:
        selected = soups[combine]
    elif combine is None and members:
        selected = members[best([member.score for member in members])]
        labels |= {dev} if len(members) > 1 and selected.score is not None else set()
    outcome = Outcome(candidates=tuple(options))
    if option := outcome.chosen:
        models = (*members, *soups.values(), *students)
        selected = next((model for model in models if model.id == option.id), Candidate(option.id))
        labels |= {dev, *(member.selected_by for member in members)}
    labels |= {selected.selected_by} if selected else set()
    return replace(
        outcome,
        members=tuple(member.id for member in members),
        ensemble=tuple(member.id for member in ensemble),
        soups={role: soup.id for role, soup in soups.items()},
        students=tuple(student.id for student in students),
        selected=selected.id if selected else None,
        selected_by=join_names(labels),
    )


def outcome_of(record: Mapping[str, Any]) -> Outcome:
    """Return the outcome in a pipeline's record. A run that is not done has members only."""
    if (fields := record.get("outcome")) is None:
        return Outcome(members=tuple(record["members"]))
    return TypeAdapter(Outcome).validate_python(fields)


def members_dev(pipeline: Pipeline) -> str:
    """Return the table that scores the members of a pipeline."""
    recipes = list(pipeline.stages_of(0).values())
    return recipes[-1].spec.dev if recipes else STSB_DEV


def join_names(names: Iterable[str | None]) -> str | None:
    """Return the names of development sets in a record's format, or None without names."""
    return ", ".join(sorted({name for name in names if name})) or None


def system_of(name: str, role: str) -> str | None:
    """Return the system that models of a role measure in a run of ``name``, or None.

    A pipeline measures several systems: ``ct-sed`` has ``raw`` in its backbone, ``ct`` in each member, ``ct-ensemble``
    in the mean of their vectors, ``ct-soup`` in the mean of their weights, and ``ct-sed`` in its student.
    """
    if role == "backbone":
        return "raw"
    try:
        parsed = names.parse(name)
    except InputError:
        return None
    if role not in ("member", "ensemble", *SOUPS, "student"):
        return None
    if role == "student" or (role == "member" and parsed.combine is None):
        return name
    if parsed.combine == names.BOOM:  # its members have no name: those of others have all rows
        return name if role == "soup" else None
    behind = [role if role != "member" else None, parsed.post if parsed.combine != "sed" else None]
    return "-".join([*parsed.stages, *filter(None, behind)])

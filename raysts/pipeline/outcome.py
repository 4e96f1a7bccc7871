"""What came out of a run: its members, their ensemble, the students, the model that is handed over and what chose it.

Decided here alone and written into ``pipelines/<name>.json`` when the run is done; model card, report, ``compare``,
``distill`` and the papers' tables read it, so that they mean the same models.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from raysts.errors import InputError
from raysts.ids import content_id
from raysts.models.layers import Layers, in_words
from raysts.recipes import grammar
from raysts.recipes.recipe import SOUPS, Pipeline

STSB_DEV = "sts/stsb_dev"
"""The table that chooses the best of models that were there before the run."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A trained model that may be chosen.

    Attributes:
        id: run id; content id of a model without a run on record.
        score: of the kept checkpoint on its development set, larger is better; None where it has none.
        selected_by: the development set whose labels chose its checkpoint; None: no labels did.
    """

    id: str
    score: float | None = None
    selected_by: str | None = None

    @classmethod
    def of(cls, model_id: str, run: Mapping[str, Any]) -> Candidate:
        return cls(model_id, (run.get("dev") or {}).get("kept"), run.get("selected_by"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A model, pooled in one way, that may be handed over as the best. ``what``: ``backbone``, ``member``, ``soup``,
    ``greedy-soup``, ``student``. ``id``: of the model, as an outcome names it; of the backbone its content id."""

    what: str
    id: str
    pooling: str
    layers: Layers
    score: float

    @property
    def pooled_id(self) -> str:
        """Id of the model when it is written again because it was stored with another pooling than this."""
        return content_id([self.id, self.pooling, self.layers])


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came out of a run, by ids of runs (content ids of models without one).

    Attributes:
        ensemble: the members whose mean is the ensemble, or the teacher of the students; empty where nothing is combined.
        students: what came out of each distillation, with what was fitted on it.
        selected: the model that is handed over; None of an ensemble, and where nothing is trained.
        selected_by: the development set whose labels chose it: its checkpoint, it among others, or the members behind it.
        candidates: what it was chosen among where the best is delivered, the smallest step away from the backbone first.
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
        """The best of the candidates, of equals the first; None where the system's name says what is handed over."""
        return self.candidates[best([option.score for option in self.candidates])] if self.candidates else None

    @property
    def choice(self) -> str | None:
        """Which of several models is handed over, as people read it; None where there was nothing to choose."""
        if chosen := self.chosen:
            return (
                f"Of {len(self.candidates)} candidates (models at a pooling) the {chosen.what} {chosen.id} is handed over, "
                f"{chosen.pooling} of {in_words(chosen.layers)}, with the highest score of the development set "
                f"({100 * chosen.score:.2f})."
            )
        kind, models = ("student", self.students) if self.students else ("member", self.members)
        if self.selected not in models or len(models) < 2:
            return None
        why = f", with the highest score on {self.selected_by}" if kind == "member" and self.selected_by else ""
        return f"Of {len(models)} {kind}s, {kind} {models.index(self.selected)} is handed over{why} ({self.selected})."

    def of_role(self, role: str) -> tuple[str, ...]:
        """The models that a role of the run means: of several ``student`` the one that is handed over."""
        if role == "student":
            return (self.selected,) if self.selected in self.students else self.students[:1]
        if role in SOUPS:
            return (self.soups[role],) if role in self.soups else ()
        return self.ensemble if role == "ensemble" else self.members


def best(scores: Sequence[float | None]) -> int:
    """Which score is the largest; the first of equals, and where there are none."""
    return max(range(len(scores)), key=lambda index: (_order(scores[index]), -index))


def top(scores: Sequence[float | None], count: int | None) -> list[int]:
    """Which ``count`` scores are the largest, ascending; the first of equals. All where ``count`` is None."""
    ranked = sorted(range(len(scores)), key=lambda index: (-_order(scores[index]), index))
    return sorted(ranked[:count])


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
    """What comes out of a run.

    A student is handed over where there are some: the first, so that no label chooses, unless labels choose within each of
    them already; then the best. Of members that are not combined it is the best; of an ensemble nothing is. A weight
    average is handed over where the members are combined so.

    Args:
        members: those that finished, in order; a score is that of the last stage.
        students: in order, empty before they are trained; a score is that of the distillation.
        options: where the best is handed over, whatever the system's name says: what there is to choose among.
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
    found = Outcome(candidates=tuple(options))
    if option := found.chosen:
        known = (*members, *soups.values(), *students)
        selected = next((model for model in known if model.id == option.id), Candidate(option.id))
        labels |= {dev, *(member.selected_by for member in members)}
    labels |= {selected.selected_by} if selected else set()
    return replace(
        found,
        members=tuple(member.id for member in members),
        ensemble=tuple(member.id for member in ensemble),
        soups={role: soup.id for role, soup in soups.items()},
        students=tuple(student.id for student in students),
        selected=selected.id if selected else None,
        selected_by=joined(labels),
    )


def outcome_of(record: Mapping[str, Any]) -> Outcome:
    """Return the outcome that ``pipelines/<name>.json`` says; of a run that is not done its members alone."""
    if (said := record.get("outcome")) is None:
        return Outcome(members=tuple(record["members"]))
    models = {role: tuple(said[role]) for role in ("members", "ensemble", "students")}
    options = tuple(Option(**option) for option in said["candidates"])
    return Outcome(
        **models, soups=said["soups"], selected=said["selected"], selected_by=said["selected_by"], candidates=options
    )


def members_dev(pipeline: Pipeline) -> str:
    """The table that scores the members of a pipeline."""
    recipes = list(pipeline.stages_of(0).values())
    return recipes[-1].spec.dev if recipes else STSB_DEV


def joined(names: Iterable[str | None]) -> str | None:
    """Names of development sets as a record holds them; None where there are none."""
    return ", ".join(sorted({name for name in names if name})) or None


def system_of(name: str, role: str) -> str | None:
    """The system that the models of a role measure in a run of the system ``name``; None where it has no name.

    A pipeline measures several: that of ``ct-sed`` has ``raw`` in its backbone, ``ct`` in each of its members,
    ``ct-ensemble`` in their mean, ``ct-soup`` in that of their weights, and ``ct-sed`` in its student.
    """
    if role == "backbone":
        return "raw"
    try:
        parsed = grammar.parse(name)
    except InputError:
        return None
    if role not in ("member", "ensemble", *SOUPS, "student"):
        return None
    if role == "student" or (role == "member" and parsed.combine is None):
        return name
    if parsed.combine == grammar.BOOM:  # its members have no name: those of others have all rows
        return name if role == "soup" else None
    on_members = [parsed.post] if parsed.post and parsed.combine != "sed" else []
    return "-".join([*parsed.stages, *([role] if role != "member" else []), *on_members])


def _order(score: float | None) -> float:
    return -math.inf if score is None else score

"""Training text of a plan's models in the test sets that it evaluates."""

from __future__ import annotations

from collections.abc import Iterable

from raysts.errors import InputError
from raysts.evaluation import harness
from raysts.evaluation.contamination import Contamination
from raysts.evaluation.training_text import TrainedOn, TrainingText, together, trained_on
from raysts.pipeline import TINY, Plan
from raysts.recipe import Recipe

EVALUATED = ("backbone", "members", "student")
"""What the evaluations of a plan are of."""


def trained(plan: Plan, what: str) -> TrainedOn:
    """The training text of the backbone, of all members together, or of the student, with what went before."""
    start = TrainedOn() if plan.pipeline.backbone == TINY else trained_on(plan.backbone)
    if what == "backbone":
        return start
    if plan.pipeline.teachers:
        members = together(trained_on(node.model) for node in plan.teacher_models)
    else:
        members = together([start, _of(plan, plan.pipeline.stages.values())])
    if what == "members":
        return members
    own = [plan.pipeline.sed] if plan.pipeline.sed else []
    return together([members, start, _of(plan, [*own, *plan.pipeline.post.values()])])


def _of(plan: Plan, recipes: Iterable[Recipe]) -> TrainedOn:
    chosen = [plan.resolved(recipe) for recipe in recipes]
    return TrainedOn(tuple(TrainingText(r.table, r.data, plan.corpus.fingerprint(r.table)) for r in chosen))


def searched(plan: Plan, what: str, keep: bool = True) -> Contamination:
    """The training text of ``what`` in the plan's test sets; ``keep``: remember in the storage what was found."""
    cache = plan.storage / "contamination" if keep else None
    return harness.searched(plan.corpus, plan.tasks, trained(plan, what), cache=cache)


def evaluated(plan: Plan) -> dict[str, Contamination]:
    """That of every evaluation of the plan that is done."""
    done = {node.title.split()[-1] for node in plan.evaluations if node.status == "done"}
    return {what: searched(plan, what) for what in EVALUATED if what in done}


def refuse(plan: Plan) -> None:
    """Raise one InputError with every test set that holds training rows of the plan's models."""
    last = plan.evaluations[-1].title.split()[-1]  # it was trained on whatever the others were
    problems = searched(plan, last, keep=False).refuse(f"the {last}")
    if problems:
        raise InputError(problems)

"""Training text of a plan's models in the test sets that it evaluates."""

from __future__ import annotations

from raysts.errors import InputError
from raysts.evaluation import harness
from raysts.evaluation.contamination.contamination import Contamination
from raysts.evaluation.contamination.lineage import TrainedOn, TrainingText, together, trained_on
from raysts.pipeline.plan import TINY, Plan


def trained(plan: Plan) -> TrainedOn:
    """The training text of all models of a plan, with what went before: backbone, teachers, members, student."""
    start = TrainedOn() if plan.pipeline.backbone == TINY else trained_on(plan.backbone)
    recipes = [plan.resolved(recipe) for recipe in plan.pipeline.recipes.values()]
    own = TrainedOn(tuple(TrainingText(r.table, r.data, plan.corpus.fingerprint(r.table)) for r in recipes))
    return together([start, *(trained_on(node.model) for node in plan.teacher_models), own])


def searched(plan: Plan, keep: bool = True) -> Contamination:
    """That text in the plan's test sets. Every model of the plan has its clean score on the same rows, so that they compare.

    ``keep``: remember in the storage what was found.
    """
    cache = plan.storage / "contamination" if keep else None
    return harness.searched(plan.corpus, plan.tasks, trained(plan), cache=cache)


def refuse(plan: Plan) -> None:
    """Raise one InputError with every test set that holds training rows of the plan's models."""
    problems = searched(plan, keep=False).refuse(plan.pipeline.name)
    if problems:
        raise InputError(problems)

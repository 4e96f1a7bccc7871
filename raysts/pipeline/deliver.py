"""The delivered model, its comparison with starting model and teachers, and the messages about it.

The starting model is the backbone as it was distributed. A difference is that of a paired bootstrap over the rows of a test set
(:func:`raysts.evaluation.compare.compare_systems`), from the row scores that the evaluations stored. Nothing is
embedded again, so the numbers are reproducible. Messages claim only what the interval shows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from raysts.evaluation import harness
from raysts.evaluation.compare import Difference, difference
from raysts.evaluation.scores import Choice, ModelScores
from raysts.evaluation.standings import AGREEMENT, AVERAGE, AVERAGED, TEACHER
from raysts.models import pretrained
from raysts.models.embedders import short_names
from raysts.models.layers import Layers, as_layers
from raysts.models.modules import describe
from raysts.pipeline.outcome import Outcome
from raysts.pipeline.plan import Plan
from raysts.pipeline.step import Model
from raysts.pipeline.steps.scores import Evaluation
from raysts.recipes.recipe import SOUPS
from raysts.storage.atomic import remove_drafts
from raysts.storage.runs import record_of

TITLES = {name: name.upper() for name in harness.TASKS}
TITLES |= {"stsb": "STS-B", "sickr": "SICK-R", "sickr-all": "SICK-R (all rows)"}
"""How sentences name a public test set; one of the user's own has the name that it was given."""

ROLE_NAMES = {"backbone": "starting model", "soup": "weight average", "greedy-soup": "greedy weight average"}
"""Names of roles in sentences. A role that is not here is named as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """The delivered model and its comparison with the starting model. Values are not times 100.

    Attributes:
        what: ``backbone``, ``member``, ``soup``, ``greedy-soup``, ``ensemble`` or ``student``.
        by: the development set that selected it; ``system``: the system's name determines it.
        beats_input: True if the interval lies above 0; None without an interval.
        difference: of the rank correlation (else the accuracy) from the starting model's.
        on: the test set: the first of the user data, else STS-B if it is measured, else the first measured STS set,
            else another; None without a test set.
        agreement: with the ensemble on held-out texts (:mod:`raysts.evaluation.agreement`); None if labels select.
        teacher: name of the teacher that is delivered, None for other models.
        higher: the teacher that is shown to score higher than the student: ``model`` (its name), ``value``,
            ``delivered`` (the student's value), ``on``; None without one.
    """

    what: str
    layers: Layers
    by: str
    beats_input: bool | None = None
    difference: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    on: str | None = None
    agreement: float | None = None
    teacher: str | None = None
    higher: Mapping[str, Any] | None = None

    @property
    def sentence(self) -> str:
        """Return what is delivered and how it compares, in at most three sentences."""
        return " ".join(filter(None, (self._comparison, self._higher)))

    @property
    def _comparison(self) -> str:
        subject = f"The teacher {self.teacher}" if self.teacher else f"The {ROLE_NAMES.get(self.what, self.what)}"
        start = "the starting model"
        if self.on is None or self.difference is None:
            if self.agreement is None:
                return f"{subject} is delivered. No test set compares it with {start}; --test NAME=FILE gives one."
            return (
                f"{subject} is delivered. It keeps {100 * self.agreement:.2f} of 100 of the ensemble: the rank correlation of "
                f"their similarities on held-out texts. No agreement shows that it is better than {start} or the ensemble; "
                f"scored pairs do: --test NAME=FILE."
            )
        gap, on = (Difference(self.difference, self.ci_low, self.ci_high), f"{TITLES.get(self.on, self.on)} test")
        if self.what == "backbone" and gap.value == 0:
            why = "" if self.by == "system" else f": no trained model scores higher on {self.by}"
            return f"{subject} is delivered{why}."
        if self.ci_low is None:
            return (
                f"{subject} differs from {start} by {100 * gap.value:+.2f} on {on}. Without an interval "
                f"(evaluation.resamples=0) nothing is concluded from it."
            )
        if gap.shown > 0:
            return f"{subject} is better than {start} by {100 * gap.value:.2f} {gap.interval} on {on}."
        if gap.shown < 0:
            remedy = "use it, or train with more text or steps"
            return f"The starting model is better: {remedy}. {subject} is {gap.over('it')} on {on}."
        return f"No difference is shown between {subject[0].lower()}{subject[1:]} and {start}: " + (
            f"{100 * gap.value:+.2f} {gap.interval} on {on}."
        )

    @property
    def _higher(self) -> str:
        if self.higher is None:
            return ""
        values = f"{100 * self.higher['value']:.2f} against {100 * self.higher['delivered']:.2f}"
        on = TITLES.get(self.higher["on"], self.higher["on"])
        return (
            f"The teacher {self.higher['model']} still scores higher on {on} test: {values}. More text or more steps bring the "
            f"student nearer."
        )

    def as_plain(self) -> dict[str, Any]:
        """Return the fields. A field that few runs have is left out without a value."""
        optional = ("agreement", "teacher", "higher")
        return {key: value for key, value in asdict(self).items() if value is not None or key not in optional}


def delivered(plan: Plan, outcome: Outcome) -> Delivered | None:
    """Return the delivered model with its difference from the starting model, or None before any result."""
    result = _handed_over(plan, outcome)
    if result is None:
        return None
    role, choice, selector, scores = result
    model_id = outcome.selected if role not in ("backbone", "ensemble") else None
    delivery = Delivered(
        what=role,
        layers=as_layers(choice[1]),
        by=selector,
        agreement=_agreement(plan, role, model_id, choice),
        teacher=_names(plan).get(model_id or "") if role == "member" else None,
        higher=_higher_teacher(plan, scores) if role == "student" else None,
    )
    input_scores = _input(plan)
    on = compared_on(plan, scores, input_scores)
    if on is None:
        return delivery
    if role == "backbone" and choice == _as_distributed(plan):
        zero = 0.0 if plan.pipeline.evaluation.resamples else None
        gap = Difference(0.0, zero, zero)
    else:
        gap = difference([scores], [input_scores], [on], plan.pipeline.evaluation.resamples)
    beats = None if gap.low is None else gap.shown > 0
    return replace(delivery, beats_input=beats, difference=gap.value, ci_low=gap.low, ci_high=gap.high, on=on)


def _names(plan: Plan) -> dict[str, str]:
    """Return the short name of each teacher that the pipeline names, by its id."""
    models = [model.id for model in plan.teacher_models]
    return dict(zip(models, short_names(plan.pipeline.teachers), strict=True))


def _higher_teacher(plan: Plan, student: ModelScores) -> dict[str, Any] | None:
    """Return the best of the teachers that are shown to score higher than the student, or None."""
    choice, better = (pooling_of(plan, "member"), str(plan.pipeline.compared)), list[dict[str, Any]]()
    for model, name in _names(plan).items():
        teacher = scores_of(plan, "member", model, choice)
        on = compared_on(plan, student, teacher)
        if on and difference([student], [teacher], [on], plan.pipeline.evaluation.resamples).shown < 0:
            metric = "spearman" if student[on].gold is not None else student[on].metrics[0]
            values = {"value": teacher[on].value(metric), "delivered": student[on].value(metric)}
            better.append({"model": name, **values, "on": on})
    return max(better, key=lambda teacher: teacher["value"], default=None)


def _agreement(plan: Plan, role: str, model: str | None, choice: Choice) -> float | None:
    values = (
        row["value"]
        for row in plan.rows_on_record()
        if (row["dataset"], row["metric"], row["role"]) == (AGREEMENT, "spearman", role)
        and (row["pooling"], row["layers"]) == choice
        and model in (None, row["run_id"])
    )
    return next(values, None)


def _handed_over(plan: Plan, outcome: Outcome) -> tuple[str, Choice, str, ModelScores] | None:
    if chosen := outcome.chosen:
        choice = chosen.pooling, str(chosen.layers)
        model_id = "backbone" if chosen.what == "backbone" else chosen.id
        return (
            chosen.what,
            choice,
            str(plan.chooser.name if plan.chooser else ""),
            scores_of(plan, chosen.what, model_id, choice),
        )
    if plan.pipeline.deliver == "best":
        return None
    if model := next((model for model in plan.models if model.id == outcome.selected), None):
        pooling, layers = describe(model.model).stored_pooling
        soups = {soup_id: name for name, soup_id in outcome.soups.items()}
        role = soups.get(model.id) or ("student" if outcome.students else "member")
        selected_among = len(outcome.students or outcome.members) > 1 and (
            role == "member" or model.record.get("selected_by")
        )
        selector = outcome.selected_by if selected_among and outcome.selected_by else "system"
        return role, (pooling, str(layers)), selector, scores_of(plan, role, model.id, (pooling, str(layers)))
    if plan.pipeline.combine == "ensemble" and outcome.ensemble:
        choice = pooling_of(plan, "member"), str(plan.pipeline.compared)
        return "ensemble", choice, "system", scores_of(plan, "member", "ensemble", choice)
    if plan.members:
        return None
    return "backbone", _as_distributed(plan), "system", _input(plan)


def evaluation(plan: Plan, role: str) -> Evaluation | None:
    """Return the evaluation of a role, if the plan has one."""
    return next((node for node in plan.evaluations if node.role == role), None)


def pooling_of(plan: Plan, role: str) -> str:
    """Return the pooling at which models of a role are compared."""
    of_role = evaluation(plan, role)
    return of_role.pooling if of_role else "mean"


def scores_of(plan: Plan, role: str, model: str, choice: Choice) -> ModelScores:
    """Return a model's row scores at a pooling (see :meth:`Evaluation.row_scores`).

    A model with heads has scores at one pooling only, which it gives for every choice.
    """
    of_role = evaluation(plan, role)
    by_choice = of_role.row_scores(model) if of_role else {}
    same_layers = [scores for (_, layers), scores in by_choice.items() if layers == choice[1]]
    return by_choice.get(choice) or next(iter(same_layers or (by_choice.values() if len(by_choice) == 1 else ())), {})


def _as_distributed(plan: Plan) -> Choice:
    pooling, layers = plan.distributed
    return pooling, str(layers)


def _input(plan: Plan) -> ModelScores:
    return scores_of(plan, "backbone", "backbone", _as_distributed(plan))


def compared_on(plan: Plan, a: ModelScores, b: ModelScores) -> str | None:
    """Return the test set of the comparison, or None.

    It is the first test set of the user data (in option order, then in data folder order), else STS-B, else the first
    that both systems have, STS sets first.
    """
    shared = [name for name in a if name in b]
    user_sets = [name for name in shared if name not in TITLES and a[name].gold is not None]
    user_sets = [*filter(user_sets.__contains__, plan.corpus.user.test), *user_sets]
    return next((name for name in (*user_sets, "stsb", *AVERAGED, *shared) if name in shared), None)


def against(plan: Plan, outcome: Outcome) -> dict[str, dict[str, Difference]]:
    """Return the differences of the first role from each other role, by role and set.

    The roles in order are students, weight averages, ensemble, teachers, members, backbone. The set ``AVERAGE`` is the
    mean over sets. The backbone counts as distributed, the others at the recipe's choice of layers. The models of a
    role form one system.
    """
    systems: dict[str, list[ModelScores]] = {}
    layers = str(plan.pipeline.compared)
    models_of: dict[str, Sequence[str]] = {"student": outcome.students}
    models_of |= {role: (outcome.soups[role],) for role in SOUPS if role in outcome.soups}
    models_of |= {"ensemble": ("ensemble",)}
    named = {f"{TEACHER}{name}": (run,) for run, name in plan.teacher_names.items() if run in outcome.members}
    trained = [member for member in outcome.members if member not in plan.teacher_names]
    models_of |= {**named, **({"member": trained} if trained else {})}
    for role, models in models_of.items():
        evaluated = "member" if role == "ensemble" or role in named else role
        scores = [scores_of(plan, evaluated, model, (pooling_of(plan, evaluated), layers)) for model in models]
        if scores and all(scores):
            systems[role] = scores
    input_scores = _input(plan)
    systems |= {"backbone": [input_scores]} if input_scores else {}
    if len(systems) < 2:
        return {}
    subject, *compared = systems
    found_differences: dict[str, dict[str, Difference]] = {}
    for role in compared:
        sides = systems[subject], systems[role]
        shared = [name for name in sides[0][0] if all(name in model for side in sides for model in side)]
        sets = {name: [name] for name in [compared_on(plan, sides[0][0], sides[1][0])] if name in shared}
        averaged = [name for name in AVERAGED if name in shared]
        sets |= {AVERAGE: averaged} if len(averaged) > 1 else {}
        found_differences[role] = {
            str(name): difference(*sides, on, plan.pipeline.evaluation.resamples) for name, on in sets.items()
        }
    return found_differences


# -- the model -----------------------------------------------------------------------------------------------------------


def write_model(plan: Plan, outcome: Outcome) -> tuple[Path | None, Model | None]:
    """Return the folder of the delivered model, and its run's model (None: no run).

    If the model pools other layers than stored, write it again as a run with the original run's record. A backbone goes
    below ``backbones/``.
    """
    store, chosen = plan.store, outcome.chosen
    model = next((model for model in plan.models if model.id == outcome.selected), None)
    if model is None and chosen is None:
        backbone = plan.backbone if plan.kept_layers is None else plan.start
        return (None if plan.pipeline.combine else backbone), None
    folder = model.model if model else plan.start
    store.get_dir(folder)
    if chosen is None or (chosen.pooling, chosen.layers) == describe(folder).stored_pooling:
        return folder, model
    target = store.path(f"runs/{chosen.pooled_id}/model" if model else f"backbones/pooled-{chosen.pooled_id}")
    if not store.get_dir(target, fresh=True):
        remove_drafts(target.parent, of="model" if model else target.name)
        options = {"pooling": chosen.pooling, "layers": chosen.layers, "content": plan.contents.get(folder)}
        pooled = pretrained.load(folder, device="cpu", **options)  # type: ignore[arg-type]
        with store.put_dir(target) as draft:
            pooled.save(draft)
        if model and (record := record_of(folder)):
            store.write_json(target.parent / "recipe.json", store.read_json(folder.parent / "recipe.json") or {})
            store.write_json(
                target.parent / "run.json", record | {"run_id": chosen.pooled_id, "pooled_again": chosen.id}
            )
    return target, model

"""What a run hands over, whether it is better than the input, and the words for it that terminal, report and card share.

The input is the backbone as it was distributed. A difference is that of a paired bootstrap over the rows of a test set
(:func:`raysts.evaluation.compare.compare_systems`), from the scores of rows that the evaluations kept: nothing is embedded
again, and whoever asks later gets the same numbers. What the interval does not show is not said.
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
from raysts.models.layers import Layers, as_layers
from raysts.models.modules import pooled_by
from raysts.pipeline.nodes.evaluate import EvaluateNode
from raysts.pipeline.outcome import Outcome, members_dev
from raysts.pipeline.plan import Plan
from raysts.pipeline.step import Model, Step
from raysts.recipes.recipe import SOUPS
from raysts.storage.atomic import remove_drafts
from raysts.storage.runs import record_of

TITLES = {name: name.upper() for name in harness.TASKS}
TITLES |= {"stsb": "STS-B", "sickr": "SICK-R", "sickr-all": "SICK-R (all rows)"}
"""How sentences name a public test set; one of the user's own has the name that it was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """What is handed over, and how it compares with the input. Values are not times 100, as those of results rows.

    Attributes:
        what: ``backbone``, ``member``, ``soup``, ``greedy-soup``, ``ensemble`` or ``student``.
        by: the development set that chose it among others; ``system``: the system's name says it.
        beats_input: whether the interval lies above 0; None where there is none.
        difference: of the rank correlation (of a set that has none, the accuracy), above the input.
        on: the test set: the first of the user's own, else STS-B where it is measured, else the first STS set that is, else
            another; None: none is.
        agreement: with the ensemble on held-out texts (:mod:`raysts.evaluation.agreement`); None where labels judge.
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

    @property
    def sentence(self) -> str:
        who = "The input itself" if self.what == "backbone" else f"The {self.what}"
        if self.on is None or self.difference is None:
            if self.agreement is None:
                return f"{who} is handed over; on no test set could it be compared with the input."
            return (
                f"{who} is handed over. Its similarities of pairs of held-out texts follow the ensemble's with a rank "
                f"correlation of {100 * self.agreement:.2f} (x100): so much of the ensemble it keeps. Whether it is better than "
                f"the input, or than the ensemble, no agreement can show; scored pairs can: --test NAME=FILE."
            )
        found, on = (Difference(self.difference, self.ci_low, self.ci_high), f"{TITLES.get(self.on, self.on)} test")
        if self.what == "backbone" and found.value == 0:
            why = "" if self.by == "system" else f": nothing that was trained scores higher on {self.by}"
            return f"The input itself is handed over{why}."
        if self.ci_low is None:
            return (
                f"Nothing is concluded of {who.lower()} and the input, for no interval was asked for: "
                f"{100 * found.value:+.2f} on {on}."
            )
        if found.shown > 0:
            return f"{who} is better than the input by {100 * found.value:.2f} {found.interval} on {on}."
        if found.shown < 0:
            return f"The input is better: use it. {who} is {found.over('it')} on {on}."
        return f"No difference is shown between {who.lower()} and the input: {100 * found.value:+.2f} {found.interval} on {on}."

    def as_plain(self) -> dict[str, Any]:
        plain = asdict(self)
        return plain if self.agreement is not None else {key: plain[key] for key in plain if key != "agreement"}


def delivered(plan: Plan, outcome: Outcome) -> Delivered | None:
    """What a run hands over, and its difference from the input; None where nothing has come out yet."""
    found = _handed_over(plan, outcome)
    if found is None:
        return None
    what, choice, by, mine = found
    model_id = outcome.selected if what not in ("backbone", "ensemble") else None
    known = Delivered(what=what, layers=as_layers(choice[1]), by=by, agreement=_agreement(plan, what, model_id, choice))
    theirs = _input(plan)
    on = _compared_on(plan, mine, theirs)
    if on is None:
        return known
    if what == "backbone" and choice == _as_distributed(plan):
        zero = 0.0 if plan.pipeline.evaluation.resamples else None
        same = Difference(0.0, zero, zero)
    else:
        same = difference([mine], [theirs], [on], plan.pipeline.evaluation.resamples)
    beats = None if same.low is None else same.shown > 0
    return replace(known, beats_input=beats, difference=same.value, ci_low=same.low, ci_high=same.high, on=on)


def _agreement(plan: Plan, role: str, model: str | None, choice: Choice) -> float | None:
    found = (
        row["value"]
        for row in plan.rows_on_record()
        if (row["dataset"], row["metric"], row["role"]) == (AGREEMENT, "spearman", role)
        and (row["pooling"], row["layers"]) == choice
        and model in (None, row["run_id"])
    )
    return next(found, None)


def _handed_over(plan: Plan, outcome: Outcome) -> tuple[str, Choice, str, ModelScores] | None:
    if chosen := outcome.chosen:
        choice = chosen.pooling, str(chosen.layers)
        kept = "backbone" if chosen.what == "backbone" else chosen.id
        return (
            chosen.what,
            choice,
            str(plan.chooser.name if plan.chooser else ""),
            _scores(plan, chosen.what, kept, choice),
        )
    if plan.pipeline.deliver == "best":
        return None
    if model := next((model for model in plan.models if model.id == outcome.selected), None):
        pooling, layers = pooled_by(model.model)
        soups = {soup_id: role for role, soup_id in outcome.soups.items()}
        what = soups.get(model.id) or ("student" if outcome.students else "member")
        several = len(outcome.students or outcome.members) > 1 and (what == "member" or model.record.get("selected_by"))
        by = outcome.selected_by if several and outcome.selected_by else "system"
        return what, (pooling, str(layers)), by, _scores(plan, what, model.id, (pooling, str(layers)))
    if plan.pipeline.combine == "ensemble" and outcome.ensemble:
        choice = _pooling_of(plan, "member"), str(plan.pipeline.compared)
        return "ensemble", choice, "system", _scores(plan, "member", "ensemble", choice)
    if plan.members:
        return None
    return "backbone", _as_distributed(plan), "system", _input(plan)


def _evaluation(plan: Plan, role: str) -> EvaluateNode | None:
    return next((node for node in plan.evaluations if node.role == role), None)


def _pooling_of(plan: Plan, role: str) -> str:
    evaluation = _evaluation(plan, role)
    return evaluation.pooling if evaluation else "mean"


def _scores(plan: Plan, role: str, model: str, choice: Choice) -> ModelScores:
    """The scores of rows of a model (see :meth:`EvaluateNode.row_scores`) at a pooling; one with heads has one alone."""
    evaluation = _evaluation(plan, role)
    by_choice = evaluation.row_scores(model) if evaluation else {}
    alike = [scores for (_, layers), scores in by_choice.items() if layers == choice[1]]  # pooled as it does by itself
    return by_choice.get(choice) or next(iter(alike or (by_choice.values() if len(by_choice) == 1 else ())), {})


def _as_distributed(plan: Plan) -> Choice:
    pooling, layers = plan.distributed
    return pooling, str(layers)


def _input(plan: Plan) -> ModelScores:
    return _scores(plan, "backbone", "backbone", _as_distributed(plan))


def _compared_on(plan: Plan, a: ModelScores, b: ModelScores) -> str | None:
    """The test set of the sentence: the first of the user's own as they are given, then as the data folder has them; else STS-B,
    else the first that both have, STS sets first."""
    both = [name for name in a if name in b]
    own = [name for name in both if name not in TITLES and a[name].gold is not None]
    own = [*filter(own.__contains__, plan.corpus.user.test), *own]
    return next((name for name in (*own, "stsb", *AVERAGED, *both) if name in both), None)


def against(plan: Plan, outcome: Outcome) -> dict[str, dict[str, Difference]]:
    """How far what comes out first (students, weight averages, ensemble, members) is above each of the other roles.

    By role, then by set (``AVERAGE``: the mean over sets). The backbone is the input as it was distributed; the others are
    compared at the recipe's choice of layers, several models of a role as one system.
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
        at = "member" if role == "ensemble" or role in named else role
        found = [_scores(plan, at, model, (_pooling_of(plan, at), layers)) for model in models]
        if found and all(found):
            systems[role] = found
    theirs = _input(plan)
    systems |= {"backbone": [theirs]} if theirs else {}
    if len(systems) < 2:
        return {}
    subject, *others = systems
    found_differences: dict[str, dict[str, Difference]] = {}
    for role in others:
        sides = systems[subject], systems[role]
        both = [name for name in sides[0][0] if all(name in model for side in sides for model in side)]
        sets = {name: [name] for name in [_compared_on(plan, sides[0][0], sides[1][0])] if name in both}
        averaged = [name for name in AVERAGED if name in both]
        sets |= {AVERAGE: averaged} if len(averaged) > 1 else {}
        found_differences[role] = {
            str(name): difference(*sides, on, plan.pipeline.evaluation.resamples) for name, on in sets.items()
        }
    return found_differences


# -- what to be careful about --------------------------------------------------------------------------------------------


def cautions(plan: Plan) -> list[str]:
    """A line for each stage of which models ended, on the development set, below the model that they started from, one
    where the ensemble is below its best member on a test set, and one where what chose is tested on.

    The score of the start is that of the stage before, or of the backbone where that was evaluated; it is one of the same
    pooling and development set, or there is none.
    """
    backbone = _evaluation(plan, "backbone")
    of_backbone = backbone.dev_scores("backbone") if backbone else {}
    lines: dict[str, list[str]] = {}
    trained: dict[str, int] = {}
    names: dict[str, str] = {}
    for chain in (*plan.chains, *plan.student_chains):
        for before, node in zip([None, *chain[:-1]], chain, strict=True):
            start, end = _start(plan, before, node, of_backbone), (node.record.get("dev") or {}).get("kept")
            stage = str(node.training.facts["stage"])
            trained[stage] = trained.get(stage, 0) + 1
            names[stage] = plan.dev_name(node.training.recipe.spec.dev)
            if start is not None and end is not None and end < start:
                number = node.training.facts["member"]
                who = f"{node.training.facts['role']}{'' if number is None else f' {number}'}"
                lines.setdefault(stage, []).append(f"{who} at {100 * end:.2f}, from {100 * start:.2f}")
    return [
        f"{stage}: {len(fallen)} of {trained[stage]} ended below the start on {names[stage]}: {'; '.join(fallen)}"
        for stage, fallen in lines.items()
    ] + [*_below_best(plan), *_tested_on_dev(plan)]


def _tested_on_dev(plan: Plan) -> list[str]:
    """A line where labels chose, and the development set holds rows of test sets."""
    shared = plan.in_dev if plan.outcome.selected_by else {}
    if not shared:
        return []
    where = ", ".join(f"{count:,} of the {rows:,} rows of {name}" for name, (count, rows) in shared.items())
    dev = plan.dev_name(members_dev(plan.pipeline))
    return [f"{dev}, which chose, holds {where}: scores on these are not of unseen rows"]


def _below_best(plan: Plan) -> list[str]:
    """A line where the ensemble scores below the best of what it is made of, on the test set of the sentence."""
    choice = _pooling_of(plan, "member"), str(plan.pipeline.compared)
    ensemble, members = _scores(plan, "member", "ensemble", choice), plan.outcome.ensemble
    scores = {member: own for member in members if (own := _scores(plan, "member", member, choice))}
    on = _compared_on(plan, ensemble, next(iter(scores.values()), {}))
    if on is None or len(scores) < 2:
        return []
    behind = {member: difference([ensemble], [own], [on], 0).value for member, own in scores.items()}
    best = min(behind, key=lambda member: behind[member])
    if behind[best] >= 0:
        return []
    found = difference([ensemble], [scores[best]], [on], plan.pipeline.evaluation.resamples)
    said = found.over(f"the best it is made of, {plan.teacher_names.get(best, best)}")
    return [f"ensemble: {said} on {TITLES.get(on, on)} test"]


def _start(plan: Plan, before: Step | None, node: Step, of_backbone: Mapping[Choice, float]) -> float | None:
    """The score of what a run started from, on its own development set and at its own pooling; None where nobody knows."""
    recipe = node.training.recipe
    dev = recipe.spec.dev
    if before is None:
        from_backbone = node.training.facts["parents"][0] == plan.backbone_id
        here = plan.chooser is not None and members_dev(plan.pipeline) == dev
        return of_backbone.get((recipe.pooling, str(recipe.layers))) if from_backbone and here else None
    earlier = before.training.recipe
    same = (earlier.pooling, earlier.layers, earlier.spec.dev) == (recipe.pooling, recipe.layers, dev)
    return (before.record.get("dev") or {}).get("kept") if same else None


# -- the model -----------------------------------------------------------------------------------------------------------


def write_model(plan: Plan, outcome: Outcome) -> tuple[Path | None, Model | None]:
    """Folder of the model that is handed over, and the model of the run behind it (None: of none).

    Where the best pools other layers than it is stored with, it is written again as a run of its own, with the record of
    the run that it is of; the backbone is written below ``backbones/``.
    """
    store, chosen = plan.store, outcome.chosen
    model = next((model for model in plan.models if model.id == outcome.selected), None)
    if model is None and chosen is None:
        return (None if plan.pipeline.combine else plan.backbone), None
    folder = model.model if model else plan.start
    store.get_dir(folder)
    if chosen is None or (chosen.pooling, chosen.layers) == pooled_by(folder):
        return folder, model
    target = store.path(f"runs/{chosen.pooled_id}/model" if model else f"backbones/pooled-{chosen.pooled_id}")
    if not store.get_dir(target, fresh=True):
        remove_drafts(target.parent, of="model" if model else target.name)
        how = {"pooling": chosen.pooling, "layers": chosen.layers, "content": plan.contents.get(folder)}
        pooled = pretrained.load(folder, device="cpu", **how)  # type: ignore[arg-type]
        with store.put_dir(target) as draft:
            pooled.save(draft)
        if model and (record := record_of(folder)):
            store.write_json(target.parent / "recipe.json", store.read_json(folder.parent / "recipe.json") or {})
            store.write_json(
                target.parent / "run.json", record | {"run_id": chosen.pooled_id, "pooled_again": chosen.id}
            )
    return target, model

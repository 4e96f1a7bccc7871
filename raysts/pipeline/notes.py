"""The notes on a run: what a reader must know besides the numbers. Terminal, page, card and record show the same."""

from __future__ import annotations

from collections.abc import Mapping

from raysts.data.parquet import skipped_line
from raysts.evaluation.agreement import AGREEMENT
from raysts.evaluation.compare import difference
from raysts.evaluation.contamination.contamination import Contamination
from raysts.evaluation.scores import Choice
from raysts.models.embedders import open_embedder
from raysts.pipeline.deliver import TITLES, compared_on, evaluation, pooling_of, scores_of
from raysts.pipeline.inputs import TINY
from raysts.pipeline.outcome import Outcome, members_dev
from raysts.pipeline.own_text import kept_last
from raysts.pipeline.plan import Plan
from raysts.pipeline.step import Step

ABOUT_TINY = (
    "The backbone is a small randomly initialised BERT for the embedded world; its scores say nothing about real text."
)


ABOUT_POINTS = (
    "The members give Gaussians, and the student gives points without variance: it learns their mean vectors alone. What a "
    "variance says, as the direction of entailment, only the members say."
)


def notes_before(plan: Plan) -> list[str]:
    """Return what is known of the text before any step runs."""
    notes = [plan.corpus.text.line, *kept_last(plan.pipeline, plan.corpus)] if plan.corpus.text else []
    if plan.kept_layers is not None:
        layers = ", ".join(map(str, plan.kept_layers))
        notes.append(
            f"Training starts from {len(plan.kept_layers)} of the {plan.depth} layers of {plan.pipeline.backbone}: {layers} "
            f"(counted from 0)."
        )
    notes += plan.reading_notes()
    return notes + [f"Training data is not whole; {line}" for line in map(skipped_line, plan.skipped)]


def notes_on(plan: Plan, outcome: Outcome, contamination: Contamination | None) -> list[str]:
    """Return all notes on a run, as far as it has come. ``contamination`` is None before anything is scored."""
    notes = notes_before(plan)
    notes += [ABOUT_TINY] if plan.pipeline.backbone == TINY else []
    for member in plan.left_out:
        notes.append(
            f"Member {member['member']} failed and is left out: ensemble and student are made of the "
            f"{len(plan.members)} of {plan.pipeline.members} members that finished. Its reason: {member['reason']}"
        )
    by_labels = [stage for stage, recipe in plan.pipeline.recipes.items() if recipe.by_dev]
    if by_labels:
        names = dict.fromkeys(plan.dev_name(plan.pipeline.recipes[stage].spec.dev) for stage in by_labels)
        judge = (
            f"Labels of {' and '.join(names)}"
            if AGREEMENT not in names
            else "Agreement with the ensemble, without labels,"
        )
        notes.append(f"{judge} chose the kept checkpoint in: {', '.join(by_labels)}.")
    notes += [outcome.choice] if outcome.choice else []
    notes += [ABOUT_POINTS] if plan.outcomes and _teaches_gaussians(plan) else []
    for stage, recipe in plan.pipeline.recipes.items():
        rows, sample, widths = plan.rows(recipe), recipe.data.sample, recipe.settings.matryoshka
        if sample and rows < sample:
            notes.append(f"{stage}: the table has {rows:,} rows, fewer than the {sample:,} asked for; all were used.")
        if widths:
            shown = ", ".join(map(str, widths))
            notes.append(f"{stage}: the first {shown} dimensions were trained to be sentence vectors by themselves.")
    notes += [*_fallen(plan), *_below_best(plan, outcome), *_tested_on_dev(plan, outcome), *_cut(plan)]
    return notes + (contamination.lines(plan.pipeline.name) if contamination else [])


def _teaches_gaussians(plan: Plan) -> bool:
    models = [member.model for member in plan.members if member.model.exists()]
    return any(name.startswith("gauss") for model in models for name in open_embedder(model).similarities)


def _cut(plan: Plan) -> list[str]:
    """Return a note for each stage that truncated texts, if its token shards exist."""
    lines = []
    for stage, recipe in plan.pipeline.recipes.items():
        spec = plan.store_spec(recipe)
        manifest = plan.store.read_json(plan.store_folder(spec) / "manifest.json") or {"parts": [], "rows": 0}
        if cut := sum(part.get("cut", 0) for part in manifest["parts"]):
            lines.append(
                f"Stage {stage} reads the first {spec.max_length} tokens alone of {cut:,} of "
                f"{manifest['rows'] * len(spec.texts):,} texts. --set {stage}.train.max_length=N reads more of them."
            )
    return lines


def _fallen(plan: Plan) -> list[str]:
    """Return a warning for each stage with models that end below their start on the development set.

    The start is the score of the stage before, or of the evaluated backbone, at the same pooling and on the same
    development set. Without one there is no warning.
    """
    backbone = evaluation(plan, "backbone")
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
                model = f"{node.training.facts['role']}{'' if number is None else f' {number}'}"
                lines.setdefault(stage, []).append(f"{model} from {100 * start:.2f} to {100 * end:.2f}")
    return [
        f"Training made {len(fallen)} of {trained[stage]} worse on {names[stage]} (stage {stage}): {', '.join(fallen)}."
        for stage, fallen in lines.items()
    ]


def _tested_on_dev(plan: Plan, outcome: Outcome) -> list[str]:
    """Return a warning if the selecting development set holds test rows, or an empty list."""
    shared = plan.in_dev if outcome.selected_by else {}
    if not shared:
        return []
    overlaps = ", ".join(f"{count:,} of the {rows:,} rows of {name}" for name, (count, rows) in shared.items())
    dev = plan.dev_name(members_dev(plan.pipeline))
    return [f"Warning: {overlaps} are also in the development set {dev}. Scores on them are not of unseen rows."]


def _below_best(plan: Plan, outcome: Outcome) -> list[str]:
    """Return a warning if the ensemble scores below its best member, or an empty list."""
    choice = pooling_of(plan, "member"), str(plan.pipeline.compared)
    ensemble, members = scores_of(plan, "member", "ensemble", choice), outcome.ensemble
    scores = {
        member: member_scores for member in members if (member_scores := scores_of(plan, "member", member, choice))
    }
    on = compared_on(plan, ensemble, next(iter(scores.values()), {}))
    if on is None or len(scores) < 2:
        return []
    behind = {
        member: difference([ensemble], [member_scores], [on], 0).value for member, member_scores in scores.items()
    }
    best = min(behind, key=lambda member: behind[member])
    if behind[best] >= 0:
        return []
    gap = difference([ensemble], [scores[best]], [on], plan.pipeline.evaluation.resamples)
    message = gap.over(f"the best of its members, {plan.teacher_names.get(best, best)}")
    return [f"The ensemble is {message} on {TITLES.get(on, on)} test."]


def _start(plan: Plan, before: Step | None, node: Step, of_backbone: Mapping[Choice, float]) -> float | None:
    """Return the development score at a run's start, at the run's pooling, or None."""
    recipe = node.training.recipe
    dev = recipe.spec.dev
    if before is None:
        from_backbone = node.training.facts["parents"][0] == plan.backbone_id
        comparable = plan.chooser is not None and members_dev(plan.pipeline) == dev
        return of_backbone.get((recipe.pooling, str(recipe.layers))) if from_backbone and comparable else None
    earlier = before.training.recipe
    same = (earlier.pooling, earlier.layers, earlier.spec.dev) == (recipe.pooling, recipe.layers, dev)
    return (before.record.get("dev") or {}).get("kept") if same else None

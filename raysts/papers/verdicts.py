"""Verdicts on a paper's claims, from differences of two systems with paired intervals."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from raysts.data.corpora import Corpus
from raysts.data.derive import TARGETS
from raysts.errors import InputError
from raysts.evaluation import harness
from raysts.evaluation.compare import compare_gains, compare_spread, compare_systems, format_p
from raysts.evaluation.entailment import Direction
from raysts.evaluation.scores import ModelScores, RowScores
from raysts.evaluation.standings import Value
from raysts.evaluation.statistics import holm
from raysts.evaluation.sts import Pairs
from raysts.evaluation.tasks import Representation
from raysts.models.prompts import Text
from raysts.papers.claims import CLAIMS, STAND_INS, Claim, Side
from raysts.papers.experiments import EXPERIMENTS
from raysts.papers.published import BACKBONES
from raysts.pipeline.plan import Plan
from raysts.recipes.recipe import Pipeline
from raysts.report import html
from raysts.report.charts import Estimate, forest_plot
from raysts.report.run import environment
from raysts.storage.store import Store

SEEN, NOT_SEEN, CONTRADICTED, AS_NO = "seen", "not seen", "contradicted", "as the paper says no"
LEVEL = 0.05
OVERLAP, LONGER = "word overlap", "longer sentence"
"""Systems of claims that need no model."""
ALIKE = "the two systems say the same of every row"
"""As two constants do: neither that one is above the other nor that it is not can be seen of them."""


class Agenda(NamedTuple):
    """The measurable claims of a paper, known before training.

    ``claims``: by claim, the reason why it cannot be measured, or None. ``pipelines``: those of measurable claims, by
    point.
    """

    claims: Mapping[Claim, str | None]
    pipelines: Mapping[str, Pipeline]
    notes: Sequence[str]


def agenda(paper: str, pipelines: Mapping[str, Pipeline], corpus: Corpus, stand_ins: bool = False) -> Agenda:
    """Return the claims of a paper that a corpus and an experiment's pipelines can measure.

    With ``stand_ins`` missing sets are replaced by those of :data:`STAND_INS`, which the pipelines then measure too.

    Raises:
        InputError: no claim can be measured, or ``evaluation.tasks`` names a task that cannot be.
    """
    first = next(iter(pipelines.values()))
    named = first.evaluation.tasks
    tasks = harness.check_tasks(corpus, named, heavy=False) if named else harness.default_tasks(corpus, heavy=False)
    if not named:
        also = {name for pipeline in pipelines.values() for name in pipeline.evaluation.also}
        tasks = (*tasks, *(name for name in also if name in harness.TASKS and _exists(name, corpus)))
    could = [_stood_in(claim, corpus) for claim in CLAIMS[paper]]
    substituted = Counter(claim.stands_in for claim in could if claim.in_place_of)
    if stand_ins and substituted:
        tasks = tuple(dict.fromkeys([*tasks, *(on for claim in could if claim.in_place_of for on in claim.on)]))
        pipelines = {
            point: pipeline.replace(evaluation=pipeline.evaluation.replace(tasks=tasks))
            for point, pipeline in pipelines.items()
        }
    points = {*pipelines, OVERLAP, LONGER}
    chosen = could if stand_ins else CLAIMS[paper]
    larger = {point.name for point in EXPERIMENTS[f"claims-{paper}"].points if point.larger}
    claims = {claim: _obstacle(claim, points, tasks, corpus, first.backbone, larger) for claim in chosen}
    measured = {side.point for claim, why in claims.items() if why is None for side in claim.sides}
    notes = []
    if reasons := Counter(why for why in claims.values() if why):
        message = f"{reasons.total()} of {len(claims)} claims cannot be measured with {corpus.where}: {_count(reasons)}"
        if substituted and not stand_ins:
            message += (
                f"; 'raysts claims {paper} --stand-ins' holds {substituted.total()} of them: {_count(substituted)}"
            )
        notes.append(message)
    if substituted and stand_ins:
        notes.append(f"{substituted.total()} claims are held on other sets than the paper's: {_count(substituted)}")
    if without := [point for point in pipelines if point not in measured]:
        notes.append(f"not run, for no claim that can be measured is about them: {', '.join(without)}")
    if not measured:
        raise InputError(
            f"{paper}: {notes[0]}; at least one must be, or there is nothing to run: give data with such a set "
            f"('raysts data fetch' makes them), or name one that is there in evaluation.tasks"
        )
    needed = {point: pipeline for point, pipeline in pipelines.items() if point in measured}
    return Agenda(claims, needed, [f"{paper}: {note}" for note in notes])


def _count(counts: Counter[str]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in counts.items())


def _exists(task: str, corpus: Corpus) -> bool:
    return bool(harness.TASKS[task].tables(corpus))


def _stood_in(claim: Claim, corpus: Corpus) -> Claim:
    """Return the claim on the substitute sets, if the corpus has only those."""
    substitutes = tuple(STAND_INS[task] for task in claim.on if task in STAND_INS and _exists(STAND_INS[task], corpus))
    if not substitutes or any(_exists(task, corpus) for task in claim.on):
        return claim
    return claim._replace(on=substitutes, in_place_of=claim.on)


def _obstacle(
    claim: Claim,
    points: Collection[str],
    tasks: Collection[str],
    corpus: Corpus,
    backbone: str,
    larger: Collection[str],
) -> str | None:
    if claim.backbone and not re.fullmatch(BACKBONES[claim.backbone].names, Path(backbone).name.lower()):
        return f"the paper says it of {claim.backbone}"
    for side in claim.sides:
        if side.point not in points and side.point in larger:
            return "needs two encoders, --set backbone=[SMALLER,LARGER]"
        if side.point not in points:
            return f"'{side.point}' cannot be made of word vectors"
    if not {*claim.tasks} & {*tasks}:
        available = any(_exists(task, corpus) for task in claim.tasks)
        return f"{'not among evaluation.tasks' if available else 'no test set'}: {', '.join(claim.tasks)}"
    return None


class ClaimVerdict(NamedTuple):
    """A claim with its measurement. Values are not times 100.

    ``on``: the compared sets; empty if they could not be compared. ``p``: of no difference: Williams' (McNemar's) for two
    single models on one set, else the bootstrap's. ``p_holm``: the same, adjusted for the claims of its table. ``verdict``:
    ``seen``, ``not seen``, ``contradicted``, ``as the paper says no``; None: no conclusion.
    """

    claim: Claim
    a: float | None = None
    b: float | None = None
    models: tuple[int, int] = (0, 0)
    on: tuple[str, ...] = ()
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    transductive: bool = False
    verdict: str | None = None
    why: str | None = None

    def as_plain(self) -> dict[str, Any]:
        claim = self.claim
        fields = {
            "source": claim.source, "claim": claim.says, "a": claim.a.text, "b": claim.b.text, "of": claim.measure,
            "a_over": claim.a_over and claim.a_over.text, "b_over": claim.b_over and claim.b_over.text,
            "printed": claim.printed, "holds": claim.holds, "in_place_of": claim.in_place_of,
        }  # fmt: skip
        values = {key: value for key, value in self._asdict().items() if key not in ("claim", "a", "b", "models")}
        counts = {"a_models": self.models[0], "b_models": self.models[1]}
        return fields | {"a_value": self.a, "b_value": self.b} | counts | values


class ClaimsData(NamedTuple):
    """The data of the page: a verdict for each claim of a paper, and its origin."""

    paper: str
    name: str
    command: str
    created_at: str
    backbone: str
    seeds: int
    verdicts: Sequence[ClaimVerdict]
    environment: Mapping[str, str]


def claims_data(
    paper: str, claims: Mapping[Claim, str | None], plans: Mapping[str, Plan], name: str, command: str
) -> ClaimsData:
    """Return the verdicts on a paper's claims (:attr:`Agenda.claims`) by the finished pipelines."""
    first = next(iter(plans.values()))
    sets = {on for claim in claims for on in claim.on}
    baselines = baseline_scores(first.corpus, [task for task in first.tasks if task in sets])
    verdicts = [
        ClaimVerdict(claim=claim, why=why) if why else _compare(claim, plans, baselines)
        for claim, why in claims.items()
    ]
    return ClaimsData(
        paper=paper,
        name=name,
        command=command,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        backbone=" and ".join(dict.fromkeys(plan.pipeline.backbone for plan in plans.values())),
        seeds=max(plan.pipeline.members for plan in plans.values()),
        verdicts=conclude(verdicts),
        environment=environment(first.members[0].record, data=first.corpus.where, storage=Store.of(first.storage).uri),
    )


def conclude(verdicts: Sequence[ClaimVerdict]) -> list[ClaimVerdict]:
    """Return the verdicts with p values adjusted by table.

    A difference is shown if both interval and adjusted p show it.
    """
    adjusted: dict[int, float] = {}
    for table in {verdict.claim.table for verdict in verdicts}:
        tested = [i for i, verdict in enumerate(verdicts) if verdict.claim.table == table and verdict.p is not None]
        adjusted |= dict(zip(tested, holm([verdicts[i].p or 0.0 for i in tested]), strict=True))
    return [
        verdict._replace(p_holm=adjusted[i], verdict=_verdict(verdict, adjusted[i])) if i in adjusted else verdict
        for i, verdict in enumerate(verdicts)
    ]


def _verdict(result: ClaimVerdict, p: float) -> str | None:
    if result.low is None or result.high is None:
        return None
    shown = p < LEVEL and not result.low <= 0 <= result.high
    above = shown and result.low > 0
    if not result.claim.holds:
        return CONTRADICTED if above else AS_NO
    if shown and not above:
        return CONTRADICTED
    return SEEN if above else NOT_SEEN


def _compare(claim: Claim, plans: Mapping[str, Plan], baselines: Mapping[str, ModelScores]) -> ClaimVerdict:
    """Return the difference of a claim's two systems, with an unadjusted p value."""
    first = next(iter(plans.values())).pipeline
    sides = [_models(side, plans, baselines) for side in claim.sides]
    on = [name for name in claim.on if all(models and all(name in model for model in models) for models in sides)]
    if not on:
        return ClaimVerdict(claim=claim, why=f"no scores at these layers: {', '.join(claim.on)}")
    a, b, *over = (
        _best(models, on) if side.role == "best member" else [{name: model[name] for name in on} for model in models]
        for side, models in zip(claim.sides, sides, strict=True)
    )
    if claim.measure == "spread" and min(len(a), len(b)) < 2:
        return ClaimVerdict(claim=claim, why="models of several seeds are needed: --seeds 2 or more")
    resamples = first.evaluation.resamples
    if claim.measure == "spread":
        row = compare_spread(a, b, resamples)
    elif over:
        row = compare_gains(a, over[0], b, over[1], resamples)
    else:
        single, *rest = compare_systems(a, b, resamples, ("spearman",))
        row = {**(rest[-1] if rest else single), "test_p": single["test_p"] if len(on) == 1 else None}
    # But for the last bits of means over numbers of models that differ.
    constant = row["ci_low"] is not None and max(abs(row["ci_low"]), abs(row["ci_high"])) < 1e-12
    p = row["p"] if row.get("test_p") is None else row["test_p"]
    return ClaimVerdict(
        claim=claim,
        a=row["a"],
        b=row["b"],
        models=(len(a), len(b)),
        on=tuple(on),
        difference=row["difference"],
        low=row["ci_low"],
        high=row["ci_high"],
        p=None if constant else p,
        why=ALIKE if constant else None,
        transductive=any(_transductive(plans[side.point], side) for side in claim.sides if side.point in plans),
    )


def baseline_scores(corpus: Corpus, tasks: Sequence[str]) -> dict[str, ModelScores]:
    """Return the row scores of what needs no model: the Jaccard index of words, and the longer sentence."""
    sets = harness.sets_of(corpus, tasks)
    texts = harness.distinct_texts(sets)
    place = {text: index for index, text in enumerate(texts)}
    words = [frozenset(str(text).lower().split()) for text in texts]

    def represent(texts: Sequence[Text]) -> Representation:
        return {"vectors": np.array([place[text] for text in texts])}

    def overlap(a: Representation, b: Representation) -> np.ndarray:
        pairs = [(words[i], words[j]) for i, j in zip(a["vectors"], b["vectors"], strict=True)]
        return np.array([len(first & second) / max(1, len(first | second)) for first, second in pairs])

    overlaps = harness.row_scores(
        [labelled for labelled in sets if isinstance(labelled, Pairs)], represent, {OVERLAP: overlap}
    )
    directions = harness.row_scores([labelled for labelled in sets if isinstance(labelled, Direction)], represent, {})
    longer = [scores for scores in directions if scores.role == "baseline"]
    return {
        name: {of_set.dataset: of_set for of_set in scores} for name, scores in ((OVERLAP, overlaps), (LONGER, longer))
    }


def _models(side: Side, plans: Mapping[str, Plan], baselines: Mapping[str, ModelScores]) -> list[ModelScores]:
    """Return the row scores of a system's models at its layers, empty without models."""
    if side.point in baselines:
        return [baselines[side.point]] if baselines[side.point] else []
    plan = plans[side.point]
    outcome = next(iter(plan.soups), "member") if not plan.outcomes else "student"
    role = {"model": outcome, "members": "member", "best member": "member", "ensemble": "member"}.get(
        side.role, side.role
    )
    node = next(node for node in plan.evaluations if node.role == role)
    models = [side.role] if side.role in ("ensemble", "backbone") else [model.id for model in node.models]
    layers, scores = str(side.layers or plan.pipeline.compared_layers), []
    for model in models:
        by_choice = node.row_scores(model, side.similarity)
        only = next(iter(by_choice.values())) if len(by_choice) == 1 else {}
        scores.append(by_choice.get((node.pooling, layers)) or only)
    return scores if all(scores) else []


def _best(models: Sequence[ModelScores], on: Sequence[str]) -> list[dict[str, RowScores]]:
    def mean(model: ModelScores) -> float:
        rows = [model[name] for name in on]
        return Value.mean_of(
            [of_set.value(of_set.metrics[0] if of_set.gold is None else "spearman") for of_set in rows]
        ).value

    best = max(models, key=mean)
    return [{name: best[name] for name in on}]


def _transductive(plan: Plan, side: Side) -> bool:
    recipes = plan.pipeline.recipes if side.role == "model" else plan.pipeline.stages
    return side.role != "backbone" and any(recipe.table == TARGETS for recipe in recipes.values())


# -- the page, its table as Markdown, and the text --------------------------------------------------------------------------

HEADS = ("Claim", "Source", "Published", "Measured", "Difference", "p (Holm)", "ClaimVerdict")
VERDICTS = {
    SEEN: "the difference is shown, in the paper's direction",
    NOT_SEEN: "no difference is shown",
    CONTRADICTED: "a difference is shown that the words of the claim exclude",
    AS_NO: "the paper says that it does not help, and no help is shown",
}


def write_report(data: ClaimsData, folder: Path) -> Path:
    """Write the page and ``claims.md`` into ``folder`` and return the page's path."""
    with Store.of(folder).put(folder / "claims.md") as draft:
        draft.write_text(to_markdown(data), encoding="utf-8")
    return html.write_page(render(data), folder)


def render(data: ClaimsData) -> str:
    """Return the page as HTML."""
    estimates = []
    for verdict in data.verdicts:
        if verdict.difference is None or verdict.low is None or verdict.high is None or verdict.why is not None:
            continue
        label = f"{verdict.claim.says} †" if verdict.claim.in_place_of else verdict.claim.says
        difference = (100 * verdict.difference, 100 * verdict.low, 100 * verdict.high)
        estimates.append(Estimate(label, *difference, verdict.verdict or ""))
    chart = forest_plot("forest", f"Claims of {data.paper}: differences x 100", estimates) if estimates else None
    other = any(verdict.claim.in_place_of for verdict in data.verdicts)
    return html.render("papers/claims.html", data=data, chart=chart, rows=rows(data), verdicts=VERDICTS, other=other)


def rows(data: ClaimsData) -> list[Sequence[str]]:
    """Return the rows of the table, its header first."""
    return [HEADS, *map(_row, data.verdicts)]


def _row(result: ClaimVerdict) -> Sequence[str]:
    """Return a claim as a row of text, with values times 100."""
    claim = result.claim
    says = claim.title + (" (transductive)" if result.transductive else "")
    if result.a is None or result.b is None or result.difference is None:
        return says, claim.source, claim.printed, "", "", "", f"not measured: {result.why}"
    counts = " and ".join(str(count) for count in (result.models[1], result.models[0]))
    measured = f"{100 * result.b:.2f} -> {100 * result.a:.2f} ({counts} models; {', '.join(result.on)})"
    interval = (
        "" if result.low is None or result.high is None else f" [{100 * result.low:+.2f}, {100 * result.high:+.2f}]"
    )
    p = format_p(result.p_holm)
    verdict = (
        f"not measured: {result.why}" if result.why else result.verdict or "nothing is concluded without resamples"
    )
    return says, claim.source, claim.printed, measured, f"{100 * result.difference:+.2f}{interval}", p, verdict


def to_markdown(data: ClaimsData) -> str:
    """Return the table as Markdown."""
    header = f"`{data.command}`\n\n{data.seeds} seeds from {data.backbone}, {data.created_at}\n\n"
    return header + html.markdown_table(rows(data))


def text(data: ClaimsData) -> str:
    """Return the claims of a paper for a terminal, one a line."""
    shown = [_row(verdict) for verdict in data.verdicts]
    width = max(len(cells[-1].partition(":")[0]) for cells in shown)
    lines = [f"{data.paper}: {data.seeds} seeds from {data.backbone}"]
    for says, source, printed, _, difference, _, conclusion in shown:
        verdict, _, why = conclusion.partition(": ")
        paper = f"; {printed}" if printed else ""
        lines.append(f"  {verdict:<{width}}  {says}  {' '.join(filter(None, (difference, why)))}  ({source}{paper})")
    return "\n".join(lines)

"""Verdicts on a paper's claims, from differences of two systems with paired intervals."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
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
from raysts.evaluation.scores import ModelScores
from raysts.evaluation.standings import Value
from raysts.evaluation.statistics import holm
from raysts.evaluation.sts import Pairs
from raysts.evaluation.tasks import Representation
from raysts.models.prompts import Text
from raysts.papers.claims import CLAIMS, STAND_INS, Claim, Side
from raysts.papers.experiments import EXPERIMENTS
from raysts.papers.published import BACKBONES
from raysts.pipeline.inputs import TINY
from raysts.pipeline.plan import Plan
from raysts.pipeline.verdict import ABOUT_TINY
from raysts.recipes.recipe import Pipeline
from raysts.report import html
from raysts.report.charts import Estimate, forest_plot
from raysts.report.run import environment
from raysts.storage.store import Store

SEEN, NOT_SEEN, CONTRADICTED, AS_NO = "seen", "not seen", "contradicted", "no gain, as the paper says"
LEVEL = 0.05
OVERLAP, LONGER = "word overlap", "longer sentence"
"""Systems of claims that need no model."""
ALIKE = "both systems give identical answers"
"""As two constants do: neither that one is above the other nor that it is not can be seen of them."""


def agenda(
    paper: str, pipelines: Mapping[str, Pipeline], corpus: Corpus, stand_ins: bool
) -> tuple[dict[Claim, str | None], dict[str, Pipeline], list[str]]:
    """Return what a corpus and an experiment's pipelines can measure of a paper, known before training.

    That is each claim with the reason why it cannot be measured, or None; the pipelines of measurable claims by point; notes.
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
        pipelines = {name: p.replace(evaluation=p.evaluation.replace(tasks=tasks)) for name, p in pipelines.items()}
    larger = {point.name for point in EXPERIMENTS[f"claims-{paper}"].points if point.larger}
    backbone = Path(first.backbone).name.lower()

    def obstacle(claim: Claim) -> str | None:
        if claim.backbone and not re.fullmatch(BACKBONES[claim.backbone].names, backbone):
            return f"the paper says it of {claim.backbone}"
        for point in (side.point for side in claim.sides if side.point not in (*pipelines, OVERLAP, LONGER)):
            needs_two = "needs two encoders, --set backbone=[SMALLER,LARGER]"
            return needs_two if point in larger else f"'{point}' cannot be made of word vectors"
        if {*claim.tasks} & {*tasks}:
            return None
        available = any(_exists(task, corpus) for task in claim.tasks)
        return f"{'not among evaluation.tasks' if available else 'no test set'}: {', '.join(claim.tasks)}"

    claims = {claim: obstacle(claim) for claim in (could if stand_ins else CLAIMS[paper])}
    measured = {side.point for claim, why in claims.items() if why is None for side in claim.sides}
    notes = []
    if reasons := Counter(why for why in claims.values() if why):
        message = f"{reasons.total()} of {len(claims)} claims cannot be measured with {corpus.where}: {_count(reasons)}"
        if substituted and not stand_ins:
            holds = f"{substituted.total()} of them: {_count(substituted)}"
            message += f"; 'raysts claims {paper} --stand-ins' holds {holds}"
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
    return claims, needed, [f"{paper}: {note}" for note in notes]


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


class ClaimVerdict(NamedTuple):
    """A claim with its measurement. Values are not times 100."""

    claim: Claim
    a: float | None = None
    b: float | None = None
    models: tuple[int, int] = (0, 0)
    on: tuple[str, ...] = ()  # the compared sets; empty if they could not be compared
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    # Of no difference: Williams' (McNemar's) for two single models on one set, else the bootstrap's.
    p: float | None = None
    p_holm: float | None = None  # the same, adjusted for the claims of its table
    transductive: bool = False
    verdict: str | None = None  # a key of ``VERDICTS``; None: no conclusion
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
    command: str
    created_at: str
    backbone: str
    seeds: int
    steps: int
    verdicts: Sequence[ClaimVerdict]
    environment: Mapping[str, str]

    @property
    def origin(self) -> str:
        return f"{self.seeds} seeds from {self.backbone}, at most {self.steps:,} training steps a member"

    @property
    def summary(self) -> str:
        """Return how many claims have each verdict, those that are seen first."""
        counts = Counter(_row(verdict)[1].partition(":")[0] for verdict in self.verdicts)
        places = [SEEN, AS_NO, NOT_SEEN, CONTRADICTED]
        order = sorted(counts, key=lambda verdict: places.index(verdict) if verdict in places else len(places))
        return f"of {len(self.verdicts)} claims: {'; '.join(f'{counts[verdict]} {verdict}' for verdict in order)}"


def claims_data(paper: str, claims: Mapping[Claim, str | None], plans: Mapping[str, Plan], command: str) -> ClaimsData:
    """Return the verdicts on a paper's claims (of :func:`agenda`) by the finished pipelines."""
    first = next(iter(plans.values()))
    sets = {on for claim in claims for on in claim.on}
    baselines = baseline_scores(first.corpus, [task for task in first.tasks if task in sets])
    verdicts = [
        ClaimVerdict(claim=claim, why=why) if why else _compare(claim, plans, baselines)
        for claim, why in claims.items()
    ]
    backbones = " and ".join(dict.fromkeys(plan.pipeline.backbone for plan in plans.values()))
    seeds = max(plan.pipeline.members for plan in plans.values())
    made_at, storage = datetime.now(UTC).isoformat(timespec="seconds"), Store.of(first.storage).uri
    steps = max(member.record.get("steps") or 0 for plan in plans.values() for member in plan.members)
    about = environment(first.members[0].record, data=first.corpus.where, storage=storage)
    return ClaimsData(paper, command, made_at, backbones, seeds, steps, conclude(verdicts), about)


def conclude(verdicts: Sequence[ClaimVerdict]) -> list[ClaimVerdict]:
    """Return the verdicts with p values adjusted by table.

    A difference is shown if both interval and adjusted p show it.
    """
    concluded = list(verdicts)
    for table in {verdict.claim.table for verdict in verdicts}:
        tested = [i for i, verdict in enumerate(verdicts) if verdict.claim.table == table and verdict.p is not None]
        for i, p in zip(tested, holm([verdicts[i].p or 0.0 for i in tested]), strict=True):
            concluded[i] = verdicts[i]._replace(p_holm=p, verdict=_verdict(verdicts[i], p))
    return concluded


def _verdict(result: ClaimVerdict, p: float) -> str | None:
    if result.low is None or result.high is None:
        return None
    is_above, is_below = p < LEVEL and result.low > 0, p < LEVEL and result.high < 0
    if not result.claim.holds:
        return CONTRADICTED if is_above else AS_NO
    if is_above:
        return SEEN
    return CONTRADICTED if is_below else NOT_SEEN


def _compare(claim: Claim, plans: Mapping[str, Plan], baselines: Mapping[str, ModelScores]) -> ClaimVerdict:
    """Return the difference of a claim's two systems, with an unadjusted p value."""
    sides = [_models(side, plans, baselines) for side in claim.sides]
    on = [name for name in claim.on if all(models and all(name in model for model in models) for models in sides)]
    if not on:
        return ClaimVerdict(claim=claim, why=f"no scores at these layers: {', '.join(claim.on)}")
    systems = [[{name: model[name] for name in on} for model in models] for models in sides]
    pairs = zip(claim.sides, systems, strict=True)
    a, b, *over = ([max(models, key=_mean)] if side.role == "best member" else models for side, models in pairs)
    if claim.measure == "spread" and min(len(a), len(b)) < 2:
        return ClaimVerdict(claim=claim, why="models of several seeds are needed: --seeds 2 or more")
    resamples = next(iter(plans.values())).pipeline.evaluation.resamples
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
        claim=claim, a=row["a"], b=row["b"], models=(len(a), len(b)), on=tuple(on), difference=row["difference"],
        low=row["ci_low"], high=row["ci_high"], p=None if constant else p, why=ALIKE if constant else None,
        transductive=any(_reads_targets(side, plans) for side in claim.sides),
    )  # fmt: skip


def _reads_targets(side: Side, plans: Mapping[str, Plan]) -> bool:
    """Return True if a system is fitted on the sentences of the test sets."""
    if side.point not in plans or side.role == "backbone":
        return False
    pipeline = plans[side.point].pipeline
    recipes = pipeline.recipes if side.role == "model" else pipeline.stages
    return any(recipe.table == TARGETS for recipe in recipes.values())


def baseline_scores(corpus: Corpus, tasks: Sequence[str]) -> dict[str, ModelScores]:
    """Return the row scores of what needs no model: the Jaccard index of words, and the longer sentence."""
    sets = harness.sets_of(corpus, tasks)
    place = {text: index for index, text in enumerate(harness.distinct_texts(sets))}
    words = [frozenset(str(text).lower().split()) for text in place]

    def represent(texts: Sequence[Text]) -> Representation:
        return {"vectors": np.array([place[text] for text in texts])}

    def overlap(a: Representation, b: Representation) -> np.ndarray:
        pairs = ((words[i], words[j]) for i, j in zip(a["vectors"], b["vectors"], strict=True))
        return np.array([len(first & second) / max(1, len(first | second)) for first, second in pairs])

    overlaps = harness.row_scores(
        [labelled for labelled in sets if isinstance(labelled, Pairs)], represent, {OVERLAP: overlap}
    )
    directions = harness.row_scores([labelled for labelled in sets if isinstance(labelled, Direction)], represent, {})
    scores = {OVERLAP: overlaps, LONGER: [row for row in directions if row.role == "baseline"]}
    return {name: {of_set.dataset: of_set for of_set in of_name} for name, of_name in scores.items()}


def _models(side: Side, plans: Mapping[str, Plan], baselines: Mapping[str, ModelScores]) -> list[ModelScores]:
    """Return the row scores of a system's models at its layers, empty without models."""
    if side.point in baselines:
        return [baselines[side.point]] if baselines[side.point] else []
    plan = plans[side.point]
    outcome = next(iter(plan.soups), "member") if not plan.outcomes else "student"
    members = dict.fromkeys(("members", "best member", "ensemble"), "member")
    role = {"model": outcome, **members}.get(side.role, side.role)
    node = next(node for node in plan.evaluations if node.role == role)
    models = [side.role] if side.role in ("ensemble", "backbone") else [model.id for model in node.models]
    layers, scores = str(side.layers or plan.pipeline.compared_layers), []
    for model in models:
        by_choice = node.row_scores(model, side.similarity)
        only = next(iter(by_choice.values())) if len(by_choice) == 1 else {}
        scores.append(by_choice.get((node.pooling, layers)) or only)
    return scores if all(scores) else []


def _mean(model: ModelScores) -> float:
    rows = model.values()
    return Value.mean_of([row.value(row.metrics[0] if row.gold is None else "spearman") for row in rows]).value


# -- the page, its table as Markdown, and the text --------------------------------------------------------------------------

HEADS = ("Claim", "Verdict", "Difference", "p (Holm)", "Measured", "Published", "Source")
VERDICTS = {
    SEEN: "the difference is shown, in the paper's direction",
    NOT_SEEN: "no difference is shown",
    CONTRADICTED: "a difference is shown that the words of the claim exclude",
    AS_NO: "the paper says that it does not help, and no help is shown",
}


def write_report(data: ClaimsData, folder: Path) -> Path:
    """Write the page and ``claims.md`` into ``folder`` and return the page's path."""
    html.write_page(to_markdown(data), folder, "claims.md")
    return html.write_page(render(data), folder)


def render(data: ClaimsData) -> str:
    """Return the page as HTML."""
    estimates = []
    for claim, verdict in ((verdict.claim, verdict) for verdict in data.verdicts if verdict.why is None):
        if verdict.difference is not None and verdict.low is not None and verdict.high is not None:
            label = f"{claim.says} †" if claim.in_place_of else claim.says
            difference = (100 * verdict.difference, 100 * verdict.low, 100 * verdict.high)
            estimates.append(Estimate(label, *difference, verdict.verdict or ""))
    return html.render(
        "papers/claims.html",
        data=data,
        chart=forest_plot("forest", f"Claims of {data.paper}: differences x 100", estimates) if estimates else None,
        rows=rows(data),
        verdicts=VERDICTS,
        other=any(verdict.claim.in_place_of for verdict in data.verdicts),
        note=ABOUT_TINY if data.backbone == TINY else "",
    )


def rows(data: ClaimsData) -> list[Sequence[str]]:
    """Return the rows of the table, its header first."""
    return [HEADS, *map(_row, data.verdicts)]


def _row(result: ClaimVerdict) -> Sequence[str]:
    """Return a claim as a row of text, with values times 100."""
    claim = result.claim
    says = claim.title + (" (transductive)" if result.transductive else "")
    if result.a is None or result.b is None or result.difference is None:
        return says, f"not measured: {result.why}", "", "", "", claim.printed, claim.source
    counts = " and ".join(str(count) for count in (result.models[1], result.models[0]))
    measured = f"{100 * result.b:.2f} -> {100 * result.a:.2f} ({counts} models; {', '.join(result.on)})"
    difference = f"{100 * result.difference:+z.2f}"
    if result.low is not None and result.high is not None:
        difference += f" [{100 * result.low:+z.2f}, {100 * result.high:+z.2f}]"
    verdict = result.verdict or "nothing is concluded without resamples"
    if result.why:
        verdict = f"not measured: {result.why}"
    return says, verdict, difference, format_p(result.p_holm), measured, claim.printed, claim.source


def to_markdown(data: ClaimsData) -> str:
    """Return the table as Markdown."""
    header = f"`{data.command}`\n\n{data.origin}, {data.created_at}\n\n"
    return header + html.markdown_table(rows(data))


def text(data: ClaimsData) -> str:
    """Return the claims of a paper for a terminal, one a line."""
    shown = [_row(verdict) for verdict in data.verdicts]
    width = max(len(cells[1].partition(":")[0]) for cells in shown)
    lines = [f"{data.paper}: {data.summary}. {data.origin}"]
    for says, conclusion, difference, _, _, printed, source in shown:
        verdict, _, why = conclusion.partition(": ")
        paper = f"; {printed}" if printed else ""
        lines.append(f"  {verdict:<{width}}  {says}  {' '.join(filter(None, (difference, why)))}  ({source}{paper})")
    return "\n".join(lines)

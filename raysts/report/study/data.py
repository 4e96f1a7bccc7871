"""Content of the report of a study, from its records."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from raysts.evaluation.run_metric import RunMetric, rank
from raysts.pipeline.inputs import TINY
from raysts.pipeline.verdict import ABOUT_TINY
from raysts.recipes import names
from raysts.recipes.recipe import DISTILLATION
from raysts.recipes.tree import leaves, to_plain
from raysts.report.run.data import environment
from raysts.search.record import Record
from raysts.search.sampler import importance
from raysts.search.scores import PointScores, by_best_run, by_mean, verdict
from raysts.search.space import Point, text_of
from raysts.search.study import Study
from raysts.storage.store import Store


@dataclass(frozen=True, slots=True)
class PointResult:
    """Point of a study: values by option, scores of its finished trials, mean and deviation."""

    values: Point
    scores: Sequence[float]
    mean: float
    std: float | None
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class StudyData:
    """Content of the report of a study.

    Attributes:
        winning: the command that trains the chosen point.
        ended: values of finished trials in the order in which they ended.
        importance: share of each option in the variance of the scores. Empty if it cannot be estimated.
        reach: ends of the approximate 95 % interval of the best score over the rows of the development set, not times
            100. Empty if the score has no interval.
    """

    name: str
    command: str
    created_at: str
    headline: Sequence[str]
    winning: str | None
    metric: RunMetric
    options: Mapping[str, str]
    points: Sequence[PointResult]
    ended: Sequence[float]
    importance: Mapping[str, float]
    table: tuple[Sequence[str], Sequence[Sequence[Any]]]
    outcomes: Mapping[str, int]
    trial_seconds: float
    facts: Mapping[str, str]
    notes: Sequence[str]
    reach: Sequence[float] = ()


_ENDINGS = {"finished": "finished", "stopped": "stopped early", "infeasible": "infeasible"}


def report_data(study: Study) -> StudyData:
    """Read the content of the report of a study."""
    store, scores = Store.of(study.plan.storage), study.scores()
    about = store.read_json(study.folder / "study.json", fresh=True) or {}
    metric, space, records = study.search.objective, study.search.space, list(study.records.values())
    best = by_mean(scores, metric.mode)
    ranked = sorted(records, key=lambda r: -rank(r.value if r.status == "finished" else None, metric.mode))
    first = next((store.read_json(store.path(f"runs/{r.id}/run.json")) or {} for r in ranked), {})
    return StudyData(
        name=study.name,
        command=about.get("command", ""),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        headline=_headline(study, scores, about.get("untrained")),
        winning=winning_command(study, best) if best else None,
        metric=metric,
        options={key: dimension.text for key, dimension in space.items()},
        points=[PointResult(s.point, s.values, s.mean, s.std, s is best) for s in scores if s.mean is not None],
        ended=[r.value for r in records if r.status == "finished" and r.value is not None],
        importance=importance(study.search, scores),
        table=(
            [*(key.rsplit(".", 1)[-1] for key in space), "seed", metric.title, "status", "step", "seconds", "run"],
            [_trial(record, metric) for record in ranked],
        ),
        outcomes={text: sum(r.status == status for r in records) for status, text in _ENDINGS.items()},
        trial_seconds=sum(r.seconds or 0.0 for r in records),
        facts=environment(
            first, objective=about.get("objective", ""), data=study.plan.corpus.described, study=str(study.folder)
        ),
        reach=_reach(study, best),
        notes=[f"{text_of(point.point)}: {point.remark}." for point in scores if point.remark]
        + [ABOUT_TINY] * (study.search.pipeline.backbone == TINY),
    )


def _trial(record: Record, metric: RunMetric) -> list[Any]:
    value = None if record.value is None else metric.text(record.value)
    status = record.reason or record.status
    return [*record.point.values(), record.seed, value, status, record.step, record.seconds, record.id]


def _headline(study: Study, scores: Sequence[PointScores], untrained: float | None) -> list[str]:
    metric = study.search.objective
    best, run = by_mean(scores, metric.mode), by_best_run(scores, metric.mode)
    if best is None or best.mean is None or run is None:
        return ["No trial has finished."]
    score = mean_text(metric, best.mean, best.std, len(best.values), " seeds")
    sentences = [f"Chosen by mean over seeds: {text_of(best.point)}, {metric.described}: {score}."]
    sentences += [f"The backbone, before any training: {metric.text(untrained)}."] if untrained is not None else []
    sentences += [conclusion] if (conclusion := verdict(scores, metric.mode, study.search.usual)) else []
    if study.search.seeds > 1 and run.value is not None:
        sentences.append(f"The best single run: {text_of(run.point)} with seed {run.seed}: {metric.text(run.value)}.")
    return sentences


def mean_text(metric: RunMetric, mean: float, std: float | None, n: int, unit: str = "") -> str:
    """Return ``71.20 ± 0.31 over 10``, or only the mean if ``std`` is None."""
    return metric.text(mean) + (f" ± {metric.text(std)} over {n}{unit}" if std is not None else "")


def _reach(study: Study, best: PointScores | None) -> Sequence[float]:
    if best is None or best.mean is None or study.dev is None:
        return ()
    return study.search.objective.interval(best.mean, study.dev.size)


IN_DISTILL = ("name", "combine", "teachers", "members")
"""Options of a pipeline that are words of ``raysts distill``."""


def winning_command(study: Study, best: PointScores) -> str:
    """Return the command that trains the chosen point as its trials did.

    It names data, storage, and every option that differs from the default of the system.
    """
    search, plan = study.search, study.plan
    pipeline = search.at(best.point)
    words = ["run", pipeline.name]
    usual = leaves(to_plain(names.pipeline(f"sts-{DISTILLATION}" if pipeline.teachers else pipeline.name)))
    point_settings = leaves(to_plain(pipeline))
    if pipeline.teachers:  # whose defaults depend on the teachers
        words = ["distill", *pipeline.teachers]
        usual = {path: value for path, value in usual.items() if not path.startswith(f"recipes.{DISTILLATION}.")}
        point_settings = {
            path: value for path, value in point_settings.items() if path.partition(".")[0] not in IN_DISTILL
        }
    options = {path: value for path, value in point_settings.items() if path not in usual or usual[path] != value}
    texts = [f"{path.removeprefix('recipes.')}={_as_option(value)}" for path, value in options.items()]
    settings = [part for text in texts for part in ("--set", text)]
    places = ["--data", plan.corpus.uri] if plan.corpus.uri else []
    places += [*plan.corpus.user.arguments(), "--storage", Store.of(plan.storage).uri]
    skip = ["--skip-bad"] if plan.corpus.skip_bad else []
    return shlex.join(["raysts", *words, *settings, *places, *skip])


def _as_option(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)

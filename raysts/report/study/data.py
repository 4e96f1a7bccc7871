"""The report of a study, from its records."""

from __future__ import annotations

import os
import shlex
from datetime import UTC, datetime
from pathlib import Path

from raysts.evaluation.results import git_commit
from raysts.evaluation.run_metric import rank
from raysts.pipeline.validate import TINY
from raysts.report.charts.study_charts import Shown
from raysts.report.study.page import StudyData, score_text, write_study_report
from raysts.search.sampler import importance
from raysts.search.scores import PointScores, by_best_run, by_mean
from raysts.search.space import text_of
from raysts.search.study import Study
from raysts.storage.atomic import read_json


def write_report(study: Study, folder: Path) -> Path:
    """Write the report of a study; its path."""
    return write_study_report(report_data(study), folder)


def report_data(study: Study) -> StudyData:
    """Everything the report shows."""
    every, known = study.scores(), read_json(study.folder / "study.json") or {}
    metric, space = study.search.objective, study.search.space
    best = by_mean(every, metric.mode)
    records = sorted(
        study.records.values(), key=lambda r: -rank(r.value if r.status == "finished" else None, metric.mode)
    )
    head = [*(key.rsplit(".", 1)[-1] for key in space), "seed", metric.title, "status", "step", "seconds", "run"]
    rows = [
        [
            *r.point.values(),
            r.seed,
            None if r.value is None else metric.text(r.value),
            r.reason or r.status,
            r.step,
            r.seconds,
            r.id,
        ]
        for r in records
    ]
    first = next((read_json(study.plan.storage / "runs" / r.id / "run.json") or {} for r in records), {})
    return StudyData(
        name=study.name,
        command=known.get("command", ""),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        headline=_headline(study, every),
        winning=_winning(study, best) if best else None,
        metric=metric,
        options={key: dimension.text for key, dimension in space.items()},
        points=[Shown(s.point, s.values, s.mean, s.std, s is best) for s in every if s.mean is not None],
        ended=[r.value for r in study.records.values() if r.status == "finished" and r.value is not None],
        importance=importance(study.search, every),
        table=(head, rows),
        outcomes={
            shown: sum(r.status == status for r in records)
            for status, shown in (("finished", "finished"), ("stopped", "stopped early"), ("infeasible", "infeasible"))
        },
        trial_seconds=sum(r.seconds or 0.0 for r in study.records.values()),
        facts={
            **(first.get("versions") or {}),
            "device": first.get("device", ""),
            "host": os.uname().nodename,
            "objective": known.get("objective", ""),
            "data": study.plan.corpus.where,
            "study": str(study.folder),
            "git commit": git_commit() or "",
        },
        notes=[f"{text_of(each.point)}: {each.remark}." for each in every if each.remark] + _tiny(study),
    )


def _headline(study: Study, every: list[PointScores]) -> list[str]:
    metric = study.search.objective
    best, run = by_mean(every, metric.mode), by_best_run(every, metric.mode)
    if best is None or best.mean is None or run is None:
        return ["No trial has finished."]
    found = [
        f"Chosen by mean over seeds: {text_of(best.point)}, {metric.described}: "
        f"{score_text(metric, best.mean, best.std, len(best.values))}."
    ]
    if study.search.seeds > 1 and run.value is not None:
        found.append(f"The best single run: {text_of(run.point)} with seed {run.seed}: {metric.text(run.value)}.")
    return found


def _winning(study: Study, best: PointScores) -> str:
    search = study.search
    sets = {"backbone": search.pipeline.backbone, **best.point}
    arguments = [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
    return shlex.join(["raysts", "run", search.pipeline.name, *arguments, "--set", f"members={search.seeds}"])


def _tiny(study: Study) -> list[str]:
    if study.search.pipeline.backbone != TINY:
        return []
    return [
        "The backbone is a small randomly initialised BERT for the embedded world; its scores say nothing about real text."
    ]

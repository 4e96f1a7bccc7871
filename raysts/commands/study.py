"""Execution of a search for the commands: its checked study, and its trials here or on a cluster."""

import contextlib
import functools
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from raysts.commands.context import IN_PROCESS, check_name, plan_of, preflight, ray_context
from raysts.commands.options import Result, RunOptions
from raysts.errors import InputError, RunFailed
from raysts.evaluation.dev import LOSS
from raysts.log import log_file, say, screen
from raysts.pipeline import validate
from raysts.pipeline.executor import Executor, LocalExecutor
from raysts.report.study import write_report
from raysts.search import scores
from raysts.search.queue import RunTrials, SearchProgress, run_locally, run_session
from raysts.search.search import Search, configure, find_search
from raysts.search.study import Study, earlier_points
from raysts.training.trackers import LIVE, TrackerThread, open_tools


def plan_study(search: str | Search, overrides: Mapping[str, Any], options: RunOptions) -> Study:
    """Return the checked study of a search. Start nothing and write nothing.

    Raises:
        InputError: a problem that would stop the search later.
    """
    chosen = find_search(search, overrides) if isinstance(search, str) else configure(search, overrides)
    check_name(options.name)
    plan = plan_of(chosen.pipeline_at({}), options)
    validate.check(plan)
    study = Study(chosen, plan, options.name or chosen.name)
    table, metric = chosen.measured_recipe.spec.dev, chosen.objective.name
    if study.dev is None and metric != LOSS:
        raise InputError(
            f"metric={metric}: is a score on '{table}', a table that {plan.corpus.where} does not have, "
            f"so trials report {LOSS} alone; --set metric={LOSS} goes by that{plan.corpus.describe_replacement(table)}"
        )
    if study.dev is not None and metric not in (*study.dev.metrics, LOSS):
        if chosen.metric:
            raise InputError(
                f"metric={metric}: the development set {study.dev.name} has {', '.join(study.dev.metrics)}; remove metric "
                f"to compare trials by the first of these, or go by --set metric={LOSS}"
            )
        study = Study(chosen.replace(judge=study.dev.metrics[0]), plan, study.name)
    by_dev = {"asha": chosen.asha, "median": chosen.median, "cost=latency": chosen.cost == "latency"}
    if study.dev is None and (option := next((option for option, value in by_dev.items() if value), "")):
        raise InputError(
            f"{option}: goes by the evaluations on '{table}', which {plan.corpus.where} does not have"
            f"{plan.corpus.describe_replacement(table)}"
        )
    study.check_data()
    study.check()
    return study


def run_study(study: Study, options: RunOptions, *, warm_start: str | None = None) -> Result:
    """Run a planned study to its end, with arguments and result of :func:`raysts.tune`."""
    earlier = earlier_points(study, warm_start) if warm_start else []
    if options.address == IN_PROCESS and (study.search.asha is not None or study.search.median):
        raise InputError(
            "asha, median: need trials that train at once, and --address none trains them one after the other"
        )
    tools = open_tools(options.track, study.name, study.folder / "tensorboard" / LIVE)
    progress = SearchProgress(study)
    study.store.check(writes=True)
    study.read()
    lock = f"locks/study-{study.name}.lock"
    with screen.working(), contextlib.ExitStack() as parts:
        place = functools.cache(lambda: parts.enter_context(_place(study, options, progress)))
        if not study.complete:
            place()  # before anything is written, because the cluster may refuse the trials
        parts.enter_context(study.store.lock(lock, f"raysts tune {study.name}", protects=study.folder))
        log = parts.enter_context(study.store.append(f"logs/study-{study.name}.log"))
        parts.enter_context(log_file(log))
        parts.enter_context(TrackerThread(tools, study.store, f"studies/{study.name}"))
        study.open(options.command or f"raysts tune {study.search.name}")
        failures = run_session(study, earlier, lambda: place()(), progress)
        report = write_report(study, study.store.path(f"reports/study-{study.name}"))
    if failures:
        total = study.search.points * study.search.seeds
        failures.append(
            f"{len(study.records)} of {total} trials have ended; run the same command again to go on from there"
        )
        raise RunFailed("\n".join(failures))
    if study.best_point is None:
        reasons = dict.fromkeys(record.reason for record in study.records.values() if record.reason)
        raise RunFailed(f"no trial of {study.name} finished: {'; '.join(reasons) or 'all were stopped early'}")
    return _result(study, report)


@contextlib.contextmanager
def _place(study: Study, options: RunOptions, progress: SearchProgress) -> Iterator[Callable[[], RunTrials]]:
    """Yield what prepares the place where trials train, for the block."""
    trial_resources = study.search.pipeline.resources
    if options.address == IN_PROCESS:

        def train_locally() -> RunTrials:
            _prepare(study, LocalExecutor(threads=trial_resources.cpus), 1, options, progress)
            return lambda queue, progress: run_locally(queue, progress, trial_resources)

        yield train_locally
        return
    with ray_context(options.address) as private, preflight(private, study.plan) as seen:
        from raysts.cluster import capacity
        from raysts.cluster import tune as on_tune
        from raysts.cluster.executor import RayExecutor

        capacity.check_resources(trial_resources, private)

        def train_on_cluster() -> RunTrials:
            resources = on_tune.per_trial(study)
            capacity.announce(resources)
            at_once = capacity.slot_count(resources)
            concurrent = min(at_once, study.search.concurrency or at_once)
            with contextlib.closing(RayExecutor(seen)) as executor:
                _prepare(study, executor, concurrent, options, progress)
            return lambda queue, progress: on_tune.run_on_ray(queue, progress, resources)

        yield train_on_cluster


def _prepare(study: Study, executor: Executor, concurrent: int, options: RunOptions, progress: SearchProgress) -> None:
    price = study.price(concurrent, options.prices)
    say(price.text)
    if not study.about.get("price"):  # that of the first session stays
        study.update(price=price.amounts)
    study.prepare(executor)
    study.score_backbone(executor)
    progress.expect(study.price(concurrent))
    unit, keep = study.search.by, study.search.keep
    best = f"best {unit}" if keep == 1 else f"{keep} best {unit}s"
    say(f"trials at once: {concurrent}; keeps the models of the {best}{', with all seeds' * (unit == 'point')}")


def _result(study: Study, report: Path) -> Result:
    points, metric = study.scores(), study.search.objective
    best, run = study.best_point, scores.best_trial(points, metric.mode)
    command = ["raysts", "distill", "--from-study", study.name, "--storage", study.store.uri]
    if best and (varied := {"backbone", "backbone_layers"} & best.point.keys()):  # trials of several starting models
        settings = {"backbone": study.plan_at(best.point).pipeline.backbone} | {key: best.point[key] for key in varied}
        command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return {
        "status": "done",
        "storage": study.store.uri,
        "name": study.name,
        "study": str(study.folder),
        "report": str(report),
        "metric": metric.name,
        "mode": metric.mode,
        "trials": sum(len(point.finished_trials) for point in points),
        "best": {"overrides": best.point, "value": best.mean} if best else None,
        "best_run": {"overrides": run.point, "seed": run.seed, "value": run.value, "run": run.id} if run else None,
        "points": [
            {"overrides": r.point, "seed": r.seed, "value": r.value, "status": r.status, "run": r.id}
            | ({"cost": r.cost} if study.search.cost else {})
            for point in points
            for r in point.records
        ],
        **({"front": [p.point for p in scores.front(points, metric.mode)]} if study.search.cost else {}),
        "untrained": study.backbone_score,
        "table": scores.table(points, metric, study.search.usual, study.backbone_score, cost=study.search.cost),
        "next": shlex.join(command),
        "skipped": study.plan.skipped_files,
    }

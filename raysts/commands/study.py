"""Work of the commands with a study: its plan, its trials, and its records."""

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from raysts.commands.context import IN_PROCESS, check_name, on_ray, plan_of, preflight
from raysts.commands.options import Result, RunOptions
from raysts.data.parquet import skipped_line
from raysts.errors import InputError, RunFailed, nearest
from raysts.evaluation.run_metric import LOSS, rank, reported
from raysts.pipeline.local import Executor, LocalExecutor, Say
from raysts.pipeline.plan import describe
from raysts.pipeline.steps.tokens import tokens_step
from raysts.recipes import names
from raysts.recipes.overrides import apply_overrides
from raysts.recipes.recipe import Pipeline
from raysts.recipes.tree import built
from raysts.report.study.data import report_data
from raysts.report.study.page import write_report
from raysts.search import named, scores
from raysts.search.local import run_locally
from raysts.search.progress import SearchProgress
from raysts.search.queue import TrialQueue
from raysts.search.record import Record, read_records
from raysts.search.sampler import View
from raysts.search.search import Search, configured
from raysts.search.space import Point, grid, text_of
from raysts.search.study import Study
from raysts.storage.store import Store
from raysts.training.tensorboard import write_scalars

RunTrials = Callable[[TrialQueue, SearchProgress], None]
Place = Callable[[Say], RunTrials]
"""Function that prepares the data and the backbone for the trials, and returns their trainer."""


def planned(search: str | Search, overrides: Mapping[str, Any], options: RunOptions) -> Study:
    """Return the checked study of a search. Start nothing and write nothing.

    Raises:
        InputError: a problem that would stop the search later.
    """
    chosen = named.search(search, overrides) if isinstance(search, str) else configured(search, overrides)
    check_name(options.name)
    plan = plan_of(chosen.pipeline.updated(members=chosen.seeds), options)
    plan.check()
    study = Study(chosen, plan, options.name or chosen.name)
    if study.dev is None and chosen.metric != LOSS:
        raise InputError(
            f"metric={chosen.metric}: is a score on '{study.spec.dev}', a table that {plan.corpus.where} does not have, "
            f"so trials report {LOSS} alone; --set metric={LOSS} goes by that{plan.corpus.instead(study.spec.dev)}"
        )
    if study.dev is not None and chosen.metric not in (*study.dev.metrics, LOSS):
        raise InputError(
            f"metric={chosen.metric}: the development set {study.dev.name} has {', '.join(study.dev.metrics)}, and a search "
            f"compares trials by scored pairs; give --dev NAME=FILE with such alone, or go by --set metric={LOSS}"
        )
    if study.dev is None and chosen.asha is not None:
        raise InputError(
            f"asha: goes by what trials report at dev evaluations, and {plan.corpus.where} has no '{study.spec.dev}'"
        )
    study.check_data()
    study.check()
    return study


def run_study(
    study: Study,
    options: RunOptions,
    *,
    warm_start: str | None = None,
    mlflow: str | None = None,
    wandb: str | None = None,
) -> Result:
    """Run a planned study to its end, with arguments and result of :func:`raysts.tune`."""
    earlier = _earlier_points(study, warm_start) if warm_start else []
    if options.address == IN_PROCESS and study.search.asha is not None:
        raise InputError("asha: needs trials that train at once, and --address none trains them one after the other")
    _check_tools(options.address, mlflow, wandb)
    place_of = partial(_place, study, options, mlflow, wandb)
    study.store.check(writes=True)
    study.read()
    # Connect to the cluster before anything is written, because it may refuse the trials.
    with (
        contextlib.nullcontext() if study.complete else place_of() as place,
        study.store.lock(f"locks/study-{study.name}.lock", f"raysts tune {study.name}", of=study.folder),
    ):
        study.open(options.command or f"raysts tune {study.search.name}")
        return _run(study, earlier, options, place, place_of)


def _run(
    study: Study,
    earlier: Sequence[tuple[Point, float]],
    options: RunOptions,
    place: Place | None,
    place_of: Callable[[], AbstractContextManager[Place]],
) -> Result:
    study.reuse_grid()
    study.cleanup()
    if lost := study.take_back():
        options.say(
            f"{study.name}: {len(lost)} models that are kept are gone or damaged; their trials are trained again"
        )
    view = View(study.folder / "optuna.db", study.name, study.search, options.say)
    view.rebuild(study.records.values())
    failures: list[str] = []
    with SearchProgress(study, options.say) as progress:
        for record in study.records.values():
            _write_scalars(study, record)
        for skipped in study.plan.skipped:
            progress.say(skipped_line(skipped))
        progress.say(f"{study.name}: {progress.total} trials, {len(study.records)} have ended; study: {study.folder}")
        if not study.complete:

            def record_end(record: Record) -> None:
                view.add(record)
                _write_scalars(study, record)
                progress.ended(record)

            with contextlib.nullcontext(place) if place else place_of() as made_ready:
                run = made_ready(progress.say)
                queue = TrialQueue(study, earlier, record_end)
                run(queue, progress)
                failures = queue.failures
    best = scores.by_mean(study.scores(), study.search.objective.mode)
    study.close("failed" if failures or best is None else "done")
    report = write_report(report_data(study), study.store.path(f"reports/study-{study.name}"))
    if failures:
        raise RunFailed(
            "\n".join(failures)
            + f"\n{len(study.records)} of {progress.total} trials have ended; run the same command again to go on from there"
        )
    if best is None:
        reasons = dict.fromkeys(record.reason for record in study.records.values() if record.reason)
        raise RunFailed(f"no trial of {study.name} finished: {'; '.join(reasons) or 'all were stopped early'}")
    return _result(study, report)


def described(study: Study) -> tuple[list[dict[str, Any]], Point | None]:
    """Return the steps of a search as plain data, and its best point, or None before its end."""
    study.read()
    steps = [tokens_step(study.plan, spec) for spec in study.plan.specs.values()]
    for point in grid(study.search.space) or []:
        for seed in range(study.search.seeds):
            steps.append(replace(study.step(point, seed), title=f"{text_of(point)} seed {seed}"))
    nodes: list[dict[str, Any]] = describe(study.plan, steps)["nodes"]
    for node in nodes:
        if node["id"] in study.records:
            node["status"] = "done"
    best = scores.by_mean(study.scores(), study.search.objective.mode) if study.complete else None
    return nodes, best.point if best else None


def _check_tools(address: str | None, mlflow: str | None, wandb: str | None) -> None:
    for tool, value, rule in (
        ("mlflow", mlflow, "a tracking URI, such as sqlite:///runs.db"),
        ("wandb", wandb, "the name of a project"),
    ):
        if value is None:
            continue
        if not value.strip():
            raise InputError(f"--{tool} '': is empty and must be {rule}")
        if address == IN_PROCESS:
            raise InputError(
                f"--{tool}: Ray Tune sends the trials there, and --address none trains without Ray; leave out the one or the "
                "other (tensorboard --logdir STUDY/tensorboard shows the trials either way)"
            )
        if importlib.util.find_spec(tool) is None:
            raise InputError(
                f"--{tool}: is not installed here; pip install {tool} (or raysts[{tool}]), or leave the option out"
            )


def _write_scalars(study: Study, record: Record) -> None:
    """Write the curves of a trial for TensorBoard, with its point in the HPARAMS tab."""
    name = f"{text_of(record.point)} seed={record.seed} {record.id[:6]}".replace("/", "_")
    folder = study.folder / "tensorboard" / name
    if study.store.exists(folder):
        return
    selected = None if record.value is None else (record.step or 0, record.value)
    point = {key: value if isinstance(value, int | float) else str(value) for key, value in record.point.items()}
    start = datetime.fromisoformat(record.finished_at).timestamp() - (record.seconds or 0.0)
    write_scalars(folder, study.metrics(record), start, {**point, "seed": record.seed}, selected)


@contextlib.contextmanager
def _place(study: Study, options: RunOptions, mlflow: str | None, wandb: str | None) -> Iterator[Place]:
    """Yield the place where trials train, for the block. Tools receive the trials from it."""
    trial_resources = study.search.pipeline.resources
    if options.address == IN_PROCESS:

        def train_locally(say: Say) -> RunTrials:
            _prepare(study, LocalExecutor(threads=trial_resources.cpus), 1, say)
            return lambda queue, progress: run_locally(queue, progress, trial_resources)

        yield train_locally
        return
    with on_ray(options.address) as private, preflight(private, study.plan) as seen:
        from raysts.cluster import capacity
        from raysts.cluster import tune as on_tune
        from raysts.cluster.executor import RayExecutor

        capacity.check_resources(trial_resources, private)
        loggers = on_tune.loggers(study, mlflow, wandb, options.say)

        def train_on_cluster(say: Say) -> RunTrials:
            study.plan.write_backbone()
            resources = on_tune.per_trial(study)
            capacity.announce(resources, say)
            at_once = capacity.at_once(resources)
            _prepare(study, RayExecutor(seen), min(at_once, study.search.concurrency or at_once), say)
            return lambda queue, progress: on_tune.run_on_ray(queue, progress, resources, loggers)

        yield train_on_cluster


def _prepare(study: Study, executor: Executor, concurrent: int, say: Say) -> None:
    study.plan.write_backbone()
    study.tokenize(executor, say)
    study.score_backbone(executor, say)
    unit = "point with all its seeds" if study.search.by == "point" else "trial"
    say(f"trials at once: {concurrent}; keeps the models of the best {unit} ({study.search.keep})")


def _result(study: Study, report: Path) -> Result:
    points, metric = study.scores(), study.search.objective
    best, run = scores.by_mean(points, metric.mode), scores.by_best_run(points, metric.mode)
    return {
        "status": "done",
        "storage": study.store.uri,
        "name": study.name,
        "study": str(study.folder),
        "report": str(report),
        "metric": metric.name,
        "mode": metric.mode,
        "trials": sum(len(point.finished) for point in points),
        "best": {"overrides": best.point, "value": best.mean} if best else None,
        "best_run": {"overrides": run.point, "seed": run.seed, "value": run.value, "run": run.id} if run else None,
        "points": [
            {"overrides": r.point, "seed": r.seed, "value": r.value, "status": r.status, "run": r.id}
            for point in points
            for r in point.records
        ],
        "untrained": study.untrained,
        "table": scores.table(points, metric, study.search.usual, study.untrained),
        "skipped": study.plan.skipped,
    }


def study_record(store: Store, name: str) -> tuple[dict[str, Any], list[Record]]:
    """Return the record of the study called ``name`` and the records of its trials."""
    record = store.read_json(f"studies/{name}/study.json", fresh=True)
    if record is None:
        studies = [path.parent.name for path in store.get_all("studies", "study.json")]
        raise InputError(
            f"no study '{name}' in {store.uri}{nearest(name, studies)}; it holds: {', '.join(studies) or 'none'}"
        )
    return record, read_records(store.path(f"studies/{name}"))


def best_point(record: Mapping[str, Any], trials: Sequence[Record], top: int | None) -> Pipeline:
    """Return the system that distils a student from the best point of a study."""
    best = scores.by_mean(scores.grouped(trials, record["seeds"]), record.get("mode", "max"))
    if best is None or not best.whole:
        raise InputError(
            f"--from-study {record['name']}: no point of it has all its {record['seeds']} seeds yet; finish it first with: "
            f"{record['command']}"
        )
    if top is not None and top < 1:
        raise InputError(f"--top {top}: must be at least 1")
    searched = built(Pipeline, record["pipeline"])
    system = names.pipeline(f"{searched.name}-sed")
    return system.updated(
        backbone=searched.backbone,
        seed=searched.seed,
        resources=searched.resources,
        recipes={**system.recipes, **apply_overrides(searched, best.point).recipes},
        members=top or record["seeds"],
    )


def best_models(record: Mapping[str, Any], trials: Sequence[Record], store: Store, top: int | None) -> list[str]:
    """Return the run ids of the trials with kept models, best first."""
    finished = [trial for trial in trials if trial.status == "finished"]
    finished.sort(
        key=lambda trial: (-rank(trial.value, record.get("mode", "max")), trial.id)
    )  # the order of a study's best run
    models = [trial.id for trial in finished if store.exists(f"runs/{trial.id}/model")]
    if not models:
        raise InputError(f"--from-study {record['name']}: it keeps no model; go on with it: {record['command']}")
    if top is not None and not 1 <= top <= len(models):
        raise InputError(
            f"--top {top}: must be from 1 to the number of models that study '{record['name']}' keeps, {len(models)}"
        )
    return models[:top]


def _earlier_points(study: Study, name: str) -> list[tuple[Point, float]]:
    """Return the points of another study in the space of this one, with their mean scores."""
    if study.search.num_samples is None:
        raise InputError("--warm-start: a search of every point of a grid learns nothing; set num_samples to sample it")
    if name == study.name:
        raise InputError(f"--warm-start {name}: is this study itself, which goes on anyway")
    record, trials = study_record(study.store, name)
    metric = record.get("metric", reported(study.spec.dev)[0])
    if metric != study.search.metric:
        raise InputError(
            f"--warm-start {name}: goes by {metric}, this search by {study.search.metric}: take the same metric"
        )
    space = study.search.space
    fitting = [
        (scored.point, scored.score)
        for scored in scores.grouped(trials, record["seeds"])
        if scored.score is not None
        and scored.point.keys() == space.keys()
        and all(space[key].holds(value) for key, value in scored.point.items())
    ]
    if not fitting:
        raise InputError(
            f"--warm-start {name}: none of its points lies in this search's space ({', '.join(space)}); leave it out"
        )
    return fitting

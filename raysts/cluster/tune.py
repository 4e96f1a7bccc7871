"""Searches on Ray Tune with points of Optuna.

Each session makes a new Tuner of the trials that a study has left: after a kill Ray's snapshots and Optuna's database may
disagree, the records of the study cannot.
"""

from __future__ import annotations

import gc
import math
import os
import re
from collections import Counter, deque
from dataclasses import replace
from functools import cache, partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, NamedTuple

import ray
import ray.tune
import torch
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, MedianStoppingRule, TrialScheduler
from ray.tune.search import Searcher

from raysts.cluster.capacity import Room, holds, may_grow, resolve_gpus, slot_count
from raysts.cluster.connect import quiet_data
from raysts.cluster.metrics import show_line
from raysts.errors import RunFailed, redact
from raysts.evaluation.dev import Dev, RunMetric
from raysts.log import say
from raysts.models.pretrained import weight_bytes
from raysts.pipeline.executor import fail
from raysts.recipes.recipe import Resources
from raysts.search.queue import SearchProgress, TrialQueue
from raysts.search.study import Study
from raysts.search.trial import Trial, TrialOutcome, TrialRuntime, run_trial

METRIC, FRACTION, ACTOR = "metric", "fraction", "actor"
"""Keys of a result: the value that the search optimises, the percent of its steps that a trial has trained, by which early
stopping goes, and in the first result the id of its process."""

KILLED_FOR_MEMORY = re.compile(r"Selected to kill: \(Actor\((\w+)\)")
"""The part of Ray's text about a kill that names the process. Without it every running trial is counted and tried alone."""

SMALL = 200 * 2**20  # bytes of weights below which a trial takes a quarter of a GPU unless the search says otherwise
DEATHS = 3  # of its process that a trial survives, each from its last checkpoint
MEMORY_KILLS = 2  # after which a point is infeasible: before the second one its trial was alone
SAMPLED = 8  # trials that a sampler asks for where a cluster may grow: it learns from those that have ended

ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",  # the new one prints tables whatever the verbosity
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the study has its own records
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C is ours
    "TUNE_GLOBAL_CHECKPOINT_S": "1e9",  # nobody reads Tune's snapshots
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "1000000",
}


def per_trial(study: Study) -> Resources:
    """Return what a trial asks of the cluster. Small ones share a GPU unless the search says."""
    stated, resources = study.search.pipeline.resources, resolve_gpus(study.search.pipeline.resources)
    small = stated.gpus is None and resources.gpus and weight_bytes(study.plan.backbone) < SMALL
    return resources.replace(gpus=0.25) if small else resources


@cache
def _thread() -> ThreadPool:
    """Return the thread of all trials of this process, for oneDNN keeps kernels per thread."""
    gc.freeze()  # imports stay: a collection that looks through them takes 0.1 s
    return ThreadPool(1)


def train_trial(config: dict[str, Any], **shared: Any) -> None:
    """Train the trial ``config["run"]`` in a process that Tune keeps for the next one."""
    ray.tune.report({ACTOR: ray.get_runtime_context().get_actor_id()})
    outcome = _thread().apply(_outcome_of, (config["run"],), shared)
    if isinstance(outcome, BaseException):
        raise outcome
    value = math.nan if outcome.value is None else outcome.value
    ray.tune.report({METRIC: value, FRACTION: 100.0, "outcome": outcome._asdict(), "done": True})


def _outcome_of(trial: Trial, **shared: Any) -> TrialOutcome | BaseException:
    """Train a trial. Return the SystemExit by which Tune stops it, which would end the thread."""
    try:
        return _train(trial, **shared)
    except Exception as error:  # another process would meet it again
        return TrialOutcome("failed", None, fail(trial.job, error))
    except BaseException as error:
        return error


def _train(trial: Trial, dev: Dev | None, resources: Resources, metric: RunMetric, study: str) -> TrialOutcome:
    job = trial.job if trial.job.dev else replace(trial.job, dev=dev)
    if resources.gpus and resources.gpus < 1 and torch.cuda.is_available():
        # A trial that runs out of memory has used up its own part, never a neighbour's.
        torch.cuda.set_per_process_memory_fraction(resources.gpus)

    def report(value: float, line: dict[str, Any]) -> None:
        show_line(study, job.facts["stage"], job.id[:8], line, job.recipe.spec.sentences)
        ray.tune.report({METRIC: value, "step": line["step"], FRACTION: 100.0 * line["step"] / line["steps"]})

    place = f"Ray Tune, node {ray.util.get_node_ip_address()}"
    options: dict[str, Any] = {"threads": resources.cpus, "metric": metric, "report": report, "place": place}
    return run_trial(job, TrialRuntime("cuda" if resources.gpus else "cpu", **options), trial.earlier)


def run_on_ray(queue: TrialQueue, progress: SearchProgress, resources: Resources) -> None:
    """Train what a study has left on the connected cluster."""
    kills: Counter[str] = Counter()
    while True:
        trials = Trials(queue, kills, resources)
        try:
            return _fit(trials, progress, resources)
        except RuntimeError as error:
            # Tune ends, with all its trials, when Ray's memory monitor kills the process of one.
            if not isinstance(error.__cause__, ray.exceptions.OutOfMemoryError):
                raise
            match = KILLED_FOR_MEMORY.search(str(error))
            victim = trials.actors.get(match.group(1)) if match else None
            for run_id in [victim] if victim else [*queue.running] or [""]:
                kills[run_id] += 1
                if kills[run_id] == MEMORY_KILLS and run_id in queue.running:
                    reason = f"its process was killed {MEMORY_KILLS} times because its node had none left"
                    queue.done(run_id, TrialOutcome("infeasible", None, f"out of memory: {reason}"))
                elif kills[run_id] > DEATHS:
                    raise RunFailed(f"Ray kills trials for want of memory on their node: {error.__cause__}") from None
            queue.requeue()
            queue.ready = deque(sorted(queue.ready, key=lambda trial: not kills[trial.id]))
            say("a trial was killed because its node ran out of memory; it is tried again alone")


def _fit(trials: Trials, progress: SearchProgress, resources: Resources) -> None:
    study = trials.queue.study
    # Tune sends these through the object store once: the development set is the same for all trials.
    shared = {"dev": study.dev, "resources": resources, "metric": study.search.objective, "study": study.name}
    selector = {"bundle_label_selector": [resources.selector]} if resources.selector else {}
    bundle = ray.tune.PlacementGroupFactory([resources.bundle], **selector)
    trainable = ray.tune.with_resources(ray.tune.with_parameters(train_trial, **shared), bundle)
    for name, value in {**ENVIRONMENT, "TUNE_MAX_PENDING_TRIALS_PG": str(trials.pending)}.items():
        os.environ.setdefault(name, value)
    quiet_data()
    tune_config = ray.tune.TuneConfig(
        search_alg=trials,
        scheduler=scheduler(study),
        num_samples=-1,  # until the searcher says that nothing is left
        reuse_actors=True,
        trial_name_creator=partial(_name_of, study.name),  # Tune pickles it with every trial
        trial_dirname_creator=lambda trial: trial.trial_id,
    )
    failures, display = ray.tune.FailureConfig(max_failures=DEATHS), _Display(trials, progress, resources)
    with study.store.scratch(study.folder / "tune") as folder:
        places = {"name": study.name, "storage_path": str(folder)}
        run_config = ray.tune.RunConfig(**places, verbose=0, failure_config=failures, callbacks=[display])
        try:
            ray.tune.Tuner(trainable, tune_config=tune_config, run_config=run_config).fit()
        except Exception as error:
            raise trials.error or error from error.__cause__  # Tune makes text of ours


def _name_of(study: str, trial: Any) -> str:
    return f"{study} {trial.config['run'].title}"


class _Stateless:
    """A part that Tune pickles for a restore that never comes: it holds a sampler and what writes records."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class Trials(_Stateless, Searcher):
    """The trials of a study for Tune. One that was killed for memory trains alone."""

    def __init__(self, queue: TrialQueue, kills: Counter[str], resources: Resources) -> None:
        super().__init__(metric=METRIC, mode=queue.search.objective.mode)
        self.queue, self.kills = queue, kills
        self.error: Exception | None = None
        self.trials: dict[str, Trial] = {}
        self.actors: dict[str, str] = {}  # the last run of a process, by the id of its actor
        # An autoscaler sees trials that wait for a place. A sampler is asked one trial ahead of the room.
        self.pending, self.most = slot_count(resources), math.inf
        if queue.search.num_samples is not None:
            room = max(1, holds(resources), SAMPLED * may_grow())
            self.pending, self.most = room if may_grow() else 1, room + 1

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        running, ready = self.queue.running, self.queue.ready
        alone = any(self.kills[run_id] for run_id in running) or (ready and self.kills[ready[0].id])
        if self.queue.full or len(running) >= self.most or (running and alone):
            return None
        if (trial := self.queue.next()) is None:
            return None if ready else Searcher.FINISHED
        self.trials[trial_id] = trial
        common = trial.job.dev is self.queue.study.dev
        sent = replace(trial, job=replace(trial.job, dev=None)) if common else trial
        return {**trial.point, "seed": trial.seed, "run": sent}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        run_id = self.trials[trial_id].id
        if ACTOR in result:
            self.actors[result[ACTOR]] = run_id
        else:
            self.queue.report(run_id, result[METRIC], result["step"])

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Write the record of a training run that has ended. Without an outcome Tune has stopped it.

        :meth:`fail` takes one with an error, which Tune does not tell here.
        """
        if error:
            return
        outcome = TrialOutcome("stopped")
        if result and "outcome/status" in result:
            outcome = TrialOutcome(*(result.get(f"outcome/{name}") for name in TrialOutcome._fields))  # type: ignore[arg-type]
        self._end(trial_id, outcome)

    def fail(self, trial_id: str, error: str) -> None:
        """Take a trial that Tune gave up. The reason is the last line of an error, below a traceback."""
        cause = redact((error.strip().splitlines() or ["for no known reason"])[-1].strip())
        reason = f"run {self.trials[trial_id].id}: its process died {DEATHS + 1} times, the last time so: {cause}"
        self._end(trial_id, TrialOutcome("failed", None, reason))

    def _end(self, trial_id: str, outcome: TrialOutcome) -> None:
        try:
            self.queue.done(self.trials.pop(trial_id).id, outcome)
        except Exception as problem:
            self.error = problem
            raise


class _Display(_Stateless, ray.tune.Callback):
    """Draws the running trials after each round of Tune's loop, and says how many wait for room."""

    def __init__(self, trials: Trials, progress: SearchProgress, resources: Resources) -> None:
        self.trials, self.progress, self.room = trials, progress, Room(resources)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        errors = Path(trial.error_file or "error.txt")
        self.trials.fail(trial.trial_id, errors.read_text(encoding="utf-8") if errors.is_file() else "")

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        if running := sum(trial.status == "RUNNING" for trial in trials):
            self.progress.running(self.trials.queue.running.values())
        self.room.report(running)


class EarlierTrial(NamedTuple):
    """A trial of an earlier session for a scheduler, which asks for no more than its id."""

    trial_id: str


def scheduler(study: Study) -> TrialScheduler:
    """Return ASHA or the median rule with the curves of earlier sessions, or one that stops nothing."""
    asha = study.search.asha
    if asha is None and not study.search.median:
        return FIFOScheduler()
    mode, most = study.search.objective.mode, 101  # percent, above any: a trial that has come to its end is not stopped
    rungs: TrialScheduler = MedianStoppingRule(FRACTION, METRIC, mode, 25.0, min_time_slice=math.inf)  # never pauses
    learn = rungs.on_trial_complete  # the median rule judges every result that it does not take as a last one
    if asha is not None:
        rungs = ASHAScheduler(FRACTION, METRIC, mode, most, 100.0 * asha.grace, asha.reduction)
        learn = rungs.on_trial_result
    for record in study.records.values():
        before = EarlierTrial(record.id)
        rungs.on_trial_add(None, before)
        for step, score in record.curve:
            learn(None, before, {FRACTION: 100.0 * step / (record.steps or step), METRIC: score})
    return rungs

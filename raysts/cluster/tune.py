"""Searches on Ray Tune, their points proposed by Optuna: what a trial asks for, the actor that trains it, the Tuner.

What is left of a study goes into a new Tuner each time: Ray's own snapshots and Optuna's database may disagree after a
kill, the study's records cannot.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import ray
import ray.tune
import torch
from ray.tune.logger import LoggerCallback
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from raysts.cluster.capacity import at_once, describe_nodes, holds, may_grow
from raysts.cluster.connect import quiet_data
from raysts.cluster.executor import with_gpus
from raysts.cluster.metrics import show_line
from raysts.errors import RunFailed
from raysts.evaluation.dev import Dev
from raysts.evaluation.run_metric import RunMetric
from raysts.models.memory import weights
from raysts.recipes.recipe import Resources
from raysts.search.progress import SearchProgress
from raysts.search.queue import TrialQueue
from raysts.search.space import text_of
from raysts.search.study import Study
from raysts.search.trial import Stopped, Trial, TrialOutcome, TrialRuntime, run_trial
from raysts.training.job import Job

SMALL = 200 * 2**20
"""Bytes of weights below which a trial takes a quarter of a GPU unless the search says otherwise."""

METRIC = "metric"
"""What is optimised, whatever it is, in a result."""

FRACTION = "fraction"
"""Part of its steps that a trial has trained, in a result: what early stopping goes by, for trials differ in steps."""

ACTOR = "actor"
"""Id of the process that trains a trial, in its first result: Ray's memory monitor names a process that it has killed by it."""

KILLED_FOR_MEMORY = re.compile(r"Selected to kill: \(Actor\((\w+)\)")
"""Where the text of a kill for want of memory names the actor; the error itself does not."""

DEATHS = 3
"""Deaths of its process that a trial survives, each from its last checkpoint."""

MEMORY_KILLS = 2
"""Kills for want of memory after which a point is infeasible: the first may have been a neighbour's fault."""

SAMPLED = 8
"""Trials of a sampler that are asked for at once where the cluster may grow, unless ``concurrency`` says: it learns from those
that have ended."""

WAIT = 30.0
"""Seconds without any running trial after which we say what is waited for."""

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
    """What a trial asks of the cluster: several small ones share a GPU unless the search says how much one takes."""
    asked = study.search.pipeline.resources
    resources = with_gpus(asked)
    if asked.gpus is None and resources.gpus and weights(study.plan.backbone) < SMALL:
        return resources.updated(gpus=0.25)
    return resources


@dataclass(frozen=True)
class _Work:
    """The job of a trial in its config, of which loggers show the id of the run."""

    job: Job

    def __str__(self) -> str:
        return self.job.id


class RaystsTrial(ray.tune.Trainable):
    """Trains in a thread, so that a result can be waited for; a stopped trial's thread ends at its next step.

    The process is kept for the next trial, and with it all that was imported; nothing of the last trial is. The backbone is
    read anew each time: its file lies in the node's page cache, which maps it faster than a copy in memory is copied.
    """

    def setup(
        self,
        config: dict[str, Any],
        dev: Dev | None = None,
        resources: Resources | None = None,
        metric: RunMetric | None = None,
        waits: bool = False,
        study: str = "",
    ) -> None:
        """Begin to train the job of ``config["run"]``; the rest, the same for all trials, comes through the object store.

        ``waits``: after each value on the way, wait for the decision whether to go on.
        """
        assert metric is not None and resources is not None and resources.gpus is not None
        self.dev, self.resources, self.metric, self.waits, self.study = dev, resources, metric, waits, study
        if 0 < resources.gpus < 1 and torch.cuda.is_available():
            # A trial that runs out of memory has used up its own part, never a neighbour's.
            torch.cuda.set_per_process_memory_fraction(resources.gpus)
        gc.freeze()  # what has been imported is here to stay: collections need not look at it again (0.1 s each)
        # One thread for all trials: oneDNN keeps what it prepares per thread, and a thread's end does not give it back.
        # A daemon: the process ends when Ray ends it, whatever the thread is doing.
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()
        self._begin(config)

    def __repr__(self) -> str:
        return f"trials of {self.study}"

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._end()
        self._begin(new_config)
        return True

    told: bool
    results: SimpleQueue[dict[str, Any]]
    going_on: threading.Event

    def step(self) -> dict[str, Any]:
        """Wait for the next value, or for the end. That we are called says that the trial goes on."""
        if not self.told:
            self.told = True
            return {ACTOR: ray.get_runtime_context().get_actor_id()}
        self.going_on.set()
        return self.results.get()

    def cleanup(self) -> None:
        self._end()
        self.jobs.put(None)

    def _begin(self, config: dict[str, Any]) -> None:
        self.results = SimpleQueue()
        self.told = False
        self.stopping, self.going_on, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.jobs.put(replace(config["run"].job, dev=self.dev))

    def _end(self) -> None:
        self.stopping.set()
        self.going_on.set()
        self.ended.wait()

    def _work(self) -> None:
        while (job := self.jobs.get()) is not None:
            self._train(job)
            self.ended.set()

    def _train(self, job: Job) -> None:
        results, stopping, going_on = self.results, self.stopping, self.going_on

        def report(value: float, line: dict[str, Any]) -> None:
            show_line(self.study, job.facts["stage"], job.id[:8], line, job.recipe.spec.sentences)
            going_on.clear()
            results.put({METRIC: value, "step": line["step"], FRACTION: 100.0 * line["step"] / line["steps"]})
            if self.waits:
                going_on.wait()
                if stopping.is_set():
                    raise Stopped

        device = "cuda" if self.resources.gpus else "cpu"
        where = f"Ray Tune, node {ray.util.get_node_ip_address()}"
        try:
            outcome = run_trial(
                job,
                self.metric,
                lambda: TrialRuntime(
                    device,
                    threads=self.resources.cpus,
                    metric=self.metric,
                    report=report,
                    stopped=stopping.is_set,
                    where=where,
                ),
            )
        except BaseException as error:
            outcome = TrialOutcome("failed", None, f"run {job.id}: {type(error).__name__}: {error}")
        value = outcome.value if outcome.value is not None else float("nan")
        results.put({METRIC: value, FRACTION: 100.0, "outcome": outcome._asdict(), "done": True})


def run_on_ray(
    queue: TrialQueue, progress: SearchProgress, resources: Resources, loggers: Sequence[LoggerCallback] = ()
) -> None:
    """Train what is left of a study on the connected cluster.

    Raises:
        RunFailed: the nodes have no memory for any trial.
    """
    kills: Counter[str] = Counter()
    while True:
        watch = _Watch(queue, progress, resources)
        try:
            return _fit(queue, resources, watch, loggers)
        except RuntimeError as error:
            # Tune ends when Ray's memory monitor kills a trial's process, and the other trials with it.
            if not isinstance(error.__cause__, ray.exceptions.OutOfMemoryError):
                raise
            match = KILLED_FOR_MEMORY.search(str(error))
            run_id = watch.actors.get(match.group(1), "") if match else ""
            kills[run_id] += 1
            if kills[run_id] == MEMORY_KILLS and run_id in queue.running:
                reason = f"out of memory: its process was killed {MEMORY_KILLS} times because its node had none left"
                queue.done(run_id, TrialOutcome("infeasible", None, reason))
            elif kills[run_id] > DEATHS:
                raise RunFailed(f"Ray kills trials for want of memory on their node: {error.__cause__}") from None
            queue.requeue()
            progress.say("a trial was killed because its node ran out of memory; the others go on")


def _fit(queue: TrialQueue, resources: Resources, watch: _Watch, loggers: Sequence[LoggerCallback]) -> None:
    study, search = queue.study, queue.search
    shared = {
        "dev": study.dev,
        "resources": resources,
        "metric": search.objective,
        "waits": search.asha is not None,
        "study": study.name,
    }
    selector = {"bundle_label_selector": [resources.selector]} if resources.selector else {}
    trainable = ray.tune.with_resources(
        ray.tune.with_parameters(RaystsTrial, **shared),
        ray.tune.PlacementGroupFactory([resources.bundle], **selector),
    )
    trainable.__qualname__ = RaystsTrial.__name__  # what Ray's dashboard shows, not the name of Tune's wrapper
    # What an autoscaler is to see is asked for at once. A sampler is asked as late as can be: one trial ahead of the room.
    grid = search.num_samples is None
    room = at_once(resources)
    if not grid:
        room = max(1, holds(resources), SAMPLED * may_grow())
    pending = room if grid or may_grow() else 1
    searcher = _Trials(queue, most=None if grid else room + 1)
    watch.trials = searcher.trials
    with _settings(pending), study.store.scratch(study.folder / "tune") as folder:
        tuner = ray.tune.Tuner(
            trainable,
            tune_config=ray.tune.TuneConfig(
                search_alg=searcher,
                scheduler=scheduler(study),
                num_samples=-1,  # until the searcher says that nothing is left
                reuse_actors=True,
                trial_name_creator=lambda trial: searcher.title(trial.trial_id),
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=ray.tune.RunConfig(
                name=study.name,
                storage_path=str(folder),
                verbose=0,
                failure_config=ray.tune.FailureConfig(max_failures=DEATHS),
                checkpoint_config=ray.tune.CheckpointConfig(checkpoint_at_end=False),
                callbacks=[watch, *loggers],
            ),
        )
        try:
            tuner.fit()
        except Exception:
            if searcher.error is not None:
                raise searcher.error from None  # Tune makes text of it
            raise


class _Trials(Searcher):
    """Tune's trials are the study's: what Tune calls a trial is one training run of a point. ``most``: trials that are asked
    for or run at once, at most; none: as many as Tune wants."""

    def __init__(self, queue: TrialQueue, most: int | None) -> None:
        super().__init__(metric=METRIC, mode=queue.search.objective.mode)
        self.queue, self.most = queue, most
        self.error: Exception | None = None
        self.trials: dict[str, Trial] = {}

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self.queue.full or (self.most is not None and len(self.queue.running) >= self.most):
            return None
        trial = self.queue.next()
        if trial is None:
            return Searcher.FINISHED
        self.trials[trial_id] = trial
        # The dev set, the same for all, has come to the actor once.
        return {**trial.point, "seed": trial.seed, "run": _Work(replace(trial.job, dev=None))}

    def title(self, trial_id: str) -> str:
        """What Ray's dashboard calls a trial that has not ended."""
        trial = self.trials[trial_id]
        return f"{self.queue.study.name} {text_of(trial.point)} seed {trial.seed}"

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        if METRIC in result:
            self.queue.report(self.trials[trial_id].id, result[METRIC], result["step"])

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """The end of a training run; without an outcome of its own it was stopped."""
        run_id = self.trials.pop(trial_id).id
        if error or result is None:
            outcome = TrialOutcome("failed", None, f"run {run_id}: its process died {DEATHS + 1} times")
        elif "outcome/status" in result:
            outcome = TrialOutcome(*(result.get(f"outcome/{name}") for name in TrialOutcome._fields))  # type: ignore[arg-type]
        else:
            outcome = TrialOutcome("stopped")
        try:
            self.queue.done(run_id, outcome)
        except Exception as problem:
            self.error = problem
            raise

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Tune pickles what it is given for a restore that never comes, and we hold threads and databases."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the study's records are what a search goes on from."""

    def restore(self, checkpoint_path: str) -> None:
        """Never called."""


def scheduler(study: Study) -> TrialScheduler:
    """ASHA on the fraction of its steps that a trial has trained, with what earlier sessions have seen; or none."""
    asha = study.search.asha
    if asha is None:
        return FIFOScheduler()
    asha_scheduler = ASHAScheduler(
        time_attr=FRACTION,
        metric=METRIC,
        mode=study.search.objective.mode,
        max_t=101,  # above any: a trial that has come to its end is not stopped
        grace_period=100 * asha.grace,
        reduction_factor=asha.reduction,
    )
    # A study goes on in a new Tuner, whose scheduler knows nothing. ASHA compares a trial with all that came to the same
    # rung before, so the curves of earlier sessions are told again: else the first trials after a kill would all be the
    # best so far and train to their ends. Of a trial ASHA asks no more than its id, and what it answers is past.
    for record in study.records.values():
        before = SimpleNamespace(trial_id=record.id)
        asha_scheduler.on_trial_add(None, before)
        for step, score in record.curve:
            seen = {FRACTION: 100.0 * step / (record.steps or step), METRIC: score}
            asha_scheduler.on_trial_result(None, before, seen)
    return asha_scheduler


class _Watch(ray.tune.Callback):
    """Looks after each round of Tune's loop: draws what trains, says what is waited for."""

    def __init__(self, queue: TrialQueue, progress: SearchProgress, resources: Resources) -> None:
        self.queue, self.progress, self.resources = queue, progress, resources
        self.idle_since, self.said = time.monotonic(), False
        self.trials: dict[str, Trial] = {}
        self.actors: dict[str, str] = {}
        """What each actor trains, or has trained last."""

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        if ACTOR in result:
            self.actors[result[ACTOR]] = self.trials[trial.trial_id].id

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        if any(trial.status == "RUNNING" for trial in trials):
            self.idle_since, self.said = time.monotonic(), False
            self.progress.running(list(self.queue.running.values()))
        elif time.monotonic() - self.idle_since > WAIT and not self.said:
            self.said = True
            self.progress.say(
                f"waiting for room: a trial asks for {self.resources.cpus} CPUs and {self.resources.gpus:g} GPUs; the "
                f"cluster's nodes have: {describe_nodes()}; it may grow, or what else runs there may end"
            )


@contextlib.contextmanager
def _settings(pending: int) -> Iterator[None]:
    """What Tune reads from the environment, for the length of a search."""
    settings = {**ENVIRONMENT, "TUNE_MAX_PENDING_TRIALS_PG": str(pending)}
    before = {name: os.environ[name] for name in settings if name in os.environ}
    os.environ.update(settings)
    quiet_data()
    try:
        yield
    finally:
        for name in settings:
            del os.environ[name]
        os.environ.update(before)

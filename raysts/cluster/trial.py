"""The actor that trains trials of a search, one after the other, in its own process."""

from __future__ import annotations

import gc
import queue
import threading
from dataclasses import replace
from typing import Any

import ray
import ray.tune
import torch

from raysts.evaluation.dev import Dev
from raysts.evaluation.run_metric import RunMetric
from raysts.recipes.recipe import Resources
from raysts.search.attempt import Outcome, Stopped, TrialRuntime, attempt
from raysts.search.queue import METRIC
from raysts.training.loop import Job

FRACTION = "fraction"
"""Part of its steps that a trial has trained, in a result: what early stopping goes by, for trials differ in steps."""


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
        """Begin to train ``config["job"]``; the rest, the same for all trials, comes through the object store.

        Args:
            config: of the trial.
            dev: the development set.
            resources: what a trial has.
            metric: what the search goes by.
            waits: after each value on the way, wait for the decision whether to go on.
            study: name of the study, which Ray's dashboard shows.
        """
        assert metric is not None and resources is not None and resources.gpus is not None
        self.dev, self.resources, self.metric, self.waits, self.study = dev, resources, metric, waits, study
        if 0 < resources.gpus < 1 and torch.cuda.is_available():
            # A trial that runs out of memory has used up its own part, never a neighbour's.
            torch.cuda.set_per_process_memory_fraction(resources.gpus)
        gc.freeze()  # what has been imported is here to stay: collections need not look at it again (0.1 s each)
        # One thread for all trials: oneDNN keeps what it prepares per thread, and a thread's end does not give it back.
        # A daemon: the process ends when Ray ends it, whatever the thread is doing.
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()
        self._begin(config)

    def __repr__(self) -> str:
        """What Ray's dashboard calls the process."""
        return f"trials of {self.study}"

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """The next trial, in the same process."""
        self._end()
        self._begin(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Wait for the next value, or for the end. That we are called says that the trial goes on."""
        self.going_on.set()
        return self.results.get()

    def cleanup(self) -> None:
        """End the thread."""
        self._end()
        self.jobs.put(None)

    def _begin(self, config: dict[str, Any]) -> None:
        self.results: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.stopping, self.going_on, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.jobs.put(replace(config["job"], dev=self.dev))

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
            going_on.clear()
            results.put({METRIC: value, "step": line["step"], FRACTION: 100.0 * line["step"] / line["steps"]})
            if self.waits:
                going_on.wait()
                if stopping.is_set():
                    raise Stopped

        device = "cuda" if self.resources.gpus else "cpu"
        where = f"Ray Tune, node {ray.util.get_node_ip_address()}"
        try:
            outcome = attempt(
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
            outcome = Outcome("failed", None, f"run {job.id}: {type(error).__name__}: {error}")
        value = outcome.value if outcome.value is not None else float("nan")
        results.put({METRIC: value, FRACTION: 100.0, "outcome": outcome._asdict(), "done": True})

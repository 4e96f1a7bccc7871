"""Ensemble members on Ray Train: a queue of their chains, and workers that take from it one after the other.

A member of one worker shares it with others: there is a worker per slot, several to a Ray Train run, so that neither what the
head holds nor what is started grows with the number of members. A member of several workers has a Ray Train run of its own.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import queue
import secrets
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import ray
import ray.train
import torch
from ray.train import ControllerError, FailureConfig, LoggingConfig, RunConfig, ScalingConfig, WorkerGroupError
from ray.train.torch import TorchConfig, TorchTrainer
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from torch import nn

from raysts.cluster.capacity import NodeType, PendingReporter, Present, at_once, may_grow, node_types, nodes
from raysts.cluster.connect import SETTINGS, STATES, quiet_data
from raysts.cluster.data import read_streamed
from raysts.cluster.metrics import show_line, show_members
from raysts.cluster.preflight import Seen, here, unfit
from raysts.cluster.queue import Piece, QueueState, WorkQueue, tell_death, widths
from raysts.cluster.ray_internals import (
    OwnTrainer,
    SlotsGroup,
    SlotsTrainer,
    TrainPage,
    WatchOwnNode,
    WorkersApart,
    node_is_drained,
    told_to_end,
)
from raysts.errors import InputError, RunFailed, StoreFailed
from raysts.models.memory import worker_gigabytes
from raysts.pipeline.local import Say, fail, train_chain
from raysts.recipes.recipe import Resources
from raysts.training import checkpoint
from raysts.training.job import Job, finished
from raysts.training.loop import train
from raysts.training.monitor import RunMonitor
from raysts.training.runtime import Preempted, Preemption, Runtime, averaged
from raysts.training.shard import shard

DEATHS = 3
"""Deaths of its processes that a member survives without getting on in between, each from its last checkpoint."""

UNKNOWN_SLOTS = 64
"""Workers that are asked for at most where nobody can tell how far the cluster grows (on Kubernetes)."""

MOST_GROUPS = 16
"""Members of several workers that are trained at once, at most: each has a Ray Train run of its own."""

LOOK_SECONDS = 0.5
END_SECONDS = 30.0
LEAVE_SECONDS = 5.0

RESIZE_SECONDS = 30.0
"""How often a member of variable size looks whether there is room for more workers."""

IN_WORKERS = {"MALLOC_ARENA_MAX": "1"}
"""Environment of a worker, whose training thread is not its first: by itself glibc gives such a thread memory from areas of
64 MB at most, where ``keep_memory`` reaches little."""

START_TIMEOUT = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
ELASTIC_START_SECONDS = "15"
"""A member of variable size asks for what Ray believes to be free, which for 20 seconds may be a node that has died:
then it asks again, for less."""


class RayRuntime(Runtime):
    """One Ray Train worker; one of several that train a run together unless each trains apart."""

    def __init__(self, resources: Resources) -> None:
        context = ray.train.get_context()
        device = ray.train.torch.get_device() if resources.gpus else "cpu"
        super().__init__(device, threads=resources.cpus, read=read_streamed)
        if resources.workers > 1:
            self.rank, self.world = context.get_world_rank(), context.get_world_size()
        self.shards = resources.shard and self.world > 1
        self.where = f"Ray Train, node {ray.util.get_node_ip_address()}"

    def wrap(self, module: nn.Module, precision: str) -> nn.Module:
        """With gradients averaged, or the whole of it spread, where several processes train together."""
        if self.shards:
            return shard(module, self.device, precision)
        return averaged(module, self.device) if self.world > 1 else module

    def report(self, line: dict[str, Any]) -> None:
        """The driver reads ``metrics.jsonl``: nothing to send."""

    def observe(self, facts: dict[str, Any], line: dict[str, Any], sentences: int) -> None:
        member = facts.get("member")
        show_line(facts["system"], facts["stage"], facts["role"] if member is None else member, line, sentences)

    def barrier(self) -> None:
        if self.world > 1:
            torch.distributed.barrier()

    def preemption(self) -> Preemption:
        """END after SIGTERM; SAVE when a node of this run is being drained (Ray Train's watcher tells every worker)."""
        if told_to_end.is_set():
            return Preemption.END
        return Preemption.SAVE if node_is_drained() else Preemption.NONE


class _TorchTrainer(OwnTrainer, TorchTrainer):
    """A run of several workers."""


def train_members(
    chains: Sequence[Sequence[Job]], resources: Resources, say: Say, seen: Seen | None = None
) -> list[str | None]:
    """Train every chain; per chain None or the reason it failed. The others go on.
    ``resources``: of a worker, GPUs decided. ``seen``: what nodes must see to take part; None: nobody looks.

    Raises:
        InputError: a node that joined is not fit for it.
    """
    work = [list(chain) for chain in chains]
    if seen is not None:
        resources = _with_memory(resources, work)
    reasons: dict[int, str | None] = {}
    pending, facts, deaths = PendingReporter(resources, say), chains[0][0].facts, 0
    with (
        (_Slots if resources.workers == 1 else _Groups)(work, resources, seen) as runs,
        RunMonitor(say, sum(map(len, chains))) as monitor,
    ):
        while len(reasons) < len(chains):
            state = runs.state()
            if state.refused:
                raise InputError(state.refused)
            for number, reason in state.ended:
                reasons[number] = reason
                if reason is not None:
                    say(f"failed: {reason}")
            looked_at = [*state.training, *(number for number, _ in state.ended)]
            failed = sum(reason is not None for reason in reasons.values())
            monitor.update([job for number in looked_at for job in work[number]], state.waiting)
            counts = {"waiting": state.waiting, "training": len(state.training), "done": len(reasons) - failed}
            show_members(facts["system"], facts["stage"], {**counts, "failed": failed}, state.restarts - deaths)
            deaths = state.restarts
            pending.update(len(chains) - len(reasons))
            time.sleep(LOOK_SECONDS)
    return [reasons[index] for index in range(len(chains))]


def _with_memory(resources: Resources, work: list[list[Job]]) -> Resources:
    """Ask for the memory that the models are estimated to take, unless the recipe says: where that is more than a node has,
    or more than an autoscaler knows of a kind of nodes, an estimate is no reason not to use it; nor where they hold a worker
    of it and not those of a run."""
    if resources.memory is not None:
        return resources
    on_gpu = bool(resources.gpus)
    asked = replace(resources, memory=max(worker_gigabytes(chain[0].parent, on_gpu) for chain in work))
    places: list[Present | NodeType] = [*nodes(), *node_types()]
    holds = all(place.slots(asked) for place in places if place.slots(resources))
    return asked if holds and at_once(asked) >= min(at_once(resources), asked.least) else resources


def _slots(resources: Resources, wanted: int) -> int:
    """How many workers to ask for; where nobody can tell how far the cluster grows, as many as are wanted, within reason."""
    unknown = may_grow() and not node_types()
    return min(wanted, max(at_once(resources), UNKNOWN_SLOTS if unknown else 1))


class _Fits:
    """Ray Train runs, each waited for by a thread of this process."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.threads: list[threading.Thread] = []
        self.trainers: list[OwnTrainer] = []

    def start(self, target: Callable[..., None], *arguments: object) -> None:
        """A daemon thread: whatever becomes of Ray, the process must be able to end."""
        self.threads.append(threading.Thread(target=target, args=arguments, daemon=True))
        self.threads[-1].start()

    def fit(self, trainer: Any) -> Any:
        """The result of a run, which :meth:`end` may end."""
        self.trainers.append(trainer)
        if self.over.is_set():
            raise SystemExit
        return trainer.fit()

    @property
    def alive(self) -> bool:
        """Whether a thread goes on."""
        return any(thread.is_alive() for thread in self.threads)

    def end(self) -> None:
        """End all runs, and wait for the threads: one that still waited when Ray is shut down would go on in memory that Ray
        has freed by then, and take the process with it, at any moment and without a word."""
        self.over.set()
        deadline = time.monotonic() + LEAVE_SECONDS
        while self.alive and time.monotonic() < deadline:
            for trainer in self.trainers:
                trainer.end()
            time.sleep(0.02)
        for trainer in self.trainers:
            if trainer.ended:
                trainer.give_back()


class _Slots:
    """Workers that train apart: each is a slot that takes chains from one queue; few Ray Train runs hold all of them."""

    def __init__(self, work: list[list[Job]], resources: Resources, seen: Seen | None) -> None:
        self.work, self.resources, self.seen = work, resources, seen
        first = work[0][0]
        self.name = f"{first.facts['system']}-{first.facts['stage']}-{first.id[:6]}"
        self.open, self.causes = set(range(len(work))), queue.SimpleQueue[BaseException]()
        self.fits = _Fits()

    def __enter__(self) -> _Slots:
        os.environ[START_TIMEOUT] = SETTINGS[START_TIMEOUT]
        driver = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        name = f"{self.name}-{secrets.token_hex(3)}-queue"
        kind = ray.remote(WorkQueue).options(num_cpus=0, scheduling_strategy=driver, name=name)
        self.queue = kind.remote(len(self.work))
        self.shared = ray.put(self.work)  # once for all workers: members have much in common, such as the dev set
        for number, width in enumerate(widths(_slots(self.resources, len(self.work)))):
            self.fits.start(self._keep, number, width)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """End the runs that still wait for room; where the command ends or they do not, all of them."""
        deadline = time.monotonic() + (END_SECONDS if kind is None else 0.0)
        while self.fits.alive and time.monotonic() < deadline:
            for trainer in self.fits.trainers:
                trainer.give_back(pending=True)
            time.sleep(LOOK_SECONDS / 2)
        self.fits.end()
        ray.kill(self.queue)

    def state(self) -> QueueState:
        alive = self.fits.alive
        try:
            state: QueueState = ray.get(self.queue.state.remote())
        except ray.exceptions.RayActorError:
            raise RunFailed(
                f"the process that hands out the members of {self.name} has died, as one does that is killed or for want of "
                f"memory on the node of this command; what was trained is kept, and the same command goes on from there"
            ) from None
        self.open -= {number for number, _ in state.ended}
        if alive or state.ended or state.refused:  # a run that was refused has ended as it should, and left no cause
            return state
        cause = RunFailed(f"its workers do not start: {self.causes.get_nowait()}")
        return state._replace(ended=[(number, _fail(self.work[number], cause)) for number in sorted(self.open)])

    def _keep(self, number: int, width: int) -> None:
        """A Ray Train run of ``width`` slots, begun again as long as work is left and some is begun in between."""
        begun = failures = 0
        while True:
            try:
                self.fits.fit(self._trainer(number, width))
                return
            except BaseException as error:
                cause = error
            if self.fits.over.is_set():  # whatever is asked of Ray now may connect to it again
                return
            left, began = ray.get(self.queue.release.remote(number))
            failures, begun = (0 if began > begun else failures + 1), began
            if not left or failures > DEATHS:
                self.causes.put(cause)
                return
            self.fits.over.wait(1)

    def _trainer(self, number: int, width: int) -> SlotsTrainer:
        died = partial(tell_death, self.queue, number)
        return SlotsTrainer(
            partial(_take_work, self.queue, number, [self.shared], self.resources, self.seen),
            backend_config=WorkersApart(),
            scaling_config=_scaling(self.resources, width),
            run_config=_run_config(
                f"{self.name}-{number}",
                self.work[0][0],
                # What a piece of work survives is counted by the queue.
                FailureConfig(max_failures=-1, controller_failure_limit=DEATHS),
                [SlotsGroup(died), WatchOwnNode()],
            ),
        )


def _take_work(pieces: Any, run: int, shared: list[Any], resources: Resources, seen: Seen | None) -> None:
    """The train function of a worker that trains apart: one piece of work after the other, as long as there are any."""
    _quiet()
    if seen is not None and (problem := unfit(seen)):
        return ray.get(pieces.refuse.remote(f"node {here()}: {problem}"))
    slot, work, page = (run, ray.train.get_context().get_world_rank()), ray.get(shared[0]), TrainPage()
    try:
        while (taken := ray.get(pieces.take.remote(slot))) is not None:
            number, piece = taken
            piece = _looked_at(work[number], piece)
            pieces.begin.remote(slot, piece)
            page.begin(work[number][0].id, _name(work[number]))
            reason = _train_piece(work[number], piece, RayRuntime(resources))
            ray.get(pieces.end.remote(slot, reason))
            page.end(work[number][0].id, reason)
            gc.collect()  # the next one begins where this one did
            if not gc.get_freeze_count():
                gc.freeze()  # what came with imports stays, and need not be looked through after each
            if resources.gpus:
                torch.cuda.empty_cache()
    except Preempted:
        os._exit(128 + signal.SIGTERM)  # the run goes on in another process


def _name(chain: list[Job]) -> str:
    """What Ray's pages call a chain."""
    facts = chain[0].facts
    who = facts["stage"] if facts.get("member") is None else f"{facts.get('role', 'member')}-{facts['member']}"
    return f"{facts['system']}-{who}-{chain[0].id[:6]}"


def _looked_at(chain: list[Job], piece: Piece) -> Piece:
    stand = _stand(chain)
    return Piece(stand, piece.deaths if stand == piece.stand else 0, piece.cause)


def _train_piece(chain: list[Job], piece: Piece, runtime: Runtime) -> str | None:
    if piece.deaths > DEATHS:
        return _fail(chain, _died(piece.deaths, piece.cause))
    return train_chain(chain, lambda job: runtime)


def _died(times: int, cause: object) -> RunFailed:
    return RunFailed(f"its processes died {times} times without getting on, the last time so: {cause}")


def _fail(chain: list[Job], cause: BaseException) -> str | None:
    """The reason of a chain that was not trained to its end."""
    unfinished = next((job for job in chain if finished(job) is None), None)
    return None if unfinished is None else fail(unfinished, cause)


def _stand(chain: list[Job]) -> list[object]:
    """How far the runs have come, on disk."""
    return [finished(job) is not None or str(checkpoint.last(job.folder / "checkpoints")) for job in chain]


class _Groups:
    """Members of several workers that train together: each has a Ray Train run of its own; as many at once as there is room
    for, and at most :data:`MOST_GROUPS`."""

    def __init__(self, work: list[list[Job]], resources: Resources, seen: Seen | None) -> None:
        self.work, self.resources, self.seen = work, resources, seen
        self.waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.ended: queue.SimpleQueue[tuple[int, str | None]] = queue.SimpleQueue()
        self.training: set[int] = set()
        self.fits = _Fits()

    def __enter__(self) -> _Groups:
        for number in range(len(self.work)):
            self.waiting.put(number)
        least = self.resources.least
        at_once = max(1, _slots(self.resources, len(self.work) * least) // least)
        for _ in range(min(at_once, MOST_GROUPS)):
            self.fits.start(self._keep)
        return self

    def __exit__(self, *error: object) -> None:
        """A run ends with its member; where the command ends, all of them."""
        self.fits.end()

    def state(self) -> QueueState:
        ended = []
        with contextlib.suppress(queue.Empty):
            while True:
                ended.append(self.ended.get_nowait())
        return QueueState(ended, sorted(self.training), self.waiting.qsize(), 0)

    def _keep(self) -> None:
        with contextlib.suppress(queue.Empty):
            while not self.fits.over.is_set():
                number = self.waiting.get_nowait()
                self.training.add(number)
                chain = self.work[number]
                try:
                    reason = _fit(chain, self.resources, self.seen, self.fits)
                except BaseException as error:
                    reason = f"run {chain[0].id}: {type(error).__name__}: {error}"
                self.training.discard(number)
                self.ended.put((number, reason))


def _fit(chain: list[Job], resources: Resources, seen: Seen | None, fits: _Fits) -> str | None:
    """Train the chain to its end, however often processes die, as long as it gets on in between; None or the reason it
    failed."""
    deaths = 0
    os.environ[START_TIMEOUT] = ELASTIC_START_SECONDS if resources.min_workers else SETTINGS[START_TIMEOUT]
    while True:
        before = _stand(chain)
        try:
            return fits.fit(_trainer(chain, resources, seen)).return_value["reason"]
        except WorkerGroupError as error:
            cause, times = next(iter(error.worker_failures.values()), error), DEATHS + 1  # Ray has tried that often
        except (ControllerError, ray.exceptions.RayActorError) as error:
            if fits.over.is_set():
                raise
            # A worker that dies in its first moments, or a controller, is reported so and not retried by Ray.
            cause = getattr(error, "controller_failure", error)
            times = 1 if isinstance(cause, ray.exceptions.RayActorError) else DEATHS + 1
        deaths = deaths + times if _stand(chain) == before else 0
        if deaths > DEATHS:
            return _fail(chain, _died(deaths, cause) if isinstance(cause, ray.exceptions.RayActorError) else cause)
        fits.over.wait(1)


def _trainer(chain: list[Job], resources: Resources, seen: Seen | None) -> _TorchTrainer:
    return _TorchTrainer(
        partial(_train_with_others, chain, resources, seen),
        torch_config=TorchConfig(backend="nccl" if resources.gpus else "gloo"),
        scaling_config=_scaling(
            resources, (resources.min_workers, resources.workers) if resources.min_workers else resources.workers
        ),
        run_config=_run_config(
            _name(chain),
            chain[0],
            # A node that is taken away is nobody's fault: it is not counted, however often.
            FailureConfig(max_failures=DEATHS, max_preemption_failures=-1),
        ),
    )


def _scaling(resources: Resources, workers: int | tuple[int, int]) -> ScalingConfig:
    return ScalingConfig(
        num_workers=workers,
        elastic_resize_monitor_interval_s=RESIZE_SECONDS,
        use_gpu=bool(resources.gpus),
        resources_per_worker={name: amount for name, amount in resources.bundle.items() if ":" not in name},
        accelerator_type=resources.accelerator_type,
        label_selector=resources.selector or None,
    )


def _run_config(name: str, job: Job, failures: FailureConfig, callbacks: Sequence[Any] = ()) -> RunConfig:
    return RunConfig(
        name=name,
        # raysts keeps its own checkpoints; Ray Train writes no more than a marker here.
        storage_path=str(job.folder.parent.parent / "ray"),
        failure_config=failures,
        callbacks=list(callbacks),
        worker_runtime_env={"env_vars": {**IN_WORKERS, STATES: os.environ.get(STATES, "0")}},
        logging_config=LoggingConfig(log_level="CRITICAL"),
    )


def _quiet() -> None:
    for logger in ("ray.data", "ray.train"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    quiet_data()


def _train_with_others(chain: list[Job], resources: Resources, seen: Seen | None) -> dict[str, Any]:
    """The train function of one of several workers.

    Only what all of them find at the same step is a result, for it would come again. Anything else may be the echo of
    another worker's death and leaves the others waiting in a collective: it ends the group, which Ray Train starts again.
    """
    _quiet()
    runtime = RayRuntime(resources)
    try:
        if seen is not None and (problem := unfit(seen)):
            raise StoreFailed(f"node {here()}: {problem}")
        for job in chain:
            train(job, runtime)
    except Preempted:
        os._exit(128 + signal.SIGTERM)  # the run goes on in another process
    except StoreFailed:
        raise  # of one worker alone
    except RunFailed as error:
        return {"reason": fail(job, error) if runtime.rank == 0 else str(error)}
    return {"reason": None}

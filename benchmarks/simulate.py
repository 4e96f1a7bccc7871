"""What a driver costs at 10, 100 and 1,000 slots: the real driver, queue and storage, with workers that only take time.

The workers write what real ones write, as many files and records but tiny ones, and take the seconds which the plan's price
expects, on a clock that jumps from event to event. Workers die and nodes are lost at times drawn from a seed: a map repeats
the unit, training goes on from its last checkpoint. Each row is a process of its own. Requests to the store are counted at
the client, which keeps the objects in memory, so they cost the driver less CPU time than real ones. Not in it: Ray's own
processes (``many_members.py`` measures those), the network, bytes, and the search for training text in test sets.

    python benchmarks/simulate.py --work members --model MINILM
    python benchmarks/simulate.py --work texts --model MINILM --teachers MINILM MPNET --per-slot 6
    python benchmarks/simulate.py --work search --slots 100 --profile
"""

from __future__ import annotations

import collections
import contextlib
import cProfile
import dataclasses
import heapq
import itertools
import math
import multiprocessing
import os
import pstats
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import measure
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from obstore.store import MemoryStore

from raysts.commands.context import checked_plan
from raysts.commands.distill import open_distillation
from raysts.commands.options import RunOptions
from raysts.commands.run import open_run
from raysts.commands.study import plan_study
from raysts.data.windows import WINDOW
from raysts.data.world import world_path
from raysts.evaluation.cost import ModelCost
from raysts.pipeline.plan import Plan
from raysts.pipeline.price import Rates
from raysts.pipeline.run import Driver
from raysts.pipeline.steps.agreement import EmbeddedTexts, EmbedTexts
from raysts.pipeline.steps.average import ScoreAverage
from raysts.pipeline.steps.train import TokenizeGroup
from raysts.pipeline.steps.vectors import EmbedTeachers, FitTarget, SampleTeachers, write_embeddings
from raysts.recipes.overrides import parse_overrides
from raysts.recipes.tree import to_plain
from raysts.report.run import report_data, write_report
from raysts.report.study import write_report as write_study
from raysts.search.queue import SearchProgress, TrialQueue, run_session
from raysts.search.study import Study
from raysts.search.trial import TrialOutcome
from raysts.storage import lease
from raysts.storage.parquet import READ_ROWS
from raysts.storage.runs import RunFolder
from raysts.storage.store import Store
from raysts.training import checkpoint
from raysts.training.job import Job
from raysts.training.metrics import MetricsLog

WRITES, READS = 3_500, 5_500
"""Requests a second that S3 takes at least below one prefix (PUT, DELETE; GET, HEAD), by its user guide."""
PER_NODE = 8
RESTART, RETURN = 30.0, 300.0
"""Seconds until a dead worker has begun again, and until another node has come in the place of a lost one."""
LINES = 14
"""Metrics lines of a run."""
VECTOR = 64


# -- slots and their clock -----------------------------------------------------------------------------------------------


class Outages:
    """Deaths of workers and losses of nodes. Rates are those of an hour per 50 slots."""

    def __init__(self, seed: int, nodes: float, deaths: float) -> None:
        self.kinds = {"node": (nodes * PER_NODE / 50 / 3600, RETURN), "worker": (deaths / 50 / 3600, RESTART)}
        self.seed, self.count = seed, 0
        self.streams: dict[tuple[str, int], tuple[random.Random, float]] = {}

    def next(self, slot: int, now: float) -> tuple[float, float]:
        """Return begin and end of the first outage of a slot that is not over."""
        outages = []
        for kind, (rate, seconds) in self.kinds.items():
            key = kind, slot // PER_NODE if kind == "node" else slot
            dice, at = self.streams.get(key, (random.Random(f"{self.seed} {key}"), -math.inf))
            while rate and at + seconds <= now:
                at = max(at + seconds, 0.0) + dice.expovariate(rate)
            self.streams[key] = dice, at
            outages.append((at if rate else math.inf, (at if rate else math.inf) + seconds))
        return min(outages)


@dataclasses.dataclass
class Task:
    """Work of one slot. ``every``: seconds between checkpoints; what came after the last one is lost."""

    key: Any
    seconds: float
    every: float = math.inf


class Slots:
    """The slots and the clock, in seconds: of work, of work that was lost, of slots that were away."""

    def __init__(self, count: int, outages: Outages) -> None:
        self.count, self.outages = count, outages
        self.now = self.work = self.lost = 0.0
        self.deaths = 0

    def play(self, take: Callable[[], Task | None]) -> Iterator[tuple[int, Task]]:
        """Yield (slot, task) when a task ends. ``take`` returns the next one, or None if none can begin now."""
        idle, again = collections.deque(range(self.count)), collections.deque[Task]()
        events: list[
            tuple[float, int, int, Task | None, float]
        ] = []  # when, -, slot, its task, when a dead one returns
        running, numbers = 0, itertools.count()
        while True:
            while idle and (again or (task := take()) is not None):
                task, slot = again.popleft() if again else task, idle.popleft()
                begin, end = self.outages.next(slot, self.now)
                if begin <= self.now:  # it is away
                    again.append(task)
                    heapq.heappush(events, (end, next(numbers), slot, None, 0.0))
                    continue
                running += 1
                stop = min(begin, self.now + task.seconds)
                heapq.heappush(events, (stop, next(numbers), slot, task, end if stop == begin else 0.0))
                if stop == begin:
                    done = stop - self.now
                    kept = done - done % task.every if task.every < math.inf else 0.0
                    self.deaths, self.lost, self.work = self.deaths + 1, self.lost + done - kept, self.work + kept
                    task.seconds -= kept
                else:
                    self.work += task.seconds
            if not running and not again:
                return
            self.now, _, slot, ended, returns = heapq.heappop(events)
            if ended is None:
                idle.append(slot)
                continue
            running -= 1
            if returns:
                again.append(ended)
                heapq.heappush(events, (returns, next(numbers), slot, None, 0.0))
            else:
                idle.append(slot)
                yield slot, ended


# -- the store, and who asks it --------------------------------------------------------------------------------------------


class Meter:
    """Requests and CPU seconds: of the driver, and of the workers that are played in its process."""

    def __init__(self) -> None:
        self.side = "driver"
        self.requests: collections.Counter[tuple[str, str]] = collections.Counter()
        self.spent = 0.0

    def count(self, kind: str, number: float = 1) -> None:
        self.requests[self.side, kind] += round(number)

    @contextlib.contextmanager
    def worker(self) -> Iterator[None]:
        """What is done within the block a worker does."""
        began, self.side = time.process_time(), "worker"
        try:
            yield
        finally:
            self.side = "driver"
            self.spent += time.process_time() - began


class Client:
    """The client of a bucket, which counts requests."""

    def __init__(self, meter: Meter, store: Any) -> None:
        self.meter, self.store = meter, store

    def __getattr__(self, name: str) -> Any:
        self.meter.count("writes" if name in ("put", "delete") else "reads")
        return getattr(self.store, name)


# -- workers ---------------------------------------------------------------------------------------------------------------


def tokenize(spec: Any, tokenizer: Path, content: str | None, folder: Path) -> Callable[[Any], Any]:
    def work(unit: tuple[int, Any]) -> dict[str, Any]:
        number, group = unit
        with Store.of(folder).put(folder / (name := f"part-{number:05d}.arrow")) as draft:
            draft.write_bytes(b"")
        full, rest = divmod(group.size, WINDOW)
        return {"file": name, "windows": [WINDOW] * full + [rest] * bool(rest), "cut": 0}

    return work


def embed_block(sources: Any, folder: Path, *args: Any) -> Callable[[Any], None]:
    def work(block: Any) -> None:
        rows = np.arange(block.first, block.first + 1)
        write_embeddings(folder / block.file, pa.array(rows), np.zeros((len(rows), 1), np.float32))

    return work


def embed_texts(texts: Sequence[Any], layers: Sequence[Any], prompt: Any, tasks: Any = ()) -> Callable[[Any], Any]:
    def work(unit: tuple[Path, Any, Any]) -> EmbeddedTexts:
        draw = np.random.default_rng(list(unit[0].parent.name.encode()))
        vectors = {"vectors": draw.standard_normal((len(texts), VECTOR), np.float32)}
        return EmbeddedTexts(dict.fromkeys(layers or (1,), vectors), {}, ModelCost(1, 4, VECTOR, 9.0, 1e3, 1e3))

    return work


def put_file(path: Path, *args: Any) -> Callable[[Any], None]:
    def work(unit: Any) -> None:
        with Store.of(path).put(path) as draft, draft.open("wb") as file:
            np.save(file, np.eye(2, dtype=np.float32))

    return work


WORKERS: Mapping[Any, Callable[..., Callable[[Any], Any]]] = {
    TokenizeGroup: tokenize,
    EmbedTeachers: embed_block,
    EmbedTexts: embed_texts,
    FitTarget: put_file,
    SampleTeachers: lambda sources: lambda number: np.random.default_rng(0).standard_normal((64, 8)),
    ScoreAverage: lambda dev, options=None: lambda folders: dict.fromkeys(dev.metrics, 0.5),
}


def copy_small(source: str, target: str) -> None:
    """Copy a file; a large one, of weights or a vocabulary, becomes an empty one."""
    Path(target).write_bytes(Path(source).read_bytes() if Path(source).stat().st_size < 10_000 else b"")


def write_run(job: Job, seconds: float, meter: Meter) -> float:
    """Write what a training run writes, and return the score of its model."""
    folder, score = RunFolder(job.folder), 0.5 + int(job.id[:6], 16) / 2**25
    with folder.lock(f"training of run {job.id}"):
        folder.store.write_json(job.folder / "recipe.json", to_plain(job.recipe))
        record = {"run_id": job.id, "status": "running", "seed": job.seed, **job.facts, "device": "simulated"}
        folder.write(record)
        log = MetricsLog(job.folder / "metrics.jsonl", 0)
        for step in range(1, LINES + 1):
            log.write({"step": step, "steps": LINES, "loss": 0.5, "dev": score, "seconds": seconds * step / LINES})
        checkpoints = job.folder / "checkpoints"
        checkpoints.mkdir(exist_ok=True)
        (checkpoints / "step-0000001.pt").write_bytes(b"checkpoint")
        before = meter.requests["worker", "writes"]
        if upload := folder.upload_checkpoint():  # all but the first are counted, not played
            upload.result()
            meter.count("writes", (meter.requests["worker", "writes"] - before) * (seconds // checkpoint.EVERY - 1))
            meter.count("writes", seconds / lease.BEAT)
        shutil.copytree(job.parent, job.folder / "model", copy_function=copy_small)
        log.seal()
        folder.upload_model()
        dev = {"kept": score, "scores": dict.fromkeys(job.dev.metrics, score)} if job.dev else None
        ended = {"status": "done", "steps": LINES, "kept": {"step": LINES}, "dev": dev}
        times = {"timings": {"train_seconds": seconds, "startup_seconds": 1.0}}
        folder.store.write_json(job.folder / "run.json", record | ended | times | {"selected_by": "sts/stsb_dev"})
        checkpoint.clear(checkpoints)
    return score


class SimulatedExecutor:
    """An executor on simulated slots. ``follow`` tells it, as it does a screen, what the driver expects of a step."""

    def __init__(self, slots: Slots, meter: Meter) -> None:
        self.played, self.meter = slots, meter
        self.expected: dict[str, float] = {}
        self.running = 0.0

    def follow(self, title: str, rest: float, running: float, measured: float, texts: int) -> None:
        self.running = running

    def map(self, worker: Any, args: tuple[Any, ...], units: Sequence[Any], resources: Any) -> Iterator[Any]:
        seconds = self.running * min(self.played.count, len(units)) / max(1, len(units))
        with self.meter.worker():
            work = WORKERS[worker](*args)
        queue, results, taken = iter(range(len(units))), dict[int, Any](), 0
        tasks = (Task(number, 0.0 if worker is SampleTeachers else seconds) for number in queue)
        for _, task in self.played.play(lambda: next(tasks, None)):
            with self.meter.worker():
                results[task.key] = work(units[task.key])
            while taken in results:
                yield results.pop(taken)
                taken += 1

    def slots(self, resources: Any) -> int:
        return self.played.count

    def train(self, chains: Sequence[Sequence[Job]], resources: Any) -> list[str | None]:
        """Train chains, whose next run goes on in the slot that becomes idle."""
        waiting = collections.deque(list(chain) for chain in chains)

        def take() -> Task | None:
            chain = waiting.popleft() if waiting else None
            return chain and Task(chain, self.expected[chain[0].id], checkpoint.EVERY)

        for _, task in self.played.play(take):
            job, *rest = task.key
            with self.meter.worker():
                write_run(job, self.expected[job.id], self.meter)
            if rest:
                waiting.appendleft(rest)
        return [None] * len(chains)


# -- what is played --------------------------------------------------------------------------------------------------------


def play_run(plan: Plan, executor: SimulatedExecutor) -> None:
    """Run a plan to its end with its report, then once more: nothing may be left."""
    rates = Rates(plan.store)
    executor.expected = {step.id: rates.predict(step).seconds for step in plan.steps if step.job}

    def report(store: Store, record: Mapping[str, Any]) -> Path:
        return write_report(report_data(store, record), store.path("reports/simulated"))

    Driver(plan, executor, "simulated", "simulate", report, executor.follow).run()
    assert {*plan.states().values()} == {"done"}, "steps are left"


def play_search(study: Study, executor: SimulatedExecutor) -> None:
    """Run a search to its end with its report. Each trial takes the mean that the price says."""
    trials, queues = study.search.points * study.search.seeds, list[TrialQueue]()
    seconds, progress = study.price(1).device_seconds / trials, SearchProgress(study)

    def take() -> Task | None:
        trial = queues[0].next()
        return trial and Task(trial, seconds, checkpoint.EVERY)

    def train(queue: TrialQueue, progress: SearchProgress) -> None:
        queues.append(queue)
        for _, task in executor.played.play(take):
            progress.running([task.key])
            with executor.meter.worker():
                score = write_run(task.key.job, seconds, executor.meter)
            queue.done(task.key.id, TrialOutcome("finished", score))

    def prepare() -> Any:
        study.prepare(executor)
        return train

    with study.store.lock(f"locks/study-{study.name}.lock", "simulate", protects=study.folder):
        study.open("simulate")
        assert not run_session(study, [], prepare, progress)
        write_study(study, study.store.path("reports/study-simulated"))
    assert len(study.records) == trials and study.complete, "trials are left"


def text_folder(folder: Path, data: Path, rows: int) -> Path:
    """Write a data folder that has one sentence of ``data`` so many times."""
    table = pq.read_table(data / "wikipedia" / "sentences.parquet").slice(0, 1)
    shutil.copytree(data, folder, copy_function=os.symlink, ignore=shutil.ignore_patterns("wikipedia"))
    (folder / "wikipedia").mkdir()
    with pq.ParquetWriter(folder / "wikipedia" / "sentences.parquet", table.schema) as writer:
        for first in range(0, rows, READ_ROWS):
            writer.write_table(table.take(pa.array(np.zeros(min(READ_ROWS, rows - first), np.int64))))
    return folder


def clean_rows(corpus: Any, table: str, data: Any, sets: Sequence[str]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return that no row of a test set was trained on; a search of equal sentences would measure nothing."""
    return {name: (np.zeros(corpus.rows(name), bool),) * 2 for name in sets}


def simulate(args: Any, slots: int) -> dict[str, Any]:
    """Play a workload on so many slots, and return a row of the table."""
    folder = Path(tempfile.mkdtemp(prefix="raysts-simulate-", dir=args.folder))
    meter, objects = Meter(), MemoryStore()
    played = Slots(slots, Outages(args.seed, args.lost_nodes, args.deaths))
    executor = SimulatedExecutor(played, meter)
    os.environ["RAYSTS_MIRROR"] = str(folder / "mirrors")
    storage = folder / "storage" if args.store == "folder" else "s3://simulated/runs"
    changes = {"backbone": args.model or "tiny", "resources.gpus": 0.0} | parse_overrides(args.set)
    data, count = args.data, args.per_slot * slots
    try:
        with (
            mock.patch("raysts.storage.bucket.client", lambda uri, seconds: Client(meter, objects)),
            mock.patch("raysts.evaluation.contamination.occurrences", clean_rows),
            mock.patch("raysts.pipeline.run.time", SimpleNamespace(monotonic=lambda: played.now)),
            cProfile.Profile() if args.profile else contextlib.nullcontext() as profile,
        ):
            if args.work == "members":
                pipeline, _, opened = open_run("nli", {"members": count, **changes}, data=data, storage=storage)
                play = partial(play_run, checked_plan(pipeline, opened))
            elif args.work == "texts":
                data = text_folder(folder / "data", Path(data or world_path()), count * WINDOW)
                changes |= {"sed.train.max_steps": 100, "sed.loss": "cosine"}
                places = {"data": data, "storage": storage, "name": "simulated"}
                pipeline, _, options = open_distillation(args.teachers, changes, **places)
                play = partial(play_run, checked_plan(pipeline, options))
            else:
                bounds = [round(0.95 * number / count, 6) for number in range(count)]
                changes = {"space.lower_bound": bounds, "seeds": 1, **changes}
                play = partial(play_search, plan_study("lower-bound", changes, RunOptions(data=data, storage=storage)))
            began, spent, planned = time.process_time(), meter.spent, time.process_time()
            play(executor)
            cpu = time.process_time() - began - (meter.spent - spent)
        if profile:
            pstats.Stats(profile, stream=sys.stderr).sort_stats("cumulative").print_stats(45)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    hours, sent = max(played.now, 1e-9) / 3600, meter.requests
    if args.store == "bucket":
        sent["driver", "writes"] += round(played.now / lease.BEAT)
    writes, reads = (sum(number for (_, kind), number in sent.items() if kind == name) for name in ("writes", "reads"))
    busiest = max(cpu / played.now, writes / played.now / WRITES, reads / played.now / READS)
    return {
        "work": args.work,
        "count": count,
        "slots": slots,
        "hours": hours,
        "ideal": played.work / slots / 3600,
        "deaths": played.deaths,
        "lost %": 100 * played.lost / (played.work + played.lost),
        "before, CPU s": planned,
        "driver CPU s": cpu,
        "CPU s an hour": cpu / hours,
        "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "requests": writes + reads,
        "the driver's": sent["driver", "writes"] + sent["driver", "reads"],
        "writes/s": writes / played.now,
        "slots at the limit": round(slots / busiest),
    }


def main() -> None:
    """Play, print."""
    parser = measure.parser(__doc__)
    parser.add_argument("--work", choices=("members", "texts", "search"), default="members")
    parser.add_argument("--per-slot", type=int, default=2, help="members, windows of the text, or trials for each slot")
    parser.add_argument("--teachers", nargs="+", default=(), help="of the texts")
    parser.add_argument("--slots", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--store", choices=("folder", "bucket"), default="bucket")
    parser.add_argument("--lost-nodes", type=float, default=1.0, help="in an hour, for each 50 slots")
    parser.add_argument("--deaths", type=float, default=1.0, help="of workers in an hour, for each 50 slots")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", default="/dev/shm" if Path("/dev/shm").is_dir() else None, help="for the storages")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as pool:
        rows = [pool.submit(simulate, args, slots).result() for slots in args.slots]
    measure.publish(args.json, measure.machine(args.threads), rows, [])


if __name__ == "__main__":
    main()

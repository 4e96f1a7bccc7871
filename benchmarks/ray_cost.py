"""What Ray costs: two members of nli as two Ray Train runs, against the same two trained by two plain processes.

Both sides train the same runs (same seeds, batches, steps), both at once, one thread each, with the same training loop. The
training time of a side is that of its slower member, from its first batch to its last step; start-up (Ray's cluster, its
processes, imports, loading the model) is stated apart. No Ray process runs while the plain side is measured. What Ray takes while
members train is what other processes than theirs take, so the CPU seconds of both are beside it, of all processes of the machine.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import measure
import psutil
import workload

from raysts.recipes.recipe import Resources
from raysts.storage.foreign import read_json
from raysts.training.job import Job
from raysts.training.metrics import last_metrics

MEMBERS = 2
BEGUN = 50
"""Steps before which, and before whose end, CPU time is not counted: the line that the first is read from is the 50th."""


def jobs_of(work: dict[str, Any], model: Path, folder: Path, steps: int) -> list[Job]:
    """One nli run per member, in a fresh folder."""
    return [
        Job(
            id=f"{folder.name}-{member}",
            recipe=workload.recipe_of("nli", work["rows"], steps, "auto"),
            seed=member,
            folder=folder / "runs" / f"{folder.name}-{member}",
            parent=model,
            store=work["store"],
            facts={"system": "nli", "stage": "nli", "member": member},
        )
        for member in range(MEMBERS)
    ]


class Clock:
    """CPU seconds by process, of all processes of this machine, while a side trains: from when both members have done
    ``BEGUN`` steps until one has done all but as many."""

    def __init__(self, jobs: list[Job], steps: int) -> None:
        self.jobs, self.steps = jobs, steps
        self.seconds: dict[int, float] = {}
        self.wall = 0.0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while min(self._done()) < BEGUN:
            time.sleep(0.5)
        before, began = _cpu_seconds(), time.perf_counter()
        while max(self._done()) < self.steps - BEGUN:
            time.sleep(0.5)
        self.seconds = {pid: seconds - before.get(pid, 0.0) for pid, seconds in _cpu_seconds().items()}
        self.wall = time.perf_counter() - began

    def _done(self) -> list[int]:
        lines = [last_metrics(job.folder / "metrics.jsonl") for job in self.jobs]
        return [line["step"] if line else 0 for line in lines]

    def shares(self) -> dict[str, float]:
        """Of a CPU: what a member's process had, and what all others together took."""
        self._thread.join()
        taken = sorted(self.seconds.values(), reverse=True)
        return {"member": statistics.mean(taken[:MEMBERS]) / self.wall, "others": sum(taken[MEMBERS:]) / self.wall}


def _cpu_seconds() -> dict[int, float]:
    return {process.pid: sum(process.info["cpu_times"][:2]) for process in psutil.process_iter(["cpu_times"])}


def _train_alone(job: Job) -> None:
    from raysts.pipeline.local import train_chains
    from raysts.training.runtime import Runtime

    reason = train_chains([[job]], lambda _: Runtime("cpu", threads=1))[0]
    if reason is not None:
        raise SystemExit(reason)


def plain(jobs: list[Job]) -> dict[str, float]:
    """Two processes of this program's own."""
    began = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_train_alone, args=(job,), daemon=True) for job in jobs]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit("a plain process failed; see above")
    return outcome(jobs, time.perf_counter() - began, cluster=0.0)


def on_ray(jobs: list[Job]) -> dict[str, float]:
    """Two Ray Train runs of one worker with one CPU each, on a private cluster that starts and ends here."""
    from raysts.cluster.connect import connected

    began = time.perf_counter()
    with connected("local"):
        from raysts.cluster.executor import RayExecutor

        connected_after = time.perf_counter() - began
        reasons = RayExecutor().train(
            [[job] for job in jobs], Resources(workers=1, cpus=1, gpus=0.0), lambda text: None
        )
        seconds = time.perf_counter() - began
    if any(reasons):
        raise SystemExit(f"on Ray: {next(filter(None, reasons))}")
    return outcome(jobs, seconds, cluster=connected_after)


def outcome(jobs: list[Job], seconds: float, cluster: float) -> dict[str, float]:
    """``train`` (the slower member), ``cluster`` (connecting), ``start`` (all else) and ``wall``, in seconds."""
    records = [read_json(job.folder / "run.json") or {} for job in jobs]
    train = max(record["timings"]["train_seconds"] for record in records)
    return {"train": train, "cluster": cluster, "start": seconds - cluster - train, "wall": seconds}


def main() -> None:
    parser = measure.parser(__doc__)
    parser.set_defaults(threads=1)
    parser.add_argument("--steps", type=int, default=300, help="training steps of each member, more than 100")
    parser.add_argument("--rows", type=int, default=20_000, help="rows of the training table to draw from")
    args = parser.parse_args()
    if args.threads != 1:
        parser.error("--threads is 1 here: each member trains with one thread on either side")
    if args.steps <= 2 * BEGUN:
        parser.error(
            f"--steps {args.steps}: must be more than {2 * BEGUN}, for the first and the last {BEGUN} are left out"
        )
    if (os.cpu_count() or 1) < MEMBERS:
        parser.error(f"this needs {MEMBERS} CPUs, one for each member")
    os.environ["OMP_NUM_THREADS"] = "1"
    facts = measure.machine(args.threads)
    model = workload.model_folder(args.model)
    folder = Path(tempfile.mkdtemp(prefix="raysts-benchmark-"))
    found: dict[str, list[dict[str, float]]] = {"plain processes": [], "Ray": []}
    try:
        work = workload.prepare("nli", args.data, model, folder, args.rows)
        for number in range(args.rounds + 1):
            for name, train in (("plain processes", plain), ("Ray", on_ray)):
                round_folder = folder / f"{'ray' if name == 'Ray' else 'plain'}-{number}"
                jobs = jobs_of(work, model, round_folder, args.steps)
                clock = Clock(jobs, args.steps)
                times = train(jobs) | clock.shares()
                shutil.rmtree(round_folder)
                measure.say(
                    f"  {'warm-up' if number == 0 else f'round {number}'}: {name}: {times['train']:.2f} s, "
                    f"{times['member']:.3f} of a CPU a member, {times['others']:.3f} all others"
                )
                if number:
                    found[name].append(times)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rows = [
        {
            "side": name,
            "train s, min": min(t["train"] for t in times),
            "median": statistics.median(t["train"] for t in times),
            "max": max(t["train"] for t in times),
            "cluster start s": statistics.median(t["cluster"] for t in times),
            "other start-up and end s": statistics.median(t["start"] for t in times),
            "of a CPU, a member": statistics.median(t["member"] for t in times),
            "all others": statistics.median(t["others"] for t in times),
            "members": MEMBERS,
            "steps": args.steps,
        }
        for name, times in found.items()
    ]
    costs = [100 * (b["train"] / a["train"] - 1) for a, b in zip(found["plain processes"], found["Ray"], strict=True)]
    ratios = [
        {
            "compared": "training on Ray, beyond its start-up",
            "more time, %": statistics.median(costs),
            "min": min(costs),
            "max": max(costs),
        }
    ]
    measure.publish(args.json, facts, rows, ratios)


if __name__ == "__main__":
    main()

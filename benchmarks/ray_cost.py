"""What Ray costs: two members of nli as two Ray Train runs, against the same two trained by two plain processes.

Both sides train the same runs (same seeds, batches, steps), both members at once, one thread each, with the same training loop.
The sides take turns of a few seconds, in which every process of the other is stopped (SIGSTOP): a machine that is slower for a
minute is so for both. Start-up (Ray's cluster, its processes, imports, loading the model) is stated apart. What Ray's other
processes take from members (their CPU seconds, and what members find in their caches afterwards) is what the plain processes lose
where these run beside them, in turns of their own; beyond it is what training inside of Ray's workers costs.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import measure
import psutil
import workload

from raysts.recipes.recipe import Resources
from raysts.training.job import Job
from raysts.training.metrics import last_metrics

MEMBERS = 2
BEGUN = 50
"""Steps before which a side's members are not yet measured."""
TURN = 8.0
"""Seconds that a side trains before it is the other's turn."""


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


def _train_alone(job: Job) -> None:
    from raysts.pipeline.executor import attempt
    from raysts.training.runtime import Runtime

    reason = attempt([job], Runtime("cpu", threads=1)).reason
    if reason is not None:
        raise SystemExit(reason)


def plain(jobs: list[Job]) -> None:
    """Two processes of this program's own."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_train_alone, args=(job,)) for job in jobs]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit("a plain process failed; see above")


def on_ray(jobs: list[Job]) -> None:
    """Two Ray Train runs of one worker with one CPU each, on a private cluster that starts and ends here."""
    from raysts.cluster.connect import connection

    with connection("local"):
        from raysts.cluster.executor import RayExecutor

        reasons = RayExecutor().train([[job] for job in jobs], Resources(workers=1, cpus=1, gpus=0.0))
    if any(reasons):
        raise SystemExit(f"on Ray: {next(filter(None, reasons))}")


class Turns:
    """What was seen in the turns of a side.

    Attributes:
        rates: steps a second of a member, by turn.
        cpu: CPU seconds of every process of the machine.
        active: seconds of all turns.
    """

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.cpu: dict[int, float] = {}
        self.active = 0.0

    def shares(self) -> dict[str, float]:
        """Of a CPU: what a member's process had, and what all others together took; CPU seconds of a member's step."""
        taken = sorted(self.cpu.values(), reverse=True)
        member = statistics.mean(taken[:MEMBERS]) / self.active
        return {
            "of a CPU, a member": member,
            "all others": sum(taken[MEMBERS:]) / self.active,
            "CPU ms of a step": 1000 * member / statistics.mean(self.rates),
        }


class Side:
    """Members that train in processes of their own, and only when it is their turn.

    Args:
        train: trains the jobs.
        jobs: one a member.
    """

    def __init__(self, train: Callable[[list[Job]], None], jobs: list[Job]) -> None:
        self.jobs = jobs
        began = time.time()
        self._process = multiprocessing.get_context("spawn").Process(target=train, args=(jobs,))
        self._process.start()
        while min(step for step, _ in self._lines()) < BEGUN:
            if not self._process.is_alive():
                raise SystemExit(f"{train.__name__}: its process ended before {BEGUN} steps")
            time.sleep(0.5)
        self.members: list[int] = []
        """Processes that trained in the last turn."""
        self._last = self._stop()
        self.start_up = max(time.time() - ago for _, ago in self._last) - began
        """Seconds to the line of step ``BEGUN``, or the first after it."""

    def turn(self, seen: Turns, beside: Side | None = None) -> None:
        """Train for ``TURN`` seconds, with the processes of ``beside`` that do not train, or alone."""
        before, began = _cpu_seconds(), time.perf_counter()
        if beside is not None:
            beside._send(signal.SIGCONT, but=beside.members)
        self._send(signal.SIGCONT)
        time.sleep(TURN)
        lines = self._stop()
        seconds = time.perf_counter() - began
        if beside is not None:
            beside._stop()
        seen.active += seconds
        taken = {pid: now - before.get(pid, 0.0) for pid, now in _cpu_seconds().items()}
        self.members = sorted(taken, key=taken.__getitem__)[-MEMBERS:]
        for pid, used in taken.items():
            seen.cpu[pid] = seen.cpu.get(pid, 0.0) + used
        # A line is written every few steps: from the last of the turn before to the last of this one.
        pairs = zip(self._last, lines, strict=True)
        seen.rates.append(statistics.mean((b[0] - a[0]) / (a[1] + seconds - b[1]) for a, b in pairs))
        self._last = lines

    def done(self) -> int:
        """Steps of the member that has the most."""
        return max(step for step, _ in self._last)

    def end(self) -> None:
        """Train to the last step."""
        self._send(signal.SIGCONT)
        self._process.join()
        if self._process.exitcode:
            raise SystemExit("a side failed; see above")

    def _lines(self) -> list[tuple[int, float]]:
        """By member the step of its last line, and how many seconds ago it was written."""
        paths = [job.folder / "metrics.jsonl" for job in self.jobs]
        lines = [last_metrics(path) for path in paths]
        return [
            (line["step"], time.time() - path.stat().st_mtime) if line else (0, 0.0)
            for path, line in zip(paths, lines, strict=True)
        ]

    def _stop(self) -> list[tuple[int, float]]:
        self._send(signal.SIGSTOP)
        return self._lines()

    def _send(self, number: signal.Signals, but: Sequence[int] = ()) -> None:
        """A signal to all processes of this side, those that its processes have started among them."""
        for process in (own := psutil.Process(self._process.pid), *own.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                if process.pid not in but:
                    process.send_signal(number)


def _cpu_seconds() -> dict[int, float]:
    return {process.pid: sum(process.info["cpu_times"][:2]) for process in psutil.process_iter(["cpu_times"])}


def main() -> None:
    parser = measure.parser(__doc__)
    parser.set_defaults(threads=1, rounds=1)
    parser.add_argument("--steps", type=int, default=1200, help="training steps of each member, at least 400")
    parser.add_argument("--rows", type=int, default=20_000, help="rows of the training table to draw from")
    args = parser.parse_args()
    if args.threads != 1:
        parser.error("--threads is 1 here: each member trains with one thread on either side")
    if args.steps < 400:
        parser.error(
            f"--steps {args.steps}: must be at least 400, or the members are done before they have taken turns"
        )
    if (os.cpu_count() or 1) < MEMBERS:
        parser.error(f"this needs {MEMBERS} CPUs, one for each member")
    # Workers of Ray are nice by themselves, which on a machine that does nothing else changes who waits for whom.
    os.environ |= {"OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
    facts = measure.machine(args.threads)
    model = workload.model_folder(args.model)
    folder = Path(tempfile.mkdtemp(prefix="raysts-benchmark-"))
    rows, ratios = [], []
    try:
        work = workload.prepare("nli", args.data, model, folder, args.rows)
        for number in range(args.rounds):
            alone, ray = (
                Side(train, jobs_of(work, model, folder / f"{train.__name__}-{number}", args.steps))
                for train in (plain, on_ray)
            )
            seen = {name: Turns() for name in ("plain processes", "the same beside Ray's processes", "Ray")}
            ray.turn(Turns())  # its members become known
            # The plain side has two turns of three: it ends first.
            while alone.done() < args.steps - BEGUN:
                for turns, side, beside in zip(seen.values(), (alone, alone, ray), (None, ray, None), strict=True):
                    side.turn(turns, beside)
            for side in (alone, ray):
                side.end()
            rows += [
                {
                    "side": name,
                    "steps/s of a member, min": min(turns.rates),
                    "median": statistics.median(turns.rates),
                    "max": max(turns.rates),
                    "seconds of training": turns.active,
                    "start-up s": (ray if name == "Ray" else alone).start_up,
                    **turns.shares(),
                }
                for name, turns in seen.items()
            ]
            first, beside_ray, last = (turns.rates for turns in seen.values())
            for compared, faster, slower in (
                ("training on Ray, beyond its start-up", first, last),
                ("of it by Ray's other processes", first, beside_ray),
                ("beyond these", beside_ray, last),
            ):
                costs = sorted(100 * (a / b - 1) for a, b in zip(faster, slower, strict=True))
                quarter = len(costs) // 4
                ratios.append(
                    {
                        "compared": compared,
                        "more time, %": statistics.median(costs),
                        "a quarter below": costs[quarter],
                        "a quarter above": costs[-1 - quarter],
                        "turns": len(costs),
                    }
                )
    finally:
        for process in psutil.Process().children(recursive=True):  # of a comparison that was interrupted
            with suppress(psutil.NoSuchProcess):
                process.kill()
        shutil.rmtree(folder, ignore_errors=True)
    measure.publish(args.json, facts, rows, ratios)


if __name__ == "__main__":
    main()

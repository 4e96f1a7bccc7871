"""What a search on Ray Tune costs beyond training: the trials of a lower-bound search against a plain loop over them.

Both sides train the same runs (same ids, seeds, steps) with the same training loop and as many threads a trial. The plain
loop trains them one after the other in this process and keeps nothing in order; Ray Tune trains one at a time too
(``--concurrency 1``), or as many as the machine has room for. Ray's start (cluster, first actors) is stated apart: the first
trials wait for it, and the rate is measured from the end of the first trials to the end of the last. ``CPU s`` is the
processor time a trial takes in all processes, Ray's and the driver's too: beside other work it says more than the clock.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import measure
import psutil

from raysts.commands.options import RunOptions
from raysts.commands.study import plan_study
from raysts.commands.tune import tune as run_search
from raysts.log import logger
from raysts.pipeline.local import LocalExecutor
from raysts.search.space import grid
from raysts.search.study import Study
from raysts.training.attempt import attempt
from raysts.training.runtime import Runtime


def overrides_of(args: Any, model: str) -> dict[str, Any]:
    """A grid of so many bounds, one seed each."""
    bounds = [round(0.95 * i / max(1, args.trials - 1), 6) for i in range(args.trials)]
    return {
        "backbone": model, "space.lower_bound": bounds, "seeds": 1, "train.max_steps": args.steps,
        "train.eval_every": args.steps, "resources.gpus": 0.0, "resources.cpus": args.threads,
    }  # fmt: skip


def plain(args: Any, overrides: dict[str, Any], folder: Path) -> dict[str, float]:
    """A loop over the trials' jobs."""
    study: Study = plan_study("lower-bound", overrides, RunOptions(data=args.data, storage=folder))
    study.plan.write_backbone()
    study.prepare(LocalExecutor(threads=args.threads))
    jobs = [study.trial(point, 0).job for point in grid(study.search.space) or []]
    runtime, ends = Runtime("cpu", threads=args.threads), Ends()
    for job in jobs:
        reason = attempt([job], runtime).reason
        if reason:
            raise SystemExit(reason)
        ends.note()
    return rates(ends, folder, 1)


def on_ray(args: Any, overrides: dict[str, Any], folder: Path, concurrency: int | None) -> dict[str, float]:
    """The same as a search on a private cluster."""
    ends = Ends()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if ": dev " in record.getMessage():
                ends.note()

    listener = Listener()
    logger.addHandler(listener)
    began = time.perf_counter()
    found = run_search("lower-bound", {**overrides, "concurrency": concurrency}, args.data, folder, address="local")
    logger.removeHandler(listener)
    if found["trials"] != args.trials:
        raise SystemExit(f"{found['trials']} of {args.trials} trials finished")
    at_once = min(concurrency or os.cpu_count() or 1, (os.cpu_count() or 1) // args.threads)
    return {**rates(ends, folder, at_once), "start s": ends.times[0] - began}


class Ends:
    """When trials ended, and the processor time that this process and those below it had taken by then."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.spent: list[float] = []

    def note(self) -> None:
        """A trial has ended."""
        self.times.append(time.perf_counter())
        total, me = 0.0, psutil.Process()
        for process in (me, *me.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += sum(process.cpu_times()[:2])
        self.spent.append(total)

    def each(self, values: list[float], first: int) -> float:
        """Mean distance from the end of the first ``first`` trials to that of the last."""
        return (values[-1] - values[first - 1]) / (len(values) - first)


def rates(ends: Ends, folder: Path, at_once: int) -> dict[str, float]:
    """Trials a minute between the end of the first and of the last, and what a trial takes beside its training."""
    from raysts.storage.foreign import read_json

    trained = [read_json(path)["timings"]["train_seconds"] for path in folder.glob("runs/*/run.json")]
    each = ends.each(ends.times, at_once)
    return {
        "trials/min": 60 / each,
        "overhead s": each - statistics.median(trained) / at_once,
        "CPU s": ends.each(ends.spent, at_once),
        "start s": 0.0,
    }


def main() -> None:
    """Measure, print."""
    parser = measure.parser(__doc__)
    parser.set_defaults(threads=1, rounds=1)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--steps", type=int, default=50, help="training steps of a trial")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (by default they stand behind the plain loop)
    facts = measure.machine(args.threads)
    overrides = overrides_of(args, args.model or "tiny")
    sides: dict[str, list[dict[str, float]]] = {"plain loop": [], "Ray Tune, one at a time": [], "Ray Tune": []}
    for number in range(args.rounds):
        for name, found in sides.items():
            folder = Path(tempfile.mkdtemp(prefix="raysts-benchmark-"))
            try:
                if name == "plain loop":
                    found.append(plain(args, overrides, folder))
                else:
                    found.append(on_ray(args, overrides, folder, 1 if "one" in name else None))
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            measure.say(f"  round {number + 1}: {name}: {found[-1]['trials/min']:.1f} trials/min")
    rows = [
        {
            "side": name,
            **{key: statistics.median(each[key] for each in found) for key in found[0]},
            "trials": args.trials,
        }
        for name, found in sides.items()
    ]
    base = sides["plain loop"]
    ratios = [
        {
            "compared": f"{name}, trials/min against the plain loop",
            "times": statistics.median(a["trials/min"] / b["trials/min"] for a, b in zip(found, base, strict=True)),
        }
        for name, found in sides.items()
        if found is not base
    ]
    measure.publish(args.json, facts, rows, ratios)


if __name__ == "__main__":
    main()

"""What a search on Ray Tune costs beyond training: the trials of a lower-bound search against a plain loop over them.

Both sides train the same runs (same ids, seeds, steps) with the same training loop and as many threads a trial. The plain
loop trains them one after the other in this process and keeps nothing in order; Ray Tune trains one at a time too
(``--concurrency 1``), or as many as the machine has room for. Ray's start (cluster, first actors) is stated apart: the first
trials wait for it, and the rate is measured from the end of the first trials to the end of the last. ``CPU s`` is the
processor time a trial takes in all processes, Ray's and the driver's too: beside other work it says more than the clock.
``driver MB`` is the private memory of the driver after the first tenth of the trials and at the end; ``--chart`` draws it.

    python benchmarks/search_overhead.py --trials 1000 --steps 4 --sides "plain loop" "Ray Tune" --chart memory.svg
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
from typing import Any, NamedTuple

import measure
import psutil
import pyarrow.parquet as pq

from raysts.commands.options import RunOptions
from raysts.commands.study import plan_study
from raysts.commands.tune import tune as run_search
from raysts.data.world import world_path
from raysts.log import logger
from raysts.pipeline.executor import LocalExecutor, attempt
from raysts.report import charts
from raysts.search.space import grid
from raysts.search.study import Study
from raysts.training.runtime import Runtime


def overrides_of(args: Any, model: str) -> dict[str, Any]:
    """A grid of so many bounds, one seed each."""
    bounds = [round(0.95 * i / max(1, args.trials - 1), 6) for i in range(args.trials)]
    return {
        "backbone": model, "space.lower_bound": bounds, "seeds": 1, "train.max_steps": args.steps,
        "train.eval_every": args.steps, "resources.gpus": 0.0, "resources.cpus": args.threads,
    }  # fmt: skip


def short_dev(folder: Path) -> Path:
    """Write the embedded world with 50 rows to score, so that trials are short."""
    shutil.copytree(world_path(), folder, copy_function=os.symlink)
    dev = folder / "sts" / "stsb_dev.parquet"
    rows = pq.read_table(dev).slice(0, 50)
    dev.unlink()
    pq.write_table(rows, dev)
    return folder


def plain(args: Any, overrides: dict[str, Any], folder: Path, ends: Ends) -> dict[str, float]:
    """A loop over the trials' jobs."""
    study: Study = plan_study("lower-bound", overrides, RunOptions(data=args.data, storage=folder))
    study.plan.write_backbone()
    study.prepare(LocalExecutor(threads=args.threads))
    jobs = [study.trials(point)[0].job for point in grid(study.search.space) or []]
    runtime = Runtime("cpu", threads=args.threads)
    for job in jobs:
        reason = attempt([job], runtime).reason
        if reason:
            raise SystemExit(reason)
        ends.note()
    return rates(ends, folder, 1)


def on_ray(args: Any, overrides: dict[str, Any], folder: Path, concurrency: int | None, ends: Ends) -> dict[str, float]:
    """The same as a search on a private cluster."""

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
    return {**rates(ends, folder, at_once), "start s": ends.looks[0].time - began}


class Look(NamedTuple):
    """The state after so many trials: when, CPU seconds of this process and those below it, private bytes of this one."""

    trials: int
    time: float
    spent: float
    memory: int


class Ends:
    """What was so far whenever some trials had ended."""

    def __init__(self, every: int) -> None:
        self.trials, self.every = 0, every
        self.looks: list[Look] = []
        self.spent: dict[psutil.Process, float] = {}  # also of processes that have ended

    def note(self) -> None:
        """A trial has ended. A look takes CPU time itself, so only some ends have one."""
        self.trials += 1
        if self.trials > 2 and self.trials % self.every:
            return
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                self.spent[process] = sum(process.cpu_times()[:2])
        self.looks.append(Look(self.trials, time.perf_counter(), sum(self.spent.values()), me.memory_full_info().uss))


def rates(ends: Ends, folder: Path, at_once: int) -> dict[str, float]:
    """Trials a minute between the end of the first and of the last, and what a trial takes beside its training."""
    from raysts.storage.foreign import read_json

    trained = [read_json(path)["timings"]["train_seconds"] for path in folder.glob("runs/*/run.json")]
    first, last = next(look for look in ends.looks if look.trials >= at_once), ends.looks[-1]
    tenth = next(look for look in ends.looks if look.trials >= last.trials / 10)
    each = (last.time - first.time) / (last.trials - first.trials)
    return {
        "trials/min": 60 / each,
        "overhead s": each - statistics.median(trained) / at_once,
        "CPU s": (last.spent - first.spent) / (last.trials - first.trials),
        "start s": 0.0,
        "driver MB": tenth.memory / 1e6,
        "at the end": last.memory / 1e6,
    }


STYLE = (
    ".chart text{font:11px system-ui,sans-serif;fill:#56616f} .axis{stroke:#56616f} .grid{stroke:#e8ecf0} "
    ".label{font-size:12px} polyline{fill:none;stroke:#2563a8;stroke-width:1.6}"
)


def chart(looks: list[Look]) -> str:
    """The driver's memory over the trials that have ended."""
    x = charts.Scale(0, looks[-1].trials, *charts.X)
    y = charts.Scale(0, 1.2 * max(look.memory for look in looks) / 1e6, *charts.Y)
    line = charts.polyline([(x(look.trials), y(look.memory / 1e6)) for look in looks])
    back = charts.tag("rect", width=charts.WIDTH, height=charts.HEIGHT, fill="#fff")
    parts = [charts.tag("style", STYLE), back, *charts.frame(x.marks(5), y.marks(4), "trials that have ended"), line]
    title = "Private memory of a search's driver, MB"
    text = charts.drawing(
        "memory", title, f"{looks[-1].memory / 1e6:.0f} MB at the end.", parts, charts.WIDTH, charts.HEIGHT
    )
    return str(text).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)


def main() -> None:
    """Measure, print."""
    parser = measure.parser(__doc__)
    parser.set_defaults(threads=1, rounds=1)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--steps", type=int, default=50, help="training steps of a trial")
    names = ("plain loop", "Ray Tune, one at a time", "Ray Tune")
    parser.add_argument("--sides", nargs="+", choices=names, default=names)
    parser.add_argument("--chart", type=Path, metavar="FILE", help="draw the driver's memory on the last side here")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (by default they stand behind the plain loop)
    facts = measure.machine(args.threads)
    overrides = overrides_of(args, args.model or "tiny")
    data = args.data
    sides: dict[str, list[dict[str, float]]] = {name: [] for name in names if name in args.sides}
    for number in range(args.rounds):
        for name, found in sides.items():
            scratch, ends = Path(tempfile.mkdtemp(prefix="raysts-benchmark-")), Ends(max(1, args.trials // 100))
            folder = scratch / "storage"
            args.data = data or short_dev(scratch / "data")
            try:
                if name == "plain loop":
                    found.append(plain(args, overrides, folder, ends))
                else:
                    found.append(on_ray(args, overrides, folder, 1 if "one" in name else None, ends))
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
            measure.say(f"  round {number + 1}: {name}: {found[-1]['trials/min']:.1f} trials/min")
    rows = [
        {
            "side": name,
            **{key: statistics.median(each[key] for each in found) for key in found[0]},
            "trials": args.trials,
        }
        for name, found in sides.items()
    ]
    base = sides.get("plain loop", [])
    ratios = [
        {
            "compared": f"{name}, trials/min against the plain loop",
            "times": statistics.median(a["trials/min"] / b["trials/min"] for a, b in zip(found, base, strict=True)),
        }
        for name, found in sides.items()
        if base and found is not base
    ]
    if args.chart:
        args.chart.write_text(chart(ends.looks), encoding="utf-8")
    measure.publish(args.json, facts, rows, ratios)


if __name__ == "__main__":
    main()

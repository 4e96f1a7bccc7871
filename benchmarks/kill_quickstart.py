"""Does `raysts run quickstart` survive kills at random moments, and what does a kill cost?

Kills the driver alone (SIGKILL), its whole process group, or one training worker; runs the same command again at once,
until it ends by itself. Compared with an undisturbed run: the student's weights bit for bit, whether finished work was
written again, whether a process of the dead run is left, and the seconds until the next run makes progress.

    python benchmarks/kill_quickstart.py --kills 6 --storage /tmp/kills
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

# The tests' way to find every process of a command, however deep.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "cluster"))
from processes import Command, finished_files, progress, trainer, wait_until  # noqa: E402

KINDS = ("driver", "group", "worker")


@dataclass
class Kill:
    """One kill and what came of it."""

    kind: str
    moment: float
    files: int
    gone: float | None = None
    left: int = 0
    goes_on: float | None = None
    touched: int = 0

    def row(self, number: int) -> str:
        def seconds(value: float | None) -> str:
            return "-" if value is None else f"{value:.1f}"

        return (
            f"| {number} | {self.kind} | {self.moment:.1f} | {self.files} | {seconds(self.gone)} | {self.left} | "
            f"{seconds(self.goes_on)} | {self.touched} |"
        )


class Runs:
    """Starts the command on a storage folder, again and again."""

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        self.folder, self.arguments, self.count = folder, arguments, 0

    def start(self, storage: Path) -> Command:
        """One more run."""
        self.count += 1
        command = ["-m", "raysts", "run", "quickstart", "--storage", str(storage), "--json", *self.arguments]
        return Command(command, self.folder / f"run-{self.count:03d}.log")


def weights(storage: Path) -> dict[str, str]:
    """sha256 of every finished model by run id."""
    return {
        path.parent.parent.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in storage.glob("runs/*/model/model.safetensors")
    }


def main() -> None:
    """Run, kill, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--storage", type=Path, help="folder for the runs (default: a temporary one)")
    parser.add_argument("arguments", nargs="*", help="further arguments of raysts run quickstart, after --")
    options = parser.parse_args()
    folder = (options.storage or Path(tempfile.mkdtemp(prefix="raysts-kills-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    runs, dice = Runs(folder, ["--address", "local", *options.arguments]), random.Random(options.seed)

    began = time.monotonic()
    calm = runs.start(folder / "calm")
    if calm.process.wait() != 0:
        raise SystemExit(f"the undisturbed run failed:\n{calm.stderr()}")
    length = time.monotonic() - began
    expected = weights(folder / "calm")
    print(f"undisturbed: {length:.1f} s, {len(expected)} models", flush=True)

    kills: list[Kill] = []
    rounds = wrong = 0
    while len(kills) < options.kills:
        rounds += 1
        storage = folder / f"killed-{rounds}"
        shutil.rmtree(storage, ignore_errors=True)
        made = one_round(runs, storage, length, dice, options.kills - len(kills))
        kills += made
        found = weights(storage)
        wrong += found != expected
        print(f"round {rounds}: {len(made)} kills, weights {'equal' if found == expected else 'DIFFER'}", flush=True)

    began = time.monotonic()
    # Were Ray started, it would look for this cluster and fail.
    again = Command(
        ["-m", "raysts", "run", "quickstart", "--storage", str(storage), "--json", "--address", "127.0.0.1:1",
         *options.arguments],
        folder / "again.log",
    )  # fmt: skip
    code, again_seconds = again.process.wait(), time.monotonic() - began

    print("\n| kill | of | after s | files done | all gone after s | left | goes on after s | written again |")
    print("|---|---|---|---|---|---|---|---|")
    for number, kill in enumerate(kills, start=1):
        print(kill.row(number))
    summary = {
        "kills": len(kills), "rounds": rounds, "rounds_with_other_weights": wrong,
        "processes_left": sum(kill.left for kill in kills), "files_written_again": sum(kill.touched for kill in kills),
        "further_run": {"exit_code": code, "seconds": round(again_seconds, 1)}, "undisturbed_seconds": round(length, 1),
    }  # fmt: skip
    print(json.dumps(summary))
    sys.exit(bool(wrong or code or summary["processes_left"] or summary["files_written_again"]))


def one_round(runs: Runs, storage: Path, length: float, dice: random.Random, most: int) -> list[Kill]:
    """Run on a fresh storage folder, with at most ``most`` kills, to the end."""
    kills: list[Kill] = []
    command, kept = runs.start(storage), {}
    while not command.ended():
        if len(kills) == most:
            command.process.wait()
            break
        kind, moment, began = dice.choice(KINDS), dice.uniform(0.0, length / 2), time.monotonic()
        wait_until(lambda c=command, t=began + moment: c.ended() or time.monotonic() >= t, 2 * length + 60)
        if kind == "worker":
            wait_until(lambda c=command: c.ended() or trainer(storage), 10 * length + 60)
        if command.ended():
            break
        kills.append(kill := Kill(kind, time.monotonic() - began, len(finished_files(storage))))
        if kind == "worker":
            pid = trainer(storage)
            if pid is None:
                kills.pop()
            else:
                os.kill(pid, signal.SIGKILL)
            continue
        (os.killpg if kind == "group" else os.kill)(command.pid, signal.SIGKILL)  # it leads its group
        command.process.wait()
        died, dead = time.monotonic(), command
        kept = finished_files(storage)
        before = progress(storage)
        command = runs.start(storage)  # at once
        while kill.gone is None or kill.goes_on is None:
            if kill.gone is None and not dead.family():
                kill.gone = time.monotonic() - died
            if kill.gone is None and time.monotonic() - died > 30:
                kill.gone, kill.left = time.monotonic() - died, len(dead.family())
                dead.sweep()
            if kill.goes_on is None and (progress(storage) != before or command.ended()):
                kill.goes_on = time.monotonic() - died
            time.sleep(0.05)
        now = finished_files(storage)
        kill.touched = sum(now.get(path) != time_ for path, time_ in kept.items())
    if command.process.returncode != 0:
        raise SystemExit(f"the run failed after {len(kills)} kills:\n{command.stderr()}")
    now = finished_files(storage)
    if kills:
        kills[-1].touched += sum(now.get(path) != time_ for path, time_ in kept.items())
    return kills


if __name__ == "__main__":
    main()

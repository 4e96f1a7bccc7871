"""Does a search survive kills at random moments, alone or at the head of a pipeline, and what does a kill cost?

Kills the driver alone (SIGKILL), its whole process group (driver and head at once), one trial's process, or interrupts the
group (Ctrl-C); runs the same command again at once, until it ends by itself; then again on a fresh storage, until enough
kills are done. Compared with an undisturbed search: every trial's value, the kept models bit for bit; counted: trials
whose record was lost, written again or doubled, trials of the Optuna database that are not complete, processes of a dead
run that are left, and the seconds until the next run makes progress.

    python benchmarks/kill_search.py --kills 50 --storage /tmp/kills
    python benchmarks/kill_search.py --kills 20 --search sts-grid-sed
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
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# The tests' way to find every process of a command, however deep.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "cluster"))
from processes import Command, trainer, wait_until  # noqa: E402

KINDS = ("driver", "group", "worker", "interrupt")
SHORT = ["--set", "train.max_steps=60", "--set", "train.checkpoint_every=10", "--set", "train.eval_every=20"]
SHORT += ["--set", "train.max_length=32"]
SEARCHES = {
    "lower-bound": ("tune", ["--set", "space.lower_bound=0,0.2,0.4,0.6,0.8", "--set", "seeds=4"]),
    # Two stages, both of which differ between points.
    "nli-ct": ("tune", ["--set", "space.nli.optim.lr=1e-5,1e-4", "--set", "space.ct.optim.lr=1e-5,1e-4,1e-3", "--set", "seeds=2",
                "--set", "keep=4"]),
    # A search, the ensemble of its best point, its student and their evaluation.
    "sts-grid-sed": ("run", ["--set", "space.lower_bound=0,0.4,0.8", "--set", "seeds=2", "--set", "members=2", "--set",
                     "sed.data.sample=400", "--set", "evaluation.tasks=stsb", "--set", "evaluation.resamples=2"]),
}  # fmt: skip
"""The command of each search, and what differs between its points."""


@dataclass
class Counts:
    """What came of the kills."""

    kills: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    written_again: int = 0
    other_values: int = 0
    other_models: int = 0
    not_complete: int = 0
    processes_left: int = 0
    back: list[float] = field(default_factory=list)
    """Seconds from a kill to the next progress."""


def start(storage: Path, log: Path, arguments: list[str]) -> Command:
    """The command, once more."""
    place = ["--storage", str(storage), "--address", "local", "--json"]
    return Command(["-m", "raysts", *arguments, *place], log)


def records(storage: Path) -> dict[str, int]:
    """Records of trials and when they were written."""
    found = storage.glob("studies/*/trials/[!.]*.json")
    return {path.stem: path.stat().st_mtime_ns for path in found}


def lines(storage: Path) -> int:
    """Metrics lines and records: how far the search has come."""
    return len(records(storage)) + sum(path.read_bytes().count(b"\n") for path in storage.glob("runs/*/metrics.jsonl"))


def outcome(command: Command) -> tuple[dict[tuple[str, int], float], dict[str, Any]]:
    """Values by point and seed, and the JSON line, of a search that must have ended well."""
    command.process.wait()  # as long as it takes, on a busy machine too
    printed = command.stdout()
    if command.process.returncode != 0:
        raise SystemExit(f"the search failed:\n{command.stderr()}")
    found = json.loads(printed.splitlines()[-1])
    return {(str(p["overrides"]), p["seed"]): p["value"] for p in found["points"]}, found


def models(storage: Path) -> dict[str, str]:
    """sha256 of every kept model by run id."""
    paths = storage.glob("runs/*/model/model.safetensors")
    return {path.parent.parent.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def incomplete(found: dict[str, Any], expected: int) -> int:
    """Trials of the Optuna database that are not complete, or are there twice."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    trials = optuna.load_study(
        study_name=Path(found["study"]).name, storage=f"sqlite:///{found['study']}/optuna.db"
    ).trials
    distinct = {json.dumps(trial.params, sort_keys=True) for trial in trials if trial.state.name == "COMPLETE"}
    return abs(len(trials) - len(distinct)) + abs(expected - len(distinct))


def one_round(
    folder: Path, storage: Path, most: int, length: float, dice: random.Random, counts: Counts, arguments: list[str]
) -> Command:
    """One search on a fresh storage, with at most ``most`` kills, to its end."""
    command, number, kept = start(storage, folder / f"{storage.name}-0.log", arguments), 0, dict[str, int]()
    ended = list[Command]()
    while number < most:
        kind, moment = dice.choice(KINDS), time.monotonic() + dice.uniform(0.0, length / 4)
        wait_until(lambda c=command, m=moment: c.ended() or time.monotonic() >= m, 2 * length + 60)
        if kind == "worker":
            wait_until(lambda c=command: c.ended() or trainer(storage), 10 * length + 60)
        if command.ended():
            break
        number += 1
        counts.kills[kind] += 1
        if kind == "worker":
            if (pid := trainer(storage)) is not None:
                os.kill(pid, signal.SIGKILL)
            continue
        if kind == "driver":
            command.signal_driver(signal.SIGKILL)
        elif kind == "group":
            os.killpg(command.pid, signal.SIGKILL)
        else:
            os.killpg(command.pid, signal.SIGINT)
        command.process.wait()
        died, before, now = time.monotonic(), lines(storage), records(storage)
        counts.lost += len(kept.keys() - now.keys())
        counts.written_again += sum(now[name] != written for name, written in kept.items() if name in now)
        kept = now
        ended.append(command)
        command = start(storage, folder / f"{storage.name}-{number}.log", arguments)
        wait_until(lambda c=command, b=before: lines(storage) != b or c.ended(), 10 * length + 60)
        counts.back.append(time.monotonic() - died)
    command.process.wait()
    for dead in ended:
        counts.processes_left += len(dead.left_behind(90))  # two agents of Ray look a minute for a head that was killed
        dead.sweep()
    now = records(storage)
    counts.lost += len(kept.keys() - now.keys())
    counts.written_again += sum(now[name] != written for name, written in kept.items() if name in now)
    return command


def main() -> None:
    """Search, kill, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--storage", type=Path, help="folder for the searches (default: a temporary one)")
    parser.add_argument("--search", choices=SEARCHES, default="lower-bound")
    parser.add_argument("arguments", nargs="*", help="further arguments of raysts tune, after --")
    options = parser.parse_args()
    os.environ.pop("RAYSTS_DATA", None)  # the searches are of the embedded world
    os.environ.setdefault("RAY_worker_niceness", "0")  # behind other work on the machine trials would not move
    command, space = SEARCHES[options.search]
    arguments = [command, options.search, *space, *SHORT, *options.arguments]
    folder = (options.storage or Path(tempfile.mkdtemp(prefix="raysts-kills-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)

    began = time.monotonic()
    expected, _ = outcome(start(folder / "calm", folder / "calm.log", arguments))
    length, kept = time.monotonic() - began, models(folder / "calm")
    print(f"undisturbed: {len(expected)} trials in {length:.1f} s, {len(kept)} models kept", flush=True)

    counts, dice, rounds = Counts(), random.Random(options.seed), 0
    while (done := sum(counts.kills.values())) < options.kills:
        rounds += 1
        storage = folder / f"killed-{rounds}"
        shutil.rmtree(storage, ignore_errors=True)
        values, found = outcome(one_round(folder, storage, options.kills - done, length, dice, counts, arguments))
        counts.other_values += len(values.items() ^ expected.items())
        counts.other_models += models(storage) != kept
        counts.not_complete += incomplete(found, len(expected))
        print(json.dumps(summary(counts, rounds, len(expected), length)), flush=True)

    wrong = (counts.lost, counts.written_again, counts.other_values, counts.other_models, counts.not_complete)
    sys.exit(any((*wrong, counts.processes_left)))


def summary(counts: Counts, rounds: int, trials: int, length: float) -> dict[str, Any]:
    """Numbers of the rounds so far."""
    back = sorted(counts.back)
    return {
        "kills": dict(counts.kills), "searches": rounds, "trials_of_a_search": trials, "records_lost": counts.lost,
        "records_written_again": counts.written_again, "values_that_differ": counts.other_values,
        "searches_with_other_models": counts.other_models, "database_trials_not_complete_or_doubled": counts.not_complete,
        "processes_left": counts.processes_left, "undisturbed_seconds": round(length, 1),
        "seconds_to_go_on": [round(back[0], 1), round(back[len(back) // 2], 1), round(back[-1], 1)] if back else [],
    }  # fmt: skip


if __name__ == "__main__":
    main()

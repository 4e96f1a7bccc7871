"""Does `raysts run quickstart` come to its end on a cluster whose processes are killed at random all the time?

Three Ray nodes on this machine, one CPU each. Every 20 seconds or so something dies (SIGKILL): a training worker, the host
or the controller of a Ray Train run, the queue, a node with all its processes, the driver, or the head, and with it the
cluster. What died is started again at once, the driver by the same command. When a round ends before its time, the next
begins on a fresh storage folder. Then the killing stops and the run must end well: every model bit for bit that of an
undisturbed run, no process of a driver and no placement group left, no unfinished file, and never more on disk than the bound
that is printed.

    python benchmarks/chaos.py --minutes 10 --every 20 --storage /tmp/chaos
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from kill_quickstart import weights

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "cluster"))
from processes import Command, family_of_title, finished_files, trainer, wait_until  # noqa: E402

from raysts.storage.atomic import ASIDE
from raysts.storage.foreign import read_json  # noqa: E402
from raysts.training import checkpoint  # noqa: E402

TITLES = {"host": "ray::TrainRun", "controller": "ray::TrainController", "queue": "ray::MemberQueue"}
KINDS = ("worker", *TITLES, "node", "driver", "head")
GROUPS = """
import ray, sys
ray.init(sys.argv[1], log_to_driver=False, logging_level=50)
print([group for group in ray.util.placement_group_table().values() if group["state"] != "REMOVED"])
"""
NODES = 3
DISK = 3.0
"""The storage may hold so many times what an undisturbed run leaves, at any moment."""
SMALL = ("--disable-usage-stats", "--object-store-memory", str(80 << 20), "--num-cpus", "1", "--block")


class Nodes:
    """A head and its nodes, as commands of their own."""

    def __init__(self, folder: Path, count: int = NODES) -> None:
        self.folder, self.count, self.started = folder, count, 0
        self.sessions = Path(tempfile.mkdtemp(prefix="rc-", dir="/tmp"))  # short: it becomes the name of a socket
        self.commands: list[Command] = []
        self.address = ""
        # A token of its own: Ray asks for one, and keeps the user's in the home folder.
        self.environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self.environment |= {"RAY_raylet_start_wait_time_s": "300"}

    def start(self) -> None:
        """Start all that are missing or have ended, the head first; a new head has a new address."""
        if self.commands and self.commands[0].ended():
            self.kill(0)
        for command in [command for command in self.commands if command.ended()]:
            self.kill(self.commands.index(command))
        if not self.commands:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            self.address = f"127.0.0.1:{port}"
            self.started += 1
            session = self.sessions / str(self.started)
            self._add("--head", "--port", str(port), "--include-dashboard", "false", "--temp-dir", str(session))
            wait_until(self._answers, 300)
        while len(self.commands) < self.count:
            self._add("--address", self.address)

    def ready(self) -> None:
        """Wait until all have joined. One that hangs in its start, as Ray's nodes that start at once may, is replaced."""
        while True:
            with contextlib.suppress(TimeoutError):
                return wait_until(lambda: all(map(self._joined, self.commands)), 60)
            for index in reversed(range(len(self.commands))):
                if index and not self._joined(self.commands[index]):
                    self.kill(index)
            self.start()

    def _joined(self, command: Command) -> bool:
        return "Ray runtime started" in command.output.read_text()

    def _add(self, *arguments: str) -> None:
        log = self.folder / f"node-{len(list(self.folder.glob('node-*.log'))):03d}.log"
        command = ["-m", "ray.scripts.scripts", "start", *arguments, *SMALL]
        self.commands.append(Command(command, log, self.environment))

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(self.address.split(":")[1])), 1):
            return True
        return False

    def groups(self) -> str:
        """Placement groups that are not removed."""
        command = Command(["-c", GROUPS, self.address], self.folder / "groups.log", self.environment)
        return command.stdout().strip() or command.stderr()

    def kill(self, index: int) -> None:
        """A node with all that runs on it; with the head (0) every node."""
        for command in self.commands if index == 0 else [self.commands[index]]:
            command.sweep()
        self.commands = [] if index == 0 else [c for i, c in enumerate(self.commands) if i != index]

    def close(self) -> None:
        """End them all."""
        if self.commands:
            self.kill(0)
        shutil.rmtree(self.sessions, ignore_errors=True)


class Driver:
    """The command, started again whenever it ends badly."""

    def __init__(self, folder: Path, arguments: list[str], environment: dict[str, str] | None = None) -> None:
        self.folder, self.arguments, self.environment = folder, arguments, environment
        self.commands: list[Command] = []
        self.codes: list[int] = []

    def start(self, storage: Path, address: str, recipe: str = "quickstart") -> None:
        """Once more."""
        command = ["-m", "raysts", "run", recipe, "--storage", str(storage), "--json", "--address", address]
        log = self.folder / f"run-{len(list(self.folder.glob('run-*.log'))):03d}.log"
        self.commands.append(Command([*command, *self.arguments], log, self.environment))

    @property
    def current(self) -> Command:
        return self.commands[-1]

    def code(self) -> int | None:
        """How the current one ended, if it has."""
        return self.current.process.poll()

    def left(self) -> list[str]:
        """Processes of those that have ended."""
        return [line for command in self.commands for line in command.left_behind()]


def committed(storage: Path) -> int:
    """What no kill can take back: steps in checkpoints and of finished runs, and finished files."""
    steps = 0
    for record in storage.glob("runs/*/run.json"):
        found = read_json(record) or {}
        saved = checkpoint.last(record.parent / "checkpoints")
        steps += found.get("steps", 0) if found.get("status") == "done" else int(saved.stem[5:]) if saved else 0
    return steps + len(finished_files(storage))


def size(folder: Path) -> int:
    """Bytes of a folder."""
    total = 0
    for parent, _, names in os.walk(folder):  # folders may go while it looks
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(parent, name).stat().st_size
    return total


def main() -> None:
    """Run, kill, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the killing goes on")
    parser.add_argument(
        "--every", type=float, default=20.0, help="seconds between kills, half as much up to half again"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--patience", type=float, default=30.0, help="minutes that the run may take when the killing is over"
    )
    parser.add_argument("--storage", type=Path, help="folder for the runs (default: a temporary one)")
    parser.add_argument("arguments", nargs="*", help="further arguments of raysts run quickstart, after --")
    options = parser.parse_args()
    folder = (options.storage or Path(tempfile.mkdtemp(prefix="raysts-chaos-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    chaos = Chaos(folder, options)
    try:
        summary = chaos.run()
    finally:
        for command in [*chaos.driver.commands, *chaos.nodes.commands]:
            command.sweep()
        chaos.nodes.close()
    print(json.dumps(summary))
    sys.exit(bool(summary["problems"]))


class Chaos:
    """One experiment."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options, self.dice = folder, options, random.Random(options.seed)
        self.nodes = Nodes(folder)
        self.driver = Driver(folder, options.arguments, self.nodes.environment)
        self.kills: list[tuple[float, str, int]] = []
        self.peak = 0

    def run(self) -> dict[str, Any]:
        """The calm run, the rounds, and what was found wrong."""
        began = time.monotonic()
        calm = Driver(self.folder, self.options.arguments)  # what an earlier try has left of it is not done again
        calm.start(self.folder / "calm", "none")
        if calm.current.process.wait() != 0:
            raise SystemExit(f"the undisturbed run failed:\n{calm.current.stderr()}")
        length, expected, bound = time.monotonic() - began, weights(self.folder / "calm"), size(self.folder / "calm")
        self._say(f"undisturbed, without Ray: {length:.0f} s, {len(expected)} models, {bound / 1e6:.1f} MB")
        problems: list[str] = []
        began, rounds = time.monotonic(), 0
        self.stop_at, self.began = began + 60 * self.options.minutes, began
        while not rounds or time.monotonic() < self.stop_at:
            rounds += 1
            storage = self.folder / f"round-{rounds}"
            self.round(storage)
            found = weights(storage)
            if found != expected:
                problems.append(f"round {rounds}: {sum(found.get(k) != v for k, v in expected.items())} models differ")
            left = [str(path) for path in storage.rglob(f"{ASIDE}*")] + [
                str(p) for p in storage.glob("runs/*/checkpoints")
            ]
            problems += [f"round {rounds}: left behind {path}" for path in left]
            if (groups := self.nodes.groups()) != "[]":
                problems.append(f"round {rounds}: placement groups: {groups}")
            self._say(f"round {rounds}: ended, models {'equal' if found == expected else 'DIFFER'}")
        problems += [f"a process of an ended driver lives: {line}" for line in self.driver.left()]
        if self.peak > DISK * bound:
            problems.append(
                f"the storage grew to {self.peak / 1e6:.1f} MB, more than {DISK:g} times {bound / 1e6:.1f} MB"
            )
        gains = [b[2] - a[2] for a, b in zip(self.kills, self.kills[1:], strict=False)]
        return {
            "kills": {kind: sum(k == kind for _, k, _ in self.kills) for kind in KINDS}, "rounds": rounds,
            "kills_after_progress": sum(gain != 0 for gain in gains), "kills_without": sum(gain == 0 for gain in gains),
            "driver_starts": len(self.driver.commands), "driver_ended_itself_with": self.driver.codes,
            "seconds": round(time.monotonic() - began), "undisturbed_seconds": round(length),
            "disk_peak_mb": round(self.peak / 1e6, 1), "disk_bound_mb": round(DISK * bound / 1e6, 1),
            "load": os.getloadavg(), "problems": problems,
        }  # fmt: skip

    def round(self, storage: Path) -> None:
        """From an empty storage folder to the end of the pipeline."""
        self.nodes.start()
        self.driver.start(storage, self.nodes.address)
        due = self._next()
        while (code := self.driver.code()) != 0:
            now = time.monotonic()
            if now > self.stop_at + 60 * self.options.patience:
                raise SystemExit(
                    f"no end {self.options.patience:g} minutes after the last kill: {self.driver.current.stderr()}"
                )
            self.peak = max(self.peak, size(storage))
            head = self.nodes.commands[0]
            if any(command.ended() for command in self.nodes.commands):  # not by us
                self.nodes.start()
            if code is not None or self.nodes.commands[0] is not head:
                if code is not None:
                    self.driver.codes.append(code)
                self.driver.current.sweep()
                self.driver.start(storage, self.nodes.address)
            elif now >= due and now < self.stop_at:
                self.kill(storage)
                due = self._next()
            time.sleep(0.5)

    def _next(self) -> float:
        return time.monotonic() + self.options.every * self.dice.uniform(0.5, 1.5)

    def kill(self, storage: Path) -> None:
        """One kill, of what there is now, and a new start of what died."""
        victims = {kind: next(iter(family_of_title(title, os.getpid())), None) for kind, title in TITLES.items()}
        victims["worker"] = trainer(storage)
        kind = self.dice.choice([kind for kind in KINDS if kind not in victims or victims[kind] is not None])
        victim = victims.get(kind)
        self.kills.append((time.monotonic() - self.began, kind, committed(storage)))
        self._say(f"kill {len(self.kills)}: {kind}, committed {self.kills[-1][2]}")
        if victim is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        elif kind == "node":
            self.nodes.kill(self.dice.randrange(1, len(self.nodes.commands)))
            self.nodes.start()
        else:
            self.driver.current.signal_driver(signal.SIGKILL)
            self.driver.current.process.wait()
            if kind == "head":
                self.nodes.kill(0)
                self.nodes.start()
            self.driver.start(storage, self.nodes.address)

    def _say(self, text: str) -> None:
        at = f"{time.monotonic() - self.began:6.0f} s " if hasattr(self, "began") else ""
        print(f"{at}{text} (load {os.getloadavg()[0]:.1f})", flush=True)


if __name__ == "__main__":
    main()

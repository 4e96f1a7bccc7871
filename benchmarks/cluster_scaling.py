"""What do more Ray nodes bring, what does a death cost, and what do checkpoints cost? All on this machine.

1. Members an hour of one ensemble (nli on the embedded world, the tiny backbone) on 1, 2 and 4 Ray nodes of one CPU each,
   from the first start of a member to the last end. Nodes are processes: more of them than cores bring nothing.
2. Seconds from the SIGKILL of a worker, or of a whole node, until a checkpoint that no process had reached before.
3. The same of two members after the SIGKILL of both their workers, of the host or the controller of their run; after that of the
   queue, and Ctrl-C and SIGTERM to the process group, seconds until nothing of the command is left.
4. Whether the members of other nodes keep their processes when one of five nodes is killed.
5. Seconds of training with a checkpoint every n steps, in this order and back, without Ray.

    python benchmarks/cluster_scaling.py --members 4 --steps 300
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from chaos import TITLES, Driver, Nodes, committed
from processes import family_of_title, trainer, wait_until, writer_of  # on the path since chaos is imported

from raysts.storage.foreign import read_json
from raysts.training import checkpoint

CHECKPOINTS = (1, 10, 100, None)
PARTS = ("scaling", "recovery", "by-hand", "lost-node", "checkpoints")


def records(storage: Path) -> list[dict[str, Any]]:
    """Records of the runs that are done."""
    found = [read_json(path) or {} for path in storage.glob("runs/*/run.json")]
    return [record for record in found if record.get("status") == "done"]


def arguments(members: int, steps: int, checkpoint_every: int | None = None) -> list[str]:
    """Of a run of so many members."""
    sets = {
        "backbone": "tiny", "members": members, "train.epochs": 1000, "train.max_steps": steps, "train.eval_every": steps,
        "train.checkpoint_every": checkpoint_every or "none", "evaluation.tasks": "[stsb]", "evaluation.resamples": 0,
    }  # fmt: skip
    return [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]


def scaling(folder: Path, members: int, steps: int, counts: tuple[int, ...]) -> None:
    """Part 1."""
    print("\n| nodes of 1 CPU | members | first start to last end, s | members an hour | command in all, s | load |")
    print("|---|---|---|---|---|---|")
    for count in counts:
        storage, nodes = folder / f"nodes-{count}", Nodes(folder, count)
        driver = Driver(folder, arguments(members, steps), nodes.environment)
        try:
            nodes.start()
            nodes.ready()
            began = time.monotonic()
            driver.start(storage, nodes.address, "nli")
            if driver.current.process.wait() != 0:
                raise SystemExit(driver.current.stderr())
            whole = time.monotonic() - began
        finally:
            driver.current.sweep()
            nodes.close()
        times = [[datetime.fromisoformat(r[key]) for key in ("started_at", "finished_at")] for r in records(storage)]
        span = (max(t[1] for t in times) - min(t[0] for t in times)).total_seconds()
        hourly = 3600 * members / max(1.0, span)
        print(
            f"| {count} | {members} | {span:.0f} | {hourly:.0f} | {whole:.0f} | {os.getloadavg()[0]:.1f} |", flush=True
        )


def recovery(folder: Path, steps: int) -> None:
    """Part 2."""
    print("\n| killed | goes on after, s | load |\n|---|---|---|")
    for kind in ("worker", "node"):
        storage, nodes = folder / f"killed-{kind}", Nodes(folder, 2)
        driver = Driver(folder, arguments(1, 1000 * steps, 10), nodes.environment)
        try:
            nodes.start()
            driver.start(storage, nodes.address, "nli")
            wait_until(lambda s=storage: trainer(s) and committed(s) > 60, 600)
            pid, before = trainer(storage), committed(storage)
            assert pid is not None
            if kind == "worker":
                os.kill(pid, signal.SIGKILL)
            else:
                owner = next((i for i, c in enumerate(nodes.commands) if pid in c.family()), 0)
                if owner == 0:
                    print(f"| {kind} | not measured: the member was on the head's node | |", flush=True)
                    continue
                nodes.kill(owner)
            began = time.monotonic()
            wait_until(lambda s=storage, b=before: committed(s) > b + 20, 600, 0.1)
            print(f"| {kind} | {time.monotonic() - began:.1f} | {os.getloadavg()[0]:.1f} |", flush=True)
        finally:
            driver.current.sweep()
            nodes.close()


def saved(storage: Path) -> dict[Path, int]:
    """The step of the last checkpoint of each run."""
    last = {path: checkpoint.last(path / "checkpoints") for path in sorted(storage.glob("runs/*"))}
    return {path: int(step.stem[5:]) for path, step in last.items() if step is not None}


def begun(storage: Path, members: int, driver: Driver) -> dict[Path, int]:
    """Wait until so many members have come far enough to be killed."""
    wait_until(
        lambda: driver.current.ended() or len(saved(storage)) == members and min(saved(storage).values()) > 60, 600
    )
    if driver.current.ended():
        raise SystemExit(driver.current.stderr())
    return saved(storage)


def gone_on(storage: Path, before: dict[Path, int]) -> float:
    """Seconds until each member has a checkpoint that no process had reached before."""
    began = time.monotonic()
    wait_until(lambda: all(saved(storage).get(path, 0) > step + 20 for path, step in before.items()), 600, 0.1)
    return time.monotonic() - began


def by_hand(folder: Path, steps: int) -> None:
    """Part 3, of two members in the two workers of one run, on a private cluster."""
    print("\n| killed | goes on after, s | load |\n|---|---|---|")
    for kind in ("two workers at once", *TITLES, "SIGINT", "SIGTERM"):
        storage, driver = folder / f"killed-{kind.split()[0]}", Driver(folder, arguments(2, 1000 * steps, 10))
        try:
            driver.start(storage, "local", "nli")
            before = begun(storage, 2, driver)
            victims = [writer_of(path) for path in before]
            if kind in TITLES:
                victims = family_of_title(TITLES[kind], driver.current.pid)
            if kind.startswith("SIG"):
                os.killpg(driver.current.pid, signal.Signals[kind])
            else:
                for pid in victims:
                    os.kill(pid or 0, signal.SIGKILL)
            if kind in ("queue", "SIGINT", "SIGTERM"):
                began = time.monotonic()
                left = driver.current.left_behind(60)
                code, text = driver.current.process.wait(), f"nothing left after {time.monotonic() - began:.1f}"
                print(f"| {kind} | exit code {code}, {left or text} | {os.getloadavg()[0]:.1f} |", flush=True)
            else:
                print(f"| {kind} | {gone_on(storage, before):.1f} | {os.getloadavg()[0]:.1f} |", flush=True)
        finally:
            driver.current.sweep()


def lost_node(folder: Path, steps: int) -> None:
    """Part 4."""
    print("\n| killed | goes on after, s | load |\n|---|---|---|")
    storage, nodes = folder / "lost", Nodes(folder, 5)
    driver = Driver(folder, arguments(4, 1000 * steps, 10), nodes.environment)
    try:
        nodes.start()
        nodes.ready()
        driver.start(storage, nodes.address, "nli")
        before = begun(storage, 4, driver)
        pids = {path: writer_of(path) for path in before}
        owner, lost = next(
            (n, path) for n, c in enumerate(nodes.commands) for path in pids if n and pids[path] in c.family()
        )
        nodes.kill(owner)
        seconds = gone_on(storage, before)
        kept = sum(writer_of(path) == pid for path, pid in pids.items() if path != lost)
        print(f"| one of five nodes, each with a member but one | {seconds:.1f}; {kept} of 3 others keep their process | "
              f"{os.getloadavg()[0]:.1f} |", flush=True)  # fmt: skip
    finally:
        driver.current.sweep()
        nodes.close()


def checkpoints(folder: Path, steps: int, turns: int = 2) -> None:
    """Part 5."""
    found: dict[int | None, list[float]] = {every: [] for every in CHECKPOINTS}
    for turn in range(turns):
        for every in CHECKPOINTS if turn % 2 == 0 else CHECKPOINTS[::-1]:
            storage = folder / f"checkpoints-{every}-{turn}"
            driver = Driver(folder, arguments(1, steps, every))
            driver.start(storage, "none", "nli")
            if driver.current.process.wait() != 0:
                raise SystemExit(driver.current.stderr())
            found[every].append(records(storage)[0]["timings"]["train_seconds"])
    print(f"\n| checkpoint every | {steps} steps, s (median of {turns}) | s each | load |\n|---|---|---|---|")
    for every, seconds in found.items():
        print(
            f"| {'default' if every is None else every} | {statistics.median(seconds):.2f} | {json.dumps(seconds)} | "
            f"{os.getloadavg()[0]:.1f} |",
            flush=True,
        )


def main() -> None:
    """All, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--steps", type=int, default=300, help="of a member")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    options = parser.parse_args()
    os.environ.pop("RAYSTS_DATA", None)  # the embedded world, which the tiny backbone reads
    folder = Path(tempfile.mkdtemp(prefix="raysts-scaling-"))
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {folder}", flush=True)
    if "checkpoints" in options.parts:
        checkpoints(folder, options.steps)
    for name, part in {"recovery": recovery, "by-hand": by_hand, "lost-node": lost_node}.items():
        if name in options.parts:
            part(folder, options.steps)
    if "scaling" in options.parts:
        scaling(folder, options.members, options.steps, tuple(options.nodes))


if __name__ == "__main__":
    main()

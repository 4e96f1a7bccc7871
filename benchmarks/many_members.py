"""What many members cost beyond their training: memory of the head, CPU per member.

Tiny members of few steps are trained on a cluster of this machine: a head without CPUs and nodes of ``--cpus`` CPUs each.
Memory is private (USS): that of everything that the head's node runs and of the driver, and that of all processes but the
workers, at its peak, above what it was before. CPU
seconds are those of all processes of the cluster and of the driver, from the first member's start to the last one's end,
without what these looks take; what the same members take in one process, without Ray, is stated beside. What a further
member costs, once slots have begun, is the difference between a row and the one before it.

    python benchmarks/many_members.py --members 4 16 48 --nodes 2
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import measure
import psutil

EVERY = 0.25
MEMORY_EVERY = 8
"""Looks at memory, which takes longer: one in so many."""

DRIVER = "driver"


class Watch(threading.Thread):
    """Adds up the CPU time of this process and all below it, and takes note of the most memory that those of the head had.

    Args:
        head: process id of the head's raylet.
    """

    def __init__(self, head: int) -> None:
        super().__init__(daemon=True)
        self.most_apart = 0.0
        self.head, self.over = head, threading.Event()
        self.seconds: dict[psutil.Process, float] = {}
        self.names: dict[psutil.Process, str] = {}
        self.most: dict[str, int] = {}
        self.looks = 0.0
        self.before, self.controllers = sum(self._memory().values()), 0
        self.before_apart = self._apart()
        self._look()
        self.cpu_before = dict(self.seconds)

    def run(self) -> None:
        looks = 0
        while not self.over.wait(EVERY):
            self._look()
            looks += 1
            if looks % MEMORY_EVERY == 0:
                self.most = max(self.most, self._memory(), key=lambda found: sum(found.values()))
                self.most_apart = max(self.most_apart, self._apart())
            self.looks = time.thread_time()
        self._look()

    def cpu(self) -> dict[str, float]:
        """CPU seconds since the beginning by the names of processes, most first."""
        found = {DRIVER: -self.looks}
        for process, seconds in self.seconds.items():
            name = self.names[process]
            found[name] = found.get(name, 0.0) + seconds - self.cpu_before.get(process, 0.0)
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def _look(self) -> None:
        controllers = 0
        for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                times, name = process.cpu_times(), name_of(process)
                self.seconds[process] = times.user + times.system
                self.names[process] = name
                controllers += "TrainController" in name
        self.controllers = max(self.controllers, controllers)

    def above(self) -> float:
        """MB of the head at its peak above what they were at the beginning."""
        return (sum(self.most.values()) - self.before) / 1e6

    def _apart(self) -> float:
        """MB of all processes but workers."""
        workers = ("ray::RayTrainWorker", "ray::IDLE")
        found = self._memory(psutil.Process())
        return sum(size for name, size in found.items() if not name.startswith(workers)) / 1e6

    def _memory(self, above: psutil.Process | None = None) -> dict[str, int]:
        """Private bytes by the names of processes."""
        found: dict[str, int] = {}
        above = above or psutil.Process(self.head)
        for process in [psutil.Process(), *above.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                name = name_of(process)
                found[name] = found.get(name, 0) + process.memory_full_info().uss
        return found


def name_of(process: psutil.Process) -> str:
    """What a process is: a worker's title without what it does just now, else its program or script."""
    if process.pid == os.getpid():
        return DRIVER
    words = process.cmdline() or [""]
    if words[0].startswith("ray::"):
        return words[0].partition(".")[0].partition("(")[0]
    return Path(next((word for word in words if word.endswith(".py")), words[0])).name


def chains_of(storage: Path, members: int, steps: int) -> list[list[Any]]:
    """The jobs of a plan whose backbone and token stores are there."""
    from raysts.commands.context import checked_plan
    from raysts.commands.run import open_run
    from raysts.pipeline.executor import LocalExecutor
    from raysts.pipeline.step import Context

    given = {
        "backbone": "tiny", "members": members, "batch": 16, "train.max_steps": steps, "train.max_length": 16,
        "train.checkpoint_every": 10_000,
    }  # fmt: skip
    pipeline, _, options = open_run("nli", given, storage=storage)
    made = checked_plan(pipeline, options)
    made.write_backbone()
    for step in made.steps:
        if step.kind == "tokens" and step.work and step.state(made.store) != "done":
            step.work(Context(LocalExecutor(threads=1), made.store))
    return [[step.training for step in chain] for chain in made.chains]


def in_process(folder: Path, members: int, steps: int) -> float:
    """CPU seconds of a member in this process; the first, which brings imports, is left out."""
    from raysts.pipeline.executor import LocalExecutor
    from raysts.recipes.recipe import Resources

    chains = chains_of(folder / "alone", members + 1, steps)
    executor = LocalExecutor(threads=1)
    executor.train(chains[:1], Resources())
    began = time.process_time()
    assert not any(executor.train(chains[1:], Resources()))
    return (time.process_time() - began) / members


def on_ray(folder: Path, members: int, steps: int, nodes: int, cpus: int) -> dict[str, Any]:
    """A row of the table."""
    import ray
    from ray.cluster_utils import Cluster

    chains = chains_of(folder / f"ray-{members}-{nodes}", members, steps)
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": 100 << 20},
    )
    try:
        for _ in range(nodes):
            cluster.add_node(num_cpus=cpus, object_store_memory=100 << 20)
        ray.init(address=cluster.address, log_to_driver=False)
        from raysts.cluster.compat import has_autoscaler
        from raysts.cluster.executor import RayExecutor
        from raysts.recipes.recipe import Resources

        RayExecutor()
        while has_autoscaler() is None:  # a new cluster says so after some seconds; until then it may grow
            time.sleep(0.5)
        watch = Watch(cluster.head_node.all_processes["raylet"][0].process.pid)
        watch.start()
        began = time.perf_counter()
        reasons = RayExecutor().train(chains, Resources(gpus=0))
        seconds = time.perf_counter() - began
        watch.over.set()
        watch.join()
    finally:
        ray.shutdown()
        cluster.shutdown()
    cpu = watch.cpu()
    measure.say(f"  MB by process: { {name: round(size / 1e6) for name, size in watch.most.items()} }")
    measure.say(f"  CPU s by process: { {name: round(spent, 1) for name, spent in cpu.items()} }")
    if any(reasons):
        raise SystemExit(f"{next(filter(None, reasons))}")
    return {
        "members": members,
        "nodes": nodes,
        "slots": nodes * cpus,
        "head, MB above idle": watch.above(),
        "all but workers, MB above idle": watch.most_apart - watch.before_apart,
        "controllers at once": watch.controllers,
        "CPU s": sum(cpu.values()),
        "CPU s a member": sum(cpu.values()) / members,
        "wall s": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[4, 16, 48])
    parser.add_argument("--nodes", type=int, nargs="+", default=[2])
    parser.add_argument("--cpus", type=int, default=1, help="of a node")
    parser.add_argument("--steps", type=int, default=5, help="training steps of each member")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows here as well")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.pop("RAYSTS_DATA", None)
    os.environ.setdefault("RAY_worker_niceness", "0")
    from raysts.cluster.connect import SETTINGS

    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    os.environ.setdefault("RAY_TRAIN_ENABLE_STATE_TRACKING", "1")  # as on every cluster that is not private
    facts = measure.machine(1)
    folder = Path(tempfile.mkdtemp(prefix="raysts-members-"))
    try:
        alone = in_process(folder, 8, args.steps)
        rows = []
        for members, nodes in itertools.product(args.members, args.nodes):
            row = on_ray(folder, members, args.steps, nodes, args.cpus)
            more = members - rows[-1]["members"] if rows else 0
            further = (row["CPU s"] - rows[-1]["CPU s"]) / more if more else None
            rows.append({**row, "CPU s a further member": further, "CPU s a member, no Ray": alone})
            measure.say(str(rows[-1]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    measure.publish(args.json, facts, rows, [])


if __name__ == "__main__":
    main()

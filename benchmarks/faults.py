"""What is lost when something breaks.

``python benchmarks/faults.py`` damages files of a finished run, every kind in every way, and gives the same command again. A
cell is ``same`` (everything is as it was, bit for bit), ``without`` (as it was but for that file, of which nothing is made),
``exit N`` or ``DIFFERENT``. On an S3 server of their own:

- ``--writers N``: N trials of two writers of one record, of which the first is stopped (SIGSTOP), cut off, or cannot
  renew its lease; the beat of the lease is half a second.
- ``--drivers N``: the same with two whole ``raysts run`` on one storage and name; the beat is two seconds. The log, to which both
  add their lines, does not count.

``--cost`` says what checksums and syncs take of a quickstart.
"""

from __future__ import annotations

import argparse
import collections
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in (".", "tests", "tests/pipeline", "tests/cluster")]

import s3_faults  # noqa: E402
import s3_server  # noqa: E402
import two_writers  # noqa: E402
from damage import BYTES  # noqa: E402
from run_commands import overrides, raysts, result  # noqa: E402
from test_damage import FILES, NOT_MADE_AGAIN, READERS, SMALL, Reference, content, damaged  # noqa: E402

from raysts.storage import atomic, checksums  # noqa: E402
from raysts.storage.store import Store  # noqa: E402
from tools.world.generate import write_world  # noqa: E402

DRIVER = """
import sys, time
from raysts.cli import execute
from raysts.storage import lease

lease.BEAT, lease.place = 2.0, lambda: sys.argv[1]  # as on a machine of its own
print("ready", flush=True)
sys.stdin.readline()
while (code := execute(sys.argv[2:])) == 2 and sys.argv[1] == "second":  # held by the first
    time.sleep(0.2)
sys.exit(code)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, metavar="N")
    parser.add_argument("--drivers", type=int, metavar="N")
    parser.add_argument("--at-once", type=int, default=4, metavar="K", help="trials at a time (default 4)")
    parser.add_argument("--cost", action="store_true")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    logging.getLogger("raysts").setLevel(logging.ERROR)
    if given.cost:
        cost()
    elif given.writers:
        writers(given.writers, given.at_once)
    elif given.drivers:
        drivers(given.drivers, given.at_once)
    else:
        files()


def files() -> None:
    ways = [*BYTES, "missing"]
    print("| damaged file | " + " | ".join(ways) + " |\n" + "|---" * (1 + len(ways)) + "|")
    with tempfile.TemporaryDirectory() as folder:
        reference = Reference(Path(folder) / "reference")
        for kind in FILES:
            print(
                f"| {kind} | " + " | ".join(lost(reference, kind, how, Path(folder)) for how in ways) + " |", flush=True
            )


def lost(reference: Reference, kind: str, how: str, folder: Path) -> str:
    """What one damaged file costs."""
    storage = reference.copy(folder / "storage")
    try:
        path = reference.files(storage, FILES[kind])[0]
        damaged(path, how)
        for reader in READERS.get(kind, ()):
            shutil.rmtree(reference.files(storage, reader)[0])
        outcome = raysts(*reference.command(storage))
        if outcome.code:
            return f"exit {outcome.code}"
        now, own = content(storage), path.relative_to(storage).as_posix()
        differing = {name for name in {*now, *reference.content} if now.get(name) != reference.content.get(name)}
        if kind in NOT_MADE_AGAIN and differing == {own}:
            return "without"
        return "DIFFERENT" if differing else "same"
    finally:
        shutil.rmtree(storage)


def writers(count: int, at_once: int) -> None:
    ways = [two_writers.WAYS[seed % len(two_writers.WAYS)] for seed in range(count)]
    with two_writers.ground() as (endpoint, bucket), ThreadPoolExecutor(at_once) as pool:
        trials = list(pool.map(lambda seed: two_writers.trial(ways[seed], seed, endpoint, bucket), range(count)))
    columns = ["trials", "requests that came through late", "double holders", "stale reads", "ended with the reason"]
    print("| the first writer | " + " | ".join(columns) + " |\n" + "|---" * (1 + len(columns)) + "|")
    for way in two_writers.WAYS:
        of = [trial for trial in trials if trial.way == way]
        counts = [len(of)] + [sum(getattr(trial, name) for trial in of) for name in ("late", "double", "stale")]
        said = sum("this process lost locks/" in trial.said for trial in of)
        print(f"| {way} | " + " | ".join(map(str, [*counts, said])) + " |")


def drivers(count: int, at_once: int) -> None:
    """Two whole drivers, of which the first is hit somewhere in its run."""
    found: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    with tempfile.TemporaryDirectory() as name, two_writers.ground() as (endpoint, bucket):
        folder = Path(name)
        write_world(folder / "data", size="small")
        command = ["run", "nli-sed", "--data", str(folder / "data"), "--address", "none", *overrides(SMALL)]
        calm = models(Store.open(result(*command, "--storage", folder / "calm")["storage"]))

        counting = threading.Lock()

        def counted(seed: int) -> None:
            way = two_writers.WAYS[seed % len(two_writers.WAYS)]
            counts = trial(way, seed, endpoint, f"s3://{bucket}/{seed}", command, calm, folder / str(seed))
            with counting:
                found[way].update(counts)
            shutil.rmtree(folder / str(seed))

        with ThreadPoolExecutor(at_once) as pool:
            trials = [pool.submit(counted, seed) for seed in range(count)]
            try:
                for of in trials:
                    of.result()
            except KeyboardInterrupt:  # the table is of those that were tried
                pool.shutdown(cancel_futures=True)
    columns = [
        "trials",
        "requests that came through late",
        "double holders",
        "stale reads",
        "same models",
        "ended with the reason",
        "was over",
    ]
    print("| the first driver | " + " | ".join(columns) + " |\n" + "|---" * (1 + len(columns)) + "|")
    for way, counts in found.items():
        print(f"| {way} | " + " | ".join(str(counts[column]) for column in columns) + " |")


def trial(
    way: str, seed: int, endpoint: str, uri: str, command: list[str], calm: dict[str, bytes], folder: Path
) -> dict[str, int]:
    """What came of one trial, in the columns of the table."""
    drawn, record = random.Random(seed), "pipelines/nli-sed.json"
    with s3_faults.proxy(endpoint) as between, s3_faults.proxy(endpoint) as straight:
        first = driver("first", between.endpoint, uri, command, folder)
        second = driver("second", straight.endpoint, uri, command, folder)
        wait(lambda: any(record in request.path and request.method == "PUT" for request in between.log), first)
        time.sleep(drawn.uniform(0, 4))
        if way == "stopped":
            first.send_signal(signal.SIGSTOP)
        else:
            every = way == "cut off"
            between.fault = lambda method, path: (
                "refused" if every else "unavailable" if method == "PUT" and "/locks/" in path else None
            )
        start(second)

        def written() -> list[float]:
            """Return the times of the second driver's writes of the record that the store took."""
            puts = [q for q in straight.log if "/pipelines/" in q.path and q.method == "PUT"]
            return [q.at for q in puts if q.status < 300]  # the first is refused where it knows an earlier version

        wait(lambda: bool(written()), second)
        took = written()[0]

        def back() -> None:
            between.fault = lambda method, path: None
            first.send_signal(signal.SIGCONT)

        later = threading.Timer(drawn.uniform(0, 4), back)
        later.start()
        port, stale = straight.endpoint.partition(":")[2], 0
        reader = Store.open(f"{uri}?endpoint_override={endpoint}&scheme=http")
        while second.poll() is None or later.is_alive() or first.poll() is None:
            content, _ = reader.read(record) or (b"{}", {})
            stale += f":{port}" not in str(json.loads(content).get("command"))
            time.sleep(0.05)
        said = (folder / "first.log").read_text()
        late = [q for q in between.log if q.at > took and q.method in ("PUT", "DELETE") and q.status < 300]
        assert second.returncode == 0, (folder / "second.log").read_text()
        return {
            "trials": 1,
            "requests that came through late": sum(
                not any(part in q.path for part in ("/locks/", "writer.lock", "/logs/")) for q in late
            ),
            "double holders": sum("/locks/nli-sed" in q.path for q in late),
            "stale reads": stale,
            "same models": models(reader) == calm,
            "ended with the reason": first.returncode == 3 and "this process lost" in said,
            "was over": first.returncode == 0,
        }


def driver(who: str, endpoint: str, uri: str, command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """A driver that waits for a line; the first one is told to begin."""
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    s3_server.environment(endpoint, folder / who, environment.__setitem__)
    where = f"{uri}?endpoint_override={endpoint}&scheme=http"
    with (folder / f"{who}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, who, *command, "--storage", where],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment,
        )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    if who == "first":
        start(process)
    return process


def start(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


def wait(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    while not condition():
        assert process.poll() is None, process.returncode
        time.sleep(0.02)


def models(store: Store) -> dict[str, bytes]:
    """The weights of every finished run of a storage."""
    folders = {path.parent.name: store.get_dir(path.parent / "model") for path in store.get_all("runs", "run.json")}
    return {name: (folder / "model.safetensors").read_bytes() for name, folder in folders.items() if folder}


def cost() -> None:
    """What a quickstart spends in checksums and in syncs, counted inside it."""
    spent: dict[str, list[float]] = {}

    def counted(module: Any, name: str) -> None:
        real, sums = getattr(module, name), spent.setdefault(name, [0.0, 0.0, 0.0])

        def timed(*arguments: Any) -> Any:
            wall, used = time.perf_counter(), time.thread_time()
            try:
                return real(*arguments)
            finally:
                sums[0] += 1
                sums[1] += time.perf_counter() - wall
                sums[2] += time.thread_time() - used

        setattr(module, name, timed)

    counted(checksums, "checksum")
    counted(atomic, "_sync")
    with tempfile.TemporaryDirectory() as folder:
        wall, used = time.perf_counter(), time.process_time()
        short = ["--set", "train.max_steps=40", "--set", "members=2"]  # of a longer run it is a smaller share
        result("run", "quickstart", "--storage", Path(folder) / "storage", "--address", "none", *short)
        wall, used = time.perf_counter() - wall, time.process_time() - used
    print("| quickstart | calls | seconds | of the run | CPU seconds | of the run |\n|---|---|---|---|---|---|")
    for name, (calls, seconds, cpu) in spent.items():
        print(f"| {name} | {calls:g} | {seconds:.2f} | {seconds / wall:.2%} | {cpu:.2f} | {cpu / used:.2%} |")
    print(f"| all | | {wall:.1f} | | {used:.1f} | |")


if __name__ == "__main__":
    main()

"""How much disk does a search take, against the bound that it states before its first trial?

A lower-bound search of so many trials (bounds times seeds) of a tiny model; a thread adds up the files of ``runs/`` and
``studies/`` all the while.

    python benchmarks/search_disk.py --trials 200 --address local
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import tempfile
import threading
import time
from pathlib import Path

from raysts.commands.tune import tune as run_search


def bytes_in(storage: Path) -> int:
    """What runs and studies take now; files and folders come and go meanwhile."""
    total = 0
    for part in ("runs", "studies"):
        for folder, _, names in os.walk(storage / part):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    total += Path(folder, name).stat().st_size
    return total


def main() -> None:
    """Search, watch, print one JSON line; exit code 1 when the bound was passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=10, help="seeds of a bound")
    parser.add_argument("--steps", type=int, default=4, help="training steps of a trial")
    parser.add_argument("--backbone", default="tiny")
    parser.add_argument("--data", help="default: the embedded world")
    parser.add_argument("--address", default="local", help="'none': in this process")
    options = parser.parse_args()

    points = max(1, options.trials // options.seeds)
    overrides = {
        "backbone": options.backbone, "space.lower_bound": [round(0.95 * i / points, 6) for i in range(points)],
        "seeds": options.seeds, "train.max_steps": options.steps, "train.eval_every": max(1, options.steps // 2),
        "train.checkpoint_every": max(1, options.steps // 2), "train.max_length": 24, "sts.data.sample": 128,
    }  # fmt: skip
    storage = Path(tempfile.mkdtemp(prefix="raysts-benchmark-"))
    said: list[str] = []
    ends: list[float] = []
    most, end = 0, threading.Event()

    def look() -> None:
        nonlocal most
        while not end.wait(0.1):
            most = max(most, bytes_in(storage))

    def say(text: str) -> None:
        said.append(text)
        if re.match(r"\d+/\d+  ", text):
            ends.append(time.perf_counter())

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        found = run_search("lower-bound", overrides, options.data, storage, address=options.address, say=say)
        end.set()
        watcher.join()
        left = bytes_in(storage)
        models = len(list(storage.glob("runs/*/model")))
    finally:
        end.set()
        shutil.rmtree(storage, ignore_errors=True)
    bound = next(float(m[1].replace(",", "")) for m in map(re.compile(r"at most ([\d,.]+) MB").search, said) if m)
    minutes = (ends[-1] - ends[0]) / 60
    summary = {
        "trials": found["trials"], "models kept": models, "stated MB": bound, "peak MB": round(most / 1e6, 1),
        "at the end MB": round(left / 1e6, 1), "trials/min": round((len(ends) - 1) / minutes, 1),
    }  # fmt: skip
    print(json.dumps(summary))
    raise SystemExit(most > bound * 1e6)


if __name__ == "__main__":
    main()

"""Does a run take what it was expected to take, and is the time left right when 2 % of it is done?

Five pipelines of real data on one storage, each after `raysts plan --probe`: the seconds that the head of the run expects
against those that its steps took, and the time left that the screen showed at 2 % against the time that was left. With `--cpu`
the clock is that of the process: on a machine that has other work, its seconds are those of a quieter one.

    python benchmarks/price.py --data DATA --student BERT --teacher MINILM --text texts.parquet --cpu
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", required=True, help="folder in the canonical layout")
parser.add_argument("--student", required=True, help="the model that is trained")
parser.add_argument("--teacher", required=True)
parser.add_argument("--text", type=Path, required=True, help="texts, a column 'text'")
parser.add_argument("--storage", type=Path)
parser.add_argument("--only", nargs="*", default=[], help="names of pipelines")
parser.add_argument("--steps", type=int, default=80)
parser.add_argument("--cpu", action="store_true")
options = parser.parse_args()
os.environ.pop("RAYSTS_DATA", None)  # whose tests the text's pipelines would be measured on
if options.cpu:
    time.monotonic = time.perf_counter = time.process_time  # before raysts reads the clock

import raysts  # noqa: E402
from raysts.log import screen  # noqa: E402

PRICES = "3.2/gpu-hour,0.05/cpu-hour"
COMMON = {
    "backbone": options.student, "train.max_steps": options.steps, "train.eval_every": options.steps, "batch": 16,
    "evaluation.tasks": ["stsb"], "evaluation.resamples": 20, "resources.cpus": 1,
}  # fmt: skip
TEXT = {"text": options.text, "dev": {"stsb": f"{options.data}/sts/stsb_dev.parquet"},
        "test": {"stsb-test": f"{options.data}/sts/stsb_test.parquet"}}  # fmt: skip
OWN = {"evaluation.tasks": [], "data.sample": 1280}
PIPELINES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "sts": ("sts", {"members": 2}, {"data": options.data}),
    "nli-ct": ("nli-ct", {"nli.data.sample": 6000, "ct.data.sample": 3000}, {"data": options.data}),
    "ct-sed": ("ct-sed", {"members": 2, "data.sample": 1280}, {"data": options.data}),
    "simcse-unsup": ("simcse-unsup", OWN, TEXT),
    "distill": ("distill", {**OWN, "backbone": options.teacher, "backbone_layers": 3}, TEXT),
}


def watch(seen: list[tuple[float, float, float]], ended: threading.Event) -> None:
    """Note the time, the share that is done and the time left, until the run ends."""
    while not ended.wait(0.02):
        if screen.seconds_left is not None and screen.rest:
            seen.append((time.monotonic(), screen.fraction, screen.seconds_left))


def run(name: str, storage: Path) -> dict[str, Any]:
    """Probe, plan and run one pipeline."""
    system, settings, places = PIPELINES[name]
    settings, models = {**COMMON, **settings}, [options.teacher] if system == "distill" else []
    more = {"models": models} if models else {}
    began = time.monotonic()
    planned = raysts.plan(system, settings, storage=storage, probe=True, price=PRICES, **more, **places)["price"]
    probed, seen, ended = time.monotonic() - began, list[tuple[float, float, float]](), threading.Event()
    thread = threading.Thread(target=watch, args=(seen, ended))
    thread.start()
    if models:
        raysts.distill(models, settings, storage=storage, name=name, address="none", **places)
    else:
        raysts.run(system, settings, storage=storage, name=name, address="none", **places)
    ended.set()
    thread.join()
    record = json.loads((storage / f"pipelines/{name}.json").read_text())
    expected, taken = sum(record["expected"].values()), sum(record["seconds"].values())
    when, _, left = next(each for each in seen if each[1] >= 0.02)
    steps = {
        step["title"]: (record["expected"].get(step["id"]), record["seconds"].get(step["id"]))
        for step in record["steps"]
    }
    return {
        "pipeline": name, "planned": round(planned["seconds"], 1), "expected": round(expected, 1), "taken": round(taken, 1),
        "ratio": round(expected / taken, 3), "left_at_2": round(left, 1), "truth": round(seen[-1][0] - when, 1),
        "eta_ratio": round(left / (seen[-1][0] - when), 3), "money": round(planned["money"], 6),
        "measured": round(planned["measured"], 3), "probe": round(probed, 1), "steps": steps,
    }  # fmt: skip


def main() -> None:
    """Run the pipelines one after the other and print a line of JSON for each."""
    storage = options.storage or Path(tempfile.mkdtemp(prefix="raysts-price-"))
    for name in options.only or PIPELINES:
        print(json.dumps(run(name, storage)), flush=True)


if __name__ == "__main__":
    main()

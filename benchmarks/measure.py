"""Sides of a comparison in processes of their own, measured in turns; tables of what was measured."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Sample = dict[str, Any]
"""What one segment gives: ``seconds`` by the clock, ``cpu`` seconds of all threads where they are what counts, ``sentences``,
``tokens`` (padding not counted) and what the benchmark adds."""

Segment = Callable[[int], Sample]
"""Runs segment number n (0 is the warm-up) and says how long it took."""


class Side:
    """One side of a comparison: a process that waits until it is its turn.

    Args:
        name: what the table calls it.
        build: module-level function that makes the segment, called in the process.
        settings: its arguments.
        threads: threads of the process.
    """

    def __init__(self, name: str, build: Callable[..., Segment], settings: Mapping[str, Any], threads: int) -> None:
        self.name = name
        os.environ["OMP_NUM_THREADS"] = str(threads)
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, build, dict(settings), threads), daemon=True)
        self._process.start()
        theirs.close()
        self.facts: Any = self._answer()

    def run(self, number: int) -> Sample:
        """Run one segment."""
        self._pipe.send(number)
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self._pipe.send(None)
        self._process.join()

    def _answer(self) -> Any:
        try:
            kind, value = self._pipe.recv()
        except EOFError:
            raise SystemExit(f"{self.name}: its process died") from None
        if kind == "error":
            raise SystemExit(f"{self.name} failed:\n{value}")
        return value


def _serve(pipe: Connection, build: Callable[..., Segment], settings: dict[str, Any], threads: int) -> None:
    try:
        import torch

        torch.set_num_threads(threads)
        segment = build(**settings)
        pipe.send(("ready", getattr(segment, "facts", None)))
        while (number := pipe.recv()) is not None:
            pipe.send(("sample", segment(number)))
    except BaseException:
        pipe.send(("error", traceback.format_exc()))


def in_turns(sides: Sequence[Side], rounds: int) -> dict[str, list[Sample]]:
    """Samples per side: a warm-up each, then ``rounds`` times all sides one after the other."""
    found: dict[str, list[Sample]] = {side.name: [] for side in sides}
    for number in range(rounds + 1):
        for side in sides:
            sample = side.run(number)
            say(f"  {'warm-up' if number == 0 else f'round {number}'}: {side.name}: {rate(sample):.1f} sentences/s")
            if number:
                found[side.name].append(sample)
    return found


def rate(sample: Sample) -> float:
    """Sentences a second: of CPU time where the sample has it, which a busy machine changes less than the clock."""
    return sample["sentences"] / sample.get("cpu", sample["seconds"])


def row(side: str, samples: Sequence[Sample], **facts: Any) -> dict[str, Any]:
    """A row of the table: minimum, median and maximum of sentences/s."""
    rates = [rate(sample) for sample in samples]
    return {
        **facts,
        "side": side,
        "min": min(rates),
        "median": statistics.median(rates),
        "max": max(rates),
        "by the clock": statistics.median(sample["sentences"] / sample["seconds"] for sample in samples),
        "rounds": len(rates),
        "sentences": samples[0]["sentences"],
        "tokens_per_sentence": sum(s["tokens"] for s in samples) / sum(s["sentences"] for s in samples),
    }


def ratio(ours: Sequence[Sample], theirs: Sequence[Sample]) -> dict[str, float]:
    """How many times faster ours is: median, minimum and maximum of the ratios within a round."""
    ratios = [rate(a) / rate(b) for a, b in zip(ours, theirs, strict=True)]
    return {"ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)}


def fastest(found: Mapping[str, Sequence[Sample]], names: Sequence[str]) -> str:
    """The side with the highest median rate among ``names``."""
    return max(names, key=lambda name: statistics.median(map(rate, found[name])))


def peak(precision: str, threads: int, device: str = "cpu") -> float:
    """Multiplications and additions a second (of CPU time) that matrices of an encoder's shapes reach, at best, by as many
    threads as a side has: one that waits for the others takes CPU time too."""
    import torch

    from raysts.cpu import kernels
    from raysts.models.precision import autocast

    torch.set_num_threads(threads)
    rows, inner, outer = (512, 384, 1536) if device == "cpu" else (16_384, 4_096, 4_096)
    layer = kernels.Linear(inner, outer, device=device)
    x, best = torch.randn(rows, inner, device=device), 0.0
    with torch.inference_mode(), autocast(torch.device(device), precision):
        if precision == "bf16":
            x, layer = x.bfloat16(), layer.bfloat16()
        for _ in range(20):
            began, times = clocks(device), 5
            for _ in range(times):
                layer(x)
            clock, cpu = clocks(device)
            seconds = cpu - began[1] if device == "cpu" else clock - began[0]
            best = max(best, 2.0 * times * rows * inner * outer / max(seconds, 1e-9))
    return best


def clocks(device: str = "cpu") -> tuple[float, float]:
    """(clock, CPU seconds of this process) once the device has done its work."""
    import torch

    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


def work_per_token(model: Path) -> float:
    """Multiplications and additions of a token's way forward through an encoder's linear layers."""
    from torch import nn

    from raysts.models.pretrained import load

    layers = [part for part in load(model, device="cpu").encoder.backbone.modules() if isinstance(part, nn.Linear)]
    return 2.0 * sum(layer.weight.numel() for layer in layers)


def share_of_peak(samples: Sequence[Sample], work: float, at_best: float) -> float:
    """The part of ``at_best`` that the samples reached: the median."""
    return statistics.median(s["tokens"] * work / s.get("cpu", s["seconds"]) / at_best for s in samples)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a table in Markdown; the columns are those of the first row."""
    columns = list(rows[0])
    cells = [columns, *([_cell(r[name]) for name in columns] for r in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in cells]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"


def machine(threads: int) -> dict[str, Any]:
    """Where this was measured: processor, threads, versions, how busy the machine was."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    found: dict[str, Any] = {
        "cpu": names[0] if names else platform.processor(),
        "cpus": os.cpu_count(),
        "threads": threads,
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }
    for name in ("raysts", "sentence-transformers", "torch", "transformers", "ray"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def publish(
    out: Path | None,
    machine_facts: Mapping[str, Any],
    rows: list[dict[str, Any]],
    ratios: list[dict],
    summary: Mapping[str, Any] | None = None,
) -> None:
    """Print the tables; where ``out`` is wanted write all of it there (not to ``-``), and print ``summary`` last."""
    print(", ".join(f"{name} {value}" for name, value in machine_facts.items()), end="\n\n")
    print(table(rows))
    if ratios:
        print(f"\n{table(ratios)}")
    if out is None:
        return
    if str(out) != "-":
        out.write_text(json.dumps({"machine": machine_facts, "rows": rows, "ratios": ratios}, indent=1) + "\n")
    if summary is not None:
        print(json.dumps(summary))


def summary(ratios: Sequence[Mapping[str, Any]], shares: Mapping[str, float]) -> dict[str, Any]:
    """``ratios`` by what is ``compared`` and of which ``objective``, and the shares of the peak."""
    found: dict[str, dict[str, float]] = {}
    for entry in ratios:
        found.setdefault(entry["compared"], {})[entry["objective"]] = round(entry["ratio"], 3)
    return {"ratios": found, "share_of_peak": {name: round(share, 3) for name, share in shares.items()}}


def parser(description: str | None) -> argparse.ArgumentParser:
    """The arguments that all comparisons share. What is told to end (SIGTERM) takes its sides with it, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    found.add_argument("--data", help="folder in the canonical layout (default: $RAYSTS_DATA, else the embedded world)")
    found.add_argument("--model", help="backbone: a model directory or a Hugging Face name (default: all-MiniLM-L6-v2)")
    found.add_argument("--threads", type=int, default=2, help="CPU threads of each side")
    found.add_argument("--rounds", type=int, default=3, help="measured rounds, after one to warm up")
    found.add_argument(
        "--json", type=Path, nargs="?", const=Path("-"), metavar="FILE",
        help="end with a line of JSON: ratios and share of the peak; and write all rows to FILE if one is named",
    )  # fmt: skip
    return found


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)

"""Peak memory of preparing, embedding and distilling X and ten times X: all stream, so it must not grow with the data.

Every side is a command of its own on a private Ray cluster. Its processes (the driver, Ray's daemons, the workers) are
looked at several times a second: PSS, which counts shared pages once, and of it the private part (no page cache, no
object store).

    python benchmarks/memory.py --data DATA --prepare 20 --embed 3 --distill 4.5
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measure import machine, publish, say

MB = 1_000_000
TIMES = (1, 10)
PEAKS = ("all_mb", "private_mb", "driver_mb", "worker_mb")
"""All processes by PSS, of it private memory; private memory of the driver and of the largest worker."""

PREPARE = """
import sys
from pathlib import Path
from raysts.cluster.connect import connection
with connection("local"):
    from raysts.cluster.stream import over_ray
    from raysts.data.wikipedia.prepare import prepare_wikipedia
    options = {"seed": 1, "block_bytes": int(sys.argv[4]), "spread": over_ray}
    print(prepare_wikipedia(Path(sys.argv[1]), Path(sys.argv[2]), **options)["rows"])
"""
EMBED = """
import sys
from raysts.commands.use import embed as embed_files
print(embed_files(sys.argv[3], sys.argv[1], "sentence", sys.argv[2], address="local")["rows"])
"""
DISTILL = """
import os, sys
import pyarrow.parquet as pq
from raysts.commands.distill import distill
os.environ.pop("RAYSTS_DATA", None)
settings = {"backbone": sys.argv[3], "sed.batch": 256, "resources.gpus": 0}
distill([sys.argv[3]], settings, text=sys.argv[1], storage=sys.argv[2], address="local", name="memory")
print(pq.read_metadata(sys.argv[1]).num_rows)
"""


def main() -> None:
    """Measure and print."""
    options = _options()
    facts = machine(options.cpus) | {"block_bytes": options.block}
    rows, ratios = [], []
    with tempfile.TemporaryDirectory(prefix="raysts-memory-", dir=options.scratch) as scratch:
        folder = Path(scratch)
        model = _model(folder)
        steps = (
            ("prepare", PREPARE, options.prepare, _write_articles),
            ("embed", EMBED, options.embed, _write_sentences),
            ("distill", DISTILL, options.distill, _write_short_texts),
        )
        for step, program, megabytes, write in steps:
            peaks = []
            for times in TIMES if megabytes else ():
                source, size = folder / f"{step}-{times}.parquet", megabytes * times
                write(source, size * MB, options.data)
                say(f"{step}: {size:g} MB of text ...")
                found = measured(program, [source, folder / f"out-{step}-{times}", model, options.block], options)
                peaks.append(found)
                rows.append({"step": step, "text_mb": float(size), **found})
                source.unlink()
            if peaks:
                once, tenfold = peaks
                ratios.append({"step": step, "data": 10} | {name: tenfold[name] / once[name] for name in PEAKS})
    publish(options.json, facts, rows, ratios)


def measured(program: str, arguments: list[object], options: argparse.Namespace) -> dict[str, Any]:
    """Run a program on the same number of CPUs and object store every time; its rows, seconds and peaks in MB."""
    environment = {**os.environ, "RAY_DEFAULT_OBJECT_STORE_MEMORY_PROPORTION": "0.02", "OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            ["taskset", "-c", f"0-{options.cpus - 1}", sys.executable, "-c", program, *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=errors, text=True, env=environment,
        )  # fmt: skip
        peaks = dict.fromkeys(PEAKS, 0.0)
        while child.poll() is None:
            for name, value in _now(child.pid).items():
                peaks[name] = max(peaks[name], value)
            time.sleep(options.every)
        printed = child.stdout.read() if child.stdout else ""
        if child.returncode:
            errors.seek(0)
            raise SystemExit(errors.read())
    return {"rows": int(printed.split()[-1]), "seconds": time.monotonic() - began, **peaks}


def _now(driver: int) -> dict[str, float]:
    """MB now: of all processes (PSS), of it private, the private memory of the driver and of the largest worker."""
    found = dict.fromkeys(PEAKS, 0.0)
    for pid in _family(driver):
        with contextlib.suppress(OSError, KeyError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
            kb = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}
            title = Path(f"/proc/{pid}/cmdline").read_bytes()
            private = kb["Pss_Anon"] / 1000
            found["all_mb"] += kb["Pss"] / 1000
            found["private_mb"] += private
            if pid == driver:
                found["driver_mb"] = private
            elif title.startswith(b"ray::"):
                found["worker_mb"] = max(found["worker_mb"], private)
    return found


def _family(ancestor: int) -> list[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((folder / "stat").read_text().rpartition(") ")[2].split()[1])
                children.setdefault(parent, []).append(int(folder.name))
    found = [ancestor]
    for pid in found:
        found += children.get(pid, [])
    return found


def _texts(data: str | None, table: str, column: str) -> list[str]:
    from raysts.data.corpora import corpus_of

    corpus = corpus_of(data)
    corpus.require([table])
    return corpus.read(table, [column]).column(column).to_pylist()


def _write_articles(path: Path, size: int, data: str | None) -> None:
    """Articles of about ``size`` bytes of text in one file: those of the corpus over and over, every time with other
    words in them, so that their sentences are distinct."""
    texts, written, number = _texts(data, "wikipedia/articles", "text"), 0, 0
    words = [f"{a}{b}{c}x" for a in "bdfghklm" for b in "aeiou" for c in "bdfghklmnprst"]
    schema = pa.schema([("article_id", pa.int64()), ("title", pa.string()), ("text", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        while written < size:
            part: list[str] = []
            while len(part) < 2_000 and written < size:
                lap, word = number // len(texts), words[number // len(texts) % len(words)]
                text = texts[number % len(texts)]
                part.append(
                    text if lap == 0 else text.replace(" the ", f" the {word} ").replace(" in ", f" in {word} ")
                )
                written += len(part[-1].encode())
                number += 1
            ids = np.arange(number - len(part), number)
            writer.write_table(pa.table([ids, ["t"] * len(part), part], schema=schema))


def _write_sentences(path: Path, size: int, data: str | None) -> None:
    """Sentences of about ``size`` bytes, those of the corpus over and over, in row groups of 1,024."""
    texts = _texts(data, "wikipedia/sentences", "sentence")
    mean = sum(len(text.encode()) for text in texts) / len(texts)
    rows = [texts[number % len(texts)] for number in range(round(size / mean))]
    pq.write_table(pa.table({"sentence": rows}), path, row_group_size=1_024)


def _write_short_texts(path: Path, size: int, data: str | None) -> None:
    """Distinct texts of about ``size`` bytes: the first words of the corpus's sentences and a number."""
    starts = [" ".join(text.split()[:6]) for text in _texts(data, "wikipedia/sentences", "sentence")]
    mean = sum(len(text.encode()) for text in starts) / len(starts) + 7
    rows = [f"{starts[number % len(starts)]} {number}" for number in range(round(size / mean))]
    pq.write_table(pa.table({"text": rows}), path)


def _model(folder: Path) -> Path:
    from raysts.data.world import write_tiny_backbone

    write_tiny_backbone(folder / "model", 0)
    return folder / "model"


def _options() -> argparse.Namespace:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--data", help="folder in the canonical layout (default: $RAYSTS_DATA, else the embedded world)")
    found.add_argument(
        "--prepare", type=float, default=20, metavar="MB", help="text to prepare, then ten times as much; 0: none"
    )
    found.add_argument(
        "--embed", type=float, default=3, metavar="MB", help="text to embed, then ten times as much; 0: none"
    )
    found.add_argument(
        "--distill",
        type=float,
        default=0,
        metavar="MB",
        help="short texts to distil on, then ten times as much; 0: none",
    )
    found.add_argument("--block", type=int, default=4 << 20, help="bytes of text a worker of preparing holds at a time")
    found.add_argument("--cpus", type=int, default=2, help="CPUs of the cluster")
    found.add_argument("--every", type=float, default=0.2, help="seconds between two looks at the processes")
    found.add_argument("--scratch", help="folder for what is written (default: the system's temporary one)")
    found.add_argument("--json", type=Path, metavar="FILE", help="write the rows here as well")
    return found.parse_args()


if __name__ == "__main__":
    main()

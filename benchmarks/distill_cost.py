"""A student by raysts beside the same by sentence-transformers' own loss: what it costs, and which is better.

Both start from the same layers of the teacher, read the same texts and spans of them, and take as many steps of as many rows at
the same peak rate. A side is a process of its own, whose CPU seconds count from its start to its end. `raysts distill` also
holds texts out, measures, and writes card and page; the other side embeds the rows and trains on them, no more.

    python benchmarks/distill_cost.py MINILM --text texts.parquet --test name=FOLDER
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("teacher")
parser.add_argument("--text", required=True, help="Parquet file with a column 'text'")
parser.add_argument("--test", action="append", default=[], help="as of `raysts compare`")
parser.add_argument("--layers", type=int, nargs="+", default=[0, 2, 5])
parser.add_argument("--spans", type=int, default=4, help="spans of each text; 0 where the texts are sentences")
parser.add_argument("--steps", type=int, default=512)
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--rate", type=float, default=5e-4)
parser.add_argument(
    "--loss", choices=["cosine", "mse"], default="cosine", help="of sentence-transformers' EmbedDistillLoss"
)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--folder", type=Path, help="where students stay (default: nowhere)")
parser.add_argument("--set", action="append", default=[], help="settings of raysts distill")
parser.add_argument("--peer", help=argparse.SUPPRESS)


def peer(options: argparse.Namespace) -> None:
    """Train the student with sentence-transformers and save it as ``options.peer``."""
    import pyarrow.parquet as pq
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import EmbedDistillLoss
    from torch.nn import ModuleList
    from transformers import set_seed

    from raysts.data.spans import spans_of

    set_seed(options.seed)
    texts = pq.read_table(options.text).column("text").to_pylist()
    rows = [row for text in texts for row in (text, *spans_of(text, options.spans, options.seed))]
    teacher, student = (SentenceTransformer(options.teacher, local_files_only=True).float() for _ in range(2))
    teacher.max_seq_length = student.max_seq_length = 256
    layers = student[0].auto_model.encoder.layer
    student[0].auto_model.encoder.layer = ModuleList(layers[number] for number in options.layers)
    student[0].auto_model.config.num_hidden_layers = len(options.layers)
    data = Dataset.from_dict({"sentence": rows, "label": list(teacher.encode(rows, batch_size=options.batch))})
    arguments = SentenceTransformerTrainingArguments(
        output_dir=f"{options.peer}-trainer", max_steps=options.steps, per_device_train_batch_size=options.batch,
        learning_rate=options.rate, lr_scheduler_type="linear", save_strategy="no", report_to="none", seed=options.seed,
        disable_tqdm=True,
    )  # fmt: skip
    loss = EmbedDistillLoss(student, distance_metric=options.loss)
    SentenceTransformerTrainer(model=student, args=arguments, train_dataset=data, loss=loss).train()
    student.save_pretrained(options.peer)


def cost(arguments: list[str]) -> dict[str, float]:
    """Return the CPU and clock seconds of a Python process from its start to its end."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu": round(cpu, 1), "clock": round(time.perf_counter() - began, 1)}


def main() -> None:
    """Make both students and print the cost of each, their ratio, and the paired difference on each test."""
    options = parser.parse_args()
    if options.peer:
        peer(options)
        return
    os.environ.pop("RAYSTS_DATA", None)  # whose tests the distillation would be measured on
    with tempfile.TemporaryDirectory(prefix="raysts-cost-") as name:
        folder = options.folder or Path(name)
        student, storage = folder / "sentence-transformers", ["--storage", str(folder / "storage"), "--address", "none"]
        settings = [
            f"backbone_layers={options.layers}", f"data.spans={options.spans}", f"sed.train.max_steps={options.steps}",
            f"sed.batch={options.batch}", f"sed.optim.lr={options.rate}", f"seed={options.seed}", *options.set,
        ]  # fmt: skip
        made = [word for value in [f"backbone={options.teacher}", *settings] for word in ("--set", value)]
        ours = ["-m", "raysts", "distill", options.teacher, *made, "--text", options.text, "--name", "cost", *storage]
        found: dict[str, Any] = {
            "raysts": cost(ours),
            "sentence-transformers": cost([__file__, *sys.argv[1:], "--peer", str(student)]),
        }
        found["ratio"] = round(found["raysts"]["cpu"] / found["sentence-transformers"]["cpu"], 3)
        print(json.dumps(found), flush=True)
        if options.test:
            tests = [word for test in options.test for word in ("--test", test)]
            command = ["-m", "raysts", "compare", "cost:student", str(student), *tests, *storage[:2]]
            subprocess.run([sys.executable, *command], check=True)


if __name__ == "__main__":
    main()

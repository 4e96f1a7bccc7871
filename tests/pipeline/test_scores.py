"""What the evaluation of a role measures, of models that are there: nothing is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from small_runs import write_backbone

from raysts.data.corpora import Corpus
from raysts.models.head import GaussianHead
from raysts.models.pretrained import load
from raysts.pipeline.executor import LocalExecutor
from raysts.pipeline.plan import Plan
from raysts.pipeline.step import Context
from raysts.recipes.names import pipeline
from raysts.recipes.recipe import DEFAULTS, Pipeline

EVALUATED = {"evaluation.tasks": ["stsb"], "evaluation.resamples": 0, "evaluation.layers": [1], "student_pooling": 1}


@pytest.fixture
def planned(few_world: Path, tiny_backbone: Path, tmp_path: Path) -> Any:
    def made(name: str | Pipeline, **settings: Any) -> Plan:
        asked = {"backbone": str(tiny_backbone), "members": 2, **EVALUATED}
        asked |= {key.replace("__", "."): value for key, value in settings.items()}
        chosen = pipeline(name, asked) if isinstance(name, str) else name
        return Plan(pipeline=chosen, corpus=Corpus(few_world), storage=tmp_path / "storage")

    return made


def measure(plan: Plan, role: str) -> list[dict[str, Any]]:
    """The rows on STS-B of a role that is measured."""
    (evaluation,) = (each for each in plan.evaluations if each.role == role)
    assert evaluation.step.work is not None
    evaluation.step.work(Context(LocalExecutor(threads=1, device="cpu"), plan.store))
    return [row for row in evaluation.rows() if row["metric"] == "spearman" and row["aggregation"] == "all"]


def test_an_ensemble_of_models_from_elsewhere_takes_each_as_it_pools(planned: Any, tmp_path: Path) -> None:
    """The first by its first token in its last two layers, although the table has those of the last one."""
    models = [
        load(write_backbone(tmp_path / "plain" / name, "bert", seed=seed), pooling=pooling, layers=layers, device="cpu")
        for seed, (name, pooling, layers) in enumerate((("a", "cls", 2), ("b", "mean", 1)), 1)
    ]
    for name, model in zip("ab", models, strict=True):
        model.save(tmp_path / name)
    made = Pipeline(
        name="distilled", backbone=str(tmp_path / "b"), combine="sed", teachers=(str(tmp_path / "a"), str(tmp_path / "b")),
        recipes={"sed": DEFAULTS["sed"].replace(settings=DEFAULTS["sed"].settings.replace(target="concat"))},
        evaluation=pipeline("raw", {**EVALUATED, "evaluation.layers": [1, 2]}).evaluation, student_pooling=1,
    )  # fmt: skip
    plan = planned(made)
    rows = measure(plan, "member")
    assert [(row["pooling"], row["layers"]) for row in rows if row["role"] == "member"] == [
        ("cls", "1"), ("cls", "2"), ("mean", "1"), ("mean", "2")
    ]  # fmt: skip
    pairs, cosines = plan.corpus.read("sts/stsb_test").to_pydict(), []
    for model in models:
        one, two = (model.encode(pairs[side], normalize=True) for side in ("sentence1", "sentence2"))
        cosines.append((one * two).sum(1))
    expected = scipy.stats.spearmanr(np.mean(cosines, axis=0), pairs["score"]).statistic
    (ensemble,) = (row for row in rows if row["role"] == "ensemble")
    assert ensemble["value"] == pytest.approx(expected, abs=1e-5)


def test_a_model_with_a_head_is_measured_as_it_was_trained(planned: Any, tiny_backbone: Path) -> None:
    plan = planned("gausscse-ent", members=1, layers="only-1", evaluation__layers=[2])
    model = load(tiny_backbone, layers="only-1", device="cpu")
    model.encoder = model.encoder.followed_by(GaussianHead(model.dim, model.dim))
    with plan.store.put_dir(plan.members[0].output) as draft:
        model.save(draft)
    assert {row["layers"] for row in measure(plan, "member")} == {"only-1"}

"""First dimensions that are sentence vectors by themselves (Matryoshka representation learning), whatever the objective."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_runs import Stage, share_of, tiny_encoder
from torch import Tensor

from raysts.models.precision import autocast
from raysts.models.pretrained import load
from raysts.models.sentence_model import SentenceModel
from raysts.models.tokens import Tokens
from raysts.objectives import MODULES
from raysts.objectives.objective import Batch, Objective
from raysts.recipes import names
from raysts.recipes.catalog import CATALOG, FRESH
from raysts.recipes.overrides import apply_overrides

WHOLE, WIDTHS = 16, (4, 9)
ROWS = 15
Vectors = dict[str, Tensor]


def made(name: str, **settings: Any) -> tuple[Objective, Batch]:
    """The objective on a tiny encoder of 16 dimensions, and a batch of random texts and values."""
    torch.manual_seed(0)
    spec = CATALOG[name]
    objective = MODULES[name](spec.settings(matryoshka=WIDTHS, **settings), tiny_encoder()).eval()
    draw = np.random.default_rng(0)
    lengths = draw.integers(2, 12, (len(spec.texts), ROWS))
    table: dict[str, Any] = {
        column: Tokens(draw.integers(1, 50, of.sum()).astype(np.int32), np.concatenate([[0], np.cumsum(of)]))
        for column, of in zip(spec.texts, lengths, strict=True)
    }
    values = {"label": draw.integers(0, 3, ROWS), "score": draw.uniform(0, 5, ROWS).astype(np.float32)}
    values["teacher"] = draw.normal(size=(ROWS, WHOLE)).astype(np.float32)
    table |= {column: values[column] for column in spec.values}
    examples = list(FRESH) if name == "ct" else [(row,) for row in range(ROWS)]
    return objective, objective.collate(share_of(table, examples, np.ones(len(examples), np.float32)))


def cross_entropy_of_pairs(u: Tensor, v: Tensor, objective: Any, batch: Batch) -> Tensor:
    """NLI with the columns of its classifier that read the first dimensions of u, v and |u - v|."""
    columns = torch.cat([part[:, : u.shape[1]] for part in objective.classifier.weight.split(WHOLE, dim=1)], 1)
    logits = torch.cat([u, v, (u - v).abs()], 1) @ columns.T + objective.classifier.bias
    return F.cross_entropy(logits, batch["label"])


def tension(a: Tensor, b: Tensor, objective: Any, batch: Batch) -> Tensor:
    return F.binary_cross_entropy_with_logits((a * b).sum(1), batch["identical"])


def infonce_of_targets(student: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(F.normalize(student) @ F.normalize(target).T / 0.05, torch.arange(ROWS))


def cosines_of(student: Tensor, target: Tensor) -> Tensor:
    """By hand: the mean over all ordered pairs of two different texts."""
    pairs = [(i, j) for i in range(ROWS) for j in range(ROWS) if i != j]
    return torch.stack(
        [
            (F.cosine_similarity(student[i], student[j], 0) - F.cosine_similarity(target[i], target[j], 0)).square()
            for i, j in pairs
        ]
    ).mean()


DISTANCES = {
    "mse": lambda student, target: (student - target).square().mean(),
    "cosine": lambda student, target: (1 - F.cosine_similarity(student, target)).mean(),
    "infonce": infonce_of_targets,
}


def expected(name: str, objective: Any, batch: Batch, width: int) -> Tensor:
    """The loss of the first ``width`` dimensions, by hand."""

    def embed(column: str, by: Any = objective.encoder) -> Tensor:
        return by(batch[column], batch[f"{column}_length"])[:, :width]  # type: ignore[no-any-return]

    if name == "nli":
        return cross_entropy_of_pairs(embed("premise"), embed("hypothesis"), objective, batch)
    if name == "ct":
        return tension(embed("a", objective.first), embed("b"), objective, batch)
    (loss,), student = objective.settings.terms, embed("sentence")
    if loss == "similarity":
        return cosines_of(student, batch["teacher"])
    return DISTANCES[loss](student, batch["teacher"][:, :width])  # type: ignore[no-any-return]


def gradients(objective: Objective, loss: Tensor) -> Vectors:
    objective.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in objective.named_parameters() if p.grad is not None}


def assert_same(found: Vectors, wanted: Vectors, **tolerance: float) -> None:
    assert found.keys() == wanted.keys() and max(float(value.abs().max()) for value in wanted.values()) > 1e-3
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], msg=name, **({"rtol": 1e-4, "atol": 1e-6} | tolerance))


@pytest.mark.parametrize(
    ("name", "settings"),
    [("nli", {}), ("ct", {}), *(("sed", {"loss": loss}) for loss in ("mse", "cosine", "infonce", "similarity"))],
)
def test_the_loss_is_the_mean_over_the_widths(name: str, settings: dict[str, Any]) -> None:
    objective, batch = made(name, **settings)
    loss, _ = objective(batch)
    found = gradients(objective, loss)
    wanted = torch.stack([expected(name, objective, batch, width) for width in (WHOLE, *WIDTHS)]).mean()
    assert float(loss.detach()) == pytest.approx(float(wanted.detach()), rel=1e-5)
    assert_same(found, gradients(objective, wanted))


@pytest.mark.parametrize(("name", "given"), [("simcse-sup", {"head": "none"}), ("sts", {})])
def test_loss_and_gradients_are_those_of_sentence_transformers(
    name: str, given: dict[str, Any], stage: Stage, tmp_path: Path
) -> None:
    """Theirs is the sum over the widths, ours the mean."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses

    spec, dims = CATALOG[name], (32, 20, 8)
    model = load(stage.backbone, device="cpu")
    SentenceModel(model.encoder, model.tokenizer, 24).save(tmp_path)
    columns = [
        ["a dog runs", "the cat sleeps", "a small house"],
        ["the dog is running", "a cat is sleeping", "the house is small"],
    ]
    scores = [5.0, 2.0, 0.5]
    texts = dict(zip(spec.texts, (model.tokenize(column) for column in columns), strict=False))
    if "negative" in spec.texts:
        texts["negative"] = Tokens(np.zeros(0, np.int32), np.zeros(4, np.int64))
    objective = MODULES[name](spec.settings(matryoshka=dims[1:], **given), model.encoder).eval()
    rows = {**texts, "score": np.array(scores, np.float32)}
    loss, _ = objective(objective.collate(share_of(rows, [(0,), (1,), (2,)], np.ones(3, np.float32))))
    found = gradients(objective, loss)

    theirs = SentenceTransformer(str(tmp_path), device="cpu").eval()
    inner = losses.CosineSimilarityLoss(theirs) if name == "sts" else losses.MultipleNegativesRankingLoss(theirs)
    wrapped = losses.MatryoshkaLoss(theirs, inner, matryoshka_dims=dims)
    features = [theirs.preprocess(column) for column in columns]
    total = wrapped(features, torch.tensor(scores) / 5)
    total.backward()
    assert float(total.detach()) / len(dims) == pytest.approx(float(loss.detach()), rel=1e-5)
    (backbone,) = (module for module in theirs.modules() if hasattr(module, "embeddings"))
    wanted = {n: p.grad / len(dims) for n, p in backbone.named_parameters() if p.grad is not None}
    assert_same({n.removeprefix("encoder.backbone."): g for n, g in found.items()}, wanted, atol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_cached_gradients_are_those_of_all_widths(precision: str) -> None:
    found = []
    for grad_cache in (None, 4):
        objective, batch = made("simcse-sup", grad_cache=grad_cache)
        with autocast(torch.device("cpu"), precision):
            loss, _ = objective(batch)
        assert loss.dtype == torch.float32
        found.append((float(loss.detach()), gradients(objective, loss)))
    (loss, whole), (cached_loss, cached) = found
    assert cached_loss == pytest.approx(loss, rel=1e-5 if precision == "fp32" else 1e-2)
    assert_same(cached, whole, **({} if precision == "fp32" else {"rtol": 0.2, "atol": 2e-2}))


def test_a_projection_that_is_kept_counts() -> None:
    pipeline = names.pipeline("ct-sed")
    sed = apply_overrides(pipeline, {"sed.matryoshka": [8, 64], "sed.projection": 64}).sed
    assert sed is not None and CATALOG["sed"].settings_problem(sed.settings, 32) is None
    assert "have 32 dimensions" in str(CATALOG["ct"].settings_problem(sed.settings, 32))

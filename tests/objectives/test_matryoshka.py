"""The losses of sentence vectors by hand, from the rows of their table: of whole vectors, and of their first dimensions too
(Matryoshka representation learning)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_runs import NO_TEXT, Stage, joined, random_tokens, share_of, tiny_encoder
from torch import Tensor

from raysts.data.batches import examples_in
from raysts.models.pretrained import load
from raysts.models.sentence_model import SentenceModel
from raysts.objectives import MODULES
from raysts.objectives.objective import Batch, Objective
from raysts.recipes import names
from raysts.recipes.catalog import CATALOG
from raysts.recipes.overrides import apply_overrides

WHOLE, WIDTHS = 16, (4, 9)
ROWS = 15
Table = dict[str, Any]
Example = tuple[int, ...]


def made(name: str, **settings: Any) -> tuple[Objective, Table, list[Example], Batch]:
    """The objective on a tiny encoder of 16 dimensions, random rows, and a batch of examples, the last of which is a filler."""
    torch.manual_seed(0)
    spec = CATALOG[name]
    objective = MODULES[name](spec.settings(**settings), tiny_encoder()).eval()
    draw = np.random.default_rng(0)
    table: Table = {column: random_tokens(ROWS, 11, seed) for seed, column in enumerate(spec.texts)}
    values = {"label": draw.integers(0, 3, ROWS), "score": draw.uniform(0, 5, ROWS).astype(np.float32)}
    values["teacher"] = draw.normal(size=(ROWS, 2 * WHOLE if settings.get("target") == "similarity" else WHOLE))
    table |= {column: values[column] for column in spec.values}
    examples = examples_in(spec.group_of(objective.settings), ROWS)[::-1]
    weight = np.ones(len(examples), np.float32)
    weight[-1] = 0
    if getattr(objective, "log_variance", None):
        torch.nn.init.normal_(objective.log_variance.weight, std=0.1)  # it begins as zero
    return objective, table, examples, objective.collate(share_of(table, examples, weight))


def logits_of_pairs(u: Tensor, v: Tensor, objective: Any) -> Tensor:
    """Logits of NLI by the columns of its classifier that read the first dimensions of u, v and |u - v|."""
    columns = torch.cat([part[:, : u.shape[1]] for part in objective.classifier.weight.split(WHOLE, dim=1)], 1)
    logits = torch.cat([u, v, (u - v).abs()], 1) @ columns.T
    return logits if objective.classifier.bias is None else logits + objective.classifier.bias


def similarity(student: Tensor, target: Tensor) -> Tensor:
    pairs = [(i, j) for i in range(len(student)) for j in range(len(student)) if i != j]
    cosines = [[F.cosine_similarity(x[i], x[j], 0) for i, j in pairs] for x in (student, target)]
    return (torch.stack(cosines[0]) - torch.stack(cosines[1])).square().mean()


def likelihood(student: Tensor, target: Tensor, log_variance: Tensor) -> Tensor:
    """That of the target's direction under a Gaussian around the student's, as torch has it, without its constant."""
    mean, target = (student.shape[1] ** 0.5 * F.normalize(vectors) for vectors in (student, target))
    density = torch.distributions.Normal(mean, (log_variance / 2).exp()).log_prob(target)
    return -density.mean() - math.log(2 * math.pi) / 2


DISTANCES = {
    "mse": lambda student, target: (student - target).square().mean(),
    "cosine": lambda student, target: (1 - F.cosine_similarity(student, target)).mean(),
    "infonce": lambda student, target: F.cross_entropy(
        F.normalize(student) @ F.normalize(target).T / 0.05, torch.arange(len(student))
    ),
}


def by_hand(name: str, objective: Any, table: Table, examples: Sequence[Example], width: int) -> Tensor:
    """The loss of the first ``width`` dimensions of examples that all count."""
    first, last = ([example[place] for example in examples] for place in (0, -1))

    def embed(column: str, rows: list[int] = first, by: Any = objective.encoder) -> Tensor:
        return by(*table[column].take(rows).pad(0))[:, :width]  # type: ignore[no-any-return]

    def value(column: str) -> Tensor:
        return torch.from_numpy(table[column][first])

    settings = objective.settings
    if name.startswith("simcse"):
        anchors, *others = (
            embed(column, by=lambda *text: objective.head(objective.encoder(*text))) for column in objective.views
        )
        logits = F.normalize(anchors) @ F.normalize(torch.cat(others)).T / settings.temperature
        return F.cross_entropy(logits, torch.arange(len(anchors)))
    if name == "nli":
        return F.cross_entropy(logits_of_pairs(embed("premise"), embed("hypothesis"), objective), value("label"))
    if name == "ct":
        identical = torch.tensor([float(len(example) == 1) for example in examples])
        products = (embed("sentence", first, objective.first) * embed("sentence", last)).sum(1)
        return F.binary_cross_entropy_with_logits(products, identical, reduction=settings.reduction)
    if name == "sts":
        target = settings.lower_bound + (1 - settings.lower_bound) * value("score") / 5
        return (F.cosine_similarity(embed("sentence1"), embed("sentence2")) - target).square().mean()
    student, teacher = embed("sentence"), value("teacher").float()
    terms = {of: distance(student, teacher[:, :width]) for of, distance in DISTANCES.items()}
    terms["similarity"] = similarity(student, teacher)
    if objective.log_variance:
        spread = objective.log_variance(objective.encoder(*table["sentence"].take(first).pad(0)))
        terms["nll"] = likelihood(student, teacher[:, :width], spread[:, :width])
    return sum(weight * terms[of] for of, weight in settings.terms.items())  # type: ignore[return-value]


def gradients(objective: Objective, loss: Tensor) -> dict[str, Tensor]:
    objective.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in objective.named_parameters() if p.grad is not None}


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor], **tolerance: float) -> None:
    assert found.keys() == wanted.keys() and max(float(value.abs().max()) for value in wanted.values()) > 1e-3
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], msg=name, **({"rtol": 1e-4, "atol": 1e-6} | tolerance))


LOSSES: list[tuple[str, dict[str, Any]]] = [
    ("nli", {}), ("nli", {"bias": False}), ("ct", {}), ("ct", {"reduction": "sum"}), ("ct", {"negatives": "anchored"}),
    ("sts", {}), ("sts", {"lower_bound": 0.4}), ("simcse-sup", {}), ("simcse-unsup", {"temperature": 0.1}),
    ("sed", {"target": "similarity"}),
    *(("sed", {"loss": loss}) for loss in ("mse", "cosine", "infonce", "nll", "similarity", {"cosine": 2.0, "similarity": 0.5})),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings"), LOSSES)
def test_the_loss_is_that_of_the_paper(name: str, settings: dict[str, Any]) -> None:
    """Its mean over the widths, the whole one once, and over the examples that count; gradients too."""
    objective, table, examples, batch = made(name, matryoshka=(*WIDTHS, WHOLE), **settings)
    loss, scalars = objective(batch)
    found = gradients(objective, loss)
    of_width = [by_hand(name, objective, table, examples[:-1], width) for width in (WHOLE, *WIDTHS)]
    assert float(loss.detach()) == pytest.approx(float(torch.stack(of_width).mean().detach()), rel=1e-5)
    assert_same(found, gradients(objective, torch.stack(of_width).mean()))
    if name == "nli":
        rows = [row for (row,) in examples[:-1]]
        pairs = [objective.encoder(*table[column].take(rows).pad(0)) for column in ("premise", "hypothesis")]
        right = logits_of_pairs(*pairs, objective).argmax(1).numpy() == table["label"][rows]
        assert float(scalars["accuracy"]) == pytest.approx(right.mean()) and 0 < right.mean() < 1


@pytest.mark.whole
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
        texts["negative"] = joined([NO_TEXT] * 3)
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


def test_a_projection_that_is_kept_counts() -> None:
    pipeline = names.pipeline("ct-sed")
    sed = apply_overrides(pipeline, {"sed.matryoshka": [8, 64], "sed.projection": 64}).sed
    assert sed is not None and CATALOG["sed"].settings_problem(sed.settings, 32) is None
    assert "have 32 dimensions" in str(CATALOG["ct"].settings_problem(sed.settings, 32))

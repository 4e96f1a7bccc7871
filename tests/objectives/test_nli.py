from __future__ import annotations

import numpy as np
import pytest
import torch
from small_runs import random_tokens, share_of, tiny_encoder
from torch import Tensor

from raysts.models.tokens import Tokens
from raysts.objectives.nli import NLI
from raysts.objectives.objective import Batch
from raysts.recipes.catalog import NLISettings


def batch(objective: NLI, rows: int = 6) -> Batch:
    texts = {"premise": random_tokens(rows, 11), "hypothesis": random_tokens(rows, 5, 1)}
    table = {**texts, "label": np.array([0, 1, 2, 2, 0, 1])}
    weight = np.array([1, 1, 1, 1, 0, 1], np.float32)
    return objective.collate(share_of(table, [(i,) for i in range(rows)], weight))


def alone(objective: NLI, found: Batch, name: str) -> Tensor:
    return objective.encoder(found[name], found[f"{name}_length"])


def test_the_loss_is_that_of_the_paper() -> None:
    """softmax(W [u; v; |u - v|] + b), cross-entropy, mean over the examples that count."""
    torch.manual_seed(0)
    objective = NLI(NLISettings(), tiny_encoder())
    found = batch(objective)
    loss, scalars = objective(found)
    u, v = (alone(objective, found, name).detach().double().numpy() for name in ("premise", "hypothesis"))
    weight = objective.classifier.weight.detach().double().numpy()
    bias = objective.classifier.bias.detach().double().numpy()
    logits = np.concatenate([u, v, np.abs(u - v)], axis=1) @ weight.T + bias
    log_softmax = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    labels = np.array([0, 1, 2, 2, 0, 1])
    counted = np.array([0, 1, 2, 3, 5])
    assert float(loss.detach()) == pytest.approx(-log_softmax[counted, labels[counted]].mean(), abs=1e-6)
    assert float(scalars["accuracy"]) == pytest.approx((logits.argmax(1) == labels)[counted].mean())


def test_the_classifier_has_a_bias_unless_told_otherwise() -> None:
    assert NLI(NLISettings(), tiny_encoder()).classifier.bias is not None
    without = NLI(NLISettings(bias=False), tiny_encoder())
    assert without.classifier.bias is None and without.classifier.weight.shape == (3, 48)
    assert not [name for name in without.state_dict() if name.endswith("classifier.bias")]


def test_collate_takes_the_rows_of_its_examples() -> None:
    objective = NLI(NLISettings(), tiny_encoder())
    texts = Tokens(np.arange(1, 10, dtype=np.int32), np.array([0, 2, 5, 9]))
    table = {"premise": texts, "hypothesis": texts.take([2, 1, 0]), "label": np.array([0, 1, 2])}
    found = objective.collate(share_of(table, [(2,), (0,)], np.ones(2, np.float32)))
    assert found["label"].tolist() == [2, 0]
    assert found["premise"].tolist() == [[6, 7, 8, 9], [1, 2, 0, 0]] and found["premise_length"].tolist() == [4, 2]
    assert found["hypothesis"].tolist() == [[1, 2, 0, 0], [6, 7, 8, 9]]

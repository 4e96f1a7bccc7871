from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_runs import random_tokens, share_of, tiny_encoder
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from raysts.models.tokens import Tokens
from raysts.objectives.gausscse import GaussCSE
from raysts.objectives.objective import Batch
from raysts.recipes.catalog import GAUSS_LOSSES, GaussCSESettings

ROWS = 6
WEIGHT = np.array([1, 1, 0, 1, 1, 1], np.float32)
COUNTED = [0, 1, 3, 4, 5]


TABLE = {
    "anchor": random_tokens(ROWS, 11, 0),
    "positive": random_tokens(ROWS, 5, 1),
    "negative": random_tokens(ROWS, 8, 2),
}


NO_TEXT = Tokens(np.zeros(0, np.int32), np.zeros(2, np.int64))


def build(**settings: Any) -> GaussCSE:
    torch.manual_seed(0)
    return GaussCSE(GaussCSESettings(**settings), tiny_encoder(pooling="cls"))


def batch(objective: GaussCSE) -> Batch:
    return objective.collate(share_of(TABLE, [(i,) for i in range(ROWS)], WEIGHT))


def normals(objective: GaussCSE, column: str) -> Normal:
    """What the paper makes of the examples that count, from the vector of the first token, in float64."""
    ids, lengths = TABLE[column].take(COUNTED).pad(0)
    h = objective.encoder.tokens(ids, lengths)[:, 0].double().detach()
    head = objective.encoder.heads[-1]
    mu = h @ head.mu.linear.weight.double().T + head.mu.linear.bias.double()
    mu = mu.tanh() if objective.settings.activation == "tanh" else mu
    log_var = h @ head.log_var.weight.double().T + head.log_var.bias.double()
    return Normal(mu, (log_var / 2).exp())


def expected_loss(objective: GaussCSE) -> Tensor:
    """Equation 4, mean over the rows; matrices as the official code has them: columns E, R, C and target i."""
    premise, hypothesis, contradiction = (normals(objective, column) for column in ("anchor", "positive", "negative"))

    def matrix(candidates: Normal, given: Normal) -> Tensor:
        kl = kl_divergence(
            candidates.expand((1, *candidates.mean.shape)), Normal(given.mean[:, None], given.stddev[:, None])
        )
        return (1 / (1 + kl)).mean(-1) if objective.settings.similarity == "per_dimension" else 1 / (1 + kl.sum(-1))

    parts = [matrix(hypothesis, premise)]
    if "rev" in objective.settings.loss:
        parts.append(matrix(premise, hypothesis))
    if "con" in objective.settings.loss:
        parts.append(matrix(contradiction, premise))
    logits = torch.cat(parts, 1) / objective.settings.temperature
    return torch.nn.functional.cross_entropy(logits, torch.arange(len(COUNTED)))


@pytest.mark.parametrize("similarity", ["per_dimension", "paper"])
@pytest.mark.parametrize("loss", GAUSS_LOSSES)
def test_the_loss_is_that_of_the_paper(loss: str, similarity: str) -> None:
    objective = build(
        loss=loss, similarity=similarity, activation="tanh" if similarity == "per_dimension" else "identity"
    )
    found, scalars = objective(batch(objective))
    assert float(found.detach()) == pytest.approx(float(expected_loss(objective).detach()), abs=2e-5)
    premise, hypothesis = normals(objective, "anchor"), normals(objective, "positive")
    wider = premise.stddev.log().sum(-1) > hypothesis.stddev.log().sum(-1)
    assert float(scalars["wider_premise"]) == pytest.approx(float(wider.double().mean()))


def test_contradictions_are_read_where_the_loss_has_a_use_for_them() -> None:
    assert [batch(build(loss=loss))["views"].shape[:2] for loss in GAUSS_LOSSES] == [(6, 2), (6, 3), (6, 2), (6, 3)]


def test_what_is_no_negative_is_in_no_denominator() -> None:
    """Of six triplets four stay: 2 has the anchor of 0, the negative of 3 is the positive of 1, 4 has no negative, and the
    anchor of 5 is the positive of 0."""
    objective = build(loss="ent+con+rev", false_negatives="masked").eval()
    anchor, positive, negative = (TABLE[name] for name in objective.views)
    columns = {
        "anchor": [anchor.take([i]) for i in (0, 1, 0, 3, 4)] + [positive.take([0])],
        "positive": [positive.take([i]) for i in range(ROWS)],
        "negative": [negative.take([i]) for i in range(3)] + [positive.take([1]), NO_TEXT, negative.take([5])],
    }
    table = {
        name: Tokens(np.concatenate([text.flat for text in parts]), np.cumsum([0, *(len(text.flat) for text in parts)]))
        for name, parts in columns.items()
    }
    batch = objective.collate(share_of(table, [(i,) for i in range(ROWS)], np.ones(ROWS, np.float32)))
    found = objective.encoder.represent(batch["views"].flatten(0, 1), batch["views_length"].flatten())
    mu, log_var = (found[name].detach().double().unflatten(0, (ROWS, 3)) for name in ("vectors", "log_var"))

    def sim(a: tuple[int, int], given: tuple[int, int]) -> float:
        (mu_a, mu_b), (var_a, var_b) = (mu[a], mu[given]), (log_var[a].exp(), log_var[given].exp())
        return float((1 / (1 + ((var_a + (mu_a - mu_b) ** 2) / var_b - (var_a / var_b).log() - 1) / 2)).mean()) / 0.05

    left_out = {
        "ent": {(0, 2), (2, 0)}, "con": {(1, 3), *((row, 4) for row in range(ROWS))}, "rev": {(0, 5)},
    }  # fmt: skip
    left_out["ent"] |= {(5, 0)}  # the anchor of 5 itself
    rows = []
    for i in range(ROWS):
        entries = [sim((j, 1), (i, 0)) for j in range(ROWS) if (i, j) not in left_out["ent"]]
        entries += [sim((j, 2), (i, 0)) for j in range(ROWS) if (i, j) not in left_out["con"]]
        entries += [sim((j, 0), (i, 1)) for j in range(ROWS) if (i, j) not in left_out["rev"]]
        rows.append(np.logaddexp.reduce(entries) - sim((i, 1), (i, 0)))
    loss, _ = objective(batch)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(np.mean(rows), abs=2e-5)
    assert all(p.grad is None or p.grad.isfinite().all() for p in objective.parameters())

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import NO_TEXT, joined, random_tokens, share_of, tiny_encoder
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from raysts.models.tokens import Tokens
from raysts.objectives.gausscse import GaussCSE
from raysts.recipes.catalog import GAUSS_LOSSES, GaussCSESettings

ROWS = 6
TABLE = {
    name: random_tokens(ROWS, longest, seed)
    for seed, (name, longest) in enumerate({"anchor": 11, "positive": 5, "negative": 8}.items())
}


def build(**settings: Any) -> GaussCSE:
    torch.manual_seed(0)
    return GaussCSE(GaussCSESettings(**settings), tiny_encoder(pooling="cls"))


def normals(objective: GaussCSE, texts: Tokens) -> Normal:
    """What the paper makes of texts, from the vector of the first token, in float64."""
    ids, lengths = texts.pad(0)
    h = objective.encoder.tokens(ids, lengths.clamp(min=1))[:, 0].double().detach()
    head = objective.encoder.heads[-1]
    mu = h @ head.mu.linear.weight.double().T + head.mu.linear.bias.double()
    mu = mu.tanh() if objective.settings.activation == "tanh" else mu
    log_var = h @ head.log_var.weight.double().T + head.log_var.bias.double()
    return Normal(mu, (log_var / 2).exp())


@torch.no_grad()
def expected_loss(
    objective: GaussCSE,
    table: dict[str, Tokens],
    left_out: Mapping[str, Iterable[tuple[int, int]]] = MappingProxyType({}),
) -> Tensor:
    """Equation 4, mean over the rows; matrices as the official code has them: columns E, R, C and target i. ``left_out``:
    the entries that are in no denominator."""
    premise, hypothesis, contradiction = (normals(objective, texts) for texts in table.values())
    pairs = {"ent": (hypothesis, premise), "rev": (premise, hypothesis), "con": (contradiction, premise)}
    parts = []
    for name in objective.settings.loss.split("+"):
        candidates, given = pairs[name]
        candidates = candidates.expand((1, *candidates.mean.shape))
        kl = kl_divergence(candidates, Normal(given.mean[:, None], given.stddev[:, None]))
        paper = objective.settings.similarity == "paper"
        part = 1 / (1 + kl.sum(-1)) if paper else (1 / (1 + kl)).mean(-1)
        for entry in left_out.get(name, ()):
            part[entry] = -torch.inf
        parts.append(part)
    logits = torch.cat(parts, 1) / objective.settings.temperature
    return torch.nn.functional.cross_entropy(logits, torch.arange(len(logits)))


@pytest.mark.parametrize("similarity", ["per_dimension", "paper"])
@pytest.mark.parametrize("loss", GAUSS_LOSSES)
def test_the_loss_is_that_of_the_paper(loss: str, similarity: str) -> None:
    activation = "tanh" if similarity == "per_dimension" else "identity"
    objective = build(loss=loss, similarity=similarity, activation=activation)
    weight = np.array([1, 1, 0, 1, 1, 1], np.float32)
    batch = objective.collate(share_of(TABLE, [(i,) for i in range(ROWS)], weight))
    assert batch["views"].shape[1] == (3 if "con" in loss else 2), "contradictions where the loss uses them"
    found, scalars = objective(batch)
    counted = {name: texts.take(np.flatnonzero(weight)) for name, texts in TABLE.items()}
    assert float(found.detach()) == pytest.approx(float(expected_loss(objective, counted)), abs=2e-5)
    premise, hypothesis, _ = (normals(objective, texts) for texts in counted.values())
    wider = premise.stddev.log().sum(-1) > hypothesis.stddev.log().sum(-1)
    assert float(scalars["wider_premise"]) == pytest.approx(float(wider.double().mean()))


def test_what_is_no_negative_is_in_no_denominator() -> None:
    """Of six triplets four stay: 2 has the anchor of 0, the negative of 3 is the positive of 1, 4 has no negative, and the
    anchor of 5 is the positive of 0."""
    objective = build(loss="ent+con+rev", false_negatives="masked").eval()
    anchor, positive, negative = TABLE.values()
    table = {
        "anchor": joined([anchor.take([0, 1, 0, 3, 4]), positive.take([0])]),
        "positive": positive,
        "negative": joined([negative.take([0, 1, 2]), positive.take([1]), NO_TEXT, negative.take([5])]),
    }
    left_out = {
        "ent": {(0, 2), (2, 0), (5, 0)},  # the last is the anchor of 5 itself
        "con": {(1, 3), *((row, 4) for row in range(ROWS))},
        "rev": {(0, 5)},
    }
    loss, _ = objective(objective.collate(share_of(table, [(i,) for i in range(ROWS)], np.ones(ROWS, np.float32))))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(float(expected_loss(objective, table, left_out)), abs=2e-5)
    assert all(p.grad is None or p.grad.isfinite().all() for p in objective.parameters())

"""Distances between members, and the rule that is fitted to them."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch

from raysts.evaluation.merging import Rule, cka_distance, cosine_distance, fit, predicted, weight_distance

DRAWS = np.random.default_rng(0)


def test_the_distance_of_weights_is_that_of_the_pairs() -> None:
    flat_MP = DRAWS.normal(size=(4, 30))
    states = [
        {"a": torch.tensor(row[:12]).reshape(3, 4), "b": torch.tensor(row[12:]), "step": torch.tensor(7)}
        for row in flat_MP
    ]
    pairs = [np.sum((a - b) ** 2) for a, b in combinations(flat_MP, 2)]
    expected = math.sqrt(np.mean(pairs) / np.mean(np.sum(flat_MP**2, axis=1)))
    assert weight_distance(states) == pytest.approx(expected, rel=1e-12)
    assert weight_distance([states[0], states[0]]) == 0.0
    near = [states[0], {name: value * (1 + 1e-6) if name != "step" else value for name, value in states[0].items()}]
    assert weight_distance(near) == pytest.approx(1e-6, rel=1e-3)


def test_distances_of_embeddings() -> None:
    """Equal members are at 0; a rotation moves the cosine and not the alignment; noise moves both."""
    first_ND = DRAWS.normal(size=(200, 8)).astype(np.float32)
    turned_ND = first_ND @ np.linalg.qr(DRAWS.normal(size=(8, 8)))[0].astype(np.float32) * 3 + 1
    noisy_ND = first_ND + DRAWS.normal(size=(200, 8)).astype(np.float32)
    same, turned, noisy = (np.stack([first_ND, other]) for other in (first_ND, turned_ND, noisy_ND))
    assert cosine_distance(same) == pytest.approx(0, abs=1e-6) and cka_distance(same) == pytest.approx(0, abs=1e-6)
    assert cosine_distance(turned) > 0.5 and cka_distance(turned) == pytest.approx(0, abs=1e-6)
    assert cosine_distance(noisy) == pytest.approx(1 - 1 / math.sqrt(2), abs=0.05) and cka_distance(noisy) > 0.1
    three = np.stack([first_ND, turned_ND, noisy_ND])
    both = [cosine_distance(three[[i, j]]) for i, j in combinations(range(3), 2)]
    assert cosine_distance(three) == pytest.approx(np.mean(both))


def test_the_rule_is_the_best_of_all() -> None:
    """Against every threshold and every pair of ways, by hand."""
    for _ in range(20):
        distances, scores = DRAWS.integers(0, 5, size=7).astype(float), DRAWS.normal(size=(7, 3))
        found = fit(distances, scores)

        def mean(rule: Rule, distances: np.ndarray = distances, scores: np.ndarray = scores) -> float:
            return float(np.mean([row[rule.way(d)] for d, row in zip(distances, scores, strict=True)]))

        every = [mean(Rule(cut + 0.5, near, far)) for cut in range(-1, 5) for near in range(3) for far in range(3)]
        assert mean(found) == pytest.approx(max(every))


def test_a_rule_without_use_of_the_distance_says_always_the_same() -> None:
    assert fit(np.array([1.0, 2.0, 3.0]), np.array([[0.5, 0.5], [0.7, 0.7], [0.1, 0.1]])) == Rule(math.inf, 0, 0)
    assert fit(np.array([1.0, 1.0]), np.array([[1.0, 0.0], [0.0, 2.0]])) == Rule(math.inf, 1, 1)


def test_what_is_predicted_was_not_fitted_on() -> None:
    """Three regimes of two seeds: soups win near, students far. The far regime left out cannot be known to turn."""
    distances = np.array([0.1, 0.12, 0.3, 0.32, 1.4, 1.5])
    scores = np.array([[0.9, 0.8], [0.9, 0.8], [0.8, 0.7], [0.8, 0.7], [0.1, 0.6], [0.1, 0.6]])
    assert predicted(distances, scores, [0, 1, 0, 1, 0, 1]).tolist() == [0, 0, 0, 0, 1, 1]
    assert predicted(distances, scores, ["near", "near", "mid", "mid", "far", "far"]).tolist() == [0, 0, 0, 0, 0, 0]
    scores[0] = [0.0, 1.0]  # its own score says nothing of what is predicted for it
    assert predicted(distances, scores, [0, 1, 2, 3, 4, 5])[0] == 0

from __future__ import annotations

import numpy as np
import pytest
from small_runs import share_of, tiny_encoder

from raysts.models.tokens import Tokens
from raysts.objectives.sts_regression import STSRegression
from raysts.recipes.catalog import STSRegressionSettings


@pytest.mark.parametrize("lower_bound", [0.0, 0.4])
def test_the_loss_is_that_of_the_paper(lower_bound: float) -> None:
    """Mean of (cos(u, v) - (l + (1 - l) score / 5))^2 over the examples that count."""
    objective = STSRegression(STSRegressionSettings(lower_bound=lower_bound), tiny_encoder())
    texts = Tokens(np.arange(1, 22, dtype=np.int32), np.array([0, 3, 8, 15, 21]))
    scores = np.array([0.0, 5.0, 1.7, 3.2])
    table = {"sentence1": texts, "sentence2": texts.take([1, 1, 0, 2]), "score": scores}
    weight = np.array([1, 1, 0, 1], np.float32)
    found = objective.collate(share_of(table, [(0,), (1,), (2,), (3,)], weight))
    loss, scalars = objective(found)
    u, v = (
        objective.encoder(found[name], found[f"{name}_length"]).detach().double().numpy()
        for name in ("sentence1", "sentence2")
    )
    cosines = (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
    errors = (cosines - (lower_bound + (1 - lower_bound) * scores / 5)) ** 2
    assert float(loss.detach()) == pytest.approx((errors * weight).sum() / 3, abs=1e-6)
    assert errors[1] == pytest.approx(0.0, abs=1e-9), "a sentence with itself, score 5"
    assert scalars == {}

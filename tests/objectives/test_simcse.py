from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.special
import torch
from small_runs import NO_TEXT, joined, random_tokens, share_of, tiny_encoder
from torch import Tensor

from raysts.objectives.objective import Batch
from raysts.objectives.simcse import SimCSE, SupervisedSimCSE, UnsupervisedSimCSE
from raysts.recipes.catalog import SimCSESettings

ROWS = 6


def made(kind: type[SimCSE], **settings: Any) -> SimCSE:
    torch.manual_seed(0)
    return kind(SimCSESettings(**settings), tiny_encoder(pooling="cls")).eval()


def embedded(objective: SimCSE, found: Batch) -> np.ndarray:
    """[V, B, D], one text at a time: tanh(W h + b) of the first token's vector h."""
    encoder = objective.encoder
    dense = (encoder.heads[0] if len(encoder.heads) else objective.head).linear
    weight, bias = (x.detach().double().numpy() for x in (dense.weight, dense.bias))
    vectors = [
        [
            np.tanh(weight @ encoder.tokens(ids[None, :length], length[None])[0, 0].detach().double().numpy() + bias)
            for ids, length in zip(found["views"][:, view], found["views_length"][:, view], strict=True)
        ]
        for view in range(len(objective.views))
    ]
    return np.array(vectors)


@pytest.mark.parametrize("false_negatives", ["kept", "masked"])
def test_what_is_no_negative_is_in_no_denominator(false_negatives: str) -> None:
    """Examples 0 and 2 have one anchor, 1 and 3 one positive; 4 has no negative, 5 as its negative the positive of 2."""
    objective = made(SupervisedSimCSE, false_negatives=false_negatives)
    anchor, positive, negative = (random_tokens(ROWS, longest, longest) for longest in (12, 6, 9))
    table = {
        "anchor": anchor.take([0, 1, 0, 3, 4, 5]),
        "positive": positive.take([0, 1, 2, 1, 4, 5]),
        "negative": joined([negative.take([0, 1, 2, 3]), NO_TEXT, positive.take([2])]),
    }
    found = objective.collate(share_of(table, [(i,) for i in range(ROWS)], np.ones(ROWS, np.float32)))
    views = embedded(objective, found)
    unit = views / np.linalg.norm(views, axis=-1, keepdims=True)
    logits = unit[0] @ np.concatenate([unit[1], unit[2]]).T / 0.05
    left_out = {(row, ROWS + 4) for row in range(ROWS)}
    if false_negatives == "masked":
        left_out |= {(0, 2), (2, 0), (0, ROWS + 5), (2, ROWS + 5), (1, 3), (3, 1)}
    kept = np.array([[(i, n) not in left_out for n in range(2 * ROWS)] for i in range(ROWS)])
    expected = scipy.special.logsumexp(logits, axis=1, b=kept) - logits[range(ROWS), range(ROWS)]
    loss, scalars = objective(found)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(expected.mean(), abs=2e-5)
    right = np.where(kept, logits, -np.inf).argmax(1) == range(ROWS)
    assert float(scalars["accuracy"]) == pytest.approx(right.mean())
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in objective.parameters())


def test_a_sentence_that_stands_twice_in_a_batch_is_not_its_own_negative() -> None:
    objective = made(UnsupervisedSimCSE, false_negatives="masked")
    twice = share_of({"sentence": random_tokens(ROWS, 11, 1)}, [(0,), (1,), (0,)], np.ones(3, np.float32))
    loss, _ = objective(objective.collate(twice))
    unit = torch.nn.functional.normalize(torch.from_numpy(embedded(objective, objective.collate(twice))[0]), dim=-1)
    cosine = float(unit[0] @ unit[1]) / 0.05
    with_other, without_same = np.logaddexp(20, cosine) - 20, np.logaddexp(20, np.logaddexp(cosine, cosine)) - 20
    assert float(loss.detach()) == pytest.approx((2 * with_other + without_same) / 3, abs=2e-5)


def two_views(objective: SimCSE, found: Batch) -> Tensor:
    seen: list[Tensor] = []
    hook = objective.head.register_forward_hook(lambda module, given, out: seen.append(out.detach()))
    objective(found)
    hook.remove()
    assert len(seen) == 1, "both views in one forward"
    return seen[0].unflatten(0, (ROWS, 2)).transpose(0, 1)


def test_the_two_views_of_a_sentence_differ_by_dropout_alone() -> None:
    objective = made(UnsupervisedSimCSE)
    examples = [(row,) for row in range(ROWS)]
    found = objective.collate(share_of({"sentence": random_tokens(ROWS, 12)}, examples, np.ones(ROWS, np.float32)))
    assert torch.equal(found["views"][:, 0], found["views"][:, 1])
    first, second = two_views(objective, found)
    torch.testing.assert_close(first, second, rtol=0, atol=1e-6)
    objective.train()
    noisy = two_views(objective, found)
    assert ((noisy[0] - noisy[1]).abs().amax(1) > 1e-3).all(), "every sentence has two masks"
    assert ((noisy - first).abs().amax(2) > 1e-3).all(), "both passes have dropout"


def test_the_head_is_kept_by_the_supervised_model_alone() -> None:
    for kind, heads in ((SupervisedSimCSE, ["Dense"]), (UnsupervisedSimCSE, [])):
        objective = made(kind)
        (kept,) = objective.candidates().values()
        assert [type(head).__name__ for head in kept.heads] == heads
        assert sum("linear" in name for name, _ in objective.named_parameters()) == 2
        assert not any("linear" in name for name, _ in made(kind, head="none").named_parameters())

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_runs import random_tokens, share_of, tiny_encoder

from raysts.data.batches import examples_in, rows_per_batch
from raysts.objectives.contrastive_tension import ContrastiveTension
from raysts.objectives.objective import Batch
from raysts.recipes.catalog import ANCHORED, CATALOG, FRESH, ContrastiveTensionSettings


def batch(objective: ContrastiveTension, rows: int = 30) -> Batch:
    examples = examples_in(FRESH, rows)
    return objective.collate(
        share_of({"sentence": random_tokens(rows, 8)}, examples, np.ones(len(examples), np.float32))
    )


def made() -> ContrastiveTension:
    return ContrastiveTension(ContrastiveTensionSettings(), tiny_encoder())


def test_a_batch_is_groups_of_one_identical_and_seven_other_pairs() -> None:
    assert rows_per_batch(FRESH, 16) == 30
    examples = examples_in(FRESH, 30)
    assert [len(example) for example in examples] == [1, 2, 2, 2, 2, 2, 2, 2] * 2
    rows = [row for example in examples for row in example]
    assert sorted(rows) == list(range(30)), "every sentence once: both sides of a non-identical pair are fresh draws"
    assert examples_in(FRESH, 14) == [] and len(examples_in(FRESH, 29)) == 8


def test_a_batch_must_hold_whole_groups() -> None:
    problem = CATALOG["ct"].batch_problem
    assert problem(16) is None and problem(8) is None
    assert "multiple of 8" in str(problem(12))


def test_both_sides_of_an_identical_pair_are_the_same_sentence() -> None:
    found = batch(made())
    for a, b, identical in zip(found["a"], found["b"], found["identical"].tolist(), strict=True):
        longest = max(len(a), len(b))
        left = torch.nn.functional.pad(a, (0, longest - len(a)))
        right = torch.nn.functional.pad(b, (0, longest - len(b)))
        assert torch.equal(left, right) == bool(identical)
    assert found["identical"].sum() == 2


def test_the_loss_restated() -> None:
    objective = made()
    with torch.no_grad():
        for parameter in objective.first.parameters():
            parameter += 0.01
    found = batch(objective)
    loss, _ = objective(found)
    total = 0.0
    for i in range(16):
        a = objective.first(found["a"][i : i + 1], found["a_length"][i : i + 1])[0].detach().double()
        b = objective.encoder(found["b"][i : i + 1], found["b_length"][i : i + 1])[0].detach().double()
        probability = torch.sigmoid(a @ b)
        total -= float(torch.log(probability if found["identical"][i] else 1 - probability))
    assert float(loss.detach()) == pytest.approx(total / 16, rel=1e-5)


def test_two_encoders_from_one_checkpoint_are_both_trained_and_part() -> None:
    objective = made()
    first, second = objective.first.state_dict(), objective.encoder.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in second)
    assert not {p.data_ptr() for p in objective.first.parameters()} & {
        p.data_ptr() for p in objective.encoder.parameters()
    }
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.1)
    before = objective.encoder.backbone.embeddings.word_embeddings.weight.detach().clone()
    objective(batch(objective))[0].backward()
    optimizer.step()
    first, second = (e.backbone.embeddings.word_embeddings.weight for e in (objective.first, objective.encoder))
    assert not torch.equal(first, second) and not torch.equal(first, before) and not torch.equal(second, before)


def test_the_sum_is_the_mean_times_the_pairs_that_count() -> None:
    losses, gradients = [], []
    for reduction in ("mean", "sum"):
        objective = ContrastiveTension(ContrastiveTensionSettings(reduction=reduction), tiny_encoder())
        found = batch(objective)
        found["weight"][-3:] = 0.0
        loss, _ = objective(found)
        loss.backward()
        losses.append(float(loss.detach()))
        gradients.append(objective.encoder.backbone.embeddings.word_embeddings.weight.grad)
    assert losses[1] == pytest.approx(13 * losses[0], rel=1e-5)
    torch.testing.assert_close(gradients[1], 13 * gradients[0], rtol=1e-4, atol=1e-5)


def test_anchored_pairs_share_their_first_sentence() -> None:
    settings = ContrastiveTensionSettings(negatives="anchored")
    group = CATALOG["ct"].group_of(settings)
    assert group == ANCHORED and CATALOG["ct"].group_of(ContrastiveTensionSettings()) == FRESH
    assert rows_per_batch(group, 16) == 16
    examples = examples_in(group, 17)
    assert examples[:3] == [(0,), (0, 1), (0, 2)] and examples[8:10] == [(8,), (8, 9)] and len(examples) == 16
    objective = ContrastiveTension(settings, tiny_encoder())
    table = {"sentence": random_tokens(16, 8)}
    found = objective.collate(share_of(table, examples, np.ones(16, np.float32)))
    anchor, words = found["a"], table["sentence"].take([0, 8])
    for group in range(2):
        mine = anchor[8 * group : 8 * group + 8]
        assert (mine == mine[0]).all() and mine[0, : words.lengths[group]].tolist() == words.take([group]).flat.tolist()
    assert found["identical"].tolist() == ([1.0] + [0.0] * 7) * 2
    partners = table["sentence"].take([example[-1] for example in examples])
    assert torch.equal(found["b"], partners.pad(0)[0])

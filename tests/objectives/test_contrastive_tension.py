from __future__ import annotations

import numpy as np
import pytest
import torch
from small_runs import share_of, tiny_encoder

from raysts.models.tokens import Tokens
from raysts.objectives.contrastive_tension import ContrastiveTension, ContrastiveTensionSettings
from raysts.objectives.objective import Batch


def sentences(rows: int) -> Tokens:
    generator = np.random.default_rng(0)
    lengths = generator.integers(2, 9, rows)
    flat = generator.integers(1, 50, int(lengths.sum())).astype(np.int32)
    return Tokens(flat, np.concatenate([[0], np.cumsum(lengths)]))


def batch(objective: ContrastiveTension, rows: int = 30) -> Batch:
    examples = ContrastiveTension.examples(rows)
    return objective.collate(share_of({"sentence": sentences(rows)}, examples, np.ones(len(examples), np.float32)))


def made() -> ContrastiveTension:
    return ContrastiveTension(ContrastiveTensionSettings(), tiny_encoder())


def test_a_batch_is_groups_of_one_identical_and_seven_other_pairs() -> None:
    assert ContrastiveTension.rows_per_batch(16) == 30
    examples = ContrastiveTension.examples(30)
    assert [len(example) for example in examples] == [1, 2, 2, 2, 2, 2, 2, 2] * 2
    rows = [row for example in examples for row in example]
    assert sorted(rows) == list(range(30)), "every sentence once: both sides of a non-identical pair are fresh draws"
    assert ContrastiveTension.examples(14) == [] and len(ContrastiveTension.examples(29)) == 8


def test_a_batch_must_hold_whole_groups() -> None:
    assert ContrastiveTension.problem(16) is None and ContrastiveTension.problem(8) is None
    assert "multiple of 8" in str(ContrastiveTension.problem(12))


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


def test_the_second_encoder_is_the_default_candidate() -> None:
    objective = made()
    assert list(objective.candidates()) == ["second", "first"]
    assert objective.candidates()["second"] is objective.encoder and objective.keeps[0] == "second"

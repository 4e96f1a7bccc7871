from __future__ import annotations

import numpy as np
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


def test_anchored_pairs_share_their_first_sentence() -> None:
    settings = ContrastiveTensionSettings(negatives="anchored")
    group = CATALOG["ct"].group_of(settings)
    assert group == ANCHORED and CATALOG["ct"].group_of(ContrastiveTensionSettings()) == FRESH
    assert rows_per_batch(group, 16) == 16
    examples = examples_in(group, 17)
    assert examples[:3] == [(0,), (0, 1), (0, 2)] and examples[8:10] == [(8,), (8, 9)] and len(examples) == 16

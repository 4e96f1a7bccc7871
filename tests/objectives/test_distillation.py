from __future__ import annotations

import numpy as np
import pytest
from small_runs import share_of, tiny_encoder

from raysts.models.tokens import Tokens
from raysts.objectives.distillation import Distillation, DistillationSettings

TEXTS = Tokens(np.arange(1, 22, dtype=np.int32), np.array([0, 3, 8, 15, 21]))


def test_the_loss_is_that_of_the_paper() -> None:
    """Mean over dimensions, then over the examples that count, of (student - teacher)^2; nothing is normalised."""
    objective = Distillation(DistillationSettings(), tiny_encoder())
    teacher = np.random.default_rng(0).normal(size=(4, 16)).astype(np.float32) * 3
    weight = np.array([1, 0, 1, 1], np.float32)
    found = objective.collate(share_of({"sentence": TEXTS, "teacher": teacher}, [(0,), (1,), (2,), (3,)], weight))
    loss, scalars = objective(found)
    student = objective.encoder(found["sentence"], found["sentence_length"]).detach().double().numpy()
    errors = ((student - teacher) ** 2).mean(1)
    assert float(loss.detach()) == pytest.approx((errors * weight).sum() / 3, rel=1e-6)
    assert scalars == {}


def test_a_student_that_is_its_teacher_has_no_loss() -> None:
    objective = Distillation(DistillationSettings(), tiny_encoder())
    ids, lengths = TEXTS.pad(0)
    teacher = objective.encoder(ids, lengths).detach().numpy()
    found = objective.collate(share_of({"sentence": TEXTS, "teacher": teacher}, [(2,), (0,)], np.ones(2, np.float32)))
    assert float(objective(found)[0].detach()) < 1e-10


def test_members_get_no_gradient() -> None:
    objective = Distillation(DistillationSettings(), tiny_encoder())
    found = objective.collate(
        share_of({"sentence": TEXTS, "teacher": np.zeros((4, 16), np.float32)}, [(0,)], np.ones(1, np.float32))
    )
    objective(found)[0].backward()
    assert found["teacher"].grad is None and not found["teacher"].requires_grad
    assert set(objective.state_dict()) == {f"encoder.{name}" for name in objective.encoder.state_dict()}


def test_a_teacher_of_another_width_is_no_silent_match() -> None:
    objective = Distillation(DistillationSettings(), tiny_encoder())
    for width in (8, 32):
        found = objective.collate(
            share_of(
                {"sentence": TEXTS, "teacher": np.zeros((4, width), np.float32)}, [(0,), (1,)], np.ones(2, np.float32)
            )
        )
        with pytest.raises(RuntimeError, match="size"):
            objective(found)

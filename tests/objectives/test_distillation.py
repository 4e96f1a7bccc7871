from __future__ import annotations

import numpy as np
import pytest
import torch
from small_runs import share_of, tiny_encoder

from raysts.models.tokens import Tokens
from raysts.objectives.distillation import Distillation
from raysts.recipes.catalog import DistillationSettings

TEXTS = Tokens(np.arange(1, 22, dtype=np.int32), np.array([0, 3, 8, 15, 21]))


def step(teacher: np.ndarray, **settings: object) -> tuple[Distillation, float]:
    """An objective after one backward, and its loss."""
    objective = Distillation(DistillationSettings(**settings), tiny_encoder())  # type: ignore[arg-type]
    examples, counted = [(row,) for row in range(4)], np.ones(4, np.float32)
    loss, _ = objective(objective.collate(share_of({"sentence": TEXTS, "teacher": teacher}, examples, counted)))
    loss.backward()
    return objective, float(loss.detach())


def test_a_gaussian_is_learnt_by_its_divergence() -> None:
    """Mean over dimensions of KL(teacher || student), as torch has it; a student that is its teacher has none."""
    teacher = np.random.default_rng(0).normal(size=(4, 32)).astype(np.float32)
    objective, found = step(teacher, target="gaussian")
    ids, lengths = TEXTS.pad(0)
    student = {name: array.detach() for name, array in objective.encoder.represent(ids, lengths).items()}
    mu, log_var = map(torch.from_numpy, np.split(teacher, 2, axis=1))
    pairs = (mu, log_var), (student["vectors"], student["log_var"])
    gaussians = [torch.distributions.Normal(mean, (log_variance / 2).exp()) for mean, log_variance in pairs]
    assert found == pytest.approx(float(torch.distributions.kl_divergence(*gaussians).mean()), rel=1e-5)
    assert all(parameter.grad is not None for parameter in objective.parameters())
    same = torch.cat([student["vectors"], student["log_var"]], -1).numpy()
    batch = objective.collate(share_of({"sentence": TEXTS, "teacher": same}, [(0,), (3,)], np.ones(2, np.float32)))
    assert float(objective(batch)[0].detach()) < 1e-7


def test_a_projection_to_concatenated_vectors_is_no_part_of_the_student() -> None:
    objective, _ = step(np.ones((4, 40), np.float32), target="concat", projection=40)
    assert objective.projection.weight.shape == (40, 16) and objective.projection.weight.grad is not None
    (kept,) = objective.candidates().values()
    assert kept.dim == 16 and not len(kept.heads)
    kept_by_mean, _ = step(np.ones((4, 40), np.float32), projection=40)
    assert next(iter(kept_by_mean.candidates().values())).dim == 40


def bank_of(texts: int, width: int = 16, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(texts, width)).astype(np.float32)


def test_the_bank_term_is_the_divergence_of_scores() -> None:
    """KL by scipy, in float64, of softmax(cosines / temperature), each text's own row left out of both. The temperature is half
    of the deviation of the cosines in the bank."""
    special = pytest.importorskip("scipy.special")
    objective = Distillation(DistillationSettings(loss="cosine", bank=0.5, bank_temperature=0.5), tiny_encoder())
    bank, teacher = bank_of(9), bank_of(4, seed=2)
    rows = np.array([2, 3, 5, 7, 11, 13, 17, 19, 23])
    objective.hold({"bank": bank, "bank_rows": rows}, torch.device("cpu"))
    share = share_of({"sentence": TEXTS, "teacher": teacher}, [(0,), (1,), (2,), (3,)], np.ones(4, np.float32))
    batch = objective.collate(share._replace(ids=np.array([3, 4, 23, 2])))  # three of them are in the bank
    loss, scalars = objective(batch)
    student = objective.encoder(batch["sentence"], batch["sentence_length"]).detach().double().numpy()
    unit = [vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (student, teacher, bank)]
    cosines = (unit[2].astype(np.float64) @ unit[2].T)[~np.eye(9, dtype=bool)]
    expected = []
    for row, of_student, of_teacher in zip([3, 4, 23, 2], unit[0], unit[1], strict=True):
        others = unit[2][rows != row].astype(np.float64)
        p, q = (special.softmax(others @ vector / (cosines.std() / 2)) for vector in (of_teacher, of_student))
        expected.append(special.rel_entr(p, q).sum())
    assert float(scalars["bank"]) == pytest.approx(np.mean(expected), rel=1e-4)
    cosine = 1 - (unit[0] * unit[1]).sum(1).mean()
    assert float(loss.detach()) == pytest.approx(cosine + 0.5 * np.mean(expected), rel=1e-4)
    loss.backward()
    assert "bank" not in "".join(objective.state_dict()), "a checkpoint does not hold the bank"


def test_a_student_that_is_its_teacher_has_no_loss_whatever_axes_the_teacher_has() -> None:
    objective = Distillation(DistillationSettings(loss="cosine", bank=1.0, matryoshka=(8,)), tiny_encoder())
    ids, lengths = TEXTS.pad(0)
    teacher = objective.encoder(ids, lengths).detach().numpy()
    turn = np.linalg.qr(bank_of(16))[0].astype(np.float32)
    share = share_of({"sentence": TEXTS, "teacher": teacher @ turn}, [(2,), (0,)], np.ones(2, np.float32))
    batch = objective.collate(share._replace(ids=np.arange(4)))
    held = {"bank": bank_of(9) @ turn, "bank_rows": np.arange(100, 109), "to_target": turn.T.copy()}
    objective.hold(held, torch.device("cpu"))
    assert float(objective(batch)[1]["bank"]) < 1e-6
    without_bank = Distillation(DistillationSettings(loss="cosine"), objective.encoder)
    without_bank.hold({"to_target": held["to_target"]}, torch.device("cpu"))
    assert float(without_bank(batch)[0].detach()) < 1e-5
    objective.hold(held | {"to_target": turn}, torch.device("cpu"))
    assert float(objective(batch)[1]["bank"]) > 0.1
    objective.hold(held | {"bank": bank_of(1).repeat(9, axis=0)}, torch.device("cpu"))
    assert float(objective(batch)[1]["bank"]) == pytest.approx(0, abs=1e-3), "texts that are all alike teach nothing"

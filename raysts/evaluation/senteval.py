"""SentEval's own probes, for numbers that are compared with published ones.

Conneau and Kiela 2018: tools/classifier.py, validation.py and relatedness.py of its code, at the settings of its examples.

A linear layer on features as they are, trained by Adam in batches of 64; after every 4 passes it is scored, the best is kept,
and the sixth score that is not better ends it. The L2 penalty (a part of the gradient, of the bias too) has the best accuracy on
the development rows, else over ten folds of the training rows, which also stop their own fits; then 5 % of the training
rows stop the last one. Of relatedness the layer's softmax is the distribution of the score over 1 to 5, by squared error.

Every fit starts from the same seed, as there: all penalties of a fit see the same batches and are fitted at once. What
differs: a batch's loss is the mean (its code asks for the sum in a way that PyTorch has not heeded since 0.4.1), accuracy is
that of all rows of a set instead of the mean of the folds' rounded ones, and a class of few rows makes fewer folds.

Shapes: N rows, D features and one that is 1, B rows of a batch, R penalties, C classes.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from raysts.evaluation import probes
from raysts.evaluation.probes import Probe, Rows, Split, cross_validate, one_thread_each
from raysts.evaluation.statistics import pearson

GRID = (1e-5, 1e-4, 1e-3, 1e-2)
FOLDS = 10
SEED = 1111
BATCH = 64
HELD_OUT = 0.05
RATE, BETAS, EPS = 1e-3, (0.9, 0.999), 1e-8
"""Adam as PyTorch has it."""
SCORES = np.arange(1, 6)
"""The numbers that a score is a distribution over; of one below 1 (STS-B) a part is lost, as there."""

Slope = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Logits [B, R, C] and the numbers of a batch's rows -> the derivative of the loss by the logits."""
Score = Callable[[np.ndarray], np.ndarray]
"""Logits of the development rows [N, R, C] -> the score of each penalty [R]."""


class Schedule(NamedTuple):
    """Length of training: passes between two scores, scores that may be no better, passes at most."""

    passes: int
    tenacity: int
    most: int


CLASSIFIED, RELATED = Schedule(4, 5, 200), Schedule(50, 3, 1000)


def folds(codes_N: np.ndarray, count: int) -> list[Split]:
    """Return folds as :func:`raysts.evaluation.probes.folds`, of SentEval's seed."""
    return probes.folds(codes_N, count, SEED)


def classify(features_ND: np.ndarray, codes_N: np.ndarray, splits: Sequence[Split]) -> list[Probe]:
    """Return by split the classes of its second rows, by a probe that is fitted on its first rows."""

    def scores(split: Split) -> np.ndarray:
        return _classifier(features_ND, codes_N, split, GRID, np.random.RandomState(SEED))[1]

    def final(split: Split, penalty: float) -> Probe:
        (fit, test), rng = split, np.random.RandomState(SEED)
        stopping, training = np.split(fit[rng.permutation(len(fit))], [max(1, int(HELD_OUT * len(fit)))])
        weights_RDC, _ = _classifier(features_ND, codes_N, (training, stopping), (penalty,), rng)
        return Probe((_append_one(features_ND[test]) @ weights_RDC[0]).argmax(axis=1), penalty)

    return cross_validate(codes_N, splits, FOLDS, SEED, GRID, scores, final)


def classify_by_dev(train: Rows, dev: Rows, asked_ND: np.ndarray) -> Probe:
    """Return the asked rows' classes, at the penalty with the best accuracy on development rows."""
    features_ND, codes_N = (np.concatenate(both_parts) for both_parts in zip(train, dev, strict=True))
    split = np.split(np.arange(len(codes_N)), [len(train[1])])
    with one_thread_each():
        rng = np.random.RandomState(SEED)
        weights_RDC, scores_R = _classifier(features_ND, codes_N, (split[0], split[1]), GRID, rng)
        best = int(np.round(100 * scores_R, 2).argmax())
        return Probe((_append_one(asked_ND) @ weights_RDC[best]).argmax(axis=1), GRID[best])


def regress_by_dev(train: Rows, dev: Rows, asked_ND: np.ndarray) -> Probe:
    """Return the asked rows' scores, after the passes with the best Pearson on development rows."""
    target_NC = np.clip(1 - np.abs(train[1][:, None] - SCORES), 0, None).astype(np.float32)

    def slope(logits_BRC: np.ndarray, rows_B: np.ndarray) -> np.ndarray:
        shares_BRC = _softmax(logits_BRC)
        by_share = 2 * (shares_BRC - target_NC[rows_B][:, None]) / (len(rows_B) * len(SCORES))
        return np.asarray(shares_BRC * (by_share - (by_share * shares_BRC).sum(axis=2, keepdims=True)))

    def score(logits_NRC: np.ndarray) -> np.ndarray:
        return np.array([pearson(expected, dev[1]) for expected in (_softmax(logits_NRC) @ SCORES).T])

    rng = np.random.RandomState(SEED)
    with one_thread_each():
        (weights_DC,), _ = _fit(train[0], dev[0], len(SCORES), (0.0,), RELATED, slope, score, rng)
        return Probe((_softmax(_append_one(asked_ND) @ weights_DC) @ SCORES).astype(np.float64), 0.0)


def _classifier(
    features_ND: np.ndarray, codes_N: np.ndarray, split: Split, penalties: Sequence[float], rng: np.random.RandomState
) -> tuple[np.ndarray, np.ndarray]:
    (fit, dev), classes = split, int(codes_N.max()) + 1
    right_NC = np.eye(classes, dtype=np.float32)[codes_N[fit]]

    def slope(logits_BRC: np.ndarray, rows_B: np.ndarray) -> np.ndarray:
        return np.asarray((_softmax(logits_BRC) - right_NC[rows_B][:, None]) / len(rows_B))

    def score(logits_NRC: np.ndarray) -> np.ndarray:
        return np.asarray((logits_NRC.argmax(axis=2) == codes_N[dev][:, None]).mean(axis=0))

    return _fit(features_ND[fit], features_ND[dev], classes, penalties, CLASSIFIED, slope, score, rng)


def _fit(
    train_ND: np.ndarray, dev_ND: np.ndarray, classes: int, penalties: Sequence[float], schedule: Schedule,
    slope: Slope, score: Score, rng: np.random.RandomState,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Return a layer by penalty: weights, the bias last, float32 [R, D, C], and their scores [R]."""
    train_ND, dev_ND = _append_one(train_ND), _append_one(dev_ND)
    shape = train_ND.shape[1], len(penalties), classes
    weights_DRC = np.repeat(_drawn(shape[0] - 1, classes)[:, None], shape[1], axis=1)
    penalties_R1 = np.array(penalties, np.float32)[:, None]
    mean_DRC, square_DRC = np.zeros_like(weights_DRC), np.zeros_like(weights_DRC)
    best_DRC, best_R = weights_DRC.copy(), np.full(shape[1], -1.0)
    going_R, worse_R = np.ones(shape[1], bool), np.zeros(shape[1], int)
    step = passes = 0

    def logits(features_ND: np.ndarray) -> np.ndarray:
        return np.asarray((features_ND @ weights_DRC.reshape(shape[0], -1)).reshape(-1, *shape[1:]))

    while going_R.any() and passes <= schedule.most:
        for _ in range(schedule.passes):
            order_N = rng.permutation(len(train_ND))
            for first in range(0, len(order_N), BATCH):
                rows_B = order_N[first : first + BATCH]
                batch_BD = train_ND[rows_B]
                slope_BRC = slope(logits(batch_BD), rows_B)
                slope_DRC = (batch_BD.T @ slope_BRC.reshape(len(rows_B), -1)).reshape(shape)
                slope_DRC += penalties_R1 * weights_DRC
                step += 1
                mean_DRC += (1 - BETAS[0]) * (slope_DRC - mean_DRC)
                square_DRC *= BETAS[1]
                square_DRC += (1 - BETAS[1]) * slope_DRC * slope_DRC
                root_DRC = np.sqrt(square_DRC) / math.sqrt(1 - BETAS[1] ** step) + EPS
                weights_DRC -= RATE / (1 - BETAS[0] ** step) * mean_DRC / root_DRC
        passes += schedule.passes
        found_R = score(logits(dev_ND))
        better_R = going_R & (found_R > best_R)
        best_R[better_R], best_DRC[:, better_R] = found_R[better_R], weights_DRC[:, better_R]
        no_better_R = going_R & ~better_R
        going_R &= ~(no_better_R & (worse_R >= schedule.tenacity))
        worse_R += no_better_R
    return best_DRC.transpose(1, 0, 2), best_R


def _drawn(features: int, classes: int) -> np.ndarray:
    """Return the weights of a new ``torch.nn.Linear``, its bias last [D, C]."""
    import torch

    generator = torch.Generator().manual_seed(SEED)
    bound = 1 / math.sqrt(features)
    weight_CD = torch.nn.init.kaiming_uniform_(torch.empty(classes, features), a=math.sqrt(5), generator=generator)
    bias_C = torch.empty(classes).uniform_(-bound, bound, generator=generator)
    return torch.cat([weight_CD, bias_C[:, None]], dim=1).T.numpy().copy()


def _append_one(features_ND: np.ndarray) -> np.ndarray:
    return np.concatenate([features_ND, np.ones((len(features_ND), 1))], axis=1, dtype=np.float32)


def _softmax(logits: np.ndarray) -> np.ndarray:
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))

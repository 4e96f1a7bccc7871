"""SentEval's probes against its own loop, written with ``torch.nn.Linear``, ``torch.optim.Adam`` and global seeds."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from evaluation_fakes import HashedWords
from sklearn.model_selection import StratifiedKFold
from torch.nn import functional
from transfer_fakes import write_sets

from raysts.commands.evaluate import evaluate
from raysts.errors import InputError
from raysts.evaluation import senteval
from raysts.evaluation.scores import result_rows
from raysts.evaluation.statistics import pearson
from raysts.evaluation.tasks import Task
from raysts.evaluation.transfer import TRANSFER_SETS

Tensors = tuple[torch.Tensor, torch.Tensor]


def trained(
    train: Tensors, dev: Tensors, classes: int, penalty: float, every: int, tenacity: int, most: int,
    loss: Callable[..., torch.Tensor], score: Callable[[torch.Tensor], float],
) -> tuple[Any, float]:  # fmt: skip
    """A layer from the random state as it is, and its best score."""
    model = torch.nn.Linear(train[0].shape[1], classes)
    optimiser = torch.optim.Adam(model.parameters(), weight_decay=penalty)
    highest, worse, best, passes = -1.0, 0, None, 0
    while passes <= most:
        for _ in range(every):
            order = np.random.permutation(len(train[0]))  # noqa: NPY002
            for first in range(0, len(order), 64):
                rows = order[first : first + 64]
                optimiser.zero_grad()
                loss(model(train[0][rows]), train[1][rows]).backward()
                optimiser.step()
        passes += every
        with torch.no_grad():
            found = score(model(dev[0]))
        if found > highest:
            highest, best = found, copy.deepcopy(model)
        elif worse >= tenacity:
            break
        else:
            worse += 1
    return best, highest


def seed() -> None:
    np.random.seed(1111)  # noqa: NPY002
    torch.manual_seed(1111)


def classifier(train: Tensors, dev: Tensors, penalty: float) -> tuple[Any, float]:
    def accuracy(logits: torch.Tensor) -> float:
        return float((logits.argmax(1) == dev[1]).double().mean())

    return trained(train, dev, 3, penalty, 4, 5, 200, functional.cross_entropy, accuracy)


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(0)
    codes = draws.integers(0, 3, 120)
    # Short vectors: of longer ones the early end leaves the penalty nothing to do.
    noisy = 2 * draws.normal(size=(120, 12)) + draws.normal(size=(3, 12))[codes]
    return (0.1 * noisy).astype(np.float32), codes


def part(rows: tuple[np.ndarray, np.ndarray], which: np.ndarray) -> Tensors:
    return torch.from_numpy(rows[0][which]), torch.from_numpy(rows[1][which])


def test_cross_validation(rows: tuple[np.ndarray, np.ndarray]) -> None:
    """One outer fold: ten inner folds choose the penalty, 5 % of the training rows stop the last fit."""
    features, codes = rows
    fit, asked = next(StratifiedKFold(10, shuffle=True, random_state=1111).split(features, codes))
    penalties, means = [10.0**power for power in range(-5, -1)], []
    for penalty in penalties:
        scores = []
        for inner, held_out in StratifiedKFold(10, shuffle=True, random_state=1111).split(features[fit], codes[fit]):
            seed()
            scores.append(classifier(part(rows, fit[inner]), part(rows, fit[held_out]), penalty)[1])
        means.append(round(100 * float(np.mean(scores)), 2))
    best = penalties[int(np.argmax(means))]
    seed()
    order, count = np.random.permutation(len(fit)), int(0.05 * len(fit))  # noqa: NPY002
    model, _ = classifier(part(rows, fit[order[count:]]), part(rows, fit[order[:count]]), best)
    (ours,) = senteval.classify(features, codes, senteval.folds(codes, 10)[:1])
    assert len(set(means)) > 1, "the penalty matters here"
    assert ours.strength == pytest.approx(best)
    assert (ours.predicted == model(torch.from_numpy(features[asked])).argmax(1).numpy()).all()


def test_development_rows(rows: tuple[np.ndarray, np.ndarray]) -> None:
    train, dev, asked = np.split(np.arange(120), [70, 95])
    found = []
    for penalty in senteval.GRID:
        seed()
        found.append(classifier(part(rows, train), part(rows, dev), penalty))
    best = int(np.argmax([round(100 * score, 2) for _, score in found]))
    ours = senteval.classify_by_dev((rows[0][train], rows[1][train]), (rows[0][dev], rows[1][dev]), rows[0][asked])
    assert ours.strength == senteval.GRID[best]
    assert (ours.predicted == found[best][0](torch.from_numpy(rows[0][asked])).argmax(1).numpy()).all()


def test_relatedness(rows: tuple[np.ndarray, np.ndarray]) -> None:
    """A softmax by squared error against the two numbers around each score; of 0.4 there is 0.4 of the 1 and nothing else."""
    features, draws = rows[0], np.random.default_rng(1)
    scores = np.clip(2.5 + 5 * features[:, 0] + 3 * features[:, 1] + draws.normal(0, 0.3, 120), 0, 5)
    target = np.zeros((120, 5), np.float32)
    for row, score in enumerate(scores):
        for number in (int(np.floor(score)), int(np.floor(score)) + 1):
            if 1 <= number <= 5:
                target[row, number - 1] = 1 - abs(score - number)
    train, dev, asked = np.split(np.arange(120), [70, 95])
    numbers = torch.arange(1, 6).float()

    def loss(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(logits.softmax(1), wanted)

    def score(logits: torch.Tensor) -> float:
        return pearson((logits.softmax(1) @ numbers).double().numpy(), scores[dev])

    seed()
    known = features, target
    model, _ = trained(part(known, train), part(known, dev), 5, 0.0, 50, 3, 1000, loss, score)
    ours = senteval.regress_by_dev((features[train], scores[train]), (features[dev], scores[dev]), features[asked])
    with torch.no_grad():
        expected = model(torch.from_numpy(features[asked])).softmax(1) @ numbers
    assert ours.predicted == pytest.approx(expected.numpy(), abs=2e-3) and np.ptp(ours.predicted) > 1


def test_a_set_is_measured_by_either_probe(tmp_path: Path) -> None:
    task = Task("transfer", tuple(each for each in TRANSFER_SETS if each.name in ("sst2", "stsb-relatedness")))
    sets = [replace(each, probe="senteval") for each in task.sets(write_sets(tmp_path))]
    rows = [row for each in sets for of in each.row_scores(HashedWords().represent, {}) for row in result_rows(of, 0)]
    assert {row["dataset"] for row in rows} == {"sst2", "stsb-relatedness"}
    assert all(row["value"] > 0.5 and row["similarity"] == "senteval" for row in rows)


def test_what_is_refused(small_world: Path) -> None:
    with pytest.raises(InputError, match=r"--probe 'sentevl' \(did you mean 'senteval'\?\): must be one of standard, "):
        evaluate("nowhere", data=small_world, probe="sentevl")
    with pytest.raises(InputError, match="--probe is of transfer, and what is measured is stsb"):
        evaluate("nowhere", data=small_world, probe="senteval", tasks=["stsb"])


@pytest.mark.filterwarnings("error")
def test_a_row_of_few_stops_the_last_fit() -> None:
    codes = np.arange(212) % 2
    features = (np.random.default_rng(0).normal(size=(212, 8)) + 6 * codes[:, None]).astype(np.float32)
    rows = np.split(np.arange(212), [12])
    (probe,) = senteval.classify(features, codes, [(rows[0], rows[1])])
    assert (probe.predicted == codes[12:]).mean() > 0.6

"""Cost of smaller vectors on a development set: the first dimensions alone, or numbers of fewer bits.

Shapes: N texts, D dimensions, E dimensions that are kept.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from raysts.data.corpora import Corpus
from raysts.errors import InputError
from raysts.evaluation.dev import Dev, load_dev
from raysts.evaluation.tasks import lookup
from raysts.models.head import similarities_of
from raysts.models.sentence_model import SentenceModel, quantize
from raysts.ops.similarity import cosine_of_vectors

Dtype = Literal["float32", "int8", "binary"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
"""Types of stored vectors by sentence-transformers' names: ``binary`` keeps the signs, eight to a byte."""

DEV = "sts/stsb_dev"
MOST_CALIBRATION = 10_000
"""Texts from whose vectors the ranges of ``int8`` are taken, at most."""


def check(model: SentenceModel, dims: int | None, dtype: str) -> None:
    """Raise InputError unless a model's vectors can be stored so."""
    problems = []
    if dtype not in DTYPES:
        problems.append(f"--dtype '{dtype}' must be one of {', '.join(DTYPES)}")
    if dims is not None and not 1 <= dims <= model.dim:
        problems.append(f"--dims {dims}: the model's vectors have {model.dim} dimensions; give a number from 1 to that")
    elif dims is not None and len(similarities_of(model.encoder.heads, "cosine")) > 1:
        compares = f"compares texts by '{next(iter(model.similarities))}', which needs all {model.dim}"
        problems.append(f"--dims {dims}: the model {compares}; leave --dims out")
    if problems:
        raise InputError(problems)


def ranges_of(vectors_ND: np.ndarray) -> np.ndarray:
    """Return the range of each dimension, float32 [2, D], which ``int8`` divides into 255 steps."""
    return np.stack([vectors_ND.min(0), vectors_ND.max(0)])


@dataclass(frozen=True, slots=True)
class Cost:
    """Scores on a development set of a model's vectors and of the stored ones, not times 100."""

    on: str
    before: float
    after: float
    score: str = "rank correlation"

    @property
    def text(self) -> str:
        return (
            f"on {self.on} the {self.score} is {100 * self.after:.2f} instead of {100 * self.before:.2f} "
            f"({100 * (self.after - self.before):+z.2f}, x100)"
        )

    def as_plain(self) -> dict[str, Any]:
        return {"on": self.on, "before": self.before, "after": self.after}


def judge(corpus: Corpus) -> Dev | None:
    """Return the checked development set of scored pairs of a corpus, or None."""
    if not corpus.files(DEV):
        return None
    corpus.check([DEV])
    return load_dev(corpus, DEV)


def cost(model: SentenceModel, before: int | None, dev: Dev, dtype: Dtype, ranges: np.ndarray | None = None) -> Cost:
    """Return the cost on a development set of vectors that are stored as ``dtype``.

    ``before``: the model's ``truncate_dim`` of the whole vectors. ``ranges``: of ``int8``; default: those of the set's texts.
    """
    texts, metric = dev.texts, dev.metrics[0]

    def score(vectors_ND: np.ndarray) -> float:
        represent = lookup(texts, {"vectors": vectors_ND.astype(np.float64)})
        return dev.values(dev.row_scores(represent, {"cosine": cosine_of_vectors}))[metric]

    stored_NE, before_ND = model.encode(texts), replace(model, truncate_dim=before).encode(texts)
    if dtype == "binary":
        stored_NE = np.where(stored_NE > 0, 1.0, -1.0)
    elif dtype == "int8":
        stored_NE = quantize(stored_NE, dtype, ranges)
    called = {} if metric == "spearman" else {"score": metric}
    return Cost(dev.name, score(before_ND), score(stored_NE), **called)

"""Cost of smaller vectors on a development set: the first dimensions alone, or numbers of fewer bits.

Shapes: N texts, D dimensions, E dimensions that are kept.
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from raysts.data.corpora import Corpus
from raysts.errors import InputError
from raysts.evaluation.dev import Dev, load_dev
from raysts.models.prompts import Text
from raysts.models.sentence_model import SentenceModel, quantize
from raysts.ops.similarity import cosine_of_vectors

Dtype = Literal["float32", "int8", "binary"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
"""Types of stored vectors by sentence-transformers' names: ``binary`` keeps the signs, eight to a byte."""

DEV = "sts/stsb_dev"
MOST_CALIBRATION = 10_000
"""Texts from whose vectors the ranges of ``int8`` are taken, at most."""


def check(model: SentenceModel, dims: int | None, dtype: str) -> None:
    """Check that a model's vectors can be stored so.

    Raises:
        InputError: it has fewer dimensions, there is no such type, or it compares more than vectors.
    """
    problems = []
    if dtype not in DTYPES:
        problems.append(f"--dtype '{dtype}' must be one of {', '.join(DTYPES)}")
    if dims is not None and not 1 <= dims <= model.dim:
        problems.append(f"--dims {dims}: the model's vectors have {model.dim} dimensions; give a number from 1 to that")
    elif dims is not None and len(model.similarities) > 1:
        own = next(iter(model.similarities))
        problems.append(
            f"--dims {dims}: the model compares texts by '{own}', which needs all {model.dim}; leave --dims out"
        )
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
            f"({100 * (self.after - self.before):+.2f}, x100)"
        )

    def as_plain(self) -> dict[str, Any]:
        return {"on": self.on, "before": self.before, "after": self.after}


@dataclass(frozen=True, slots=True)
class _Stored:
    """Vectors of a model as they are stored, compared by cosine, signs as -1 and 1."""

    model: SentenceModel
    dtype: Dtype
    ranges: np.ndarray | None

    similarities = {"cosine": cosine_of_vectors}

    @property
    def pooling(self) -> str:
        return self.model.pooling

    @property
    def layers(self) -> Any:
        return self.model.layers

    def represent(self, texts: list[Text]) -> dict[str, np.ndarray]:
        vectors_NE = self.model.encode(texts)
        if self.dtype == "binary":
            return {"vectors": np.where(vectors_NE > 0, 1.0, -1.0)}
        return {"vectors": quantize(vectors_NE, self.dtype, self.ranges).astype(np.float64)}


def judge(corpus: Corpus) -> Dev | None:
    """Return the checked development set of scored pairs of a corpus, or None."""
    if not corpus.files(DEV):
        return None
    corpus.check([DEV])
    return load_dev(corpus, DEV)


def cost(model: SentenceModel, whole: int | None, dev: Dev, dtype: Dtype, ranges: np.ndarray | None = None) -> Cost:
    """Return the cost on a development set of vectors that are stored as ``dtype``.

    ``whole``: the model's ``truncate_dim`` before. ``ranges``: of ``int8``; default: those of the set's texts.
    """
    metric = dev.metrics[0]
    after = dev.scores(_Stored(model, dtype, ranges))[metric]
    kept, model.truncate_dim = model.truncate_dim, whole
    before = dev.scores(_Stored(model, "float32", None))[metric]
    model.truncate_dim = kept
    return Cost(dev.name, before, after, *([] if metric == "spearman" else [metric]))

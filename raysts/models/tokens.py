"""Token ids of many texts in one flat array, and training batches of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


class Tokens(NamedTuple):
    """Token ids of N texts, special tokens included.

    ``flat`` [sum of lengths] int32; text i is ``flat[offsets[i]:offsets[i + 1]]``; ``offsets`` [N + 1] int64.
    """

    flat: np.ndarray
    offsets: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Tokens per text, [N]."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: Sequence[int] | np.ndarray) -> Tokens:
        rows = np.asarray(rows, dtype=np.int64)
        lengths = self.lengths[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        positions = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], lengths)
        return Tokens(self.flat[positions], offsets)

    def batches(self, budget: int, size: int | None = None) -> Iterator[np.ndarray]:
        """Yield rows of texts of similar length, the longest first.

        They have at most ``budget`` tokens when padded, or are one row. With a ``size`` they are so many.
        """
        lengths, first = self.lengths, 0
        order = np.argsort(-lengths, kind="stable")
        while first < len(order):
            rows = order[first : first + (size or max(1, budget // max(1, int(lengths[order[first]]))))]
            yield rows
            first += len(rows)

    def digests(self) -> np.ndarray:
        """Return a number for each text's ids, [N] int64: equal ids, equal numbers in every process."""
        texts = (self.flat[first:last].tobytes() for first, last in itertools.pairwise(self.offsets))
        return np.array([int.from_bytes(blake2b(ids, digest_size=8).digest(), "big") >> 1 for ids in texts], np.int64)

    def pad(self, pad_id: int) -> tuple[Tensor, Tensor]:
        """Return (ids [N, longest] int64 padded on the right with ``pad_id``, lengths [N] int64)."""
        import torch  # not above: processes that only read token shards start in half the time without torch

        lengths = self.lengths
        ids = np.full((len(self), int(lengths.max(initial=1))), pad_id, dtype=np.int64)
        ids[np.arange(ids.shape[1]) < lengths[:, None]] = self.flat[self.offsets[0] : self.offsets[-1]]
        return torch.from_numpy(ids), torch.from_numpy(lengths.astype(np.int64))


class LocalBatch(NamedTuple):
    """Part of a global batch that one process trains on."""

    rows: Mapping[str, Any]
    """Columns of a training table: ``Tokens`` for text, otherwise an array with the row as first axis."""
    examples: list[tuple[int, ...]]
    """Per example, positions in ``rows``."""
    weight: np.ndarray
    """[examples] float32: 1 for an example, 0 for the filler of a process that has none."""
    seeds: np.ndarray
    """[examples] int64: seed of each example's noise, a function of (run seed, step, place in the global batch)."""
    ids: np.ndarray
    """Row ids (``row`` of the token store) in the order of ``rows``."""
    size: int
    """Examples in the global batch."""
    progress: float = 0.0
    """Completed share of the run, 0 to 1."""


def lowers(backend: Any, also: bool = False) -> bool:
    """Return True if the rules of a fast tokenizer's ``backend`` convert text to lower case.

    ``also``: add the rule if it is missing, as sentence-transformers does for ``do_lower_case``.
    """
    from tokenizers import normalizers

    normalizer: Any = backend.normalizer
    parts: list[Any] = [normalizer] if normalizer else []
    if isinstance(normalizer, normalizers.Sequence):
        parts = [*normalizer]  # type: ignore[misc]
    if also and not any(getattr(part, "lowercase", isinstance(part, normalizers.Lowercase)) for part in parts):
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *parts])
        return True
    return any(isinstance(part, normalizers.Lowercase) for part in parts)


def tokenize(tokenizer: Any, texts: Sequence[str | None], max_length: int, prompt: str = "") -> Tokens:
    """Return token ids of ``texts`` behind ``prompt``, at most ``max_length`` of each. None has no tokens."""
    return tokenize_counted(tokenizer, texts, max_length, prompt)[0]


def tokenize_counted(
    tokenizer: Any, texts: Sequence[str | None], max_length: int, prompt: str = ""
) -> tuple[Tokens, int]:
    """Return the result of :func:`tokenize` and the number of truncated texts."""
    prompted = [prompt + text for text in texts if text is not None]
    if not prompted:
        return Tokens(np.zeros(0, np.int32), np.zeros(len(texts) + 1, np.int64)), 0
    options = {"add_special_tokens": True, "return_attention_mask": False, "return_token_type_ids": False}
    encoded = tokenizer(prompted, truncation=True, max_length=max_length, **options)
    ids = encoded["input_ids"]
    full = [number for number, row in enumerate(ids) if len(row) == max_length]
    if encodings := getattr(encoded, "encodings", None):
        cut = sum(bool(encodings[number].overflowing) for number in full)
    else:  # a tokenizer in Python does not report truncation: tokenize with one more token
        again = [prompted[number] for number in full]
        longer = tokenizer(again, truncation=True, max_length=max_length + 1, **options)["input_ids"] if full else []
        cut = sum(len(row) > max_length for row in longer)
    lengths = np.zeros(len(texts), np.int64)
    lengths[[text is not None for text in texts]] = [len(row) for row in ids]
    flat = np.fromiter(itertools.chain.from_iterable(ids), np.int32, int(lengths.sum()))
    return Tokens(flat, np.concatenate([[0], np.cumsum(lengths)])), cut

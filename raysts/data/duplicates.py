"""Rows that say nearly what an earlier row says: MinHash signatures, compared where locality-sensitive hashing points.

Two texts are near duplicates when, of all runs of five bytes that either has (case and punctuation aside), they share at least
``ALIKE``: estimated from 64 minima of random hashes (Broder 1997, "On the resemblance and containment of documents"), whose
standard error there is 0.05. Only texts that agree in one of 16 bands of four minima are compared: of pairs that share 80 %
one in 5,000 is missed. Memory is some 300 bytes a row, whatever its length.
"""

import re
import unicodedata
from collections.abc import Iterator
from itertools import islice

import numpy as np

ALIKE = 0.8
HASHES = 64
BANDS = 16
_AT_ONCE = 1_000
_RUN = 5
_NO_WORD = re.compile(r"[\W_]+")
_VARIATIONS = frozenset(map(chr, range(0xFE00, 0xFE10)))  # how an emoji is drawn


def words_alone(text: str) -> str:
    """A text whose runs of punctuation and white space are one blank. Letters keep their marks, which are the vowels of many
    scripts (Devanagari, Thai, ...)."""
    if text.isascii():
        return _NO_WORD.sub(" ", text).strip()
    return " ".join(_NO_WORD.sub(_marks, text).split())


def _marks(run: re.Match[str]) -> str:
    return "".join(
        mark if unicodedata.category(mark) in ("Mn", "Mc") and mark not in _VARIATIONS else " " for mark in run[0]
    )


def near_duplicates(texts: Iterator[str]) -> np.ndarray:
    """Which texts [N] bool are near duplicates of an earlier one."""
    parts = []
    while some := list(islice(texts, _AT_ONCE)):
        parts.append(_signatures(some))
    if not parts:
        return np.zeros(0, bool)
    minima_NH = np.concatenate(parts)
    repeats_N = np.zeros(len(minima_NH), bool)
    for band_NR in np.split(minima_NH, BANDS, axis=1):
        key_N = np.ascontiguousarray(band_NR).view(np.dtype((np.void, band_NR.itemsize * band_NR.shape[1])))[:, 0]
        _, first, group_N = np.unique(key_N, return_index=True, return_inverse=True)
        earlier_N = first[group_N]
        rows = np.flatnonzero(earlier_N < np.arange(len(earlier_N)))
        for part in np.array_split(rows, max(1, len(rows) // 100_000)):
            repeats_N[part] |= (minima_NH[part] == minima_NH[earlier_N[part]]).mean(1) >= ALIKE
    return repeats_N


def _signatures(texts: list[str]) -> np.ndarray:
    """Minima [N, HASHES] uint32 of the hashes of each text's runs of bytes."""
    runs = [_runs(text) for text in texts]
    begins = np.cumsum([0, *map(len, runs[:-1])])
    run_S = _mixed(np.concatenate(runs))
    draw = np.random.default_rng(0)
    factors = draw.integers(0, 2**63, HASHES, np.uint64) * np.uint64(2) + np.uint64(1)
    minima = [np.minimum.reduceat((run_S * factor) >> np.uint64(32), begins) for factor in factors]
    return np.stack(minima, axis=1).astype(np.uint32)


def _runs(text: str) -> np.ndarray:
    """Each run of five bytes as one number; a shorter text is filled up."""
    plain = words_alone(text.casefold()).encode("utf-8", "surrogatepass").ljust(_RUN)
    byte_S = np.frombuffer(plain, np.uint8).astype(np.uint64)
    count = len(byte_S) - _RUN + 1
    return sum((byte_S[i : i + count] << np.uint64(8 * i) for i in range(_RUN)), np.zeros(count, np.uint64))


def _mixed(values: np.ndarray) -> np.ndarray:
    """Every bit of a number in every other one (the end of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))

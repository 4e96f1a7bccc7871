"""The vector of a word of a contextual model: the first principal component of its contextual vectors.

Shapes: O occurrences, L choices of layers, H hidden dimensions, W words, B sentences, T tokens, P word pieces, N of a side.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from raysts.models.layers import Layers
from raysts.models.sentence_model import TOKEN_BUDGET, SentenceModel
from raysts.models.tokens import Tokens
from raysts.ops.ensemble import unit

WORD = re.compile(r"\w+(?:['’-]\w+)*")
"""Words of a sentence, independent of a model's pieces: ``dog``, ``dog's``, ``brand-new``."""

NO_WORD = -1
"""A piece that no word holds."""

MEMORY = 2**30
"""Bytes of contextual vectors that are kept at once."""


class Occurrences(NamedTuple):
    """Places of words, sorted by word: sentence, first piece and end of the pieces among its tokens, [O]."""

    word: np.ndarray
    sentence: np.ndarray
    first: np.ndarray
    end: np.ndarray

    def take(self, rows: np.ndarray | slice) -> Occurrences:
        return Occurrences(*(column[rows] for column in self))


def find_words(model: SentenceModel, sentences: Sequence[str]) -> tuple[Tokens, dict[str, int], Occurrences]:
    """Return the tokens of the sentences, the row of each word in lower case, and its occurrences.

    A piece belongs to the word that its last character lies in. Truncated words have no occurrence.
    """
    read = model.tokenizer(
        list(sentences), truncation=True, max_length=model.max_length, return_offsets_mapping=True,
        return_attention_mask=False, return_token_type_ids=False,
    )  # fmt: skip
    index: dict[str, int] = {}
    places: list[tuple[int, int, int, int]] = []
    for number, (text, pieces) in enumerate(zip(sentences, read["offset_mapping"], strict=True)):
        spans = [(match.start(), match.end()) for match in WORD.finditer(text)]
        starts, before = [start for start, _ in spans], NO_WORD
        for place, (start, end) in enumerate(pieces):
            nearest = bisect_right(starts, end - 1) - 1 if end > start else NO_WORD
            if nearest == NO_WORD or end > spans[nearest][1]:
                continue
            if nearest == before:  # the next piece of the same word
                places[-1] = (*places[-1][:3], place + 1)
                continue
            word = text[slice(*spans[nearest])].lower()
            places.append((index.setdefault(word, len(index)), number, place, place + 1))
            before = nearest
    lengths = np.fromiter(map(len, read["input_ids"]), np.int64, len(sentences))
    flat = np.fromiter((token for row in read["input_ids"] for token in row), np.int32, int(lengths.sum()))
    columns = np.array(places, dtype=np.int64).reshape(-1, 4)
    columns = columns[np.argsort(columns[:, 0], kind="stable")]
    return Tokens(flat, np.concatenate([[0], np.cumsum(lengths)])), index, Occurrences(*columns.T)


def contextual_words(
    model: SentenceModel, sentences: Sequence[str], layers: Sequence[Layers], memory: int = MEMORY
) -> tuple[dict[str, int], np.ndarray]:
    """Return the row of each word, and the words' first principal components [L, V, H].

    Latte-Mix, section 4.3, A.7. The vector of an occurrence is the mean of its word pieces'. A pass over the sentences takes
    as many layers, and then words, as fit into ``memory`` bytes, at least one of each.
    """
    tokens, index, occurrences = find_words(model, sentences)
    counts_V = np.bincount(occurrences.word, minlength=len(index))
    starts_V = np.cumsum(counts_V) - counts_V
    room = memory // (4 * model.encoder.width)  # contextual vectors
    layers_per_pass = min(len(layers), max(1, room // int(counts_V.max(initial=1))))
    components_LVH = np.zeros((len(layers), len(index), model.encoder.width), np.float32)
    for first, words in itertools.product(
        range(0, len(layers), layers_per_pass), _ranges(counts_V, room // layers_per_pass)
    ):
        begin, end = starts_V[words.start], starts_V[words.start] + counts_V[words].sum()
        part = occurrences.take(slice(begin, end))
        rows_LOH = _vectors(model, tokens, part, layers[first : first + layers_per_pass])
        for count in np.unique(counts_V[words]):
            chosen_W = words.start + np.flatnonzero(counts_V[words] == count)
            places_WO = (starts_V[chosen_W] - begin)[:, None] + np.arange(count)
            for layer, rows_OH in enumerate(rows_LOH, first):
                components_LVH[layer, chosen_W] = principal(rows_OH[places_WO])
    return index, components_LVH


def _ranges(counts_V: np.ndarray, most: int) -> list[slice]:
    """Return ranges of words that have ``most`` occurrences together, or are one word."""
    ends_V, ranges, start = np.cumsum(counts_V), list[slice](), 0
    while start < len(counts_V):
        limit = ends_V[start] - counts_V[start] + most
        end = max(start + 1, int(np.searchsorted(ends_V, limit, side="right")))
        ranges.append(slice(start, end))
        start = end
    return ranges


def principal(rows_WOH: np.ndarray) -> np.ndarray:
    """Return the first right singular vector of each matrix of [W, O, H] -> [W, H], signed."""
    rows_WOH = rows_WOH.astype(np.float64)
    rows_WHO = rows_WOH.transpose(0, 2, 1)
    if rows_WOH.shape[1] > rows_WOH.shape[2]:
        vectors_WH = np.linalg.eigh(rows_WHO @ rows_WOH)[1][..., -1]
    else:  # the smaller side: X'u is along the right singular vector where u is the left one
        left_WO = np.linalg.eigh(rows_WOH @ rows_WHO)[1][..., -1]
        vectors_WH = unit(np.einsum("wo,woh->wh", left_WO, rows_WOH))
    against_W = np.einsum("wh,wh->w", vectors_WH, rows_WOH.sum(axis=1)) < 0
    return np.where(against_W[:, None], -vectors_WH, vectors_WH)


def _vectors(model: SentenceModel, tokens: Tokens, part: Occurrences, layers: Sequence[Layers]) -> np.ndarray:
    """Return the contextual vectors of the occurrences [L, O, H] float32."""
    encoder = model.encoder
    device = next(encoder.parameters()).device
    vectors_LOH = np.empty((len(layers), len(part.word), encoder.width), np.float32)
    by_sentence = np.argsort(part.sentence, kind="stable")
    numbers, counts = np.unique(part.sentence, return_counts=True)
    begins = np.cumsum(counts) - counts
    tokens = tokens.take(numbers)
    with torch.inference_mode():
        for batch in tokens.batches(TOKEN_BUDGET.get(device.type, TOKEN_BUDGET["cuda"])):
            ids, sizes = tokens.take(batch).pad(encoder.pad_id)
            rows = np.concatenate([by_sentence[begins[i] : begins[i] + counts[i]] for i in batch])
            texts = np.repeat(np.arange(len(batch)), counts[batch])
            layers_BTH = encoder.token_layers(ids.to(device), sizes.to(device), layers)
            for layer, tokens_BTH in enumerate(layers_BTH):
                vectors_LOH[layer, rows] = _mean_of_pieces(tokens_BTH, texts, part.first[rows], part.end[rows])
    return vectors_LOH


def _mean_of_pieces(tokens_BTH: Tensor, text: np.ndarray, first: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return the means of the tokens first to end of each occurrence's text [O, H]."""
    sizes = end - first
    owner_P = np.repeat(np.arange(len(sizes)), sizes)
    place_P = np.arange(len(owner_P)) - np.repeat(np.cumsum(sizes) - sizes, sizes) + first[owner_P]
    index = [torch.from_numpy(values).to(tokens_BTH.device) for values in (text[owner_P], place_P, owner_P)]
    sums_OH = tokens_BTH.new_zeros((len(sizes), tokens_BTH.shape[-1]))
    sums_OH.index_add_(0, index[2], tokens_BTH[index[0], index[1]])
    return sums_OH.cpu().numpy() / sizes[:, None].astype(np.float32)

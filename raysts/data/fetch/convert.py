"""From the columns of public data sets to canonical ones: one converter per shape of source, applied batch by batch."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from raysts.data.derived import label_codes
from raysts.schema import NLI_LABELS


def convert_sts(rows: pa.Table, name: str | None = None) -> pa.Table:
    """sentence1, sentence2, score (0 to 5); the ``genre`` and ``dataset`` of STS-B become ``subset``."""
    columns = {
        "sentence1": _text(rows, "sentence1"),
        "sentence2": _text(rows, "sentence2"),
        "score": _number(rows, "score"),
    }
    if {"genre", "dataset"} <= set(rows.column_names):
        genre, dataset = _text(rows, "genre"), _text(rows, "dataset")
        columns["subset"] = pc.binary_join_element_wise(genre, dataset, "/")
    return _complete(columns)


def convert_sick(rows: pa.Table, name: str | None = None) -> pa.Table:
    """sentence_A, sentence_B, relatedness_score (1 to 5), label; entailment_AB and entailment_BA as they are given."""
    return _complete(
        {
            "sentence1": _text(rows, "sentence_A"),
            "sentence2": _text(rows, "sentence_B"),
            "score": _number(rows, "relatedness_score"),
            "label": _nli_label(rows, "label"),
            "entailment_ab": _text(rows, "entailment_AB"),
            "entailment_ba": _text(rows, "entailment_BA"),
        }
    )


def convert_nli(rows: pa.Table, name: str | None) -> pa.Table:
    """premise, hypothesis, label and ``source`` = ``name``; rows without a gold label (-1) are left out."""
    columns = {
        "premise": _text(rows, "premise"),
        "hypothesis": _text(rows, "hypothesis"),
        "label": _nli_label(rows, "label"),
    }
    return _complete({**columns, "source": pa.array([name] * rows.num_rows, pa.string())})


def convert_articles(rows: pa.Table, name: str | None = None) -> pa.Table:
    """id, title, text; the paragraphs of ``text`` keep their lines."""
    return _complete(
        {
            "article_id": pc.cast(_column(rows, "id"), pa.int64()),
            "title": _text(rows, "title"),
            "text": pa.array([_normal(text, lines=True) for text in _column(rows, "text").to_pylist()], pa.string()),
        }
    )


def convert_text(rows: pa.Table, name: str | None = None) -> pa.Table:
    """text (or sentence) and label: its name where the source has one, else its number."""
    text = _text(rows, "text" if "text" in rows.column_names else "sentence")
    label = _class(rows, "label_text" if "label_text" in rows.column_names else "label")
    return _complete({"text": text, "label": label})


def convert_trec(rows: pa.Table, name: str | None = None) -> pa.Table:
    """text, and the coarse one of TREC's two labels (six classes)."""
    return _complete({"text": _text(rows, "text"), "label": _class(rows, "coarse_label")})


def convert_paraphrase(rows: pa.Table, name: str | None = None) -> pa.Table:
    """sentence1, sentence2, label."""
    sentences = {column: _text(rows, column) for column in ("sentence1", "sentence2")}
    return _complete({**sentences, "label": _class(rows, "label")})


def convert_word_similarity(rows: pa.Table, name: str | None) -> pa.Table:
    """``dataset`` = ``name``, word1, word2, score as it is (each data set has its own scale)."""
    words = {column: _text(rows, column) for column in ("word1", "word2")}
    return _named(name, {**words, "score": _number(rows, "score")})


def convert_word_analogy(rows: pa.Table, name: str | None) -> pa.Table:
    """``dataset`` = ``name``, category, a, b, c, d: a is to b as c is to d."""
    given = {"category": "type", "a": "word1", "b": "word2", "c": "word3", "d": "target"}
    return _named(name, {column: _text(rows, old) for column, old in given.items()})


def convert_word_categorization(rows: pa.Table, name: str | None) -> pa.Table:
    """``dataset`` = ``name``, category, word."""
    return _named(name, {column: _text(rows, column) for column in ("category", "word")})


CONVERTERS: dict[str, Callable[[pa.Table, str | None], pa.Table]] = {
    "sts": convert_sts,
    "sick": convert_sick,
    "nli": convert_nli,
    "articles": convert_articles,
    "text": convert_text,
    "trec": convert_trec,
    "paraphrase": convert_paraphrase,
    "word_similarity": convert_word_similarity,
    "word_analogy": convert_word_analogy,
    "word_categorization": convert_word_categorization,
}
"""By shape of source."""


def _column(rows: pa.Table, column: str) -> pa.ChunkedArray:
    if column not in rows.column_names:
        raise KeyError(f"column '{column}' is missing (columns found: {', '.join(rows.column_names)})")
    return rows.column(column)


def _text(rows: pa.Table, column: str) -> pa.Array:
    return pa.array([_normal(text) for text in _column(rows, column).to_pylist()], pa.string())


def _normal(text: str | None, lines: bool = False) -> str | None:
    """NFC with runs of white space collapsed; None where nothing is left."""
    if text is None:
        return None
    text = unicodedata.normalize("NFC", text)
    if not lines:
        return " ".join(text.split()) or None
    return "\n".join(filter(None, (" ".join(line.split()) for line in text.splitlines()))) or None


def _number(rows: pa.Table, column: str) -> pa.Array:
    """float64 without the noise of scores stored as float32 (3.29999995 is 3.3)."""
    values = pc.cast(_column(rows, column), pa.float64()).combine_chunks()
    return pc.round(values, 4)


def _nli_label(rows: pa.Table, column: str) -> pa.Array:
    """Label names in lower case; integers (as in copies without class names) by the order of NLI_LABELS; else null."""
    codes = label_codes(_column(rows, column), NLI_LABELS).tolist()
    return pa.array([NLI_LABELS[code] if code >= 0 else None for code in codes], pa.string())


def _class(rows: pa.Table, column: str) -> pa.Array:
    """Names of classes; numbers as text; null where there is no label (-1)."""
    labels = _column(rows, column).to_pylist()
    return pa.array([None if label in (None, -1) else str(label) for label in labels], pa.string())


def _named(name: str | None, columns: dict[str, pa.Array]) -> pa.Table:
    length = len(next(iter(columns.values())))
    return _complete({"dataset": pa.array([name] * length, pa.string()), **columns})


def _complete(columns: dict[str, pa.Array]) -> pa.Table:
    """The rows that have a value in every column."""
    return pa.table(columns).drop_null()

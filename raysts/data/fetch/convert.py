"""From the columns of public data sets to canonical ones: per shape of source which is which, applied batch by batch."""

import unicodedata
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raysts.data.derive import label_codes
from raysts.schema import NLI_LABELS


def convert(rows: pa.Table, shape: str, name: str | None = None) -> pa.Table:
    """The rows of a source that have a value in every canonical column. ``name``: what the source is called in a table of
    several.

    Raises:
        KeyError: a column is missing.
    """
    columns = {
        ours: pa.array([name] * rows.num_rows, pa.string()) if found is None else found[0](_column(rows, *found[1:]))
        for ours, found in SHAPES[shape].items()
    }
    if shape == "sts" and {"genre", "dataset"} <= set(rows.column_names):
        genre, dataset = _text(rows.column("genre")), _text(rows.column("dataset"))
        columns["subset"] = pc.binary_join_element_wise(genre, dataset, "/")
    return pa.table(columns).drop_null()


def _column(rows: pa.Table, *names: str) -> pa.ChunkedArray:
    found = next((name for name in names if name in rows.column_names), None)
    if found is None:
        raise KeyError(f"column '{names[-1]}' is missing (columns found: {', '.join(rows.column_names)})")
    return rows.column(found)


def _text(values: pa.ChunkedArray) -> pa.Array:
    """NFC with runs of white space collapsed; null where nothing is left."""
    return pa.array([" ".join(_normal(text).split()) or None for text in values.to_pylist()], pa.string())


def _paragraphs(values: pa.ChunkedArray) -> pa.Array:
    texts = ([" ".join(line.split()) for line in _normal(text).splitlines()] for text in values.to_pylist())
    return pa.array(["\n".join(filter(None, lines)) or None for lines in texts], pa.string())


def _normal(text: str | None) -> str:
    return unicodedata.normalize("NFC", text or "")


def _whole(values: pa.ChunkedArray) -> pa.Array:
    return pc.cast(values, pa.int64())


def _number(values: pa.ChunkedArray) -> pa.Array:
    """float64 without the noise of scores stored as float32 (3.29999995 is 3.3)."""
    return pc.round(pc.cast(values, pa.float64()).combine_chunks(), 4)


def _nli_label(values: pa.ChunkedArray) -> pa.Array:
    """Label names in lower case; integers (as in copies without class names) by the order of NLI_LABELS; else null."""
    codes = label_codes(values, NLI_LABELS).tolist()
    return pa.array([NLI_LABELS[code] if code >= 0 else None for code in codes], pa.string())


def _class(values: pa.ChunkedArray) -> pa.Array:
    """Names of classes; numbers as text; null where there is no label (-1)."""
    return pa.array([None if label in (None, -1) else str(label) for label in values.to_pylist()], pa.string())


_PAIR = {"sentence1": (_text, "sentence1"), "sentence2": (_text, "sentence2")}

SHAPES: dict[str, dict[str, Any]] = {
    "sts": {**_PAIR, "score": (_number, "score")},
    "sick": {
        "sentence1": (_text, "sentence_A"), "sentence2": (_text, "sentence_B"), "score": (_number, "relatedness_score"),
        "label": (_nli_label, "label"), "entailment_ab": (_text, "entailment_AB"), "entailment_ba": (_text, "entailment_BA"),
    },
    "nli": {
        "premise": (_text, "premise"), "hypothesis": (_text, "hypothesis"), "label": (_nli_label, "label"), "source": None,
    },
    "articles": {"article_id": (_whole, "id"), "title": (_text, "title"), "text": (_paragraphs, "text")},
    "text": {"text": (_text, "text", "sentence"), "label": (_class, "label_text", "label")},
    "trec": {"text": (_text, "text"), "label": (_class, "coarse_label")},  # six classes; the others are finer
    "paraphrase": {**_PAIR, "label": (_class, "label")},
    "word_similarity": {
        "dataset": None, "word1": (_text, "word1"), "word2": (_text, "word2"), "score": (_number, "score"),
    },
    "word_analogy": {
        "dataset": None, "category": (_text, "type"), "a": (_text, "word1"), "b": (_text, "word2"), "c": (_text, "word3"),
        "d": (_text, "target"),
    },
    "word_categorization": {"dataset": None, "category": (_text, "category"), "word": (_text, "word")},
}  # fmt: skip
"""By shape of source the canonical columns, each with how it is made and of which column (of several the first that is there);
None: it holds the source's name."""

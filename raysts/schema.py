"""Every table raysts reads or writes: its columns, their types and the values they may hold.

The canonical data layout is a folder of Parquet tables; a table is a file ``<name>.parquet`` or a folder ``<name>/`` of
Parquet shards. Extra columns are ignored.
"""

import math
import re
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

SCHEMA_VERSION = 1

NLI_LABELS = ("entailment", "neutral", "contradiction")
"""Class names in the order of their integer codes (that of SNLI and MultiNLI on the Hugging Face hub)."""


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a canonical table.

    ``text`` is a non-empty string, ``number`` a finite number in [low, high] (without fractions if ``integer``), ``label``
    one of ``labels`` given as a string or as its index (any string or integer when ``labels`` is empty).
    """

    name: str
    kind: Literal["text", "number", "label"]
    low: float | None = None
    high: float | None = None
    integer: bool = False
    labels: tuple[str, ...] = ()
    required: bool = True
    nulls: bool = False
    """Null where it says nothing of a row."""
    blank: bool = False
    """Null or empty in some rows, of which another column says enough."""

    @property
    def rule(self) -> str:
        """Return the rule for a number of the column."""
        if self.low is not None:
            return f"a number from {self.low:g} to {self.high:g}"
        return "a whole number" if self.integer else "a finite number"

    def number(self, value: Any) -> float | None:
        """Return the number of a value in a user's file, or None if it breaks the rule."""
        if isinstance(value, bool) or "_" in str(value):  # Python reads 1_000
            return None
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            return None
        outside = (self.low is not None and number < self.low) or (self.high is not None and number > self.high)
        return None if not math.isfinite(number) or outside or (self.integer and number % 1) else number


def _text(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, "text") for name in names)


_STS = (*_text("sentence1", "sentence2"), Column("score", "number", 0.0, 5.0))
_SICK = (
    *_text("sentence1", "sentence2"),
    Column("score", "number", 1.0, 5.0),
    Column("label", "label", labels=NLI_LABELS, required=False),
    Column("entailment_ab", "label", required=False),
    Column("entailment_ba", "label", required=False),
)
_NLI = (*_text("premise", "hypothesis"), Column("label", "label", labels=NLI_LABELS))
_TRIPLETS = (*_text("anchor", "positive"), Column("negative", "text", nulls=True))
_CLASSIFICATION = (Column("text", "text"), Column("label", "label"))
_PARAPHRASE = (*_text("sentence1", "sentence2"), Column("label", "label"))

TABLES: dict[str, tuple[Column, ...]] = {
    **{f"sts/sts{year}": _STS for year in range(12, 17)},
    **{f"sts/stsb_{split}": _STS for split in ("train", "dev", "test")},
    **{f"sick/sick_{split}": _SICK for split in ("train", "trial", "test")},
    **{f"nli/{name}": _NLI for name in ("train", "snli_dev", "snli_test", "xnli_en_dev", "xnli_en_test")},
    "nli/triplets": _TRIPLETS,
    "nli/pairs": _TRIPLETS,
    "nli/sentences": _text("sentence"),
    "sentences": _text("sentence"),
    "targets": _text("sentence"),
    "wikipedia/articles": (Column("article_id", "label"), *_text("title", "text")),
    "wikipedia/sentences": _text("sentence"),
    **{f"senteval/{name}": _CLASSIFICATION for name in ("mr", "cr", "mpqa", "subj")},
    **{f"senteval/{name}_{split}": _CLASSIFICATION for name in ("sst2", "sst5") for split in ("train", "dev", "test")},
    **{f"senteval/trec_{split}": _CLASSIFICATION for split in ("train", "test")},
    **{f"senteval/mrpc_{split}": _PARAPHRASE for split in ("train", "test")},
    "web/word_similarity": (Column("dataset", "label"), *_text("word1", "word2"), Column("score", "number")),
    "web/word_analogy": (
        *(Column(name, "label") for name in ("dataset", "category")),
        *_text("a", "b", "c", "d"),
        Column("score", "number", required=False, nulls=True),
    ),
    "web/word_categorization": (Column("dataset", "label"), Column("category", "label"), Column("word", "text")),
}
"""Canonical tables by name. Adding a data set is one line here."""

TESTS, DEVS = "tests/", "dev/"
"""Begin the names of the user's sets: scored pairs with scores in any finite range; ``dev/NAME/`` also a retrieval set."""

_OWN_PAIRS = (*_text("sentence1", "sentence2"), Column("score", "number"))

RETRIEVAL: dict[str, tuple[Column, ...]] = {
    "corpus": (
        Column("doc_id", "label"),
        Column("text", "text", blank=True),
        Column("title", "label", required=False, nulls=True),  # any text, the empty one too
    ),
    "queries": (Column("query_id", "label"), Column("text", "text")),
    "qrels": (Column("query_id", "label"), Column("doc_id", "label"), Column("score", "number", integer=True)),
}
"""The tables of a retrieval set: ``retrieval/NAME/corpus`` and so on."""


def table_columns(table: str) -> tuple[Column, ...]:
    """Return the columns of a canonical table, or an empty tuple for an unknown name."""
    if table.startswith((TESTS, DEVS)) and table.count("/") == 1:
        return _OWN_PAIRS
    folder, _, part = table.rpartition("/")
    if re.fullmatch(r"(retrieval|dev)/[^/]+", folder):
        return RETRIEVAL.get(part, ())
    return TABLES.get(table, ())


TRAINING_TABLES = (
    "nli/train",
    "nli/triplets",
    "nli/pairs",
    "nli/sentences",
    "sentences",
    "sts/stsb_train",
    "wikipedia/articles",
    "wikipedia/sentences",
)
"""Tables that are trained on, or made into such, and nothing else: the tables that may do without a file."""

TEST_TABLES = frozenset(
    name
    for name in TABLES
    if name.endswith("_test")
    or name.startswith(("sts/sts1", "web/"))
    or name in {"senteval/mr", "senteval/cr", "senteval/mpqa", "senteval/subj"}
)
"""Tables on which results are reported; training and selection may not open them."""

RESULTS = pa.schema(
    [
        ("schema_version", pa.int32()),
        ("run_id", pa.string()),
        ("parent_run_ids", pa.list_(pa.string())),
        ("study", pa.string()),
        ("trial", pa.string()),
        ("system", pa.string()),
        ("recipe", pa.string()),
        ("role", pa.string()),
        ("member", pa.int32()),
        ("seed", pa.int64()),
        ("dataset", pa.string()),
        ("subset", pa.string()),
        ("split", pa.string()),
        ("rows", pa.string()),
        ("dataset_sha256", pa.string()),
        ("aggregation", pa.string()),
        ("pooling", pa.string()),
        ("layers", pa.string()),
        ("similarity", pa.string()),
        ("transductive", pa.bool_()),
        ("selected_by", pa.string()),
        ("metric", pa.string()),
        ("value", pa.float64()),
        ("ci_low", pa.float64()),
        ("ci_high", pa.float64()),
        ("n", pa.int64()),
        ("step", pa.int64()),
        ("git_commit", pa.string()),
        ("created_at", pa.string()),
    ]
)
"""The results table (one row per value). ``value`` is not multiplied by 100; ``subset`` is null in aggregates."""

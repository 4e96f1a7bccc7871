"""Precomputed vectors, looked up by text in Parquet with both, as ``raysts embed`` writes.

A text has one token, the number of its row.

Shapes: D dimensions, R rows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raysts.errors import InputError, RunFailed
from raysts.ids import content_id, file_digest
from raysts.models.embedder import Embedder
from raysts.models.prompts import Text
from raysts.models.tokens import Tokens, tokenize
from raysts.storage.parquet import is_text, open_parquet, pages

TEXTS = ("text", "sentence")
"""Columns that may hold the texts; the first that exists counts."""
VECTORS = "embedding"
"""Column with the vectors, a list of numbers in each row."""


class VectorsModel(Embedder):
    """Precomputed vectors.

    Args:
        path: a Parquet file, or a folder of them, with a column of texts (``TEXTS``) and one of vectors (``VECTORS``).

    Raises:
        InputError: on reading, if a column is missing, a text has two different vectors, or widths differ.
    """

    kind = "vectors"
    prompt = ""
    max_length = sys.maxsize

    @cached_property
    def files(self) -> list[Path]:
        files = parquet_files(self.path)
        if not files:
            raise InputError(
                f"teacher '{self.path}': no Parquet file there; give one with a text and its '{VECTORS}' a row"
            )
        return files

    @cached_property
    def column(self) -> str:
        """Column of the texts."""
        names = open_parquet(self.files[0], "write it again").schema_arrow.names
        column = next((name for name in TEXTS if name in names), "")
        if not column or VECTORS not in names:
            raise InputError(
                f"teacher '{self.path}' has columns {', '.join(names)}; vectors that teach need '{VECTORS}' and, for the "
                f"text that each is of, {' or '.join(map(repr, TEXTS))}: they are found by their texts, never by an id"
            )
        return column

    @cached_property
    def id(self) -> str:
        return content_id([self.column, *(file_digest(path).hex() for path in self.files)])

    @property
    def tokenizer_id(self) -> str:
        return self.id

    @cached_property
    def row_numbers(self) -> dict[str, int]:
        """Row of every text. A repeated text has its first row."""
        rows: dict[str, int] = {}
        for number, text in enumerate(text for part in self._read(self.column) for text in part.to_pylist()):
            if text is None:  # no text looks it up
                continue
            first = rows.setdefault(text, number)
            if first != number and not _is_same_vector(self.table_RD[first], self.table_RD[number]):
                raise InputError(
                    f"teacher '{self.path}': rows {first} and {number} are of one text ({_shorten(text)}) and have different "
                    f"vectors; leave one out"
                )
        for text in [text for text in rows if text != text.strip()]:  # user text is read without white space around it
            rows.setdefault(text.strip(), rows[text])
        return rows

    @cached_property
    def table_RD(self) -> np.ndarray:
        parts: list[np.ndarray] = []
        for part in self._read(VECTORS):
            try:
                lists = part.cast(pa.list_(pa.float32()))
            except pa.ArrowException:
                lists = pa.nulls(len(part), pa.list_(pa.float32()))
            widths = np.diff(lists.offsets.to_numpy())
            if lists.null_count or {*widths.tolist()} != {parts[0].shape[1] if parts else max(1, widths[0])}:
                raise InputError(
                    f"teacher '{self.path}': column '{VECTORS}' ({part.type}) must have a vector of one width in every row"
                )
            parts.append(lists.flatten().to_numpy(zero_copy_only=False).reshape(len(lists), -1))
        if not parts:
            raise InputError(f"teacher '{self.path}': has no rows; give the vectors of the texts that it teaches on")
        table_RD = np.concatenate(parts)
        if not np.isfinite(table_RD).all():
            row = int(np.flatnonzero(~np.isfinite(table_RD).all(1))[0])
            raise InputError(f"teacher '{self.path}': the vector of row {row} is not finite")
        return table_RD

    @property
    def dim(self) -> int:
        return int(self.table_RD.shape[1])

    @property
    def weight_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.files)

    def check(self) -> None:
        self.row_numbers  # noqa: B018 (reads the texts)

    def load(self) -> None:
        self.row_numbers, self.table_RD  # noqa: B018 (reads them)

    def find_missing(self, texts: Sequence[Text]) -> int | None:
        return next((number for number, text in enumerate(texts) if text not in self.row_numbers), None)

    @property
    def tokenizer(self) -> Any:
        self.row_numbers  # noqa: B018 (reads the texts)
        return self.row_tokens

    def row_tokens(self, texts: Sequence[str], **_: Any) -> dict[str, list[list[int]]]:
        """Return the row of each text as its one token, with the signature of a tokenizer.

        Raises:
            RunFailed: a text has no vector.
        """
        if (number := self.find_missing(texts)) is not None:
            raise RunFailed(f"teacher '{self.path}' has no vector of {_shorten(texts[number])}")
        return {"input_ids": [[self.row_numbers[text]] for text in texts]}

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        return tokenize(self.row_tokens, texts, 1)

    def vectors(self, tokens: Tokens) -> np.ndarray:
        return self.table_RD[tokens.flat]

    def _read(self, column: str) -> Iterator[pa.Array]:
        for path in self.files:
            file = open_parquet(path, "write it again")
            if column not in file.schema_arrow.names:
                raise InputError(f"teacher '{path}' has no column '{column}', as {self.files[0].name} beside it has")
            kind = file.schema_arrow.field(column).type
            if column == self.column and not is_text(kind):
                raise InputError(f"teacher '{path}': column '{column}' has type {kind}; text must be a string column")
            for batch in pages(path, file, [column], "write it again"):
                yield batch.column(0)


def parquet_files(path: Path) -> list[Path]:
    """Return the Parquet files of a folder, or a file."""
    return sorted(path.glob("[!.]*.parquet")) if path.is_dir() else [path] if path.is_file() else []


def _is_same_vector(a_D: np.ndarray, b_D: np.ndarray) -> bool:
    """Return True if the vectors differ by no more than bf16 does between batches."""
    return bool(np.linalg.norm(a_D - b_D) <= 0.05 * np.linalg.norm(a_D))


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")

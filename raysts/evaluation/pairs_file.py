"""A user's own scored pairs: Parquet, CSV, TSV or JSON lines with sentence1, sentence2 and score."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from raysts.errors import InputError, nearest
from raysts.evaluation.sts import Pairs, pairs_from_table, problems_of

_COLUMNS = ("sentence1", "sentence2", "score")
_MOST_PROBLEMS = 20
_FORMATS = ".parquet, .csv, .tsv, .jsonl"


def load_pairs_file(path: str | Path) -> Pairs:
    """Read and check scored pairs; scores may lie in any finite range, a column ``subset`` is used where there is one.

    CSV and TSV have a header line; CSV is quoted as RFC 4180 says, TSV is not quoted (as the STS Benchmark is).

    Raises:
        InputError: the file cannot be read, lacks a column or holds rows that cannot be used (each named by its row,
            counted from 0, and in text files its line, counted from 1).
    """
    path = Path(path)
    readers = {".parquet": _parquet, ".csv": _csv, ".tsv": _tsv, ".jsonl": _jsonl}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path}: unknown format '{path.suffix}'; a pairs file must be one of {_FORMATS}")
    if not path.is_file():
        raise InputError(f"{path}: no such file; --pairs must name a file ({_FORMATS}) with {', '.join(_COLUMNS)}")
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    for index, (where, row) in enumerate(reader(path)):
        place = f"{path}: row {index}{where}"
        found, score = _row_problems(place, row)
        problems += found
        if len(problems) >= _MOST_PROBLEMS:
            break
        rows.append({**row, "score": score})
    if problems:
        raise InputError(problems[:_MOST_PROBLEMS])
    if not rows:
        raise InputError(f"{path}: no rows; a pairs file must hold at least two scored pairs")
    table = pa.table(
        {name: pa.array([row[name] for row in rows], pa.string()) for name in _COLUMNS[:2]}
        | {"score": pa.array([row["score"] for row in rows], pa.float64())}
        | ({"subset": pa.array([_subset(row) for row in rows], pa.string())} if "subset" in rows[0] else {})
    )
    with path.open("rb") as file:
        pairs = pairs_from_table(table, path.stem.lower(), hashlib.file_digest(file, "sha256").hexdigest())
    problems = problems_of(pairs)
    if problems:
        raise InputError([f"{path}: {problem}" for problem in problems])
    return pairs


def _subset(row: dict[str, Any]) -> str | None:
    value = row.get("subset")
    return None if value is None or value == "" else str(value)


def _row_problems(place: str, row: dict[str, Any]) -> tuple[list[str], float]:
    problems = []
    for name in _COLUMNS[:2]:
        text = row.get(name)
        if not isinstance(text, str) or not text.strip():
            what = "null or missing" if text is None else "empty sentence" if isinstance(text, str) else f"{text!r}"
            problems.append(
                f"{place}, column '{name}': {what}; every row needs a text of at least one character, "
                f"correct or remove it"
            )
    value, score = row.get("score"), math.nan
    if value is not None and not isinstance(value, bool):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            score = float(value)
    if not math.isfinite(score):
        problems.append(
            f"{place}, column 'score': {value!r} must be a finite number (decimal point, no thousands separator); "
            f"correct or remove the row"
        )
    return problems, score


def _require_columns(path: Path, present: Sequence[str]) -> None:
    problems = [
        f"{path}: column '{name}' is missing (columns found: {', '.join(present) or 'none'}){nearest(name, present)}; "
        f"a pairs file needs {', '.join(_COLUMNS)}, rename or add it"
        for name in _COLUMNS
        if name not in present
    ]
    if problems:
        raise InputError(problems)


def _parquet(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({error}); write it again") from error
    present = file.schema_arrow.names
    _require_columns(path, present)
    for batch in file.iter_batches(columns=[name for name in (*_COLUMNS, "subset") if name in present]):
        for row in batch.to_pylist():
            yield "", row


def _csv(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    return _delimited(path, delimiter=",", quoting=csv.QUOTE_MINIMAL)


def _tsv(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    return _delimited(path, delimiter="\t", quoting=csv.QUOTE_NONE)


def _delimited(path: Path, delimiter: str, quoting: Literal[0, 3]) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        # utf-8-sig: spreadsheets write a byte order mark, which would become part of the first column's name.
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=delimiter, quoting=quoting, strict=True)
            header = [name.strip() for name in next(reader, [])]
            _require_columns(path, header)
            for values in reader:
                if not values:
                    continue
                if len(values) != len(header):
                    raise InputError(
                        f"{path}: line {reader.line_num} has {len(values)} fields, the header {len(header)}; "
                        f"quote or remove the extra separators"
                    )
                yield f" (line {reader.line_num})", dict(zip(header, values, strict=True))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error}); convert the file to UTF-8") from error
    except csv.Error as error:
        raise InputError(f"{path}: line {reader.line_num}: {error}; correct the quoting of the line") from error


def _jsonl(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with path.open(encoding="utf-8-sig") as file:
            first = True
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise InputError(f"{path}: line {number} is not JSON ({error}); one object a line") from error
                if not isinstance(row, dict):
                    raise InputError(f"{path}: line {number} is not an object with named fields, but {row!r:.40}")
                if first:
                    _require_columns(path, list(row))
                    first = False
                yield f" (line {number})", row
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error}); convert the file to UTF-8") from error

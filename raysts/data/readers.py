"""Readers of users' files: their rows as they are, and as canonical tables have them.

Files are Parquet, CSV, TSV, JSON lines, plain lines, and saved data sets; ``.gz`` is unpacked on the way. A reader trusts
nothing in a file: each fault is one message with file and line. Of canonical rows the columns have names, labels are mapped,
and every value is checked: ``raysts data import`` writes them, ``--text``, ``--dev`` and ``--test`` read them in the same way.
"""

import csv
import gzip
import json
import re
import shlex
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raysts.errors import InputError, RunFailed, first_line, nearest
from raysts.ids import file_state, folder_id
from raysts.schema import Column
from raysts.storage.checksums import checksum
from raysts.storage.foreign import check_ordinary
from raysts.storage.store import Store

TABLES = (".parquet", ".csv", ".tsv", ".jsonl")
"""Formats with named columns."""

LINES = ".txt"
"""One text a line."""

HUB = "hf://"

LONGEST = 1 << 27
"""Characters of a line, and of a field of CSV. A longer one is no text, and fills the memory."""

MOST_WAITING = 1_000
"""First lines of JSON that may lack a required column."""

DROP = "drop"
"""A row with a label that is mapped to this is left out."""

SET_NAME = re.compile(r"[A-Za-z0-9][\w.+=-]{0,99}")
"""Names that a test set, a development set or a retrieval set of the user can have."""

MOST_PROBLEMS = 20

Row = tuple[str, dict[str, Any]]
"""The place of a row in a text file (`` (line 3)``), and its values by column."""

Choose = Callable[[Sequence[str]], list[str]]
"""Given the columns of a file, return the columns to read, or raise an error."""

Values = tuple[Any, ...]
"""The values of a row in the order of the table's columns: text, float, or None."""

Names = Callable[[Path, Sequence[str]], Mapping[str, str]]
"""Given a file and its columns, return the file's column by canonical name, or raise an error."""


def format_of(path: Path) -> str:
    """Return the format of a file by its name: ``.csv`` for ``a.csv`` and ``a.csv.gz``."""
    packed = path.suffix.lower() == ".gz" and len(path.suffixes) > 1
    return Path(path.stem if packed else path.name).suffix.lower()


def title_of(place: str) -> str:
    """Return the name of a file or folder for people: without folder and endings."""
    name = place.rstrip("/").rpartition("/")[2] or place
    for suffix in (".gz", *TABLES, LINES):
        name = name[: -len(suffix)] if name.lower().endswith(suffix) else name
    return name


def files_of(place: str | Path, option: str, formats: Sequence[str] = (*TABLES, LINES)) -> tuple[Path, ...]:
    """Return the local files behind a path or URI: itself, or all of a folder in order of their names.

    Files of a URI are downloaded. A folder that ``datasets`` saved, and a data set of the hub, is one path.

    Raises:
        InputError: the file does not exist, or has no format of these.
    """
    text, path, choices = str(place), Path(place), ", ".join(formats)
    if text.startswith(HUB) or ("://" not in text and is_saved(path)):
        return (path,)
    if "://" in text:
        parent, _, name = text.rstrip("/").rpartition("/")
        single = format_of(Path(name)) in formats
        store = Store.open(parent if single else text, option)
        store.check(option=option)
        listed = [store.path(name)] if single else store.list(store.root, recursive=True)
        copies = [store.get(file, fresh=True) for file in listed if format_of(file) in formats]
        if not copies or None in copies:
            raise InputError(f"{option} '{text}': not found, and no file below it is {choices}")
        return tuple(sorted(filter(None, copies)))
    if path.is_dir():
        inside = Store(path).list(recursive=True)
        readable = tuple(file for file in inside if format_of(file) in formats)
        if not readable:
            names = ", ".join(file.name for file in inside[:5]) or "nothing"
            raise InputError(f"{option} '{text}': the folder has no file of {choices} (or .gz of it); it holds {names}")
        return readable
    if not path.exists():
        raise InputError(f"{option} '{text}': no such file or folder; name one of {choices}, or a folder of them")
    if format_of(path) not in formats:
        raise InputError(f"{option} '{text}': unknown format '{path.suffix}'; must be one of {choices}")
    check_ordinary(path)
    return (path,)


def rows_of(path: Path, choose: Callable[[Path, Sequence[str]], Sequence[str]]) -> Iterator[Row]:
    """Yield the rows of a file in order. Memory is one batch. Plain lines have one column, ``text``.

    ``choose`` returns the columns to read, given the file and its columns.

    Raises:
        InputError: the file cannot be read, or ``choose`` refuses it. The message names the file, and the line of a text file.
    """

    def choose_single(present: Sequence[str]) -> list[str]:
        columns = list(choose(path, present))
        if twice := [name for name in columns if present.count(name) > 1]:
            raise InputError(
                f"{_name(path)}: has {present.count(twice[0])} columns '{twice[0]}'; keep one of them, or rename the others"
            )
        return columns

    if is_hub(path) or is_saved(path):
        return _read_saved(path, choose_single)
    check_ordinary(path)
    readers = {".parquet": _read_parquet, ".csv": _read_delimited, ".tsv": _read_delimited, ".jsonl": _read_jsonl}
    return readers.get(format_of(path), _read_lines)(path, choose_single)


@dataclass(frozen=True, kw_only=True)
class ColumnSource:
    """A user's files as rows of a canonical table."""

    files: tuple[Path, ...]
    columns: tuple[Column, ...]
    names: Names
    labels: Mapping[str, str] = field(default_factory=dict)
    """A label of the table, or ``drop``, by the file's own word for it."""
    strict: bool = False
    """Refuse rows without a value, instead of leaving them out."""

    def rows(self, counts: dict[str, int]) -> Iterator[Values]:
        """Yield the usable rows in order. ``counts`` counts ``rows_read``, ``empty``, ``left_out``.

        Raises:
            InputError: up to 20 values that cannot be used, each with its file, row and column.
            RunFailed: at the end, if a file has changed meanwhile.
        """
        counts |= dict.fromkeys(("rows_read", "empty", "left_out"), 0)
        problems, states = list[str](), self.states()
        for path, place, names, row in self._raw_rows():
            counts["rows_read"] += 1
            values: list[Any] = []
            faults: list[str] = []
            empty = False
            for column in self.columns:
                name = names.get(column.name, column.name)
                try:
                    value = self._parse(row.get(name), column)
                    values.append(value)
                    if value is None and not (column.nulls or column.blank):
                        empty |= column.kind != "number"
                        if self.strict or column.kind == "number":
                            fault = "null or missing" if row.get(name) is None else "empty sentence"
                            raise ValueError(f"{fault}; every row needs a value, correct or remove it")
                except ValueError as error:
                    faults.append(f"{path}: row {place}, column '{name}': {error}")
            if empty and not self.strict:
                counts["empty"] += 1
            elif faults:
                problems += faults
                if len(problems) >= MOST_PROBLEMS:
                    raise InputError(problems[:MOST_PROBLEMS])
            elif any(value == DROP and column.labels for value, column in zip(values, self.columns, strict=True)):
                counts["left_out"] += 1
            else:
                yield tuple(values)
        if problems:
            raise InputError(problems)
        if self.states() != states:
            raise RunFailed(
                f"{self.files[0]}: was changed while it was read; leave it as it is while it is read, and run the same command "
                f"again"
            )

    def _raw_rows(self) -> Iterator[tuple[Path, str, Mapping[str, str], Mapping[str, Any]]]:
        """Yield each row with its file, its place there, and the file's columns by canonical name."""
        names: dict[str, str] = {}

        def choose(path: Path, present: Sequence[str]) -> list[str]:
            names.clear()
            names.update(self.names(path, present))
            return list(dict.fromkeys(names.values()))

        for path in self.files:
            for index, (line, row) in enumerate(rows_of(path, choose)):
                yield path, f"{index}{line}", names, row

    def _parse(self, value: Any, column: Column) -> Any:
        """Return a value as the table holds it, None for nothing, or raise ValueError with its fault."""
        if value is None or (isinstance(value, str) and not value.strip()):
            return None
        if column.labels:
            return self._label(value, column)
        if column.kind == "label":
            return str(value)
        if column.kind == "number":
            number = column.number(value)
            if number is None:
                raise ValueError(
                    f"{value!r:.40} must be {column.rule} (decimal point, no thousands separator); correct or remove the row"
                )
            return number
        if not isinstance(value, str):
            raise ValueError(f"{value!r:.40}; every row needs a text, correct or remove it, or name another column")
        return value.strip()

    def _label(self, value: Any, column: Column) -> str:
        word = self.labels.get(str(value), str(value).lower())
        if word.isdecimal() and int(word) < len(column.labels):
            word = column.labels[int(word)]
        if word not in (*column.labels, DROP):
            # Written together: to a command line that begins with '-', as SNLI's '-' and -1, is an option.
            option = shlex.quote(f"--labels={value}=")
            raise ValueError(
                f"unknown label {value!r}; map it with {option}{'|'.join(column.labels)}, or remove its rows with "
                f"{option}{DROP}"
            )
        return word

    def schema(self) -> pa.Schema:
        return pa.schema([(c.name, pa.float64() if c.kind == "number" else pa.string()) for c in self.columns])

    def states(self) -> tuple[Any, ...]:
        """Return what changes when a file, or a file of a saved data set, changes."""
        return tuple(file_state(path) for file in self.files if file.exists() for path in (file, *file.rglob("*")))


def match_columns(
    columns: Sequence[Column], renames: Mapping[str, str], remedy: Callable[[Sequence[str]], str]
) -> Names:
    """Return the names of a source: ``renames``, else the canonical ones.

    Args:
        columns: columns of the table.
        renames: the file's column by canonical name.
        remedy: returns what to do without some of the canonical columns.
    """

    def names(path: Path, present: Sequence[str]) -> Mapping[str, str]:
        if format_of(path) == LINES and len(columns) == 1:
            return {columns[0].name: "text"}
        names = {column.name: renames.get(column.name, column.name) for column in columns}
        absent = [name for name in names if names[name] not in present]
        needed = [c.name for c in columns if c.name in renames or (c.required and not c.nulls)]
        require_columns(path, [names[name] for name in needed], present, remedy(absent))
        return {name: column for name, column in names.items() if name not in absent}

    return names


def table_of(rows: Sequence[Values], schema: pa.Schema) -> pa.Table:
    """Return rows as an Arrow table."""
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.table([pa.array(list(c), kind) for c, kind in zip(columns, schema.types, strict=True)], schema=schema)


def frame_values(values: Sequence[Any]) -> bytes:
    """Return a row as the fingerprint of its table reads it.

    Each value has its length in front, so that no two tables read alike; a number is its 8 bytes, null the length 2^64 - 1.
    """
    parts = []
    for value in values:
        content = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else struct.pack(">d", value or 0.0)
        parts += [b"\xff" * 8] if value is None else [len(content).to_bytes(8, "big"), content]
    return b"".join(parts)


def columns_of_files(files: Sequence[Path]) -> list[str]:
    """Return the columns that any of the files has, and any line of JSON lines."""
    names: dict[str, None] = {}

    def choose(path: Path, present: Sequence[str]) -> Sequence[str]:
        names.update(dict.fromkeys(present))
        return ["text"] if format_of(path) == LINES else []

    for path in files:
        for _ in rows_of(path, choose):
            if format_of(path) != ".jsonl":
                break
    return list(names)


def require_columns(path: Path, needed: Sequence[str], present: Sequence[str], remedy: str) -> None:
    """Raise an InputError that names every needed column that is not present."""
    missing = [name for name in needed if name not in present]
    near = nearest(missing[0], present) if len(missing) == 1 else ""
    if len(present) == 1 and (wrong := next((mark for mark in ";\t|" if mark in present[0]), None)):
        remedy = f"the header has {wrong!r} between its columns. Save the file with commas, or as .tsv with tabs"
        near = ""
    if missing:
        lack = f"column {missing[0]!r} is" if len(missing) == 1 else f"columns {', '.join(map(repr, missing))} are"
        raise InputError(
            f"{_name(path)}: {lack} missing (columns found: {', '.join(present) or 'none'}){near}; {remedy}"
        )


def content_of(path: Path) -> str:
    """Return the checksum of a file or saved data set, or the name of a path on another machine."""
    if path.is_dir():
        return folder_id(path)
    return checksum(path) if path.exists() else str(path)


def is_saved(path: Path) -> bool:
    """Return True if ``datasets`` saved the folder."""
    return any((path / name).is_file() for name in ("dataset_dict.json", "dataset_info.json"))


def is_hub(path: Path) -> bool:
    """Return True if a path names a data set of the hub."""
    return str(path).startswith("hf:")


def _name(path: Path) -> str:
    """Return a path as the user wrote it: pathlib makes one slash of two."""
    return HUB + str(path).removeprefix("hf:").lstrip("/") if is_hub(path) else str(path)


def _read_saved(path: Path, choose: Choose) -> Iterator[Row]:
    """Yield the rows of a data set that ``datasets`` saved, or of the split ``train`` of one on the hub."""
    import datasets

    name = _name(path)
    try:
        if is_hub(path):
            data = datasets.load_dataset(name.removeprefix(HUB), split="train")
        else:
            data = datasets.load_from_disk(name)
    except Exception as error:  # of a dozen libraries: HTTP, file systems, formats
        raise InputError(
            f"{name}: the data set cannot be read ({first_line(error)}); check its name and the network, or name a file or "
            f"folder here"
        ) from error
    if isinstance(data, datasets.DatasetDict):
        if len(data) > 1:
            raise InputError(
                f"{name}: has the splits {', '.join(data)}; name the folder of one of them: {path / next(iter(data))}"
            )
        data = next(iter(data.values()))
    columns = choose(data.column_names)
    try:
        for batch in data.select_columns(columns).with_format("arrow").iter(batch_size=1_000):
            yield from _rows_of_batch(batch)
    except Exception as error:
        raise InputError(
            f"{name}: the data set cannot be read to its end ({first_line(error)}); save it again"
        ) from error


def _read_parquet(path: Path, choose: Choose) -> Iterator[Row]:
    try:
        file = pq.ParquetFile(path)
        columns = choose(file.schema_arrow.names)
        for batch in file.iter_batches(batch_size=8_192, columns=columns):
            yield from _rows_of_batch(batch)
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: not a readable Parquet file ({reason}); write it again") from error


def _rows_of_batch(batch: pa.RecordBatch) -> Iterator[Row]:
    batch.validate(full=True)
    for row in batch.to_pylist():
        yield "", row


def _read_delimited(path: Path, choose: Choose) -> Iterator[Row]:
    csv.field_size_limit(LONGEST)  # documents are longer than the default of 128 KiB
    lines = _read_text(path, newline="")
    if format_of(path) == ".csv":
        reader = csv.reader(lines, strict=True)
    else:
        reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE, strict=True)
    try:
        if (first := next(reader, None)) is None:  # as Spark writes a part without rows
            return
        header = [name.strip() for name in first]
        places = {name: header.index(name) for name in choose(header)}
        for values in reader:
            if not values:
                continue
            if len(values) != len(header):
                raise InputError(
                    f"{path}: line {reader.line_num} has {len(values)} fields, the header {len(header)}; "
                    f"quote or remove the extra separators"
                )
            yield f" (line {reader.line_num})", {name: values[place] for name, place in places.items()}
    except csv.Error as error:
        raise InputError(f"{path}: line {reader.line_num}: {error}; correct the quoting of the line") from error


def _read_jsonl(path: Path, choose: Choose) -> Iterator[Row]:
    columns: Sequence[str] = ()
    present: dict[str, None] | None = None  # a line may lack a column that it has no value for, the first lines too
    refusal: InputError | None = None
    waiting: list[Row] = []
    for number, line in enumerate(_read_text(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if "\\u" in line:  # half a surrogate cannot be written
                json.dumps(row, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: line {number} is not JSON ({error}); one object a line") from error
        if not isinstance(row, dict):
            raise InputError(f"{path}: line {number} is not an object with named fields, but {row!r:.40}")
        if present is None or not row.keys() <= present.keys():
            present, refusal = {**(present or {}), **dict.fromkeys(row)}, None
            try:
                columns = choose(list(present))
            except InputError as error:
                refusal = error
        waiting.append((f" (line {number})", row))
        if refusal is None:
            for place, values in waiting:
                yield place, {name: values.get(name) for name in columns}
            waiting.clear()
        elif len(waiting) >= MOST_WAITING:
            break
    if refusal:
        raise refusal


def _read_lines(path: Path, choose: Choose) -> Iterator[Row]:
    (column,) = choose(["text"])
    for number, line in enumerate(_read_text(path), start=1):
        if "\0" in line:
            raise InputError(
                f"{path}: line {number} holds a zero byte: it is not plain text; name a file of text lines"
            )
        yield f" (line {number})", {column: line.rstrip("\r\n")}


def _read_text(path: Path, newline: str | None = None) -> Iterator[str]:
    """Yield the lines of a text file."""
    unpacked = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        # utf-8-sig: spreadsheets write a byte order mark, which would become part of the first column's name.
        with unpacked(path, "rt", encoding="utf-8-sig", newline=newline) as file:
            for number, line in enumerate(iter(partial(file.readline, LONGEST), ""), start=1):
                if len(line) == LONGEST:
                    raise InputError(f"{path}: line {number} has {LONGEST:,} characters or more; break or remove it")
                yield line
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: not UTF-8 text ({error}); convert the file to UTF-8 ('iconv -f cp1252 -t utf-8')"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read to its end ({error}); get it again") from error

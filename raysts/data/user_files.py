"""Files that users bring, read row by row: Parquet, CSV, TSV, JSON lines, plain lines; a folder of them; a saved data set.

What is in a file is not known before it is read: whatever is wrong with it is one message that names file and line. A file
whose name ends in ``.gz`` is unpacked while it is read (Parquet is not).
"""

import contextlib
import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from raysts.errors import InputError, nearest
from raysts.ids import folder_id
from raysts.storage.checksums import checksum
from raysts.storage.foreign import check_ordinary
from raysts.storage.store import FolderStore, Store

TABLES = (".parquet", ".csv", ".tsv", ".jsonl")
"""Formats whose columns have names."""

LINES = ".txt"
"""A text a line."""

HUB = "hf://"

LONGEST = 1 << 27
"""Characters of a line, and of a field of CSV: one that is longer is no text, but what fills the memory."""

MOST_WAITING = 1_000
"""First lines of JSON that may lack a column which is needed."""

Row = tuple[str, dict[str, Any]]
"""Where in its file a row is (`` (line 3)``, of a text file), and its values by column."""

Choose = Callable[[Path, Sequence[str]], Sequence[str]]
"""Which columns to read of a file that has these; it refuses a file that lacks what is needed."""


def format_of(path: Path) -> str:
    """``.csv`` of ``a.csv`` and of ``a.csv.gz``."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    return suffixes[0] if len(suffixes) == 2 and suffixes[1] == ".gz" else suffixes[-1] if suffixes else ""


def title_of(where: str) -> str:
    """What people call a file or folder: its name without folder and endings."""
    name = where.rstrip("/").rpartition("/")[2] or where
    for suffix in (".gz", *TABLES, LINES):
        name = name[: -len(suffix)] if name.lower().endswith(suffix) else name
    return name


def files_of(where: str | Path, option: str, formats: Sequence[str] = (*TABLES, LINES)) -> tuple[Path, ...]:
    """The files behind a path or URI, brought to this machine: itself, or all of a folder in order of their names.

    A folder that ``datasets`` saved, and a data set of the hub, is one path.

    Raises:
        InputError: there is no such file, or none of a format that can be read.
    """
    text, known = str(where), ", ".join(formats)
    if text.startswith(HUB):
        return (Path(text),)
    if "://" in text:
        parent, _, name = text.rstrip("/").rpartition("/")
        single = format_of(Path(name)) in formats
        store = Store.open(parent if single else text, option)
        store.check(option=option)
        found = [store.path(name)] if single else store.list(store.root, recursive=True)
        brought = [store.get(path, fresh=True) for path in found if format_of(path) in formats]
        if not brought or None in brought:
            raise InputError(f"{option} '{text}': there is no such file, and none below it of {known}")
        return tuple(path for path in sorted(filter(None, brought)))
    path = Path(text)
    if is_saved(path):
        return (path,)
    if path.is_dir():
        inside = FolderStore(path).list(recursive=True)
        readable = tuple(file for file in inside if format_of(file) in formats)
        if not readable:
            held = ", ".join(file.name for file in inside[:5]) or "nothing"
            raise InputError(f"{option} '{text}': the folder has no file of {known} (or .gz of it); it holds {held}")
        return readable
    if not path.exists():
        raise InputError(f"{option} '{text}': no such file or folder; name one of {known}, or a folder of them")
    if format_of(path) not in formats:
        raise InputError(f"{option} '{text}': unknown format '{path.suffix}'; must be one of {known}")
    check_ordinary(path)
    return (path,)


def rows_of(path: Path, choose: Choose) -> Iterator[Row]:
    """The rows of a file in order; memory is that of a batch. Plain lines have one column, ``text``.

    Raises:
        InputError: naming the file, and of a text file the line: it cannot be read, or ``choose`` refuses it.
    """
    if str(path).startswith("hf:") or is_saved(path):
        return _saved(path, choose)
    readers: dict[str, Callable[[Path, Choose], Iterator[Row]]] = {
        ".parquet": _parquet,
        ".csv": partial(_delimited, delimiter=",", quoting=csv.QUOTE_MINIMAL),
        ".tsv": partial(_delimited, delimiter="\t", quoting=csv.QUOTE_NONE),
        ".jsonl": _jsonl,
        LINES: _lines,
    }
    check_ordinary(path)
    return readers[format_of(path)](path, choose)


def missing(path: Path, needed: Sequence[str], present: Sequence[str], remedy: str) -> None:
    """Raise one InputError with every column that is needed and not there."""
    problems = [
        f"{_called(path)}: column '{name}' is missing (columns found: {', '.join(present) or 'none'}){nearest(name, present)}; "
        f"{remedy}"
        for name in needed
        if name not in present
    ]
    if problems:
        raise InputError(problems)


def _called(path: Path) -> str:
    """A path as it was given: pathlib makes one slash of two."""
    text = str(path)
    return HUB + text.removeprefix("hf:").lstrip("/") if text.startswith("hf:") else text


def content_of(path: Path) -> str:
    """Names what is in a file, or in the folder of a saved data set; what is not on this machine is its name."""
    if path.is_dir():
        return folder_id(path)
    return checksum(path) if path.exists() else str(path)


def is_saved(path: Path) -> bool:
    """Whether a folder is one that ``datasets`` saved."""
    return any((path / name).is_file() for name in ("dataset_dict.json", "dataset_info.json"))


def _saved(path: Path, choose: Choose) -> Iterator[Row]:
    """The rows of a data set that ``datasets`` saved, or of the split ``train`` of one of the hub."""
    import datasets

    name = _called(path)
    try:
        if name.startswith(HUB):
            held = datasets.load_dataset(name.removeprefix(HUB), split="train")
        else:
            held = datasets.load_from_disk(name)
    except Exception as error:  # of a dozen libraries: HTTP, file systems, formats
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise InputError(
            f"{name}: the data set cannot be read ({reason}); check its name and the network, or name a "
            f"file or folder here"
        ) from error
    if isinstance(held, datasets.DatasetDict):
        splits = ", ".join(held)
        if len(held) > 1:
            raise InputError(
                f"{name}: has the splits {splits}; name the folder of one of them: {path / next(iter(held))}"
            )
        held = next(iter(held.values()))
    columns = _chosen(path, choose, held.column_names)
    try:
        for batch in held.select_columns(columns).with_format("arrow").iter(batch_size=1_000):
            batch.validate(full=True)
            for row in batch.to_pylist():
                yield "", row
    except Exception as error:
        raise InputError(f"{name}: the data set cannot be read to its end ({error}); save it again") from error


def _parquet(path: Path, choose: Choose) -> Iterator[Row]:
    try:
        file = pq.ParquetFile(path)
        columns = _chosen(path, choose, file.schema_arrow.names)
        for batch in file.iter_batches(batch_size=8_192, columns=columns):
            batch.validate(full=True)
            for row in batch.to_pylist():
                yield "", row
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, InputError):
            raise
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: not a readable Parquet file ({reason}); write it again") from error


def _delimited(path: Path, choose: Choose, delimiter: str, quoting: Literal[0, 3]) -> Iterator[Row]:
    csv.field_size_limit(LONGEST)  # documents are longer than the default of 128 KiB
    with _lines_of(path, newline="") as lines:
        reader = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
        try:
            if (first := next(reader, None)) is None:  # as Spark writes a part without rows
                return
            header = [name.strip() for name in first]
            columns = _chosen(path, choose, header)
            places = {name: header.index(name) for name in columns}
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


def _jsonl(path: Path, choose: Choose) -> Iterator[Row]:
    columns: Sequence[str] = ()
    present: dict[str, None] | None = None  # a line may lack what has no value there, the first ones too
    refused: InputError | None = None
    waiting: list[Row] = []
    for number, line in _text_lines(path):
        try:
            row = json.loads(line)
            if "\\u" in line:  # of half a surrogate nothing can be written
                json.dumps(row, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: line {number} is not JSON ({error}); one object a line") from error
        if not isinstance(row, dict):
            raise InputError(f"{path}: line {number} is not an object with named fields, but {row!r:.40}")
        if present is None or not row.keys() <= present.keys():
            present, refused = {**(present or {}), **dict.fromkeys(row)}, None
            try:
                columns = choose(path, list(present))
            except InputError as error:
                refused = error
        waiting.append((f" (line {number})", row))
        if refused is None:
            for where, known in waiting:
                yield where, {name: known.get(name) for name in columns}
            waiting.clear()
        elif len(waiting) >= MOST_WAITING:
            break
    if refused:
        raise refused


def _lines(path: Path, choose: Choose) -> Iterator[Row]:
    (column,) = choose(path, ["text"])
    for number, line in _text_lines(path, blank=True):
        if "\0" in line:
            raise InputError(f"{path}: line {number} holds a zero byte: it is no plain text; name a file of text lines")
        yield f" (line {number})", {column: line.rstrip("\r\n")}


def _text_lines(path: Path, blank: bool = False) -> Iterator[tuple[int, str]]:
    with _lines_of(path) as lines:
        for number, line in enumerate(lines, start=1):
            if blank or line.strip():
                yield number, line


def _whole_lines(path: Path, file: IO[str]) -> Iterator[str]:
    for number, line in enumerate(iter(partial(file.readline, LONGEST), ""), start=1):
        if len(line) == LONGEST:
            raise InputError(f"{path}: line {number} has {LONGEST:,} characters or more; break it, or leave it out")
        yield line


def _chosen(path: Path, choose: Choose, present: Sequence[str]) -> list[str]:
    """The columns to read, of which the file has one each."""
    columns = list(choose(path, present))
    if twice := [name for name in columns if list(present).count(name) > 1]:
        raise InputError(
            f"{_called(path)}: has {list(present).count(twice[0])} columns '{twice[0]}'; leave one of them, or rename the others"
        )
    return columns


@contextlib.contextmanager
def _lines_of(path: Path, newline: str | None = None) -> Iterator[Iterator[str]]:
    """The lines of a text file, for the length of a block that reads them."""
    unpacked = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        # utf-8-sig: spreadsheets write a byte order mark, which would become part of the first column's name.
        with unpacked(path, "rt", encoding="utf-8-sig", newline=newline) as file:
            yield _whole_lines(path, file)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error}); convert the file to UTF-8") from error
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read to its end ({error}); get it again") from error

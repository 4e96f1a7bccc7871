"""Rows of users' files as canonical tables: their columns by name, labels mapped, every value checked.

``raysts data import`` writes them; ``--text``, ``--dev`` and ``--test`` read them in the same way (:mod:`raysts.data.user`).
"""

import hashlib
import re
import shlex
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raysts.data import readers
from raysts.data.readers import LINES, TABLES, columns_of_files, files_of, format_of, require_columns, title_of
from raysts.data.wikipedia.wikipedia import sentences_of
from raysts.errors import InputError, RunFailed, nearest
from raysts.ids import file_state
from raysts.schema import NLI_LABELS, RETRIEVAL, TESTS, Column, table_columns
from raysts.storage.atomic import no_empty_folders
from raysts.storage.store import Store

KINDS = {"sentences": "wikipedia/sentences", "nli": "nli/train", "triplets": "nli/triplets"}
"""The table of each kind that has one; ``pairs`` and ``retrieval`` have tables by the set's name."""

SIGNS = {"premise": "nli", "sentence1": "pairs", "anchor": "triplets", "query_id": "retrieval", "doc_id": "retrieval"}
"""The kind of a file with a column of this name; ``sentences`` without one."""

DROP = "drop"
"""A row with a label that is mapped to this is left out."""

SET_NAME = re.compile(r"[A-Za-z0-9][\w.+=-]{0,99}")
"""Names that a test set, a development set or a retrieval set of the user can have."""

WRITE_ROWS = 65_536
MOST_PROBLEMS = 20

Values = tuple[Any, ...]
"""The values of a row in the order of the table's columns: text, float, or None."""

Names = Callable[[Path, Sequence[str]], Mapping[str, str]]
"""Given a file and its columns, return the file's column by canonical name, or raise an error."""


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
            for index, (line, row) in enumerate(readers.rows_of(path, choose)):
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


@dataclass(frozen=True, kw_only=True)
class Import:
    """The arguments of ``raysts data import``, which documents them, but for ``root``, the data folder."""

    file: str
    kind: str
    root: Path
    columns: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    drop: bool = False
    split: bool = False
    force: bool = False
    taken: Collection[str] = ()
    """Names of public tasks, which no test set can have."""

    def run(self) -> dict[str, Any]:
        """Write the table in one pass over the file.

        Returns:
            ``table``, ``file``, ``rows_read``, ``rows_written``, ``empty``, ``left_out`` (rows with a dropped label),
            ``exact_duplicates`` (rows with the texts of an earlier row, dropped or not).

        Raises:
            InputError: the file or a row cannot be used, or the table exists; nothing was written.
            RunFailed: the file changed while it was read; nothing was written.
        """
        kinds = (*KINDS, "pairs", "retrieval")
        if self.kind not in kinds:
            raise InputError(f"--as '{self.kind}': must be one of {', '.join(kinds)}{nearest(self.kind, kinds)}")
        files = files_of(self.file, "FILE")
        present = columns_of_files(files)
        table = self._table(present)
        columns = self._columns(table, present)
        target, exists = self.root / f"{table}.parquet", f"the table {table} is there"
        if any((self.root / table).glob("*.parquet")):
            raise InputError(f"{self.root / table}: {exists}, in shards; remove the folder first")
        if target.exists() and not self.force:
            raise InputError(f"{target}: {exists}; replace it with --force, or take another --name or --data")
        names = match_columns(columns, self.columns, lambda absent: (
            f"say which of the file's columns it is with --columns {','.join(f'{name}=THEIRS' for name in absent)}"
        ))  # fmt: skip
        source = ColumnSource(files=files, columns=columns, names=names, labels=self.labels)
        counts, written = {"exact_duplicates": 0}, 0
        with (
            no_empty_folders(target.parent),
            Store.of(target).put(target) as draft,
            pq.ParquetWriter(draft, source.schema()) as writer,
        ):
            rows = self._distinct(source, counts)
            while group := list(islice(rows, WRITE_ROWS)):
                writer.write_table(table_of(group, source.schema()), row_group_size=WRITE_ROWS)
                written += len(group)
            if not written:
                raise InputError(
                    f"FILE '{self.file}': no row can be used ({counts['rows_read']:,} read, {counts['empty']:,} empty)"
                )
        return {"table": table, "file": str(target), **counts, "rows_written": written}

    def _distinct(self, source: ColumnSource, counts: dict[str, int]) -> Iterator[Values]:
        """Yield the rows to write, and refuse a file in which an id stands twice."""
        places = range(len(source.columns))
        ids = [place for place in places if source.columns[place].name in ("query_id", "doc_id")]
        # Documents of one text, or of a title alone, are judged each.
        texts = places if ids else [place for place in places if source.columns[place].kind == "text"]
        seen: set[bytes] = set()
        seen_ids: set[int] = set()
        twice: dict[Values, None] = {}
        rows = source.rows(counts)
        if self.split:
            rows = ((sentence,) for (text,) in rows for sentence in sentences_of(text))
        for row in rows:
            key = hashlib.blake2b(frame_values([row[place] for place in texts]), digest_size=8).digest()
            if key in seen:
                counts["exact_duplicates"] += 1
                if self.drop:
                    continue
            seen.add(key)
            if ids:
                of_row = tuple(row[place] for place in ids)
                if hash(of_row) in seen_ids:
                    twice[of_row] = None
                seen_ids.add(hash(of_row))
            yield row
        if twice:
            names = " and ".join(source.columns[place].name for place in ids)
            raise InputError(
                f"FILE '{self.file}': {len(twice):,} values of {names} are there several times (the first: "
                f"{' and '.join(map(repr, next(iter(twice))))}); each may be there once, remove the other rows"
            )

    def _table(self, present: Sequence[str]) -> str:
        """Return the name of the table that the file becomes."""
        if self.kind == "retrieval":
            name = self._set_name()
            for part in RETRIEVAL:
                if {column.name for column in RETRIEVAL[part] if column.required} <= {*(self.columns or present)}:
                    return f"retrieval/{name}/{part}"
            parts = "; ".join(f"{part}: {', '.join(c.name for c in RETRIEVAL[part])}" for part in RETRIEVAL)
            raise InputError(f"--columns: say with them which table of the retrieval set it is ({parts})")
        default = KINDS.get(self.kind)
        if self.kind == "triplets" and "negative" not in (*self.columns, *present):
            default = "nli/pairs"  # a table with optional negatives
        if self.name and "/" in self.name:
            tables = (default or f"{TESTS}x", self.name)
            needed, needs = ([c.name for c in table_columns(table) if c.required] for table in tables)
            if needed != needs:
                raise InputError(
                    f"--name '{self.name}': must be a canonical table with the columns {', '.join(needed)}"
                )
            return self.name
        if default and self.name:
            raise InputError(
                f"--name '{self.name}': {self.kind} become the table {default}; remove the option, or name another canonical "
                f"table of the kind"
            )
        if default:
            return default
        name = self._set_name()
        if name.lower() in self.taken:
            raise InputError(f"--name '{name}': is the name of a public task; name your own set otherwise with --name")
        return f"{TESTS}{name.lower()}"

    def _set_name(self) -> str:
        name = self.name or title_of(self.file)
        if SET_NAME.fullmatch(name):
            return name
        raise InputError(f"--name '{name}': has up to 100 letters, digits and '_', '.', '-', '+'; name it with --name")

    def _columns(self, table: str, present: Sequence[str]) -> tuple[Column, ...]:
        """Return the columns of the table to write, after a check of the options."""
        columns = table_columns(table)
        names = [column.name for column in columns]
        problems = [
            f"--columns {name}=...: no column of {table}, which has {', '.join(names)}{nearest(name, names)}"
            for name in self.columns
            if name not in names
        ]
        if self.labels and not any(column.labels for column in columns):
            problems.append(f"--labels: {table} has no labels to map")
        problems += [
            f"--labels {word}={label}: must be one of {', '.join(NLI_LABELS)}, or {DROP}"
            for word, label in self.labels.items()
            if label not in (*NLI_LABELS, DROP)
        ]
        if self.split and self.kind != "sentences":
            problems.append("--split-sentences: cuts the texts of --as sentences alone")
        if problems:
            raise InputError(problems)
        return tuple(c for c in columns if c.required or c.name in self.columns or c.name in present)


def find_unused(root: Path, is_used: Callable[[Path], bool]) -> list[dict[str, str]]:
    """Return ``file``, ``why`` and a remedy ``command`` of each file that nothing reads."""
    entries = []
    for path in sorted(path for path in root.rglob("[!.]*") if path.is_file() and not is_used(path)):
        relative, command = path.relative_to(root), ""
        if any(part.startswith(".") for part in relative.parts):
            continue
        why = "not the name of a table" if path.suffix == ".parquet" else "tables are Parquet files"
        if path.suffix == ".parquet" and path.parent.with_name(f"{path.parent.name}.parquet").is_file():
            why = f"{path.parent.name}.parquet stands beside its folder and is read instead"
        try:
            if format_of(path) not in (*TABLES, LINES):
                why = "no format of a table"
            else:
                columns = columns_of_files([path])
                kind = next((kind for sign, kind in SIGNS.items() if sign in columns), "sentences")
                command = shlex.join(["raysts", "data", "import", str(path), "--as", kind, "--data", str(root)])
        except InputError as error:
            why = error.problems[0].removeprefix(f"{path}: ")
        entries.append({"file": relative.as_posix(), "why": why, "command": command})
    return entries

"""A user's file as a canonical table: its columns named, its labels mapped, empty rows and, if asked, duplicates left out.

The file is read once to check every row and to find duplicates, and once more to write; nothing is written before all of it
is known to be usable. Memory is a few bytes a row.
"""

import hashlib
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysts.data.own import NAME, TEXT
from raysts.data.user_files import LINES, content_of, files_of, format_of, missing, rows_of, title_of
from raysts.data.wikipedia.wikipedia import sentences_of
from raysts.errors import InputError, RunFailed, nearest
from raysts.schema import NLI_LABELS, RETRIEVAL, TESTS, Column, table_columns
from raysts.storage.store import Store

KINDS = ("sentences", "pairs", "nli", "triplets", "retrieval")
DROP = "drop"
"""What a label is mapped to whose rows are left out."""

WRITE_ROWS = 65_536
_MOST_PROBLEMS = 20

Values = tuple[Any, ...]
"""The values of a row in the order of the table's columns."""


@dataclass(frozen=True, kw_only=True)
class Import:
    """What is imported, and how.

    Attributes:
        file: the file, a folder of such, or a saved data set.
        columns: the file's column by canonical name; a canonical column that is not named has its own name.
        name: of the test set or retrieval set, or a canonical table of that kind; default: the file's.
        labels: an NLI label, or ``drop``, by the file's own word for it.
        drop: leave out rows whose texts equal those of an earlier row.
        taken: names of public tasks, which no test set can have.
    """

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

    def run(self) -> dict[str, Any]:
        """Write the table.

        Returns:
            ``table``, ``file``, ``rows_read``, ``rows_written``, ``empty``, ``left_out`` (rows whose label is dropped),
            ``exact_duplicates`` (rows whose texts equal those of an earlier row, dropped or not).

        Raises:
            InputError: the file or a row cannot be used, or the table is there already; nothing was written.
            RunFailed: the file is another than when its rows were checked; nothing was written.
        """
        if self.kind not in KINDS:
            raise InputError(f"--as '{self.kind}': must be one of {', '.join(KINDS)}{nearest(self.kind, KINDS)}")
        files = files_of(self.file, "FILE")
        table = self._table(files)
        columns = self._chosen(table, files)
        target = self._target(table)
        counts = {"rows_read": 0, "empty": 0, "left_out": 0, "exact_duplicates": 0}
        texts = [place for place, column in enumerate(columns) if column.kind == "text"]
        contents = [*map(content_of, files)]
        kept = self._keep(files, columns, texts, counts)
        kinds = [pa.float64() if column.kind == "number" else pa.string() for column in columns]
        schema = pa.schema([(column.name, kind) for column, kind in zip(columns, kinds, strict=True)])
        written = 0
        with Store.of(target).put(target) as draft, pq.ParquetWriter(draft, schema) as writer:
            rows = (row for row, wanted in zip(self._rows(files, columns, {}), kept, strict=False) if wanted)
            while some := list(islice(rows, WRITE_ROWS)):
                arrays = [
                    pa.array(values, kind) for values, kind in zip(zip(*some, strict=True), schema.types, strict=True)
                ]
                writer.write_table(pa.table(arrays, schema=schema), row_group_size=WRITE_ROWS)
                written += len(some)
            if [*map(content_of, files)] != contents:
                raise RunFailed(
                    f"FILE '{self.file}' was changed while it was read; leave it as it is, and run the same command again"
                )
        return {"table": table, "file": str(target), **counts, "rows_written": written}

    # -- which table ------------------------------------------------------------------------------------------------------

    def _table(self, files: Sequence[Path]) -> str:
        own = {"sentences": TEXT, "nli": "nli/train", "triplets": "nli/triplets"}
        if self.kind == "triplets" and "negative" not in (*self.columns, *_present(files)):
            own["triplets"] = "nli/pairs"  # whose negatives may be missing
        name = self.name or title_of(self.file)
        if self.kind == "retrieval":
            self._check_name(name)
            asked = {*self.columns} or {*_present(files)}
            part = next((part for part in RETRIEVAL if {c.name for c in RETRIEVAL[part] if c.required} <= asked), None)
            if part is None:
                parts = "; ".join(f"{part}: {', '.join(c.name for c in RETRIEVAL[part])}" for part in RETRIEVAL)
                raise InputError(f"--columns: say with them which table of the retrieval set it is ({parts})")
            return f"retrieval/{name}/{part}"
        if self.name and "/" in self.name:
            default = own.get(self.kind, f"{TESTS}x")
            wanted, there = ([c.name for c in table_columns(t) if c.required] for t in (default, self.name))
            if wanted != there:
                raise InputError(f"--name '{self.name}': is no canonical table with the columns {', '.join(wanted)}")
            return self.name
        if self.kind in own:
            if self.name:
                raise InputError(
                    f"--name '{self.name}': {self.kind} become the table {own[self.kind]}; leave it out, or name another "
                    f"canonical table of the kind"
                )
            return own[self.kind]
        self._check_name(name)
        if name.lower() in self.taken:
            raise InputError(f"--name '{name}': is the name of a public task; name your own set otherwise with --name")
        return f"{TESTS}{name.lower()}"

    def _check_name(self, name: str) -> None:
        if not NAME.fullmatch(name):
            raise InputError(
                f"--name '{name}': has up to 100 letters, digits and '_', '.', '-', '+'; name it with --name"
            )

    def _chosen(self, table: str, files: Sequence[Path]) -> list[Column]:
        known = table_columns(table)
        problems = [
            f"--columns {name}=...: no column of {table}, which has {', '.join(c.name for c in known)}"
            f"{nearest(name, [c.name for c in known])}"
            for name in self.columns
            if name not in [c.name for c in known]
        ]
        labelled = any(column.labels for column in known)
        problems += [] if labelled or not self.labels else [f"--labels: {table} has no labels to map"]
        problems += [
            f"--labels {theirs}={ours}: must be one of {', '.join(NLI_LABELS)}, or {DROP}"
            for theirs, ours in self.labels.items()
            if ours not in (*NLI_LABELS, DROP)
        ]
        problems += ["--split-sentences: cuts the texts of --as sentences alone"] * (
            self.split and self.kind != "sentences"
        )
        if problems:
            raise InputError(problems)
        present = _present(files)
        return [c for c in known if c.required or c.name in self.columns or c.name in present]

    def _target(self, table: str) -> Path:
        target = self.root / f"{table}.parquet"
        if (self.root / table).is_dir() and any((self.root / table).glob("*.parquet")):
            raise InputError(f"{self.root / table}: the table {table} is there, in shards; remove the folder first")
        if target.exists() and not self.force:
            raise InputError(
                f"{target}: the table {table} is there; replace it with --force, or take another --name or --data"
            )
        return target

    # -- rows ---------------------------------------------------------------------------------------------------------------

    def _rows(self, files: Sequence[Path], columns: Sequence[Column], counts: dict[str, int]) -> Iterator[Values]:
        """The usable rows in order; ``counts`` takes up the others.

        Raises:
            InputError: up to 20 rows that cannot be used.
        """
        theirs = {column.name: self.columns.get(column.name, column.name) for column in columns}

        def choose(path: Path, present: Sequence[str]) -> Sequence[str]:
            if format_of(path) == LINES and len(columns) == 1:
                return ["text"]
            absent = {name: column for name, column in theirs.items() if column not in present}
            optional = {c.name for c in columns if c.nulls or not c.required} - {*self.columns}
            example = ",".join(f"{name}=THEIRS" for name in absent)
            missing(path, [column for name, column in absent.items() if name not in optional], present, (
                f"say which of the file's columns it is with --columns {example}"
            ))  # fmt: skip
            return [column for column in dict.fromkeys(theirs.values()) if column in present]

        problems: list[str] = []
        for path in files:
            single = format_of(path) == LINES and len(columns) == 1
            for index, (where, row) in enumerate(rows_of(path, choose)):
                counts["rows_read"] = counts.get("rows_read", 0) + 1
                place = f"{path}: row {index}{where}"
                values = [row["text"]] if single else [row.get(theirs[column.name]) for column in columns]
                try:
                    found = [self._value(value, column) for value, column in zip(values, columns, strict=True)]
                    lacking = [c for value, c in zip(found, columns, strict=True) if value is None and not c.nulls]
                    if {column.kind for column in lacking} == {"number"}:
                        raise ValueError(f"column '{lacking[0].name}' is empty; must be a number, or leave the row out")
                except ValueError as error:
                    problems.append(f"{place}: {error}")
                    if len(problems) >= _MOST_PROBLEMS:
                        raise InputError(problems) from None
                    continue
                if lacking:
                    counts["empty"] = counts.get("empty", 0) + 1
                elif DROP in [value for value, column in zip(found, columns, strict=True) if column.labels]:
                    counts["left_out"] = counts.get("left_out", 0) + 1
                elif self.split:
                    yield from ((sentence,) for sentence in sentences_of(str(found[0])))
                else:
                    yield tuple(found)
        if problems:
            raise InputError(problems)

    def _value(self, value: Any, column: Column) -> Any:
        """As the table holds it; None for nothing."""
        if value is None or (isinstance(value, str) and not value.strip()):
            return None
        if column.kind == "text":
            if not isinstance(value, str):
                raise ValueError(f"column '{column.name}' holds {value!r:.40}, which is no text")
            return value.strip()
        if column.labels:
            word = self.labels.get(str(value), str(value).lower())
            if word.isdecimal() and int(word) < len(column.labels):
                word = column.labels[int(word)]
            if word not in (*column.labels, DROP):
                # Written together: to a command line that begins with '-', as SNLI's '-' and -1, is an option.
                by = shlex.quote(f"--labels={value}=")
                raise ValueError(
                    f"unknown label {value!r}; map it with {by}{'|'.join(column.labels)}, or leave its rows out with {by}{DROP}"
                )
            return word
        if column.kind == "label":
            return str(value)
        number = column.number(value)
        if number is None:
            raise ValueError(f"column '{column.name}' holds {value!r:.40}; must be {column.rule}")
        return number

    def _keep(
        self, files: Sequence[Path], columns: Sequence[Column], texts: Sequence[int], counts: dict[str, int]
    ) -> np.ndarray:
        """Return which usable rows [N] bool are written."""
        keys: set[bytes] = set()
        repeats: list[bool] = []
        ids = [place for place, column in enumerate(columns) if column.name in ("query_id", "doc_id")]
        owners: list[int] = []

        def owner(row: Values) -> Values:
            return tuple(row[place] for place in ids)

        for row in self._rows(files, columns, counts):
            text = "\x1f".join(str(row[place]) for place in (texts or range(len(row))))
            key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            repeats.append(key in keys)
            keys.add(key)
            if ids:
                owners.append(hash(owner(row)))
        if not repeats:
            raise InputError(
                f"FILE '{self.file}': no row can be used ({counts['rows_read']:,} read, {counts['empty']:,} empty)"
            )
        again = np.array(repeats)
        counts["exact_duplicates"] = int(again.sum())
        kept = ~again if self.drop else np.ones(len(again), bool)
        if ids:
            distinct, count = np.unique(np.array(owners)[kept], return_counts=True)
            if len(twice := distinct[count > 1]):
                first = next(owner(row) for row in self._rows(files, columns, {}) if hash(owner(row)) in twice)
                what = " and ".join(columns[place].name for place in ids)
                raise InputError(
                    f"FILE '{self.file}': {len(twice):,} values of {what} are there several times (the first: "
                    f"{' and '.join(map(repr, first))}); each may be there once, remove the other rows"
                )
        return kept


def _present(files: Sequence[Path]) -> list[str]:
    """The columns that any of the files has; of JSON lines those of any line."""
    found: dict[str, None] = {}

    def choose(path: Path, present: Sequence[str]) -> Sequence[str]:
        found.update(dict.fromkeys(present))
        return ["text"] if format_of(path) == LINES else []

    for path in files:
        for _ in rows_of(path, choose):
            if format_of(path) != ".jsonl":
                break
    return list(found)


def kind_of(columns: Sequence[str]) -> str:
    """What a file with these columns is most likely to be."""
    signs = {"nli": "premise", "pairs": "sentence1", "triplets": "anchor", "retrieval": "query_id"}
    retrieval = "doc_id" in columns
    return next((kind for kind, sign in signs.items() if sign in columns), "retrieval" if retrieval else "sentences")


def unused(root: Path, used: Callable[[Path], bool]) -> list[dict[str, str]]:
    """The files below a data folder that nothing reads: ``file``, ``why`` and the ``command`` that would use it."""
    found = []
    for path in sorted(path for path in root.rglob("[!.]*") if path.is_file() and not used(path)):
        relative = path.relative_to(root).as_posix()
        if any(part.startswith(".") for part in path.relative_to(root).parts):
            continue
        if format_of(path) not in (".parquet", ".csv", ".tsv", ".jsonl", LINES):
            found.append({"file": relative, "why": "no format of a table", "command": ""})
            continue
        try:
            kind = kind_of(_present([path]))
        except InputError as error:
            found.append({"file": relative, "why": error.problems[0].removeprefix(f"{path}: "), "command": ""})
            continue
        why = "not the name of a table" if path.suffix == ".parquet" else "tables are Parquet files"
        if path.suffix == ".parquet" and path.parent.with_name(f"{path.parent.name}.parquet").is_file():
            why = f"{path.parent.name}.parquet stands beside its folder and is read instead"
        command = shlex.join(["raysts", "data", "import", str(path), "--as", kind, "--data", str(root)])
        found.append({"file": relative, "why": why, "command": command})
    return found

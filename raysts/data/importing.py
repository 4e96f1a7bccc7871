"""``raysts data import``: rows of users' files, written as canonical tables."""

import hashlib
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from raysts.data import readers
from raysts.data.readers import DROP, LINES, TABLES, columns_of_files, files_of, format_of, title_of
from raysts.data.wikipedia.wikipedia import sentences_of
from raysts.errors import InputError, nearest
from raysts.schema import NLI_LABELS, RETRIEVAL, TESTS, Column, table_columns
from raysts.storage.atomic import no_empty_folders
from raysts.storage.store import Store

KINDS = {"sentences": "wikipedia/sentences", "nli": "nli/train", "triplets": "nli/triplets"}
"""The table of each kind that has one; ``pairs`` and ``retrieval`` have tables by the set's name."""

SIGNS = {"premise": "nli", "sentence1": "pairs", "anchor": "triplets", "query_id": "retrieval", "doc_id": "retrieval"}
"""The kind of a file with a column of this name; ``sentences`` without one."""

WRITE_ROWS = 65_536


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
        names = readers.match_columns(columns, self.columns, lambda absent: (
            f"say which of the file's columns it is with --columns {','.join(f'{name}=THEIRS' for name in absent)}"
        ))  # fmt: skip
        source = readers.ColumnSource(files=files, columns=columns, names=names, labels=self.labels)
        counts, written = {"exact_duplicates": 0}, 0
        with (
            no_empty_folders(target.parent),
            Store.of(target).put(target) as draft,
            pq.ParquetWriter(draft, source.schema()) as writer,
        ):
            rows = self._distinct(source, counts)
            while group := list(islice(rows, WRITE_ROWS)):
                writer.write_table(readers.table_of(group, source.schema()), row_group_size=WRITE_ROWS)
                written += len(group)
            if not written:
                raise InputError(
                    f"FILE '{self.file}': no row can be used ({counts['rows_read']:,} read, {counts['empty']:,} empty)"
                )
        return {"table": table, "file": str(target), **counts, "rows_written": written}

    def _distinct(self, source: readers.ColumnSource, counts: dict[str, int]) -> Iterator[readers.Values]:
        """Yield the rows to write, and refuse a file in which an id stands twice."""
        places = range(len(source.columns))
        ids = [place for place in places if source.columns[place].name in ("query_id", "doc_id")]
        # Documents of one text, or of a title alone, are judged each.
        texts = places if ids else [place for place in places if source.columns[place].kind == "text"]
        seen: set[bytes] = set()
        seen_ids: set[int] = set()
        twice: dict[readers.Values, None] = {}
        rows = source.rows(counts)
        if self.split:
            rows = ((sentence,) for (text,) in rows for sentence in sentences_of(text))
        for row in rows:
            key = hashlib.blake2b(readers.frame_values([row[place] for place in texts]), digest_size=8).digest()
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
        if readers.SET_NAME.fullmatch(name):
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

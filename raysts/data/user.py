"""The user's data: text to train on, development sets and test sets, as options name them.

They stand for canonical tables. A pass over each file checks every row and takes a fingerprint of the content, so that the same
rows in another file, or another format, are the same data. That pass writes nothing. A run writes the text as Parquet into its
storage, once, and checks that it is the same.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from raysts.data import readers
from raysts.data.checks import BATCH_ROWS
from raysts.data.facts import Facts
from raysts.data.readers import HUB, LINES, TABLES, files_of, format_of, is_hub, require_columns, title_of
from raysts.errors import InputError, Problems, RunFailed
from raysts.schema import DEVS, RETRIEVAL, TESTS, Column, table_columns

TEXT = "wikipedia/sentences"
"""The table that the user's text stands for."""

DEV = "sts/stsb_dev"
"""The table that the user's development sets stand for."""

HELD_OUT = 2_000
"""Most held-out texts: half of them to select by and half to report on."""

SHARE = 10
"""At most one text in so many is held out."""

QUERY = "query"
"""Column of the text: is the row one of the query side? A text without such rows lacks it."""

FEWEST = 20
"""Fewer held-out texts show nothing."""

PAIR = table_columns(f"{TESTS}NAME")
SUBSET = Column("subset", "label", required=False, nulls=True)

SCAN_VERSION = 2
"""Raise it when a pass over a text gives something else: texts are read again."""


class Scan(NamedTuple):
    """The result of one pass over a text."""

    rows: int
    """Texts that are not empty."""
    empty: int
    """Rows without a text (null, or white space alone), which are left out."""
    repeated: int
    """Rows that repeat an earlier text; they stay."""
    sha256: str
    smallest: list[list[Any]]
    """The texts of the smallest hashes, ascending: hash, text, number of rows."""


@dataclass(frozen=True)
class UserText:
    """The user's text, column ``sentence``."""

    title: str
    source: readers.ColumnSource
    scan: Scan
    held_count: int = 0
    """Number of texts of ``scan.smallest`` that are held out: no row with one of them is trained on."""
    queries: UserText | None = None
    """Texts of the query side, which stand between these, the documents, evenly."""

    @property
    def path(self) -> Path:
        return self.source.files[0]

    @property
    def rows(self) -> int:
        return self.documents + self.query_rows

    @property
    def documents(self) -> int:
        return self.scan.rows - sum(count for *_, count in self.scan.smallest[: self.held_count])

    @property
    def query_rows(self) -> int:
        return self.queries.rows if self.queries else 0

    @property
    def fingerprint(self) -> str:
        name = f"{self.scan.sha256} without {self.held_count}" if self.held_count else self.scan.sha256
        name += f" with {self.queries.fingerprint}" if self.queries else ""
        return name if name == self.scan.sha256 else hashlib.sha256(name.encode()).hexdigest()

    @property
    def held_out(self) -> list[str]:
        return [text for _, text, _ in self.scan.smallest[: self.held_count]]

    @property
    def sample(self) -> list[str]:
        """Some of its distinct texts, drawn by their content."""
        return [text for _, text, _ in self.scan.smallest]

    def holding_out(self) -> UserText:
        """Return a copy without held-out texts. They are drawn by content hash, so row order does not matter."""
        count = min(HELD_OUT, (self.scan.rows - self.scan.repeated) // SHARE) // 2 * 2
        return replace(self, held_count=count if count >= FEWEST else 0)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the texts, with queries also the column ``query``.

        Raises:
            RunFailed: at the end, if the files hold other texts than when they were checked.
        """
        schema, rows = self.source.schema(), self._texts()
        if self.queries:
            schema, rows = schema.append(pa.field(QUERY, pa.bool_())), self._both_sides()
        while texts := [*islice(rows, BATCH_ROWS)]:
            yield from readers.table_of(texts, schema).to_batches()

    def _both_sides(self) -> Iterator[readers.Values]:
        assert self.queries is not None
        queries, done, total = self.queries._texts(), 0, self.query_rows
        for number, row in enumerate(self._texts(), start=1):
            yield (*row, False)
            due = number * total // self.documents
            yield from ((*query, True) for query in islice(queries, due - done))
            done = due
        yield from ((*query, True) for query in queries)  # none, and checks them

    def _texts(self) -> Iterator[readers.Values]:
        """Yield the documents that are trained on. Raises as :meth:`batches`."""
        held_out, digest = {key for key, *_ in self.scan.smallest[: self.held_count]}, hashlib.sha256()
        for row in self.source.rows({}):
            digest.update(readers.frame_values(row))
            if not held_out or _hash(row[0]) not in held_out:
                yield row
        if digest.hexdigest() != self.scan.sha256:
            raise RunFailed(
                f"{self.path}: text {self.title} was changed after it was checked; leave it as it is while it is read, and run "
                f"the same command again"
            )

    def facts(self) -> dict[str, Any]:
        """Return the counts for the JSON line."""
        counts = {"rows": self.scan.rows, "empty": self.scan.empty, "repeated": self.scan.repeated}
        queries = {"queries": self.query_rows} if self.queries else {}
        return {"name": self.title, **counts, **queries, "held_out": self.held_count, "sha256": self.fingerprint}

    @property
    def line(self) -> str:
        """The counts for people."""
        counts = {
            "empty rows left out": self.scan.empty,
            "rows repeat an earlier text ('raysts data import' can drop them)": self.scan.repeated,
            "texts held out, on which nothing is trained": self.held_count,
        }
        if self.queries:
            counts[f"queries ({self.queries.title}), read behind the prompts of queries"] = self.query_rows
        parts = [f"{count:,} {note}" for note, count in counts.items() if count]
        return "; ".join([f"text {self.title}: {self.scan.rows:,} texts", *parts])


def open_text(place: str | Path, column: str | None, option: str = "--text", named: str = "--column") -> UserText:
    """Open text in a file, a folder, a saved data set or one of the hub, and read it once from end to end.

    Messages call it by its ``option``, and the option of its column ``named``.

    Raises:
        InputError: it cannot be read, has no such column, or no text.
    """
    files = files_of(place, option)
    source = _text_source(files, column, named)
    scan = _scan(files, column, source.states(), named)
    if not scan.rows:
        empty = f" ({scan.empty:,} empty rows)" if scan.empty else ""
        raise InputError(f"{option} '{place}': holds no text{empty}; every row needs a text of at least one character")
    if scan.rows == scan.repeated + 1 > 1:
        ((_, text, _), *_) = scan.smallest
        raise InputError(
            f"{option} '{place}': all {scan.rows:,} rows hold the same text ({text!r:.60}); {named} must name the column of texts"
        )
    return UserText(title_of(str(place)), source, scan)


def _text_source(files: tuple[Path, ...], column: str | None, named: str) -> readers.ColumnSource:
    def names(path: Path, present: Sequence[str]) -> Mapping[str, str]:
        if format_of(path) == LINES and not is_hub(path):
            if column not in (None, "text"):
                raise InputError(f"{path}: plain lines have no column '{column}'; remove {named}")
            return {"sentence": "text"}
        usual = present if len(present) == 1 else [name for name in ("text", "sentence") if name in present]
        if column is None and not usual:
            choices = ", ".join(present)
            raise InputError(f"{path}: say with {named} NAME which column holds the text; there are: {choices}")
        chosen = column or usual[0]
        require_columns(path, [chosen], present, f"{named} must name the one that holds the text")
        return {"sentence": chosen}

    return readers.ColumnSource(files=files, columns=table_columns(TEXT), names=names)


@lru_cache(maxsize=8)
def _scan(files: tuple[Path, ...], column: str | None, states: tuple[Any, ...], named: str) -> Scan:
    """Return the result of a pass over the files, or of an earlier one if they are unchanged."""
    facts = Facts("text", SCAN_VERSION, column, files=files)  # none of a data set on the hub, which changes unseen
    if stored := facts.read():
        return Scan(**stored)
    digest, hashes, counts = hashlib.sha256(), array("Q"), dict[str, int]()
    smallest: dict[str, str] = {}
    bound = "g"
    for row in _text_source(files, column, named).rows(counts):
        digest.update(readers.frame_values(row))
        key = _hash(row[0])
        hashes.append(int(key, 16))
        if key < bound:
            smallest[key] = row[0]
            if len(smallest) >= 2 * HELD_OUT:
                smallest = {key: smallest[key] for key in sorted(smallest)[:HELD_OUT]}
                bound = max(smallest)
    distinct, times = np.unique(np.array(hashes, np.uint64), return_counts=True)
    first = sorted(smallest.items())[:HELD_OUT]
    texts = [[key, text, int(count)] for (key, text), count in zip(first, times, strict=False)]
    scan = Scan(len(hashes), counts["empty"], len(hashes) - len(distinct), digest.hexdigest(), texts)
    facts.add(**scan._asdict())
    return scan


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, key=b"raysts").hexdigest()


@dataclass(frozen=True)
class UserRows:
    """Rows in memory: scored pairs, or one of the tables of a retrieval set."""

    title: str
    path: Path
    fingerprint: str
    table: pa.Table

    @property
    def rows(self) -> int:
        return int(self.table.num_rows)

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield from self.table.to_batches()


def open_pairs(path: str | Path, option: str, title: str | None = None) -> UserRows:
    """Open scored pairs and check every row.

    Scores may lie in any finite range. A column ``subset`` is optional. CSV and TSV have a header line. CSV is quoted
    as RFC 4180 says, TSV is not quoted (as the STS Benchmark is).

    Raises:
        InputError: the file cannot be read, lacks a column or holds rows that cannot be used (each with its row, counted from
            0, and in text files its line, counted from 1).
    """
    (file, *rest) = files_of(path, option, TABLES)
    if rest or not file.is_file():
        raise InputError(f"{option} '{path}': name one file of scored pairs ({', '.join(TABLES)})")
    remedy = (
        f"a pairs file needs {', '.join(c.name for c in PAIR)}: rename or add it, or write it with 'raysts data import "
        f"{path} --as pairs --columns sentence1=A,sentence2=B,score=C --data DIR'"
    )
    pairs = _read((file,), (*PAIR, SUBSET), remedy, title or title_of(str(path)))
    if not pairs.rows:
        raise InputError(f"{file}: no rows; a pairs file must hold at least two scored pairs")
    return pairs


def open_retrieval(folder: str | Path, option: str, title: str) -> dict[str, UserRows]:
    """Open the tables of a retrieval set, each a file or a folder of its name, and check every row.

    Raises:
        InputError: as :func:`open_pairs`, or a table is absent.
    """
    parts: dict[str, list[Path]] = {part: [] for part in RETRIEVAL}
    for file in files_of(folder, option, TABLES):
        part = name if (name := title_of(file.name)) in RETRIEVAL else file.parent.name
        parts.setdefault(part, []).append(file)
    if absent := [part for part in RETRIEVAL if not parts[part]]:
        raise InputError(
            f"{option} '{folder}': name one file of scored pairs, or the folder of a retrieval set with "
            f"{', '.join(RETRIEVAL)} ({', '.join(TABLES)}); it has no {', '.join(absent)}"
        )
    tables: dict[str, UserRows] = {}
    for part, columns in RETRIEVAL.items():
        needed = ", ".join(column.name for column in columns if column.required)
        remedy = f"{part} of a retrieval set needs {needed}: rename or add it"
        tables[part] = _read(tuple(parts[part]), columns, remedy, title)
        if not tables[part].rows:
            raise InputError(f"{parts[part][0]}: no rows; {part} of a retrieval set must hold at least one")
    return tables


def _read(files: tuple[Path, ...], columns: tuple[Column, ...], remedy: str, title: str) -> UserRows:
    names = readers.match_columns(columns, {}, lambda absent: remedy)
    source = readers.ColumnSource(files=files, columns=columns, names=names, strict=True)
    rows, digest = list(source.rows({})), hashlib.sha256()
    for row in rows:
        digest.update(readers.frame_values(row))
    table = readers.table_of(rows, source.schema())
    unused = [c.name for c in columns if not c.required and table.column(c.name).null_count == len(rows)]
    return UserRows(title, files[0], digest.hexdigest(), table.drop_columns(unused))


@dataclass(frozen=True, slots=True)
class UserData:
    """User data as options name it, which :meth:`open` reads."""

    text: str | None = None
    """File, folder or URI of text."""
    column: str | None = None
    dev: Mapping[str, str] = field(default_factory=dict)
    """Files of scored pairs and folders of retrieval sets by name, which select."""
    test: Mapping[str, str] = field(default_factory=dict)
    """Files of scored pairs and folders of retrieval sets by name, which results report."""
    queries: str | None = None
    """The same of texts of the query side."""
    queries_column: str | None = None

    @classmethod
    def of(
        cls, text: str | Path | None = None, column: str | None = None, dev: Mapping[str, str | Path] | None = None,
        test: Mapping[str, str | Path] | None = None, queries: str | Path | None = None, queries_column: str | None = None,
    ) -> UserData:  # fmt: skip
        """Return the options with paths on this machine made absolute, for records.

        Raises:
            InputError: a column without a text, queries without documents, or a name that cannot be one.
        """
        columns = {"--column": (column, text, "--text"), "--queries-column": (queries_column, queries, "--queries")}
        for option, (name, path, needed) in columns.items():
            if name is not None and path is None:
                raise InputError(f"{option} '{name}': says which column of {needed} PATH holds the text; give that too")
        if queries is not None and text is None:
            raise InputError(f"--queries '{queries}': stand beside the documents of --text PATH; give that too")
        for option, sets in (("--dev", dev or {}), ("--test", test or {})):
            for name in sets:
                if [other.lower() for other in sets].count(name.lower()) > 1:
                    raise InputError(f"{option} {name}: is given twice, in capitals and not; take two names")
                if not readers.SET_NAME.fullmatch(name):
                    raise InputError(
                        f"{option} {name}=...: a name has up to 100 letters, digits and '_', '.', '-', '+'"
                    )
        devs, tests = ({name.lower(): _absolute(path) for name, path in (s or {}).items()} for s in (dev, test))
        if twice := sorted({*devs} & {*tests}):
            raise InputError(f"--test {twice[0]}: is the name of a development set too; give the two different names")
        paths = [_absolute(path) if path else None for path in (text, queries)]
        return cls(paths[0], column, devs, tests, paths[1], queries_column)

    def __bool__(self) -> bool:
        return bool(self.text or self.dev or self.test)

    @property
    def paths(self) -> list[str]:
        return list(filter(None, (self.text, self.queries, *self.dev.values(), *self.test.values())))

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any] | None) -> UserData:
        return cls(**(plain or {}))

    def as_plain(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value or not key.startswith("queries")}

    def arguments(self) -> list[str]:
        """Return the options as they are typed."""
        values = [("--text", self.text), ("--column", self.column)]
        values += [("--queries", self.queries), ("--queries-column", self.queries_column)]
        values += [("--dev", f"{name}={path}") for name, path in self.dev.items()]
        values += [("--test", f"{name}={path}") for name, path in self.test.items()]
        return [part for option, value in values if value for part in (option, value)]

    def open(self) -> dict[str, UserText | UserRows]:
        """Read the data: the tables that it holds or stands for, by name.

        A development set is the table ``dev/NAME``, or the tables below it; all pairs together are the canonical table.

        Raises:
            InputError: a file cannot be read or holds what cannot be used.
        """
        tables: dict[str, UserText | UserRows] = {}
        devs: dict[str, UserRows] = {}
        problems = Problems()
        with problems.collect():
            if self.text:
                text = open_text(self.text, self.column)
                if self.queries:
                    queries = open_text(self.queries, self.queries_column, "--queries", "--queries-column")
                    text = replace(text, queries=queries)
                tables[TEXT] = text
        sets = [("--dev", name, path, DEVS, DEVS) for name, path in self.dev.items()]
        sets += [("--test", name, path, TESTS, "retrieval/") for name, path in self.test.items()]
        for option, name, path, pairs, retrieval in sets:
            remote = "://" in path and not path.startswith(HUB) and format_of(Path(path)) not in TABLES
            with problems.collect():
                if remote or ("://" not in path and Path(path).is_dir()):
                    parts = open_retrieval(path, f"{option} {name}", name)
                    rows = {f"{retrieval}{name}/{part}": of_part for part, of_part in parts.items()}
                else:
                    rows = {f"{pairs}{name}": open_pairs(path, f"{option} {name}", name)}
                tables |= rows
                devs |= rows if option == "--dev" else {}
        problems.raise_any()
        return tables | ({DEV: _join(devs)} if devs else {})


def _join(devs: Mapping[str, UserRows]) -> UserRows:
    """Return the pairs of all development sets as one table, in which each of several is a subset."""
    sets = [rows for name, rows in devs.items() if name.count("/") == 1]
    tables = [rows.table.select([column.name for column in PAIR]) for rows in sets]  # their own subsets play no part
    if len(devs) > 1:
        titles = [pa.array([rows.title] * rows.rows, pa.string()) for rows in sets]
        tables = [table.append_column("subset", title) for table, title in zip(tables, titles, strict=True)]
    prints = [rows.fingerprint for rows in devs.values()]
    fingerprint = prints[0] if len(prints) == 1 else hashlib.sha256("".join(prints).encode()).hexdigest()
    title = "+".join(dict.fromkeys(rows.title for rows in devs.values()))
    table = pa.concat_tables(tables) if tables else pa.table({column.name: [] for column in PAIR})
    return UserRows(title, next(iter(devs.values())).path, fingerprint, table)


def _absolute(path: str | Path) -> str:
    return str(path) if "://" in str(path) else str(Path(path).absolute())

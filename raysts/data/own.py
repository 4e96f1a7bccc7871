"""Data of the user's own that stands where a canonical table is read: text, a development set, test sets.

Nothing is written to say so: text is read from its file, once to check and count it and once more when it is tokenised.
The fingerprint of text is that of its texts, so that the same content in another file, or another format, is the same; those of
the other sets are of their files' bytes.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raysts.data.known import Known
from raysts.data.user_files import HUB, LINES, TABLES, files_of, format_of, missing, rows_of, title_of
from raysts.errors import InputError, RunFailed
from raysts.schema import RETRIEVAL, TESTS, Column, table_columns

TEXT = "wikipedia/sentences"
"""The table that text of the user's own stands for."""

DEV = "sts/stsb_dev"
"""The table that development sets of the user's own stand for."""

BATCH_ROWS = 8_192
HELD_OUT = 2_000
"""Most texts that are held out, half of them to select by and half to report on."""

SHARE = 10
"""At most one text in so many is held out."""

FEWEST = 20
"""Fewer held-out texts say nothing."""

NAME = re.compile(r"[A-Za-z0-9][\w.+=-]{0,99}")
PAIR = table_columns(f"{TESTS}NAME")
SUBSET = Column("subset", "label", required=False, nulls=True)
_MOST_PROBLEMS = 20

SCAN_VERSION = 1
"""Of what a pass over a text finds: raise it when that changes, and texts are read again."""


# -- text ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scan:
    """What one pass over a text found.

    Attributes:
        rows: texts that are not empty.
        empty: rows without a text (null, or white space alone), which are left out.
        repeated: rows whose text stood there before; they stay.
        smallest: the texts of the smallest hashes, ascending, with how often each stands there.
    """

    rows: int
    empty: int
    repeated: int
    sha256: str
    smallest: tuple[tuple[bytes, str, int], ...]


@dataclass(frozen=True, slots=True)
class Text:
    """Text of the user's own, column ``sentence``.

    Attributes:
        title: name of its file or folder.
        column: that holds the texts; None: the only one that can.
        held: how many of ``scan.smallest`` are held out: texts that nothing is trained on, whichever rows they stand in.
    """

    title: str
    files: tuple[Path, ...]
    column: str | None
    scan: Scan
    held: int = 0

    @property
    def path(self) -> Path:
        return self.files[0]

    @property
    def rows(self) -> int:
        return self.scan.rows - sum(count for *_, count in self.scan.smallest[: self.held])

    @property
    def sha256(self) -> str:
        if not self.held:
            return self.scan.sha256
        return hashlib.sha256(f"{self.scan.sha256} without {self.held}".encode()).hexdigest()

    @property
    def held_out(self) -> list[str]:
        return [text for _, text, _ in self.scan.smallest[: self.held]]

    def holding_out(self) -> Text:
        """Without some texts, drawn by their content alone: as good as at random, and the same wherever they stand."""
        count = min(HELD_OUT, (self.scan.rows - self.scan.repeated) // SHARE) // 2 * 2
        return replace(self, held=count if count >= FEWEST else 0)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """As of every :data:`OwnTable`.

        Raises:
            RunFailed: at the end, where the files hold other texts than when they were checked.
        """
        held, digest = {key for key, *_ in self.scan.smallest[: self.held]}, hashlib.sha256()
        texts: list[str] = []
        for text in filter(None, _texts(self.files, self.column)):
            digest.update(_framed(text))
            if held and _hash(text) in held:
                continue
            texts.append(text)
            if len(texts) == BATCH_ROWS:
                yield pa.record_batch({"sentence": pa.array(texts, pa.string())})
                texts = []
        if digest.hexdigest() != self.scan.sha256:
            raise RunFailed(
                f"{self.path}: text {self.title} was changed after it was checked; leave it as it is while it is read, and run "
                f"the same command again"
            )
        if texts:
            yield pa.record_batch({"sentence": pa.array(texts, pa.string())})

    def facts(self) -> dict[str, Any]:
        counts = {"rows": self.scan.rows, "empty": self.scan.empty, "repeated": self.scan.repeated}
        return {"name": self.title, **counts, "held_out": self.held, "sha256": self.sha256}

    @property
    def line(self) -> str:
        parts = [f"text {self.title}: {self.scan.rows:,} texts"]
        if self.scan.empty:
            parts.append(f"{self.scan.empty:,} empty rows left out")
        if self.scan.repeated:
            parts.append(f"{self.scan.repeated:,} rows repeat an earlier text ('raysts data import' can drop them)")
        if self.held:
            parts.append(f"{self.held:,} texts held out, on which nothing is trained")
        return "; ".join(parts)


def open_text(where: str | Path, column: str | None) -> Text:
    """Text in a file, a folder, a saved data set or one of the hub, read once from end to end.

    Raises:
        InputError: it cannot be read, has no such column, or no text.
    """
    files = files_of(where, "--text")
    scan = _scan(files, column)
    if not scan.rows:
        empty = f" ({scan.empty:,} empty rows)" if scan.empty else ""
        raise InputError(f"--text '{where}': holds no text{empty}; every row needs a text of at least one character")
    if scan.rows == scan.repeated + 1 > 1:
        ((_, text, _), *_) = scan.smallest
        raise InputError(
            f"--text '{where}': all {scan.rows:,} rows hold the same text ({text!r:.60}); --column must name the column of texts"
        )
    return Text(title_of(str(where)), files, column, scan)


def _scan(files: tuple[Path, ...], column: str | None) -> Scan:
    """What is known of the files as they are, else what one pass over them finds."""
    times = tuple(each.stat().st_mtime_ns for file in files if file.exists() for each in (file, *file.rglob("*")))
    if not all(file.is_file() for file in files):  # a data set, of whose files nothing is known here
        return _read_through(files, column, times)
    known = Known("text", SCAN_VERSION, column, files=files)
    if not (facts := known.facts()):
        scan = _read_through(files, column, times)
        known.add(**{**asdict(scan), "smallest": [(key.hex(), text, count) for key, text, count in scan.smallest]})
        return scan
    smallest = tuple((bytes.fromhex(key), text, count) for key, text, count in facts["smallest"])
    return Scan(**{**facts, "smallest": smallest})


@lru_cache(maxsize=8)
def _read_through(files: tuple[Path, ...], column: str | None, _times: tuple[int, ...]) -> Scan:
    digest, hashes, empty = hashlib.sha256(), array("Q"), 0
    smallest: dict[bytes, str] = {}
    bound = b"\xff" * 8
    for text in _texts(files, column):
        if text is None:
            empty += 1
            continue
        digest.update(_framed(text))
        key = _hash(text)
        hashes.append(int.from_bytes(key, "big"))
        if key < bound:
            smallest[key] = text
            if len(smallest) >= 2 * HELD_OUT:
                kept = sorted(smallest)[:HELD_OUT]
                smallest, bound = {name: smallest[name] for name in kept}, kept[-1]
    keys = sorted(smallest)[:HELD_OUT]
    distinct, counts = np.unique(np.array(hashes, np.uint64), return_counts=True)
    first = tuple((key, smallest[key], int(count)) for key, count in zip(keys, counts, strict=False))
    return Scan(len(hashes), empty, len(hashes) - len(distinct), digest.hexdigest(), first)


def _framed(text: str) -> bytes:
    """A text as the checksum of all has it: with its length, so that no two lists of texts are alike."""
    content = text.encode("utf-8", "surrogatepass")
    return len(content).to_bytes(8, "big") + content


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, key=b"raysts").digest()


def _texts(files: Sequence[Path], column: str | None) -> Iterator[str | None]:
    """The texts without white space around them; None for a row that has none."""

    def choose(path: Path, present: Sequence[str]) -> Sequence[str]:
        if format_of(path) == LINES and not str(path).startswith("hf:"):
            if column not in (None, "text"):
                raise InputError(f"{path}: plain lines have no column '{column}'; leave --column out")
            return ["text"]
        if column is None and len(present) != 1:
            raise InputError(
                f"{path}: say with --column NAME which column holds the text; there are: {', '.join(present)}"
            )
        chosen = column or present[0]
        missing(path, [chosen], present, "--column must name the one that holds the text")
        return [chosen]

    for path in files:
        for where, row in rows_of(path, choose):
            (name, value), *_ = row.items()
            if value is not None and not isinstance(value, str):
                raise InputError(
                    f"{path}{where}: column '{name}' holds {value!r:.40}, which is no text; name another one"
                )
            yield (value or "").strip() or None


# -- scored pairs and retrieval sets -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OwnRows:
    """Rows in memory: scored pairs, or one of the tables of a retrieval set."""

    title: str
    path: Path
    sha256: str
    table: pa.Table

    @property
    def rows(self) -> int:
        return int(self.table.num_rows)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        wanted = [name for name in columns or self.table.column_names if name in self.table.column_names]
        yield from self.table.select(wanted).to_batches()


def open_pairs(path: str | Path, option: str, title: str | None = None) -> OwnRows:
    """Scored pairs of a file, every row checked; scores may lie in any finite range, ``subset`` is read where it is there.

    CSV and TSV have a header line; CSV is quoted as RFC 4180 says, TSV is not quoted (as the STS Benchmark is).

    Raises:
        InputError: the file cannot be read, lacks a column or holds rows that cannot be used (each named by its row,
            counted from 0, and in text files its line, counted from 1).
    """
    (file, *others) = files_of(path, option, TABLES)
    if others or not file.is_file():
        raise InputError(f"{option} '{path}': name one file of scored pairs ({', '.join(TABLES)})")
    remedy = (
        f"a pairs file needs {', '.join(c.name for c in PAIR)}: rename or add it, or write it with 'raysts data import "
        f"{path} --as pairs --columns sentence1=A,sentence2=B,score=C --data DIR'"
    )
    found = _read([file], (*PAIR, SUBSET), remedy, title or title_of(str(path)))
    if not found.rows:
        raise InputError(f"{file}: no rows; a pairs file must hold at least two scored pairs")
    return found


def open_retrieval(folder: str | Path, option: str, title: str) -> dict[str, OwnRows]:
    """The tables of a retrieval set by their names (``raysts.schema.RETRIEVAL``), every row checked.

    Each is a file of its name below the folder, or a folder of such files.

    Raises:
        InputError: as :func:`open_pairs`, or a table is not there.
    """
    files = files_of(folder, option, TABLES)
    named = {f: name if (name := title_of(f.name)) in RETRIEVAL else f.parent.name for f in files}
    parts = {part: [f for f in files if named[f] == part] for part in RETRIEVAL}
    if absent := [part for part, of_part in parts.items() if not of_part]:
        raise InputError(
            f"{option} '{folder}': name one file of scored pairs, or the folder of a retrieval set with "
            f"{', '.join(RETRIEVAL)} ({', '.join(TABLES)}); it has no {', '.join(absent)}"
        )
    found: dict[str, OwnRows] = {}
    for part, of_part in parts.items():
        needed = ", ".join(column.name for column in RETRIEVAL[part] if column.required)
        remedy = f"{part} of a retrieval set needs {needed}: rename or add it"
        found[part] = _read(of_part, RETRIEVAL[part], remedy, title)
        if not found[part].rows:
            raise InputError(f"{of_part[0]}: no rows; {part} of a retrieval set must hold at least one")
    return found


def _is_folder(where: str) -> bool:
    if "://" in where:
        return not where.startswith(HUB) and format_of(Path(where)) not in TABLES
    return Path(where).is_dir()


def _read(files: Sequence[Path], columns: Sequence[Column], remedy: str, title: str) -> OwnRows:
    """The rows of files that have these columns; what is needed and not there is refused with the remedy."""
    needed = [column.name for column in columns if column.required]

    def choose(file: Path, present: Sequence[str]) -> Sequence[str]:
        missing(file, needed, present, remedy)
        return [column.name for column in columns if column.name in present]

    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    prints: list[str] = []
    for file in files:
        for index, (where, row) in enumerate(rows_of(file, choose)):
            checked = {}
            for column in columns:
                try:
                    checked[column.name] = _checked(row.get(column.name), column)
                except ValueError as error:
                    problems.append(f"{file}: row {index}{where}, column '{column.name}': {error}")
            if len(problems) >= _MOST_PROBLEMS:
                break
            rows.append(checked)
        with file.open("rb") as content:
            prints.append(hashlib.file_digest(content, "sha256").hexdigest())
    if problems:
        raise InputError(problems[:_MOST_PROBLEMS])
    there = [column for column in columns if column.required or any(row[column.name] is not None for row in rows)]
    kinds = {column.name: pa.float64() if column.kind == "number" else pa.string() for column in there}
    table = pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()})
    sha256 = prints[0] if len(prints) == 1 else hashlib.sha256("".join(prints).encode()).hexdigest()
    return OwnRows(title, files[0], sha256, table)


def _checked(value: Any, column: Column) -> Any:
    """A value as the table holds it; None where it says nothing of a row."""
    if column.kind == "number":
        number = column.number(value)
        if number is None:
            raise ValueError(
                f"{value!r} must be {column.rule} (decimal point, no thousands separator); correct or remove the row"
            )
        return number
    if column.kind == "label" and not isinstance(value, str):  # an id, which may be a number
        value = None if value is None else str(value)
    if value in (None, "") and column.nulls:
        return None
    if not isinstance(value, str) or not value.strip():
        what = "null or missing" if value is None else "empty sentence" if isinstance(value, str) else f"{value!r}"
        raise ValueError(f"{what}; every row needs a text of at least one character, correct or remove it")
    return value


def joined(sets: Sequence[OwnRows]) -> OwnRows:
    """Several development sets as one, each a subset."""
    tables = [one.table.select([column.name for column in PAIR]) for one in sets]  # their own subsets play no part
    if len(sets) == 1:
        return replace(sets[0], table=tables[0])
    parts = [
        table.append_column("subset", pa.array([one.title] * one.rows, pa.string()))
        for table, one in zip(tables, sets, strict=True)
    ]
    sha256 = hashlib.sha256("".join(one.sha256 for one in sets).encode()).hexdigest()
    return OwnRows("+".join(one.title for one in sets), sets[0].path, sha256, pa.concat_tables(parts))


@dataclass(frozen=True, slots=True)
class OwnDev:
    """Development sets of which some are retrieval sets; the rows are those of the others."""

    pairs: tuple[OwnRows, ...]
    retrieval: Mapping[str, Mapping[str, OwnRows]]

    @property
    def title(self) -> str:
        return "+".join([*(one.title for one in self.pairs), *self.retrieval])

    @property
    def path(self) -> Path:
        return self._tables[0].path

    @property
    def sha256(self) -> str:
        return hashlib.sha256("".join(table.sha256 for table in self._tables).encode()).hexdigest()

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.pairs)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        for one in self.pairs:
            yield from one.batches([column.name for column in PAIR])

    @property
    def _tables(self) -> list[OwnRows]:
        return [*self.pairs, *(table for tables in self.retrieval.values() for table in tables.values())]


OwnTable = Text | OwnRows | OwnDev
"""A table that stands where a canonical one is read: its title, the path that messages name, the sha256 of its content, its rows,
and ``batches`` of these, checked, with their canonical columns."""


# -- what a command is given ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Own:
    """The data of the user's own that a command is given, by name and place; :meth:`open` reads it.

    Attributes:
        text: file, folder or URI of text.
        dev: files of scored pairs and folders of retrieval sets by name, which select.
        test: files of scored pairs and folders of retrieval sets by name, which are reported on.
    """

    text: str | None = None
    column: str | None = None
    dev: Mapping[str, str] = field(default_factory=dict)
    test: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        text: str | Path | None = None,
        column: str | None = None,
        dev: Mapping[str, str | Path] | None = None,
        test: Mapping[str, str | Path] | None = None,
    ) -> Own:
        """Of options as they are given; a path on this machine becomes absolute, for records.

        Raises:
            InputError: a column without a text, or a name that cannot be one.
        """
        if column is not None and text is None:
            raise InputError(f"--column '{column}': says which column of --text PATH holds the text; give that too")
        for option, sets in (("--dev", dev or {}), ("--test", test or {})):
            for name in sets:
                if [other.lower() for other in sets].count(name.lower()) > 1:
                    raise InputError(f"{option} {name}: is given twice, in capitals and not; take two names")
                if not NAME.fullmatch(name):
                    raise InputError(
                        f"{option} {name}=...: a name has up to 100 letters, digits and '_', '.', '-', '+'"
                    )
        devs, tests = ({name.lower(): _absolute(path) for name, path in (s or {}).items()} for s in (dev, test))
        if twice := sorted({*devs} & {*tests}):
            raise InputError(f"--test {twice[0]}: is the name of a development set too; give the two different names")
        return cls(_absolute(text) if text else None, column, devs, tests)

    def __bool__(self) -> bool:
        return bool(self.text or self.dev or self.test)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any] | None) -> Own:
        return cls(**(plain or {}))

    def open(self) -> dict[str, OwnTable]:
        """What is given, by the name of the canonical table that it stands for.

        Raises:
            InputError: a file cannot be read or holds what cannot be used.
        """
        tables: dict[str, OwnTable] = {}
        problems: list[str] = []
        try:
            tables |= {TEXT: open_text(self.text, self.column)} if self.text else {}
        except InputError as error:
            problems += error.problems
        devs: list[OwnRows] = []
        searched: dict[str, dict[str, OwnRows]] = {}
        for option, sets in (("--dev", self.dev), ("--test", self.test)):
            for name, path in sets.items():
                try:
                    if _is_folder(path):
                        of_set = open_retrieval(path, f"{option} {name}", name)
                        if option == "--dev":
                            searched[name] = of_set
                        else:
                            tables |= {f"retrieval/{name}/{part}": rows for part, rows in of_set.items()}
                        continue
                    pairs = open_pairs(path, f"{option} {name}", name)
                    if option == "--dev":
                        devs.append(pairs)
                    else:
                        tables[f"{TESTS}{name}"] = pairs
                except InputError as error:
                    problems += error.problems
        if problems:
            raise InputError(problems)
        if searched:
            return {**tables, DEV: OwnDev(tuple(devs), searched)}
        return {**tables, DEV: joined(devs)} if devs else tables

    def as_plain(self) -> dict[str, Any]:
        return {"text": self.text, "column": self.column, "dev": dict(self.dev), "test": dict(self.test)}

    def arguments(self) -> list[str]:
        line = ["--text", self.text] if self.text else []
        line += ["--column", self.column] if self.column else []
        return line + [
            part
            for option, sets in (("--dev", self.dev), ("--test", self.test))
            for name, path in sets.items()
            for part in (option, f"{name}={path}")
        ]


def _absolute(path: str | Path) -> str:
    return str(path) if "://" in str(path) else str(Path(path).absolute())

"""The tables of a data folder, of the user's files, and those that are derived from them, by name."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from raysts.data import manifest
from raysts.data.derive import DERIVED
from raysts.data.spans import Spans
from raysts.data.tables import Derivation, Table
from raysts.data.user import DEV, TEXT, UserData, UserText
from raysts.data.world import world_path
from raysts.errors import InputError, RunFailed, nearest
from raysts.recipes.recipe import Data
from raysts.schema import RETRIEVAL, TABLES, TESTS, TRAINING_TABLES, table_columns
from raysts.storage.parquet import ParquetError
from raysts.storage.store import Store


def corpus_of(
    data: str | Path | None, recipe: str | None = None, skip_bad: bool = False, user_data: UserData | None = None
) -> Corpus:
    """Return the data: ``data``, else ``$RAYSTS_DATA``, else the embedded world.

    ``quickstart`` ignores ``$RAYSTS_DATA``, unless there is user text.

    Args:
        data: folder or URI in the canonical layout.
        recipe: name of the recipe.
        skip_bad: omit unreadable files of training tables.
        user_data: user data. Only ``quickstart`` mixes them with the embedded world.
    """
    pinned = recipe == "quickstart" and not (user_data and user_data.text)
    if data is None and not pinned:
        data = os.environ.get("RAYSTS_DATA") or None
    if data is not None:
        return Corpus(data if "://" in str(data) else Path(data).absolute(), skip_bad, user_data)
    if user_data and not pinned:
        return Corpus(None, user=user_data)
    try:
        return Corpus(world_path(), user=user_data)
    except OSError as error:
        raise RunFailed(
            f"the generated sentences cannot be written to the cache ({error}); set XDG_CACHE_HOME to a folder that you may "
            f"write in, or give a data folder with --data"
        ) from error


class Corpus(dict[str, Table]):
    """Tables by name, of a data folder and of the user's files. ``corpus[name]`` derives an absent table.

    Args:
        root: the folder, or the URI of one in an object store; None: there is nothing but ``user``.
        skip_bad: leave unreadable files out of training tables that have other files. Tables that select or report are never
            cut: their scores would not compare.
        user: files of the user that stand for canonical tables.

    Raises:
        InputError: the folder does not exist, the store does not answer, or a user's file cannot be used.
    """

    def __init__(self, root: str | Path | None, skip_bad: bool = False, user: UserData | None = None) -> None:
        self.empty, self.user, self.skip_bad = root is None, user or UserData(), skip_bad
        contents = self.user.open()
        root = root or os.devnull
        self.root = Store.open(root, "--data").root if "://" in str(root) else Path(root)
        self.store = Store.of(self.root)
        self.folder: Path | None = None
        self._derived: dict[str, Table] = {}
        files = {} if self.empty else self._list_files(root)
        for name, paths in files.items():
            skip, local = skip_bad and name in TRAINING_TABLES, not self.store.remote
            title = name.removeprefix(TESTS)
            self[name] = Table(name=name, title=title, paths=tuple(paths), skip_bad=skip, local=local)
        for name, content in contents.items():
            self[name] = Table(name=name, title=content.title, paths=(content.path,), content=content)

    def _list_files(self, root: str | Path) -> dict[str, list[Path]]:
        """Return the Parquet files of the data folder by table."""
        if self.store.remote:
            self.store.check(option="--data")
            tables = _list_store(self.store)
        elif self.root.is_dir():
            tables = _list_folder(self.root)
        else:
            fault = "is not a folder" if self.root.exists() else "does not exist"
            raise InputError(
                f"data folder '{root}' {fault}: --data must name a folder in the canonical layout "
                f"(sts/stsb_dev.parquet, nli/train.parquet, ...); make one with 'raysts data fetch --data {root}'"
            )
        return {name: paths for name, paths in tables.items() if paths and table_columns(name)}

    def __missing__(self, name: str) -> Table:
        if name not in self._derived:
            sources = [self[source] for source in self.sources(name)]
            if not sources:
                self.require([name])
            self._derived[name] = Table(name=name, title=name, content=Derivation(name, sources), folder=self.folder)
        return self._derived[name]

    def writing_to(self, folder: Path, hold_out: bool = False) -> Corpus:
        """Return a copy with a folder for tables that are not in Parquet files.

        With ``hold_out`` the table of the user's text lacks the held-out texts.
        """
        corpus = copy.copy(self)
        corpus.folder, corpus._derived = folder, {}
        corpus.update({name: replace(table, folder=folder) for name, table in self.own.items()})
        if hold_out and (text := self.text):
            corpus[TEXT] = replace(corpus[TEXT], content=text.holding_out())
        return corpus

    def table_with_spans(self, name: str, data: Data) -> Table:
        """Return a table of single texts with ``data.spans`` spans behind each text."""
        if not data.spans:
            return self[name]
        key = f"{name} {data.spans} {data.sample_seed} {data.span_tokens}"
        if key not in self._derived:
            content = Spans(self[name], data)
            self._derived[key] = Table(name=name, title=self.title(name), content=content, folder=self.folder)
        return self._derived[key]

    @property
    def own(self) -> dict[str, Table]:
        """The tables of the user's files."""
        return {name: table for name, table in self.items() if table.content}

    @property
    def text(self) -> UserText | None:
        content = self[TEXT].content if TEXT in self else None
        return content if isinstance(content, UserText) else None

    @property
    def uri(self) -> str | None:
        """The folder, or its URI, as a command takes it. None without a folder."""
        return None if self.empty else self.store.uri

    @property
    def where(self) -> str:
        """The folder, or its URI, for messages."""
        return self.uri or "the data folder (--data names none)"

    @property
    def sources_text(self) -> str:
        return ", ".join(dict.fromkeys(filter(None, [self.uri, *self.user.paths])))

    def sources(self, name: str) -> list[str]:
        """Return the tables that ``name`` is derived from, or none if the corpus has it."""
        if name not in DERIVED or name in self:
            return []
        return [table for table in DERIVED[name].sources if not DERIVED[name].any_source or table in self]

    def tables(self) -> list[str]:
        """Return the names of all tables, those that are derived left out."""
        of_sets = (f"retrieval/{name}/{part}" for name in self.retrieval_sets() for part in RETRIEVAL)
        return [name for name in (*TABLES, *self.tests(), *of_sets) if name in self]

    def tests(self) -> list[str]:
        """Return the names of the user's tables of scored pairs."""
        return sorted(name for name in self if name.startswith(TESTS))

    def retrieval_sets(self) -> list[str]:
        """Return the names of the retrieval sets, complete or not."""
        return list(dict.fromkeys(name.split("/")[1] for name in self if name.startswith("retrieval/")))

    def find_skipped(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """Return the files that the named tables leave out: table, file, rows, reason."""
        tables = {name: self[name] for name in dict.fromkeys(self._sources_of(names)) if name in self}
        return [skipped.plain(name, self.root) for name, table in tables.items() for skipped in table.skipped_files]

    def _sources_of(self, names: Iterable[str]) -> Iterator[str]:
        for name in names:
            yield from self.sources(name) or [name]

    def require(self, names: Iterable[str]) -> None:
        """Raise one InputError that names every missing table and its place."""
        problems = []
        for name in dict.fromkeys(self._sources_of(names)):
            if not table_columns(name):
                problems.append(f"unknown table '{name}'{nearest(name, TABLES)}")
            elif name not in self:
                origin = f" (or what it is made of, {' or '.join(DERIVED[name].sources)})" if name in DERIVED else ""
                problem = (
                    f"table '{name}'{origin} is missing: no data folder is given; name one in the canonical layout with "
                    f"--data PATH, which 'raysts data fetch' or 'raysts data import' makes"
                    if self.empty
                    else f"table '{name}' is missing: expected {self.where}/{name}.parquet or Parquet shards in "
                    f"{self.where}/{name}/{origin}; 'raysts data fetch' makes it, 'raysts data check' lists what is there"
                )
                problems.append(problem + self.describe_replacement(name))
        if problems:
            raise InputError(problems)

    def describe_replacement(self, name: str) -> str:
        """Return a hint for a user with a text who lacks a table."""
        if name == DEV:
            return "; scored pairs of your own select with --dev NAME=FILE"
        if not name.startswith("nli/") or self.text is None:
            return ""
        return (
            "; with text alone run ct-sed or simcse-unsup-sed, or have encoders that are there taught to one with "
            "'raysts distill MODEL MODEL --text PATH'"
        )

    def problems(self, names: Iterable[str], most: int = 20) -> list[str]:
        """Return at most ``most`` problems of named tables: missing columns, empty text, wrong values."""
        return list(islice((problem for name in names for problem in self[name].problems()), most))

    def check(self, names: Iterable[str]) -> None:
        """Raise InputError if a named table is missing or holds rows that cannot be used."""
        names = list(names)
        self.require(names)
        facts = {name: self[name].facts for name in self._sources_of(names) if self[name].content is None}
        unchecked = {name: entry for name, entry in facts.items() if not entry.read().get("sound")}
        if problems := self.problems(unchecked):
            raise InputError(problems)
        for entry in unchecked.values():
            entry.add(sound=True)

    def check_unchanged(self, names: Iterable[str]) -> None:
        """Check that the named tables agree with their fingerprints, before results are kept under these."""
        for name in dict.fromkeys(self._sources_of(names)):
            self[name].check_unchanged(self.where)

    def files(self, name: str) -> list[Path]:
        """Return the files of a table, or none if the corpus lacks or derives it."""
        if not table_columns(name):
            raise InputError(f"unknown table '{name}'{nearest(name, TABLES)}")
        return self[name].files if name in self else []

    def title(self, name: str) -> str:
        return self[name].title if name in self else name

    def fingerprint(self, name: str) -> str:
        return self[name].fingerprint

    def has_labels(self, name: str) -> bool:
        """Return True if the corpus has the table, with labels if the layout lets them be absent (SICK)."""
        files = self.files(name)
        if all(column.required for column in table_columns(name) if column.name == "label"):
            return bool(files)
        try:
            return bool(files) and all(self[name].has_column(file, "label") for file in files)
        except ParquetError:
            return True  # the check of its rows says what is wrong with the file

    def rows(self, name: str) -> int:
        return self[name].rows

    def read(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        return self[name].read(columns)

    def batches(self, name: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return self[name].batches(columns)


def _list_folder(root: Path) -> dict[str, list[Path]]:
    folders = [TESTS.rstrip("/"), *(path.relative_to(root).as_posix() for path in (root / "retrieval").glob("*/"))]
    entries = [f"{folder}/{path.name}" for folder in folders for path in (root / folder).glob("[!.]*")]
    names = dict.fromkeys([*TABLES, *sorted(entry.removesuffix(".parquet") for entry in entries)])
    return {name: manifest.table_files(root, name) for name in names}


def _list_store(store: Store) -> dict[str, list[Path]]:
    single: dict[str, list[Path]] = {}
    shards: dict[str, list[Path]] = {}
    for path in store.list(store.root, recursive=True):
        if path.suffix == ".parquet":
            name = path.relative_to(store.root).with_suffix("").as_posix()
            single[name] = [path]
            shards.setdefault(name.rpartition("/")[0], []).append(path)
    return shards | single

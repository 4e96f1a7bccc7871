"""Training text in test sets: which rows, and the corpus without them.

Two kinds are counted. A row is *unclean* when the model was trained on it: on its two sentences as one pair (in either
order; NLI premise and hypothesis, STS pairs, anchor and positive), or, where a row is a single sentence, on that
sentence. ``clean`` rows are the others. Rows of which some sentence occurs in the training text, anywhere, are counted
beside them and stay: a sentence without its partner says nothing about the score, and captions are shared by NLI and STS
so widely that without them other genres would be measured, not the same ones fairly. Texts are compared after
``raysts.evaluation.contamination.text_overlap.normalise``.

What is fitted on the sentences of test sets on purpose (table ``targets``) is marked in the column ``transductive`` and
not counted here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raysts.data.corpora import Corpus
from raysts.data.derived import TARGETS
from raysts.errors import InputError
from raysts.evaluation.contamination.lineage import TrainedOn, TrainingText
from raysts.evaluation.contamination.text_overlap import occurrences
from raysts.evaluation.tasks import Task
from raysts.ids import content_id
from raysts.recipes.tree import to_plain
from raysts.storage.checksums import set_aside
from raysts.storage.store import Store

VERSION = 2
FEWEST = 10
"""A subset of which fewer clean rows are left, or rows of one score alone, is left out of the clean rows."""

Masks = dict[str, tuple[np.ndarray, np.ndarray]]
"""Per table which rows were trained on, and of which some sentence was: bool, one for each row."""


@dataclass(frozen=True, slots=True)
class TaskContamination:
    """One task: its rows, those that were trained on, those of which some sentence was, those that are scored as clean."""

    rows: int
    trained: int
    sentence: int
    clean: int
    corpus: Corpus | None
    """With the clean rows alone; None where all rows are clean, or too few."""


@dataclass(frozen=True, slots=True)
class Contamination:
    """What is known of a model's training text in the test sets of tasks.

    ``tables``: training tables that were searched; ``unknown``: whose training text is not known.
    """

    tables: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    tasks: dict[str, TaskContamination] = field(default_factory=dict)

    def entries(self, of: str) -> list[dict[str, Any]]:
        """One per task as plain data, for the JSON line; one without a task where no training text is known."""
        known = {"of": of, "training_tables": list(self.tables), "unknown": list(self.unknown)}
        return [
            known
            | {
                "task": name, "rows": found.rows, "trained_rows": found.trained, "sentence_rows": found.sentence,
                "clean_rows": found.clean,
            }
            for name, found in self.tasks.items()
        ] or [known | {"task": None}]  # fmt: skip

    def lines(self, of: str) -> list[str]:
        """For people: one line per task with training text, one for all others, one for what is not known."""
        where = ", ".join(self.tables)
        found = []
        for name, task in self.tasks.items():
            if not task.trained and not task.sentence:
                continue
            share = f"{task.trained:,} of {task.rows:,} rows are training rows ({where})" if task.trained else ""
            share = share or f"none of {task.rows:,} rows is a training row ({where})"
            scored = f"; scored without them as rows=clean, n={task.clean:,}" if task.corpus else ""
            scored = scored or ("; too few others to be scored apart" if task.trained else "")
            found.append(f"{of}: {name}: {share}; {task.sentence:,} hold a sentence of the training text{scored}")
        free = [name for name, task in self.tasks.items() if not task.trained and not task.sentence]
        if free:
            found.append(f"{of}: no training text ({where}) in {', '.join(free)}")
        if self.unknown:
            found.append(f"{of}: training text not on record, so not searched: {', '.join(self.unknown)}")
        return found

    def refuse(self, of: str) -> list[str]:
        """What ``--strict-contamination`` has against the evaluation of this model."""
        return [
            f"--strict-contamination: {task.trained:,} of {task.rows:,} rows of {name} are training rows of {of} "
            f"({', '.join(self.tables)}); leave the task out, train on other data, or leave the option out and read "
            f"the rows=clean scores"
            for name, task in self.tasks.items()
            if task.trained
        ]


def contamination(
    corpus: Corpus, tasks: Mapping[str, Task], trained: TrainedOn, cache: Path | None = None
) -> Contamination:
    """Search the training text of a model for the rows of ``tasks``.

    Args:
        corpus: holds the test sets and the training tables; one that it does not hold as it was is called unknown.
        cache: folder in which the result of each training table is kept, by the fingerprints of what it depends on.
    """
    tables = {name: task.tested(corpus) for name, task in tasks.items()}
    wanted = tuple(sorted({table for each in tables.values() for table in each}))
    texts = [text for text in trained.texts if text.table != TARGETS]
    there = [text for text in texts if _is_there(corpus, text)]
    missing = [
        f"{text.called} as it was trained on (not in {corpus.described or corpus.where})"
        for text in texts
        if text not in there
    ]
    found: Masks = {}
    for text in there:
        for table, (row, sentence) in _occurrences(corpus, text, wanted, cache).items():
            before = found.get(table, (False, False))
            found[table] = (row | before[0], sentence | before[1])
    known = {name: _of_task(corpus, tasks[name], each, found) for name, each in tables.items() if each and there}
    searched = dict.fromkeys(text.title or text.table for text in there)
    return Contamination(tuple(searched), (*trained.unknown, *missing), known)


def _is_there(corpus: Corpus, text: TrainingText) -> bool:
    held = corpus.files(text.table) or corpus.sources(text.table)
    return bool(held) and corpus.fingerprint(text.table) == text.sha256


def _occurrences(corpus: Corpus, text: TrainingText, tables: Sequence[str], cache: Path | None) -> Masks:
    prints = [(table, corpus.fingerprint(table)) for table in tables]
    key = content_id([VERSION, text.table, text.sha256, to_plain(text.data), prints])
    path = cache / f"{key}.json" if cache else None
    known = _known(path) if path else None
    if known is None:
        found = occurrences(corpus, text.table, text.data, tables)
        if path:
            plain = {
                name: [len(row), *(np.flatnonzero(m).tolist() for m in (row, s))] for name, (row, s) in found.items()
            }
            Store.of(path).write_json(path, {"table": text.table, "rows": plain})
        return found
    return known


def _known(path: Path) -> Masks | None:
    """What was found before; None where nothing is on record, or something else."""
    known = Store.of(path).read_json(path)
    try:
        rows = known["rows"].items() if known else ()
        return {name: (_mask(size, row), _mask(size, some)) for name, (size, row, some) in rows} if known else None
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError):
        set_aside(path)
        return None


def _mask(size: int, rows: Sequence[int]) -> np.ndarray:
    found = np.zeros(size, bool)
    found[np.array(rows, np.int64)] = True
    return found


def _of_task(corpus: Corpus, task: Task, tables: Sequence[str], found: Masks) -> TaskContamination:
    measured = {table: task.measured(corpus, table) & np.ones_like(found[table][0]) for table in tables}

    def count(masks: Mapping[str, np.ndarray]) -> int:
        return sum(int((masks[table] & measured[table]).sum()) for table in tables)

    trained, sentence = (count({table: found[table][kind] for table in tables}) for kind in (0, 1))
    rows = count(measured)
    if not trained:
        return TaskContamination(rows, 0, sentence, rows, None)
    kept = {table: _kept(corpus, table, ~found[table][0]) for table in tables}
    clean = count(kept)
    without = corpus.keeping(kept)
    enough = clean >= FEWEST and not _problems(task, without)
    return TaskContamination(rows, trained, sentence, clean if enough else 0, without if enough else None)


def _problems(task: Task, corpus: Corpus) -> bool:
    try:
        return bool(task.problems(corpus))
    except InputError:
        return True


def _kept(corpus: Corpus, table: str, clean: np.ndarray) -> np.ndarray:
    """The clean rows, without those of subsets of which too few are left."""
    columns = corpus.read(table)
    if "subset" not in columns.column_names or "score" not in columns.column_names:
        return clean
    subset = np.array(columns.column("subset").cast(pa.string()).fill_null("").to_pylist())
    score = np.array(columns.column("score").to_pylist(), float)
    kept = clean.copy()
    for name in np.unique(subset):
        left = clean & (subset == name)
        if not clean[subset == name].all() and (left.sum() < FEWEST or len(np.unique(score[left])) < 2):
            kept[subset == name] = False
    return kept

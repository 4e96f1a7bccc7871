"""Evaluation of a model on every task at once: each distinct text is embedded once, for all tasks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from raysts.data.corpora import Corpus
from raysts.errors import InputError, nearest
from raysts.evaluation import retrieval
from raysts.evaluation.contamination import Contamination, TrainedOn, contamination
from raysts.evaluation.entailment import ENTAILMENT_TASKS
from raysts.evaluation.results import ResultRow, git_commit
from raysts.evaluation.scores import ModelScores, RowScores, result_rows, scores_by_set
from raysts.evaluation.statistics import RESAMPLES
from raysts.evaluation.sts import STS_TASKS, sts_task
from raysts.evaluation.tasks import LabelledSet, Model, Represent, Representation, Similarities, Task, lookup
from raysts.evaluation.transfer import PROBE, TRANSFER, TransferSet
from raysts.evaluation.words import WORDS, is_static
from raysts.models.layers import Layers
from raysts.models.prompts import Text
from raysts.schema import RESULTS, SCHEMA_VERSION, TESTS

TASKS: dict[str, Task] = {
    **STS_TASKS,
    **ENTAILMENT_TASKS,
    retrieval.NAME: retrieval.ALL_SETS,
    "transfer": TRANSFER,
    "words": WORDS,
}
"""Every public task by name. Adding a task is one entry."""

HEAVY = tuple(name for name, task in TASKS.items() if task.heavy)

VERSION = 4
"""Part of the id of an evaluation; raise it when the row scores of the same evaluation change."""

Progress = Callable[[int, int], None]
"""Function that takes the number of embedded texts, and that of all."""


def tasks_of(corpus: Corpus) -> dict[str, Task]:
    """Return every task by name: the public ones, the user's own test sets, the retrieval sets."""
    if problems := taken_names(corpus):
        raise InputError(problems)
    user = (sts_task(table.removeprefix(TESTS), table) for table in corpus.tests())
    searched = map(retrieval.retrieval_task, corpus.retrieval_sets())
    return TASKS | {task.name: task for task in (*user, *searched)}


def taken_names(corpus: Corpus) -> list[str]:
    """Return a problem for each test set of the user that has the name of a public task."""
    problems = []
    for table in corpus.tests():
        name, place = table.removeprefix(TESTS), f"{corpus.where}/{table}.parquet"
        if name.lower() in TASKS:
            place = f"--test {name}=..." if table in corpus.own else place
            problems.append(f"{place}: has the name of a public task; give your own set another name")
    return problems


def default_tasks(corpus: Corpus, heavy: bool = True) -> tuple[str, ...]:
    """Return every task with files, without ``heavy`` only those that do not take minutes."""
    return tuple(
        name
        for name, task in tasks_of(corpus).items()
        if (heavy or not task.heavy) and task.tables(corpus) and task.is_default(corpus)
    )


def left_out(corpus: Corpus, tasks: Sequence[str]) -> list[str]:
    """Return a line for each task without some sets, and for each set without some rows."""
    lines, by_name = [], tasks_of(corpus)
    for name in tasks:
        missing = by_name[name].left_out(corpus)
        tables = ", ".join(dict.fromkeys(table for tables in missing.values() for table in tables))
        if missing:
            sets = ", ".join(label.removeprefix(f"{name}:") for label in missing)
            lines.append(f"{name}: left out {sets}; {corpus.where} has not all of {tables}")
        lines += [remark for labelled in by_name[name].sets(corpus) for remark in labelled.remarks]
    return lines


def check_tasks(corpus: Corpus, names: Sequence[str] | None = None, heavy: bool = True) -> tuple[str, ...]:
    """Check every row that the tasks will read, and return their names (default: :func:`default_tasks`).

    Raises:
        InputError: an unknown task, a named task without files, no task at all, or rows that cannot be used.
    """
    by_name, names = tasks_of(corpus), [names] if isinstance(names, str) else names
    if unknown := [name for name in names or () if name not in by_name]:
        possible = ", ".join(by_name)
        raise InputError([f"unknown task '{name}'{nearest(name, by_name)}; tasks are {possible}" for name in unknown])
    if absent := [name for name in names or () if not by_name[name].tables(corpus)]:
        present = ", ".join(default_tasks(corpus)) or "none"
        expected = {name: ", ".join(f"{table}.parquet" for table in by_name[name].expected_tables()) for name in absent}
        raise InputError(
            f"task '{name}' has no files in {corpus.where} (it reads {tables}, each a file or a folder of shards); "
            f"tasks with files: {present}; 'raysts data fetch' makes the rest"
            for name, tables in expected.items()
        )
    chosen = tuple(dict.fromkeys(names)) if names else default_tasks(corpus, heavy)
    if retrieval.NAME in chosen:  # holds that of every set
        chosen = tuple(name for name in chosen if not name.startswith(f"{retrieval.NAME}:"))
    if not chosen:
        raise InputError(
            f"{corpus.where} holds the files of no task; tasks are {', '.join(TASKS)}; "
            f"'raysts data check' lists what is there, 'raysts data fetch' makes what is missing, and scored pairs of your "
            f"own are a task with --test NAME=FILE"
        )
    corpus.check(dict.fromkeys(table for name in chosen for table in by_name[name].tables(corpus)))
    if problems := [problem for name in chosen for problem in by_name[name].problems(corpus)]:
        raise InputError(problems)
    return chosen


def sets_of(corpus: Corpus, tasks: Iterable[str], probe: str = PROBE) -> list[LabelledSet]:
    """Return the labelled sets of the tasks. ``probe``: one of :data:`raysts.evaluation.transfer.PROBES`."""
    by_name = tasks_of(corpus)
    sets = [labelled for name in tasks for labelled in by_name[name].sets(corpus)]
    return [replace(labelled, probe=probe) if isinstance(labelled, TransferSet) else labelled for labelled in sets]


def sentences(corpus: Corpus, tasks: Iterable[str]) -> list[Text]:
    """Return the distinct texts of the tasks in order of first appearance."""
    return distinct_texts(sets_of(corpus, tasks))


def distinct_texts(sets: Iterable[LabelledSet]) -> list[Text]:
    """Return the distinct texts of labelled sets in order of first appearance."""
    return list(dict.fromkeys(text for labelled in sets for text in labelled.texts))


def find_contamination(
    corpus: Corpus, tasks: Iterable[str], trained: TrainedOn, cache: Path | None = None
) -> Contamination:
    """Search the training text of a model in the test sets of tasks, by :func:`contamination`."""
    by_name = tasks_of(corpus)
    return contamination(corpus, {name: by_name[name].sets(corpus) for name in tasks}, trained, cache)


def row_scores(sets: Iterable[LabelledSet], represent: Represent, similarities: Similarities) -> list[RowScores]:
    """Return the values that a model gives the rows of all sets."""
    return [scores for labelled in sets for scores in labelled.row_scores(represent, similarities)]


def compared_scores(
    sets: Iterable[LabelledSet], texts: Sequence[Text], representation: Representation, similarities: Similarities
) -> ModelScores:
    """Return the scores by which a model is compared, from its representation of the texts of all sets."""
    return scores_by_set(row_scores(sets, lookup(texts, representation), similarities))


def evaluate(
    model: Model,
    corpus: Corpus,
    tasks: Sequence[str] | None = None,
    layers: Sequence[Layers] | None = None,
    context: Mapping[str, Any] | None = None,
    resamples: int = RESAMPLES,
    probe: str = PROBE,
    **options: Any,
) -> list[ResultRow]:
    """Return the results rows of a model on the named tasks of a corpus (default: every task with files).

    ``probe`` is of :func:`sets_of`, the other options of :func:`evaluate_sets`.

    Raises:
        InputError: as :func:`check_tasks`, or a task refuses the model.
        UndefinedCorrelationError: the model gives every pair the same similarity, or one that is not finite.
    """
    tasks, context = check_tasks(corpus, tasks), context or {}
    of_model: list[ResultRow] = []
    if WORDS.name in tasks:
        reader: Any = model  # of token vectors
        words = WORDS.read(corpus, contextual=not is_static(reader))  # before the others: it may refuse the model
        for choice, scores in words.row_scores(reader, layers).items():
            of_model += rows_of(scores, {**context, "layers": str(choice)}, resamples)
    return evaluate_sets(model, sets_of(corpus, tasks, probe), layers, context, resamples, **options) + of_model


def evaluate_sets(
    model: Model,
    sets: Sequence[LabelledSet],
    layers: Sequence[Layers] | None = None,
    context: Mapping[str, Any] | None = None,
    resamples: int = RESAMPLES,
    similarities: Similarities | None = None,
    clean: Mapping[str, np.ndarray] | None = None,
    progress: Progress | None = None,
    index: Mapping[Text, np.ndarray] | None = None,
) -> list[ResultRow]:
    """Return the results rows of a model on labelled sets.

    All choices of pooled ``layers`` come from one pass over the texts, by default the model's own. ``context``:
    columns that evaluation cannot know (run_id, system, role, ...). ``index``: vectors of documents by another model.
    """
    index = index or {}
    if not (texts := [text for text in distinct_texts(sets) if text not in index]):
        return []
    chosen = tuple(layers or (model.layers,))
    by_layers = model.represent_layers(texts, chosen, **progress_options(progress, len(texts)))
    rows = []
    for choice, representation in by_layers.items():
        represent = retrieval.search_index(lookup(texts, representation), index)
        scores = row_scores(sets, represent, similarities or model.similarities)
        context = {**(context or {}), "layers": str(choice), "pooling": model.pooling}
        rows += rows_of(scores, context, resamples, clean) + baseline_rows(sets, context, resamples, clean)
    return rows


def baseline_rows(
    sets: Iterable[LabelledSet],
    context: Mapping[str, Any],
    resamples: int,
    clean: Mapping[str, np.ndarray] | None = None,
) -> list[ResultRow]:
    """Return the results rows of what needs no model. Arguments as of :func:`rows_of`."""
    shared = {name: context.get(name) for name in ("study", "trial", "layers")}
    return rows_of((scores for labelled in sets for scores in labelled.baseline_scores()), shared, resamples, clean)


def progress_options(progress: Progress | None, total: int) -> dict[str, Any]:
    """Return the option by which a model reports every batch, as a running sum."""
    if progress is None:
        return {}
    sizes: list[int] = []

    def advance(rows: int) -> None:
        sizes.append(rows)
        progress(sum(sizes), total)

    progress(0, total)
    return {"progress": advance}


def rows_of(
    scores: Iterable[RowScores],
    context: Mapping[str, Any],
    resamples: int,
    clean: Mapping[str, np.ndarray] | None = None,
) -> list[ResultRow]:
    """Return results rows with every column of the table, null if the value is unknown.

    ``context``: columns that the scores do not know; a row of a baseline keeps its role. ``clean``: by set the rows that are
    clean; results on these stand beside those on all rows.
    """
    created_at = datetime.now(UTC).isoformat(timespec="seconds")
    common = {"schema_version": SCHEMA_VERSION, "created_at": created_at, "git_commit": git_commit()}
    shared = {**dict.fromkeys(RESULTS.names), **context, **common}
    assert len(shared) == len(RESULTS.names), f"not a column of the results table: {[*shared][len(RESULTS.names) :]}"
    rows: list[ResultRow] = []
    for of_set in scores:
        rows += result_rows(of_set, resamples)
        if clean and of_set.dataset in clean:
            rows += result_rows(of_set, resamples, clean[of_set.dataset])
    return [{**shared, **row} for row in rows]

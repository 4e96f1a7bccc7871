"""Evaluation of a model on every task at once: each distinct sentence is embedded once, for all tasks."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from raysts.data.corpora import Corpus
from raysts.errors import InputError, nearest
from raysts.evaluation import retrieval
from raysts.evaluation.contamination.contamination import Contamination, contamination
from raysts.evaluation.contamination.lineage import TrainedOn
from raysts.evaluation.entailment import ENTAILMENT_TASKS
from raysts.evaluation.results import ResultRow
from raysts.evaluation.statistics import RESAMPLES
from raysts.evaluation.sts import STS_TASKS, Pairs, StsTask, rows_of
from raysts.evaluation.tasks import LayeredModel, Model, ModelTask, Representation, Similarities, Task, lookup
from raysts.evaluation.transfer import PROBE, TransferTask
from raysts.evaluation.words.task import WordsTask
from raysts.models.layers import Layers
from raysts.schema import RESULTS, SCHEMA_VERSION, TESTS

TASKS: dict[str, Task] = {
    **STS_TASKS,
    **ENTAILMENT_TASKS,
    retrieval.NAME: retrieval.RetrievalTask(),
    "transfer": TransferTask(),
    "words": WordsTask(),
}
"""Every public task by name. Adding a task is one entry."""

VERSION = 3
"""Part of the id of an evaluation; raise it when the rows of the same evaluation change."""

LAYERS = (1, 2)
"""Numbers of pooled last layers that every evaluation records, so that comparisons can be made at equal numbers."""


def tasks_of(corpus: Corpus, probe: str = PROBE) -> dict[str, Task]:
    """Every task by name: the public ones, and one for each test set of the user's own and each retrieval set.

    ``probe``: one of :data:`raysts.evaluation.transfer.PROBES`.

    Raises:
        InputError: as :func:`taken_names` says.
    """
    if problems := taken_names(corpus):
        raise InputError(problems)
    own = {table.removeprefix(TESTS): table for table in corpus.tests()}
    return {
        **TASKS,
        "transfer": TransferTask(probe=probe),
        **{name: StsTask(name, (table,)) for name, table in own.items()},
        **{f"{retrieval.NAME}:{name}": retrieval.RetrievalTask(name) for name in corpus.retrieval_sets()},
    }


def taken_names(corpus: Corpus) -> list[str]:
    """Test sets of the user's own that bear the name of a public task, in whose place nothing may be measured."""
    names = [table.removeprefix(TESTS) for table in corpus.tests()]
    return [
        f"{f'--test {name}=...' if f'{TESTS}{name}' in corpus.own else f'{corpus.where}/{TESTS}{name}.parquet'}: has the name of "
        f"a public task; give your own set another name"
        for name in names
        if name.lower() in TASKS
    ]


def default_tasks(corpus: Corpus, heavy: bool = True) -> tuple[str, ...]:
    """Every task whose files exist; without ``heavy`` those alone that do not take minutes."""
    return tuple(
        name
        for name, task in tasks_of(corpus).items()
        if (heavy or not task.heavy) and task.tables(corpus) and task.by_default(corpus)
    )


def left_out(corpus: Corpus, tasks: Sequence[str]) -> list[str]:
    """What tasks that run on the sets that are there leave out, a line for each."""
    lines, known = [], tasks_of(corpus)
    for name in tasks:
        missing = known[name].left_out(corpus)
        tables = ", ".join(dict.fromkeys(table for tables in missing.values() for table in tables))
        if missing:
            lines.append(f"{name}: left out {', '.join(missing)}; {corpus.where} has not all of {tables}")
    return lines


def check_tasks(corpus: Corpus, names: Sequence[str] | None = None, heavy: bool = True) -> tuple[str, ...]:
    """The tasks to run (:func:`default_tasks` when none is named), after checking every row they will read.

    Raises:
        InputError: an unknown task, a named task without files, no task at all, or rows that cannot be used.
    """
    known, names = tasks_of(corpus), [names] if isinstance(names, str) else names
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise InputError(
            [f"unknown task '{name}'{nearest(name, known)}; tasks are {', '.join(known)}" for name in unknown]
        )
    absent = [name for name in names or () if not known[name].tables(corpus)]
    if absent:
        raise InputError([_no_files(corpus, name) for name in absent])
    chosen = tuple(dict.fromkeys(names)) if names else default_tasks(corpus, heavy)
    if retrieval.NAME in chosen:  # holds that of every set
        chosen = tuple(name for name in chosen if not name.startswith(f"{retrieval.NAME}:"))
    if not chosen:
        raise InputError(
            f"{corpus.where} holds the files of no task; tasks are {', '.join(TASKS)}; "
            f"'raysts data check' lists what is there, 'raysts data fetch' makes what is missing, and scored pairs of your "
            f"own are a task with --test NAME=FILE"
        )
    tables = dict.fromkeys(table for name in chosen for table in known[name].tables(corpus))
    corpus.check(tables)
    problems = [problem for name in chosen for problem in known[name].problems(corpus)]
    if problems:
        raise InputError(problems)
    return chosen


def sentences(corpus: Corpus, tasks: Sequence[str]) -> list[str]:
    """The distinct texts of the tasks in order of first appearance."""
    known = tasks_of(corpus)
    return list(dict.fromkeys(text for name in tasks for text in known[name].sentences(corpus)))


def score(
    corpus: Corpus,
    tasks: Sequence[str],
    texts: Sequence[str],
    representation: Representation,
    similarities: Similarities,
    context: Mapping[str, Any],
    resamples: int = RESAMPLES,
    contaminated: Contamination | None = None,
    probe: str = PROBE,
) -> list[ResultRow]:
    """Results rows of one representation of ``texts`` (one row for each; :func:`sentences` of the tasks, or more), by
    each of its similarities.

    ``context`` gives the columns evaluation cannot know (run_id, system, role, layers, ...). With ``contaminated``, the training
    text of the model in the test sets, tasks that hold some have their values on the other rows too, column ``rows`` clean.
    ``probe``: as :func:`tasks_of`.
    """
    represent, known = lookup(texts, representation), tasks_of(corpus, probe)
    rows: list[ResultRow] = []
    for name in tasks:
        rows += known[name].score(corpus, represent, similarities, resamples)
        clean = contaminated.tasks[name].corpus if contaminated and name in contaminated.tasks else None
        if clean is not None:
            apart = known[name].score(clean, represent, similarities, resamples)
            rows += [{**row, "rows": "clean"} for row in apart]
    return complete(rows, context)


def searched(corpus: Corpus, tasks: Sequence[str], trained: TrainedOn, cache: Path | None = None) -> Contamination:
    """The training text of a model in the test sets of tasks; see :func:`contamination`."""
    known = tasks_of(corpus)
    return contamination(corpus, {name: known[name] for name in tasks}, trained, cache)


def evaluate(
    model: Model,
    corpus: Corpus,
    tasks: Sequence[str] | None = None,
    layers: Sequence[Layers] | None = None,
    context: Mapping[str, Any] | None = None,
    resamples: int = RESAMPLES,
    similarities: Similarities | None = None,
    contaminated: Contamination | None = None,
    probe: str = PROBE,
) -> list[ResultRow]:
    """Results rows of a model on the named tasks (default: every task whose files exist).

    Args:
        layers: choices of pooled layers, all from one pass over the sentences; by default 1, 2 and the model's own. A
            model that is no :class:`~raysts.evaluation.tasks.LayeredModel` is evaluated as it is.

    Raises:
        InputError: as :func:`check_tasks`, or a task refuses the model.
        UndefinedCorrelationError: the model gives every pair the same similarity, or one that is not finite.
    """
    tasks = check_tasks(corpus, tasks)
    texts = sentences(corpus, tasks)
    of_model: list[ResultRow] = []
    known = tasks_of(corpus)
    for task in (known[name] for name in tasks):
        if isinstance(task, ModelTask):  # before the others: it may refuse the model
            from raysts.models.sentence_model import SentenceModel

            assert isinstance(model, SentenceModel), "such a task asks for token vectors"
            of_model += task.score_model(model, corpus, layers, resamples)
    rows = [
        row
        for own, representation in (_representations(model, texts, layers) if texts else ())
        for row in score(
            corpus,
            tasks,
            texts,
            representation,
            similarities or model.similarities,
            {**(context or {}), **own},
            resamples,
            contaminated,
            probe=probe,
        )
    ]
    return rows + complete(of_model, context or {})


def evaluate_pairs(
    model: Model,
    pairs: Pairs,
    layers: Sequence[Layers] | None = None,
    context: Mapping[str, Any] | None = None,
    resamples: int = RESAMPLES,
    similarities: Similarities | None = None,
) -> list[ResultRow]:
    """Results rows of a model on a user's own pairs; ``dataset`` is their name. Arguments as :func:`evaluate`."""
    by = similarities or model.similarities
    return [
        row
        for own, representation in _representations(model, pairs.sentences, layers)
        for row in complete(rows_of(pairs, "test", representation, by, resamples), {**(context or {}), **own})
    ]


def _representations(
    model: Model, texts: list[str], layers: Sequence[Layers] | None
) -> list[tuple[dict[str, Any], Representation]]:
    if isinstance(model, LayeredModel):
        fitting = [k for k in LAYERS if k <= model.depth]
        choices = tuple(layers) if layers else tuple(dict.fromkeys([*fitting, model.layers]))
        by_layers = model.represent_layers(texts, choices)
    else:
        by_layers = {model.layers: model.represent(texts)}
    return [({"layers": str(k), "pooling": model.pooling}, representation) for k, representation in by_layers.items()]


def complete(rows: Sequence[ResultRow], context: Mapping[str, Any]) -> list[ResultRow]:
    """Rows with every column of the results table, null where nobody knows the value."""
    common = {"schema_version": SCHEMA_VERSION, "created_at": datetime.now(UTC).isoformat(timespec="seconds")}
    blank = dict.fromkeys(RESULTS.names)
    complete = [{**blank, **context, **common, **row} for row in rows]
    for row in complete:
        assert row.keys() == blank.keys(), f"not a column of the results table: {sorted(row.keys() - blank.keys())}"
    return complete


def _no_files(corpus: Corpus, name: str) -> str:
    expected = ", ".join(f"{table}.parquet" for table in tasks_of(corpus)[name].expected())
    present = ", ".join(default_tasks(corpus)) or "none"
    return (
        f"task '{name}' has no files in {corpus.where} (it reads {expected}, each a file or a folder of shards); "
        f"tasks with files: {present}; "
        f"'raysts data fetch' makes the rest"
    )

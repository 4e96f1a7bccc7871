"""Training text of a model, the rows of test sets that hold it, and the clean rows.

A row is *unclean* when the model was trained on it: on its two sentences as one pair (in either order), or, where a row is a
single sentence, on that sentence. Rows with a sentence that occurs anywhere in the training text are counted beside them and
stay clean: a sentence without its partner says nothing about the score, and without captions, which NLI and STS share,
other genres would be measured.

What is fitted on the sentences of test sets on purpose (table ``targets``) is marked in the column ``transductive`` and
not counted here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from raysts.data.corpora import Corpus
from raysts.data.derive import TARGETS
from raysts.evaluation.tasks import LabelledSet
from raysts.evaluation.text_overlap import Masks, occurrences
from raysts.ids import content_id
from raysts.recipes.recipe import Data
from raysts.recipes.tree import build, to_plain
from raysts.storage.checksums import set_aside
from raysts.storage.runs import RunFolder, record_of
from raysts.storage.store import Store

TINY = "tiny"
VERSION = 2
FEWEST = 10
"""A subset with fewer clean rows, or with clean rows of one score alone, has no clean rows; nor has such a set."""


@dataclass(frozen=True, slots=True)
class TrainingText:
    """Rows of a canonical table that some stage was trained on.

    ``sha256``: of the table. ``title``: name of user data in the place of the table.
    """

    table: str
    data: Data
    sha256: str
    title: str | None = None

    @property
    def label(self) -> str:
        """``table 'nli/train'``, ``text 'docs'``."""
        return f"table '{self.table}'" if self.title is None else f"text '{self.title}'"


@dataclass(frozen=True, slots=True)
class TrainedOn:
    """The training text of a model with all that went before it: its parents, its teachers and theirs.

    ``unknown`` names the models without training text on record, for example an external backbone.
    """

    texts: tuple[TrainingText, ...] = ()
    unknown: tuple[str, ...] = ()


def merge_histories(histories: Iterable[TrainedOn]) -> TrainedOn:
    """Return the training text of all of these."""
    histories = list(histories)
    return TrainedOn(
        tuple(dict.fromkeys(text for history in histories for text in history.texts)),
        tuple(dict.fromkeys(model for history in histories for model in history.unknown)),
    )


def trained_on(model: Path) -> TrainedOn:
    """Return the recorded training text of the model in a folder (of a run ``runs/<id>/model``)."""
    history = _History()
    history.add_model(model)
    return TrainedOn(tuple(history.texts), tuple(history.unknown))


class _History:
    """Training text of a model and of all that went before it."""

    def __init__(self) -> None:
        self.texts: dict[TrainingText, None] = {}
        self.unknown: dict[str, None] = {}
        self._models = set[Path]()
        self._reads: dict[Path, dict[str, Path]] = {}

    def add_model(self, model: Path) -> None:
        model = model.absolute()
        if model in self._models:
            return
        self._models.add(model)
        run, runs, store = model.parent, model.parent.parent, Store.of(model)
        record = record_of(model)
        if record and "data" not in record:  # a weight average: nothing but its members
            for parent in record["parents"]:
                self._add_run(runs / parent, "member")
            return
        recipe = store.read_json(run / "recipe.json") if record else None
        if not recipe:
            if not _is_untrained(model):
                self.unknown[f"'{model}' (no record of a run beside it)"] = None
            return
        parent, *teachers = record["parents"]
        data = record["data"]
        rows = build(Data, recipe["data"], f"{run / 'recipe.json'}: ")
        self.texts[TrainingText(data["table"], rows, data["sha256"], data.get("name"))] = None
        if parent == record["backbone_id"]:
            self._add_backbone(str(record["backbone"]), runs)
        else:
            self._add_run(runs / parent, "parent")
        for teacher in teachers:
            means = store.read_json(runs.parent / "embeddings" / teacher / "manifest.json") or {"members": [teacher]}
            for member in means["members"]:
                self._add_run(runs / member, "teacher")

    def _add_run(self, run: Path, role: str) -> None:
        if RunFolder(run).record():
            self.add_model(run / "model")
        elif folder := self._folder_of(run):  # a model that was named has its content as id
            self.add_model(folder)
        else:
            self.unknown[f"{role} {run.name} (not a run of this storage)"] = None

    def _add_backbone(self, name: str, runs: Path) -> None:
        if Path(name).is_absolute():  # of an object store it may name another machine's mirror
            path, store = Path(name), Store.of(Path(name))
            self.add_model(Store.open(store.uri).path(store.key(path)) if store.remote else path)
        elif name != TINY:
            models = [run / "model" for run in Store.of(runs).list(runs) if run.name.startswith(name)]
            models = [model for model in models if record_of(model) and Store.of(model).exists(model)]
            if len(models) == 1:
                self.add_model(models[0])
            else:
                self.unknown[f"backbone '{name}'"] = None

    def _folder_of(self, run: Path) -> Path | None:
        """Return the folder with the content ``run.name`` that a run or study of the storage reads."""
        storage, store = run.parent.parent, Store.of(run)
        if storage not in self._reads:
            patterns = (("pipelines", "*.json"), ("studies", "*/study.json"))
            paths = [path for folder, names in patterns for path in store.get_all(storage / folder, names)]
            records = [record for record in map(store.read_json, paths) if record]
            reads = [(content, storage / folder) for r in records for content, folder in r.get("reads", {}).items()]
            self._reads[storage] = dict(sorted(reads, key=lambda read: bool(record_of(read[1]))))  # runs win
        return self._reads[storage].get(run.name)


def _is_untrained(folder: Path) -> bool:
    """Return True if records of the storage name ``folder`` as the random backbone of the embedded world."""
    storage, store = folder.parent.parent, Store.of(folder)
    tiny_id = folder.name.removeprefix(f"{TINY}-")
    if folder != storage / "backbones" / f"{TINY}-{tiny_id}":
        return False
    runs = map(store.read_json, store.get_all(storage / "runs", "run.json"))
    if any(run and (run["backbone"], run["backbone_id"]) == (TINY, tiny_id) for run in runs):
        return True
    pipelines = map(store.read_json, store.get_all(storage / "pipelines", "*.json"))
    return any(plan and (plan["pipeline"]["backbone"], plan["backbone_id"]) == (TINY, tiny_id) for plan in pipelines)


@dataclass(frozen=True, slots=True)
class TaskContamination:
    """Numbers of rows of one task: all, trained on, with some sentence that was, and clean.

    ``masks``: the clean rows by set, if they are others than all and enough to be scored.
    """

    rows: int
    trained_rows: int
    sentence_rows: int
    clean_rows: int
    masks: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Contamination:
    """Training text of a model in the test sets of tasks.

    ``tables``: training tables that were searched. ``unknown``: what has no training text on record. ``caches``: files that keep
    what was searched.
    """

    tables: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    tasks: dict[str, TaskContamination] = field(default_factory=dict)
    caches: tuple[Path, ...] = ()

    @property
    def clean(self) -> dict[str, np.ndarray]:
        """The clean rows by set, of sets in which they are others than all."""
        return {name: mask for task in self.tasks.values() for name, mask in task.masks.items()}

    def entries(self, model: str) -> list[dict[str, Any]]:
        """Return plain data for the JSON line: one entry per task, or one without a task."""
        shared = {"of": model, "training_tables": list(self.tables), "unknown": list(self.unknown)}
        names = ("rows", "trained_rows", "sentence_rows", "clean_rows")
        by_task = {task: {name: getattr(counts, name) for name in names} for task, counts in self.tasks.items()}
        return [{**shared, "task": task, **counts} for task, counts in by_task.items()] or [{**shared, "task": None}]

    def lines(self, model: str) -> list[str]:
        """Return a line per task with training text, one for all others, one for what is not known."""
        searched = ", ".join(self.tables)
        lines, free = [], []
        for name, task in self.tasks.items():
            if not task.trained_rows and not task.sentence_rows:
                free.append(name)
                continue
            share, scored = f"none of {task.rows:,} rows is a training row ({searched})", ""
            if task.trained_rows:
                share = f"{task.trained_rows:,} of {task.rows:,} rows are training rows ({searched})"
                scored = "; too few others to be scored apart"
            if task.masks:
                scored = f"; scored without them as rows=clean, n={task.clean_rows:,}"
            lines.append(f"{name}: {share}; {task.sentence_rows:,} hold a sentence of the training text{scored}")
        if free:
            lines.append(f"no sentence of the training text ({searched}) is in {', '.join(free)}")
        if self.unknown:
            unknown = "; ".join(self.unknown)
            lines.append(f"test sentences were not looked for in training text that is not on record: {unknown}")
        return [f"{model}: {line}" for line in lines]

    def refuse(self, model: str) -> list[str]:
        """Return the problems of ``--strict-contamination`` with the evaluation of this model."""
        return [
            f"--strict-contamination: {task.trained_rows:,} of {task.rows:,} rows of {name} are training rows of {model} "
            f"({', '.join(self.tables)}); leave the task out, train on other data, or leave the option out and read "
            f"the rows=clean scores"
            for name, task in self.tasks.items()
            if task.trained_rows
        ]


def contamination(
    corpus: Corpus, tasks: Mapping[str, Sequence[LabelledSet]], trained: TrainedOn, cache: Path | None = None
) -> Contamination:
    """Search the training text of a model for the rows of the sets of ``tasks``.

    A training table that the corpus does not hold as it was is called unknown. ``cache``: folder for the result of each
    training table.
    """
    tables = tuple(sorted({table for sets in tasks.values() for labelled in sets for table in labelled.rows}))
    texts = [text for text in trained.texts if text.table != TARGETS]
    stored = [text for text in texts if corpus.files(text.table) or corpus.sources(text.table)]
    present = [text for text in stored if corpus.fingerprint(text.table) == text.sha256]
    places = {True: f"not in {corpus.sources_text or corpus.where}", False: "which this command does not read"}
    labels = dict.fromkeys((text.label, places[text.title is None]) for text in texts if text not in present)
    missing = [f"{label} as it was trained on ({place})" for label, place in labels]
    masks: Masks = {}
    prints = [(table, corpus.fingerprint(table)) for table in tables]
    ids = [content_id([VERSION, text.table, text.sha256, to_plain(text.data), prints]) for text in present]
    caches = [cache / f"{text_id}.json" if cache else None for text_id in ids]
    for text, file in zip(present, caches, strict=True):
        for table, (row, sentence) in _occurrences(corpus, text, tables, file).items():
            before = masks.get(table, (False, False))
            masks[table] = (row | before[0], sentence | before[1])
    measured = {name: [labelled for labelled in sets if labelled.rows] for name, sets in tasks.items()}
    of_tasks = {name: _count_rows(sets, masks) for name, sets in measured.items() if sets and present}
    titles = tuple(dict.fromkeys(text.title or text.table for text in present))
    return Contamination(titles, (*trained.unknown, *missing), of_tasks, tuple(filter(None, caches)))


def _occurrences(corpus: Corpus, text: TrainingText, tables: Sequence[str], path: Path | None) -> Masks:
    """Return what :func:`occurrences` does, from the file that an equal search has written."""
    if path is None:
        return occurrences(corpus, text.table, text.data, tables)
    record = Store.of(path).read_json(path)
    try:
        if record:
            sets = record["rows"].items()
            return {name: (_mask(size, row), _mask(size, sentence)) for name, (size, row, sentence) in sets}
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError):  # a record of another form
        set_aside(path)
    masks = occurrences(corpus, text.table, text.data, tables)
    rows = {name: [len(pair[0]), *(np.flatnonzero(mask).tolist() for mask in pair)] for name, pair in masks.items()}
    Store.of(path).write_json(path, {"table": text.table, "rows": rows})
    return masks


def _mask(size: int, rows: Sequence[int]) -> np.ndarray:
    mask = np.zeros(size, bool)
    mask[np.array(rows, np.int64)] = True
    return mask


def _count_rows(sets: Sequence[LabelledSet], masks: Masks) -> TaskContamination:
    trained, sentence = (
        [np.concatenate([masks[table][kind][rows] for table, rows in labelled.rows.items()]) for labelled in sets]
        for kind in (0, 1)
    )
    were_trained, have_sentence = (sum(int(rows.sum()) for rows in of_kind) for of_kind in (trained, sentence))
    size = sum(len(rows) for rows in trained)
    if not were_trained:
        return TaskContamination(size, 0, have_sentence, size)
    clean = {labelled.name: _clean(labelled, of_set) for labelled, of_set in zip(sets, trained, strict=True)}
    scored = {name: clean[labelled.name] for labelled in sets for name in labelled.datasets}
    scored = {name: mask for name, mask in scored.items() if mask.any()}
    return TaskContamination(size, were_trained, have_sentence, sum(int(m.sum()) for m in clean.values()), scored)


def _clean(labelled: LabelledSet, trained: np.ndarray) -> np.ndarray:
    """Return the clean rows of a set, without subsets (or a set) that have too few."""
    clean = ~trained
    for rows in (*labelled.subsets.values(), np.arange(len(trained))):
        free = rows[clean[rows]]
        one_label = labelled.gold is not None and len(np.unique(labelled.gold[free])) < 2
        if len(free) < len(rows) and (len(free) < FEWEST or one_label):
            clean[rows] = False
    return clean

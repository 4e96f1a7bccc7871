"""Training text of a model, from the records of the runs behind it."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from raysts.recipes.recipe import Data
from raysts.recipes.tree import build
from raysts.storage.runs import RunFolder, record_of
from raysts.storage.store import Store

TINY = "tiny"


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
    return _trace(model, _Trail(set(), {}))


@dataclass(frozen=True, slots=True)
class _Trail:
    """Models of a history so far.

    Attributes:
        seen: their folders.
        folders: by storage and content, the models that runs read.
    """

    seen: set[Path]
    folders: dict[Path, dict[str, Path]]

    def folder_of(self, run: Path) -> Path | None:
        """Return the run's model with the content ``run.name`` that another run reads. Records are read once."""
        storage, store = run.parent.parent, Store.of(run)
        if storage not in self.folders:
            records = map(store.read_json, store.get_all(storage / "pipelines", "*.json"))
            reads = [item for record in records if record for item in record.get("reads", {}).items()]
            self.folders[storage] = {content: storage / folder for content, folder in reads}
        return self.folders[storage].get(run.name)


def _trace(model: Path, trail: _Trail) -> TrainedOn:
    model = model.absolute()
    if model in trail.seen:
        return TrainedOn()
    trail.seen.add(model)
    run, runs, store = model.parent, model.parent.parent, Store.of(model)
    record = record_of(model)
    if record and "data" not in record:  # a weight average: nothing but its members
        return merge_histories(_trace_run(runs / parent, "member", trail) for parent in record["parents"])
    recipe = store.read_json(run / "recipe.json") if record else None
    if not recipe:
        if _is_untrained(model):
            return TrainedOn()
        return TrainedOn(unknown=(f"'{model}' (no record of a run beside it)",))
    parent, *teachers = record["parents"]
    data = record["data"]
    rows = build(Data, recipe["data"], f"{run / 'recipe.json'}: ")
    behind = [TrainedOn((TrainingText(data["table"], rows, data["sha256"], data.get("name")),))]
    if parent == record["backbone_id"]:
        behind.append(_trace_backbone(str(record["backbone"]), runs, trail))
    else:
        behind.append(_trace_run(runs / parent, "parent", trail))
    for teacher in teachers:
        means = store.read_json(runs.parent / "embeddings" / teacher / "manifest.json") or {"members": [teacher]}
        behind += [_trace_run(runs / member, "teacher", trail) for member in means["members"]]
    return merge_histories(behind)


def _trace_run(run: Path, role: str, trail: _Trail) -> TrainedOn:
    if RunFolder(run).record():
        return _trace(run / "model", trail)
    if folder := trail.folder_of(run):  # a model that was named has its content as id
        return _trace(folder, trail)
    return TrainedOn(unknown=(f"{role} {run.name} (not a run of this storage)",))


def _trace_backbone(name: str, runs: Path, trail: _Trail) -> TrainedOn:
    if name == TINY:
        return TrainedOn()
    if Path(name).is_absolute():
        return _trace(_local_path(Path(name)), trail)
    models = [run / "model" for run in Store.of(runs).list(runs) if run.name.startswith(name)]
    models = [model for model in models if record_of(model) and Store.of(model).exists(model)]
    return _trace(models[0], trail) if len(models) == 1 else TrainedOn(unknown=(f"backbone '{name}'",))


def _local_path(path: Path) -> Path:
    """Return a recorded path on this machine: of an object store it may name another machine's mirror."""
    store = Store.of(path)
    return Store.open(store.uri).path(store.key(path)) if store.remote else path


def _is_untrained(folder: Path) -> bool:
    """Return True if records of the storage name ``folder`` as the random backbone of the embedded world."""
    storage, store = folder.parent.parent, Store.of(folder)
    tiny_id = folder.name.removeprefix(f"{TINY}-")
    if folder != storage / "backbones" / f"{TINY}-{tiny_id}":
        return False
    runs = (store.read_json(path) for path in store.get_all(storage / "runs", "run.json"))
    pipelines = (store.read_json(path) for path in store.get_all(storage / "pipelines", "*.json"))
    named = chain(
        ((run["backbone"], run["backbone_id"]) for run in runs if run),
        ((pipeline["pipeline"]["backbone"], pipeline["backbone_id"]) for pipeline in pipelines if pipeline),
    )
    return (TINY, tiny_id) in named

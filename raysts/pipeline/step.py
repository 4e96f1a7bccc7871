"""A step is one unit of a pipeline's work, as a value: its inputs, its output, its function.

A new kind of step is a function in a file of ``steps/`` that returns one, and the line of ``Plan.steps`` that calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from raysts.ids import content_id
from raysts.pipeline.executor import Executor, Worker
from raysts.pipeline.inputs import Inputs
from raysts.pipeline.outcome import top
from raysts.recipes.recipe import Resources
from raysts.storage.runs import State, record_of
from raysts.storage.store import Store
from raysts.training.job import Job
from raysts.training.metrics import read_metrics

Kind = Literal["tokens", "train", "average", "agreement", "vectors", "target", "scores", "named"]
"""``named``: a model that a pipeline names, a step with nothing to do."""
VERSIONS: dict[Kind, int] = {}
"""Versions of what a kind of step writes; raise one when equal inputs give another output."""
OUTPUTS: dict[Kind, str] = {
    "train": "runs/{}/model", "average": "runs/{}/model", "agreement": "agreements/{}.parquet", "vectors": "embeddings/{}",
    "tokens": "tokens/{}", "scores": "results/{}.parquet",
}  # fmt: skip
"""Output folders of the kinds of steps, by the ids of these."""
SCRATCH: dict[Kind, str] = {"train": "runs/{}/checkpoints", "scores": "evaluations/{}"}
"""Folders that nothing needs once a step is done: its work removes them, unless a kill comes before."""


@dataclass(frozen=True)
class Context:
    """Means of a step's work: the processes that do it, and the storage."""

    executor: Executor
    store: Store
    resources: Resources = Resources()

    def map(
        self, worker: Worker, args: tuple[Any, ...], units: Sequence[Any], resources: Resources | None = None
    ) -> Iterator[Any]:
        """Yield a worker's result for each unit of work (:meth:`Executor.map`)."""
        return self.executor.map(worker, args, units, resources or self.resources)


Work = Callable[[Context], None]


class Load(NamedTuple):
    """Load of a step: everything that decides how long its sentences take."""

    size: float = 1.0  # parameters that each token goes through, in the mean over the models
    tokens: float = 1.0  # of a sentence, roughly, in the mean
    precision: str = "auto"
    besides: float = 0.0  # tokens that a training run embeds to be scored while it trains
    units: int = 1  # parts that processes may work on at once; of most steps also the files that it writes
    most: int = 1  # sentences of a unit when there are many of them, at least as many as now
    grows: bool = False  # with more texts it has more sentences


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """A unit of work, which reads files and writes one output. Complete output makes it done.

    Attributes:
        needs: ids of the steps before it.
        output: a file, the ``model`` of a run folder, or a folder with a ``manifest.json`` that lists the files.
        work: does the remaining work; after a kill the next call continues. It raises RunFailed if the work cannot be
            done, and keeps the finished part. None: of a training run (``job``), and of a named model.
        resources: workers, cpus, gpus; of training also memory, in GB per worker.
        sentences: texts that it processes; ``bytes``: that it writes, roughly.
        left: returns the share of the sentences that no other run of the storage has processed for it.
    """

    kind: Kind
    id: str
    title: str
    needs: tuple[str, ...] = ()
    output: Path
    work: Work | None = None
    job: Job | None = None
    resources: dict[str, float | None] = field(default_factory=dict)
    sentences: int = 0
    load: Load = Load()
    bytes: int = 0
    left: Callable[[Store], float] = lambda store: 1.0

    @property
    def record(self) -> dict[str, Any]:
        """Return the run record of its model, empty before it begins and of a model from elsewhere."""
        return record_of(self.output)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        path = Store.of(self.output).get(self.output.parent / "metrics.jsonl")
        return read_metrics(path) if path else []

    @property
    def score(self) -> float | None:
        """Return the development score of the kept checkpoint, or None."""
        return (self.record.get("dev") or {}).get("kept")

    @property
    def work_name(self) -> str:
        """Return its kind, of training with the objective: steps of one name take alike long for alike loads."""
        return f"train {self.job.recipe.objective}" if self.job else self.kind

    @property
    def training(self) -> Job:
        assert self.job is not None, f"{self.kind} {self.id} is no training run"
        return self.job

    def files(self, store: Store) -> list[Path]:
        """Return the files and folders of its output, of a folder none without its manifest."""
        if self.output.name == "model":
            return [self.output]
        if self.output.suffix:
            present = store.get(self.output) is not None
            if present and not store.exists(self.output):
                store.upload(self.output)  # somebody emptied the bucket, and this machine still has the file
            return [self.output] if present else []
        manifest = store.read_json(self.output / "manifest.json", fresh=True) or {}
        return [self.output / Path(part["file"]).name for part in manifest.get("parts", ())]

    def state(self, store: Store, deep: bool = False) -> State:
        """Return its state, by the sizes of its files, or ``deep``, by their checksums. Rename damaged files."""
        status = self.record.get("status") if self.output.name == "model" else State.DONE
        intact = [store.is_whole(path, deep) for path in self.files(store)] if status == State.DONE else []
        if intact and all(intact):
            return State.DONE
        return State.FAILED if status == State.FAILED else State.WAITING

    def to_record(self, storage: Path) -> dict[str, Any]:
        """Return the entry in a run's record, for :meth:`from_record`."""
        fields = {name: getattr(self, name) for name in ("id", "kind", "title", "sentences")}
        member = {"member": self.job.facts["member"]} if self.job else {}
        return {**fields, "output": str(self.output.relative_to(storage)), **member}

    @classmethod
    def from_record(cls, recorded: Mapping[str, Any], storage: Path) -> Step:
        """Return the step that a record tells of. It has a state, and no work."""
        fields = {name: recorded[name] for name in ("kind", "id", "title", "sentences")}
        return cls(output=storage / recorded["output"], **fields)

    def describe(self, store: Store) -> dict[str, Any]:
        """Return the step as ``raysts plan --json`` shows it."""
        fields = {name: getattr(self, name) for name in ("id", "kind", "title", "resources", "sentences", "bytes")}
        return {**fields, "status": self.state(store), "needs": list(self.needs)}


def step_id(kind: Kind, **inputs: Any) -> str:
    """Return the hash of a step's kind, of its version, and of all that decides the output."""
    return content_id([kind, VERSIONS.get(kind, 1), inputs])


def new_step(inputs: Inputs, kind: Kind, id_: str, needs: Iterable[Step | str | None], **fields: Any) -> Step:
    """Return a step that by default embeds with one worker. It needs no named models and no None."""
    resources = inputs.pipeline.resources
    fields.setdefault("resources", {"workers": 1, "cpus": resources.cpus, "gpus": resources.gpus})
    fields.setdefault("output", inputs.storage / OUTPUTS.get(kind, "").format(id_))
    ids = [n if isinstance(n, str) else n.id for n in needs if isinstance(n, str) or (n and n.kind != "named")]
    return Step(kind=kind, id=id_, needs=tuple(dict.fromkeys(ids)), **fields)


def run_id(model: Step) -> str:
    """Return the id of the run behind a model, or the content id of a model from elsewhere."""
    return str(model.record.get("run_id") or model.id)


def select_members(models: Sequence[Step], count: int | None) -> list[Step]:
    """Return the members that form the ensemble: all, or the ``count`` best on their development set."""
    return [models[index] for index in top([model.score for model in models], count)]


def batches(steps: Sequence[Step], done: Iterable[str]) -> Iterator[list[Step]]:
    """Yield the steps that are not done in batches of one kind, each behind those that it needs."""
    ended = {*done}
    while batch := ready(steps, ended):
        yield batch
        ended |= {step.id for step in batch}


def ready(steps: Sequence[Step], done: set[str]) -> list[Step]:
    """Return the first ready step with all of its kind that are ready after it."""
    batch: dict[str, Step] = {}
    for step in steps:
        of_kind = not batch or step.kind == next(iter(batch.values())).kind
        if step.id not in done and of_kind and all(need in done or need in batch for need in step.needs):
            batch[step.id] = step
    return list(batch.values())

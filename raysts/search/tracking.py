"""Trials in the tools that people watch runs with: TensorBoard always, MLflow and Weights & Biases where asked for."""

from __future__ import annotations

import importlib.util
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

from raysts.errors import InputError, without_secrets
from raysts.search.record import Record
from raysts.search.space import key_of, text_of
from raysts.storage.store import Store
from raysts.training.tensorboard import numbers, write_scalars

Metrics = Sequence[Mapping[str, Any]]
"""Lines of a run's ``metrics.jsonl``."""

Tool = Callable[[Record, Metrics], object]
"""Takes a trial that has ended. It may be given one again that a killed search has sent and not remembered."""

PATIENCE = 60.0
"""Seconds that a finished search waits for a tool to take the next trial."""

MOST = 128
"""Characters of a name in Weights & Biases."""

# -- what a trial is in each tool ------------------------------------------------------------------------------------------


def to_tensorboard(folder: Path, record: Record, metrics: Metrics) -> None:
    """A folder of scalars, named by point and seed, with its point in the HPARAMS tab."""
    name = f"{text_of(record.point)} seed={record.seed} {record.id[:6]}".replace("/", "_")
    kept = None if record.value is None else (record.step or 0, record.value)
    point = {key: value if isinstance(value, int | float) else str(value) for key, value in record.point.items()}
    write_scalars(folder / name, metrics, _span(record)[0], {**point, "seed": record.seed}, kept)


def to_mlflow(uri: str, study: str, record: Record, metrics: Metrics) -> None:
    """A run in the experiment of the study; point and seed are its parameters, ``point`` a tag to group by.

    One that a killed search has begun is begun again, one that is complete stays.
    """
    from mlflow.entities import Metric, Param

    client, point = _mlflow_client(uri), text_of(record.point)
    experiment = client.get_experiment_by_name(study)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(study)
    for sent in client.search_runs([experiment_id], f"tags.run = '{record.id}'"):
        if sent.info.status != "RUNNING":
            return
        client.delete_run(sent.info.run_id)
    start, end = _span(record)
    tags = {"study": study, "point": point, "seed": str(record.seed), "status": record.status, "run": record.id}
    run = client.create_run(experiment_id, int(1000 * start), tags, run_name=f"{point} seed {record.seed}").info.run_id
    client.log_batch(
        run, params=[Param(key, str(value)) for key, value in {**record.point, "seed": record.seed}.items()]
    )
    logged = [
        Metric(name, value, int(1000 * when), step)
        for step, when, line in numbers(metrics, start)
        for name, value in line.items()
    ]
    if record.value is not None:
        logged.append(Metric("kept", record.value, int(1000 * end), record.step or 0))
    for first in range(0, len(logged), 1000):  # the most that a batch may have
        client.log_batch(run, metrics=logged[first : first + 1000])
    client.set_terminated(run, "FINISHED" if record.status == "finished" else "KILLED", int(1000 * end))


@cache
def _mlflow_client(uri: str) -> Any:
    if "://" not in uri or uri.startswith("file:"):
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions refuse folders else
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def to_wandb(project: str, study: str, folder: Path, record: Record, metrics: Metrics) -> None:
    """A run in the project; those of a point are a group, so that its mean over the seeds is what is drawn.

    One that is there already goes on, and takes no step twice.
    """
    import wandb

    point = text_of(record.point)
    run = wandb.init(
        project=project,
        id=f"{study}-{record.id}"[-MOST:],
        resume="allow",
        name=_fitted(f"{point} seed {record.seed}", record),
        group=_fitted(f"{study} {point}", record),
        job_type=study[:64],
        tags=[record.status],
        config={**record.point, "seed": record.seed, "study": study, "run": record.id},
        dir=str(folder),
        reinit="create_new",  # one that the caller's program has open is its own
        settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
    )
    try:
        for step, _, line in numbers(metrics, _span(record)[0]):
            run.log(line, step=step)
        run.summary.update({"kept": record.value, "status": record.status, "seconds": record.seconds})
    finally:
        run.finish()


def _fitted(name: str, record: Record) -> str:
    """A name that is too long ends with what tells its point from others."""
    return name if len(name) <= MOST else f"{name[: MOST - 9]} {key_of(record.point)[:8]}"


def _span(record: Record) -> tuple[float, float]:
    end = datetime.fromisoformat(record.finished_at).timestamp()
    return end - (record.seconds or 0.0), end


# -- who sends them --------------------------------------------------------------------------------------------------------


class Trackers:
    """Gives every trial that has ended to each tool once, in a thread per tool: one that hangs holds up nobody, one that fails
    is said once and left alone. What it has not got is sent when the search is run again.

    Args:
        folder: its folder, in which it is remembered what has been given to whom.
        mlflow: tracking URI (``sqlite:///runs.db``, a server, a folder); the experiment is named as the study.
        wandb: project; ``WANDB_MODE=offline`` keeps it on this machine.

    Raises:
        InputError: a tool that is asked for is not installed.
    """

    def __init__(
        self, study: str, folder: Path, *, mlflow: str | None, wandb: str | None, say: Callable[[str], None]
    ) -> None:
        self.memory, self.say = folder / "tracked.json", say
        self.tools: dict[str, Tool] = {"tensorboard": partial(to_tensorboard, folder / "tensorboard")}
        if mlflow is not None:
            _check("mlflow", mlflow, "a tracking URI, such as sqlite:///runs.db")
            self.tools[f"mlflow {without_secrets(mlflow)}"] = partial(to_mlflow, mlflow, study)
        if wandb is not None:
            _check("wandb", wandb, "the name of a project")
            self.tools[f"wandb {wandb}"] = partial(to_wandb, wandb, study, folder)
        self._lock = threading.Lock()

    def __enter__(self) -> Trackers:
        self.sent: dict[str, list[str]] = Store.of(self.memory.parent).read_json(self.memory, fresh=True) or {}
        self._senders = [_Sender(name, tool, self) for name, tool in self.tools.items()]
        for sender in self._senders:
            sender.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        for sender in self._senders:
            sender.trials.put(None)
            sender.last = time.monotonic()
        if kind is not None and not issubclass(kind, Exception):
            return  # Ctrl-C waits for nobody
        for sender in self._senders:
            while sender.is_alive() and time.monotonic() - sender.last < PATIENCE:
                sender.join(0.1)
            if sender.is_alive():
                self.say(
                    f"{sender.tool_name}: has taken no trial for {PATIENCE:g} s; the same command again sends what is missing"
                )

    def ended(self, record: Record, metrics: Callable[[], Metrics]) -> None:
        """Give them a trial that they have not got yet; returns at once."""
        for sender in self._senders:
            if record.id not in self.sent.get(sender.tool_name, ()):
                sender.trials.put((record, metrics))

    def remember(self, tool: str, record: Record) -> None:
        with self._lock:
            self.sent.setdefault(tool, []).append(record.id)
            Store.of(self.memory.parent).write_json(self.memory, self.sent)


class _Sender(threading.Thread):
    """Hands trials to one tool, one after the other, until None comes or it fails. A daemon: no tool keeps the process."""

    def __init__(self, tool_name: str, tool: Tool, owner: Trackers) -> None:
        super().__init__(name=f"tracking in {tool_name}", daemon=True)
        self.tool, self.tool_name, self.owner = tool, tool_name, owner
        self.last = 0.0  # when it has taken a trial, or the search has ended
        self.trials: queue.SimpleQueue[tuple[Record, Callable[[], Metrics]] | None] = queue.SimpleQueue()

    def run(self) -> None:
        while (trial := self.trials.get()) is not None:
            record, metrics = trial
            try:
                self.tool(record, metrics())
                self.owner.remember(self.tool_name, record)
                self.last = time.monotonic()
            except Exception as error:
                first = without_secrets((str(error) or type(error).__name__).splitlines()[0])
                self.owner.say(
                    f"{self.tool_name}: {type(error).__name__}: {first}; no more trials are sent there, the search goes on, "
                    f"and the same command again sends what is missing"
                )
                return


def _check(tool: str, value: str, what: str) -> None:
    if not value.strip():
        raise InputError(f"--{tool} '': is empty and must be {what}")
    if importlib.util.find_spec(tool) is None:
        raise InputError(
            f"--{tool}: is not installed here; pip install {tool} (or raysts[{tool}]), or leave the option out"
        )

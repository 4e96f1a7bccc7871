"""Trials in the tools that people watch runs with: TensorBoard always, MLflow and Weights & Biases where asked for."""

from __future__ import annotations

import importlib.util
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from raysts.errors import InputError
from raysts.search.record import Record
from raysts.search.space import key_of, text_of
from raysts.storage.atomic import read_json, write_json

Metrics = Sequence[Mapping[str, Any]]
"""Lines of a run's ``metrics.jsonl``."""

Tool = Callable[[Record, Metrics], None]
"""Takes a trial that has ended. It may be given one again that a killed search has sent and not remembered."""

PATIENCE = 60.0
"""Seconds that a finished search waits for a tool to take the next trial."""

MOST = 128
"""Characters of a name in Weights & Biases."""


class Trackers:
    """Gives every trial that has ended to each tool once, in a thread per tool: one that hangs holds up nobody, one that fails
    is said once and left alone. What it has not got is sent when the search is run again.

    Args:
        study: name of the study.
        folder: its folder, in which it is remembered what has been given to whom.
        mlflow: tracking URI (``sqlite:///runs.db``, a server, a folder); the experiment is named as the study.
        wandb: project; ``WANDB_MODE=offline`` keeps it on this machine.
        say: told about a tool that fails.

    Raises:
        InputError: a tool that is asked for is not installed.
    """

    def __init__(
        self, study: str, folder: Path, *, mlflow: str | None, wandb: str | None, say: Callable[[str], None]
    ) -> None:
        self.folder, self.say = folder, say
        self.tools: dict[str, Tool] = {"tensorboard": TensorBoard(folder / "tensorboard")}
        if mlflow is not None:
            check_installed("mlflow", mlflow)
            self.tools[f"mlflow {mlflow}"] = MLflow(mlflow, study)
        if wandb is not None:
            check_installed("wandb", wandb)
            self.tools[f"wandb {wandb}"] = WandB(wandb, study, folder)
        self._senders: dict[str, _Sender] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Trackers:
        self.given: dict[str, list[str]] = read_json(self.folder / "tracked.json") or {}
        for name, tool in self.tools.items():
            self._senders[name] = _Sender(name, tool, self)
            self._senders[name].start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        for sender in self._senders.values():
            sender.waiting.put(None)
            sender.last = time.monotonic()
        if kind is not None and not issubclass(kind, Exception):
            return  # Ctrl-C waits for nobody
        for name, sender in self._senders.items():
            while sender.is_alive() and time.monotonic() - sender.last < PATIENCE:
                sender.join(0.1)
            if sender.is_alive():
                self.say(f"{name}: has taken no trial for {PATIENCE:g} s; the same command again sends what is missing")

    def ended(self, record: Record, metrics: Callable[[], Metrics]) -> None:
        """Give them a trial that they have not got yet; returns at once."""
        for name, sender in self._senders.items():
            if record.id not in self.given.get(name, ()):
                sender.waiting.put((record, metrics))

    def note(self, name: str, record: Record) -> None:
        """Remember that a tool has got a trial."""
        with self._lock:
            self.given.setdefault(name, []).append(record.id)
            write_json(self.folder / "tracked.json", self.given)


class _Sender(threading.Thread):
    """Hands trials to one tool, one after the other, until it fails."""

    def __init__(self, name: str, tool: Tool, owner: Trackers) -> None:
        super().__init__(name=f"tracking in {name}", daemon=True)
        self.tool, self.title, self.owner = tool, name, owner
        self.last = 0.0  # when it has taken a trial, or the search has ended
        self.waiting: queue.SimpleQueue[tuple[Record, Callable[[], Metrics]] | None] = queue.SimpleQueue()

    def run(self) -> None:
        """Until None comes."""
        while (found := self.waiting.get()) is not None:
            record, metrics = found
            try:
                self.tool(record, metrics())
                self.owner.note(self.title, record)
                self.last = time.monotonic()
            except Exception as error:
                first = (str(error) or type(error).__name__).splitlines()[0]
                self.owner.say(
                    f"{self.title}: {type(error).__name__}: {first}; no more trials are sent there, the search goes on, and "
                    f"the same command again sends what is missing"
                )
                return


class TensorBoard:
    """A folder of scalars per trial, named by its point and seed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, record: Record, metrics: Metrics) -> None:
        """Write its scalars; what its folder held is replaced."""
        from tensorboardX import SummaryWriter

        folder = self.folder / f"{text_of(record.point)} seed={record.seed} {record.id[:6]}".replace("/", "_")
        shutil.rmtree(folder, ignore_errors=True)
        with SummaryWriter(str(folder)) as writer:
            for step, when, numbers in _numbers(record, metrics):
                for name, value in numbers.items():
                    writer.add_scalar(name, value, step, walltime=when)


class MLflow:
    """A run per trial in the experiment of the study; point and seed are its parameters, ``point`` a tag to group by."""

    def __init__(self, uri: str, study: str) -> None:
        self.uri, self.study = uri, study
        self._client: Any = None
        self._experiment = ""

    def __call__(self, record: Record, metrics: Metrics) -> None:
        """Log it; a run that a killed search has begun is begun again, one that is complete stays."""
        from mlflow.entities import Metric, Param

        client, point = self._connect(), text_of(record.point)
        for found in client.search_runs([self._experiment], f"tags.run = '{record.id}'"):
            if found.info.status != "RUNNING":
                return
            client.delete_run(found.info.run_id)
        start, end = _span(record)
        tags = {"study": self.study, "point": point, "seed": record.seed, "status": record.status, "run": record.id}
        run = client.create_run(
            self._experiment,
            start_time=int(1000 * start),
            tags={key: str(value) for key, value in tags.items()},
            run_name=f"{point} seed {record.seed}",
        ).info.run_id
        parameters = {**record.point, "seed": record.seed}
        client.log_batch(run, params=[Param(key, str(value)) for key, value in parameters.items()])
        numbers = [
            Metric(name, value, int(1000 * when), step)
            for step, when, line in _numbers(record, metrics)
            for name, value in line.items()
        ]
        if record.value is not None:
            numbers.append(Metric("kept", record.value, int(1000 * end), record.step or 0))
        for first in range(0, len(numbers), 1000):  # the most that a batch may have
            client.log_batch(run, metrics=numbers[first : first + 1000])
        client.set_terminated(run, "FINISHED" if record.status == "finished" else "KILLED", int(1000 * end))

    def _connect(self) -> Any:
        if self._client is None:
            if "://" not in self.uri or self.uri.startswith("file:"):
                os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            from mlflow import MlflowClient

            client = MlflowClient(tracking_uri=self.uri)
            found = client.get_experiment_by_name(self.study)
            self._experiment = found.experiment_id if found else client.create_experiment(self.study)
            self._client = client
        return self._client


class WandB:
    """A run per trial in the project; those of a point are a group, so that its mean over the seeds is what is drawn."""

    def __init__(self, project: str, study: str, folder: Path) -> None:
        self.project, self.study, self.folder = project, study, folder

    def __call__(self, record: Record, metrics: Metrics) -> None:
        """Log it; one that is there already goes on, and takes no step twice."""
        import wandb

        point = text_of(record.point)
        run = wandb.init(
            project=self.project,
            id=f"{self.study}-{record.id}"[-MOST:],
            resume="allow",
            name=_fitted(f"{point} seed {record.seed}", record),
            group=_fitted(f"{self.study} {point}", record),
            job_type=self.study[:64],
            tags=[record.status],
            config={**record.point, "seed": record.seed, "study": self.study, "run": record.id},
            dir=str(self.folder),
            reinit="create_new",  # one that the caller's program has open is its own
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )
        try:
            for step, _, numbers in _numbers(record, metrics):
                run.log(numbers, step=step)
            run.summary.update({"kept": record.value, "status": record.status, "seconds": record.seconds})
        finally:
            run.finish()


def check_installed(tool: str, value: str) -> None:
    """Raise an InputError when ``tool`` is not installed, or nothing is said about where it logs to."""
    where = {"mlflow": "a tracking URI, such as sqlite:///runs.db", "wandb": "the name of a project"}
    if tool in where and not value.strip():
        raise InputError(f"--{tool} '': is empty and must be {where[tool]}")
    if importlib.util.find_spec(tool) is None:
        raise InputError(
            f"--{tool}: is not installed here; pip install {tool} (or raysts[{tool}]), or leave the option out"
        )


def _fitted(name: str, record: Record) -> str:
    """A name that is too long ends with what tells its point from others."""
    return name if len(name) <= MOST else f"{name[: MOST - 9]} {key_of(record.point)[:8]}"


def _span(record: Record) -> tuple[float, float]:
    """When it began to train, and when it ended, as Unix time."""
    end = datetime.fromisoformat(record.finished_at).timestamp()
    return end - (record.seconds or 0.0), end


def _numbers(record: Record, metrics: Metrics) -> Iterator[tuple[int, float, dict[str, float]]]:
    """Step, Unix time and numbers of every line."""
    start, _ = _span(record)
    for line in metrics:
        numbers = {key: float(value) for key, value in line.items() if key not in ("step", "steps") and _number(value)}
        yield line["step"], start + line.get("seconds", 0.0), numbers


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)

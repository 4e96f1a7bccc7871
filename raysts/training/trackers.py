"""Trackers: training runs in TensorBoard, MLflow, Weights & Biases and trackio while they train.

A thread of the driver sends the new lines of the runs in training. ``tracked.json`` in the storage has what each tool was
sent, so a resumed run continues there. A tool that fails gets no more lines, and the run continues.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from raysts.errors import InputError, RunFailed, first_line
from raysts.log import logger
from raysts.recipes.tree import leaves, to_plain
from raysts.storage.runs import RunFolder, State
from raysts.storage.store import Store
from raysts.training.job import Job
from raysts.training.metrics import read_metrics

EVERY, GRACE = 5.0, 60.0
"""Seconds between looks at the records, and those that a tool has at the end."""

LIVE = "live"
"""Folder of event files that others replace when a run has ended."""

Lines = Sequence[Mapping[str, Any]]


class TrackedRun(NamedTuple):
    """Run as a tool shows it. ``folder``: of its records."""

    id: str
    name: str
    parameters: Mapping[str, Any]
    folder: Path | None = None


class Tracker(ABC):
    """Tool that shows training runs.

    Args:
        place: URI or project, as the user names it, or empty.
        group: name of the runs that belong together.
        folder: for files of the tool.
    """

    def __init__(self, place: str, group: str, folder: Path) -> None:
        self.place, self.group, self.folder = place, group, folder
        self.runs: dict[str, Any] = {}

    @abstractmethod
    def begin(self, run: TrackedRun, key: str | None) -> str:
        """Open a run, again if it has a key, and return its key."""

    def send(self, key: str, lines: Lines, last: int) -> None:
        """Send the lines after step ``last``, here to an object of the tool in ``runs``."""
        for line in lines:
            if line["step"] > last:
                self.runs[key].log(_numbers(line), step=line["step"])

    def end(self, key: str, state: str, score: float | None) -> None:
        """Close a run in a state, with the dev score of the model that it keeps."""
        if score is not None:
            self.runs[key].log({"kept": score})
        with contextlib.redirect_stdout(None):
            self.runs.pop(key).finish()


class TensorBoard(Tracker):
    """Event files in the storage, which are written as a whole each time."""

    def begin(self, run: TrackedRun, key: str | None) -> str:
        return f"{run.name} {run.id}".replace("/", "_")

    def send(self, key: str, lines: Lines, last: int) -> None:
        write_scalars(self.folder / key, lines, time.time() - lines[-1].get("seconds", 0.0))

    def end(self, key: str, state: str, score: float | None) -> None:
        if self.folder.name == LIVE:
            Store.of(self.folder).delete(self.folder / key)


class MLflow(Tracker):
    """Runs of an MLflow experiment."""

    def __init__(self, place: str, group: str, folder: Path) -> None:
        super().__init__(place, group, folder)
        if place and ("://" not in place or place.startswith("file:")):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions refuse folders else
        from mlflow import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it tells how it makes its database
        self.client = MlflowClient(tracking_uri=place or None)
        experiment = self.client.get_experiment_by_name(group)
        self.experiment = experiment.experiment_id if experiment else self.client.create_experiment(group)

    def begin(self, run: TrackedRun, key: str | None) -> str:
        if key is None:
            key = str(self.client.create_run(self.experiment, run_name=run.name).info.run_id)
            for name, value in run.parameters.items():
                self.client.log_param(key, name, str(value)[:500])
        self.client.update_run(key, "RUNNING")
        return key

    def send(self, key: str, lines: Lines, last: int) -> None:
        from mlflow.entities import Metric

        sent_at, new = int(1000 * time.time()), [line for line in lines if line["step"] > last]
        metrics = [Metric(*item, sent_at, line["step"]) for line in new for item in _numbers(line).items()]
        for start in range(0, len(metrics), 1000):
            self.client.log_batch(key, metrics[start : start + 1000])

    def end(self, key: str, state: str, score: float | None) -> None:
        if score is not None:
            self.client.log_metric(key, "kept", score)
        status = {State.DONE: "FINISHED", State.PRUNED: "FINISHED", State.FAILED: "FAILED"}
        self.client.set_terminated(key, status.get(State(state), "KILLED"))


class WandB(Tracker):
    """Runs of a project of Weights & Biases. Its own variables choose server and mode."""

    def __init__(self, place: str, group: str, folder: Path) -> None:
        super().__init__(place, group, folder)
        import wandb

        if os.environ.get("WANDB_MODE") not in ("offline", "disabled"):
            wandb.login()

    def begin(self, run: TrackedRun, key: str | None) -> str:
        import wandb

        folder = self.folder.parent  # the page removes what it has not written into that of TensorBoard
        folder.mkdir(parents=True, exist_ok=True)
        project = self.place or os.environ.get("WANDB_PROJECT") or "raysts"
        self.runs[run.id] = wandb.init(
            project=project, group=self.group, name=run.name, id=run.id, dir=str(folder), config=dict(run.parameters),
            resume="allow", reinit="create_new", settings=wandb.Settings(silent=True),
        )  # fmt: skip
        return run.id


class Trackio(Tracker):
    """Runs of a local trackio project."""

    def begin(self, run: TrackedRun, key: str | None) -> str:
        import trackio

        with contextlib.redirect_stdout(None):  # it prints how to look at them
            self.runs[run.id] = trackio.init(
                self.place or self.group, f"{run.name} {run.id[:6]}", group=self.group, config=dict(run.parameters),
                resume="allow", embed=False, auto_log_gpu=False, auto_log_cpu=False,
            )  # fmt: skip
        return run.id


TOOLS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB, "trackio": Trackio}


def write_scalars(
    folder: Path, metrics: Lines, start: float, hparams: Mapping[str, Any] | None = None,
    selected: tuple[int, float] | None = None,
) -> None:  # fmt: skip
    """Write every number of a run at its step and time, unless the folder has these lines.

    ``start`` of training is in Unix time. ``hparams`` and ``selected`` (step and score) appear in the HPARAMS tab.
    """
    store, lines = Store.of(folder), f".{len(metrics)}-lines"
    if any(path.name.endswith(lines) for path in store.list(folder)):
        return
    # Not its SummaryWriter, which writes in a thread, and once more when Python ends: on a full disk, with tracebacks.
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.summary import hparams as as_summaries
    from tensorboardX.summary import scalar

    with store.put_dir(folder) as draft, contextlib.closing(EventsWriter(str(draft / "events"), lines)) as writer:
        for line in metrics:
            when = start + line.get("seconds", 0.0)
            for name, value in _numbers(line).items():
                writer.write_event(Event(wall_time=when, step=line["step"], summary=scalar(name, value)))
        if hparams is not None:
            for summary in as_summaries(dict(hparams), {"kept": 0.0}):
                writer.write_event(Event(wall_time=time.time(), summary=summary))
        if selected is not None:
            writer.write_event(Event(wall_time=time.time(), step=selected[0], summary=scalar("kept", selected[1])))


def _numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a line by name. A bool is an int, and no number."""
    values = {name: value for name, value in line.items() if name not in ("step", "steps")}
    return {name: float(value) for name, value in values.items() if type(value) in (int, float)}


class TrackerThread:
    """Runs that the tools follow, for a ``with`` block."""

    def __init__(self, tools: Mapping[str, Tracker], store: Store, folder: str) -> None:
        self.tools, self.store, self.key = dict(tools), store, f"{folder}/tracked.json"
        self.sent: dict[str, dict[str, list[Any]]] = store.read_json(self.key) or {}
        self._written = json.dumps(self.sent)
        self.runs: dict[str, TrackedRun] = {}
        self.open: set[tuple[str, str]] = set()
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._follow, name="trackers", daemon=True)

    def __enter__(self) -> TrackerThread:
        global _current
        _current = self
        if self.tools:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        global _current
        _current = None
        self._ended.set()
        if not self._thread.is_alive():
            return
        self._thread.join(GRACE)
        if self.tools and self._thread.is_alive():
            logger.warning("%s: no answer for %d s; the last lines may be missing there", ", ".join(self.tools), GRACE)

    def add_results(self, label: str, values: Mapping[str, float]) -> None:
        """Send the scores at the end of a pipeline as a run."""
        name = "-".join(filter(None, ("results", self.key.split("/")[1], label)))
        for tool in [tool for tool in self.tools if tool != "tensorboard"]:
            self._try(tool, TrackedRun(name, "results", {}), [{"step": 0, **values}], {"status": State.DONE})

    def _follow(self) -> None:
        ended = False
        while not ended:
            ended = self._ended.wait(EVERY)  # and once more after the end
            try:
                self._look(ended)
            except (OSError, RunFailed) as error:
                logger.warning("--track: %s; it tries again", first_line(error))

    def _look(self, ended: bool) -> None:
        for run in [*self.runs.values()]:
            assert run.folder is not None
            path, record = run.folder / "metrics.jsonl", RunFolder(run.folder).written()
            lines = read_metrics(path)
            for tool in [*self.tools] if lines else ():
                self._try(tool, run, lines, record, ended)
            if record.get("status", State.RUNNING) != State.RUNNING:
                self.runs.pop(run.id)
        with self._lock:
            if (sent := json.dumps(self.sent)) != self._written:
                self.store.write_json(self.key, self.sent)
                self._written = sent

    def _try(self, tool: str, run: TrackedRun, lines: Lines, record: Mapping[str, Any], ended: bool = False) -> None:
        with self._lock:
            tracker, sent = self.tools.get(tool), self.sent.setdefault(run.id, {})
            key, last = sent.get(tool, [None, -1])
            state = record.get("status", State.RUNNING)
            try:
                if tracker is not None:
                    if (tool, run.id) not in self.open:
                        key = tracker.begin(run, key)
                        self.open.add((tool, run.id))
                    if lines[-1]["step"] > last:
                        tracker.send(key, lines, last)
                        sent[tool] = [key, lines[-1]["step"]]
                    if ended or state != State.RUNNING:
                        tracker.end(key, state, (record.get("dev") or {}).get("kept"))
                        self.open.discard((tool, run.id))
            except Exception as error:
                del self.tools[tool]
                logger.warning("%s: %s; nothing more is written there, and the run goes on", tool, first_line(error))


_current: TrackerThread | None = None
"""TrackerThread of the command in this process."""


def follow(job: Job, name: str | None = None, parameters: Mapping[str, Any] | None = None) -> None:
    """Have the tools follow a run that begins to train. Without tools it does nothing."""
    if _current is not None and _current.tools and job.id not in _current.runs:
        if name is None:  # as the page calls its runs
            stage, role, member = (job.facts.get(key) for key in ("stage", "role", "member"))
            name = " ".join(str(part) for part in (stage, role, member) if part is not None)
        values = leaves(to_plain(job.recipe)) | {"seed": job.seed} if parameters is None else parameters
        _current.runs[job.id] = TrackedRun(job.id, name, values, job.folder)


def open_tools(places: Mapping[str, str] | None, group: str, folder: Path) -> dict[str, Tracker]:
    """Return the tools by name, which must answer.

    Args:
        places: of each tool: a tracking URI of MLflow, a project of wandb or trackio; empty for its default.
        group: name of the runs.
        folder: for the files of the tools.

    Raises:
        InputError: a tool is unknown or not installed, or cannot be used.
    """
    tools: dict[str, Tracker] = {}
    for name, place in (places or {}).items():
        begin = f"--track {name}"
        if name not in TOOLS:
            raise InputError(f"{begin}: must be one of {', '.join(TOOLS)}")
        if name != "tensorboard" and importlib.util.find_spec(name) is None:
            raise InputError(f"{begin}: is not installed here; pip install {name}, or remove it from --track")
        try:
            tools[name] = TOOLS[name](place, group, folder)
        except Exception as error:
            remedy = "set it up, or remove it from --track"
            raise InputError(f"{begin}: cannot be used: {first_line(error)}; {remedy}") from error
    return tools

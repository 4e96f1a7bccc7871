"""Trials in the tools that people watch runs with: TensorBoard always, MLflow and Weights & Biases where asked for."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from raysts.errors import InputError
from raysts.files import read_json, write_json
from raysts.search.record import Record
from raysts.search.space import text_of

Metrics = Sequence[Mapping[str, Any]]
"""Lines of a run's ``metrics.jsonl``."""


def write_scalars(folder: Path, metrics: Metrics) -> None:
    """Write a trial's numbers as TensorBoard scalars; nothing where tensorboardX is not installed.

    Args:
        folder: the trial's own log directory; what it held is replaced.
        metrics: what it logged.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(ImportError):
        from tensorboardX import SummaryWriter

        with SummaryWriter(str(folder)) as writer:
            for step, numbers in _numbers(metrics):
                for name, value in numbers.items():
                    writer.add_scalar(name, value, step)


class Trackers:
    """Gives every trial that has ended to MLflow or Weights & Biases as a run, once: with its point as parameters, grouped by
    study and by point over the seeds. A tool that fails is said once and left alone; the search goes on.

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
        self.study, self.folder, self.say = study, folder, say
        self.tools: dict[str, Callable[[Record, Metrics], None]] = {}
        for name, wanted, log in (("mlflow", mlflow, self._mlflow), ("wandb", wandb, self._wandb)):
            if wanted:
                check_installed(name)
                self.tools[f"{name} {wanted}"] = log
        self.mlflow, self.project = mlflow, wandb
        self.given: dict[str, list[str]] = read_json(folder / "tracked.json") or {}

    def ended(self, record: Record, metrics: Callable[[], Metrics]) -> None:
        """Give them a trial that they have not got yet."""
        for name, log in list(self.tools.items()):
            given = self.given.setdefault(name, [])
            if record.id not in given:
                try:
                    log(record, metrics())
                except Exception as error:
                    self.say(f"{name}: {type(error).__name__}: {error}; trials are no longer sent there")
                    del self.tools[name]
                    continue
                given.append(record.id)
                write_json(self.folder / "tracked.json", self.given)

    def _mlflow(self, record: Record, metrics: Metrics) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param, RunTag

        client = MlflowClient(tracking_uri=self.mlflow)
        experiment = client.get_experiment_by_name(self.study)
        place = experiment.experiment_id if experiment else client.create_experiment(self.study)
        if client.search_runs([place], f"tags.run = '{record.id}'"):
            return
        point = text_of(record.point)
        run = client.create_run(place, run_name=f"{point} seed {record.seed}").info.run_id
        tags = {"study": self.study, "point": point, "seed": record.seed, "status": record.status, "run": record.id}
        parameters = {**record.point, "seed": record.seed}
        numbers = [Metric(name, value, 0, step) for step, line in _numbers(metrics) for name, value in line.items()]
        client.log_batch(
            run,
            metrics=numbers[:1000],  # the most that a batch may have
            params=[Param(key, str(value)) for key, value in parameters.items()],
            tags=[RunTag(key, str(value)) for key, value in tags.items()],
        )
        for first in range(1000, len(numbers), 1000):
            client.log_batch(run, metrics=numbers[first : first + 1000])
        if record.value is not None:
            client.log_metric(run, "kept", record.value)
        client.set_terminated(run, "FINISHED" if record.status == "finished" else "KILLED")

    def _wandb(self, record: Record, metrics: Metrics) -> None:
        import wandb

        point = text_of(record.point)
        run = wandb.init(
            project=self.project,
            id=record.id,
            resume="allow",
            name=f"{point} seed {record.seed}",
            group=f"{self.study} {point}",
            job_type=self.study,
            tags=[self.study, record.status],
            config={**record.point, "seed": record.seed},
            dir=str(self.folder),
            reinit="finish_previous",
            settings=wandb.Settings(silent=True),
        )
        for step, numbers in _numbers(metrics):
            run.log(numbers, step=step)
        run.summary.update({"kept": record.value, "status": record.status})
        run.finish()


def check_installed(tool: str) -> None:
    """Raise an InputError when ``tool`` is not installed."""
    if importlib.util.find_spec(tool) is None:
        raise InputError(f"--{tool}: is not installed here; pip install {tool}, or leave the option out")


def _numbers(metrics: Metrics) -> Iterator[tuple[int, dict[str, float]]]:
    for line in metrics:
        numbers = {key: value for key, value in line.items() if key not in ("step", "steps") and _is_number(value)}
        yield line["step"], numbers


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)

"""Ray Tune's loggers of a search, which give MLflow or Weights & Biases one run per trial."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ray.air.integrations.mlflow import MLflowLoggerCallback
from ray.tune.logger import LoggerCallback

from raysts.errors import InputError, without_secrets
from raysts.search.study import Study


class _MLflow(MLflowLoggerCallback):
    """The logger for MLflow. It says its first failure, sends no more, and the search goes on."""

    def __init__(self, uri: str, study: str, say: Callable[[str], None]) -> None:
        super().__init__(uri, experiment_name=study)
        self.say, self.failed = say, False

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Ray Tune writes its callbacks into files, and the URI may hold a password."""
        return {}

    def log_trial_start(self, *values: Any, **options: Any) -> None:
        self._send(super().log_trial_start, *values, **options)

    def log_trial_result(self, *values: Any, **options: Any) -> None:
        self._send(super().log_trial_result, *values, **options)

    def log_trial_end(self, *values: Any, **options: Any) -> None:
        self._send(super().log_trial_end, *values, **options)

    def _send(self, log: Callable[..., None], *values: Any, **options: Any) -> None:
        try:
            if not self.failed:
                log(*values, **options)
        except Exception as error:
            self.failed = True
            self.say(f"mlflow: {_reason(error)}; no more trials are sent there, the search goes on")


def loggers(study: Study, mlflow: str | None, wandb: str | None, say: Callable[[str], None]) -> list[LoggerCallback]:
    """Return the loggers of the tools that are asked for: a tracking URI of MLflow, a project of Weights & Biases.

    Raises:
        InputError: a tool does not answer, or asks for a key.
    """
    tools: dict[str, LoggerCallback] = {}
    if mlflow is not None:
        if "://" not in mlflow or mlflow.startswith("file:"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions refuse folders else
        tools["mlflow"] = _MLflow(mlflow, study.name, say)
    if wandb is not None:
        from ray.air.integrations.wandb import WandbLoggerCallback

        # Ray Tune's own folder of a trial, where its files would lie, goes with the search.
        tools["wandb"] = WandbLoggerCallback(wandb, group=study.name, dir=str(study.folder))
    for tool, logger in tools.items():
        try:
            logger.setup()  # Ray Tune does so again, when trials may have started
        except Exception as error:
            raise InputError(
                f"--{tool}: cannot be used: {_reason(error)}; set the tool up, or leave the option out"
            ) from error
    return [*tools.values()]


def _reason(error: Exception) -> str:
    return without_secrets((str(error) or type(error).__name__).splitlines()[0])

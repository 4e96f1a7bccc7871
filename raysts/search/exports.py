"""Exports of a study's records for other tools. No code reads them."""

import importlib.util
import os
import warnings
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from raysts.errors import InputError, without_secrets
from raysts.pipeline.local import Say
from raysts.search.record import Record
from raysts.search.sampler import direction, optuna
from raysts.search.space import text_of
from raysts.search.study import Study
from raysts.training.tensorboard import write_scalars

Export = Callable[[Record], None]
"""Function that writes the record of a trial."""


def exporter(study: Study, tools: Mapping[str, Export], say: Say) -> Export:
    """Return the export to everything. A failure of a part is reported, and ends it.

    The files in the study's folder show every record, and ``tools`` those of trials that end in this session.
    """
    exports = {"tensorboard": _tensorboard(study), "optuna.db": _optuna_database(study)}

    def add(record: Record) -> None:
        for name, export in [*exports.items()]:
            try:
                export(record)
            except Exception as error:
                del exports[name]
                say(f"{name}: {_reason(error)}; no more trials are written there, the search goes on")

    for record in study.records.values():
        add(record)
    exports.update(tools)
    return add


def tools(study: Study, mlflow: str | None, wandb: str | None) -> dict[str, Export]:
    """Return the exports to a URI of MLflow and a project of Weights & Biases, which must answer.

    Raises:
        InputError: a tool is not installed, or cannot be used.
    """
    exports: dict[str, Export] = {}
    for tool, place, rule, make in (
        ("mlflow", mlflow, "a tracking URI, such as sqlite:///runs.db", _mlflow),
        ("wandb", wandb, "the name of a project", _wandb),
    ):
        if place is None:
            continue
        if not place.strip():
            raise InputError(f"--{tool} '': is empty and must be {rule}")
        if importlib.util.find_spec(tool) is None:
            raise InputError(f"--{tool}: is not installed here; pip install raysts[{tool}], or remove the option")
        try:
            exports[tool] = make(study, place)
        except Exception as error:
            problem = f"--{tool}: cannot be used: {_reason(error)}; set the tool up, or remove the option"
            raise InputError(problem) from error
    return exports


def _reason(error: Exception) -> str:
    return without_secrets((str(error) or type(error).__name__).splitlines()[0])


def _times(record: Record) -> tuple[datetime, datetime]:
    finished = datetime.fromisoformat(record.finished_at)
    return finished - timedelta(seconds=record.seconds or 0.0), finished


def _tensorboard(study: Study) -> Export:
    """Return the export of curves for TensorBoard, with points in the HPARAMS tab."""

    def add(record: Record) -> None:
        name = f"{text_of(record.point)} seed={record.seed} {record.id[:6]}".replace("/", "_")
        folder = study.folder / "tensorboard" / name
        if study.store.exists(folder):
            return
        selected = None if record.value is None else (record.step or 0, record.value)
        point = {key: value if isinstance(value, int | float) else str(value) for key, value in record.point.items()}
        start = _times(record)[0].timestamp()
        write_scalars(folder, study.read_run(record.id)[1], start, {**point, "seed": record.seed}, selected)

    return add


def _optuna_database(study: Study) -> Export:
    """Return the export to a new ``optuna.db``. The seed is a parameter if points have several."""
    library, search, path = optuna(), study.search, study.folder / "optuna.db"
    states = {"finished": "COMPLETE", "stopped": "PRUNED", "infeasible": "FAIL"}
    axes = {key: dimension.axis() for key, dimension in search.space.items()}
    if search.seeds > 1:
        axes["seed"] = library.distributions.IntDistribution(0, search.seeds - 1)

    @cache
    def database() -> Any:
        for old in path.parent.glob(f"{path.name}*"):
            old.unlink()
        made = library.create_study(storage=f"sqlite:///{path}", study_name=study.name, direction=direction(search))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", library.exceptions.ExperimentalWarning)
            made.set_metric_names([search.objective.name])
        return made

    def add(record: Record) -> None:
        trial = library.trial.create_trial(
            state=library.trial.TrialState[states[record.status]],
            value=record.value if record.status == "finished" else None,
            params={key: value for key, value in {**record.point, "seed": record.seed}.items() if key in axes},
            distributions=axes,
            user_attrs={"run": record.id, "seed": record.seed, "status": record.status, "reason": record.reason},
            intermediate_values=dict(record.curve),
        )
        start, end = (time.astimezone().replace(tzinfo=None) for time in _times(record))
        trial.datetime_start, trial.datetime_complete = start, end
        database().add_trial(trial)

    return add


def _mlflow(study: Study, uri: str) -> Export:
    if "://" not in uri or uri.startswith("file:"):
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions refuse folders else
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(study.name)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(study.name)

    def add(record: Record) -> None:
        start, end = (round(1000 * time.timestamp()) for time in _times(record))
        run = client.create_run(experiment_id, start, run_name=text_of(record.point)).info.run_id
        for key, value in _parameters(record).items():
            client.log_param(run, key, value)
        for step, value in record.curve:
            client.log_metric(run, study.search.objective.name, value, step=step)
        if record.value is not None:
            client.log_metric(run, "kept", record.value, step=record.step)
        client.set_terminated(run, "FAILED" if record.status == "infeasible" else "FINISHED", end)

    return add


def _wandb(study: Study, project: str) -> Export:
    import wandb

    wandb.login()
    quiet = wandb.Settings(silent=True)

    def add(record: Record) -> None:
        options = {"group": study.name, "name": text_of(record.point), "dir": str(study.folder), "settings": quiet}
        with wandb.init(project=project, config=_parameters(record), **options) as run:
            for step, value in record.curve:
                run.log({study.search.objective.name: value}, step=step)
            run.summary["kept"] = record.value

    return add


def _parameters(record: Record) -> dict[str, Any]:
    return {**record.point, "seed": record.seed, "run": record.id}

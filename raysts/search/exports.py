"""Exports of a study's records for other tools. No code reads them."""

import warnings
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from raysts.errors import first_line
from raysts.log import say
from raysts.search.record import Record
from raysts.search.sampler import directions, optuna
from raysts.search.space import as_stored, text_of
from raysts.search.study import Study
from raysts.training.trackers import write_scalars

Export = Callable[[Record], None]
"""Function that writes the record of a trial."""


def exporter(study: Study) -> Export:
    """Return the export to the files in the study's folder. A failure of a part is reported, and ends it."""
    exports = {"tensorboard": _tensorboard(study), "optuna.db": _optuna_database(study)}

    def add(record: Record) -> None:
        for name, export in [*exports.items()]:
            try:
                export(record)
            except Exception as error:
                del exports[name]
                say(f"{name}: {first_line(error)}; no more trials are written there, the search goes on")

    for record in study.records.values():
        add(record)
    return add


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
        copy = library.create_study(storage=f"sqlite:///{path}", study_name=study.name, directions=directions(search))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", library.exceptions.ExperimentalWarning)
            copy.set_metric_names([name for name in (search.objective.name, search.cost) if name])
        return copy

    def add(record: Record) -> None:
        point = as_stored(search.space, record.point) | ({"seed": record.seed} if search.seeds > 1 else {})
        trial = library.trial.create_trial(
            state=library.trial.TrialState[states[record.status]],
            values=[record.value, record.cost][: len(directions(search))] if record.status == "finished" else None,
            params=point,
            distributions={key: axes[key] for key in point},
            user_attrs={"run": record.id, "seed": record.seed, "status": record.status, "reason": record.reason},
            intermediate_values=dict(record.curve),
        )
        start, end = (time.astimezone().replace(tzinfo=None) for time in _times(record))
        trial.datetime_start, trial.datetime_complete = start, end
        database().add_trial(trial)

    return add

"""One session of a study: its remaining trials, and the exports of their records."""

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime

from raysts.data.parquet import skipped_line
from raysts.pipeline.local import Say
from raysts.search.progress import SearchProgress
from raysts.search.queue import TrialQueue
from raysts.search.record import Record
from raysts.search.sampler import View
from raysts.search.space import Point, text_of
from raysts.search.study import Study
from raysts.training.tensorboard import write_scalars

RunTrials = Callable[[TrialQueue, SearchProgress], None]
Place = Callable[[Say], RunTrials]
"""Function that prepares the data and the backbone for the trials, and returns their trainer."""


def run_session(
    study: Study,
    earlier: Sequence[tuple[Point, float]],
    place: Place | None,
    open_place: Callable[[], AbstractContextManager[Place]],
    progress: SearchProgress,
) -> list[str]:
    """Run the remaining trials of an open study, close it, and return the failures.

    ``place`` is None if no trial seemed to remain.
    """
    study.reuse_grid()
    study.cleanup()
    if lost := study.take_back():
        progress.say(
            f"{study.name}: {len(lost)} models that are kept are gone or damaged; their trials are trained again"
        )
    view = View(study.folder / "optuna.db", study.name, study.search, progress.say)
    view.rebuild(study.records.values())
    for record in study.records.values():
        _write_scalars(study, record)
    for skipped in study.plan.skipped:
        progress.say(skipped_line(skipped))
    progress.say(f"{study.name}: {progress.total} trials, {len(study.records)} have ended; study: {study.folder}")

    def record_end(record: Record) -> None:
        view.add(record)
        _write_scalars(study, record)
        progress.ended(record)

    failures: list[str] = []
    if not study.complete:
        with contextlib.nullcontext(place) if place else open_place() as prepare:
            run_trials = prepare(progress.say)
            queue = TrialQueue(study, earlier, record_end)
            run_trials(queue, progress)
            failures = queue.failures
    study.close("failed" if failures or study.best_point is None else "done")
    return failures


def _write_scalars(study: Study, record: Record) -> None:
    """Write the curves of a trial for TensorBoard, with its point in the HPARAMS tab."""
    name = f"{text_of(record.point)} seed={record.seed} {record.id[:6]}".replace("/", "_")
    folder = study.folder / "tensorboard" / name
    if study.store.exists(folder):
        return
    selected = None if record.value is None else (record.step or 0, record.value)
    point = {key: value if isinstance(value, int | float) else str(value) for key, value in record.point.items()}
    start = datetime.fromisoformat(record.finished_at).timestamp() - (record.seconds or 0.0)
    write_scalars(folder, study.read_run(record.id)[1], start, {**point, "seed": record.seed}, selected)

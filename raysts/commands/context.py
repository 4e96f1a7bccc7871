"""Shared work of the commands: data, storage, models, plans, and the executor of nodes."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysts.commands.models import locate, run_names
from raysts.commands.options import RunOptions, is_job_copy, local_path
from raysts.data.corpora import Corpus, corpus_of
from raysts.data.world import is_world
from raysts.errors import InputError, nearest
from raysts.log import say, screen
from raysts.models import pretrained
from raysts.models.embedders import load_embedder, open_embedder
from raysts.pipeline import validate
from raysts.pipeline.executor import Executor, LocalExecutor
from raysts.pipeline.plan import Plan
from raysts.recipes.recipe import Pipeline, name_problem
from raysts.storage.runs import State
from raysts.storage.store import Store

if TYPE_CHECKING:
    from raysts.cluster.preflight import Requirements
    from raysts.models.sentence_model import SentenceModel

DEFAULT_STORAGE = "./raysts-storage"
IN_PROCESS = "none"
"""Value of ``address`` for work in this process, without Ray."""


GENERATED = "The sentences are generated: neither --data nor files of your own are given. The scores say nothing about real text."
"""Warning before the embedded world is measured."""


def warn_generated(corpus: Corpus) -> None:
    """Say that a corpus is the embedded world, before it is measured."""
    if is_world(corpus.root):
        say(GENERATED)


def store_of(storage: str | Path | None) -> Store:
    """Return the storage, which need not exist yet. An object store must answer.

    The working directory of a Ray job is a copy that Ray removes later. In a job the default therefore lies in the home
    folder, and a relative path is an error.
    """
    text = str(storage or DEFAULT_STORAGE)
    if not storage and is_job_copy():
        return Store.open(_home_storage())
    store = Store.open(text if "://" in text else local_path(text, "--storage", writes=True))
    store.check()
    return store


@functools.cache
def _home_storage() -> Path:
    folder = Path.home() / DEFAULT_STORAGE
    say(f"storage: {folder} (this job's working directory is removed later; --storage PATH says otherwise)")
    return folder


def load(model: str | Path, storage: str | Path | None = None, **options: Any) -> SentenceModel:
    """Load a MODEL (see :func:`locate`) with options of :func:`raysts.models.pretrained.load`.

    An ONNX directory takes ``prompt`` and ``device``, because its graph decides the rest.
    """
    path = locate(model, store_of(storage))
    return open_onnx(path, **options) or pretrained.load(path, **options)


def open_onnx(path: Path, content: str | None = None, **options: Any) -> SentenceModel | None:
    """Return the model of an ONNX directory with its graph, or None of another directory.

    Raises:
        InputError: an option that the graph decides.
    """
    if open_embedder(path).kind != "onnx":
        return None
    options = {name: value for name, value in options.items() if value is not None}
    if decided := options.keys() - {"prompt", "device"}:
        raise InputError(f"model '{path}' is ONNX. Its graph decides {', '.join(sorted(decided))}; give no such option")
    return load_embedder(path, content=content, **options).model  # type: ignore[attr-defined, no-any-return]


def record_now(store: Store, key: str | Path, lock: str, fresh: bool = True) -> dict[str, Any] | None:
    """Return the record of a run or a study. Without a process that holds its lock it is stopped."""
    record = store.read_json(key, fresh=fresh)
    if record and record["status"] == State.RUNNING and not store.is_locked(f"locks/{lock}.lock"):
        record = store.read_json(key, fresh=True)  # it may have ended between the two looks
        if record and record["status"] == State.RUNNING:
            record["status"] = State.STOPPED
    return record  # type: ignore[no-any-return]


def run_record(store: Store, name: str) -> dict[str, Any]:
    """Return the record of the run called ``name``, with its state now (:func:`record_now`)."""
    record = record_now(store, f"pipelines/{name}.json", name)
    if record is None:
        names = run_names(store)
        if study := store.read_json(f"studies/{name}/study.json", fresh=True):
            raise InputError(
                f"'{name}' is a study, not a run; 'raysts list' shows its state. Its command: {study['command']}"
            )
        raise InputError(
            f"no run '{name}' in {store.uri}{nearest(name, names)}; it holds: {', '.join(names) or 'none'}"
        )
    return record


def records_now(store: Store) -> list[dict[str, Any]]:
    """Return the records of all runs, then of all studies, with their states now. A removed one has none."""
    locks = {path: path.stem for path in store.get_all("pipelines", "*.json")}
    locks |= {path: f"study-{path.parent.name}" for path in store.get_all("studies", "*/study.json")}
    records = (record_now(store, path, lock, fresh=False) for path, lock in locks.items())
    return [record for record in records if record is not None]


# -- plans and where they run ----------------------------------------------------------------------------------------


def plan_of(pipeline: Pipeline, options: RunOptions) -> Plan:
    """Return the unchecked plan of a pipeline."""
    store = store_of(options.storage)
    return Plan(
        pipeline=pipeline,
        corpus=corpus_of(options.data, pipeline.name, options.skip_bad, options.user_data),
        storage=store.root,
        locate=lambda model: locate(model, store),
    )


def checked_plan(pipeline: Pipeline, options: RunOptions) -> Plan:
    """Return the plan of a pipeline, or raise an InputError with all problems that would stop it later."""
    plan = plan_of(pipeline, options)
    validate.check(plan)
    plan.steps  # noqa: B018 (their ids need teachers and tokenizers that load)
    if options.strict_contamination and (problems := plan.contamination(keep=False).refuse(pipeline.name)):
        raise InputError(problems)
    if options.verify:
        plan.states(deep=True)
    return plan


def check_name(name: str | None) -> None:
    """Refuse a ``--name`` that names no folder."""
    if name and (problem := name_problem(name)):
        raise InputError(f"--{problem}")


@contextlib.contextmanager
def executor(address: str | None, *plans: Plan) -> Iterator[Executor]:
    """Yield the executor of the plans for the block. Ray starts only if work is left."""
    if address == IN_PROCESS or (plans and all({*plan.states().values()} == {State.DONE} for plan in plans)):
        yield LocalExecutor(threads=plans[0].pipeline.resources.cpus if plans else None)
        return
    with ray_context(address) as private:
        from raysts.cluster.capacity import check_resources
        from raysts.cluster.executor import RayExecutor

        for resources in dict.fromkeys(plan.pipeline.resources for plan in plans):
            check_resources(resources, private)
        with preflight(private, *plans) as seen, contextlib.closing(RayExecutor(seen)) as on_ray:
            yield on_ray


@contextlib.contextmanager
def preflight(private: bool, *plans: Plan) -> Iterator[Requirements | None]:
    """Check that every node of a shared cluster sees the files that the plans read and write."""
    from raysts.cluster.capacity import may_grow, nodes
    from raysts.cluster.preflight import check_nodes

    if private or not plans:
        yield None
        return
    if _home_storage.cache_info().currsize and (len(nodes()) > 1 or may_grow()):
        raise InputError(
            f"--storage is missing: the home folder of this job, {plans[0].storage}, is that of one node, and the cluster "
            f"has {len(nodes())} and may have more; give --storage with a bucket (s3://..., gs://...), or with a folder of "
            f"a file system that is mounted on all nodes"
        )
    read = [("--data", plan.corpus.root) for plan in plans if not plan.corpus.empty]
    read += [("backbone", plan.start) for plan in plans]
    read += [("teacher", folder) for plan in plans for folder in plan.teacher_folders]
    with check_nodes(plans[0].storage, read) as seen:
        yield seen


def ray_context(address: str | None) -> contextlib.AbstractContextManager[bool]:
    """Return a context with Ray. Its value is True if Ray runs for this block alone."""
    from raysts.cluster.connect import connection

    if (address or os.environ.get("RAY_ADDRESS") or "local") in ("local", "auto"):
        say("starting Ray on this machine ...")
        screen.title = "starting Ray on this machine"
    return connection(address)

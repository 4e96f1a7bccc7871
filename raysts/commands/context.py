"""raysts from Python: the functions behind the commands. Their results have the fields of the JSON line."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import raysts.pipeline.run
from raysts.data.corpora import Corpus
from raysts.data.world.generate import world_path
from raysts.errors import InputError, RunFailed, nearest
from raysts.evaluation import harness, mteb_results, results
from raysts.evaluation.contamination.contamination import Contamination
from raysts.evaluation.contamination.lineage import trained_on
from raysts.evaluation.pairs_file import load_pairs_file
from raysts.ids import content_id, folder_id
from raysts.models import onnx, pretrained
from raysts.models.encoder import PoolingMode
from raysts.models.head import Similarity, cosine_of_vectors, l2_of_vectors
from raysts.models.layers import EVERY_LAYER, Layers, single_layers
from raysts.models.sentence_model import SentenceModel
from raysts.pipeline import embed as bulk
from raysts.pipeline import overlap
from raysts.pipeline import plan as pipeline
from raysts.pipeline.local import Executor, Here, Say
from raysts.pipeline.refresh import refresh
from raysts.recipes import names, stages
from raysts.recipes.overrides import apply_overrides
from raysts.recipes.recipe import Pipeline, Resources, name_problem
from raysts.recipes.tree import build, to_plain
from raysts.report.run.data import report_data
from raysts.report.run.page import write_report
from raysts.storage import runs as stored
from raysts.storage.atomic import lock, read_json, writable
from raysts.storage.manifests import has_folder, need_folder
from raysts.storage.store import check, fetch, location, mirror, place_of

DEFAULT_STORAGE = "./raysts-storage"
JOB_COPIES = "working_dir_files"
"""Folder in which Ray unpacks the working directories of jobs."""
EXPORT_FORMATS = ("sentence-transformers", "onnx")
IN_PROCESS = "none"
"""``address`` that means: without Ray, in this process."""


def say_on_stderr(text: str) -> None:
    """Progress goes to stderr; stdout is for results."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def corpus_of(data: str | Path | None, recipe: str | None = None, skip_bad: bool = False) -> Corpus:
    """The data: as given, else ``$RAYSTS_DATA``, else the embedded world (which ``quickstart`` always means).

    ``skip_bad``: without the files of training tables that cannot be read.
    """
    if data is None and recipe != "quickstart":
        data = os.environ.get("RAYSTS_DATA") or None
    if data is not None:
        return Corpus(data if "://" in str(data) else Path(data).absolute(), skip_bad)
    try:
        return Corpus(world_path())
    except OSError as error:
        raise RunFailed(
            f"the embedded world cannot be written to the cache ({error}); set XDG_CACHE_HOME to a folder that you may "
            f"write in, or give a data folder with --data"
        ) from error


def storage_of(storage: str | Path | None) -> Path:
    """The storage folder, which need not exist yet: of an object store its mirror on this machine.

    The working directory of a Ray job is a copy that Ray removes later: there the default lies in the home folder, and a
    relative path is refused.
    """
    text = str(storage or DEFAULT_STORAGE)
    if "://" in text:
        root = mirror(text)
        check(root)
        return root
    if JOB_COPIES in Path.cwd().parts and not Path(text).is_absolute():
        if storage:
            raise InputError(
                f"--storage '{text}': the working directory of a Ray job is a copy that is removed later; give an absolute "
                f"path that every node can reach"
            )
        return _home_storage()
    return Path(text).absolute()


@functools.cache
def _home_storage() -> Path:
    folder = Path.home() / DEFAULT_STORAGE
    say_on_stderr(f"storage: {folder} (this job's working directory is removed later; --storage PATH says otherwise)")
    return folder


def locate(model: str | Path, storage: Path) -> Path:
    """Folder of a MODEL: a run id in the storage, a directory, a Hugging Face name, or a file of word vectors."""
    runs = storage / "runs"
    if str(model) and "/" not in str(model):
        found = _runs(str(model), runs)
        if len(found) == 1:
            stored.look(runs / found[0])
            need_folder(runs / found[0] / "model")
            return runs / found[0] / "model"
        if len(found) > 1:
            raise InputError(f"model '{model}' is the beginning of {len(found)} run ids in {runs}; give more of it")
    return pretrained.find(model)


def _runs(model: str, runs: Path) -> list[str]:
    """Ids of the runs that begin with ``model`` and have a model."""
    place = place_of(runs)
    if place is None:
        return [path.name for path in runs.glob(f"{model}*") if (path / "model").is_dir()] if runs.is_dir() else []
    if not re.fullmatch(r"[0-9a-f]{1,16}", model):
        return []
    known = [model] if len(model) == 16 else place.bucket.folders(place.path)
    return [name for name in known if name.startswith(model) and has_folder(runs / name / "model")]


def load(model: str | Path, storage: str | Path | None = None, **options: Any) -> SentenceModel:
    """Load a MODEL (see :func:`locate`); options as :func:`raysts.models.pretrained.load`."""
    return pretrained.load(locate(model, storage_of(storage)), **options)


def plan(
    recipe: str | Pipeline,
    overrides: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    storage: str | Path | None = None,
    skip_bad: bool = False,
) -> pipeline.Plan:
    """The checked plan of a pipeline: what there is to do and what is done. Starts nothing.

    Raises:
        InputError: anything that would stop it later, in one message.
    """
    if isinstance(recipe, str):
        chosen = names.pipeline(recipe, overrides)
    else:
        chosen = apply_overrides(recipe, overrides) if overrides else recipe
    folder = storage_of(storage)
    found = pipeline.Plan(
        pipeline=chosen,
        corpus=corpus_of(data, chosen.name, skip_bad),
        storage=folder,
        locate=lambda model: locate(model, folder),
    )
    found.check()
    refresh(found.nodes)
    return found


def run(
    recipe: str | Pipeline,
    overrides: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    storage: str | Path | None = None,
    *,
    name: str | None = None,
    address: str | None = None,
    command: str | None = None,
    strict_contamination: bool = False,
    skip_bad: bool = False,
    say: Say = say_on_stderr,
) -> dict[str, Any]:
    """Run a pipeline to its end; what is done already is not done again.

    Args:
        recipe: a system's name (``nli-ct-sed``), ``quickstart``, a YAML file, or a pipeline.
        overrides: ``{"nli.batch": 32, ...}``.
        data: folder in the canonical layout, or its URI in an object store; default ``$RAYSTS_DATA``, else the embedded world.
        storage: default ``./raysts-storage``.
        name: name of the run in the storage; default the recipe's.
        address: of a Ray cluster; ``none`` runs in this process without Ray; default: the running cluster, else a
            local one.
        command: what the report shows as the exact command.
        strict_contamination: refuse to begin where training rows occur in a test set that would be evaluated.
        skip_bad: go on without files that cannot be read of training tables that have others; what is made has other
            ids than that of the whole tables. Tables that select or are reported on are never cut.
        say: takes progress, a line at a time.

    Returns:
        status, storage, name, model (path or None), report (path), results (rows), contamination (one per model and
        task, see ``evaluation.contamination``), notes (the same in words), left_out (members that failed where
        ``min_members`` allows it: number and reason), skipped (files that ``skip_bad`` left out: table, file, rows,
        reason).
    """
    made = plan(recipe, overrides, data, storage, skip_bad)
    if strict_contamination:
        overlap.refuse(made)
    if name and name_problem(name):
        raise InputError(f"--{name_problem(name)}")
    check_storage(made.storage)
    with executor(address, made) as chosen:
        shown = command or f"raysts.run({made.pipeline.name!r}, {dict(overrides or {})!r})"
        return raysts.pipeline.run.run(made, chosen, name or made.pipeline.name, shown, say)


def check_storage(folder: Path) -> None:
    """Check that a storage can be written to, of an object store the store too, before anything starts."""
    _check_writable(folder, "--storage")
    check(folder, writes=True)


def _check_writable(folder: Path, option: str) -> None:
    """Check that ``folder`` can be written to, and leave nothing there: more may be found wrong before work starts."""
    absent = [path for path in (folder, *folder.parents) if not os.path.exists(path)]  # noqa: PTH110 (never raises)
    writable(folder, option)
    for path in absent:
        with contextlib.suppress(OSError):  # somebody else has begun to use it
            path.rmdir()


@contextlib.contextmanager
def executor(address: str | None, *made: pipeline.Plan) -> Iterator[Executor]:
    """Where the nodes of the plans run, for the length of the block. Ray is not started when nothing is left to do."""
    left = any(node.status != "done" for plan in made for node in plan.nodes)
    if address == IN_PROCESS or (made and not left):
        yield Here(threads=made[0].pipeline.resources.cpus if made else None)
        return
    try:
        from raysts.cluster.connect import connected
        from raysts.cluster.executor import OnRay, check_resources
    except ImportError as error:
        raise InputError(
            f"Ray is not installed here ({error}); install it with pip install 'ray[default,data,train,tune]', or run in "
            f"this process with --address none"
        ) from None
    with connected(address) as private:
        for resources in dict.fromkeys(plan.pipeline.resources for plan in made):
            check_resources(resources, private)
        yield OnRay()


def evaluate(
    model: str | Path,
    tasks: Sequence[str] | None = None,
    *,
    pairs: str | Path | None = None,
    data: str | Path | None = None,
    storage: str | Path | None = None,
    pooling: PoolingMode | None = None,
    layers: Layers | None = None,
    similarity: str | None = None,
    resamples: int = 1000,
    strict_contamination: bool = False,
    mteb: str | Path | None = None,
) -> dict[str, Any]:
    """Measure a model on tasks, or on a file of scored pairs.

    What is measured on tasks becomes part of the storage's results, so that reports find it; measured again, it is
    replaced.

    Args:
        model: a MODEL.
        tasks: names; default: every task whose files exist.
        pairs: Parquet, CSV, TSV or JSONL with sentence1, sentence2, score.
        data: as :func:`run`.
        storage: where run ids are looked up and results are kept.
        pooling: other pooling than the model's own.
        layers: this choice of layers only: a number of last layers, ``first_last``, one alone, ``only-3``, or every one
            alone, ``only-all``; default: 1, 2 and the model's own (of the task ``words`` every one alone).
        similarity: by this one only: ``cosine``, ``l2``, or one that the model has; default: all that it has.
        resamples: bootstrap resamples of an interval.
        strict_contamination: refuse where training rows of the model occur in a test set; rows of ``pairs`` are not
            searched.
        mteb: folder to write the results of the STS tasks to in MTEB's format as well.

    Returns:
        status, storage, model, results (rows), contamination (one per task, see
        ``evaluation.contamination``), notes (the same in words); with ``mteb`` also mteb (paths of the files).
    """
    folder = storage_of(storage)
    if resamples < 0:
        raise InputError(f"--resamples {resamples}: must not be negative; 0 leaves the intervals out")
    if pairs is not None:
        found_pairs = load_pairs_file(Path(pairs))
        corpus = None
    else:
        corpus = corpus_of(data)
        tasks = harness.check_tasks(corpus, tasks)
        for line in harness.left_out(corpus, tasks):
            say_on_stderr(line)
    if mteb is not None and pairs is not None:
        raise InputError("--mteb writes results of MTEB's tasks, and --pairs is none of them; leave one of the two out")
    path = locate(model, folder)
    text = Contamination()
    if corpus is not None:
        assert tasks is not None
        text = harness.searched(corpus, tasks, trained_on(path))
        problems = text.refuse(f"'{model}'") if strict_contamination else []
        if mteb is not None:
            problems += mteb_results.problems(tasks, similarity)
        if problems:
            raise InputError(problems)
    if mteb is not None:
        _check_writable(Path(mteb).absolute(), "--mteb")
    loaded = pretrained.load(path, pooling=pooling, layers=None if layers == EVERY_LAYER else layers)
    record = read_json(path.parent / "run.json") or {}
    content = folder_id(path)
    context = {
        "run_id": record.get("run_id"),
        "parent_run_ids": record.get("parents") or [content],
        "system": record.get("system") or str(model),
        "recipe": record.get("stage"),
        "role": record.get("role") or "backbone",
        "member": record.get("member"),
        "seed": record.get("seed"),
        "transductive": bool(record.get("transductive")),
        "selected_by": record.get("selected_by"),
        "step": (record.get("kept") or {}).get("step"),
        "git_commit": results.git_commit(),
    }
    chosen = None if layers is None else single_layers(loaded.depth) if layers == EVERY_LAYER else (layers,)
    by = _similarities(loaded, similarity)
    if mteb is not None and "cosine" not in by:
        raise InputError(
            f"--mteb: MTEB's main score is by cosine, and this model has {', '.join(by)}; leave --mteb out"
        )
    if pairs is not None:
        rows = harness.evaluate_pairs(loaded, found_pairs, chosen, context, resamples, similarities=by)
    else:
        assert corpus is not None
        rows = harness.evaluate(
            loaded, corpus, tasks, chosen, context, resamples=resamples, similarities=by, contaminated=text
        )
        what = sorted({(row["dataset"], row["dataset_sha256"]) for row in rows})
        part = content_id([content, what, loaded.pooling, layers, list(by), resamples])
        try:
            results.write(folder, f"{results.EVALUATION}{part}", rows)
        except OSError as error:  # what was measured is shown all the same
            say_on_stderr(f"the results are not kept for reports: {folder} cannot be written to ({error.strerror})")
    found = {"status": "done", "storage": location(folder), "model": str(path), "results": rows}
    if corpus is not None:
        found |= {
            "contamination": text.entries(str(model)),
            "notes": text.lines(str(model)) + _silent(tasks or (), rows),
        }
    if mteb is not None:
        revision = str(record.get("run_id") or content)
        written = mteb_results.write(rows, Path(mteb), str(model), revision, loaded.layers, next(iter(by)))
        found["mteb"] = [str(file) for file in written]
    return found


def _silent(tasks: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Tasks on which the model itself has no value, with the reason."""
    own = {row["dataset"] for row in rows if row["role"] != "baseline"}
    return [
        f"{name}: the model has neither a variance nor a similarity that depends on the order of two sentences, so it says "
        f"nothing about the direction; the rows are those of the baseline"
        for name in tasks
        if name not in own and any(row["dataset"] == name for row in rows)
    ]


def _similarities(model: SentenceModel, name: str | None) -> Mapping[str, Similarity]:
    """What a model is measured by: all that it has, or the one called ``name``."""
    if name is None:
        return model.similarities
    known = {"cosine": cosine_of_vectors, "l2": l2_of_vectors, **model.similarities}
    if name == "variance":
        raise InputError(
            f"--similarity variance: it compares no two texts; the direction tasks measure by variance, unasked, where a "
            f"model has one (gausscse); this model has {', '.join(known)}"
        )
    if name not in known:
        raise InputError(f"--similarity '{name}': this model has {', '.join(known)}{nearest(name, known)}")
    return {name: known[name]}


def export(
    model: str | Path,
    to: str | Path,
    *,
    storage: str | Path | None = None,
    layers: Layers | None = None,
    format: str = "sentence-transformers",
) -> dict[str, Any]:
    """Write a model as a sentence-transformers directory, or as ONNX.

    Args:
        model: a MODEL.
        to: the directory; it must not hold anything.
        storage: where run ids are looked up.
        layers: pool these layers instead of the model's own.
        format: ``sentence-transformers``, or ``onnx`` for an encoder with its pooling and dense layers alone:
            ``model.onnx`` and the tokenizer's files.

    Returns:
        status, storage, model (path of the directory).
    """
    if format not in EXPORT_FORMATS:
        raise InputError(f"--format '{format}' must be one of {', '.join(EXPORT_FORMATS)}")
    folder, target = storage_of(storage), Path(to)
    path = locate(model, folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(
            f"--to '{target}' exists already and is not an empty folder; nothing is overwritten, choose another"
        )
    _check_writable(target.absolute().parent, "--to")
    card, loaded = path / "README.md", pretrained.load(path, layers=layers, device="cpu")
    if format == "onnx":
        onnx.check(loaded)
        onnx.save(loaded, target.absolute())
    else:
        pretrained.save(loaded, target.absolute(), card.read_text(encoding="utf-8") if card.is_file() else None)
    return {"status": "done", "storage": location(folder), "model": str(target)}


def distill(
    models: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    storage: str | Path | None = None,
    *,
    from_run: str | None = None,
    top: int | None = None,
    name: str | None = None,
    address: str | None = None,
    command: str | None = None,
    skip_bad: bool = False,
    say: Say = say_on_stderr,
) -> dict[str, Any]:
    """Distil a student from models that are there, or from the members of a run (SED section 4).

    Args:
        models: members: run ids, directories or Hugging Face names.
        overrides: as :func:`run`; ``backbone``, what the student starts from, is by default what the members started
            from, where that is on record.
        data: as :func:`run`.
        storage: as :func:`run`.
        from_run: take the members of this run in the storage instead.
        top: the best so many on STS-B dev; default: all.
        name: name of the run; default ``<from_run>-distilled`` or ``distilled``.
        address: as :func:`run`.
        command: as :func:`run`.
        skip_bad: as :func:`run`.
        say: as :func:`run`.

    Returns:
        as :func:`run`.
    """
    folder = storage_of(storage)
    if bool(models) == bool(from_run):
        raise InputError("distill needs either MODEL arguments or --from-run NAME, which says whose members to take")
    known: dict[str, Any] = {}
    if from_run:
        known = run_record(folder, from_run)
        models = known["pipeline"]["teachers"] or _finished_members(known, folder)
    if top is not None and not 1 <= top <= len(models):
        raise InputError(f"--top {top}: must be from 1 to the number of members, {len(models)}")
    backbone = _common_backbone([locate(model, folder) for model in models], folder)
    if backbone is None and "backbone" not in (overrides or {}):
        raise InputError("distill: the members do not say what they started from; name it with --set backbone=MODEL")
    chosen = _distillation(name or (f"{from_run}-distilled" if from_run else "distilled"), backbone, models, top, known)
    if data is None and known:
        data = known["data"]
    changed = apply_overrides(chosen, overrides) if overrides else chosen
    options: dict[str, Any] = {"address": address, "command": command, "skip_bad": skip_bad, "say": say}
    return run(changed, None, data, folder, name=chosen.name, **options)


def run_record(storage: Path, name: str) -> dict[str, Any]:
    """What the storage remembers of the run called ``name``."""
    fetch(storage / "pipelines")
    found = read_json(storage / "pipelines" / f"{name}.json")
    if found is None:
        known = sorted(path.stem for path in (storage / "pipelines").glob("*.json"))
        raise InputError(f"no run '{name}' in {storage}{nearest(name, known)}; it holds: {', '.join(known) or 'none'}")
    return found


def _finished_members(known: dict[str, Any], storage: Path) -> list[str]:
    """Run ids of a run's members."""
    if not known["members"]:
        raise InputError(f"--from-run {known['name']}: it has no members to distil from")
    left = [member for member in known["members"] if not has_folder(storage / "runs" / member / "model")]
    if left:
        raise InputError(
            f"--from-run {known['name']}: {len(left)} of its {len(known['members'])} members are not finished; finish "
            f"them first with: {known['command']}"
        )
    return known["members"]


def _distillation(
    name: str, backbone: str | None, models: Sequence[str], top: int | None, known: dict[str, Any]
) -> Pipeline:
    """The pipeline that distils ``models``, with the settings of the run they are the members of, where there is one."""
    before = known.get("pipeline", {})
    kept = {option: before[option] for option in ("student_pooling", "evaluation", "resources") if option in before}
    plain = {
        "name": name,
        "backbone": backbone or "",
        "combine": "sed",
        "sed": before.get("sed") or to_plain(stages.sed()),
        "teachers": list(models),
        "select_top": top,
        **kept,
    }
    problems: list[str] = []
    found = build(Pipeline, plain, problems)
    if found is None:
        raise InputError(problems)
    return found


def _common_backbone(folders: list[Path], storage: Path) -> str | None:
    """What all of these models started from, where that is on record."""
    records = [read_json(folder.parent / "run.json") or {} for folder in folders]
    named = {(record.get("backbone"), record.get("backbone_id")) for record in records}
    if len(named) != 1:
        return None
    backbone, backbone_id = named.pop()
    return str(storage / "backbones" / f"tiny-{backbone_id}") if backbone == pipeline.TINY else backbone


def embed(
    model: str | Path,
    input: str | Path,  # noqa: A002
    column: str,
    output: str | Path,
    *,
    storage: str | Path | None = None,
    layers: Layers | None = None,
    address: str | None = None,
    say: Say = say_on_stderr,
) -> dict[str, Any]:
    """Embed a text column of Parquet files into Parquet shards, streaming; a killed job goes on shard by shard.

    Args:
        model: a MODEL.
        input: a Parquet file or a folder of them.
        column: the text column.
        output: folder of the shards: every input column and ``embedding``, a fixed-size list of float32.
        storage: where run ids are looked up.
        layers: pool these layers instead of the model's own.
        address: as :func:`run`.
        say: takes progress.

    Returns:
        status, output, rows, shards, dim.
    """
    source, target = Path(input).absolute(), Path(output).absolute()
    path = locate(model, storage_of(storage))
    work = bulk.units(source, column, target)
    loaded = pretrained.load(path, layers=layers, device="cpu")
    _check_writable(target.parent, "--output")
    with lock(target.parent / f".{target.name}.lock", f"raysts embed --output {target}"):
        spec = {"model": folder_id(path), "input": str(source), "column": column, "layers": loaded.layers}
        bulk.open_output(target, spec)
        left = [unit for unit in work if not Path(unit.target).exists()]
        say(f"embed: {len(work)} shards, {len(work) - len(left)} done")
        if left:
            with executor(address) as chosen:
                began = time.monotonic()
                for done in chosen.embed_files(left, path, layers, column, Resources()):
                    rate = sum(unit.rows for unit in left[:done]) / (time.monotonic() - began)
                    say(f"embed: {len(work) - len(left) + done}/{len(work)} shards, {rate:.0f} rows/s")
        manifest = bulk.close_output(target, work, loaded)
    return {
        "status": "done",
        "output": str(target),
        "rows": manifest["rows"],
        "shards": len(work),
        "dim": manifest["dim"],
    }


def report(name: str | None = None, *, paper: str | None = None, storage: str | Path | None = None) -> dict[str, Any]:
    """Write the HTML report of one run, or of every run in the storage, again; or that of a paper's tables.

    Args:
        name: of this run only.
        paper: ``sed``, ``gausscse`` or ``latte-mix``: its published tables with what this storage measured beside them.
        storage: as :func:`run`.

    Returns:
        status, reports (paths); for a paper also text, and what :meth:`raysts.report.paper.data.PaperData.as_plain` says.
    """
    folder = storage_of(storage)
    if paper is not None:
        from raysts.report.paper.data import report_data as paper_data
        from raysts.report.paper.page import write_report as write_paper
        from raysts.report.paper.text import format_paper

        _check_writable(folder, "--storage")
        shown = paper_data(paper, folder)
        path = write_paper(shown, folder / "reports" / f"paper-{paper}")
        text = f"{format_paper(shown)}\n\nreport: {path}"
        return {"status": "done", "storage": location(folder), "reports": [str(path)], **shown.as_plain(), "text": text}
    fetch(folder / "pipelines")
    known = [name] if name else sorted(path.stem for path in (folder / "pipelines").glob("*.json"))
    if not known:
        raise InputError(f"no run in {folder}: there is nothing to report; 'raysts run quickstart' makes one")
    paths = []
    for each in known:
        record = run_record(folder, each)
        problems: list[str] = []
        chosen = build(Pipeline, record["pipeline"], problems)
        if chosen is None:
            raise InputError(problems)
        made = pipeline.Plan(
            pipeline=chosen,
            corpus=Corpus(record["data"], record.get("skip_bad", False)),
            storage=folder,
            locate=lambda model: locate(model, folder),
        )
        if [node.id for node in made.nodes] != record["nodes"]:
            raise InputError(
                f"run '{each}': its data ({record['data']}), its backbone or raysts itself has changed since it ran, so its "
                f"report cannot be made again; the one it has stays ({folder / 'reports' / each / 'index.html'})"
            )
        refresh(made.nodes)
        data = report_data(made, each, record["command"], record["seconds"])
        paths.append(str(write_report(data, folder / "reports" / each)))
    return {"status": "done", "storage": location(folder), "reports": paths}


def data_fetch(
    data: str | Path, tables: Sequence[str] | None = None, *, source: str | Path | None = None, say: Say = say_on_stderr
) -> dict[str, Any]:
    """Fetch public data sets from the Hugging Face hub into the canonical layout; see ``raysts.data.fetch.fetch``."""
    from raysts.data.fetch.fetch import fetch

    root = _own_folder(data)
    return {"status": "done", "data": str(root), **fetch(root, list(tables) if tables else None, source, progress=say)}


def data_prepare(
    data: str | Path,
    *,
    input: str | Path | None = None,  # noqa: A002
    sample: int | None = None,
    seed: int = 0,
    address: str | None = None,
    skip_bad: bool = False,
    say: Say = say_on_stderr,
) -> dict[str, Any]:
    """Turn Wikipedia articles or a dump into clean, distinct sentences; see ``raysts.cluster.prepare``."""
    from raysts.cluster.connect import connected

    root = _own_folder(data)
    _check_writable(root.absolute(), "--data")
    if input is None:
        input = next(iter(Corpus(root).files("wikipedia/articles")), None)
        if input is None:
            raise InputError(f"{root} has no wikipedia/articles: fetch them, or give a dump with --input FILE")
        input = root / "wikipedia" / "articles.parquet"
        input = input if input.exists() else root / "wikipedia" / "articles"
    if not Path(input).exists():
        raise InputError(f"--input '{input}' does not exist: it must be articles in Parquet or a MediaWiki dump")
    with connected(address):
        from raysts.cluster.prepare import prepare_wikipedia

        made = prepare_wikipedia(Path(input), root, sample, seed, say=say, skip_bad=skip_bad)
    return {**made, "status": "done", "data": str(root)}


def _own_folder(data: str | Path) -> Path:
    if "://" in str(data):
        raise InputError(
            f"--data '{data}': is written to here; give a folder, and copy it to the store when it is done"
        )
    return Path(data)


def data_check(data: str | Path | None = None) -> dict[str, Any]:
    """What a data folder holds, what is wrong with it, and which training text occurs in which evaluation set."""
    from raysts.evaluation.contamination.text_overlap import check

    corpus = corpus_of(data)
    return {"status": "done", "data": corpus.where, **check(corpus)}

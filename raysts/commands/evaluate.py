"""``raysts evaluate``: a model on tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from raysts.commands import options as opt
from raysts.commands.options import Command, Result, local_path, option
from raysts.errors import InputError, nearest
from raysts.log import fold, say

if TYPE_CHECKING:
    from raysts.data.corpora import Corpus
    from raysts.models.sentence_model import SentenceModel
    from raysts.ops.similarity import Similarity


def evaluate(
    model: opt.Model,
    tasks: opt.Tasks = None,
    *,
    data: opt.Data = None,
    test: opt.Test = None,
    storage: opt.StoragePlace = None,
    pooling: Annotated[str | None, Parameter(metavar="MODE")] = None,
    layers: opt.Layers = None,
    prompt: opt.Prompt = None,
    similarity: opt.Name = None,
    resamples: opt.Resamples = 1000,
    probe: opt.Name = None,
    documents_by: opt.OtherModel = None,
    like: opt.OtherModel = None,
    text: Annotated[str | Path | None, option("of --like: texts, as 'distill' reads them", "PATH")] = None,
    column: opt.TextColumn = None,
    strict_contamination: opt.StrictContamination = False,
    mteb: opt.Folder = None,
    precision: opt.Precision = "fp32",
) -> Result:
    """Measure a model on tasks.

    Results on tasks are stored for reports, and a repeated measurement replaces them. With ``precision`` other than fp32
    it stands behind the system in the results.

    Args:
        pooling: over tokens: mean, cls, max, mean_sqrt_len_tokens, weightedmean, lasttoken, or several joined by '+'
            (default: the model's).
        similarity: cosine, l2, or another that the model has (default: all that it has).
        probe: of transfer: standard (default: logistic regression), or senteval (the official one, slower).
        documents_by: of retrieval: this model embeds the documents, and the other the queries alone, as a student that
            searches its teacher's index does.
        like: without labels: agreement with this model on the held-out texts of --text, among up to 20,000 others (rank
            correlation of pairs, share of its ten nearest texts).
        mteb: write the STS results as well, for mteb.ResultCache('DIR').

    Returns:
        status, storage, model, results (rows), contamination (one per task, see
        ``evaluation.contamination``), notes (the same as text), models (model, role,
        and :class:`raysts.evaluation.cost.ModelCost`; not of two); with ``mteb`` also mteb (paths of the files).
    """
    from raysts.commands.compare import EmbeddingProgress
    from raysts.commands.context import open_onnx, store_of, warn_generated
    from raysts.commands.models import locate
    from raysts.data.corpora import corpus_of
    from raysts.data.user import UserData, open_text
    from raysts.evaluation import harness, mteb_results, results, retrieval
    from raysts.evaluation.agreement import agreement_sets
    from raysts.evaluation.contamination import merge_histories, trained_on
    from raysts.evaluation.cost import ModelCost
    from raysts.evaluation.transfer import PROBE
    from raysts.ids import content_id, folder_id
    from raysts.models import pretrained
    from raysts.models.layers import EVERY_LAYER, single_layers
    from raysts.models.precision import resolve
    from raysts.storage.atomic import remove_drafts
    from raysts.storage.runs import record_of
    from raysts.storage.store import Store

    store = store_of(storage)
    opt.check_precision(precision)
    chooses = {"tasks": tasks, "test": test, "mteb": mteb, "documents-by": documents_by, "probe": probe, "like": like}
    _check_options(resamples, probe, chooses, text)
    held_out = None if text is None else open_text(text, column).holding_out()
    corpus = corpus_of(data, user_data=UserData.of(None, column, test=test)) if held_out is None else None
    tasks = _tasks(corpus, tasks, probe, documents_by) if corpus else ()
    path, teacher = locate(model, store), None if documents_by is None else locate(documents_by, store)
    if corpus is not None:
        warn_generated(corpus)
        history = merge_histories(map(trained_on, filter(None, (path, teacher))))
        contamination = harness.find_contamination(corpus, tasks, history)
        problems = contamination.refuse(f"'{model}'") if strict_contamination else []
        problems += [] if mteb is None else mteb_results.problems(tasks, similarity)
        if problems:
            raise InputError(problems)
    if mteb is not None:
        Store(local_path(mteb, "--mteb", writes=True).absolute()).check(writes=True, option="--mteb")
    record, content = record_of(path), folder_id(path)
    options: dict[str, Any] = {"pooling": pooling, "prompt": prompt, "content": content}
    computes: Any = {"precision": precision}
    reduced = None if precision == "fp32" else precision
    graph = open_onnx(path, **options, layers=layers, documents_by=documents_by, precision=reduced)
    if graph is not None and (
        refused := [name for name in tasks if name in harness.TASKS and harness.TASKS[name].asks_model]
    ):
        raise InputError(f"model '{path}' is ONNX, and {', '.join(refused)} reads token vectors. Name other --tasks")
    loaded_layers = None if layers == EVERY_LAYER else layers
    loaded = graph or pretrained.load(path, **options, layers=loaded_layers, **computes)
    chosen: Sequence[int | str] | None = None if layers is None else (layers,)
    if layers == EVERY_LAYER:
        chosen = single_layers(loaded.depth)
    context = _context(record, str(model), content)
    id_parts = []
    if prompt is not None:
        id_parts.append(loaded.prompts.resolve())
        loaded.prompts = loaded.prompts.for_every_text()
    similarities = _similarities(loaded, similarity)
    if teacher is not None:
        id_parts.append(folder_id(teacher))
        documents = pretrained.load(teacher, content=id_parts[-1], **computes)
        if problems := retrieval.index_problems(loaded, documents):
            raise InputError(problems)
        similarities = similarities if similarity is not None else dict([next(iter(similarities.items()))])
        context["system"] = f"{context['system']}, documents by {documents_by}"
    if graph is None and (computed := resolve(precision, next(loaded.encoder.parameters()).device)) != "fp32":
        id_parts.append(computed)
        context["system"] = f"{context['system']}, {computed}"
    if probe not in (None, PROBE):
        id_parts.append(str(probe))
    if mteb is not None and "cosine" not in similarities:
        raise InputError(
            f"--mteb: MTEB's main score is by cosine, and this model has {', '.join(similarities)}. Remove --mteb"
        )
    result: Result = {"status": "done", "storage": store.uri, "model": str(path)}
    progress = EmbeddingProgress("evaluate", 1 if teacher is None else 2)
    settings: dict[str, Any] = {"resamples": resamples, "similarities": similarities, "progress": progress}
    if corpus is None:
        assert held_out is not None
        folder = locate(str(like), store)
        options["content"] = folder_id(folder)
        measures = agreement_sets(pretrained.load(folder, **options), options["content"], held_out)
        return {**result, "results": harness.evaluate_sets(loaded, measures, chosen, context, **settings)}
    settings |= {"clean": contamination.clean, "probe": probe or PROBE}
    if teacher is not None:
        texts = retrieval.documents_of(harness.sets_of(corpus, tasks))
        (vectors,) = documents.represent_layers(
            texts, (documents.layers,), **harness.progress_options(progress, len(texts))
        ).values()
        settings["index"] = dict(zip(texts, vectors["vectors"], strict=True))
    rows = harness.evaluate(loaded, corpus, tasks, chosen, context, **settings)
    sets = sorted({(row["dataset"], row["dataset_sha256"]) for row in rows})
    part = content_id([content, sets, loaded.pooling, layers, list(similarities), resamples, *id_parts])
    try:
        remove_drafts(store.path("results"))
        results.write(store.root, f"{results.EVALUATION}{part}", rows)
    except OSError as error:  # show the results although they are not stored
        say(f"the results are not kept for reports: {store.uri} cannot be written to ({error.strerror})")
    notes = contamination.lines(str(model)) + _silent(tasks, rows)
    result |= {"results": rows, "contamination": contamination.entries(str(model)), "notes": notes}
    if teacher is None and graph is None and progress.seconds:
        cost = ModelCost.measure(loaded, harness.sentences(corpus, tasks), progress.seconds, progress.cpu_seconds)
        result["models"] = [{"model": str(model), "role": context["role"], **asdict(cost)}]
        result["notes"].append(f"{model}: {cost.text}")
    if mteb is not None:
        revision = str(record.get("run_id") or content)
        files = mteb_results.write(rows, Path(mteb), str(model), revision, loaded.layers, next(iter(similarities)))
        result["mteb"] = [str(file) for file in files]
    return result


def _check_options(resamples: int, probe: str | None, chooses: Mapping[str, Any], text: str | Path | None) -> None:
    """Check the options that need no data. ``chooses``: those that choose what is measured, by name."""
    from raysts.evaluation.transfer import PROBES
    from raysts.recipes.recipe import resamples_problem

    if problem := resamples_problem(resamples):
        raise InputError(f"--{problem}")
    if probe is not None and probe not in PROBES:
        raise InputError(f"--probe '{probe}'{nearest(probe, PROBES)}: must be one of {', '.join(PROBES)}")
    set_too = [f"--{name}" for name, value in chooses.items() if value]
    if ("--like" in set_too) != (text is not None) or (text is not None and set_too != ["--like"]):
        raise InputError(
            "--like MODEL and --text PATH belong together, without other tasks; give both, or none of them"
        )


def _tasks(
    corpus: Corpus, tasks: Sequence[str] | None, probe: str | None, documents_by: str | Path | None
) -> tuple[str, ...]:
    """Return the checked tasks to measure, and report those that are left out."""
    from raysts.evaluation import harness, retrieval

    if documents_by is not None:
        tasks = tasks or [retrieval.NAME]
        if wrong_tasks := [name for name in tasks if name.partition(":")[0] != retrieval.NAME]:
            raise InputError(
                f"--documents-by: {', '.join(wrong_tasks)} has no documents; name {retrieval.NAME} or {retrieval.NAME}:NAME"
            )
    checked = harness.check_tasks(corpus, tasks)
    if probe is not None and "transfer" not in checked:
        raise InputError(f"--probe is of transfer, and what is measured is {', '.join(checked)}. Remove --probe")
    for line in harness.left_out(corpus, checked):
        say(line)
    return checked


def _context(record: Mapping[str, Any], model: str, content: str) -> dict[str, Any]:
    """Return the columns of result rows that identify the model. ``content`` is its content id."""
    return {
        "run_id": record.get("run_id"),
        "parent_run_ids": record.get("parents") or [content],
        "system": record.get("system") or model,
        "recipe": record.get("stage"),
        "role": record.get("role") or "backbone",
        "member": record.get("member"),
        "seed": record.get("seed"),
        "transductive": bool(record.get("transductive")),
        "selected_by": record.get("selected_by"),
        "step": (record.get("kept") or {}).get("step"),
    }


def _silent(tasks: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a note for each task without a value of the model itself."""
    measured = {row["dataset"] for row in rows if row["role"] != "baseline"}
    return [
        f"{name}: the model has neither a variance nor a similarity that depends on the order of two sentences, so it says "
        f"nothing about the direction; the rows are those of the baseline"
        for name in tasks
        if name not in measured and any(row["dataset"] == name for row in rows)
    ]


def _similarities(model: SentenceModel, name: str | None) -> Mapping[str, Similarity]:
    """Return all similarities of a model, or the one called ``name``."""
    from raysts.ops.similarity import cosine_of_vectors, l2_of_vectors

    if name is None:
        return model.similarities
    similarities = {"cosine": cosine_of_vectors, "l2": l2_of_vectors, **model.similarities}
    if name == "variance":
        raise InputError(
            f"--similarity variance: it compares no two texts; the direction tasks measure by variance, unasked, where a "
            f"model has one (gausscse); this model has {', '.join(similarities)}"
        )
    if name not in similarities:
        raise InputError(
            f"--similarity '{name}': this model has {', '.join(similarities)}{nearest(name, similarities)}"
        )
    return {name: similarities[name]}


def _text(result: Result) -> str:
    from raysts.evaluation.standings import format_results

    # A model without a record of a run starts nothing here, although its rows have that role.
    rows = [{**row, "role": "model"} if row["role"] == "backbone" else row for row in result["results"]]
    lines = [format_results(rows), *map(fold, result.get("notes", []))]
    if files := result.get("mteb"):  # <folder>/results/<model>/<revision>/<task>.json
        lines.append(f"MTEB results: {len(files)} files, which mteb.ResultCache('{Path(files[0]).parents[3]}') reads")
    return "\n".join(lines)


EXAMPLE = "raysts evaluate MODEL --data DATA --tasks sts12,stsb"
COMMANDS = (Command("evaluate", evaluate, _text, EXAMPLE, opt.MEASURE, ("model",)),)

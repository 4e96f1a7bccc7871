"""``raysts evaluate``: a model on tasks, or on a file of scored pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter, Token

from raysts.commands import options as opt
from raysts.commands.options import Command, Result, on_this_machine, option, say_on_stderr
from raysts.errors import InputError, nearest

if TYPE_CHECKING:
    from raysts.data.corpora import Corpus
    from raysts.models.sentence_model import SentenceModel
    from raysts.ops.similarity import Similarity

WHAT, WHICH = opt.one_of("--tasks", "--pairs", "--like"), opt.one_of("--layers", "--layer")


def _layer(hint: Any, tokens: Sequence[Token]) -> int | str:
    """Return the number of a layer, or ``all``."""
    text = tokens[0].value
    if text != "all" and not text.isdecimal():
        raise ValueError(f"'{text}' must be the number of a layer, or 'all'")
    return text


def evaluate(
    model: opt.Model,
    tasks: Annotated[opt.Tasks, Parameter(group=WHAT)] = None,
    *,
    pairs: Annotated[
        str | Path | None,
        option(
            "score this file instead: Parquet, CSV, TSV or JSONL with sentence1, sentence2, score", "FILE", group=WHAT
        ),
    ] = None,
    data: opt.Data = None,
    test: opt.Test = None,
    storage: opt.StoragePlace = None,
    pooling: Annotated[
        str | None,
        option(
            "pooling over tokens: mean, cls, max, mean_sqrt_len_tokens, weightedmean, lasttoken, or several joined by '+' "
            "(default: the model's)",
            "MODE",
        ),
    ] = None,
    layers: Annotated[int | str | None, opt.layers_option("the model's own", group=WHICH)] = None,
    layer: Annotated[
        int | str | None,
        option(
            "pool layer I alone; 0 is the embedding layer; 'all': each layer alone", "I", converter=_layer, group=WHICH
        ),
    ] = None,
    prompt: opt.Prompt = None,
    similarity: Annotated[
        str | None, option("cosine, l2, or another that the model has (default: all that it has)", "NAME")
    ] = None,
    resamples: opt.Resamples = 1000,
    probe: Annotated[
        str | None,
        option("of transfer: standard (default: logistic regression), or senteval (the official one, slower)", "NAME"),
    ] = None,
    documents_by: Annotated[
        str | Path | None,
        option(
            "of retrieval: this model embeds the documents, and the other the queries alone, as a student that searches its "
            "teacher's index does",
            "MODEL",
        ),
    ] = None,
    like: Annotated[
        str | Path | None,
        option(
            "without labels: agreement with this model on the held-out texts of --text (rank correlation of pairs, share of its "
            "ten nearest texts)",
            "MODEL",
            group=WHAT,
        ),
    ] = None,
    text: Annotated[str | Path | None, option("of --like: texts, as 'distill' reads them", "PATH")] = None,
    column: opt.TextColumn = None,
    strict_contamination: opt.StrictContamination = False,
    mteb: Annotated[
        str | Path | None, option("write the STS results as well, for mteb.ResultCache('DIR')", "DIR")
    ] = None,
    precision: opt.Precision = "fp32",
    say: opt.Say = say_on_stderr,
) -> Result:
    """Measure a model on tasks, or on a file of scored pairs.

    Results on tasks are stored for reports. A repeated measurement replaces them.

    Args:
        data: as :func:`raysts.run`.
        test: files of scored pairs and folders of retrieval sets by name. Each is a task of that name, in addition to those
            of ``data``, or alone without ``data``.
        layers: this choice of layers only: a number of last layers, ``first_last``, a single layer (``only-3``), or every
            single layer (``only-all``); default: the model's own (for the task ``words`` every single layer).
        layer: the number of a single layer, or ``all``.
        strict_contamination: refuse test sets that hold training rows of the model. Rows of ``pairs`` are not searched.
        like: a teacher. Its own similarities are what the model's are held against, and both embed the held-out texts and up to
            20,000 others.
        text: file, folder or URI of texts.
        precision: of embedding, as :func:`raysts.embed`; other than ``fp32`` it stands behind the system in the results.

    Returns:
        status, storage, model, results (rows), contamination (one per task, see
        ``evaluation.contamination``), notes (the same as text), cost (:class:`raysts.evaluation.cost.ModelCost`; not of two
        models); with ``mteb`` also mteb (paths of the files).
    """
    from raysts.commands.context import corpus_of, open_onnx, store_of
    from raysts.commands.models import locate
    from raysts.commands.systems import EmbeddingProgress
    from raysts.data.user import UserData, open_text
    from raysts.evaluation import harness, mteb_results, results, retrieval
    from raysts.evaluation.agreement import agreement_sets
    from raysts.evaluation.contamination.lineage import merge_histories, trained_on
    from raysts.evaluation.cost import ModelCost
    from raysts.evaluation.sts import load_pairs_file
    from raysts.evaluation.transfer import PROBE
    from raysts.ids import content_id, folder_id
    from raysts.models import pretrained
    from raysts.models.layers import EVERY_LAYER, single_layers
    from raysts.models.precision import resolve
    from raysts.storage.atomic import remove_drafts
    from raysts.storage.runs import record_of
    from raysts.storage.store import Store

    if layer is not None:
        if layers is not None:
            raise InputError("--layers and --layer: give one of them")
        layers = f"only-{layer}"
    store = store_of(storage)
    opt.check_precision(precision)
    _check_options(resamples, probe, pairs, {"test": test, "mteb": mteb, "documents_by": documents_by, "probe": probe})
    if (like is None) != (text is None) or (like is not None and any((test, mteb, documents_by, probe, pairs, tasks))):
        raise InputError(
            "--like MODEL and --text PATH belong together, without other tasks; give both, or none of them"
        )
    scored_pairs = None if pairs is None else load_pairs_file(pairs)
    held_out = None if text is None else open_text(text, column).holding_out()
    corpus = corpus_of(data, own=UserData.of(test=test)) if scored_pairs is None and held_out is None else None
    tasks = _tasks(corpus, tasks, probe, documents_by) if corpus else ()
    path, teacher = locate(model, store), None if documents_by is None else locate(documents_by, store)
    if corpus is not None:
        contamination = harness.find_contamination(
            corpus, tasks, merge_histories(map(trained_on, filter(None, (path, teacher))))
        )
        problems = contamination.refuse(f"'{model}'") if strict_contamination else []
        problems += [] if mteb is None else mteb_results.problems(tasks, similarity)
        if problems:
            raise InputError(problems)
    if mteb is not None:
        Store(on_this_machine(mteb, "--mteb").absolute()).check(writes=True, option="--mteb")
    record, content = record_of(path), folder_id(path)
    loaded_layers = None if layers == EVERY_LAYER else layers
    options: dict[str, Any] = {"pooling": pooling, "prompt": prompt, "content": content}
    computes: Any = {"precision": precision}
    other = None if precision == "fp32" else precision
    graph = open_onnx(path, **options, layers=layers, documents_by=documents_by, precision=other)
    if graph is not None and (
        refused := [name for name in tasks if name in harness.TASKS and harness.TASKS[name].asks_model]
    ):
        raise InputError(f"model '{path}' is ONNX, and {', '.join(refused)} reads token vectors. Name other --tasks")
    loaded: Any = graph or pretrained.load(path, **options, layers=loaded_layers, **computes)
    context = _context(record, str(model), content)
    chosen = None if layers is None else single_layers(loaded.depth) if layers == EVERY_LAYER else (layers,)
    id_parts = []
    if prompt is not None:
        id_parts.append(loaded.prompt if graph else loaded.prompts.resolve())
    similarities = _similarities(loaded, similarity)
    if teacher is not None:
        id_parts.append(folder_id(teacher))
        documents = pretrained.load(teacher, content=id_parts[-1], **computes)
        if problems := retrieval.index_problems(loaded, documents):
            raise InputError(problems)
        similarities = similarities if similarity is not None else dict([next(iter(similarities.items()))])
        context["system"] = f"{context['system']}, documents by {documents_by}"
    if not graph and (computed := resolve(precision, next(loaded.encoder.parameters()).device)) != "fp32":
        id_parts.append(computed)
        context["system"] = f"{context['system']}, {computed}"
    if probe not in (None, PROBE):
        id_parts.append(str(probe))
    if mteb is not None and "cosine" not in similarities:
        raise InputError(
            f"--mteb: MTEB's main score is by cosine, and this model has {', '.join(similarities)}; leave --mteb out"
        )
    result: Result = {"status": "done", "storage": store.uri, "model": str(path)}
    progress = EmbeddingProgress("evaluate", say)
    settings: dict[str, Any] = {"resamples": resamples, "similarities": similarities, "progress": progress}
    if scored_pairs is not None:
        return {**result, "results": harness.evaluate_sets(loaded, [scored_pairs], chosen, context, **settings)}
    if held_out is not None:
        folder = locate(str(like), store)
        options["content"] = folder_id(folder)
        agreement = agreement_sets(pretrained.load(folder, **options), options["content"], held_out)
        return {**result, "results": harness.evaluate_sets(loaded, agreement, chosen, context, **settings)}
    assert corpus is not None
    settings |= {"contaminated": contamination, "probe": probe or PROBE}
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
        say_on_stderr(f"the results are not kept for reports: {store.uri} cannot be written to ({error.strerror})")
    result |= {"results": rows, "contamination": contamination.entries(str(model))}
    result["notes"] = contamination.lines(str(model)) + _silent(tasks, rows)
    if teacher is None and progress.seconds:
        cost = ModelCost.measure(loaded, harness.sentences(corpus, tasks), progress.seconds, progress.cpu_seconds)
        result["cost"] = asdict(cost)
        result["notes"].append(f"{model}: {cost.text}")
    if mteb is not None:
        revision = str(record.get("run_id") or content)
        files = mteb_results.write(rows, Path(mteb), str(model), revision, loaded.layers, next(iter(similarities)))
        result["mteb"] = [str(file) for file in files]
    return result


def _check_options(resamples: int, probe: str | None, pairs: str | Path | None, options: Mapping[str, Any]) -> None:
    """Check the options that need no data, and refuse those that ``--pairs`` excludes."""
    from raysts.evaluation.transfer import PROBES
    from raysts.recipes.recipe import resamples_problem

    if problem := resamples_problem(resamples):
        raise InputError(f"--{problem}")
    if probe is not None and probe not in PROBES:
        raise InputError(f"--probe '{probe}'{nearest(probe, PROBES)}: must be one of {', '.join(PROBES)}")
    without = {
        "test": "--pairs and --test: --pairs scores one file alone; name it with --test NAME=FILE too",
        "mteb": "--mteb writes results of MTEB's tasks, and --pairs is none of them; leave one of the two out",
        "documents_by": "--documents-by is of retrieval, and --pairs has no documents; leave one of the two out",
        "probe": "--probe is of transfer, and --pairs has no labels; leave one of the two out",
    }
    if problems := [without[name] for name, value in options.items() if value and pairs is not None]:
        raise InputError(problems)


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
        raise InputError(f"--probe is of transfer, and what is measured is {', '.join(checked)}; leave it out")
    for line in harness.left_out(corpus, checked):
        say_on_stderr(line)
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

    lines = [format_results(result["results"]), *result.get("notes", [])]
    if files := result.get("mteb"):  # <folder>/results/<model>/<revision>/<task>.json
        lines.append(f"MTEB results: {len(files)} files, which mteb.ResultCache('{Path(files[0]).parents[3]}') reads")
    return "\n".join(lines)


EXAMPLE = "raysts evaluate MODEL --data DATA --tasks sts12,stsb"
COMMANDS = (Command("evaluate", evaluate, _text, EXAMPLE, opt.MEASURE, ("model",)),)

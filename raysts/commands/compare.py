"""``raysts compare``: two systems on the same rows, from models or from runs of the storage."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from raysts.commands import options as opt
from raysts.commands.options import Command, Result, option, say_on_stderr
from raysts.errors import InputError

SYSTEM = (
    "a MODEL, a run or a system of the storage; NAME:members, :ensemble, :student, ... (default: what its name says, all members "
    "where nothing combines them; of a run with deliver=best what that delivered)"
)


def compare(
    a: Annotated[str | Path, option(SYSTEM, "A")],
    b: Annotated[str | Path, option(SYSTEM, "B")],
    tasks: opt.Tasks = None,
    *,
    data: opt.Data = None,
    test: opt.Test = None,
    storage: opt.StoragePlace = None,
    layers: Annotated[
        int | str | None, opt.layers_option("the models' own if all agree, else 1", of=" of both")
    ] = None,
    prompt: opt.Prompt = None,
    resamples: opt.Resamples = 1000,
    precision: opt.Precision = "fp32",
    margin: Annotated[
        float | None,
        option(
            "points (x100) that A may be below B: say if it is shown to be less, or how many rows would show it", "M"
        ),
    ] = None,
    draw_sets: Annotated[
        bool,
        option("resample the sets too, so that the interval of their mean covers other sets of their kind"),
    ] = False,
    say: opt.Say = say_on_stderr,
) -> Result:
    """Test the difference of two systems on the same rows.

    Each has its own similarity, and both have the same choice of pooled layers. See
    :func:`raysts.evaluation.compare.compare_systems` for intervals and tests.

    Args:
        a: a MODEL, a run of the storage, or a system with runs in the storage. ``NAME:members``, ``NAME:ensemble``,
            ``NAME:student``, ``NAME:soup`` and ``NAME:greedy-soup`` choose a part of a run (default: the part that its
            system's name names, or all members if nothing combines them; with ``deliver=best`` the delivered model).
        b: the other system.
        tasks: names; default: every task with files and with rows that can be compared.
        storage: storage of the runs.
        layers: pooled layers of both; default: the models' own if all agree, else 1.
        precision: of embedding, as :func:`raysts.embed`.
        margin: non-inferiority: A is less than this below B if the paired 95 % interval of the difference lies above
            ``-margin``.
        draw_sets: each resample draws sets with replacement before rows, for the mean over at least two sets.

    Returns:
        status, storage, a, b (in words), layers, comparison (rows, columns :data:`raysts.evaluation.compare.COLUMNS`),
        conclusion, margins (:func:`raysts.evaluation.compare.margins`; empty without a margin), costs (of the models of A
        and of B: :class:`raysts.evaluation.cost.ModelCost`), baselines (rows of BM25 on retrieval sets), left_out (tasks on which
        not both can be compared, with the reason), text.

    Raises:
        InputError: a or b is missing, or they have no choice of layers or no task in common.
    """
    from raysts.commands.context import corpus_of, store_of
    from raysts.commands.models import system_of
    from raysts.commands.systems import EmbeddingProgress, comparable_tasks, equal_layers, measure
    from raysts.data.user import UserData
    from raysts.evaluation import harness
    from raysts.evaluation.compare import compare_systems, conclusion, format_comparison, margin_sentence, margins
    from raysts.recipes.recipe import resamples_problem

    store = store_of(storage)
    opt.check_precision(precision)
    if problem := resamples_problem(resamples):
        raise InputError(f"--{problem}")
    if margin is not None and not 0 < margin <= 100:
        raise InputError(f"--margin {margin:g}: must be above 0 and at most 100; it is in points (x100), for example 2")
    if not resamples and (margin is not None or draw_sets):
        raise InputError("--resamples 0 gives no interval, which --margin and --draw-sets need; remove it")
    corpus = corpus_of(data, own=UserData.of(test=test))
    chosen, left_out = comparable_tasks(corpus, tasks)
    for line in harness.left_out(corpus, chosen):
        say(line)
    systems = [system_of(str(name), store) for name in (a, b)]
    texts = harness.sentences(corpus, chosen)
    progress = EmbeddingProgress("compare", say)
    options = {"layers": layers, "prompt": prompt, "precision": precision}
    measured = [measure(system, corpus, chosen, texts, progress, **options) for system in systems]
    layers_of_both = equal_layers(systems, measured)
    scores = [[model.by_layers[layers_of_both] for model in models] for models in measured]
    all_scores = [*scores[0], *scores[1]]
    sets = [name for name in all_scores[0] if all(name in model for model in all_scores)]
    silent = "a similarity that does not depend on the order, or no variance, says nothing about the direction"
    left_out |= {name: silent for model in all_scores for name in model if name not in sets}
    scored_names = {
        name
        for model in all_scores
        for row_scores in model.values()
        for name in (row_scores.dataset, row_scores.dataset.partition(":")[0])
    }
    left_out |= {name: silent for name in chosen if name not in scored_names}
    refused = [name for name in tasks or () if name in left_out]
    if refused or not sets:
        raise InputError([f"task '{name}': {left_out[name]}" for name in refused or left_out])
    counts = Counter(all_scores[0][name].metrics[0] for name in sets)
    if draw_sets and max(counts.values()) < 2:
        raise InputError("--draw-sets: needs at least two sets of one kind; name more in --tasks, or remove the option")
    of_a, of_b = ([{name: model[name] for name in sets} for model in models] for models in scores)
    rows = compare_systems(of_a, of_b, resamples, draw_sets=draw_sets)
    first, second = (system.name for system in systems)
    named = (first, second) if first != second else (f"A ({first})", f"B ({second})")
    summary = conclusion(*named, rows)
    lines = [format_comparison(systems[0].text, systems[1].text, rows), f"pooled layers of both: {layers_of_both}"]
    lines += [f"left out: {name}: {reason}" for name, reason in left_out.items()]
    costs = [[cost for model in models for cost in model.costs] for models in measured]
    lines += [f"{side}: {cost.text}" for side, of_side in zip("AB", costs, strict=True) for cost in of_side]
    baselines = harness.baseline_rows(harness.sets_of(corpus, chosen), {}, resamples)
    main = [row for row in baselines if row["metric"] == "ndcg@10"]
    lines += [f"{row['role']} on {row['dataset']}: {row['metric']} {100 * row['value']:.2f}" for row in main]
    decided = [] if margin is None else margins(rows, margin / 100, draw_sets)
    summary = "\n".join([summary, *(margin_sentence(*named, row) for row in decided)])
    return {
        "status": "done",
        "storage": store.uri,
        "a": systems[0].text,
        "b": systems[1].text,
        "layers": str(layers_of_both),
        "comparison": rows,
        "conclusion": summary,
        "margins": decided,
        "costs": [[asdict(cost) for cost in of_side] for of_side in costs],
        "baselines": baselines,
        "left_out": left_out,
        "text": "\n".join([*lines, "", summary]),
    }


def _text(result: Result) -> str:
    return str(result.pop("text"))


COMMANDS = (Command("compare", compare, _text, "raysts compare RUN_A RUN_B", opt.MEASURE, ("a", "b")),)

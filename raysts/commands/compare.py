"""``raysts compare``: two systems on the same rows, from models or from runs of the storage."""

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

    Returns:
        status, storage, a, b (in words), layers, comparison (rows, columns :data:`raysts.evaluation.compare.COLUMNS`),
        conclusion, left_out (tasks on which not both can be compared, with the reason), text.

    Raises:
        InputError: a or b is missing, or they have no choice of layers or no task in common.
    """
    from raysts.commands.context import corpus_of, store_of
    from raysts.commands.models import system_of
    from raysts.commands.systems import EmbeddingProgress, comparable_tasks, equal_layers, measure
    from raysts.data.user import UserData
    from raysts.evaluation import harness
    from raysts.evaluation.compare import compare_systems, conclusion, format_comparison
    from raysts.recipes.recipe import resamples_problem

    store = store_of(storage)
    opt.check_precision(precision)
    if problem := resamples_problem(resamples):
        raise InputError(f"--{problem}")
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
    of_a, of_b = ([{name: model[name] for name in sets} for model in models] for models in scores)
    rows = compare_systems(of_a, of_b, resamples)
    first, second = (system.name for system in systems)
    named = (first, second) if first != second else (f"A ({first})", f"B ({second})")
    summary = conclusion(*named, rows)
    lines = [format_comparison(systems[0].text, systems[1].text, rows), f"pooled layers of both: {layers_of_both}"]
    lines += [f"left out: {name}: {reason}" for name, reason in left_out.items()]
    return {
        "status": "done",
        "storage": store.uri,
        "a": systems[0].text,
        "b": systems[1].text,
        "layers": str(layers_of_both),
        "comparison": rows,
        "conclusion": summary,
        "left_out": left_out,
        "text": "\n".join([*lines, "", summary]),
    }


def _text(result: Result) -> str:
    return str(result.pop("text"))


COMMANDS = (Command("compare", compare, _text, "raysts compare RUN_A RUN_B", opt.MEASURE, ("a", "b")),)

"""``raysts.compare``: two systems on the same rows, from models or from what the storage knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raysts.commands import context as api
from raysts.data.corpora import Corpus
from raysts.errors import InputError, nearest
from raysts.evaluation import harness
from raysts.evaluation.compare import ModelScores, compare_systems, conclusion, format_comparison
from raysts.evaluation.tasks import ComparableTask, Representation, lookup
from raysts.models import pretrained
from raysts.models.head import Similarity, cosine_of_vectors
from raysts.models.layers import Layers
from raysts.pipeline.local import Say
from raysts.pipeline.outcome import outcome_of
from raysts.pipeline.plan import TINY
from raysts.storage.atomic import read_json
from raysts.storage.store import location

ROLES = ("student", "ensemble", "members")
"""What of a run can be compared: ``NAME:ROLE``; without a role what comes out of it, the first of these that it has."""

COMMON = 1
"""Pooled layers where the models do not agree on their own."""


@dataclass(frozen=True, slots=True)
class Side:
    """One system: the folders of its models; as an ensemble they are one system, the mean of their vectors."""

    name: str
    folders: tuple[Path, ...]
    ensemble: bool = False

    @property
    def text(self) -> str:
        """The system with how many models it has."""
        count = len(self.folders)
        if self.ensemble:
            return f"{self.name} (mean of {count} models' vectors)"
        return self.name if count == 1 else f"{self.name} ({count} models, mean ± std)"


def compare(
    a: str | Path,
    b: str | Path,
    tasks: Sequence[str] | None = None,
    *,
    data: str | Path | None = None,
    storage: str | Path | None = None,
    layers: Layers | None = None,
    resamples: int = 1000,
    say: Say = api.say_on_stderr,
) -> dict[str, Any]:
    """Measure two systems on the same rows and test the difference.

    Both are measured by their own similarity at the same choice of pooled layers. See
    :func:`raysts.evaluation.compare.compare_systems` for intervals and tests.

    Args:
        a: a MODEL, a run of the storage, or a system of which the storage has runs; ``NAME:members``, ``NAME:ensemble``
            and ``NAME:student`` say what of a run is meant (default: what comes out of it).
        b: the other one.
        tasks: names; default: every task whose files exist and on which rows can be compared.
        data: as :func:`raysts.evaluate`.
        storage: where runs are looked up.
        layers: pooled layers of both; default: what all models pool by themselves if that is the same, else 1.
        resamples: bootstrap resamples; 0 leaves intervals and the bootstrap's p out.
        say: takes progress.

    Returns:
        status, storage, a, b (in words), layers, comparison (rows, columns :data:`raysts.evaluation.compare.COLUMNS`),
        conclusion, left_out (tasks on which not both can be compared, with the reason), text.

    Raises:
        InputError: a or b is not there, or they have no choice of layers or no task in common.
    """
    folder = api.storage_of(storage)
    if resamples < 0:
        raise InputError(f"--resamples {resamples}: must not be negative; 0 leaves the intervals out")
    corpus = api.corpus_of(data)
    chosen, left_out = _comparable(corpus, tasks)
    sides = tuple(_side(str(name), folder) for name in (a, b))
    texts = harness.sentences(corpus, chosen)
    measured = [_measure(side, corpus, chosen, texts, layers, say) for side in sides]
    at = _equal_layers(sides, measured)
    found = [[one.by_layers[at] for one in models] for models in measured]
    sets = [name for name in found[0][0] if all(name in one for one in (*found[0], *found[1]))]
    silent = "a similarity that does not depend on the order, or no variance, says nothing about the direction"
    alone = {name: silent for one in (*found[0], *found[1]) for name in one if name not in sets}
    left_out |= alone | {name: silent for name in chosen if not any(name in one for one in (*found[0], *found[1]))}
    asked = [name for name in tasks or () if name in left_out]
    if asked or not sets:
        raise InputError([f"task '{name}': {left_out[name]}" for name in asked or left_out])
    of_a, of_b = ([{name: one[name] for name in sets} for one in models] for models in found)
    rows = compare_systems(of_a, of_b, resamples)
    names = (sides[0].name, sides[1].name)
    names = names if names[0] != names[1] else (f"A ({names[0]})", f"B ({names[1]})")
    said = conclusion(*names, rows)
    lines = [format_comparison(sides[0].text, sides[1].text, rows), f"pooled layers of both: {at}"]
    lines += [f"left out: {name}: {reason}" for name, reason in left_out.items()]
    return {
        "status": "done",
        "storage": location(folder),
        "a": sides[0].text,
        "b": sides[1].text,
        "layers": str(at),
        "comparison": rows,
        "conclusion": said,
        "left_out": left_out,
        "text": "\n".join([*lines, "", said]),
    }


def _comparable(corpus: Corpus, tasks: Sequence[str] | None) -> tuple[tuple[str, ...], dict[str, str]]:
    """The tasks to compare on, and those that are left out, with the reason."""
    checked = harness.check_tasks(corpus, tasks)
    without = "its values are not of single rows, so there is nothing to pair"
    left_out = {name: without for name in checked if not isinstance(harness.TASKS[name], ComparableTask)}
    chosen = tuple(name for name in checked if name not in left_out)
    refused = [name for name in tasks or () if name in left_out]
    if refused or not chosen:
        raise InputError([f"task '{name}' cannot be compared: {without}" for name in refused or left_out])
    return chosen, left_out


# -- what A and B are ----------------------------------------------------------------------------------------------------


def _side(name: str, storage: Path) -> Side:
    """The models behind a name: a run, the runs of a system, or a MODEL."""
    plain, _, role = name.rpartition(":")
    if role not in ROLES:
        plain, role = name, ""
    records = [read_json(path) or {} for path in sorted((storage / "pipelines").glob("*.json"))]
    runs = [record for record in records if record.get("name") == plain]
    runs = runs or [record for record in records if record.get("pipeline", {}).get("name") == plain]
    if not runs or (not role and (Path(name) / "config.json").is_file()):
        if role:
            known = sorted({str(record.get("name")) for record in records})
            raise InputError(
                f"'{name}': the storage {storage} has no run and no system '{plain}'{nearest(plain, known)}; it has: "
                f"{', '.join(known) or 'none'}"
            )
        return Side(name, (api.locate(name, storage),))
    found = [_of_run(record, role, storage) for record in runs]
    if len(found) == 1:
        return Side(name, *found[0])
    if any(ensemble for _, ensemble in found):
        several = ", ".join(record["name"] for record in runs)
        raise InputError(f"'{name}': several runs of this system are ensembles ({several}); name one of them")
    return Side(name, tuple(dict.fromkeys(folder for folders, _ in found for folder in folders)))


def _of_run(record: Mapping[str, Any], role: str, storage: Path) -> tuple[tuple[Path, ...], bool]:
    """Model folders of one role of a run, and whether they are an ensemble."""
    name, pipeline = record["name"], record["pipeline"]
    role = role or {"sed": "student", "ensemble": "ensemble"}.get(pipeline["combine"] or "", "members")
    if role not in _roles(pipeline):
        raise InputError(f"run '{name}' has no {role}; it has: {', '.join(_roles(pipeline))}")
    outcome = outcome_of(record, lambda model: read_json(_run_folder(model, pipeline, storage) / "run.json") or {})
    named = dict(zip(record["members"], pipeline["teachers"], strict=False))

    def folder_of(model: str) -> Path:
        return api.locate(named[model], storage) if model in named else storage / "runs" / model / "model"

    if role == "student" or pipeline["teachers"] or pipeline["stages"]:
        chosen = [folder_of(model) for model in outcome.of_role(role)]
        needed = [*chosen, *(folder_of(model) for model in outcome.members if role != "student")]
    else:  # a backbone as it is
        tiny = storage / "backbones" / f"tiny-{record['backbone_id']}"
        chosen = needed = [tiny if pipeline["backbone"] == TINY else api.locate(pipeline["backbone"], storage)]
    if not chosen or not all(folder.is_dir() for folder in needed):
        raise InputError(f"run '{name}': its {role} are not finished; finish it with: {record['command']}")
    return tuple(chosen), role == "ensemble"


def _run_folder(model: str, pipeline: Mapping[str, Any], storage: Path) -> Path:
    """Folder of the run behind a run id, or behind a model that the run names as teacher."""
    return api.locate(model, storage).parent if model in pipeline["teachers"] else storage / "runs" / model


def _roles(pipeline: Mapping[str, Any]) -> list[str]:
    found = ["student"] if pipeline["combine"] == "sed" else []
    return [*found, *(["ensemble"] if pipeline["combine"] else []), "members"]


# -- what they make of the rows ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Measured:
    """The outcomes of one model by choice of layers, its own among them."""

    own: Layers
    by_layers: dict[Layers, ModelScores]


def _measure(
    side: Side, corpus: Corpus, tasks: Sequence[str], texts: Sequence[str], layers: Layers | None, say: Say
) -> list[_Measured]:
    found: list[_Measured] = []
    sums: dict[Layers, np.ndarray] = {}
    own: list[Layers] = []
    for number, folder in enumerate(side.folders, start=1):
        model = pretrained.load(folder, layers=layers)
        if layers is not None and model.layers != layers:
            raise InputError(
                f"--layers {layers}: {side.name} pools layers '{model.layers}', on which its heads were trained, and no "
                f"other; compare at --layers {model.layers}"
            )
        choices = tuple(dict.fromkeys([model.layers] if layers is not None else [COMMON, model.layers]))
        representations = model.represent_layers(texts, choices)
        say(f"compare: {side.name}: model {number} of {len(side.folders)} embedded {len(texts):,} sentences")
        if side.ensemble:
            own.append(model.layers)
            for k, representation in representations.items():
                sums[k] = sums.get(k, np.float32(0)) + representation["vectors"]
            continue
        by = dict([next(iter(model.similarities.items()))])
        outcomes = {k: _outcomes(corpus, tasks, texts, each, by) for k, each in representations.items()}
        found.append(_Measured(model.layers, outcomes))
    if side.ensemble:
        count = np.float32(len(side.folders))
        cosine = {"cosine": cosine_of_vectors}
        means = {k: _outcomes(corpus, tasks, texts, {"vectors": total / count}, cosine) for k, total in sums.items()}
        found.append(_Measured(own[0] if len(set(own)) == 1 else COMMON, means))
    return found


def _outcomes(
    corpus: Corpus, tasks: Sequence[str], texts: Sequence[str], found: Representation, by: Mapping[str, Similarity]
) -> ModelScores:
    """The first outcome of each set: by the model's own similarity, else (direction) by variance."""
    represent = lookup(texts, found)
    outcomes: dict[str, Any] = {}
    for name in tasks:
        task = harness.TASKS[name]
        assert isinstance(task, ComparableTask)
        for outcome in task.row_scores(corpus, harness.SPLITS, represent, by):
            outcomes.setdefault(outcome.dataset, outcome)
    return outcomes


def _equal_layers(sides: Sequence[Side], measured: Sequence[Sequence[_Measured]]) -> Layers:
    """The choice of layers at which every model was measured."""
    models = [one for found in measured for one in found]
    own = {one.own for one in models}
    for at in (*(own if len(own) == 1 else ()), COMMON):
        if all(at in one.by_layers for one in models):
            return at
    pools = "; ".join(
        f"{side.name} pools '{', '.join(dict.fromkeys(str(one.own) for one in found))}'"
        for side, found in zip(sides, measured, strict=True)
    )
    raise InputError(f"{pools}: a comparison is made at equal layers; name a choice that both have with --layers K")

"""What a comparison compares: the models that a name means, and what they make of the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raysts.commands.context import locate
from raysts.data.corpora import Corpus
from raysts.errors import InputError, nearest
from raysts.evaluation import harness
from raysts.evaluation.compare import ModelScores
from raysts.evaluation.tasks import ComparableTask, Representation, lookup
from raysts.models import pretrained
from raysts.models.head import Similarity, cosine_of_vectors
from raysts.models.layers import Layers
from raysts.pipeline.inputs import TINY
from raysts.pipeline.local import Say
from raysts.pipeline.outcome import outcome_of
from raysts.storage.atomic import read_json
from raysts.storage.runs import RunFolder
from raysts.storage.store import Store

ROLES = ("student", "ensemble", "members")
"""What of a run can be compared: ``NAME:ROLE``; without a role what comes out of it, the first of these that it has."""

COMMON = 1
"""Pooled layers where the models do not agree on their own."""


@dataclass(frozen=True, slots=True)
class System:
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


def comparable_tasks(corpus: Corpus, tasks: Sequence[str] | None) -> tuple[tuple[str, ...], dict[str, str]]:
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


def system_of(name: str, storage: Path) -> System:
    """The models behind a name: a run, the runs of a system, or a MODEL."""
    plain, _, role = name.rpartition(":")
    if role not in ROLES:
        plain, role = name, ""
    records = [read_json(path) or {} for path in Store.of(storage).get_all(storage / "pipelines", "*.json")]
    runs = [record for record in records if record.get("name") == plain]
    runs = runs or [record for record in records if record.get("pipeline", {}).get("name") == plain]
    if not runs or (not role and (Path(name) / "config.json").is_file()):
        if role:
            known = sorted({str(record.get("name")) for record in records})
            raise InputError(
                f"'{name}': the storage {storage} has no run and no system '{plain}'{nearest(plain, known)}; it has: "
                f"{', '.join(known) or 'none'}"
            )
        return System(name, (locate(name, storage),))
    found = [_of_run(record, role, storage) for record in runs]
    if len(found) == 1:
        return System(name, *found[0])
    if any(ensemble for _, ensemble in found):
        several = ", ".join(record["name"] for record in runs)
        raise InputError(f"'{name}': several runs of this system are ensembles ({several}); name one of them")
    return System(name, tuple(dict.fromkeys(folder for folders, _ in found for folder in folders)))


def _of_run(record: Mapping[str, Any], role: str, storage: Path) -> tuple[tuple[Path, ...], bool]:
    """Model folders of one role of a run, and whether they are an ensemble."""
    name, pipeline = record["name"], record["pipeline"]
    role = role or {"sed": "student", "ensemble": "ensemble"}.get(pipeline["combine"] or "", "members")
    if role not in _roles(pipeline):
        raise InputError(f"run '{name}' has no {role}; it has: {', '.join(_roles(pipeline))}")
    outcome = outcome_of(record, lambda model: RunFolder(_run_folder(model, pipeline, storage)).record())
    named = dict(zip(record["members"], pipeline["teachers"], strict=False))

    def folder_of(model: str) -> Path:
        return locate(named[model], storage) if model in named else storage / "runs" / model / "model"

    if role == "student" or pipeline["teachers"] or pipeline["stages"]:
        chosen = [folder_of(model) for model in outcome.of_role(role)]
        needed = [*chosen, *(folder_of(model) for model in outcome.members if role != "student")]
    else:  # a backbone as it is
        tiny = storage / "backbones" / f"tiny-{record['backbone_id']}"
        chosen = needed = [tiny if pipeline["backbone"] == TINY else locate(pipeline["backbone"], storage)]
    models = [Store.of(folder).get_dir(folder) for folder in chosen]
    if not models or not all(models) or not all(Store.of(folder).exists(folder) for folder in needed):
        raise InputError(f"run '{name}': its {role} are not finished; finish it with: {record['command']}")
    return tuple(chosen), role == "ensemble"


def _run_folder(model: str, pipeline: Mapping[str, Any], storage: Path) -> Path:
    """Folder of the run behind a run id, or behind a model that the run names as teacher."""
    return locate(model, storage).parent if model in pipeline["teachers"] else storage / "runs" / model


def _roles(pipeline: Mapping[str, Any]) -> list[str]:
    found = ["student"] if pipeline["combine"] == "sed" else []
    return [*found, *(["ensemble"] if pipeline["combine"] else []), "members"]


# -- what they make of the rows ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measured:
    """The outcomes of one model by choice of layers, its own among them."""

    own: Layers
    by_layers: dict[Layers, ModelScores]


def measure(
    system: System, corpus: Corpus, tasks: Sequence[str], texts: Sequence[str], layers: Layers | None, say: Say
) -> list[Measured]:
    """The outcomes of a system's models, or of their mean, by choice of layers."""
    found: list[Measured] = []
    sums: dict[Layers, np.ndarray] = {}
    own: list[Layers] = []
    for number, folder in enumerate(system.folders, start=1):
        model = pretrained.load(folder, layers=layers)
        if layers is not None and model.layers != layers:
            raise InputError(
                f"--layers {layers}: {system.name} pools layers '{model.layers}', on which its heads were trained, and no "
                f"other; compare at --layers {model.layers}"
            )
        choices = tuple(dict.fromkeys([model.layers] if layers is not None else [COMMON, model.layers]))
        representations = model.represent_layers(texts, choices)
        say(f"compare: {system.name}: model {number} of {len(system.folders)} embedded {len(texts):,} sentences")
        if system.ensemble:
            own.append(model.layers)
            for k, representation in representations.items():
                sums[k] = sums.get(k, np.float32(0)) + representation["vectors"]
            continue
        by = dict([next(iter(model.similarities.items()))])
        outcomes = {k: _outcomes(corpus, tasks, texts, each, by) for k, each in representations.items()}
        found.append(Measured(model.layers, outcomes))
    if system.ensemble:
        count = np.float32(len(system.folders))
        cosine = {"cosine": cosine_of_vectors}
        means = {k: _outcomes(corpus, tasks, texts, {"vectors": total / count}, cosine) for k, total in sums.items()}
        found.append(Measured(own[0] if len(set(own)) == 1 else COMMON, means))
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


def equal_layers(systems: Sequence[System], measured: Sequence[Sequence[Measured]]) -> Layers:
    """The choice of layers at which every model was measured."""
    models = [one for found in measured for one in found]
    own = {one.own for one in models}
    for at in (*(own if len(own) == 1 else ()), COMMON):
        if all(at in one.by_layers for one in models):
            return at
    pools = "; ".join(
        f"{system.name} pools '{', '.join(dict.fromkeys(str(one.own) for one in found))}'"
        for system, found in zip(systems, measured, strict=True)
    )
    raise InputError(f"{pools}: a comparison is made at equal layers; name a choice that both have with --layers K")

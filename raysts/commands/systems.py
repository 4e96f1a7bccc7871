"""Systems of a comparison: the models behind a name, and their scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raysts.commands.context import locate
from raysts.data.corpora import Corpus
from raysts.errors import InputError, nearest
from raysts.evaluation import harness
from raysts.evaluation.scores import ModelScores
from raysts.evaluation.tasks import ModelTask
from raysts.models import pretrained
from raysts.models.layers import Layers
from raysts.models.prompts import Text
from raysts.ops.similarity import cosine_of_vectors
from raysts.pipeline.inputs import TINY
from raysts.pipeline.local import Say
from raysts.pipeline.outcome import Outcome, outcome_of
from raysts.recipes.recipe import SOUPS
from raysts.storage.store import Store

ROLES = ("student", *SOUPS, "ensemble", "members")
"""Roles of the models of a run that can be compared: ``NAME:ROLE``.

Without a role it is the delivered model if the run delivers the best, else the role that the system's name names. That is
all members if nothing combines them."""

COMMON = 1
"""Pooled layers of models that have different layers by default."""


@dataclass(frozen=True, slots=True)
class System:
    """System of a comparison: the folders of its models.

    The models of an ensemble are one system, the mean of their vectors.
    """

    name: str
    folders: tuple[Path, ...]
    ensemble: bool = False

    @property
    def text(self) -> str:
        count = len(self.folders)
        if self.ensemble:
            return f"{self.name} (mean of {count} models' vectors)"
        return self.name if count == 1 else f"{self.name} ({count} models, mean ± std)"


def comparable_tasks(corpus: Corpus, tasks: Sequence[str] | None) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the tasks to compare on, and the omitted tasks with the reason."""
    checked, by_name = harness.check_tasks(corpus, tasks), harness.tasks_of(corpus)
    unnamed = [name for name in checked if by_name[name].heavy and not tasks]
    left_out = dict.fromkeys(unnamed, "it takes minutes a model; name it in --tasks")
    of_models = [name for name in checked if isinstance(by_name[name], ModelTask)]
    left_out |= dict.fromkeys(of_models, "its values are not of single rows, so there is nothing to pair")
    chosen = tuple(name for name in checked if name not in left_out)
    refused = [name for name in tasks or () if name in left_out]
    if refused or not chosen:
        raise InputError([f"task '{name}' cannot be compared: {left_out[name]}" for name in refused or left_out])
    return chosen, left_out


# -- models of A and B ----------------------------------------------------------------------------------------------------


def system_of(name: str, store: Store) -> System:
    """Return the models behind a name: a run, the runs of a system, or a MODEL."""
    plain, _, role = name.rpartition(":")
    if role not in ROLES:
        plain, role = name, ""
    records = [store.read_json(path) or {} for path in store.get_all("pipelines", "*.json")]
    runs = [record for record in records if record.get("name") == plain]
    runs = runs or [record for record in records if record.get("pipeline", {}).get("name") == plain]
    if not runs or (not role and (Path(name) / "config.json").is_file()):
        if role:
            run_names = sorted({str(record.get("name")) for record in records})
            raise InputError(
                f"'{name}': the storage {store.uri} has no run and no system '{plain}'{nearest(plain, run_names)}; it has: "
                f"{', '.join(run_names) or 'none'}"
            )
        return System(name, (locate(name, store),))
    models = [_run_models(record, role, store) for record in runs]
    if len(models) == 1:
        return System(name, *models[0])
    if any(ensemble for _, ensemble in models):
        ensembles = ", ".join(record["name"] for record in runs)
        raise InputError(f"'{name}': several runs of this system are ensembles ({ensembles}); name one of them")
    return System(name, tuple(dict.fromkeys(folder for folders, _ in models for folder in folders)))


def _run_models(record: Mapping[str, Any], role: str, store: Store) -> tuple[tuple[Path, ...], bool]:
    """Return the model folders of one role of a run, and True if they are an ensemble."""
    name, pipeline = record["name"], record["pipeline"]
    roles, by_name = _roles(record), {"sed": "student", None: "members"}
    role_of_name = by_name.get(pipeline["combine"], pipeline["combine"])
    if (role or role_of_name) not in roles:
        raise InputError(f"run '{name}' has no {role}; it has: {', '.join(roles)}")
    teachers = dict(zip(record["members"], pipeline["teachers"], strict=False))

    def folder_of(model: str) -> Path | None:
        named = teachers.get(model, model)
        return locate(named, store) if named in pipeline["teachers"] else store.get_dir(f"runs/{model}/model")

    def backbone() -> Path | None:
        kind = "layers" if pipeline["backbone_layers"] else "tiny" if pipeline["backbone"] == TINY else None
        folder = f"backbones/{kind}-{record['backbone_id']}"
        return store.get_dir(folder) if kind else locate(pipeline["backbone"], store)

    folders: list[Path | None]
    trained = bool(pipeline["recipes"])
    outcome = outcome_of(record) if trained else Outcome()
    if not role and (chosen := outcome.chosen):
        from_backbone = chosen.what == "backbone"
        again = f"backbones/pooled-{chosen.pooled_id}" if from_backbone else f"runs/{chosen.pooled_id}/model"
        folders = [store.get_dir(again) or (backbone() if from_backbone else folder_of(chosen.id))]
        role, unfinished = chosen.what, False
    elif trained:
        role = role or role_of_name
        folders = [folder_of(model) for model in outcome.of_role(role)]
        unfinished = role in ("ensemble", "members") and not all(map(folder_of, outcome.members))
    else:
        role, folders, unfinished = role or role_of_name, [backbone()], False
    models = tuple(folder for folder in folders if folder)
    if unfinished or not models or len(models) < len(folders):
        raise InputError(f"run '{name}': its {role} are not finished; finish it with: {record['command']}")
    return models, role == "ensemble"


def _roles(record: Mapping[str, Any]) -> list[str]:
    combine = record["pipeline"]["combine"]
    names = {"student"} if combine == "sed" else {combine, *(record.get("outcome") or {}).get("soups", ())}
    return [role for role in ROLES if role in names or (role == "ensemble" and combine) or role == "members"]


# -- scores of rows ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measured:
    """Scores of one model by choice of layers, which include its default (``own``)."""

    own: Layers
    by_layers: dict[Layers, ModelScores]


def measure(
    system: System,
    corpus: Corpus,
    tasks: Sequence[str],
    texts: Sequence[Text],
    layers: Layers | None,
    prompt: str | None,
    say: Say,
) -> list[Measured]:
    """Return the scores of a system's models, or of their mean, by choice of layers."""
    measured: list[Measured] = []
    sums: dict[Layers, np.ndarray] = {}
    default_layers: list[Layers] = []
    sets = harness.sets_of(corpus, tasks)
    for number, folder in enumerate(system.folders, start=1):
        model = pretrained.load(folder, layers=layers, prompt=prompt)
        if layers is not None and model.layers != layers:
            raise InputError(
                f"--layers {layers}: {system.name} pools layers '{model.layers}', on which its heads were trained, and no "
                f"other; compare at --layers {model.layers}"
            )
        choices = tuple(dict.fromkeys([model.layers] if layers is not None else [COMMON, model.layers]))
        representations = model.represent_layers(texts, choices)
        say(f"compare: {system.name}: model {number} of {len(system.folders)} embedded {len(texts):,} sentences")
        if system.ensemble:
            default_layers.append(model.layers)
            for k, representation in representations.items():
                sums[k] = sums.get(k, np.float32(0)) + representation["vectors"]
            continue
        similarity = dict([next(iter(model.similarities.items()))])
        scores = {k: harness.compared_scores(sets, texts, of_k, similarity) for k, of_k in representations.items()}
        measured.append(Measured(model.layers, scores))
    if system.ensemble:
        count = np.float32(len(system.folders))
        vectors, similarity = (
            {k: {"vectors": total / count} for k, total in sums.items()},
            {"cosine": cosine_of_vectors},
        )
        means = {k: harness.compared_scores(sets, texts, vectors[k], similarity) for k in vectors}
        measured.append(Measured(default_layers[0] if len(set(default_layers)) == 1 else COMMON, means))
    return measured


def equal_layers(systems: Sequence[System], measured: Sequence[Sequence[Measured]]) -> Layers:
    """Return the choice of layers at which every model was measured."""
    models_of_both = [model for models in measured for model in models]
    default_layers = {model.own for model in models_of_both}
    for layers in (*(default_layers if len(default_layers) == 1 else ()), COMMON):
        if all(layers in model.by_layers for model in models_of_both):
            return layers
    pools = "; ".join(
        f"{system.name} pools '{', '.join(dict.fromkeys(str(model.own) for model in models))}'"
        for system, models in zip(systems, measured, strict=True)
    )
    raise InputError(f"{pools}: a comparison is made at equal layers; name a choice that both have with --layers K")

"""Models by their names: what a user may write where a MODEL is taken."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysts.errors import InputError, nearest
from raysts.models import pretrained
from raysts.models.embedders import open_embedder
from raysts.models.endpoint import folder_of
from raysts.pipeline.inputs import made_backbone
from raysts.pipeline.outcome import Outcome, outcome_of
from raysts.recipes.recipe import SOUPS, name_problem
from raysts.storage.runs import RunFolder
from raysts.storage.store import Store

ROLES = ("student", *SOUPS, "ensemble", "members")
"""Roles of the models of a run that can be compared: ``NAME:ROLE``.

Without a role it is the delivered model if the run delivers the best, else the role that the system's name names. That is
all members if nothing combines them."""


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

    @property
    def model_names(self) -> list[str]:
        """The names of the single models: that of the system, or of several their run ids or folders."""
        if len(self.folders) == 1:
            return [self.name]
        return [folder.parent.name if folder.name == "model" else str(folder) for folder in self.folders]


def locate(model: str | Path, store: Store, fetch: bool = True) -> Path:
    """Return the folder of a MODEL.

    It is the name of a run in the storage (its model) or ``NAME:ROLE``, a run id or its beginning, a directory, a Hugging
    Face name, or a file of word vectors. With ``fetch``, a missing model is downloaded from the hub.
    """
    text = str(model)
    if folder := folder_of(text):
        return store.path(folder)
    has_name = store.exists(f"pipelines/{text}.json") or Path(text, "config.json").is_file()
    if re.fullmatch(r"[0-9a-f]{16}" if has_name else r"[0-9a-f]{1,16}", text):
        ids = [text] if len(text) == 16 else [run.name for run in store.list("runs") if run.name.startswith(text)]
        ids = [run for run in ids if store.exists(f"runs/{run}/model")]
        if len(ids) > 1:
            raise InputError(
                f"model '{model}' is the beginning of {len(ids)} run ids in {store.path('runs')}; give more of it"
            )
        if ids:
            RunFolder(store.path(f"runs/{ids[0]}")).record()
            return store.get_dir(f"runs/{ids[0]}/model") or store.path(f"runs/{ids[0]}/model")
    name, role = _split(text)
    may_be_run = not name_problem(name) and not Path(text, "config.json").is_file()
    record = store.read_json(f"pipelines/{name}.json", fresh=True) if may_be_run else None
    if record is None:
        return _find(model, store, fetch)
    folders, _ = _run_models(record, role, store)
    if len(folders) > 1:
        names = [folder.parent.name if folder.is_relative_to(store.root) else str(folder) for folder in folders]
        raise InputError(f"model '{model}': is {len(folders)} models; take one of {', '.join(names)}")
    return folders[0]


def _find(model: str | Path, store: Store, fetch: bool) -> Path:
    """Return a model from elsewhere. The error for a missing one names the run that may be meant."""
    try:
        return pretrained.find(model, fetch)
    except InputError as error:
        name, _, role = str(model).partition(":")
        runs = run_names(store)
        if name in runs:
            raise InputError(f"run '{name}' has no '{role}'; name one of {', '.join(ROLES)} behind the colon") from None
        if not name_problem(name) and store.exists(f"studies/{name}/study.json"):
            raise InputError(
                f"'{name}' is a study, not a model. Name the id of one of its runs, or 'raysts distill --from-study {name}'"
            ) from None
        if hint := nearest(name, runs):
            raise InputError(f"{error}{hint}") from None
        raise


def run_names(store: Store) -> list[str]:
    """Return the names of the runs in the storage."""
    return sorted(path.stem for path in store.list("pipelines") if path.suffix == ".json")


def _split(name: str) -> tuple[str, str]:
    """Return the name of a run and the role behind it, empty without one."""
    plain, _, role = name.rpartition(":")
    return (plain, role) if plain and role in ROLES else (name, "")


def system_of(name: str, store: Store) -> System:
    """Return the models behind a name: a run, the runs of a system, or a MODEL."""
    plain, role = _split(name)
    records = [store.read_json(path) or {} for path in store.get_all("pipelines", "*.json")]
    runs = [record for record in records if record.get("name") == plain]
    runs = runs or [record for record in records if record.get("pipeline", {}).get("name") == plain]
    if not runs or (not role and (Path(name) / "config.json").is_file()):
        if role:
            names = sorted({str(record.get("name")) for record in records})
            raise InputError(
                f"'{name}': the storage {store.uri} has no run and no system '{plain}'{nearest(plain, names)}; it has: "
                f"{', '.join(names) or 'none'}"
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

    def elsewhere(what: str, model: str, content: str) -> Path:
        folder = locate(model, store)
        if content != model and open_embedder(folder).id != content:
            raise InputError(
                f"run '{name}': its {what} '{model}' is not the model that it was. Name the model that you mean, or run again: "
                f"{record['command']}"
            )
        return folder

    def folder_of(model: str) -> Path | None:
        named = teachers.get(model, model)
        return (
            elsewhere("teacher", named, model) if named in teachers.values() else store.get_dir(f"runs/{model}/model")
        )

    def backbone() -> Path | None:
        layers, static = bool(pipeline["backbone_layers"]), pipeline.get("student") == "static"
        folder = made_backbone(pipeline["backbone"], record["backbone_id"], layers, static)
        return store.get_dir(folder) if folder else elsewhere("backbone", pipeline["backbone"], record["backbone_id"])

    folders: list[Path | None]
    trained = bool(pipeline["recipes"] or pipeline["combine"])
    outcome = outcome_of(record) if trained else Outcome()
    if not role and (chosen := outcome.chosen):
        from_backbone = chosen.what == "backbone"
        again = f"backbones/pooled-{chosen.pooled_id}" if from_backbone else f"runs/{chosen.pooled_id}/model"
        folders = [store.get_dir(again) or (backbone() if from_backbone else folder_of(chosen.id))]
        role, unfinished = chosen.what, False
    elif trained:
        role = role or role_of_name
        folders = [folder_of(model) for model in outcome.models_of(role)]
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

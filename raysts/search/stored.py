"""Studies on record: their best points and models, as other commands and studies take them."""

from collections.abc import Mapping, Sequence
from typing import Any

from raysts.errors import InputError, nearest
from raysts.recipes import names
from raysts.recipes.overrides import apply_overrides
from raysts.recipes.recipe import DISTILLATION, Pipeline
from raysts.recipes.tree import build
from raysts.search.record import Record, read_records
from raysts.search.scores import PointScores, best_by_mean, group_by_point, ranked_trials
from raysts.search.space import contains
from raysts.search.study import Study
from raysts.storage.store import Store


def study_record(store: Store, name: str) -> tuple[dict[str, Any], list[Record]]:
    """Return the record of the study called ``name`` and the records of its trials."""
    record = store.read_json(f"studies/{name}/study.json", fresh=True)
    if record is None:
        studies = [path.parent.name for path in store.get_all("studies", "study.json")]
        raise InputError(
            f"no study '{name}' in {store.uri}{nearest(name, studies)}; it holds: {', '.join(studies) or 'none'}"
        )
    return record, read_records(store.path(f"studies/{name}"))


def best_point(record: Mapping[str, Any], trials: Sequence[Record], top: int | None) -> Pipeline:
    """Return the system that distils a student from the best point of a study."""
    best = best_by_mean(group_by_point(trials, record["seeds"]), record["mode"])
    if best is None or not best.has_all_seeds:
        raise InputError(
            f"--from-study {record['name']}: no point of it has all its {record['seeds']} seeds yet; finish it first with: "
            f"{record['command']}"
        )
    if top is not None and top < 1:
        raise InputError(f"--top {top}: must be at least 1")
    members = apply_overrides(build(Pipeline, record["pipeline"]), best.point)
    recipes = {**members.recipes, DISTILLATION: names.student_recipe(members.recipes)}
    return members.replace(combine=DISTILLATION, recipes=recipes, members=top or record["seeds"])


def best_models(record: Mapping[str, Any], trials: Sequence[Record], store: Store, top: int | None) -> list[str]:
    """Return the run ids of the trials with kept models, best first."""
    models = [trial.id for trial in ranked_trials(trials, record["mode"]) if store.exists(f"runs/{trial.id}/model")]
    if not models:
        raise InputError(f"--from-study {record['name']}: it keeps no model; go on with it: {record['command']}")
    if top is not None and not 1 <= top <= len(models):
        raise InputError(
            f"--top {top}: must be from 1 to the number of models that study '{record['name']}' keeps, {len(models)}"
        )
    return models[:top]


def earlier_points(study: Study, name: str) -> list[PointScores]:
    """Return the points of another study in the space of this one."""
    if study.search.num_samples is None:
        raise InputError("--warm-start: a search of every point of a grid learns nothing; set num_samples to sample it")
    if name == study.name:
        raise InputError(f"--warm-start {name}: is this study itself, which goes on anyway")
    record, trials = study_record(study.store, name)
    if record["metric"] != study.search.objective.name:
        raise InputError(
            f"--warm-start {name}: goes by {record['metric']}, this search by {study.search.objective.name}: take the same metric"
        )
    space = study.search.space
    fitting = [
        scored
        for scored in group_by_point(trials, record["seeds"])
        if scored.score is not None and contains(space, scored.point)
    ]
    if not fitting:
        raise InputError(
            f"--warm-start {name}: none of its points lies in this search's space ({', '.join(space)}); remove it"
        )
    return fitting

"""The token stores that the trials of a search read, made before the first of them starts."""

from __future__ import annotations

from raysts.data.windows import StoreSpec
from raysts.errors import InputError
from raysts.pipeline.local import Executor, Say
from raysts.search.space import corners, grid
from raysts.search.study import Study
from raysts.storage.atomic import remove_drafts
from raysts.storage.store import need


def specs(study: Study) -> list[StoreSpec]:
    """Every token store that a point of the space reads.

    Raises:
        InputError: an option that decides what is tokenised has a range, or no token store would hold a whole batch.
    """
    search = study.search
    varied = {key: dimension for key, dimension in search.space.items() if _decides(key, search.stage)}
    every = grid(varied)
    if every is None:
        key = next(key for key, dimension in varied.items() if not dimension.choices)
        raise InputError(
            f"space.{key}={varied[key].text}: texts are tokenised before the first trial; give choices instead of a range"
        )
    recipes = [search.recipe({**corners(search.space)[0], **point}) for point in every]
    return list({spec.id: spec for spec in map(study.plan.store_spec, recipes)}.values())


def check(study: Study) -> None:
    """Raise an InputError when there is nothing to train on; a single batch that is too large is an infeasible point."""
    specs(study)
    points = corners(study.search.space)
    if all(study.plan.steps(study.search.recipe(point)) == 0 for point in points):
        table = study.plan.store_spec(study.search.recipe(points[0])).table
        raise InputError(f"space: table '{table}' has too few rows for one batch at every point; lower the batch")


def write(study: Study, executor: Executor, say: Say) -> None:
    """Make the token stores that are not there."""
    plan = study.plan
    for spec in specs(study):
        folder = plan.store_folder(spec)
        need(folder / "manifest.json")
        if not (folder / "manifest.json").exists():
            say(f"tokenise {spec.table} ...")
            folder.mkdir(parents=True, exist_ok=True)
            remove_drafts(folder)
            plan.corpus.write_derived(spec.table)
            executor.tokenize(spec, plan.groups(spec), plan.start, folder, say)


def _decides(key: str, stage: str) -> bool:
    path = key.removeprefix(f"{stage}.")
    return path.startswith("data.") or path == "train.max_length"

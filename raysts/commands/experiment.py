"""Experiments of the papers: their pipelines one after the other, and the report of all."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from raysts.commands import composed, study
from raysts.commands.context import check_name, checked_plan, corpus_of, executor, locate, run_on, store_of
from raysts.commands.options import Result, RunOptions
from raysts.data.world import tiny_config
from raysts.errors import InputError, RunFailed
from raysts.models import pretrained, static
from raysts.models.families import family_of
from raysts.papers import claims_page, experiments
from raysts.papers.claims import Claim
from raysts.papers.measured import report_data
from raysts.papers.tables import write_report
from raysts.papers.verdicts import agenda, claims_data
from raysts.pipeline.inputs import TINY
from raysts.pipeline.plan import Plan, describe
from raysts.recipes.overrides import has_option
from raysts.recipes.recipe import Pipeline
from raysts.search import named
from raysts.search.search import OWN
from raysts.search.space import Point
from raysts.search.study import Study
from raysts.storage.store import Store

ASSUMED = 12
"""Layers of an encoder that is shown, of which nothing is known."""


def pipelines(
    recipe: str,
    overrides: Mapping[str, Any],
    options: RunOptions,
    found: Mapping[str | None, Point] | None = None,
    unknown: list[str] | None = None,
) -> dict[str, Pipeline]:
    """The pipelines of an experiment by point; the backbone may be a run id of the storage. ``found``: by its searches.
    ``unknown``: takes up what is assumed of a backbone that is not on this machine, which is refused otherwise."""

    def depth(backbone: str) -> int:
        if backbone == TINY:
            return int(tiny_config()["num_hidden_layers"])
        try:
            config = pretrained.check(locate(backbone, store_of(options.storage), fetch=unknown is None))
        except InputError:
            if unknown is None:
                raise
            if backbone in experiments.DEPTHS:
                return experiments.DEPTHS[backbone]
            unknown.append(
                f"backbone '{backbone}' cannot be read on this machine: shown as an encoder of {ASSUMED} layers"
            )
            return ASSUMED
        if config["model_type"] == static.MODEL_TYPE:
            return 0
        return int(config[family_of(config["model_type"]).depth])

    search = experiments.EXPERIMENTS[recipe.partition("@")[0]].search
    # Where it begins with a search, some overrides are that one's own.
    after = composed.split_overrides(overrides)[1] if search else overrides
    return experiments.pipelines(recipe, after, depth, found or {})


def _studies(recipe: str, overrides: Mapping[str, Any], options: RunOptions) -> dict[str | None, Study]:
    """The checked searches that an experiment begins with, by backbone."""
    name, at, scale = recipe.partition("@")
    experiment = experiments.EXPERIMENTS[name]
    if experiment.search is None:
        return {}
    search, several, found = f"{experiment.search}{at}{scale}", experiments.backbones(recipe, overrides), {}
    trial, own = named.search(search).pipeline, composed.split_overrides({**experiment.usual, **overrides})[0]
    own = {key: value for key, value in own.items() if key.split(".")[0] in OWN or has_option(trial, key)}
    for backbone in several:
        known = {**own, **({"backbone": backbone} if backbone else {})}
        called = f"{options.name or name}.{experiments.prefix(backbone) if len(several) > 1 else ''}{experiment.search}"
        found[backbone] = study.planned(search, known, replace(options, name=called))
    return found


class Planned(NamedTuple):
    """An experiment, checked.

    Attributes:
        plans: by point; of an experiment about claims those alone that a claim which can be measured is about.
        claims: of such an experiment, as :attr:`raysts.papers.verdicts.Agenda.claims`.
    """

    plans: Mapping[str, Plan]
    claims: Mapping[Claim, str | None] = {}
    notes: Sequence[str] = ()


def planned(
    recipe: str, overrides: Mapping[str, Any], options: RunOptions, found: Mapping[str | None, Point] | None = None
) -> Planned:
    """The checked plans of an experiment by point.

    Raises:
        InputError: anything that would stop one of them later, in one message.
    """
    made: Mapping[str, Pipeline] = pipelines(recipe, overrides, options, found)
    plans: dict[str, Plan] = {}
    claims: Mapping[Claim, str | None] = {}
    notes: Sequence[str] = ()
    if paper := experiments.EXPERIMENTS[recipe.partition("@")[0]].claims:
        corpus = corpus_of(options.data, skip_bad=options.skip_bad, own=options.own)
        claims, made, notes = agenda(paper, made, corpus, options.stand_ins)
    problems: list[str] = []
    for point, pipeline in made.items():
        try:
            plans[point] = checked_plan(pipeline, options)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(list(dict.fromkeys(problems)))
    return Planned(plans, claims, notes)


def run(recipe: str, overrides: Mapping[str, Any], options: RunOptions, checked: Planned | None = None) -> Result:
    """Run the pipelines of an experiment in turn, and write the tables of the paper that they fill.

    Each is a run of its own in the storage, ``<name>.<point>``, with its own report. One that fails does not stop the
    others. ``checked``: what :func:`planned` has found, its notes said.

    Raises:
        InputError: anything that would stop one of them later, in one message; nothing has started.
        RunFailed: some of them failed.
    """
    if checked is None:
        checked = planned(recipe, overrides, options)
        for note in checked.notes:
            options.say(note)
    plans = checked.plans
    experiment = recipe.partition("@")[0]
    name = options.name or experiment
    for point in plans:
        check_name(f"{name}.{point}")
    store = store_of(options.storage)
    if studies := _studies(recipe, overrides, options):
        found = {}
        for backbone, each in studies.items():
            of_study = study.run_study(each, replace(options, name=each.name))
            options.say(of_study["table"])
            found[backbone] = of_study["best"]["overrides"]
        plans = planned(recipe, overrides, options, found).plans
    store.check(writes=True)
    rows: list[dict[str, Any]] = []
    left_out: list[dict[str, Any]] = []
    failures: list[str] = []
    with executor(options.address, *plans.values()) as chosen:
        for number, (point, plan) in enumerate(plans.items(), start=1):
            options.say(f"{name}: {point}, {number} of {len(plans)}")
            try:
                result = run_on(chosen, plan, replace(options, name=f"{name}.{point}"))
            except RunFailed as error:
                failures.append(f"{name}.{point}: {error}")
                continue
            rows += [{**row, "study": name, "trial": point} for row in result["results"]]
            left_out += [{**member, "trial": point} for member in result["left_out"]]
    entry, folder = experiments.EXPERIMENTS[experiment], store.path(f"reports/{name}")
    if entry.paper:
        report = write_report(report_data(entry.paper, store.root, entry.tables), folder)
    if failures:
        raise RunFailed("\n".join(failures))
    more = {}
    if entry.claims:
        judged = claims_data(entry.claims, checked.claims, plans, name, options.command or f"raysts run {recipe}")
        report = claims_page.write_report(judged, folder)
        more = {"claims": [each.as_plain() for each in judged.verdicts], "text": claims_page.text(judged)}
    return {
        **more,
        "status": "done",
        "storage": store.uri,
        "name": name,
        "model": None,
        "report": str(report),
        "results": rows,
        "left_out": left_out,
        "skipped": _skipped(plans),
    }


def _skipped(plans: Mapping[str, Plan]) -> list[dict[str, Any]]:
    return list({shard["file"]: shard for plan in plans.values() for shard in plan.skipped}.values())


def described(
    recipe: str, overrides: Mapping[str, Any], options: RunOptions, checked: Planned | None = None
) -> dict[str, Any]:
    """The plan of an experiment as plain data: every node of its pipelines once. ``checked``: as in :func:`run`."""
    nodes: dict[str, dict[str, Any]] = {}
    found: dict[str | None, Point] = {}
    for backbone, each in _studies(recipe, overrides, options).items():
        of_study, best = composed.described_search(each)
        nodes |= {node["id"]: {**node, "title": f"{each.name}: {node['title']}"} for node in of_study["nodes"]}
        found |= {backbone: best} if best else {}
    waits = bool(nodes) and len(found) < len(experiments.backbones(recipe, overrides))
    plans, _, notes = checked or planned(recipe, overrides, options, found)
    points: dict[str, dict[str, Any]] = {}
    for point, plan in plans.items():
        for node in describe(plan)["nodes"]:
            points.setdefault(node["id"], {**node, "title": f"{point}: {node['title']}"})
    left = [node for node in points.values() if node["id"] not in nodes]
    nodes |= {node["id"]: node for node in (composed.undecided(left) if waits else left)}
    first = next(iter(plans.values()))
    return {
        "storage": Store.of(first.storage).uri,
        **describe(first, []),
        "name": recipe.partition("@")[0],
        "skipped": _skipped(plans),
        "nodes": list(nodes.values()),
        **({"notes": notes} if notes else {}),
    }

"""Experiments of the papers: their pipelines, one after another, and one report."""

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
"""Assumed number of layers of an encoder that cannot be read."""


def pipelines(
    recipe: str,
    overrides: Mapping[str, Any],
    options: RunOptions,
    found: Mapping[str | None, Point] | None = None,
    unknown: list[str] | None = None,
) -> dict[str, Pipeline]:
    """Return the pipelines of an experiment by point.

    Args:
        recipe: name of the experiment, perhaps at a scale.
        overrides: overrides of its pipelines. The backbone may be a run id of the storage.
        options: options of the command.
        found: best points of the searches that it begins with, by backbone.
        unknown: takes the assumptions about a backbone that is not on this machine. Without it such a backbone is an error.
    """

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
    # Some overrides belong to the search that the experiment begins with.
    after = composed.split_overrides(overrides)[1] if search else overrides
    return experiments.pipelines(recipe, after, depth, found or {})


def _studies(recipe: str, overrides: Mapping[str, Any], options: RunOptions) -> dict[str | None, Study]:
    """Return the checked searches that an experiment begins with, by backbone."""
    name, separator, scale = recipe.partition("@")
    experiment = experiments.EXPERIMENTS[name]
    if experiment.search is None:
        return {}
    search, backbones, studies = f"{experiment.search}{separator}{scale}", experiments.backbones(recipe, overrides), {}
    trial, search_overrides = (
        named.search(search).pipeline,
        composed.split_overrides({**experiment.usual, **overrides})[0],
    )
    search_overrides = {
        key: value for key, value in search_overrides.items() if key.split(".")[0] in OWN or has_option(trial, key)
    }
    for backbone in backbones:
        settings = {**search_overrides, **({"backbone": backbone} if backbone else {})}
        called = (
            f"{options.name or name}.{experiments.prefix(backbone) if len(backbones) > 1 else ''}{experiment.search}"
        )
        studies[backbone] = study.planned(search, settings, replace(options, name=called))
    return studies


class Planned(NamedTuple):
    """Checked plans of an experiment.

    Attributes:
        plans: plans by point. An experiment about claims has only those of measurable claims.
        claims: claims of such an experiment, as :attr:`raysts.papers.verdicts.Agenda.claims`.
    """

    plans: Mapping[str, Plan]
    claims: Mapping[Claim, str | None] = {}
    notes: Sequence[str] = ()


def planned(
    recipe: str, overrides: Mapping[str, Any], options: RunOptions, found: Mapping[str | None, Point] | None = None
) -> Planned:
    """Return the checked plans of an experiment.

    Raises:
        InputError: all problems that would stop a pipeline later, in one message.
    """
    pipelines_by_point: Mapping[str, Pipeline] = pipelines(recipe, overrides, options, found)
    plans: dict[str, Plan] = {}
    claims: Mapping[Claim, str | None] = {}
    notes: Sequence[str] = ()
    if paper := experiments.EXPERIMENTS[recipe.partition("@")[0]].claims:
        corpus = corpus_of(options.data, skip_bad=options.skip_bad, own=options.own)
        claims, pipelines_by_point, notes = agenda(paper, pipelines_by_point, corpus, options.stand_ins)
    problems: list[str] = []
    for point, pipeline in pipelines_by_point.items():
        try:
            plans[point] = checked_plan(pipeline, options)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(list(dict.fromkeys(problems)))
    return Planned(plans, claims, notes)


def run(recipe: str, overrides: Mapping[str, Any], options: RunOptions, checked: Planned | None = None) -> Result:
    """Run the pipelines of an experiment in turn, and write the tables of the paper.

    Each pipeline is a separate run in the storage, ``<name>.<point>``, with its report. A failed run does not stop the
    others. ``checked`` is the result of :func:`planned`, with its notes already reported.

    Raises:
        InputError: all problems that would stop a pipeline later, in one message, before anything starts.
        RunFailed: some pipelines failed.
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
        best_points = {}
        for backbone, search_study in studies.items():
            of_study = study.run_study(search_study, replace(options, name=search_study.name))
            options.say(of_study["table"])
            best_points[backbone] = of_study["best"]["overrides"]
        plans = planned(recipe, overrides, options, best_points).plans
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
    claim_fields = {}
    if entry.claims:
        judged = claims_data(entry.claims, checked.claims, plans, name, options.command or f"raysts run {recipe}")
        report = claims_page.write_report(judged, folder)
        claim_fields = {"claims": [verdict.as_plain() for verdict in judged.verdicts], "text": claims_page.text(judged)}
    return {
        **claim_fields,
        "status": "done",
        "storage": store.uri,
        "name": name,
        "model": None,
        "report": str(report),
        "results": rows,
        "left_out": left_out,
        "skipped": _skipped_files(plans),
    }


def _skipped_files(plans: Mapping[str, Plan]) -> list[dict[str, Any]]:
    return list({shard["file"]: shard for plan in plans.values() for shard in plan.skipped}.values())


def described(
    recipe: str, overrides: Mapping[str, Any], options: RunOptions, checked: Planned | None = None
) -> dict[str, Any]:
    """Return the plan of an experiment as plain data, with every node of its pipelines once.

    ``checked`` is as in :func:`run`.
    """
    nodes: dict[str, dict[str, Any]] = {}
    best_points: dict[str | None, Point] = {}
    for backbone, search_study in _studies(recipe, overrides, options).items():
        of_study, best = composed.described_search(search_study)
        nodes |= {node["id"]: {**node, "title": f"{search_study.name}: {node['title']}"} for node in of_study["nodes"]}
        best_points |= {backbone: best} if best else {}
    waits = bool(nodes) and len(best_points) < len(experiments.backbones(recipe, overrides))
    plans, _, notes = checked or planned(recipe, overrides, options, best_points)
    points: dict[str, dict[str, Any]] = {}
    for point, plan in plans.items():
        for node in describe(plan)["nodes"]:
            points.setdefault(node["id"], {**node, "title": f"{point}: {node['title']}"})
    new_nodes = [node for node in points.values() if node["id"] not in nodes]
    nodes |= {node["id"]: node for node in (composed.undecided(new_nodes) if waits else new_nodes)}
    first = next(iter(plans.values()))
    return {
        "storage": Store.of(first.storage).uri,
        **describe(first, []),
        "name": recipe.partition("@")[0],
        "skipped": _skipped_files(plans),
        "nodes": list(nodes.values()),
        **({"notes": notes} if notes else {}),
    }

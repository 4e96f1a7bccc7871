"""Execution of experiments: their searches, their pipelines one after another, and one report.

A system by its own name is an experiment of one pipeline without a label.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysts.commands.context import GENERATED, check_name, checked_plan, executor, store_of
from raysts.commands.models import locate
from raysts.commands.options import Result, RunOptions
from raysts.commands.result import RunResult
from raysts.data.corpora import corpus_of
from raysts.data.world import is_world, tiny_config
from raysts.errors import InputError, Problems, RunFailed
from raysts.evaluation import harness
from raysts.evaluation.standings import main_standings, named_teachers
from raysts.log import log_file, say, screen, showing
from raysts.models import pretrained, static
from raysts.models.families import family_of
from raysts.papers import experiments
from raysts.pipeline.executor import Executor, LocalExecutor
from raysts.pipeline.inputs import TINY
from raysts.pipeline.plan import Plan, describe
from raysts.pipeline.price import Rates, add_rates, devices, price, scale_texts
from raysts.pipeline.step import Context, Step, batches
from raysts.recipes.recipe import Pipeline, Recipe
from raysts.recipes.tree import to_plain
from raysts.report.run import report_data, write_report
from raysts.storage.store import Store
from raysts.training.trackers import LIVE, TrackerThread, open_tools

if TYPE_CHECKING:
    from raysts.papers.claims import Claim
    from raysts.search.search import Search
    from raysts.search.space import Point
    from raysts.search.study import Study

Best = Mapping[str | None, "Point"]
"""Choices of the searches of an experiment, as overrides of its pipelines, by backbone."""

ASSUMED = 12
"""Assumed number of layers of an encoder that cannot be read."""


@dataclass(frozen=True, kw_only=True)
class ExperimentPlan:
    """Checked plans of an experiment.

    Attributes:
        plans: plans by label. An experiment about claims has only those of measurable claims.
        studies: the searches that come first, by backbone.
        claims: claims of such an experiment, as :func:`raysts.papers.verdicts.agenda` returns them.
    """

    recipe: str | Pipeline
    overrides: Mapping[str, Any]
    options: RunOptions
    plans: Mapping[str, Plan]
    studies: Mapping[str | None, Study] = field(default_factory=dict)
    claims: Mapping[Claim, str | None] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def name(self) -> str:
        """Return the name of the run. ``@paper-text`` has another one, so that both protocols stay on record."""
        text = isinstance(self.recipe, str) and self.recipe.endswith("@paper-text")
        return self.options.name or _name(self.recipe) + ("-text" if text else "")

    def replan(self, best: Best) -> ExperimentPlan:
        """Return the plans at the best points. Contamination was checked before the searches."""
        return plan_experiment(self.recipe, self.overrides, replace(self.options, strict_contamination=False), best)


def _name(recipe: str | Pipeline) -> str:
    return recipe.name if isinstance(recipe, Pipeline) else recipe.partition("@")[0]


def _run_name(name: str, label: str) -> str:
    return f"{name}.{label}" if label else name


# -- plans ---------------------------------------------------------------------------------------------------------------


def plan_experiment(
    recipe: str | Pipeline, overrides: Mapping[str, Any], options: RunOptions, best: Best | None = None
) -> ExperimentPlan:
    """Return the checked plans of an experiment, or of a pipeline. Start nothing.

    With ``best`` the searches are over.

    Raises:
        InputError: all problems that would stop a pipeline later, in one message.
    """
    searches = [] if best else _searches(recipe, overrides)
    planned = {backbone: search.expected_choice for _, backbone, search in searches}
    pipelines: Mapping[str, Pipeline] = _pipelines(recipe, overrides, options, best or planned)
    about: dict[str, Any] = {}
    if isinstance(recipe, str) and (paper := experiments.experiment_of(recipe).claims):
        from raysts.papers.verdicts import agenda

        corpus = corpus_of(options.data, skip_bad=options.skip_bad, user_data=options.user_data)
        about["claims"], pipelines, about["notes"] = agenda(paper, pipelines, corpus, options.stand_ins)
    plans: dict[str, Plan] = {}
    problems = Problems()
    for label, pipeline in pipelines.items():
        with problems.collect():
            check_name(_run_name(options.name or _name(recipe), label))
            plans[label] = checked_plan(pipeline, options)
    problems.raise_any()
    studies = {}
    for label, backbone, search in searches:
        from raysts.commands.study import plan_study

        name = _run_name(options.name or _name(recipe), label)
        studies[backbone] = plan_study(search, {}, replace(options, name=name))
    return ExperimentPlan(recipe=recipe, overrides=overrides, options=options, plans=plans, studies=studies, **about)


def _pipelines(
    recipe: str | Pipeline,
    overrides: Mapping[str, Any],
    options: RunOptions,
    best: Best | None = None,
    assumptions: list[str] | None = None,
) -> dict[str, Pipeline]:
    """Return the pipelines of an experiment by label.

    Overrides have been applied to a pipeline. ``assumptions`` takes those about a backbone that is not on this machine.
    Without it such a backbone is an error.
    """
    if isinstance(recipe, Pipeline):
        return {"": recipe}
    if experiments.experiment_of(recipe).search:
        from raysts.search.search import pipeline_overrides

        overrides = pipeline_overrides(overrides)
    return experiments.pipelines(recipe, overrides, lambda backbone: _depth(backbone, options, assumptions), best)


def _depth(backbone: str, options: RunOptions, assumptions: list[str] | None) -> int:
    """Return the number of layers of a backbone, 0 of word vectors."""
    if backbone == TINY:
        return int(tiny_config()["num_hidden_layers"])
    try:
        config = pretrained.check(locate(backbone, store_of(options.storage), fetch=assumptions is None))
    except InputError:
        if assumptions is None:
            raise
        if backbone in experiments.DEPTHS:
            return experiments.DEPTHS[backbone]
        assumptions.append(
            f"backbone '{backbone}' cannot be read on this machine: shown as an encoder of {ASSUMED} layers"
        )
        return ASSUMED
    kind = config["model_type"]
    return 0 if kind == static.MODEL_TYPE else int(config[family_of(kind).depth])


def _searches(recipe: str | Pipeline, overrides: Mapping[str, Any]) -> list[tuple[str, str | None, Search]]:
    """Return the searches that come first, each with its label and backbone."""
    if isinstance(recipe, Pipeline) or not (name := experiments.experiment_of(recipe).search):
        return []
    from raysts.search.search import find_search, search_of, search_overrides

    experiment, backbones = experiments.experiment_of(recipe), experiments.backbones(recipe, overrides)
    _, separator, scale = recipe.partition("@")
    search = f"{name}{separator}{scale}"
    settings = search_overrides(search_of(search), {**experiment.settings, **overrides})
    searches = []
    for backbone in backbones:
        label = name if experiment.points[0].label else ""
        label = experiments.label_for(backbone, name) if len(backbones) > 1 else label
        choice = {"backbone": backbone} if backbone else {}
        searches.append((label, backbone, find_search(search, {**settings, **choice})))
    return searches


def show_pipelines(recipe: str, overrides: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """Return the pipelines of an experiment by label as plain data, and assumptions.

    After a search they are ``then``, beside ``search``. What has no label stands alone.
    """
    assumptions: list[str] = []
    tree = _alone(to_plain(_pipelines(recipe, overrides, RunOptions(), assumptions=assumptions)))
    searches = {}
    for label, _, search in _searches(recipe, overrides):
        space = {key: dimension.text for key, dimension in search.space.items()}
        searches[label] = {**to_plain(search), "space": space}
    return {"search": _alone(searches), "then": tree} if searches else tree, assumptions


def _alone(by_label: dict[str, Any]) -> Any:
    return by_label.get("", by_label)


def describe_experiment(checked: ExperimentPlan, slots: int | None = None, texts: int | None = None) -> Result:
    """Return the plan of an experiment as plain data: every step once, and the price.

    Args:
        slots: devices that work at once; None: those of this machine.
        texts: number of texts that the user's text is taken to have; None: its own.
    """
    nodes: dict[str, Any] = {}
    best: dict[str | None, Point] = {}
    steps: dict[str, Step] = {}
    first = next(iter(checked.plans.values()))
    rates, text = Rates(first.store), first.corpus.text
    factor = 1.0 if texts is None or text is None else texts / text.rows
    seconds = (first.store.read_json(f"pipelines/{checked.name}.json", fresh=True) or {}).get("seconds", {})

    def describe_steps(label: str, plan: Plan, of_plan: Sequence[Step], ended: Collection[str] = ()) -> dict[str, Any]:
        of_plan, described = scale_texts(of_plan, factor), dict[str, Any]()
        for step, node in zip(of_plan, describe(plan, of_plan)["nodes"], strict=True):
            steps[step.id] = step
            node |= {"title": f"{label}: {node['title']}"} if label else {}
            node |= {"seconds_expected": round(rates.predict(step).seconds, 2), "seconds": seconds.get(step.id)}
            described[node["id"]] = node | ({"status": "done"} if step.id in ended else {})
        return described

    for backbone, study in checked.studies.items():
        study.read()
        label = "" if study.name == checked.name else study.name
        nodes |= describe_steps(label, study.plan, study.steps(), study.records)
        if study.complete and study.best_point:
            best[backbone] = study.choice
    plans = checked.replan(best).plans if best else checked.plans
    later: dict[str, Any] = {}
    for label, plan in plans.items():
        for step_id, node in describe_steps(label, plan, plan.steps).items():
            later.setdefault(step_id, node)
    left = {step_id: rates.predict(steps[step_id]) for step_id, n in (later | nodes).items() if n["status"] != "done"}
    new = [node for step_id, node in later.items() if step_id not in nodes]
    if len(best) < len(checked.studies):  # costs are known before the end of a search, ids are not
        new = [{**node, "id": f"(after the grid) {i}", "needs": []} for i, node in enumerate(new)]
    slots = slots or devices(first.pipeline.resources)
    result = {
        "storage": first.store.uri,
        **describe(first, []),
        "name": _name(checked.recipe),
        "skipped": _skipped_files(checked.plans),
        "nodes": [*nodes.values(), *new],
        "price": asdict(price([*steps.values()], left, first.store, slots, checked.options.prices)),
    }
    return {**result, "notes": checked.notes} if checked.notes else result


PROBES = 1, 8, 40
"""Training steps of the probes of a stage. The first warms the process up; one of the others would not tell start from rate."""
PROBED = 20_000
"""Sentences that a probe embeds at most to measure an evaluation."""


def probe(checked: ExperimentPlan) -> None:
    """Measure rates by a few training steps of the first member of every pipeline, in this process.

    The storage gets the rates, and nothing else.
    """
    from raysts.pipeline.run import run_batch

    for plan, steps in itertools.product(checked.plans.values(), PROBES):
        say(f"probe: {steps} steps of each stage of {plan.pipeline.name} ...")
        with tempfile.TemporaryDirectory(prefix="raysts-probe-") as folder:
            short = {stage: _shorten(recipe, steps) for stage, recipe in plan.pipeline.recipes.items()}
            sizes = {task: len(harness.sentences(plan.corpus, [task])) for task in plan.tasks}
            tasks = {"tasks": (min(sizes, key=sizes.__getitem__),), "also": ()} if sizes else {}
            evaluation = plan.pipeline.evaluation.replace(**tasks)
            pipeline = plan.pipeline.replace(
                members=1, students=1, select_top=None, trials=(), recipes=short, evaluation=evaluation
            )
            small = replace(plan, pipeline=pipeline, storage=Path(folder))
            small.write_backbone()
            context = Context(LocalExecutor(pipeline.resources.cpus), small.store, pipeline.resources)
            making = [step for step in small.making if step.kind != "average"]
            if steps == PROBES[-1] and (scored := small.evaluations[0].step).sentences <= PROBED:
                making.append(scored)
            for batch in batches(making, ()):
                with showing(quiet=True):
                    failures = run_batch(batch, context)
                if failures:
                    raise RunFailed("\n".join(failures))
            for table in Rates(small.store).tables if steps != PROBES[0] else ():
                add_rates(plan.store, table)


def _shorten(recipe: Recipe, steps: int) -> Recipe:
    """Return a recipe of a few steps on rows enough for them, which keeps its last checkpoint."""
    keep = next(keep for keep in recipe.spec.keeps if keep not in recipe.spec.keeps_by_dev)
    train = {
        "max_steps": steps,
        "eval_every": steps,
        "min_steps": None,
        "patience": None,
        "eval_first": False,
        "keep": keep,
    }
    enough = max(steps, PROBES[1]) * recipe.batch
    rows = min(enough, recipe.data.sample or enough)
    return recipe.replace(train=recipe.train.replace(**train), data=recipe.data.replace(sample=rows))


def _skipped_files(plans: Mapping[str, Plan]) -> list[dict[str, Any]]:
    return list({shard["file"]: shard for plan in plans.values() for shard in plan.skipped_files}.values())


# -- runs ----------------------------------------------------------------------------------------------------------------


def run(checked: ExperimentPlan) -> Result:
    """Run the searches of an experiment, then its pipelines (see :func:`raysts.run`).

    Each pipeline with a label is a run ``<name>.<label>`` with a report. A failed one does not stop the others.

    Raises:
        RunFailed: some trials or pipelines failed.
    """
    options, name, plans = checked.options, checked.name, checked.plans
    store = store_of(options.storage)
    folder = store.path(f"reports/{name}/tensorboard")
    tools = open_tools(options.track, name, folder if "" in plans else folder / LIVE)
    store.check(writes=True)
    for note in checked.notes:
        say(note)
    best: dict[str | None, Point] = {}
    searched: Result = {}
    for backbone, study in checked.studies.items():
        from raysts.commands.study import run_study

        study_result = run_study(study, replace(options, name=study.name))
        say(study_result["table"])
        best[backbone] = study.choice
        say(f"{name}: goes on with {study.choice_text}")
        searched = {key: study_result[key] for key in ("study", "best", "best_run", "points")}
    plans = checked.replan(best).plans if best else plans
    results: dict[str, RunResult] = {}
    failures: list[str] = []
    with screen.working():
        for line in cautions(*plans.values()):
            say(line)
        with (
            executor(options.address, *plans.values()) as chosen,
            store.append(f"logs/{name}.log") as log,
            log_file(log),
            TrackerThread(tools, store, f"reports/{name}") as tracking,
        ):
            for number, (label, plan) in enumerate(plans.items(), start=1):
                if label:
                    say(f"{name}: {label}, {number} of {len(plans)}")
                try:
                    results[label] = _run(chosen, plan, _run_name(name, label), options)
                    tracking.add_results(label, results[label].main_scores())
                except RunFailed as error:
                    if not label:
                        raise
                    failures.append(f"{_run_name(name, label)}: {error}")
    if "" not in results:
        return _report(checked, plans, results, failures)
    results[""].update(searched)
    return results[""]


def _report(
    checked: ExperimentPlan, plans: Mapping[str, Plan], results: Mapping[str, Result], failures: Sequence[str]
) -> Result:
    """Write the tables of the paper, or its claims, and return the result of all pipelines.

    Raises:
        RunFailed: some pipelines failed. The tables of the others are written.
    """
    from raysts.papers import measured, tables, verdicts

    name, store = checked.name, store_of(checked.options.storage)
    experiment, folder = experiments.EXPERIMENTS[_name(checked.recipe)], store.path(f"reports/{name}")
    result: Result = {"status": "done", "storage": store.uri, "name": name, "model": None}
    if experiment.paper:
        data = measured.report_data(experiment.paper, store.root, experiment.tables)
        result["report"] = str(tables.write_report(data, folder))
        result["notes"] = [f"Table {t.table.number}: {line}" for t in data.tables for line in tables.filling(t)]
    if failures:
        raise RunFailed("\n".join(failures))
    if experiment.claims:
        command = checked.options.command or f"raysts run {checked.recipe}"
        judged = verdicts.claims_data(experiment.claims, checked.claims, plans, command)
        result["report"] = str(verdicts.write_report(judged, folder))
        result |= {"claims": [verdict.as_plain() for verdict in judged.verdicts], "text": verdicts.text(judged)}
    rows = [{**row, "study": name, "trial": label} for label, done in results.items() for row in done["results"]]
    left_out = [{**member, "trial": label} for label, done in results.items() for member in done["left_out"]]
    return {**result, "results": rows, "left_out": left_out, "skipped": _skipped_files(plans)}


def _run(executor: Executor, plan: Plan, name: str, options: RunOptions) -> RunResult:
    """Run the remaining steps of a checked plan."""
    from raysts.pipeline.run import Driver

    def report(store: Store, record: Mapping[str, Any]) -> Path:
        return write_report(report_data(store, record), store.path(f"reports/{name}"))

    screen.title = f"preparing {name}"
    command = options.command or f"raysts run {name}"
    fields = Driver(plan, executor, name, command, report, screen.follow, options.prices).run()
    rows = named_teachers(fields["results"], fields.get("teachers", {}))
    return RunResult(fields, main_standings(rows, plan.pipeline.compared_layers, plan.distributed_pooling))


def cautions(*plans: Plan) -> list[str]:
    """Return a warning before runs with work left: of generated sentences."""
    generated = [
        plan
        for plan in plans
        if is_world(plan.corpus.root) and not plan.corpus.text and plan.pipeline.name != "quickstart"
    ]
    return [GENERATED] if any({*plan.states().values()} != {"done"} for plan in generated) else []

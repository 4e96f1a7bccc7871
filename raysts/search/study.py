"""Study: the folder of a search, with the records of its trials and the kept models.

Each point has its plan. What all points read or train alike is done once, before the trials.

``studies/<name>/study.json`` describes the search. ``trials/`` holds one record per trial that has ended. Only the driver
writes these records, and they decide everything. ``optuna.db`` and ``trials.parquet`` are exports of them. A trial is a
training run like any other: its folder is ``runs/<id>/``, and a finished run is not trained again.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from raysts import __version__
from raysts.errors import InputError, RunFailed, nearest
from raysts.evaluation.cost import latency
from raysts.evaluation.dev import LOSS, Dev
from raysts.log import duration, say, screen
from raysts.pipeline.executor import Executor
from raysts.pipeline.plan import Plan
from raysts.pipeline.price import Price, Rates, price
from raysts.pipeline.run import run_batch
from raysts.pipeline.step import Context, Step, batches
from raysts.pipeline.steps.average import ScoreAverage
from raysts.pipeline.steps.train import tokens_step
from raysts.recipes import names
from raysts.recipes.overrides import apply_overrides
from raysts.recipes.recipe import DISTILLATION, Data, Optim, Pipeline, Train
from raysts.recipes.tree import build, leaves, to_plain
from raysts.search.record import Record, as_table, read_records
from raysts.search.scores import RACED, PointScores, best_by_mean, group_by_point, ranked_points, ranked_trials
from raysts.search.search import Search
from raysts.search.space import Point, complete, contains, corners, grid, select, text_of
from raysts.search.trial import Trial, TrialOutcome
from raysts.storage.atomic import remove_drafts
from raysts.storage.runs import RunFolder, State
from raysts.storage.store import Store, run_parallel
from raysts.training import checkpoint
from raysts.training.metrics import read_metrics

PRICED = 8
"""Points whose trials stand for the others in the price of a study, at most."""

BASIC = {"data", "max_length", "backbone", "backbone_layers"}
"""Parts of the paths of options that decide from which model a point starts, and which token shards it reads."""


class Study:
    """Trials of a search in a storage folder. The constructor reads and writes nothing."""

    def __init__(self, search: Search, plan: Plan, name: str) -> None:
        self.search, self.plan, self.name = search, plan, name
        self.store = plan.store
        self.folder = plan.storage / "studies" / name
        self.records: dict[str, Record] = {}
        self.asked: list[Point] = []
        self._without_model: set[str] = set()

    def identity(self) -> dict[str, Any]:
        """Return the flat names and values that are equal for all trials of one study."""
        search, plan, spec = self.search, self.plan, self.search.measured_recipe.spec
        recipes = {stage: plan.resolve_recipe(recipe) for stage, recipe in plan.pipeline.recipes.items()}
        identity: dict[str, Any] = {f"space.{key}": dimension.text for key, dimension in search.space.items()}
        varied = {key for key, dimension in search.space.items() if dimension.only is None}
        identity |= {path: value for path, value in leaves(to_plain(recipes)).items() if path not in varied}
        identity["metric"] = search.objective.name
        if search.asha:
            identity |= {f"asha.{key}": value for key, value in to_plain(search.asha).items()}
        if plan.teacher_models:
            identity["teachers"] = [model.id for model in plan.teacher_models]
        return identity | {
            "seed": search.pipeline.seed,
            "backbone": ", ".join(dict.fromkeys(corner.backbone_id for corner in self.corners)),
            "objective version": spec.version,
            **{f"data {recipe.table}": plan.corpus.fingerprint(recipe.table) for recipe in recipes.values()},
            f"data {spec.dev}": plan.corpus.fingerprint(spec.dev) if plan.corpus.files(spec.dev) else None,
        }

    @cached_property
    def corners(self) -> list[Plan]:
        """Return the plans of points that cover every choice and both ends of every range."""
        return [self.plan_at(point) for point in corners(self.search.space)]

    def plan_at(self, point: Point) -> Plan:
        """Return the plan of a point, with a member or a student for every seed."""
        return replace(self.plan, pipeline=self.search.pipeline_at(point))

    def check(self) -> None:
        """Refuse to continue a study of this name with another search.

        Raises:
            InputError: the stored study has another space, recipe, backbone or data. The message names the difference.
        """
        before = self.about.get("identity")
        if before is None:
            return
        # A study of a version without an option had what is its default now.
        usual = dict[str, Any]()
        for stage, recipe in self.plan.pipeline.recipes.items():
            parts = {"settings": recipe.spec.settings(), "data": Data(), "optim": Optim(), "train": Train()}
            usual |= leaves(to_plain({stage: parts}))
        before, identity = usual | before, usual | self.identity()
        changed = [
            f"{key} was {before.get(key, 'not there')}, is {identity.get(key, 'not there')}"
            for key in before | identity
            if before.get(key) != identity.get(key)
        ]
        if changed:
            raise InputError(
                f"study '{self.name}' in {self.folder} is of another search: {'; '.join(changed)}; a study's trials must "
                f"be comparable: go on with its settings, or take another --name"
            )

    @property
    def about(self) -> dict[str, Any]:
        """Return the content of ``study.json``, empty before the study begins."""
        return self.store.read_json(self.folder / "study.json", fresh=True) or {}

    def update(self, **fields: Any) -> None:
        """Change fields of ``study.json``."""
        self.store.write_json(self.folder / "study.json", {**self.about, **fields})

    def open(self, command: str) -> None:
        """Read the stored trials and write ``study.json``. The caller holds the lock of the study."""
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_drafts(self.folder)
        search, metric, before = self.search, self.search.objective, self.about
        self.update(
            name=self.name,
            search=search.name,
            created_at=before.get("created_at") or _timestamp(),
            command=command,
            status="running",
            raysts=__version__,
            data=self.plan.corpus.uri,
            own=self.plan.corpus.user.as_plain(),
            skipped=self.plan.skipped_files,
            objective=f"{metric.description}, mean over {search.seeds} seeds, {metric.mode}imised",
            metric=metric.name,
            mode=metric.mode,
            seeds=search.seeds,
            num_samples=search.num_samples,
            keep=search.keep,
            by=search.by,
            untrained=before.get("untrained"),
            price=before.get("price"),
            identity=self.identity(),
            pipeline=to_plain(search.pipeline),
            reads={content: folder for corner in self.corners for content, folder in corner.reads.items()},
            shared=sorted(
                {str(step.output.relative_to(self.plan.storage)) for step in self.shared_steps.values()}
                | {table for plan in self.bases for table in plan.written_tables}
            ),
        )
        self.read()
        self.asked = self.store.read_json(self.folder / "asked.json", fresh=True, kind=list) or []

    def read(self) -> None:
        self.records = {r.id: r for r in read_records(self.folder) if r.seed < self.search.seeds}

    def cleanup(self, earlier: bool = False) -> None:
        """Remove what a killed session and stopped trials leave, and the models of worse trials."""
        records = list(self.records.values())
        folders = [self.run_folder(record.id) / "checkpoints" for record in records]
        for record, folder, exists in zip(records, folders, run_parallel(self.store.exists, folders), strict=True):
            if exists:
                self.clear(record)
                checkpoint.clear(folder)
        self.retain(earlier)

    def close(self, status: str) -> None:
        """Write ``trials.parquet``, and the final status to ``study.json``."""
        self.cleanup(earlier=True)
        with self.store.put(self.folder / "trials.parquet") as draft:
            pq.write_table(as_table(list(self.records.values())), draft)
        self.store.upload(self.folder)  # also the exports, which their libraries write in place
        self.update(status=status)

    @property
    def complete(self) -> bool:
        return sum(not scores.missing_seeds for scores in self.scores()) >= self.search.points

    def score_backbone(self, executor: Executor) -> None:
        """Score the starting model of the trials once, which shows the gain of training."""
        search, plan = self.search, self.plan
        is_scored = search.objective.name == LOSS or self.backbone_score is not None
        if self.dev is None or is_scored or "backbone" in search.space:
            return
        recipe, content = plan.resolve_recipe(search.measured_recipe), plan.contents.get(plan.start)
        options = {"pooling": recipe.pooling, "layers": recipe.layers, "prompt": search.pipeline.prompt}
        args = (self.dev, {**options, "content": content})
        plan.write_backbone()  # the points may start from some layers of it
        (scores,) = executor.map(ScoreAverage, args, [(plan.start,)], search.pipeline.resources)
        self.update(untrained=scores[search.objective.name])

    @property
    def backbone_score(self) -> float | None:
        """The score of the backbone with the pooling of the trials, or None if it was not measured."""
        return self.about.get("untrained")

    @cached_property
    def dev(self) -> Dev | None:
        """Return what measures the trials: the development set, without labels agreement with the ensemble."""
        labelled = self.plan.dev(self.search.measured_recipe.spec.dev)
        return labelled or (self.plan.agreement.dev if self.plan.agreement else None)

    @cached_property
    def bases(self) -> list[Plan]:
        """Return plans that have every starting model and all token shards of the points.

        Raises:
            InputError: an option that decides them has a range.
        """
        space = self.search.space
        varied = select(space, [key for key in space if BASIC & {*key.split(".")}])
        points = grid(varied)
        if points is None:
            key = next(key for key, dimension in varied.items() if not dimension.choices)
            raise InputError(
                f"space.{key}={varied[key].text}: texts are tokenised before the first trial; give choices instead of a range"
            )
        return [self.plan_at(complete(space, point)) for point in points]

    def token_stores(self) -> dict[str, Step]:
        """Return the steps that make the token shards of all points, by id. Raises as :attr:`bases`."""
        return {spec.id: tokens_step(plan, spec) for plan in self.bases for spec in plan.specs.values()}

    def check_data(self) -> None:
        """Raise InputError if no point has enough rows for a batch. Fewer make single points infeasible."""
        self.token_stores()
        measured = [(plan, [*plan.pipeline.recipes.values()][-1]) for plan in self.corners]
        if all(plan.optimiser_steps(recipe) == 0 for plan, recipe in measured):
            table = measured[0][1].table
            raise InputError(f"space: table '{table}' has too few rows for one batch at every point; lower the batch")

    def prepare(self, executor: Executor) -> None:
        """Do what all points have in common, once.

        Raises:
            RunFailed: a step failed.
        """
        for plan in self.bases:
            plan.write_backbone()
        shared = self.shared_steps
        if trained := [step for step in shared.values() if step.kind != "tokens"]:
            rates, points = Rates(self.store), self.search.points
            saved = duration((points - 1) * sum(rates.predict(step).seconds for step in trained))
            same = f"{len(trained)} steps" if len(trained) > 1 else "step"
            say(
                f"{self.name}: every point begins with the same {same}, done once instead of {points} times, which saves "
                f"about {saved} of devices"
            )
        done = {step.id for step in shared.values() if step.state(self.store) == State.DONE}
        for batch in batches([*shared.values()], done):
            screen.title = batch[0].title
            say(f"{screen.title} ...")
            if failures := run_batch(batch, Context(executor, self.store, self.search.pipeline.resources)):
                raise RunFailed("\n".join(failures))

    def price(self, slots: int, prices: Mapping[str, float] | None = None) -> Price:
        """Return the price of what is left. Trials cost the mean of those of some points."""
        rates, shared = Rates(self.store), [*self.shared_steps.values()]
        left = {step.id: rates.predict(step) for step in shared if step.state(self.store) != State.DONE}
        trials = [steps for plan in self.corners[:PRICED] for steps in self._steps(plan)]
        separate = {step.id: step for steps in trials for step in steps if step.id not in self.shared_steps}
        expected = {id_: rates.predict(step) for id_, step in separate.items()}
        of_trials = price([*separate.values()], expected, self.store, 1, prices)
        count = max(0, self.search.points * self.search.seeds - len(self.records))
        return price(shared, left, self.store, slots, prices).plus(of_trials, count / len(trials))

    @cached_property
    def shared_steps(self) -> dict[str, Step]:
        """Return the steps that trials find done, by id: the token shards, and what every point needs alike."""
        needed = [{step.id: step for steps in self._steps(plan) for step in steps[:-1]} for plan in self.corners]
        common = {id_: step for id_, step in needed[0].items() if all(id_ in other for other in needed)}
        return self.token_stores() | common

    def _steps(self, plan: Plan) -> list[list[Step]]:
        """Return the steps of a point in order, for each seed. The last one is measured."""
        making = {step.id: step for step in plan.making}
        steps = []
        for chain in plan.student_chains or plan.chains:
            needs = {chain[-1].id}
            for step in reversed(making.values()):
                needs |= {*step.needs} if step.id in needs else set()
            steps.append([step for step in making.values() if step.id in needs])
        return steps

    def trials(self, point: Point) -> list[Trial]:
        """Return the trials of a point, one for each seed: the runs of the pipeline at this point."""
        trials = []
        for seed, steps in enumerate(self._steps(self.plan_at(point))):
            *earlier, measured = [self._name_study(step) for step in steps if step.id not in self.shared_steps]
            trial = Trial(point=point, seed=seed, job=measured.training, earlier=tuple(earlier), bytes=measured.bytes)
            trials.append(trial)
        return trials

    def _name_study(self, step: Step) -> Step:
        """Return a step, of training with a record that names this study."""
        return replace(step, job=step.job and replace(step.job, facts={**step.job.facts, "study": self.name}))

    def ask(self, point: Point) -> None:
        """Store a point before its trials start, so that a killed search continues with it."""
        if point not in self.asked:
            self.asked.append(point)
            self.store.write_json(self.folder / "asked.json", self.asked)

    def reuse_finished(self, trial: Trial) -> Record | None:
        """Return the record of a trial with a trained run, by this study or another, or None."""
        run, lines = self.read_run(trial.id)
        usable = {State.DONE} if self.search.cost == "latency" else {State.DONE, State.PRUNED}  # which has no model
        value = self.search.objective.value_of_run(run, lines) if run.get("status") in usable else None
        return None if value is None else self.finish(trial, TrialOutcome("finished", value))

    def finish(self, trial: Trial, outcome: TrialOutcome) -> Record:
        """Write the record of a trial that has ended, and remove the models of worse trials."""
        assert outcome.status != "failed"
        run, lines = self.read_run(trial.id)
        values = [(line["step"], self.search.objective.value_of_line(line)) for line in lines]
        curve = tuple((step, value) for step, value in values if value is not None)
        last, selection = (lines or [{}])[-1], run.get("kept") or {}
        record = Record(
            id=trial.id,
            point=trial.point,
            seed=trial.seed,
            status=outcome.status,
            value=curve[-1][1] if outcome.status == "stopped" and curve else outcome.value,
            step=(selection if outcome.status == "finished" else last).get("step"),
            steps=last.get("steps", run.get("steps")),
            seconds=last.get("seconds"),
            reason=outcome.reason,
            curve=curve,
            earlier=tuple(str(step.output.relative_to(self.plan.storage)) for step in trial.earlier),
            finished_at=_timestamp(),
        )
        return self._write(replace(record, cost=self._cost(trial, record)))

    def _cost(self, trial: Trial, record: Record) -> float | None:
        if self.search.cost == "latency" and record.status == "finished":
            model = self.store.get_dir(self.run_folder(trial.id) / "model")
            assert self.dev is not None and model is not None
            return latency(model, self.dev.texts)
        return {"seconds": record.seconds, "bytes": trial.bytes}.get(self.search.cost or "")

    def leave_out(self, trial: Trial) -> Record:
        """Write the record of a trial that is not trained, because its point lost the race."""
        reason = f"{RACED}: not trained, the point is clearly worse"
        record = Record(
            id=trial.id, point=trial.point, seed=trial.seed, status="stopped", reason=reason, finished_at=_timestamp()
        )
        return self._write(record)

    def _write(self, record: Record) -> Record:
        self.store.write_json(self.folder / "trials" / f"{record.id}.json", asdict(record))
        self.records[record.id] = record
        self.clear(record)
        self.retain()
        return record

    def clear(self, record: Record) -> None:
        """Remove the checkpoints of a trial that did not finish: a pipeline trains it from the start."""
        run = RunFolder(self.run_folder(record.id))
        if record.status != "finished" and run.record().get("status") not in (None, State.DONE):
            checkpoint.clear(run.path / "checkpoints")
            run.change(State(record.status))

    def run_folder(self, run_id: str) -> Path:
        return self.plan.storage / "runs" / run_id

    def read_run(self, run_id: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        folder = self.run_folder(run_id)
        return RunFolder(folder).record(), read_metrics(folder / "metrics.jsonl")

    def steps(self) -> list[Step]:
        """Return the steps of the trials of a grid, with what they read."""
        steps = dict(self.shared_steps)
        for point in (grid(self.search.space) or []) if self.search.num_samples is None else []:
            for seed, (*earlier, measured) in enumerate(self._steps(self.plan_at(point))):
                steps |= {step.id: step for step in earlier}
                steps[measured.id] = replace(measured, title=f"{text_of(point)} seed {seed}")
        return [*steps.values()]

    def best(self) -> list[Record]:
        """Return the trials that keep their models, best first: those of the best points, or the best ones."""
        mode, keep = self.search.objective.mode, self.search.keep
        if self.search.by == "trial":
            return ranked_trials(self.records.values(), mode)[:keep]
        points = [scores for scores in ranked_points(self.scores(), mode) if scores.has_all_seeds]
        return [record for scores in points[:keep] for record in scores.finished_trials]

    @property
    def choice(self) -> dict[str, Any]:
        """Return the overrides by which a pipeline takes the outcome (:meth:`Search.choose`)."""
        trials = [(record.point, record.seed) for record in self.best()]
        if not trials:  # no point has all its seeds
            return self.best_point.point if self.best_point else {}
        return self.search.choose(trials)

    @property
    def choice_text(self) -> str:
        if "trials" not in self.choice:
            return text_of(self.choice)
        return "; ".join(f"{text_of(trial.point)} seed {trial.seed}" for trial in self.best())

    def take_back(self) -> list[Record]:
        """Drop the best trials if their models are missing or damaged, and return those trials.

        The search trains them again. Models that another search has removed do not count.
        """

        def is_lost(record: Record) -> bool:
            model = self.run_folder(record.id) / "model"
            pruned = RunFolder(model.parent).record().get("status") == State.PRUNED
            return not pruned and not (self.store.exists(model) and self.store.is_whole(model, deep=True))

        best = self.best()
        lost = [*itertools.compress(best, run_parallel(is_lost, best))]
        for record in lost:
            # The record of the run changes first, because `reuse_finished` would take its value again.
            RunFolder(self.run_folder(record.id)).change(State.FAILED)
            self.store.delete(self.folder / "trials" / f"{record.id}.json")
            del self.records[record.id]
        return lost

    def retain(self, earlier: bool = False) -> None:
        """Remove the models of worse trials, and ``earlier`` ones from which no kept trial comes.

        A point that lacks seeds keeps its models, because it may become the best. Runs that a pipeline of this storage
        uses, and runs that were not trained for this study, keep theirs too.
        """
        keep = {record.id for record in self.best()}
        if self.search.by == "point":
            keep |= {record.id for scores in self.scores() if scores.missing_seeds for record in scores.records}
        beaten = {*self.records} - keep
        if earlier:
            beaten |= self._earlier(beaten) - self._earlier(keep)
        # This runs after every trial, so an object store gets one request per run.
        beaten -= self._without_model
        self._without_model.update(beaten)
        models = [self.run_folder(run_id) / "model" for run_id in sorted(beaten)]
        models = list(itertools.compress(models, run_parallel(self.store.exists, models)))
        paths = self.store.get_all(self.plan.storage / "pipelines", "*.json") if models else ()
        pipelines = [self.store.read_json(path) or {} for path in paths]
        used = {step["id"] for pipeline in pipelines for step in pipeline.get("steps", ())}
        for run in (RunFolder(model.parent) for model in models):
            if run.record().get("study") == self.name and run.path.name not in used:
                run.change(State.PRUNED)  # first: a run without a model must not count as done
                self.store.delete(run.path / "model")

    def _earlier(self, run_ids: Collection[str]) -> set[str]:
        """Return the runs before the measured ones of trials, without those that all points share."""
        paths = [Path(path) for run_id in run_ids for path in self.records[run_id].earlier]
        return {path.parent.name for path in paths if path.name == "model"}

    def scores(self, key: str | None = None) -> list[PointScores]:
        """Return every point that has an ended trial, in the order of the trials, or the one with an id."""
        records = [record for record in self.records.values() if key in (None, record.key)]
        return group_by_point(records, self.search.seeds)

    @property
    def best_point(self) -> PointScores | None:
        """The point with the best mean over its seeds so far."""
        return best_by_mean(self.scores(), self.search.objective.mode)


def _timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


# -- studies on record, as other commands and studies take them ----------------------------------------------------------


def study_record(store: Store, name: str) -> tuple[dict[str, Any], list[Record]]:
    """Return the record of the study called ``name`` and the records of its trials."""
    record = store.read_json(f"studies/{name}/study.json", fresh=True)
    if record is None:
        studies = [path.parent.name for path in store.get_all("studies", "study.json")]
        raise InputError(
            f"no study '{name}' in {store.uri}{nearest(name, studies)}; it holds: {', '.join(studies) or 'none'}"
        )
    return record, read_records(store.path(f"studies/{name}"))


def best_point(record: Mapping[str, Any], trials: Sequence[Record], top: int | None, combine: str | None) -> Pipeline:
    """Return the system that combines the seeds of the best point of a study, for ``sed`` into a student."""
    best = best_by_mean(group_by_point(trials, record["seeds"]), record["mode"])
    if best is None or not best.has_all_seeds:
        raise InputError(
            f"--from-study {record['name']}: no point of it has all its {record['seeds']} seeds yet; finish it first with: "
            f"{record['command']}"
        )
    if top is not None and top < 1:
        raise InputError(f"--top {top}: must be at least 1")
    members = apply_overrides(build(Pipeline, record["pipeline"]), best.point)
    student = {DISTILLATION: names.student_recipe(members.recipes)} if combine == DISTILLATION else {}
    return members.replace(combine=combine, recipes=members.recipes | student, members=top or record["seeds"])


def best_trials(record: Mapping[str, Any], trials: Sequence[Record], store: Store, top: int | None) -> list[Record]:
    """Return the trials with kept models, best first."""
    models = [trial for trial in ranked_trials(trials, record["mode"]) if store.exists(f"runs/{trial.id}/model")]
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

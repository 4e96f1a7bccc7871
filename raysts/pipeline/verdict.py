"""The verdict on a run: the delivered model, its comparisons and the notes. The run's record keeps it.

The starting model is the backbone as it was distributed. A difference is that of a paired bootstrap over the rows of a test set
(:func:`raysts.evaluation.compare.compare_systems`), from the row scores that the evaluations stored. Nothing is
embedded again, so the numbers are reproducible. Messages claim only what the interval shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import cached_property
from typing import Any

from raysts.data.checks import skipped_line
from raysts.data.corpora import Corpus
from raysts.evaluation import harness
from raysts.evaluation.compare import Difference, difference
from raysts.evaluation.contamination import Contamination
from raysts.evaluation.scores import Choice, ModelScores
from raysts.evaluation.standings import AGREEMENT, AVERAGE, AVERAGED, TEACHER
from raysts.models.embedders import open_embedder
from raysts.models.layers import Layers, as_layers
from raysts.models.modules import describe
from raysts.pipeline.inputs import TINY
from raysts.pipeline.outcome import Outcome, members_dev
from raysts.pipeline.plan import Plan
from raysts.pipeline.step import State, Step
from raysts.pipeline.validate import fitting_target
from raysts.recipes.recipe import DEFAULTS, ROLE_NAMES, SOUPS, Pipeline

TITLES = {name: name.upper() for name in harness.TASKS}
TITLES |= {"stsb": "STS-B", "sickr": "SICK-R", "sickr-all": "SICK-R (all rows)"}
"""Names of public test sets in sentences; one of the user's own has the name that it was given."""

GAP = ("difference", "ci_low", "ci_high")
"""Fields of a paired difference."""

STILL_RISING = 0.005
"""Rise between the last two development scores of a student that is worth a note."""

ABOUT_TINY = "The starting model is a tiny BERT with random weights. Its scores say nothing about real text."
ABOUT_POINTS = (
    "The members give Gaussians, and the student gives points without variance: it learns their mean vectors alone. What a "
    "variance says, as the direction of entailment, only the members say."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """The delivered model and its comparison with the starting model. Values are not times 100.

    Attributes:
        what: its role.
        by: the development set that selected it; ``system``: the system's name determines it.
        beats_input: True if the interval lies above 0; None without an interval.
        difference: of the rank correlation (else the accuracy) from the starting model's.
        on: the test set: the first of the user data, else STS-B if it is measured, else the first measured STS set,
            else another; None without a test set.
        agreement: with the ensemble on held-out texts (:mod:`raysts.evaluation.agreement`); None if labels select.
        judge: the words for the ensemble if it is a single model; None: ``the ensemble``.
        teacher: name of the teacher that is delivered, None for other models.
        reference: the best teacher of a student: ``model`` (its name), ``value``, ``delivered`` (the student's value), ``on``,
            ``n`` (rows), and the student's ``difference`` from it with ``ci_low`` and ``ci_high``.
        margin: how far it may be below the reference, or without one the starting model, and be level with it.
        within: True if the interval lies above ``-margin``, False if below; None if neither is shown.
    """

    what: str
    layers: Layers
    by: str
    beats_input: bool | None = None
    difference: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    on: str | None = None
    agreement: float | None = None
    judge: str | None = None
    teacher: str | None = None
    reference: Mapping[str, Any] | None = None
    margin: float | None = None
    within: bool | None = None

    @property
    def sentence(self) -> str:
        """Return what is delivered and how it compares, in at most four sentences."""
        return " ".join([self._comparison, *self._reference_sentences()])

    def _reference_sentences(self) -> Iterator[str]:
        best = self.reference
        if best is None or self.margin is None or best["ci_low"] is None:
            return
        gap, limit = Difference.of(best), f"more than {100 * self.margin:.2f}"
        begin = {True: f"It is not {limit}", False: f"It is {limit}", None: f"Nothing shows whether it is {limit}"}
        on = f"below the teacher {best['model']} on {_title(best['on'])} test"
        yield f"{begin[self.within]} {on}: {100 * gap.value:+z.2f} {gap.interval}."
        if gap.sign < 0:
            values = f"{100 * best['value']:.2f} against {100 * best['delivered']:.2f}"
            yield f"The teacher still scores higher: {values}. More text or more steps bring the student nearer."
        elif self.within is None and (rows := gap.rows_needed(self.margin, best["n"])):
            yield f"The test has {best['n']:,} rows; about {rows:,} would show it in 80 of 100 tests."

    @property
    def _comparison(self) -> str:
        name = f"teacher {self.teacher}" if self.teacher else ROLE_NAMES.get(self.what, self.what)
        subject, start = f"The {name}", "the starting model"
        if self.on is None or self.difference is None:
            if self.agreement is None:
                return f"{subject} is delivered. No test set compares it with {start}; --test NAME=FILE gives one."
            judge = self.judge or "the ensemble"
            return (
                f"{subject} is delivered. It keeps {100 * self.agreement:.2f} of 100 of {judge}: the rank correlation of "
                f"their similarities on held-out texts. No agreement shows that it is better than {start} or {judge}; "
                f"scored pairs do: --test NAME=FILE."
            )
        gap, on = Difference(self.difference, self.ci_low, self.ci_high), f"{_title(self.on)} test"
        if self.what == "backbone" and gap.value == 0:
            why = "" if self.by == "system" else f": no trained model scores higher on {self.by}"
            return f"{subject} is delivered{why}."
        if self.ci_low is None:
            return (
                f"{subject} differs from {start} by {100 * gap.value:+z.2f} on {on}. Without an interval "
                f"(evaluation.resamples=0) nothing is concluded from it."
            )
        if gap.sign > 0:
            return f"{subject} is better than {start} by {100 * gap.value:.2f} {gap.interval} on {on}."
        if gap.sign < 0:
            remedy = "use it, or train with more text or steps"
            return f"The starting model is better: {remedy}. {subject} is {gap.describe('it')} on {on}."
        return f"No difference is shown between the {name} and {start}: {100 * gap.value:+z.2f} {gap.interval} on {on}."

    def as_plain(self) -> dict[str, Any]:
        """Return the fields. A field that few runs have is left out without a value."""
        optional = ("agreement", "judge", "teacher", "reference")
        return {key: value for key, value in asdict(self).items() if value is not None or key not in optional}


def notes_before(plan: Plan) -> list[str]:
    """Return what is known of the text before any step runs."""
    backbone, layers = plan.pipeline.backbone, plan.kept_layers
    notes = [plan.corpus.text.line, *note_last_step(plan.pipeline, plan.corpus)] if plan.corpus.text else []
    if plan.is_table:
        notes.append(f"Training starts from a table of token vectors, each what {backbone} gives for it alone.")
    if layers is not None:
        begin = f"Training starts from {len(layers)} of the {plan.depth} layers of {backbone}"
        notes.append(f"{begin}: {', '.join(map(str, layers))} (counted from 0).")
    taught = plan.distillation if plan.pipeline.teachers and plan.target != "mean" else None
    if taught and fitting_target(plan.teacher_folders, plan.student_width, taught) == plan.target:
        notes.append(
            f"The teachers have different starting models, or another width than the student, so their mean has no "
            f"meaning: sed.target={plan.target}."
        )
    notes += plan.reading_notes()
    return notes + [f"Training data is not whole; {line}" for line in map(skipped_line, plan.skipped_files)]


def note_last_step(pipeline: Pipeline, corpus: Corpus) -> list[str]:
    """Return a note on the stages that keep the last step for lack of a development set."""
    stages = [
        stage
        for stage, recipe in pipeline.stages.items()
        if DEFAULTS[recipe.objective].uses_dev_labels and not (recipe.uses_dev_labels or corpus.files(recipe.spec.dev))
    ]
    rule = "no development set is there, so the last step is kept (--dev NAME=FILE lets yours choose)"
    return [f"{', '.join(stages)}: {rule}"] if stages else []


def note_rising(scores: Sequence[float], dev: str) -> list[str]:
    """Return a note if the last of a student's development scores is well above all others, or none."""
    if len(scores) < 2 or scores[-1] < max(scores) or scores[-1] - scores[-2] < STILL_RISING:
        return []
    return [
        f"The student still gets better at its end: {100 * scores[-2]:.2f}, then {100 * scores[-1]:.2f} on {dev}. More steps "
        f"may help (--set sed.train.epochs=N)."
    ]


@dataclass(frozen=True)
class Verdict:
    """Result of a run, as far as it has come, by the row scores in the storage of its plan."""

    plan: Plan

    def as_record(self) -> dict[str, Any]:
        against = {r: {name: astuple(gap) for name, gap in sets.items()} for r, sets in self.against.items()}
        delivered = self.delivery.as_plain() if self.delivery else None
        return {"outcome": asdict(self.outcome), "delivered": delivered, "against": against, "notes": self.notes}

    @cached_property
    def outcome(self) -> Outcome:
        return self.plan.outcome

    @cached_property
    def _ends(self) -> list[bool]:
        return [evaluation.step.state(self.plan.store) == State.DONE for evaluation in self.plan.evaluations]

    @cached_property
    def contamination(self) -> Contamination | None:
        """Return the training text in the test sets, or None before anything is scored."""
        return self.plan.contamination() if any(self._ends) else None

    @cached_property
    def start(self) -> ModelScores:
        """Return the row scores of the backbone as it was distributed."""
        return self.scores("backbone", "backbone", self.start_choice)

    @property
    def start_choice(self) -> Choice:
        return self.plan.distributed_pooling[0], str(self.plan.distributed_pooling[1])

    def usual_choice(self, role: str) -> Choice:
        """Return the pooling and layers at which models of a role are compared."""
        poolings = (evaluation.pooling for evaluation in self.plan.evaluations if evaluation.role == role)
        return next(poolings, "mean"), str(self.plan.pipeline.compared_layers)

    def scores(self, role: str, model: str, choice: Choice | None = None) -> ModelScores:
        """Return a model's row scores at a pooling (see :meth:`RoleEvaluation.row_scores`).

        A model with heads has scores at one pooling only, which it gives for every choice.
        """
        choice = choice or self.usual_choice(role)
        evaluations = (evaluation for evaluation in self.plan.evaluations if evaluation.role == role)
        by_choice = next((evaluation.row_scores(model) for evaluation in evaluations), {})
        same_layers = [scores for (_, layers), scores in by_choice.items() if layers == choice[1]]
        only = [*by_choice.values()] if len(by_choice) == 1 else []
        return by_choice.get(choice) or next(iter(same_layers or only), {})

    def difference(self, a: Sequence[ModelScores], b: Sequence[ModelScores], on: Sequence[str]) -> Difference:
        return difference(a, b, on, self.plan.pipeline.evaluation.resamples)

    def common_set(self, a: ModelScores, b: ModelScores) -> str | None:
        """Return the test set of the comparison, or None: the user's first (options first), STS-B, or another."""
        shared = [name for name in a if name in b]
        user_sets = [name for name in shared if name not in TITLES and a[name].gold is not None]
        user_sets = [*filter(user_sets.__contains__, self.plan.corpus.user.test), *user_sets]
        return next((name for name in (*user_sets, "stsb", *AVERAGED, *shared) if name in shared), None)

    # -- the delivered model -----------------------------------------------------------------------------------------

    @cached_property
    def delivery(self) -> Delivered | None:
        """Return the delivered model and its comparison, or None before everything is scored."""
        if not all(self._ends):
            return None
        plan, outcome = self.plan, self.outcome
        model = next((model for model in plan.models if model.id == outcome.selected), None)
        selector, model_id = "system", outcome.selected or ""
        if chosen := outcome.chosen:
            role, choice = chosen.what, (chosen.pooling, str(chosen.layers))
            selector = str(plan.chooser.name if plan.chooser else "")
        elif plan.pipeline.deliver == "best":
            return None
        elif model:
            pooling, layers = describe(model.output).stored_pooling
            choice = pooling, str(layers)
            soups = {soup: role for role, soup in outcome.soups.items()}
            role = soups.get(model.id) or ("student" if outcome.students else "member")
            among = len(outcome.students or outcome.members) > 1
            if among and (role == "member" or model.record.get("selected_by")):
                selector = outcome.selected_by or "system"
        elif plan.pipeline.combine == "ensemble" and outcome.ensemble:
            role, choice, model_id = "ensemble", self.usual_choice("member"), "ensemble"
        elif plan.members:
            return None
        else:
            role, choice = "backbone", self.start_choice
        model_id = "backbone" if role == "backbone" else model_id
        scores = self.scores("member" if role == "ensemble" else role, model_id, choice)
        agreement = self._agreement(role, model_id, choice)
        reference = self._best_teacher(scores) if role == "student" else None
        margin, on = plan.pipeline.evaluation.margin / 100, self.common_set(scores, self.start)
        gap = None
        if on is not None and role == "backbone" and choice == self.start_choice:
            zero = 0.0 if plan.pipeline.evaluation.resamples else None
            gap = Difference(0.0, zero, zero)
        elif on is not None:
            gap = self.difference([scores], [self.start], [on])
        compared = Difference.of(reference) if reference else gap
        return Delivered(
            what=role,
            layers=as_layers(choice[1]),
            by=selector,
            beats_input=None if gap is None or gap.low is None else gap.sign > 0,
            **(dict(zip(GAP, astuple(gap), strict=True)) if gap else {}),
            on=on,
            agreement=agreement,
            judge=plan.judge if agreement is not None and len(outcome.ensemble) == 1 else None,
            teacher=self.plan.teacher_names.get(model_id) if role == "member" else None,
            reference=reference,
            margin=margin,
            within=compared.within(margin) if compared else None,
        )

    def _best_teacher(self, student: ModelScores) -> dict[str, Any] | None:
        """Return the teacher that scores highest, and the student's difference from it."""
        teachers = list[dict[str, Any]]()
        for model, name in self.plan.teacher_names.items():
            teacher = self.scores("member", model)
            if on := self.common_set(student, teacher):
                gap = dict(zip(GAP, astuple(self.difference([student], [teacher], [on])), strict=True))
                metric = "spearman" if student[on].gold is not None else student[on].metrics[0]
                values = {"value": teacher[on].value(metric), "delivered": student[on].value(metric)}
                teachers.append({"model": name, **values, "on": on, "n": len(student[on].values), **gap})
        return max(teachers, key=lambda teacher: teacher["value"], default=None)

    def _agreements(self, role: str) -> Iterator[dict[str, Any]]:
        """Yield the results rows of models of a role on their agreement with the ensemble."""
        measured = AGREEMENT, "spearman", role
        yield from (r for r in self.plan.rows_on_record() if (r["dataset"], r["metric"], r["role"]) == measured)

    def _agreement(self, role: str, model: str, choice: Choice) -> float | None:
        named = model not in ("backbone", "ensemble")
        rows = (row for row in self._agreements(role) if not named or row["run_id"] == model)
        return next((row["value"] for row in rows if (row["pooling"], row["layers"]) == choice), None)

    # -- beside other models -------------------------------------------------------------------------------------------

    @cached_property
    def against(self) -> dict[str, dict[str, Difference]]:
        """Return the differences of the first role from each other role, by role and set.

        The set ``AVERAGE`` is the mean over sets. The backbone counts as distributed, the others at the recipe's choice
        of layers. The models of a role form one system. The result is empty before everything is scored.
        """
        if not all(self._ends):
            return {}
        systems = [(role, scores) for role, scores in self._systems() if scores and all(scores)]
        differences: dict[str, dict[str, Difference]] = {}
        for role, other in systems[1:]:
            first = systems[0][1]
            shared = [name for name in first[0] if all(name in model for model in (*first, *other))]
            sets = {str(name): [name] for name in [self.common_set(first[0], other[0])] if name in shared}
            averaged = [name for name in AVERAGED if name in shared]
            sets |= {AVERAGE: averaged} if len(averaged) > 1 else {}
            differences[role] = {name: self.difference(first, other, on) for name, on in sets.items()}
        return differences

    def _systems(self) -> Iterator[tuple[str, list[ModelScores]]]:
        """Yield the roles in the order of :attr:`against`, each with the scores of its models."""
        outcome, in_tables = self.outcome, {*self.plan.names_in_tables.values()}
        teachers = {model: name for model, name in self.plan.teacher_names.items() if name in in_tables}
        yield "student", [self.scores("student", model) for model in outcome.students]
        yield from ((role, [self.scores(role, outcome.soups[role])]) for role in SOUPS if role in outcome.soups)
        yield "ensemble", [self.scores("member", "ensemble")]
        for model in filter(outcome.members.__contains__, teachers):
            yield f"{TEACHER}{teachers[model]}", [self.scores("member", model)]
        yield "member", [self.scores("member", model) for model in outcome.members if model not in teachers]
        yield "backbone", [self.start]

    # -- notes -------------------------------------------------------------------------------------------------------

    @cached_property
    def notes(self) -> list[str]:
        return [*self._notes()]

    def _notes(self) -> Iterator[str]:
        plan, recipes = self.plan, self.plan.pipeline.recipes
        yield from notes_before(plan)
        if plan.pipeline.backbone == TINY:
            yield ABOUT_TINY
        for member in plan.left_out:
            yield (
                f"Member {member['member']} failed and is left out: ensemble and student are made of the "
                f"{len(plan.members)} of {plan.pipeline.members} members that finished. Its reason: {member['reason']}"
            )
        if by_labels := [stage for stage, recipe in recipes.items() if recipe.uses_dev_labels]:
            names = dict.fromkeys(plan.dev_name(recipes[stage].spec.dev) for stage in by_labels)
            judge = f"Labels of {' and '.join(names)}"
            if AGREEMENT in names:
                judge = f"Agreement with {plan.judge}, without labels,"
            yield f"{judge} chose the kept checkpoint in: {', '.join(by_labels)}."
        yield from filter(None, [self.outcome.choice, plan.teacher and plan.teacher.weights_note()])
        if plan.outcomes and plan.target != "gaussian":
            models = [open_embedder(member.output) for member in plan.members if member.output.exists()]
            if any(name.startswith("gauss") for model in models for name in model.similarities):
                yield ABOUT_POINTS
        for stage, recipe in recipes.items():
            rows, sample = plan.rows(recipe), recipe.data.sample
            if sample and rows < sample:
                yield f"{stage}: the table has {rows:,} rows, fewer than the {sample:,} asked for; all were used."
            if widths := ", ".join(map(str, recipe.settings.matryoshka)):
                yield f"{stage}: the first {widths} dimensions were trained to be sentence vectors by themselves."
        yield from (*self._static_note(), *self._fallen())
        for student, *_ in plan.student_chains:
            scores = [line["dev"] for line in student.metrics if line.get("dev") is not None]
            yield from note_rising(scores, plan.dev_name(student.training.recipe.spec.dev))
        yield from (*self._below_best(), *self._tested_on_dev(), *self._truncation())
        if self.contamination:
            yield from self.contamination.lines(plan.pipeline.name)

    def _static_note(self) -> Iterator[str]:
        """Yield a note on what a static student keeps of texts that it did not read."""
        plan, text = self.plan, self.plan.corpus.text
        if not plan.is_table or text is None:
            return
        shown = "no text was held out; raysts evaluate MODEL --like TEACHER --text PATH measures others"
        if agreements := [row["value"] for row in self._agreements("student")]:
            best = f"{100 * max(agreements):.2f} of 100"
            shown = f"on {text.held_count:,} held-out texts it keeps {best} of {plan.judge} (rank correlation)"
        yield f"A table of token vectors may learn its training texts by heart, and an index of them flatters it: {shown}."

    def _truncation(self) -> Iterator[str]:
        """Yield a note for each stage that truncated texts, if its token shards exist."""
        for stage, recipe in self.plan.pipeline.recipes.items():
            spec = self.plan.store_spec(recipe)
            manifest = self.plan.store.read_json(self.plan.store_folder(spec) / "manifest.json") or {}
            if cut := sum(part.get("cut", 0) for part in manifest.get("parts", ())):
                yield (
                    f"Stage {stage} cuts {cut:,} of {manifest['rows'] * len(spec.texts):,} texts after {spec.max_length} tokens. "
                    f"--set {stage}.train.max_length=N reads more of them."
                )

    def _fallen(self) -> Iterator[str]:
        """Yield a warning for each stage with models that end below their start on the development set."""
        plan, of_backbone = self.plan, self.plan.evaluations[0].dev_scores("backbone")
        counts: dict[str, int] = Counter()
        fallen: dict[str, list[str]] = {}
        for chain in (*plan.chains, *plan.student_chains):
            for before, step in zip([None, *chain[:-1]], chain, strict=True):
                start, end = self._start(before, step, of_backbone), step.score
                facts = step.training.facts
                stage = f"{plan.dev_name(step.training.recipe.spec.dev)} (stage {facts['stage']})"
                counts[stage] += 1
                if start is not None and end is not None and end < start:
                    number = "" if facts["member"] is None else f" {facts['member']}"
                    words = f"{facts['role']}{number} from {100 * start:.2f} to {100 * end:.2f}"
                    fallen.setdefault(stage, []).append(words)
        for stage in filter(fallen.__contains__, counts):
            yield f"Training made {len(fallen[stage])} of {counts[stage]} worse on {stage}: {', '.join(fallen[stage])}."

    def _start(self, before: Step | None, step: Step, of_backbone: Mapping[Choice, float]) -> float | None:
        """Return the score at a run's start, at its pooling and on its development set, or None."""
        recipe = step.training.recipe
        dev = recipe.spec.dev
        if before is None:
            from_backbone = step.training.facts["parents"][0] == self.plan.backbone_id
            comparable = from_backbone and members_dev(self.plan.pipeline) == dev
            return of_backbone.get((recipe.pooling, str(recipe.layers))) if comparable else None
        earlier = before.training.recipe
        same = (earlier.pooling, earlier.layers, earlier.spec.dev) == (recipe.pooling, recipe.layers, dev)
        return before.score if same else None

    def _tested_on_dev(self) -> Iterator[str]:
        """Yield a warning if the selecting development set holds test rows."""
        if shared := self.plan.dev_overlaps if self.outcome.selected_by else {}:
            overlaps = ", ".join(f"{count:,} of the {rows:,} rows of {name}" for name, (count, rows) in shared.items())
            dev = self.plan.dev_name(members_dev(self.plan.pipeline))
            yield f"Warning: {overlaps} are also in the development set {dev}. Scores on them are not of unseen rows."

    def _below_best(self) -> Iterator[str]:
        """Yield a warning if the ensemble scores below its best member."""
        ensemble = self.scores("member", "ensemble")
        by_member = {member: self.scores("member", member) for member in self.outcome.ensemble}
        scores = {member: of_member for member, of_member in by_member.items() if of_member}
        on = self.common_set(ensemble, next(iter(scores.values()), {}))
        if on is None or len(scores) < 2:
            return
        behind = {m: difference([ensemble], [of_member], [on], 0).value for m, of_member in scores.items()}
        best = min(behind, key=lambda member: behind[member])
        if behind[best] < 0:
            gap = self.difference([ensemble], [scores[best]], [on])
            names, kind = self.plan.teacher_names, "teachers" if self.plan.teacher_names else "members"
            message = gap.describe(f"the best of its {kind}, {names.get(best, best)}")
            yield f"The ensemble is {message} on {_title(on)} test."


def _title(name: str) -> str:
    return TITLES.get(name, name)

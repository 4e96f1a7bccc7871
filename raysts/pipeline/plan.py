"""A pipeline planned into steps: their states, and every id before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from raysts.evaluation.dev import Dev
from raysts.ids import derive_seed
from raysts.models.embedders import open_embedder, short_names
from raysts.models.layers import as_layers
from raysts.pipeline import validate
from raysts.pipeline.inputs import Inputs
from raysts.pipeline.outcome import Candidate, Option, Outcome, decide, members_dev
from raysts.pipeline.step import State, Step, run_id
from raysts.pipeline.steps.agreement import Agreement
from raysts.pipeline.steps.average import average_step
from raysts.pipeline.steps.scores import Role, RoleEvaluation
from raysts.pipeline.steps.train import tokens_step, train_step
from raysts.pipeline.steps.vectors import Teachers
from raysts.recipes.recipe import SOUPS, Recipe, Soup
from raysts.storage.store import run_parallel


@dataclass(kw_only=True, eq=False)
class Plan(Inputs):
    """The steps of a pipeline on a corpus and a storage. Planning starts and writes nothing.

    Attributes:
        without: numbers of the members that failed and take no part in what is made of the members (``min_members``).
    """

    without: frozenset[int] = frozenset()

    @cached_property
    def steps(self) -> list[Step]:
        """Return all steps, each after those that it needs."""
        steps = [*self.making, *[evaluation.step for evaluation in self.evaluations]]
        return list({step.id: step for step in steps}.values())

    @cached_property
    def making(self) -> list[Step]:
        """Return the steps that make models, and what those read, each after those that it needs."""
        steps = [tokens_step(self, spec) for spec in self.specs.values()]
        steps += [step for chain in self.chains for step in chain]
        steps += self.soups.values()
        steps += [self.agreement.step] if self.agreement else []
        steps += self.teacher.steps if self.teacher else []
        steps += [self._student_start] if self._student_start.kind == "average" else []
        return [*steps, *(step for chain in self.student_chains for step in chain)]

    # -- members -----------------------------------------------------------------------------------------------------

    @property
    def backbone_model(self) -> Step:
        """Return what training starts from."""
        return Step(kind="named", id=self.backbone_id, title="backbone", output=self.start)

    @cached_property
    def chains(self) -> list[list[Step]]:
        """Return the training runs of each member in order, none of named members."""
        members = range(self.pipeline.members) if self.pipeline.stages and not self.pipeline.trials else ()
        stages = self.pipeline.stages_of
        chains = [self._chain(stages(number), self.backbone_model, number, member=number) for number in members]
        for number, (trial, recipes) in enumerate(zip(self.pipeline.trials, self.trial_stages, strict=False)):
            chain = self._chain(recipes, self.backbone_model, trial.seed, member=number)
            chains.append([replace(step, title=f"{step.title} ({trial.text})") for step in chain])
        return chains

    def _chain(self, stages: dict[str, Recipe], start: Step, number: int, **identity: Any) -> list[Step]:
        chain: list[Step] = []
        for stage, recipe in stages.items():
            seed = derive_seed(self.pipeline.seed, stage, number)
            chain.append(train_step(self, stage, recipe, seed, chain[-1] if chain else start, **identity))
        return chain

    @cached_property
    def members(self) -> list[Step]:
        """Return the members of the ensemble: the last stage of each, or the named teachers."""
        trained = [chain[-1] for member, chain in enumerate(self.chains) if member not in self.without]
        return trained or self.teacher_models

    @property
    def left_out(self) -> list[dict[str, Any]]:
        """Return the members that failed, each with its reason."""
        records = {member: [step.record for step in self.chains[member]] for member in sorted(self.without)}
        failed = {
            member: [r.get("reason") for r in chain if r.get("status") == State.FAILED]
            for member, chain in records.items()
        }
        return [{"member": member, "reason": next(iter(reasons), None)} for member, reasons in failed.items()]

    @cached_property
    def teacher_models(self) -> list[Step]:
        named = zip(self.pipeline.teachers, self.teacher_folders, strict=True)
        return [Step(kind="named", id=self.contents[path], title=f"model {name}", output=path) for name, path in named]

    @cached_property
    def teacher_names(self) -> dict[str, str]:
        """Return the short name of each teacher that the pipeline names, by its id."""
        names = short_names(self.pipeline.teachers)
        return {model.id: name for model, name in zip(self.teacher_models, names, strict=True)}

    @property
    def names_in_tables(self) -> dict[str, str]:
        """Return what tables call teachers, by the run id in their rows. A run id names a member."""
        names = {run_id(model): self.teacher_names[model.id] for model in self.teacher_models}
        return {run: name for run, name in names.items() if run != name}

    # -- what is made of the members ---------------------------------------------------------------------------------

    @cached_property
    def teacher(self) -> Teachers | None:
        return Teachers(self, self.members) if self.pipeline.sed else None

    @property
    def judge(self) -> str:
        """Return the words for the judge of agreement: the ensemble, or the only teacher."""
        return "the ensemble" if (self.pipeline.select_top or len(self.members)) > 1 else "the teacher"

    @cached_property
    def agreement(self) -> Agreement | None:
        """Return the pairs of held-out texts that judge without labels, or None."""
        return Agreement(self, self.members) if self.uses_agreement and self.members else None

    @property
    def chooser(self) -> Dev | None:
        """Return the development set that chooses, without labels agreement with the ensemble."""
        return super().chooser or (self.agreement.dev if self.agreement else None)

    @cached_property
    def _student_start(self) -> Step:
        if self.pipeline.student_start == "backbone":
            return self.backbone_model
        return average_step(self, "first" if self.pipeline.student_start == "member" else "soup", self.members)

    @cached_property
    def student_chains(self) -> list[list[Step]]:
        """Return per student its distillation, and what is fitted on it. Seeds do not depend on their number."""
        recipe, chains = self.pipeline.sed, []
        if recipe is None:
            return []
        taught: dict[str, Any] = {"teachers": self.teacher, "agreement": self.agreement}
        taught["layers"] = self.pipeline.student_pooling
        for number in range(self.pipeline.students):
            identity: dict[str, Any] = {"member": number if self.pipeline.students > 1 else None, "role": "student"}
            seed = derive_seed(self.pipeline.seed, "sed", number)
            student = train_step(self, "sed", recipe, seed, self._student_start, **taught, **identity)
            chains.append([student, *self._chain(self.pipeline.post, student, number, **identity)])
        return chains

    @cached_property
    def soups(self) -> dict[Soup, Step]:
        """Return the weight average that members are combined to, all where the best is wanted."""
        best = self.pipeline.deliver == "best" and len(self.members) > 1 and not validate.unmergeable(self)
        roles = [role for role in SOUPS if best or role == self.pipeline.combine]
        greedy = not self.uses_agreement or self.pipeline.combine == "greedy-soup"  # it needs labels
        return {role: average_step(self, role, self.members) for role in roles if greedy or role != "greedy-soup"}

    @property
    def outcomes(self) -> list[Step]:
        """Return the last run of each student's chain."""
        return [chain[-1] for chain in self.student_chains]

    @property
    def models(self) -> list[Step]:
        """Return all models that the run makes or combines, the last first."""
        return [*self.outcomes, *self.soups.values(), *self.members]

    @property
    def outcome(self) -> Outcome:
        """Return the outcome, as far as it is on record."""
        done = all(step.state(self.store) == State.DONE for step in self.outcomes)
        students = [Candidate.of(chain[-1].id, chain[0].record) for chain in (self.student_chains if done else [])]
        return decide(
            [Candidate.of(member.id, member.record) for member in self.members],
            students,
            soups={role: Candidate.of(soup.id, soup.record) for role, soup in self.soups.items()},
            combine=self.pipeline.combine,
            select_top=self.pipeline.select_top,
            dev=self.dev_name(members_dev(self.pipeline)),
            options=self._options() if self.pipeline.deliver == "best" else [],
        )

    def _options(self) -> list[Option]:
        """Return the candidates for the best, as they are stored first, or none before all are evaluated."""
        done = all(evaluation.step.state(self.store) == State.DONE for evaluation in self.evaluations)
        options: list[Option] = []
        for evaluation in self.evaluations if done else ():
            models = [(m.id, m.id, open_embedder(m.output).stored_pooling) for m in evaluation.models]
            for model_id, key, stored in models or [(self.backbone_id, "backbone", self.distributed_pooling)]:
                scores = evaluation.dev_scores(key) if stored else {}
                for pooling, text in sorted(scores, key=lambda choice: (choice[0], as_layers(choice[1])) != stored):
                    score = scores[pooling, text]
                    options.append(Option(evaluation.role, model_id, pooling, as_layers(text), score))
        return options

    @cached_property
    def evaluations(self) -> list[RoleEvaluation]:
        """Return the evaluations of backbone, members with their ensemble, averages and students."""
        models_of: dict[Role, Sequence[Step]] = {"backbone": [], "member": self.members}
        models_of |= {role: [soup] for role, soup in self.soups.items()}
        models_of["student"] = self.outcomes
        shared = self.members, self.agreement, self.teacher
        return [RoleEvaluation(self, r, m, *shared) for r, m in models_of.items() if m or r == "backbone"]

    # -- how far it is -----------------------------------------------------------------------------------------------

    def states(self, deep: bool = False) -> dict[str, State]:
        states = run_parallel(lambda step: step.state(self.store, deep), self.steps)
        return {step.id: state for step, state in zip(self.steps, states, strict=True)}

    def rows_on_record(self) -> list[dict[str, Any]]:
        return [row for evaluation in self.evaluations for row in evaluation.rows()]

    def maps(self) -> dict[str, str]:
        """Return by role the vectors of texts for the page's map, as paths in the storage."""
        shown = {*self.outcome.models_of("student"), "ensemble"}
        maps = {e.role: e.map_file(s) for e in self.evaluations for s in e.map_subjects if s.name in shown}
        return {role: str(file.relative_to(self.storage)) for role, file in maps.items()}

    def caches(self, measured: bool) -> list[str]:
        """Return the files beside outputs as paths in the storage, of ensembles too if they are ``measured``."""
        subjects = [subject for e in self.evaluations for subject in e.single]
        subjects += [e.ensemble for e in self.evaluations if measured and e.ensemble]
        files = dict.fromkeys(subject.file for subject in subjects)
        return [*self.written_tables, *(str(file.relative_to(self.storage)) for file in files)]

    def costs(self) -> list[dict[str, Any]]:
        """Return size and speed of the measured models: ``model``, ``role``, and the fields of ``ModelCost``."""
        costs = []
        for evaluation in self.evaluations:
            for model, cost in evaluation.costs().items():
                role = "ensemble" if model == "ensemble" else evaluation.role
                name = self.pipeline.backbone if role == "backbone" else self.teacher_names.get(model, model)
                costs.append({"model": name, "role": role, **cost})
        return costs


def describe(plan: Plan, steps: Sequence[Step] | None = None) -> dict[str, Any]:
    """Return the plan, perhaps with other ``steps``, as ``raysts plan --json`` prints it."""
    notes, layers = plan.reading_notes(), {"layers": list(plan.kept_layers)} if plan.kept_layers is not None else {}
    return {
        "name": plan.pipeline.name,
        "backbone": {"name": plan.pipeline.backbone, "id": plan.backbone_id, **layers},
        **({"text": plan.corpus.text.facts()} if plan.corpus.text else {}),
        **({"notes": notes} if notes else {}),
        "skipped": plan.skipped_files,
        "nodes": run_parallel(lambda step: step.describe(plan.store), plan.steps if steps is None else steps),
    }

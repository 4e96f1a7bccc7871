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
from raysts.pipeline.step import Model, NamedModel, State, Step, candidates
from raysts.pipeline.steps.agreement import Agreement
from raysts.pipeline.steps.average import average_step
from raysts.pipeline.steps.scores import Evaluation, Role
from raysts.pipeline.steps.train import tokens_step, train_step
from raysts.pipeline.steps.vectors import Teachers
from raysts.recipes.recipe import SOUPS, Pipeline, Recipe, Soup
from raysts.storage.store import run_parallel


@dataclass(frozen=True, kw_only=True)
class Plan(Inputs):
    """The steps of a pipeline on a corpus and a storage. Planning starts and writes nothing.

    Attributes:
        without: numbers of the members that failed and take no part in what is made of the members (``min_members``).
    """

    without: frozenset[int] = frozenset()

    @cached_property
    def steps(self) -> list[Step]:
        """Return all steps, each after those that it needs."""
        return list(
            {step.id: step for step in [*self.making, *(evaluation.step for evaluation in self.evaluations)]}.values()
        )

    @cached_property
    def making(self) -> list[Step]:
        """Return the steps that make models, and what those read, each after those that it needs."""
        steps = [tokens_step(self, spec) for spec in self.specs.values()]
        steps += [step for chain in self.chains for step in chain]
        steps += self.soups.values()
        steps += [self.agreement.step] if self.agreement else []
        steps += self.teacher.steps if self.teacher else []
        steps += [self._student_start] if isinstance(self._student_start, Step) else []
        return [*steps, *(step for chain in self.student_chains for step in chain)]

    def at(self, pipeline: Pipeline) -> Plan:
        """Return the plan of another pipeline with the same data and storage."""
        return replace(self, pipeline=pipeline)

    # -- members -----------------------------------------------------------------------------------------------------

    @property
    def backbone_model(self) -> NamedModel:
        """Return what training starts from."""
        return NamedModel(id=self.backbone_id, title="backbone", model=self.start)

    @cached_property
    def chains(self) -> list[list[Step]]:
        """Return the training runs of each member in order, none of named members."""
        members = range(self.pipeline.members) if self.pipeline.stages else ()
        stages = self.pipeline.stages_of
        return [self._chain(stages(number), self.backbone_model, number, member=number) for number in members]

    def _chain(self, stages: dict[str, Recipe], start: Model, number: int, **identity: Any) -> list[Step]:
        chain: list[Step] = []
        for stage, recipe in stages.items():
            seed = derive_seed(self.pipeline.seed, stage, number)
            parent = chain[-1] if chain else start
            chain.append(train_step(self, stage, recipe, seed, parent, **identity))
        return chain

    @cached_property
    def members(self) -> list[Model]:
        """Return the members of the ensemble: the last stage of each, or the named teachers."""
        trained = [chain[-1] for member, chain in enumerate(self.chains) if member not in self.without]
        return [*trained] or [*self.teacher_models]

    @property
    def left_out(self) -> list[dict[str, Any]]:
        """Return the members that failed, each with its reason."""
        left_out = []
        for member in sorted(self.without):
            records = [step.record for step in self.chains[member]]
            reasons = [record.get("reason") for record in records if record.get("status") == "failed"]
            left_out.append({"member": member, "reason": next(iter(reasons), None)})
        return left_out

    @cached_property
    def teacher_models(self) -> list[NamedModel]:
        """Return the models that the pipeline names as teachers."""
        named = zip(self.pipeline.teachers, self.teacher_folders, strict=True)
        return [NamedModel(id=self.contents[folder], title=f"model {name}", model=folder) for name, folder in named]

    @cached_property
    def teacher_names(self) -> dict[str, str]:
        """Return what tables call the teachers that were not trained here, by the run id in their rows."""
        foreign = [number for number, model in enumerate(self.teacher_models) if not model.record]
        names = short_names([self.pipeline.teachers[number] for number in foreign])
        return {self.teacher_models[number].id: name for number, name in zip(foreign, names, strict=True)}

    # -- what is made of the members ---------------------------------------------------------------------------------

    @cached_property
    def teacher(self) -> Teachers | None:
        """Return the teachers of the distillation, if the pipeline has one."""
        if self.pipeline.sed is None:
            return None
        return Teachers(inputs=self, recipe=self.pipeline.sed, members=tuple(self.members))

    @property
    def judge(self) -> str:
        """Return the words for the judge of agreement: the ensemble, or the only teacher."""
        return "the ensemble" if (self.pipeline.select_top or len(self.members)) > 1 else "the teacher"

    @cached_property
    def agreement(self) -> Agreement | None:
        """Return the pairs of held-out texts that judge without labels, or None."""
        return Agreement(inputs=self, members=tuple(self.members)) if self.by_agreement and self.members else None

    @property
    def chooser(self) -> Dev | None:
        """Return the development set that chooses, without labels agreement with the ensemble."""
        return super().chooser or (self.agreement.dev if self.agreement else None)

    @cached_property
    def _student_start(self) -> Model:
        """Return what students start from."""
        if self.pipeline.student_start == "backbone":
            return self.backbone_model
        return average_step(self, "first" if self.pipeline.student_start == "member" else "soup", self.members)

    @cached_property
    def student_chains(self) -> list[list[Step]]:
        """Return per student its distillation, and what is fitted on it.

        The seed of one does not depend on their number.
        """
        recipe = self.pipeline.sed
        if recipe is None or self.teacher is None:
            return []
        chains = []
        for number in range(self.pipeline.students):
            identity: dict[str, Any] = {"member": number if self.pipeline.students > 1 else None, "role": "student"}
            seed = derive_seed(self.pipeline.seed, "sed", number)
            student = train_step(
                self,
                "sed",
                recipe,
                seed,
                self._student_start,
                teachers=self.teacher,
                agreement=self.agreement,
                layers=self.pipeline.student_pooling,
                **identity,
            )
            chains.append([student, *self._chain(self.pipeline.post, student, number, **identity)])
        return chains

    @cached_property
    def soups(self) -> dict[Soup, Step]:
        """Return the weight average that members are combined to, all where the best is wanted."""
        best = self.pipeline.deliver == "best" and len(self.members) > 1 and not validate.unmergeable(self)
        roles = [role for role in SOUPS if best or role == self.pipeline.combine]
        greedy = not self.by_agreement or self.pipeline.combine == "greedy-soup"  # it needs labels
        return {role: average_step(self, role, self.members) for role in roles if greedy or role != "greedy-soup"}

    @property
    def outcomes(self) -> list[Step]:
        """Return the runs that come out of a distillation: the students, or what is fitted on them."""
        return [chain[-1] for chain in self.student_chains]

    @property
    def models(self) -> list[Model]:
        """Return all models that the run makes or combines, the last first."""
        return [*self.outcomes, *self.soups.values(), *self.members]

    @property
    def outcome(self) -> Outcome:
        """Return the outcome, as far as it is on record."""
        done = all(step.state(self.store) == "done" for step in self.outcomes)
        students = [Candidate.of(chain[-1].id, chain[0].record) for chain in (self.student_chains if done else [])]
        return decide(
            candidates(self.members),
            students,
            soups={role: Candidate.of(soup.id, soup.record) for role, soup in self.soups.items()},
            combine=self.pipeline.combine,
            select_top=self.pipeline.select_top,
            dev=self.dev_name(members_dev(self.pipeline)),
            options=self._options() if self.pipeline.deliver == "best" else [],
        )

    def _options(self) -> list[Option]:
        """Return the candidates for the best, none before everything is evaluated.

        The smallest step away from the backbone comes first, a model as it is stored before its other poolings.
        """
        done = all(evaluation.step.state(self.store) == "done" for evaluation in self.evaluations)
        options: list[Option] = []
        for evaluation in self.evaluations if done else ():
            models = [(evaluation.role, m.id, m.id, open_embedder(m.model).stored_pooling) for m in evaluation.models]
            if not evaluation.models:
                models = [("backbone", self.backbone_id, "backbone", self.distributed)]
            for role, model_id, key, stored in models:
                scores = evaluation.dev_scores(key) if stored else {}
                for pooling, layers in sorted(scores, key=lambda choice: (choice[0], as_layers(choice[1])) != stored):
                    option = Option(
                        what=role, id=model_id, pooling=pooling, layers=as_layers(layers), score=scores[pooling, layers]
                    )
                    options.append(option)
        return options

    @cached_property
    def evaluations(self) -> list[Evaluation]:
        """Return the evaluations of backbone, members with their ensemble, averages and students."""
        models: dict[Role, Sequence[Model]] = {"backbone": [], "member": self.members}
        models |= {role: [soup] for role, soup in self.soups.items()}
        models["student"] = self.outcomes
        return [
            Evaluation(
                inputs=self,
                role=role,
                models=tuple(of_role),
                members=tuple(self.members),
                agreement=self.agreement,
                teachers=self.teacher if role == "member" else None,
            )
            for role, of_role in models.items()
            if of_role or role == "backbone"
        ]

    # -- how far it is -----------------------------------------------------------------------------------------------

    def states(self, deep: bool = False) -> dict[str, State]:
        """Return the state of each step by its id, as the storage is now."""
        states = run_parallel(lambda step: step.state(self.store, deep), self.steps)
        return {step.id: state for step, state in zip(self.steps, states, strict=True)}

    def rows_on_record(self) -> list[dict[str, Any]]:
        """Return the results rows that the steps have written."""
        return [row for evaluation in self.evaluations for row in evaluation.rows()]

    def costs(self) -> list[dict[str, Any]]:
        """Return size and speed of the measured models: ``model``, ``role``, and the fields of ``ModelCost``."""
        costs: dict[tuple[str, str], dict[str, Any]] = {}
        for evaluation in self.evaluations:
            for model, cost in evaluation.costs().items():
                role = "ensemble" if model == "ensemble" else evaluation.role
                name = self.pipeline.backbone if role == "backbone" else self.teacher_names.get(model, model)
                costs[role, model] = {"model": name, "role": role, **cost}
        return [*costs.values()]

    def check(self) -> None:
        """Raise one InputError with everything that would stop the run later."""
        validate.check(self)
        self.steps  # noqa: B018 (their ids read the tokenizers of teachers, which may be broken)


def describe(plan: Plan, steps: Sequence[Step] | None = None) -> dict[str, Any]:
    """Return the plan, perhaps with other ``steps``, as ``raysts plan --json`` prints it."""
    described, notes = plan.steps if steps is None else steps, plan.reading_notes()
    return {
        "name": plan.pipeline.name,
        "backbone": {
            "name": plan.pipeline.backbone,
            "id": plan.backbone_id,
            **({"layers": list(plan.kept_layers)} if plan.kept_layers is not None else {}),
        },
        **({"text": plan.corpus.text.facts()} if plan.corpus.text else {}),
        **({"notes": notes} if notes else {}),
        "skipped": plan.skipped,
        "nodes": run_parallel(lambda step: step.describe(plan.store), described),
    }

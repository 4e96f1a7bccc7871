"""A Pipeline planned into nodes: what is done, what is left, and every id known before anything runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from raysts.evaluation.dev import Dev
from raysts.ids import content_id, derive_seed
from raysts.models import pretrained
from raysts.models.layers import as_layers
from raysts.models.modules import pooled_by
from raysts.pipeline import teachers, validate
from raysts.pipeline.inputs import Inputs
from raysts.pipeline.nodes.agreement import AgreementNode
from raysts.pipeline.nodes.evaluate import EvaluateNode, Role
from raysts.pipeline.nodes.model import Model, ModelNode, candidates, selected
from raysts.pipeline.nodes.node import Node
from raysts.pipeline.nodes.soup import SoupNode
from raysts.pipeline.nodes.teacher import TeacherNode
from raysts.pipeline.nodes.tokenize import TokenizeNode
from raysts.pipeline.nodes.train import TrainNode
from raysts.pipeline.outcome import Candidate, Option, Outcome, decide, members_dev
from raysts.recipes.recipe import SOUPS
from raysts.storage.store import Store, at_once


@dataclass(frozen=True, kw_only=True)
class Plan(Inputs):
    """The nodes of a pipeline on a corpus and a storage folder. Making one starts nothing and writes nothing.

    Attributes:
        without: numbers of members that failed and are left out of what is made of the members (``min_members``).
    """

    without: frozenset[int] = frozenset()

    @cached_property
    def token_nodes(self) -> list[TokenizeNode]:
        return [TokenizeNode.of(self, spec) for spec in self.specs.values()]

    @cached_property
    def chains(self) -> list[list[TrainNode]]:
        return [self._chain(member) for member in range(self.pipeline.members)] if self.pipeline.stages else []

    def _chain(self, member: int) -> list[TrainNode]:
        chain: list[TrainNode] = []
        for stage, recipe in self.pipeline.stages_of(member).items():
            seed = derive_seed(self.pipeline.seed, stage, member)
            after = [chain[-1].id] if chain else []
            parent = (chain[-1].model, chain[-1].id) if chain else (self.start, self.backbone_id)
            chain.append(TrainNode.of(self, stage, recipe, seed, parent, member=member, after=after))
        return chain

    @cached_property
    def members(self) -> list[Model]:
        """What the ensemble is made of: the last stage of every member, or the models named as teachers."""
        trained = [chain[-1] for member, chain in enumerate(self.chains) if member not in self.without]
        return [*trained] or [*self.teacher_models]

    @property
    def left_out(self) -> list[dict[str, Any]]:
        left_out = []
        for member in sorted(self.without):
            records = [node.record for node in self.chains[member]]
            reasons = [record.get("reason") for record in records if record.get("status") == "failed"]
            left_out.append({"member": member, "reason": next(iter(reasons), None)})
        return left_out

    @cached_property
    def teacher_models(self) -> list[ModelNode]:
        named = zip(self.pipeline.teachers, self.teacher_folders, strict=True)
        return [ModelNode.of(self, name, folder) for name, folder in named]

    @cached_property
    def teacher_names(self) -> dict[str, str]:
        """What tables call the teachers that were not trained here, by the run id in their rows."""
        foreign = [number for number, model in enumerate(self.teacher_models) if not model.record]
        names = teachers.short_names([self.pipeline.teachers[number] for number in foreign])
        return {self.teacher_models[number].id: name for number, name in zip(foreign, names, strict=True)}

    @cached_property
    def teacher(self) -> TeacherNode | None:
        return TeacherNode.of(self, self.pipeline.sed, self.members) if self.pipeline.sed else None

    @cached_property
    def agreement(self) -> AgreementNode | None:
        return AgreementNode.of(self, self.members) if self.by_agreement and self.members else None

    @property
    def chooser(self) -> Dev | None:
        """As :attr:`Inputs.chooser`; without labels agreement with the ensemble."""
        return super().chooser or (self.agreement.dev if self.agreement else None)

    @cached_property
    def student_chains(self) -> list[list[TrainNode]]:
        """Per student its distillation, and what is fitted on it. The seed of one does not depend on their number."""
        recipe, teacher = self.pipeline.sed, self.teacher
        if recipe is None or teacher is None:
            return []
        chains = []
        for number in range(self.pipeline.students):
            who: dict[str, Any] = {"member": number if self.pipeline.students > 1 else None, "role": "student"}
            chain = [
                TrainNode.of(
                    self,
                    "sed",
                    recipe,
                    derive_seed(self.pipeline.seed, "sed", number),
                    self._student_parent(teacher),
                    teacher=teacher,
                    agreement=self.agreement,
                    layers=self.pipeline.student_pooling,
                    after=[teacher.id],
                    before=self._write_student_start,
                    **who,
                )
            ]
            for stage, fitted in self.pipeline.post.items():
                seed, parent = derive_seed(self.pipeline.seed, stage, number), (chain[-1].model, chain[-1].id)
                chain.append(TrainNode.of(self, stage, fitted, seed, parent, after=[chain[-1].id], **who))
            chains.append(chain)
        return chains

    def _student_parent(self, teacher: TeacherNode) -> tuple[Path, str]:
        start = self.pipeline.student_start
        if start == "backbone":
            return self.start, self.backbone_id
        start_id = content_id([start, teacher.id])
        return self.storage / "backbones" / f"{start}-{start_id}", start_id

    def _write_student_start(self, store: Store) -> None:
        """Write what the students start from, where that depends on which members were selected."""
        start, teacher = self.pipeline.student_start, self.teacher
        assert teacher is not None
        folder, _ = self._student_parent(teacher)
        if start == "backbone" or store.get_dir(folder, fresh=True):
            return
        models = [member.model for member in selected(self.members, self.pipeline.select_top)]
        with store.put_dir(folder) as draft:
            pretrained.average(models[:1] if start == "member" else models).save(draft)

    @cached_property
    def soups(self) -> list[SoupNode]:
        """The weight averages of the members: the one that they are combined to, all where the best of all is wanted."""
        best = self.pipeline.deliver == "best" and len(self.members) > 1 and not validate.unmergeable(self)
        roles = [role for role in SOUPS if best or role == self.pipeline.combine]
        greedy = not self.by_agreement or self.pipeline.combine == "greedy-soup"  # it needs labels
        return [SoupNode.of(self, role, self.members) for role in roles if greedy or role != "greedy-soup"]

    @property
    def outcomes(self) -> list[TrainNode]:
        """The runs that come out of a distillation: the students, or what is fitted on them."""
        return [chain[-1] for chain in self.student_chains]

    @property
    def models(self) -> list[Model]:
        return [*self.outcomes, *self.soups, *self.members]

    @property
    def outcome(self) -> Outcome:
        done = all(node.is_done(self.store) for node in self.outcomes)
        students = [Candidate.of(chain[-1].id, chain[0].record) for chain in (self.student_chains if done else [])]
        records = {soup.role: (soup.id, soup.record) for soup in self.soups}
        return decide(
            candidates(self.members),
            students,
            soups={role: Candidate.of(*known) for role, known in records.items()},
            combine=self.pipeline.combine,
            select_top=self.pipeline.select_top,
            dev=self.dev_name(members_dev(self.pipeline)),
            options=self._options(),
        )

    def _options(self) -> list[Option]:
        """What the best is chosen among, the smallest step away from the backbone first, a model as it is stored before its
        other poolings; none before everything is evaluated."""
        if self.pipeline.deliver != "best" or not all(node.is_done(self.store) for node in self.evaluations):
            return []
        found = []
        for evaluation in self.evaluations:
            models = [("backbone", self.backbone_id, "backbone", self.distributed)]
            if evaluation.models:
                encoders = [m for m in evaluation.models if teachers.kind(m.model) == "encoder"]
                models = [(evaluation.role, m.id, m.id, pooled_by(m.model)) for m in encoders]
            for what, model_id, kept, stored in models:
                options = [
                    Option(what=what, id=model_id, pooling=pooling, layers=as_layers(layers), score=score)
                    for (pooling, layers), score in evaluation.row_scores(kept)[1].items()
                ]
                as_stored = [option for option in options if (option.pooling, option.layers) == stored]
                found += [*as_stored, *(option for option in options if option not in as_stored)]
        return found

    @cached_property
    def evaluations(self) -> list[EvaluateNode]:
        """Evaluation of the backbone, of the members with their ensemble, of weight averages, and of the students."""
        by_role: list[tuple[Role, Sequence[Model]]] = [("backbone", [])]
        by_role += [("member", self.members)] if self.members else []
        by_role += [(soup.role, [soup]) for soup in self.soups]
        by_role += [("student", self.outcomes)] if self.outcomes else []
        return [
            EvaluateNode.of(
                self, role, models, self.members, self.agreement, self.teacher if role == "member" else None
            )
            for role, models in by_role
        ]

    @cached_property
    def nodes(self) -> list[Node]:
        trained = [node for chain in self.chains for node in chain]
        teacher = [self.teacher] if self.teacher is not None else []
        students = [node for chain in self.student_chains for node in chain]
        judged = [*self.soups, *([self.agreement] if self.agreement else [])]
        return [*self.token_nodes, *self.teacher_models, *trained, *judged, *teacher, *students, *self.evaluations]

    def statuses(self) -> dict[str, str]:
        """By the id of each node whether it is ``done``, ``failed`` or ``waiting`` in the storage, as that is now."""
        found = at_once(lambda node: node.status(self.store), self.nodes)
        return {node.id: status for node, status in zip(self.nodes, found, strict=True)}

    def rows_on_record(self) -> list[dict[str, Any]]:
        return [row for node in self.evaluations for row in node.rows()]

    def check(self) -> None:
        validate.check(self)


def describe(plan: Plan, nodes: Sequence[Node] | None = None) -> dict[str, Any]:
    """The plan as plain data: what ``raysts plan --json`` prints; ``nodes``: other ones than the plan's."""
    described = plan.nodes if nodes is None else nodes
    return {
        "name": plan.pipeline.name,
        "backbone": {"name": plan.pipeline.backbone, "id": plan.backbone_id},
        **({"text": plan.corpus.text.facts()} if plan.corpus.text else {}),
        "skipped": plan.skipped,
        "nodes": at_once(lambda node: node.describe(plan.store), described),
    }

"""Training: one stage of one member or student is a run with a folder of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from raysts.data.derived import TARGETS
from raysts.errors import RunFailed
from raysts.evaluation.agreement import AgreementPairs
from raysts.ids import content_id
from raysts.models.layers import Layers
from raysts.pipeline.inputs import Inputs
from raysts.pipeline.local import Executor, Say
from raysts.pipeline.nodes.agreement import AgreementNode
from raysts.pipeline.nodes.model import RunNode
from raysts.pipeline.nodes.teacher import TeacherNode
from raysts.recipes.recipe import Recipe, Resources
from raysts.recipes.tree import to_plain
from raysts.storage.store import Store
from raysts.training.job import Job


@dataclass(frozen=True, kw_only=True)
class TrainNode(RunNode):
    """A training run. ``before``: writes what it starts from, where that is not what another node writes."""

    kind: ClassVar[str] = "train"
    together: ClassVar[bool] = True
    job: Job
    asked: Resources
    before: Callable[[Store], None] | None = None

    @classmethod
    def of(
        cls,
        inputs: Inputs,
        stage: str,
        recipe: Recipe,
        seed: int,
        parent: tuple[Path, str],
        *,
        member: int | None,
        role: str = "member",
        teacher: TeacherNode | None = None,
        agreement: AgreementNode | None = None,
        layers: Layers | None = None,
        after: Sequence[str] = (),
        before: Callable[[Store], None] | None = None,
    ) -> TrainNode:
        """The training run of a recipe.

        Args:
            parent: model folder and id of what it starts from.
            member: number of the member or student; None where there is one alone.
            teacher: what is learnt from, for distillation.
            agreement: what selects where the objective's development set is not there.
            layers: layers that the written model pools; default: those it is trained with.
            after: ids of the nodes that must be done before, beside its token store.
        """
        layers = recipe.layers if layers is None else layers
        recipe = inputs.resolved(recipe)
        spec, corpus = inputs.store_spec(recipe), inputs.corpus
        selecting = recipe.by_dev or recipe.train.patience is not None
        dev = inputs.dev(recipe.spec.dev)
        if dev is None and agreement is not None:
            dev, after = agreement.dev, (*after, agreement.id)
        run_id = content_id(
            [
                to_plain(recipe),
                recipe.spec.version,
                seed,
                parent[1],
                spec.id,
                teacher.id if teacher else None,
                layers,
                (dev.sha256 if isinstance(dev, AgreementPairs) else corpus.fingerprint(recipe.spec.dev))
                if selecting
                else None,
                *([length] if (length := inputs.pipeline.max_seq_length) is not None else []),
            ]
        )
        facts = {
            **inputs.facts(stage, role, member, [parent[1], *([teacher.id] if teacher else [])]),
            "data": {
                "table": spec.table,
                **({"name": name} if (name := inputs.own_title(spec.table)) else {}),
                "sha256": spec.fingerprint,
                "rows": inputs.rows(recipe),
                "skipped": corpus.skipped([spec.table]),
            },
            "transductive": recipe.table == TARGETS,
        }
        asked = inputs.pipeline.resources
        return cls(
            id=run_id,
            title=stage if member is None else f"{role} {member}: {stage}",
            needs=(*after, spec.id),
            resources={
                "workers": asked.workers,
                "cpus": asked.cpus,
                "gpus": asked.gpus,
                "memory": asked.memory or inputs.worker_gigabytes,
            },
            sentences=inputs.steps(recipe) * recipe.batch * recipe.spec.sentences,
            asked=asked,
            before=before,
            job=Job(
                id=run_id,
                recipe=recipe,
                seed=seed,
                folder=inputs.storage / "runs" / run_id,
                parent=parent[0],
                content=inputs.contents.get(parent[0]),
                store=inputs.store_folder(spec),
                prompt=spec.prompt,
                teacher=teacher.folder if teacher else None,
                to_target=teacher.to_target if teacher else None,
                export_layers=layers,
                max_length=length,
                dev=dev,
                facts=facts,
            ),
        )

    @property
    def folder(self) -> Path:
        return self.job.folder

    def status(self, store: Store) -> str:
        status = self.record.get("status", "")
        return status if status == "failed" or (status == "done" and self.is_sound(store)) else "waiting"

    def leftovers(self) -> list[Path]:
        return [self.job.folder / "checkpoints"]

    def is_done(self, store: Store) -> bool:
        return self.status(store) == "done"

    def run(self, executor: Executor, store: Store, say: Say) -> None:
        if failures := self.run_all([self], executor, store, say):
            raise RunFailed(failures[0])

    @classmethod
    def run_all(cls, nodes: Sequence[TrainNode], executor: Executor, store: Store, say: Say) -> list[str]:
        for node in nodes:
            if node.before is not None:
                node.before(store)
        chains: dict[str, list[TrainNode]] = {}  # by the id of their last run
        for node in nodes:
            chain = next((chains.pop(need) for need in node.needs if need in chains), [])
            chains[node.id] = [*chain, node]
        jobs = [[node.job for node in chain] for chain in chains.values()]
        return [reason for reason in executor.train(jobs, nodes[0].asked, say) if reason is not None]

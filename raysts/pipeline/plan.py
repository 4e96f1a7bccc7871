"""A Pipeline planned into nodes: what is done, what is left, and every id known before anything runs.

A node reads files and writes files; its id is a hash of what goes in. Nodes of kind ``tokens`` (tokenise a table once),
``train`` (one stage of one member, or the student), ``teacher`` (mean embeddings of the ensemble) and ``evaluate``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from raysts.data.batches import BatchOrder
from raysts.data.corpora import Corpus
from raysts.data.derived import TARGETS, source_of
from raysts.data.windows import WINDOW, Group, StoreSpec, select
from raysts.data.world.generate import WORLD_VERSION, write_tiny_backbone
from raysts.errors import InputError
from raysts.evaluation import harness, results
from raysts.evaluation.dev import DEVS, Dev
from raysts.ids import content_id, derive_seed, folder_id
from raysts.models.layers import Layers
from raysts.models.pretrained import find, tokenizer_id
from raysts.models.static import is_static
from raysts.objectives import OBJECTIVES
from raysts.pipeline import validate as checks
from raysts.pipeline.outcome import Candidate, Outcome, decide, dev_of, top
from raysts.pipeline.validate import DEV_TABLE, TINY
from raysts.recipes.recipe import Pipeline, Recipe
from raysts.recipes.tree import to_plain
from raysts.storage.atomic import aside, read_json
from raysts.storage.manifests import need_folder, push_folder
from raysts.storage.store import place_of
from raysts.training.job import Job, total_steps

OTHER_FORMATS = ("onnx", "openvino", "coreml", "*.onnx", "*.h5", "*.msgpack", "*.ot")
"""What a model directory may hold that raysts does not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One unit of work.

    Attributes:
        id: hash of what goes in.
        kind: ``tokens``, ``train``, ``model`` (one that is there), ``teacher`` or ``evaluate``.
        title: what people call it.
        needs: ids of the nodes before it.
        resources: workers, cpus, gpus.
        sentences: sentences it sends through encoders (tokenises, for ``tokens``).
        marker: the file whose presence says that it is done.
        job: the training run of a ``train`` node.
    """

    id: str
    kind: str
    title: str
    needs: tuple[str, ...]
    resources: dict[str, float | None]
    sentences: int
    marker: Path
    job: Job | None = None

    @property
    def status(self) -> str:
        """``done``, ``failed`` or ``waiting``."""
        if self.kind == "train":
            return {"done": "done", "failed": "failed"}.get(self.record.get("status", ""), "waiting")
        return "done" if self.marker.exists() else "waiting"

    @property
    def record(self) -> dict[str, Any]:
        """The run record behind a ``train`` or ``model`` node; empty where there is none."""
        folder = self.marker.parent
        return read_json((folder if self.kind == "train" else folder.parent) / "run.json") or {}

    @property
    def model(self) -> Path:
        """Model folder of a ``train`` or ``model`` node."""
        return self.marker.parent / "model" if self.kind == "train" else self.marker.parent


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The nodes of a pipeline on a corpus and a storage folder. Making one starts nothing and writes nothing.

    Attributes:
        pipeline: the pipeline.
        corpus: the data.
        storage: storage folder.
        locate: folder of a backbone named in the recipe (resolves run ids).
        without: numbers of members that failed and are left out of what is made of the members (``min_members``).
    """

    pipeline: Pipeline
    corpus: Corpus
    storage: Path
    locate: Callable[[str], Path] = field(default=find)
    without: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "corpus", self.corpus.writing_to(self.storage / "tables"))
        if self._of_word_vectors:  # they have one layer
            evaluation = replace(self.pipeline.evaluation, layers=(1,), compare=1)
            object.__setattr__(self, "pipeline", replace(self.pipeline, evaluation=evaluation))

    # -- what goes in ------------------------------------------------------------------------------------------------

    @cached_property
    def backbone(self) -> Path:
        """Folder of the backbone; that of ``tiny`` is written when the pipeline runs."""
        if self.pipeline.backbone == TINY:
            return self.storage / "backbones" / f"tiny-{self.backbone_id}"
        return self.locate(self.pipeline.backbone).absolute()

    @property
    def start(self) -> Path:
        """Folder of the backbone as nodes read it: one from elsewhere is copied into an object store."""
        if place_of(self.storage) is None or self.backbone.is_relative_to(self.storage):
            return self.backbone
        return self.storage / "backbones" / f"copy-{self.backbone_id}"

    @property
    def _of_word_vectors(self) -> bool:
        try:
            return self.pipeline.backbone != TINY and is_static(self.backbone)
        except InputError:  # ``check`` says so, with whatever else is wrong
            return False

    @cached_property
    def backbone_id(self) -> str:
        """Content id of the backbone."""
        if self.pipeline.backbone == TINY:
            return content_id([TINY, WORLD_VERSION, self._tiny_seed])
        return folder_id(self.backbone)

    @property
    def _tiny_seed(self) -> int:
        return derive_seed(self.pipeline.seed, "backbone")

    @cached_property
    def tokenizer_id(self) -> str:
        """Content id of the tokenizer."""
        if self.pipeline.backbone == TINY:
            return content_id([TINY, WORLD_VERSION])
        return tokenizer_id(self.backbone)

    def write_backbone(self) -> None:
        """Write the tiny backbone, if that is what the pipeline starts from and it is not there, or the copy of another."""
        need_folder(self.start)
        if not self.start.is_dir() and self.pipeline.backbone == TINY:
            write_tiny_backbone(self.start, self._tiny_seed)
        elif not self.start.is_dir():
            with aside(self.start) as draft:
                shutil.copytree(self.backbone, draft, ignore=shutil.ignore_patterns(*OTHER_FORMATS))
        if self.start.parent == self.storage / "backbones":
            push_folder(self.start)

    @cached_property
    def _devs(self) -> dict[str, Dev]:
        return {}

    def dev(self, recipe: Recipe) -> Dev | None:
        """The development set that selects for a recipe; none when the corpus has no such table."""
        table = OBJECTIVES[recipe.objective].dev
        if table not in self._devs and self.corpus.files(table):
            self._devs[table] = DEVS[table].load(self.corpus, table)
        return self._devs.get(table)

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        """Tasks that are evaluated: those named, else all that have files and do not take minutes a model."""
        return self.pipeline.evaluation.tasks or harness.default_tasks(self.corpus, heavy=False)

    @property
    def skipped(self) -> list[dict[str, Any]]:
        """The files of its training tables that cannot be read and are left out (``skip_bad`` of the corpus)."""
        return self.corpus.skipped(recipe.table for recipe in self.pipeline.recipes.values())

    # -- token stores ------------------------------------------------------------------------------------------------

    def resolved(self, recipe: Recipe) -> Recipe:
        """The recipe with its test sentences named: those of the evaluated tasks, unless it says which."""
        if recipe.table != TARGETS or recipe.data.sources:
            return recipe
        there = self.corpus.sources(TARGETS)
        tables = [table for task in self.tasks for table in harness.TASKS[task].tables(self.corpus, harness.SPLITS)]
        sources = tuple(dict.fromkeys(source_of(table) for table in tables if table in there))
        return replace(recipe, data=replace(recipe.data, sources=sources))

    def store_spec(self, recipe: Recipe) -> StoreSpec:
        """The token store that a recipe trains on."""
        recipe = self.resolved(recipe)
        kind = OBJECTIVES[recipe.objective]
        return StoreSpec(
            table=recipe.table,
            fingerprint=self.corpus.fingerprint(recipe.table),
            texts=kind.texts,
            values=tuple(name for name in kind.values if name != "teacher"),
            tokenizer=self.tokenizer_id,
            max_length=recipe.train.max_length,
            data=recipe.data,
        )

    def store_folder(self, spec: StoreSpec) -> Path:
        """Folder of a token store."""
        return self.storage / "tokens" / spec.id

    @cached_property
    def _groups(self) -> dict[str, list[Group]]:
        return {}

    def groups(self, spec: StoreSpec) -> list[Group]:
        """The rows of a token store by Parquet row group."""
        if spec.id not in self._groups:
            self._groups[spec.id] = select(self.corpus, spec.table, spec.data)
        return self._groups[spec.id]

    def _sizes(self, spec: StoreSpec) -> np.ndarray:
        return np.array(
            [min(WINDOW, group.size - first) for group in self.groups(spec) for first in range(0, group.size, WINDOW)]
        )

    def rows(self, recipe: Recipe) -> int:
        """Rows that a recipe trains on."""
        return sum(group.size for group in self.groups(self.store_spec(recipe)))

    def steps(self, recipe: Recipe) -> int:
        """Optimiser steps of a recipe on this corpus."""
        return total_steps(
            recipe,
            BatchOrder(
                self._sizes(self.store_spec(recipe)),
                OBJECTIVES[recipe.objective].variant(recipe.settings),
                recipe.batch,
                0,
                recipe.train.drop_last,
            ),
        )

    # -- nodes -------------------------------------------------------------------------------------------------------

    @cached_property
    def specs(self) -> dict[str, StoreSpec]:
        """Token stores by id."""
        return {spec.id: spec for spec in map(self.store_spec, self.pipeline.recipes.values())}

    @cached_property
    def token_nodes(self) -> list[Node]:
        """One node per token store."""
        return [
            Node(
                id=spec.id,
                kind="tokens",
                title=f"tokenise {spec.table}",
                needs=(),
                resources={"workers": 1, "cpus": 1, "gpus": 0},
                sentences=sum(group.size for group in self.groups(spec)) * len(spec.texts),
                marker=self.store_folder(spec) / "manifest.json",
            )
            for spec in self.specs.values()
        ]

    @cached_property
    def chains(self) -> list[list[Node]]:
        """Per member its training stages in order."""
        return [self._chain(member) for member in range(self.pipeline.members)] if self.pipeline.stages else []

    def _chain(self, member: int) -> list[Node]:
        nodes: list[Node] = []
        parent, parent_id = self.start, self.backbone_id
        for stage, recipe in self.pipeline.stages.items():
            seed = derive_seed(self.pipeline.seed, stage, member)
            node = self._train_node(
                stage, recipe, seed, parent, parent_id, member=member, role="member", layers=recipe.layers
            )
            node_needs = (nodes[-1].id,) if nodes else ()
            nodes.append(_with_needs(node, (*node_needs, self.store_spec(recipe).id)))
            parent, parent_id = node.model, node.id
        return nodes

    def _train_node(
        self,
        stage: str,
        recipe: Recipe,
        seed: int,
        parent: Path,
        parent_id: str,
        *,
        member: int | None,
        role: str,
        teacher: str | None = None,
        layers: Layers,
    ) -> Node:
        recipe = self.resolved(recipe)
        spec, kind = self.store_spec(recipe), OBJECTIVES[recipe.objective]
        selecting = recipe.by_dev or recipe.train.patience is not None
        run_id = content_id(
            [
                to_plain(recipe),
                kind.version,
                seed,
                parent_id,
                spec.id,
                teacher,
                layers,
                self.corpus.fingerprint(kind.dev) if selecting else None,
            ]
        )
        steps = self.steps(recipe)
        folder, named = self.storage / "runs" / run_id, Path(self.pipeline.backbone)
        facts = {
            "system": self.pipeline.name,
            "stage": stage,
            "role": role,
            "member": member,
            "root_seed": self.pipeline.seed,
            "parents": [parent_id, *([teacher] if teacher else [])],
            "backbone": str(self.backbone if named.is_dir() else named.absolute() if named.is_file() else named),
            "backbone_id": self.backbone_id,
            "data": {
                "table": spec.table,
                "sha256": spec.fingerprint,
                "rows": self.rows(recipe),
                "skipped": self.corpus.skipped([spec.table]),
            },
            "transductive": recipe.table == TARGETS,
        }
        job = Job(
            id=run_id,
            recipe=recipe,
            seed=seed,
            folder=folder,
            parent=parent,
            store=self.store_folder(spec),
            teacher=self.storage / "embeddings" / teacher if teacher else None,
            export_layers=layers,
            dev=self.dev(recipe),
            facts=facts,
        )
        resources = self.pipeline.resources
        return Node(
            id=run_id,
            kind="train",
            title=stage if member is None else f"{role} {member}: {stage}",
            needs=(),
            resources={"workers": resources.workers, "cpus": resources.cpus, "gpus": resources.gpus},
            sentences=steps * recipe.batch * kind.sentences,
            marker=folder / "run.json",
            job=job,
        )

    @cached_property
    def members(self) -> list[Node]:
        """What the ensemble is made of: the last stage of every member, or the models named as teachers."""
        there = [chain[-1] for member, chain in enumerate(self.chains) if member not in self.without]
        return there or self.teacher_models

    @property
    def left_out(self) -> list[dict[str, Any]]:
        """The members that are left out, each with the reason it failed."""
        return [
            {
                "member": member,
                "reason": next(
                    (node.record.get("reason") for node in self.chains[member] if node.status == "failed"), None
                ),
            }
            for member in sorted(self.without)
        ]

    @cached_property
    def teacher_models(self) -> list[Node]:
        """The models named as teachers."""
        folders = [self.locate(name) for name in self.pipeline.teachers]
        return [
            Node(
                id=folder_id(folder),
                kind="model",
                title=f"model {name}",
                needs=(),
                sentences=0,
                resources={"workers": 0, "cpus": 0, "gpus": 0},
                marker=folder / "config.json",
            )
            for name, folder in zip(self.pipeline.teachers, folders, strict=True)
        ]

    @cached_property
    def teacher(self) -> Node | None:
        """Mean embeddings of the selected members on the student's sentences."""
        recipe = self.pipeline.sed
        if recipe is None:
            return None
        spec = self.store_spec(recipe)
        rows = self.rows(recipe)
        top = self.pipeline.select_top
        identity = [[node.id for node in self.members], top, spec.id, recipe.pooling, recipe.layers]
        if top is not None:
            identity.append(self.corpus.fingerprint(DEV_TABLE))
        node_id = content_id(identity)
        count = top or len(self.members)
        return Node(
            id=node_id,
            kind="teacher",
            title=f"mean embeddings of {count} members",
            needs=(*(node.id for node in self.members), spec.id),
            resources={"workers": 1, "cpus": self.pipeline.resources.cpus, "gpus": self.pipeline.resources.gpus},
            sentences=rows * count,
            marker=self.storage / "embeddings" / node_id / "manifest.json",
        )

    @cached_property
    def student_chains(self) -> list[list[Node]]:
        """Per student its distillation, and what is fitted on it. The seed of one does not depend on their number."""
        recipe, teacher = self.pipeline.sed, self.teacher
        if recipe is None or teacher is None:
            return []
        several = self.pipeline.students > 1
        parent, parent_id = self._student_start(teacher)
        chains = []
        for number in range(self.pipeline.students):
            who: dict[str, Any] = {"member": number if several else None, "role": "student"}
            seed = derive_seed(self.pipeline.seed, "sed", number)
            layers = self.pipeline.student_pooling
            node = self._train_node("sed", recipe, seed, parent, parent_id, **who, teacher=teacher.id, layers=layers)
            chain = [_with_needs(node, (teacher.id, self.store_spec(recipe).id))]
            for stage, fitted in self.pipeline.post.items():
                seed = derive_seed(self.pipeline.seed, stage, number)
                node = self._train_node(stage, fitted, seed, chain[-1].model, chain[-1].id, **who, layers=fitted.layers)
                chain.append(_with_needs(node, (chain[-1].id, self.store_spec(fitted).id)))
            chains.append(chain)
        return chains

    @property
    def student(self) -> Node | None:
        """The distillation run; of several students that of the first."""
        return self.student_chains[0][0] if self.student_chains else None

    def _student_start(self, teacher: Node) -> tuple[Path, str]:
        """Folder and id of what the student starts from; the members' average is written by the driver."""
        start = self.pipeline.student_start
        if start == "backbone":
            return self.start, self.backbone_id
        made = content_id([start, teacher.id])
        return self.storage / "backbones" / f"{start}-{made}", made

    @property
    def outcomes(self) -> list[Node]:
        """The runs that come out of a distillation: the students, or what is fitted on them."""
        return [chain[-1] for chain in self.student_chains]

    @property
    def outcome(self) -> Outcome:
        """What has come out of what is done so far."""
        chains = self.student_chains
        ran = [chain for chain in chains if chain[-1].status == "done"]
        return decide(
            [Candidate.of(node.id, node.record) for node in self.members],
            [Candidate.of(chain[-1].id, chain[0].record) for chain in (chains if len(ran) == len(chains) else [])],
            combine=self.pipeline.combine,
            select_top=self.pipeline.select_top,
            dev=dev_of([recipe.objective for recipe in self.pipeline.stages.values()]),
        )

    def selected_members(self) -> list[Node]:
        """The members that form the ensemble: all, or the best on their development set."""
        scores = [Candidate.of(node.id, node.record).score for node in self.members]
        return [self.members[index] for index in top(scores, self.pipeline.select_top)]

    @cached_property
    def evaluations(self) -> list[Node]:
        """Evaluation of the backbone, of the members with their ensemble, and of the students."""
        found = [self._evaluation("backbone", [])]
        if self.members:
            found.append(self._evaluation("members", self.members))
        if self.outcomes:
            found.append(self._evaluation("student", self.outcomes))
        return found

    def _evaluation(self, title: str, models: list[Node]) -> Node:
        settings = self.pipeline.evaluation
        tables = [table for task in self.tasks for table in harness.TASKS[task].tables(self.corpus, harness.SPLITS)]
        node_id = content_id(
            [
                title,
                harness.VERSION,
                sorted(self.specs),  # the training text that clean rows do not hold
                [node.id for node in models] or self.backbone_id,
                list(self.tasks),
                list(settings.layers),
                settings.resamples,
                [self.corpus.fingerprint(table) for table in tables],
                [self.pipeline.combine, self.pipeline.select_top, self.pipeline.name],
            ]
        )
        texts = len(harness.sentences(self.corpus, self.tasks))
        return Node(
            id=node_id,
            kind="evaluate",
            title=f"evaluate {title}",
            needs=tuple(node.id for node in models),
            resources={"workers": 1, "cpus": self.pipeline.resources.cpus, "gpus": self.pipeline.resources.gpus},
            sentences=texts * max(1, len(models)),
            marker=self.storage / "results" / f"{node_id}.parquet",
        )

    @cached_property
    def nodes(self) -> list[Node]:
        """Every node in an order in which it can run."""
        trained = [node for chain in self.chains for node in chain]
        teacher = [self.teacher] if self.teacher is not None else []
        students = [node for chain in self.student_chains for node in chain]
        return [*self.token_nodes, *self.teacher_models, *trained, *teacher, *students, *self.evaluations]

    def check(self) -> None:
        """Raise one InputError with everything that would stop the pipeline later."""
        checks.check(self)


def _with_needs(node: Node, needs: tuple[str, ...]) -> Node:
    return replace(node, needs=needs)


def describe(plan: Plan, nodes: Sequence[Node] | None = None) -> dict[str, Any]:
    """The plan as plain data: what ``raysts plan --json`` prints; ``nodes``: other ones than the plan's."""
    return {
        "name": plan.pipeline.name,
        "backbone": {"name": plan.pipeline.backbone, "id": plan.backbone_id},
        "skipped": plan.skipped,
        "nodes": [
            {
                "id": node.id,
                "kind": node.kind,
                "title": node.title,
                "status": node.status,
                "resources": node.resources,
                "sentences": node.sentences,
                "needs": list(node.needs),
            }
            for node in (plan.nodes if nodes is None else nodes)
        ],
    }


def stored_rows(plan: Plan) -> list[dict[str, Any]]:
    """The results rows of a plan's evaluations that are done."""
    return [row for node in plan.evaluations for row in results.read_part(plan.storage, node.id)]

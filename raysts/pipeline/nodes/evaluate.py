"""Evaluation of a backbone, of members with their ensemble, of a weight average, or of students: rows of the results table.

``evaluations/<id>/`` holds the rows of every model that is done (``model-000.parquet``, written last) and the sum of the
members' vectors up to it (``sums-001.npz``), from which their ensemble is made, so that an evaluation that is killed goes
on. It goes when the results are written. What the models say of single rows stays in ``row_scores/<id>/``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysts.evaluation import harness, results, row_scores
from raysts.evaluation.contamination.contamination import Contamination
from raysts.evaluation.dev import Dev
from raysts.evaluation.row_scores import Choice, ModelScores
from raysts.evaluation.tasks import RowScores
from raysts.ids import content_id
from raysts.models import pretrained
from raysts.models.head import Similarity, cosine_of_vectors
from raysts.models.layers import Layers, as_layers
from raysts.models.modules import pooled_by
from raysts.models.sentence_model import Representation
from raysts.ops import ensemble
from raysts.ops.ensemble import Target
from raysts.pipeline import teachers
from raysts.pipeline.inputs import Inputs
from raysts.pipeline.local import Executor, Say
from raysts.pipeline.nodes.agreement import AgreementNode
from raysts.pipeline.nodes.model import Model, candidates, embedding_resources, run_id, selected
from raysts.pipeline.nodes.node import Node
from raysts.pipeline.nodes.teacher import TeacherNode, foreign
from raysts.pipeline.outcome import decide, members_dev
from raysts.recipes.recipe import Pipeline
from raysts.schema import RESULTS
from raysts.storage.atomic import remove_drafts
from raysts.storage.store import Store

Row = dict[str, Any]
Role = Literal["backbone", "member", "soup", "greedy-soup", "student"]
NAMES: dict[Role, str] = {
    "backbone": "backbone", "member": "members", "soup": "soup", "greedy-soup": "greedy soup", "student": "student"
}  # fmt: skip
"""What an evaluation is called by the role of its rows; part of its id."""


class EmbedTexts:
    """Represents the texts of an evaluation at several choices of layers; units are model folders and their pooling."""

    def __init__(self, device: str | None, texts: Sequence[str], layers: Sequence[Layers], prompt: str | None) -> None:
        self.device, self.texts, self.layers, self.prompt = device, texts, layers, prompt

    def __call__(self, unit: tuple[Path, str]) -> dict[Layers, Representation]:
        """None for vectors that are there, where they are not of all of the texts."""
        model, pooling = unit
        if teachers.kind(model) != "encoder":  # it pools as it does
            other = teachers.load(model, prompt=self.prompt, device=self.device)
            if isinstance(other, teachers.PrecomputedVectors) and other.missing(self.texts) is not None:
                return {}
            return {self.layers[0]: {"vectors": other.vectors(other.tokenize(self.texts))}}
        loaded = pretrained.load(model, pooling=pooling, prompt=self.prompt, device=self.device)
        return loaded.represent_layers(self.texts, self.layers)


@dataclass(frozen=True, kw_only=True)
class EvaluateNode(Node):
    """The results rows of one part: of the backbone, the members with their ensemble, a weight average, or the students.

    Attributes:
        role: role of the rows, but for the ensemble's.
        models: what is evaluated; none for the backbone.
        members: the members of the pipeline, whatever is evaluated.
        agreement: what is measured beside the tasks where there are no labels to select by.
        teacher: of the students, which knows how much each member counts; None: all do alike.
    """

    kind: ClassVar[str] = "evaluate"
    inputs: Inputs
    role: Role
    models: tuple[Model, ...]
    members: tuple[Model, ...]
    agreement: AgreementNode | None = None
    teacher: TeacherNode | None = None

    @classmethod
    def of(
        cls,
        inputs: Inputs,
        role: Role,
        models: Sequence[Model],
        members: Sequence[Model],
        agreement: AgreementNode | None = None,
        teacher: TeacherNode | None = None,
    ) -> EvaluateNode:
        """The evaluation of ``models``, which have that role; of members that ``teacher`` combines it is given."""
        pipeline, settings = inputs.pipeline, inputs.distilled
        unlike = role == "member" and settings is not None and (settings.target != "mean" or settings.weights)
        own = [pooled_by(m.model) for m in models if foreign(inputs, m) and teachers.kind(m.model) == "encoder"]
        (_, layers), *others = _choices(inputs, role).items()
        dev = inputs.dev(members_dev(pipeline)) if scored_on_dev(pipeline, role) else None
        node_id = content_id(
            [
                NAMES[role],
                harness.VERSION,
                sorted(inputs.specs),  # the training text that clean rows do not hold
                [model.id for model in models] or inputs.backbone_id,
                list(inputs.tasks),
                list(layers),
                pipeline.evaluation.resamples,
                [inputs.corpus.fingerprint(table) for table in inputs.test_tables],
                [pipeline.combine, pipeline.select_top, pipeline.name],
                *others,
                *([inputs.corpus.fingerprint(members_dev(pipeline))] if dev else []),
                *([agreement.id] if agreement else []),
                *([prompt] if (prompt := _prompt(inputs, role)) is not None else []),
                *([[settings.target, settings.weights]] if unlike and settings else []),
                *([own] if own else []),
            ]
        )
        return cls(
            id=node_id,
            title=f"evaluate {NAMES[role]}",
            needs=(
                *(model.id for model in models),
                *([agreement.id] if agreement else []),
                *([teacher.id] if teacher and unlike else []),
            ),
            resources=embedding_resources(pipeline.resources),
            sentences=(
                len(harness.sentences(inputs.corpus, inputs.tasks))
                + (len(dev.sentences) if dev else 0)
                + (len(agreement.texts) if agreement else 0)
            )
            * max(1, len(models)),
            inputs=inputs,
            role=role,
            models=tuple(models),
            members=tuple(members),
            agreement=agreement,
            teacher=teacher,
        )

    @property
    def part(self) -> Path:
        """The part of the results table."""
        return self.inputs.storage / "results" / f"{self.id}.parquet"

    def is_done(self, store: Store) -> bool:
        if not store.exists(self.part) and store.get(self.part):
            store.upload(self.part)  # somebody emptied the bucket
        return store.get(self.part) is not None

    def written(self, store: Store) -> list[Path]:
        return [self.part]

    def leftovers(self) -> list[Path]:
        return [self.inputs.storage / "evaluations" / self.id]

    def rows(self) -> list[Row]:
        """The rows that were written; none before."""
        return results.read_part(self.inputs.storage, self.id)

    def run(self, executor: Executor, store: Store, say: Say) -> None:
        resources, choices = self.inputs.pipeline.resources, _choices(self.inputs, self.role)
        done = PartialResults(store, self.id)
        kept: list[tuple[dict[Layers, Representation], Mapping[str, Similarity], str]] = []
        for pooling, layers in choices.items() if self.role == "backbone" else ():
            args = (self.texts, layers, self.inputs.pipeline.prompt)
            embedded = executor.map(EmbedTexts, args, [(self.inputs.start, pooling)], resources, say)
            (representations,) = embedded
            similarities = pretrained.similarities(self.inputs.backbone)
            kept.append((representations, similarities, pooling))
            done.rows += self._rows(representations, similarities, "backbone", None, pooling)
        if kept:
            self._keep_row_scores("backbone", *kept)
        summed = (
            {member.id for member in self.chosen} if self.role == "member" and self.inputs.pipeline.combine else set()
        )
        target, weights = self.inputs.target, self._weights(store)
        waiting = self.models[done.count :]
        args = (self.texts, choices[self.pooling], _prompt(self.inputs, self.role))
        units = [(model.model, self._pooled_by(model)[0]) for model in waiting]
        of_models = executor.map(EmbedTexts, args, units, resources, say)
        for (model, (_, pooling)), of_model in zip(
            zip(waiting, units, strict=True), of_models if waiting else (), strict=True
        ):
            representations = self._as_trained(model, of_model)
            similarities = (
                pretrained.similarities(model.model)
                if teachers.kind(model.model) == "encoder"
                else {"cosine": cosine_of_vectors}
            )
            rows = self._rows(representations, similarities, self.role, model, pooling)
            self._keep_row_scores(model.id, (representations, similarities, pooling))
            vectors = self._as_taught(model, representations) if model.id in summed else {}
            done.add(rows, vectors, target, weights.get(model.id, 1.0))
            say(f"{self.title}: {done.count} of {len(self.models)}")
            if not representations:
                say(
                    f"{self.title}: {model.model} has no vectors of the test texts; neither it nor an ensemble is measured"
                )
        if done.sums and done.complete:
            means: dict[Layers, Representation] = {
                layers: {"vectors": ensemble.combined(target, total, list(weights.values()))}
                for layers, total in done.sums.items()
            }
            done.rows += self._rows(means, {"cosine": cosine_of_vectors}, "ensemble", None)
            self._keep_row_scores("ensemble", (means, {"cosine": cosine_of_vectors}, self.pooling))
        results.write(self.inputs.storage, self.id, done.rows)
        done.close()

    def _weights(self, store: Store) -> dict[str, float]:
        """Of the models that form the ensemble, by their ids."""
        found = self.teacher.weights(store) if self.teacher else [1.0] * len(self.chosen)
        return dict(zip((model.id for model in self.chosen), found, strict=True))

    def _pooled_by(self, model: Model) -> tuple[str, Layers | None]:
        """Pooling of a model's token vectors, and the layers; those are None where the recipes say it."""
        if self.role == "member" and foreign(self.inputs, model) and teachers.kind(model.model) == "encoder":
            return pooled_by(model.model)
        return self.pooling, None

    def _as_taught(self, model: Model, representations: Mapping[Layers, Representation]) -> dict[Layers, np.ndarray]:
        """The vectors of a member as they are combined: of one that was not trained here those that it gives by itself."""
        if foreign(self.inputs, model):
            own = self._pooled_by(model)[1]
            first = next(iter(representations.values()), None)
            found = first if own is None else representations.get(own, first)
            return {self.inputs.pipeline.compared: found["vectors"]} if found else {}
        return {layers: values["vectors"] for layers, values in representations.items()}

    # -- what all rows have in common; read when the members are done --------------------------------------------------

    @cached_property
    def texts(self) -> list[str]:
        """The distinct sentences of the tasks, and of the development set where it is scored."""
        judged = [*(self.dev.sentences if self.dev else ()), *(self.agreement.texts if self.agreement else ())]
        return list(dict.fromkeys([*harness.sentences(self.inputs.corpus, self.inputs.tasks), *judged]))

    @property
    def dev(self) -> Dev | None:
        """The development set on which these models are scored, if they are."""
        return self.inputs.chooser if scored_on_dev(self.inputs.pipeline, self.role) else None

    def row_scores(self, model: str) -> tuple[dict[Choice, dict[str, RowScores]], dict[Choice, float]]:
        """What is kept of a model (its id; ``backbone`` and ``ensemble``): its scores of rows, and on the development set."""
        return row_scores.read(self._row_scores_of(model))

    def _row_scores_of(self, model: str) -> Path:
        return self.inputs.storage / "row_scores" / self.id / f"{model}.parquet"

    def _keep_row_scores(
        self,
        model: str,
        *of_model: tuple[Mapping[Layers, Representation], Mapping[str, Similarity], str],
    ) -> None:
        """Keep what a model says of single rows, at each pooling that it was represented with."""
        scores: dict[Choice, ModelScores] = {}
        on_dev: dict[Choice, float] = {}
        for representations, by, pooling in of_model:
            for layers, values in representations.items():
                choice = pooling, str(layers)
                scores[choice] = row_scores.row_scores(self.inputs.corpus, self.inputs.tasks, self.texts, values, by)
                if self.dev is not None:
                    on_dev[choice] = row_scores.dev_score(self.dev, self.texts, values, by, choice)
        row_scores.write(self._row_scores_of(model), scores, on_dev)

    @property
    def pooling(self) -> str:
        """Of the token vectors, where a model has none of its own."""
        return next(iter(_choices(self.inputs, self.role)))

    @cached_property
    def contamination(self) -> Contamination:
        """The training text in the test sets."""
        return self.inputs.contamination()

    @cached_property
    def chosen(self) -> list[Model]:
        """The members that form the ensemble."""
        return selected(self.members, self.inputs.pipeline.select_top)

    @cached_property
    def chosen_by(self) -> dict[str, str | None]:
        """The development set that chose a model among others, by the model's id; that of an ensemble by ``ensemble``."""
        pipeline = self.inputs.pipeline
        dev, top = self.inputs.dev_name(members_dev(pipeline)), pipeline.select_top
        outcome = decide(candidates(self.members), [], combine=pipeline.combine, select_top=top, dev=dev)
        return {"ensemble": dev if top is not None else None, outcome.selected or "": outcome.selected_by}

    def _as_trained(self, model: Model, embedded: dict[Layers, Representation]) -> dict[Layers, Representation]:
        """With the one choice of layers of a model with heads as its recipe says it: the last may be ``only-12`` there."""
        job = getattr(model, "job", None)
        if job is None or len(embedded) > 1 or embedded.keys() <= set(self.inputs.pipeline.measured):
            return embedded
        return {job.recipe.layers: next(iter(embedded.values()))}

    def _rows(
        self,
        representations: Mapping[Layers, Representation],
        similarities: Mapping[str, Similarity],
        role: str,
        model: Model | None,
        pooling: str | None = None,
    ) -> list[Row]:
        """The rows of a model, or of the backbone or the ensemble (``model`` None), at each choice of layers."""
        inputs, record, job = self.inputs, model.record if model else {}, getattr(model, "job", None)
        parents = [inputs.backbone_id] if role == "backbone" else [run_id(member) for member in self.chosen]
        seen = role == "ensemble" and any(member.record.get("transductive") for member in self.chosen)
        context = {
            "run_id": run_id(model) if model else None,
            "parent_run_ids": record.get("parents") or parents,
            "system": inputs.pipeline.name,
            "recipe": "-".join(inputs.pipeline.stages) or "raw",
            "role": role,
            # A student that is one of several here may have been trained as the only one.
            "member": job.facts["member"] if job else record.get("member"),
            "seed": record.get("seed"),
            "transductive": bool(record.get("transductive", seen)),
            "selected_by": record.get("selected_by") or self.chosen_by.get(model.id if model else role),
            "step": (record.get("kept") or {}).get("step"),
            "git_commit": results.git_commit(),
            "pooling": pooling or self.pooling,
        }
        return [
            row
            for layers, representation in representations.items()
            for row in harness.score(
                inputs.corpus,
                inputs.tasks,
                self.texts,
                representation,
                similarities,
                {**context, "layers": str(layers)},
                resamples=inputs.pipeline.evaluation.resamples,
                contaminated=self.contamination,
                agreement=self.agreement.test if self.agreement else None,
            )
        ]


def scored_on_dev(pipeline: Pipeline, role: str) -> bool:
    """Whether models of a role are scored on the development set when they are evaluated: the backbone, at which training
    starts, and whatever may be handed over."""
    return role == "backbone" or pipeline.deliver == "best"


def _prompt(inputs: Inputs, role: str) -> str | None:
    """What stands before every text where the models of a role do not say so by themselves."""
    pipeline = inputs.pipeline
    return {"backbone": pipeline.prompt, "member": pipeline.teacher_prompt}.get(role)


def _choices(inputs: Inputs, role: str) -> dict[str, tuple[Layers, ...]]:
    """Choices of layers that are measured, by how token vectors are pooled where a model does not say it: first as the
    recipes have it; of the backbone then as it was distributed too."""
    pipeline = inputs.pipeline
    recipes = (pipeline.sed if role == "student" else None, *reversed(pipeline.stages_of(0).values()))
    pooling: str = next((recipe.pooling for recipe in recipes if recipe), "mean")
    encoders = [path for path in inputs.teacher_folders if teachers.kind(path) == "encoder"]
    if role == "member" and len(theirs := {pooled_by(folder)[0] for folder in encoders}) == 1:
        (pooling,) = theirs
    found = {pooling: pipeline.measured}
    if role == "backbone":
        own, layers = inputs.distributed
        found[own] = tuple(dict.fromkeys([*found.get(own, ()), layers]))
    return found


class PartialResults:
    """The models of one evaluation that are done: the first :attr:`count` of them, in order.

    Attributes:
        rows: their results rows.
        sums: per choice of layers what :func:`raysts.ops.ensemble.added` makes of their vectors, float32.
        complete: whether all of them have rows.
    """

    def __init__(self, store: Store, node: str) -> None:
        self.store, self.folder = store, store.path(f"evaluations/{node}")
        self.rows: list[Row] = []
        self.sums: dict[Layers, np.ndarray] = {}
        self.count = 0
        self.complete = True
        remove_drafts(self.folder)
        parts: list[Path] = []
        while part := store.get(self.folder / f"model-{len(parts):03d}.parquet"):
            parts.append(part)
        if sums := store.get(self._sums_of(len(parts))):  # without it these models would be missing in the ensemble
            self.count = len(parts)
            of_models = [pq.ParquetFile(part).read().to_pylist() for part in parts]
            self.rows, self.complete = [row for rows in of_models for row in rows], all(of_models)
            with np.load(sums) as arrays:
                self.sums = {as_layers(name): arrays[name] for name in arrays.files}

    def add(
        self,
        rows: Sequence[Mapping[str, Any]],
        vectors: Mapping[Layers, np.ndarray],
        target: Target = "mean",
        weight: float = 1.0,
    ) -> None:
        """Keep the rows of the next model, and add its vectors (those of a member of the ensemble; else none)."""
        for layers, values in vectors.items():
            self.sums[layers] = ensemble.added(target, self.sums.get(layers), values, weight)
        self.complete = self.complete and bool(rows)
        totals: dict[str, Any] = {str(layers): total for layers, total in self.sums.items()}
        with self.store.put(self._sums_of(self.count + 1)) as draft, draft.open("wb") as file:
            np.savez(file, **totals)
        with self.store.put(self.folder / f"model-{self.count:03d}.parquet") as draft:
            pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=RESULTS), draft)
        self.rows += [dict(row) for row in rows]
        self.count += 1
        self.store.delete(self._sums_of(self.count - 1))

    def close(self) -> None:
        """The results are written: forget the parts."""
        self.store.delete(self.folder)

    def _sums_of(self, models: int) -> Path:
        """The file with the sums over the first ``models`` models."""
        return self.folder / f"sums-{models:03d}.npz"

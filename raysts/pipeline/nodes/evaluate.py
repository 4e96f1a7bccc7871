"""Evaluation of a backbone, of members with their ensemble, or of students: rows of the results table.

``evaluations/<id>/`` holds the rows of every model that is done (``model-000.parquet``, written last) and the sum of the
members' vectors up to it (``sums-001.npz``), from which their ensemble is made, so that an evaluation that is killed goes
on. It goes when the results are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysts.evaluation import harness, results
from raysts.evaluation.contamination.contamination import Contamination
from raysts.ids import content_id
from raysts.models import pretrained
from raysts.models.encoder import PoolingMode
from raysts.models.head import Similarity, cosine_of_vectors
from raysts.models.layers import Layers, as_layers
from raysts.models.sentence_model import Representation
from raysts.pipeline.inputs import Inputs
from raysts.pipeline.local import Executor, Say
from raysts.pipeline.nodes.model import Model, candidates, embedding_resources, selected
from raysts.pipeline.nodes.node import Node
from raysts.pipeline.outcome import decide, dev_of
from raysts.schema import RESULTS
from raysts.storage.atomic import remove_drafts
from raysts.storage.store import Store

Row = dict[str, Any]
NAMES = {"backbone": "backbone", "member": "members", "student": "student"}
"""What an evaluation is called by the role of its rows; part of its id."""


class EmbedTexts:
    """Represents the texts of an evaluation at several choices of layers; units are model folders."""

    def __init__(
        self, device: str | None, texts: Sequence[str], pooling: PoolingMode, layers: Sequence[Layers]
    ) -> None:
        self.device, self.texts, self.pooling, self.layers = device, texts, pooling, layers

    def __call__(self, model: Path) -> dict[Layers, Representation]:
        loaded = pretrained.load(model, pooling=self.pooling, device=self.device)
        return loaded.represent_layers(self.texts, self.layers)


@dataclass(frozen=True, kw_only=True)
class EvaluateNode(Node):
    """The results rows of one part: those of the backbone, of the members with their ensemble, or of the students.

    Attributes:
        role: role of the rows, but for the ensemble's.
        models: what is evaluated; none for the backbone.
        members: the members of the pipeline, whatever is evaluated.
    """

    kind: ClassVar[str] = "evaluate"
    inputs: Inputs
    role: Literal["backbone", "member", "student"]
    models: tuple[Model, ...]
    members: tuple[Model, ...]

    @classmethod
    def of(
        cls,
        inputs: Inputs,
        role: Literal["backbone", "member", "student"],
        models: Sequence[Model],
        members: Sequence[Model],
    ) -> EvaluateNode:
        """The evaluation of ``models``, which have that role."""
        pipeline = inputs.pipeline
        node_id = content_id(
            [
                NAMES[role],
                harness.VERSION,
                sorted(inputs.specs),  # the training text that clean rows do not hold
                [model.id for model in models] or inputs.backbone_id,
                list(inputs.tasks),
                list(pipeline.evaluation.layers),
                pipeline.evaluation.resamples,
                [inputs.corpus.fingerprint(table) for table in inputs.test_tables],
                [pipeline.combine, pipeline.select_top, pipeline.name],
            ]
        )
        return cls(
            id=node_id,
            title=f"evaluate {NAMES[role]}",
            needs=tuple(model.id for model in models),
            resources=embedding_resources(pipeline.resources),
            sentences=len(harness.sentences(inputs.corpus, inputs.tasks)) * max(1, len(models)),
            inputs=inputs,
            role=role,
            models=tuple(models),
            members=tuple(members),
        )

    @property
    def part(self) -> Path:
        """The part of the results table."""
        return self.inputs.storage / "results" / f"{self.id}.parquet"

    def is_done(self, store: Store) -> bool:
        if not store.exists(self.part) and store.get(self.part):
            store.upload(self.part)  # somebody emptied the bucket
        return store.get(self.part) is not None

    def rows(self) -> list[Row]:
        """The rows that were written; none before."""
        return results.read_part(self.inputs.storage, self.id)

    def run(self, executor: Executor, store: Store, say: Say) -> None:
        scoring = Scoring.of(self)
        evaluation, resources = self.inputs.pipeline.evaluation, self.inputs.pipeline.resources
        done = PartialResults(store, self.id)
        folders = [model.model for model in self.models[done.count :]] if self.models else [self.inputs.start]
        args = (scoring.texts, scoring.pooling, tuple(evaluation.layers))
        embedded = executor.map(EmbedTexts, args, folders, resources, say)
        if not self.models:
            (representations,) = embedded
            done.rows += scoring.rows(representations, pretrained.similarities(self.inputs.backbone), "backbone", None)
        for model, found in zip(self.models[done.count :], embedded if self.models else (), strict=True):
            representations = scoring.as_trained(model, found)
            rows = scoring.rows(representations, pretrained.similarities(model.model), self.role, model)
            summed = self.role == "member" and self.inputs.pipeline.combine and model.id in scoring.ensemble
            done.add(rows, {k: values["vectors"] for k, values in representations.items()} if summed else {})
            say(f"{self.title}: {done.count} of {len(self.models)}")
        if done.sums:
            count = np.float32(len(scoring.ensemble))
            means: dict[Layers, Representation] = {k: {"vectors": total / count} for k, total in done.sums.items()}
            done.rows += scoring.rows(means, {"cosine": cosine_of_vectors}, "ensemble", None)
        results.write(self.inputs.storage, self.id, done.rows)
        done.close()


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """What the rows of an evaluation have in common.

    Attributes:
        inputs: the pipeline.
        texts: the distinct sentences of the tasks.
        pooling: of the token vectors, where a model has none of its own.
        contamination: the training text in the test sets.
        ensemble: ids of the selected members.
        parents: run ids of the selected members, for what has no parents on record.
        transductive: whether one of them has seen the test sentences.
        chosen_by: the development set that chose a model among others, by the model's id, that of an ensemble by None.
    """

    inputs: Inputs
    texts: list[str]
    pooling: PoolingMode
    contamination: Contamination
    ensemble: frozenset[str]
    parents: list[str]
    transductive: bool
    chosen_by: Mapping[str | None, str | None]

    @classmethod
    def of(cls, node: EvaluateNode) -> Scoring:
        """What the rows of ``node`` have in common."""
        inputs, pipeline = node.inputs, node.inputs.pipeline
        recipes = (pipeline.sed if node.role == "student" else None, *reversed(pipeline.stages.values()))
        chosen = selected(node.members, pipeline.select_top)
        dev = dev_of([recipe.objective for recipe in pipeline.stages.values()])
        known, top = candidates(node.members), pipeline.select_top
        outcome = decide(known, [], combine=pipeline.combine, select_top=top, dev=dev)
        chosen_by = {None: dev if top is not None else None, outcome.selected or "": outcome.selected_by}
        return cls(
            inputs=inputs,
            texts=harness.sentences(inputs.corpus, inputs.tasks),
            pooling=next((recipe.pooling for recipe in recipes if recipe), "mean"),
            contamination=inputs.contamination(),
            ensemble=frozenset(member.id for member in chosen),
            parents=[_run_id(member) for member in chosen],
            transductive=any(member.record.get("transductive") for member in chosen),
            chosen_by=chosen_by,
        )

    def as_trained(self, model: Model, found: dict[Layers, Representation]) -> dict[Layers, Representation]:
        """With the one choice of layers of a model with heads as its recipe says it: the last may be ``only-12`` there."""
        job = getattr(model, "job", None)
        if job is None or len(found) > 1 or found.keys() <= set(self.inputs.pipeline.evaluation.layers):
            return found
        return {job.recipe.layers: next(iter(found.values()))}

    def rows(
        self,
        representations: Mapping[Layers, Representation],
        similarities: Mapping[str, Similarity],
        role: str,
        model: Model | None,
    ) -> list[Row]:
        """The rows of a model, or of the backbone or the ensemble (``model`` None), at each choice of layers."""
        inputs, record = self.inputs, model.record if model else {}
        # A student that is one of several here may have been trained as the only one.
        job = getattr(model, "job", None)
        backbone = role == "backbone"
        chosen_by = None if backbone else self.chosen_by.get(model.id if model else None)
        context = {
            "run_id": _run_id(model) if model else None,
            "parent_run_ids": record.get("parents") or ([inputs.backbone_id] if backbone else self.parents),
            "system": inputs.pipeline.name,
            "recipe": "-".join(inputs.pipeline.stages) or "raw",
            "role": role,
            "member": job.facts["member"] if job else record.get("member"),
            "seed": record.get("seed"),
            "transductive": bool(record.get("transductive", role == "ensemble" and self.transductive)),
            "selected_by": record.get("selected_by") or chosen_by,
            "step": (record.get("kept") or {}).get("step"),
            "git_commit": results.git_commit(),
            "pooling": self.pooling,
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
            )
        ]


def _run_id(model: Model) -> str:
    """The run behind a model; its content id where there is none on record (a model from elsewhere)."""
    return str(model.record.get("run_id") or model.id)


class PartialResults:
    """The models of one evaluation that are done: the first :attr:`count` of them, in order.

    Attributes:
        rows: their results rows.
        sums: per choice of layers the sum of their vectors, float32 [N, D].
    """

    def __init__(self, store: Store, node: str) -> None:
        self.store, self.folder = store, store.path(f"evaluations/{node}")
        self.rows: list[Row] = []
        self.sums: dict[Layers, np.ndarray] = {}
        self.count = 0
        remove_drafts(self.folder)
        parts: list[Path] = []
        while part := store.get(self.folder / f"model-{len(parts):03d}.parquet"):
            parts.append(part)
        if sums := store.get(self._sums_of(len(parts))):  # without it these models would be missing in the ensemble
            self.count = len(parts)
            self.rows = [row for part in parts for row in pq.ParquetFile(part).read().to_pylist()]
            with np.load(sums) as arrays:
                self.sums = {as_layers(name): arrays[name] for name in arrays.files}

    def add(self, rows: Sequence[Mapping[str, Any]], vectors: Mapping[Layers, np.ndarray]) -> None:
        """Keep the rows of the next model, and add its vectors (those of a member of the ensemble; else none)."""
        for layers, values in vectors.items():
            self.sums[layers] = self.sums.get(layers, np.float32(0)) + values
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

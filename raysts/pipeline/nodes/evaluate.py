"""Evaluation of a backbone, members with their ensemble, weight averages, or students.

A model's row scores are an artifact named by their inputs, ``row_scores/<id>.parquet``. Another pipeline that measures
an equal model on equal data reads them, and adds its own columns (system, role, member, ...) and clean rows. So
pipelines share backbones and members, and a killed evaluation continues. ``evaluations/<step>/`` holds the sum of the
members' vectors (``members-001.npz``), from which the ensemble is computed. It is deleted once the results are
written.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from raysts.errors import RunFailed
from raysts.evaluation import harness, results, scores
from raysts.evaluation.contamination.contamination import Contamination
from raysts.evaluation.dev import Dev
from raysts.evaluation.scores import Choice, ModelScores, RowScores
from raysts.evaluation.statistics import UndefinedCorrelationError
from raysts.evaluation.tasks import lookup
from raysts.ids import content_id
from raysts.models.embedders import load_embedder, open_embedder
from raysts.models.layers import Layers, as_layers
from raysts.models.prompts import Text
from raysts.ops import ensemble
from raysts.ops.ensemble import Target
from raysts.ops.similarity import Similarity, cosine_of_vectors
from raysts.pipeline.inputs import Inputs
from raysts.pipeline.local import Executor, Say
from raysts.pipeline.nodes.agreement import AgreementNode, kept_vectors
from raysts.pipeline.outcome import decide, members_dev
from raysts.pipeline.step import Model, Step, candidates, embedding_resources, run_id, selected
from raysts.pipeline.steps.vectors import Teachers, foreign
from raysts.recipes.recipe import Pipeline
from raysts.storage.atomic import remove_drafts
from raysts.storage.store import Store

if TYPE_CHECKING:
    from raysts.models.sentence_model import Representation

Row = dict[str, Any]
Role = Literal["backbone", "member", "soup", "greedy-soup", "student"]
NAMES: dict[Role, str] = {
    "backbone": "backbone", "member": "members", "soup": "soup", "greedy-soup": "greedy soup", "student": "student"
}  # fmt: skip
"""What an evaluation is called by the role of its rows; part of its id."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Subject:
    """A model at a pooling of its token vectors, or an ensemble.

    ``content`` identifies it in ids. ``model`` is None for the backbone and the ensemble.
    """

    content: Any
    pooling: str
    layers: tuple[Layers, ...]
    model: Model | None = None


@dataclass(frozen=True, slots=True)
class EmbedTexts:
    """Worker that embeds the texts of an evaluation at several choices of layers.

    A unit holds the model folder, its content id (None: a model of a run), its pooling, and the file with its stored
    vectors of ``held_out`` texts, if it has one.
    """

    device: str | None
    texts: Sequence[Text]
    layers: Sequence[Layers]
    prompt: str | None
    held_out: Sequence[str] = ()

    def __call__(self, unit: tuple[Path, str | None, str, Path | None]) -> dict[Layers, Representation]:
        """Return the vectors by choice of layers, or nothing if precomputed vectors lack a text."""
        model, content, pooling, path = unit
        held_out, stored = {*self.held_out}, kept_vectors(path, pooling, self.layers) if path else {}
        if not stored:
            return self._embed(model, content, pooling, self.texts)
        texts = [text for text in self.texts if text not in held_out]
        embedded = self._embed(model, content, pooling, texts) if texts else {}
        if texts and not embedded:
            return {}
        row_of = {text: row for row, text in enumerate(self.texts)}
        representations: dict[Layers, Representation] = {}
        for choice, vectors in stored.items():
            parts = [vectors, embedded[choice]["vectors"]] if texts else [vectors]
            order = np.argsort([row_of[text] for text in (*self.held_out, *texts)])
            representations[choice] = {"vectors": np.concatenate(parts)[order]}
        return representations

    def _embed(
        self, model: Path, content: str | None, pooling: str, texts: Sequence[Text]
    ) -> dict[Layers, Representation]:
        options = {"pooling": pooling, "prompt": self.prompt, "device": self.device}
        embedder = load_embedder(model, content=content, **options)
        return {} if embedder.find_missing(texts) is not None else embedder.represent_layers(texts, self.layers)


@dataclass(frozen=True, kw_only=True)
class EvaluateNode:
    """Step that writes the results rows of one role.

    Attributes:
        models: the evaluated models; empty for the backbone.
        agreement: a measure besides the tasks, without labels that select.
        teacher: of the students; it has the weights of the members. None: equal weights.
    """

    id: str
    title: str
    needs: tuple[str, ...]
    sentences: int
    inputs: Inputs
    role: Role
    models: tuple[Model, ...]
    members: tuple[Model, ...]
    agreement: AgreementNode | None = None
    teacher: Teachers | None = None

    @classmethod
    def of(
        cls,
        inputs: Inputs,
        role: Role,
        models: Sequence[Model],
        members: Sequence[Model],
        agreement: AgreementNode | None = None,
        teacher: Teachers | None = None,
    ) -> EvaluateNode:
        """Return the evaluation of the models of a role. For members, ``teacher`` combines them."""
        pipeline, settings = inputs.pipeline, inputs.distilled
        weighted = role == "member" and settings is not None and (settings.target != "mean" or settings.weights)
        poolings = [pooled for m in models if foreign(inputs, m) and (pooled := open_embedder(m.model).stored_pooling)]
        (_, layers), *further = _choices(inputs, role).items()
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
                *further,
                *([inputs.corpus.fingerprint(members_dev(pipeline))] if dev else []),
                *([agreement.id] if agreement else []),
                *([prompt] if (prompt := _prompt(inputs, role)) is not None else []),
                *([[settings.target, settings.weights]] if weighted and settings else []),
                *([poolings] if poolings else []),
            ]
        )
        return cls(
            id=node_id,
            title=f"evaluate {NAMES[role]}",
            needs=(
                *(model.id for model in models if isinstance(model, Step)),
                *([agreement.id] if agreement else []),
                *([teacher.vectors.id] if teacher and weighted else []),
            ),
            sentences=(
                inputs.test_sentences
                + (len(dev.texts) if dev else 0)
                + (len(agreement.texts) if agreement and role != "member" else 0)
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
        return self.inputs.storage / "results" / f"{self.id}.parquet"

    @property
    def step(self) -> Step:
        folders = [self.agreement.folder] if self.agreement and self.role == "member" else []
        return Step(
            kind="scores",
            id=self.id,
            title=self.title,
            needs=self.needs,
            output=self.part,
            work=self.run,
            resources=embedding_resources(self.inputs.pipeline.resources),
            sentences=self.sentences,
            scratch=(self.inputs.storage / "evaluations" / self.id, *folders),
        )

    def rows(self) -> list[Row]:
        return results.read_part(self.inputs.storage, self.id)

    def run(self, executor: Executor, store: Store, say: Say) -> None:
        inputs, subjects, combined = self.inputs, self._subjects, self._ensemble
        measured = [*subjects, combined] if combined else subjects
        missing = [subject for subject in measured if store.get(self._row_scores_of(subject)) is None]
        sums = PartialSums(store, self.id)
        summed = (
            [subject for subject in subjects if subject.content in {model.id for model in self.chosen}]
            if combined
            else []
        )
        to_sum = summed[sums.count :] if combined in missing else []
        waiting = [subject for subject in subjects if subject in missing or subject in to_sum]
        if stored := len(subjects) - len(waiting):
            say(f"{self.title}: {stored} of {len(subjects)} were measured before")
        weights = self._weights(store) if combined else {}
        for layers, group in itertools.groupby(waiting, key=lambda subject: subject.layers):
            batch = list(group)
            units = self._units(batch)
            args = (self.texts, layers, _prompt(inputs, self.role), self._held_out.texts if self._held_out else ())
            embedded = executor.map(EmbedTexts, args, units, inputs.pipeline.resources, say)
            for subject, output in zip(batch, embedded, strict=True):
                folder = self._folder(subject)
                representations = self._as_trained(subject.model, output)
                if subject in missing:
                    self._keep(subject, representations, open_embedder(folder).similarities)
                if subject.model and subject in to_sum:
                    vectors = self._as_taught(subject.model, representations)
                    sums.add(vectors, inputs.target, weights[subject.model.id])
                if subject.model:
                    say(f"{self.title}: {subjects.index(subject) + 1} of {len(subjects)}")
                if not representations:
                    say(
                        f"{self.title}: {folder} has no vectors of the test texts; neither it nor an ensemble is measured"
                    )
        rows = [self._rows(subject) for subject in subjects]
        if combined and all(rows):
            if combined in missing:
                means: dict[Layers, Representation] = {
                    layers: {"vectors": ensemble.combined(inputs.target, total, list(weights.values()))}
                    for layers, total in sums.totals.items()
                }
                self._keep(combined, means, {"cosine": cosine_of_vectors})
            rows.append(self._rows(combined))
        results.write(inputs.storage, self.id, [row for subject_rows in rows for row in subject_rows])
        for path in self.step.scratch:
            store.delete(path)

    def _folder(self, subject: Subject) -> Path:
        return subject.model.model if subject.model else self.inputs.start

    @property
    def _held_out(self) -> AgreementNode | None:
        """Return the step that stores the members' vectors of held-out texts."""
        return self.agreement if self.role == "member" else None

    def _units(self, subjects: Sequence[Subject]) -> list[tuple[Path, str | None, str, Path | None]]:
        units = []
        for subject in subjects:
            folder = self._folder(subject)
            path = self._held_out.kept(subject.model) if self._held_out and subject.model else None
            units.append((folder, self.inputs.contents.get(folder), subject.pooling, path))
        return units

    # -- what is kept of a model, by what goes into it ------------------------------------------------------------------

    @cached_property
    def _subjects(self) -> list[Subject]:
        choices = _choices(self.inputs, self.role)
        if self.role == "backbone":
            backbone_id = self.inputs.backbone_id
            return [Subject(content=backbone_id, pooling=pooling, layers=layers) for pooling, layers in choices.items()]
        return [
            Subject(content=model.id, pooling=self._pooled_by(model)[0], layers=choices[self.pooling], model=model)
            for model in self.models
        ]

    @cached_property
    def _ensemble(self) -> Subject | None:
        """Return the combination of the members, or None if the pipeline combines none."""
        pipeline, settings = self.inputs.pipeline, self.inputs.distilled
        if self.role != "member" or not pipeline.combine:
            return None
        content = [
            "ensemble",
            [[model.id, self._pooled_by(model)] for model in self.chosen],
            str(pipeline.compared),
            [self.inputs.target, self.teacher.vectors.id if self.teacher and settings and settings.weights else None],
        ]
        return Subject(content=content, pooling=self.pooling, layers=_choices(self.inputs, self.role)[self.pooling])

    def _row_scores_of(self, subject: Subject) -> Path:
        inputs = self.inputs
        dev = members_dev(inputs.pipeline) if self.dev is not None else None
        tables = harness.tasks_of(inputs.corpus)
        prints = [
            [name, [(table, inputs.corpus.fingerprint(table)) for table in tables[name].tables(inputs.corpus)]]
            for name in inputs.tasks
        ]
        row_scores_id = content_id(
            [
                harness.VERSION,
                [subject.content, subject.pooling, [str(layers) for layers in subject.layers]],
                _prompt(inputs, self.role),
                prints,
                [dev, inputs.corpus.fingerprint(dev) if dev and inputs.corpus.files(dev) else None],
                self.agreement.id if self.agreement else None,
            ]
        )
        return inputs.storage / "row_scores" / f"{row_scores_id}.parquet"

    def _keep(
        self,
        subject: Subject,
        representations: Mapping[Layers, Representation],
        similarities: Mapping[str, Similarity],
    ) -> None:
        """Compute the row scores of a subject and store them.

        Raises:
            RunFailed: the model gives values that are not finite, or the same for every pair.
        """
        inputs, by_choice = self.inputs, dict[Choice, list[RowScores]]()
        sets = [*harness.sets_of(inputs.corpus, inputs.tasks), *(self.agreement.test.sets if self.agreement else ())]
        for layers, values in representations.items():
            represent = lookup(self.texts, values)
            try:
                of_layers = harness.row_scores(sets, represent, similarities)
                if self.dev is not None:
                    of_layers += self.dev.row_scores(represent, similarities)
                harness.rows_of(of_layers, {}, 0)
            except UndefinedCorrelationError as error:  # which of several
                raise RunFailed(f"{self.title}: '{self._folder(subject)}': {error}") from None
            by_choice[subject.pooling, str(layers)] = of_layers
        inputs.corpus.check_unchanged(inputs.test_tables)
        scores.write(self._row_scores_of(subject), by_choice)

    def _rows(self, subject: Subject) -> list[Row]:
        """Return the results rows of a subject's stored scores, with the columns of this pipeline."""
        rows: list[Row] = []
        for (pooling, layers), row_scores in (scores.read(self._row_scores_of(subject)) or {}).items():
            columns = {**self._in_pipeline(subject), "pooling": pooling, "layers": layers}
            tested = [of_set for of_set in row_scores if of_set.split != "dev"]
            rows += harness.rows_of(
                tested, columns, self.inputs.pipeline.evaluation.resamples, self.contamination.clean
            )
        return rows

    def _kept(self, model: str) -> dict[Choice, list[RowScores]]:
        """Return the stored row scores of a model (its id, ``backbone`` or ``ensemble``)."""
        by_choice: dict[Choice, list[RowScores]] = {}
        for subject in [self._ensemble] if model == "ensemble" else self._subjects:
            if subject is not None and (subject.model is None or subject.model.id == model):
                by_choice |= scores.read(self._row_scores_of(subject)) or {}
        return by_choice

    def row_scores(self, model: str) -> dict[Choice, ModelScores]:
        """Return the scores that comparisons of a model (its id, ``backbone`` or ``ensemble``) use."""
        return {choice: scores.scores_by_set(row_scores) for choice, row_scores in self._kept(model).items()}

    def dev_scores(self, model: str) -> dict[Choice, float]:
        """Return a model's scores on the development set, which also select checkpoints."""
        if (dev := self.dev) is None:
            return {}
        on_dev = {
            c: [set_scores for set_scores in row_scores if set_scores.split == "dev"]
            for c, row_scores in self._kept(model).items()
        }
        return {choice: dev.values(row_scores)[dev.metrics[0]] for choice, row_scores in on_dev.items() if row_scores}

    def _weights(self, store: Store) -> dict[str, float]:
        weights = self.teacher.weights(store) if self.teacher else [1.0] * len(self.chosen)
        return dict(zip((model.id for model in self.chosen), weights, strict=True))

    def _pooled_by(self, model: Model) -> tuple[str, Layers | None]:
        """Return a model's pooling and layers. Layers are None if the recipes determine them."""
        external = self.role == "member" and foreign(self.inputs, model)
        stored = open_embedder(model.model).stored_pooling if external else None
        return stored or (self.pooling, None)

    def _as_taught(self, model: Model, representations: Mapping[Layers, Representation]) -> dict[Layers, np.ndarray]:
        """Return a member's vectors for the ensemble. An external member has its own pooling."""
        if foreign(self.inputs, model):
            choice = self._pooled_by(model)[1]
            first = next(iter(representations.values()), None)
            representation = first if choice is None else representations.get(choice, first)
            return {self.inputs.pipeline.compared: representation["vectors"]} if representation else {}
        return {layers: values["vectors"] for layers, values in representations.items()}

    # -- what all rows have in common; read when the members are done --------------------------------------------------

    @cached_property
    def texts(self) -> list[Text]:
        """Return the distinct sentences of the tasks and of the development sets that are scored."""
        judged = [*(self.dev.texts if self.dev else ()), *(self.agreement.texts if self.agreement else ())]
        return list(dict.fromkeys([*harness.sentences(self.inputs.corpus, self.inputs.tasks), *judged]))

    @property
    def dev(self) -> Dev | None:
        return self.inputs.chooser if scored_on_dev(self.inputs.pipeline, self.role) else None

    @property
    def pooling(self) -> str:
        """Return the pooling of models that configure none."""
        return next(iter(_choices(self.inputs, self.role)))

    @cached_property
    def contamination(self) -> Contamination:
        return self.inputs.contamination()

    @cached_property
    def chosen(self) -> list[Model]:
        return selected(self.members, self.inputs.pipeline.select_top)

    @cached_property
    def chosen_by(self) -> dict[str, str | None]:
        """Return the development set that selected a model, by model id or ``ensemble``."""
        pipeline = self.inputs.pipeline
        dev, top = self.inputs.dev_name(members_dev(pipeline)), pipeline.select_top
        outcome = decide(candidates(self.members), [], combine=pipeline.combine, select_top=top, dev=dev)
        return {"ensemble": dev if top is not None else None, outcome.selected or "": outcome.selected_by}

    def _as_trained(self, model: Model | None, embedded: dict[Layers, Representation]) -> dict[Layers, Representation]:
        """Return the vectors under the recipe's choice of layers, for a model with heads.

        Such a model has one choice, which may be ``only-12`` for the last layer.
        """
        job = getattr(model, "job", None)
        if job is None or len(embedded) > 1 or embedded.keys() <= set(self.inputs.pipeline.measured):
            return embedded
        return {job.recipe.layers: next(iter(embedded.values()))}

    def _in_pipeline(self, subject: Subject) -> Row:
        """Return the columns of a subject's rows that depend on this pipeline."""
        inputs, model = self.inputs, subject.model
        role = "ensemble" if subject is self._ensemble else self.role
        record, job = model.record if model else {}, getattr(model, "job", None)
        parents = [inputs.backbone_id] if role == "backbone" else [run_id(member) for member in self.chosen]
        seen = role == "ensemble" and any(member.record.get("transductive") for member in self.chosen)
        return {
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
        }


def scored_on_dev(pipeline: Pipeline, role: str) -> bool:
    """Return True if evaluation scores models of a role on the development set.

    Those are the backbone, at which training starts, and every model that may be delivered.
    """
    return role == "backbone" or pipeline.deliver == "best"


def _prompt(inputs: Inputs, role: str) -> str | None:
    """Return the prompt for models of a role that configure none."""
    pipeline = inputs.pipeline
    return {"backbone": pipeline.prompt, "member": pipeline.teacher_prompt}.get(role)


def _choices(inputs: Inputs, role: str) -> dict[str, tuple[Layers, ...]]:
    """Return the measured choices of layers, by default pooling.

    The recipes' pooling is first. The backbone is also measured as it was distributed.
    """
    pipeline = inputs.pipeline
    recipes = (pipeline.sed if role == "student" else None, *reversed(pipeline.stages_of(0).values()))
    pooling: str = next((recipe.pooling for recipe in recipes if recipe), "mean")
    stored = [open_embedder(path).stored_pooling for path in inputs.teacher_folders]
    if role == "member" and len(poolings := {pooled[0] for pooled in stored if pooled}) == 1:
        (pooling,) = poolings
    choices = {pooling: pipeline.measured}
    if role == "backbone":
        distributed, layers = inputs.distributed
        choices[distributed] = tuple(dict.fromkeys([*choices.get(distributed, ()), layers]))
    return choices


class PartialSums:
    """Sum of the vectors of the first :attr:`count` members of an ensemble.

    ``totals``: by choice of layers, the float32 result of :func:`raysts.ops.ensemble.added`.
    """

    def __init__(self, store: Store, node: str) -> None:
        self.store, self.folder = store, store.path(f"evaluations/{node}")
        self.totals: dict[Layers, np.ndarray] = {}
        self.count = 0
        remove_drafts(self.folder)
        for path in store.list(self.folder):  # in order: the last one that is whole counts
            if path.match("members-*.npz") and store.get(path):
                self.count = int(path.stem.removeprefix("members-"))
                with np.load(path) as arrays:
                    self.totals = {as_layers(name): arrays[name] for name in arrays.files}

    def add(self, vectors: Mapping[Layers, np.ndarray], target: Target = "mean", weight: float = 1.0) -> None:
        for layers, values in vectors.items():
            self.totals[layers] = ensemble.added(target, self.totals.get(layers), values, weight)
        arrays: dict[str, Any] = {str(layers): total for layers, total in self.totals.items()}
        with self.store.put(self._file(self.count + 1)) as draft, draft.open("wb") as file:
            np.savez(file, **arrays)
        self.store.delete(self._file(self.count))
        self.count += 1

    def _file(self, members: int) -> Path:
        return self.folder / f"members-{members:03d}.npz"

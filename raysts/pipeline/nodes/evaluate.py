"""Evaluation of a backbone, of members with their ensemble, of a weight average, or of students: rows of the results table.

The scores that a model gives the rows of test sets are named by what goes into them and kept: ``row_scores/<id>.parquet``.
Whichever pipeline measures an equal model on equal data next takes them from there, and makes results rows with its own columns
(system, role, member, ...) and clean rows: so pipelines share backbones and members, and an evaluation that is killed goes on.
Its ``evaluations/<node>/`` holds the sum of the members' vectors (``members-001.npz``), from which their ensemble is made, and
goes when the results are written.
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
from raysts.models import pretrained
from raysts.models.layers import Layers, as_layers
from raysts.models.modules import pooled_by
from raysts.ops import ensemble
from raysts.ops.ensemble import Target
from raysts.ops.similarity import Similarity, cosine_of_vectors
from raysts.pipeline import teachers
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
    """What is measured: a model at a pooling of its token vectors, or an ensemble. ``content``: what it is, for ids. ``model``:
    None: the backbone, or the ensemble."""

    content: Any
    pooling: str
    layers: tuple[Layers, ...]
    model: Model | None = None


@dataclass(frozen=True, slots=True)
class EmbedTexts:
    """Represents the texts of an evaluation at several choices of layers.

    Units are model folders, their content ids (None: of a model of a run), their pooling, and where their vectors of held-out
    texts are kept, if they are. ``held_out``: those of the texts of which vectors may be kept.
    """

    device: str | None
    texts: Sequence[str]
    layers: Sequence[Layers]
    prompt: str | None
    held_out: Sequence[str] = ()

    def __call__(self, unit: tuple[Path, str | None, str, Path | None]) -> dict[Layers, Representation]:
        """None for vectors that are there, where they are not of all of the texts."""
        model, content, pooling, kept = unit
        held_out, known = {*self.held_out}, kept_vectors(kept, pooling, self.layers) if kept else {}
        if not known:
            return self._embed(model, content, pooling, self.texts)
        left = [text for text in self.texts if text not in held_out]
        found = self._embed(model, content, pooling, left) if left else {}
        if left and not found:
            return {}
        row_of = {text: row for row, text in enumerate(self.texts)}
        whole: dict[Layers, Representation] = {}
        for choice, vectors in known.items():
            parts = [vectors, found[choice]["vectors"]] if left else [vectors]
            order = np.argsort([row_of[text] for text in (*self.held_out, *left)])
            whole[choice] = {"vectors": np.concatenate(parts)[order]}
        return whole

    def _embed(
        self, model: Path, content: str | None, pooling: str, texts: Sequence[str]
    ) -> dict[Layers, Representation]:
        if teachers.kind(model) != "encoder":  # it pools as it does
            other = teachers.load(model, prompt=self.prompt, device=self.device, content=content)
            if isinstance(other, teachers.PrecomputedVectors) and other.missing(texts) is not None:
                return {}
            return {self.layers[0]: {"vectors": other.vectors(other.tokenize(texts))}}
        how = {"pooling": pooling, "prompt": self.prompt, "device": self.device, "content": content}
        loaded = pretrained.load(model, **how)  # type: ignore[arg-type]
        return loaded.represent_layers(texts, self.layers)


@dataclass(frozen=True, kw_only=True)
class EvaluateNode:
    """The results rows of one part: of the backbone, the members with their ensemble, a weight average, or the students.

    Attributes:
        models: what is evaluated; none for the backbone.
        agreement: what is measured beside the tasks where there are no labels to select by.
        teacher: of the students, which knows how much each member counts; None: all do alike.
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
                *(model.id for model in models if isinstance(model, Step)),
                *([agreement.id] if agreement else []),
                *([teacher.vectors.id] if teacher and unlike else []),
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
        kept = [self.agreement.folder] if self.agreement and self.role == "member" else []
        return Step(
            kind="scores",
            id=self.id,
            title=self.title,
            needs=self.needs,
            output=self.part,
            work=self.run,
            resources=embedding_resources(self.inputs.pipeline.resources),
            sentences=self.sentences,
            scratch=(self.inputs.storage / "evaluations" / self.id, *kept),
        )

    def rows(self) -> list[Row]:
        return results.read_part(self.inputs.storage, self.id)

    def run(self, executor: Executor, store: Store, say: Say) -> None:
        inputs, subjects, together = self.inputs, self._subjects, self._ensemble
        every = [*subjects, together] if together else subjects
        missing = [each for each in every if store.get(self._row_scores_of(each)) is None]
        sums = PartialSums(store, self.id)
        summed = [each for each in subjects if each.content in {model.id for model in self.chosen}] if together else []
        to_sum = summed[sums.count :] if together in missing else []
        waiting = [each for each in subjects if each in missing or each in to_sum]
        if known := len(subjects) - len(waiting):
            say(f"{self.title}: {known} of {len(subjects)} were measured before")
        weights = self._weights(store) if together else {}
        for layers, group in itertools.groupby(waiting, key=lambda each: each.layers):
            alike = list(group)
            units = self._units(alike)
            args = (self.texts, layers, _prompt(inputs, self.role), self._held_out.texts if self._held_out else ())
            embedded = executor.map(EmbedTexts, args, units, inputs.pipeline.resources, say)
            for each, of_model in zip(alike, embedded, strict=True):
                folder = self._folder(each)
                representations = self._as_trained(each.model, of_model)
                if each in missing:
                    self._keep(each, representations, similarities_of(folder))
                if each.model and each in to_sum:
                    vectors = self._as_taught(each.model, representations)
                    sums.add(vectors, inputs.target, weights[each.model.id])
                if each.model:
                    say(f"{self.title}: {subjects.index(each) + 1} of {len(subjects)}")
                if not representations:
                    say(
                        f"{self.title}: {folder} has no vectors of the test texts; neither it nor an ensemble is measured"
                    )
        rows = [self._rows(each) for each in subjects]
        if together and all(rows):
            if together in missing:
                means: dict[Layers, Representation] = {
                    layers: {"vectors": ensemble.combined(inputs.target, total, list(weights.values()))}
                    for layers, total in sums.totals.items()
                }
                self._keep(together, means, {"cosine": cosine_of_vectors})
            rows.append(self._rows(together))
        results.write(inputs.storage, self.id, [row for of_subject in rows for row in of_subject])
        for path in self.step.scratch:
            store.delete(path)

    def _folder(self, subject: Subject) -> Path:
        return subject.model.model if subject.model else self.inputs.start

    @property
    def _held_out(self) -> AgreementNode | None:
        """What keeps the members' vectors of held-out texts."""
        return self.agreement if self.role == "member" else None

    def _units(self, subjects: Sequence[Subject]) -> list[tuple[Path, str | None, str, Path | None]]:
        units = []
        for each in subjects:
            folder = self._folder(each)
            kept = self._held_out.kept(each.model) if self._held_out and each.model else None
            units.append((folder, self.inputs.contents.get(folder), each.pooling, kept))
        return units

    # -- what is kept of a model, by what goes into it ------------------------------------------------------------------

    @cached_property
    def _subjects(self) -> list[Subject]:
        choices = _choices(self.inputs, self.role)
        if self.role == "backbone":
            known = self.inputs.backbone_id
            return [Subject(content=known, pooling=pooling, layers=layers) for pooling, layers in choices.items()]
        return [
            Subject(content=model.id, pooling=self._pooled_by(model)[0], layers=choices[self.pooling], model=model)
            for model in self.models
        ]

    @cached_property
    def _ensemble(self) -> Subject | None:
        """The members combined, where a pipeline does so."""
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
        """Measure the scores that a subject gives every row, and keep them.

        Raises:
            RunFailed: the model gives values that are not finite, or the same for every pair.
        """
        inputs, found = self.inputs, dict[Choice, list[RowScores]]()
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
            found[subject.pooling, str(layers)] = of_layers
        inputs.corpus.check_unchanged(inputs.test_tables)
        scores.write(self._row_scores_of(subject), found)

    def _rows(self, subject: Subject) -> list[Row]:
        """Return the results rows of what is kept of a subject, with the columns of this pipeline."""
        rows: list[Row] = []
        for (pooling, layers), found in (scores.read(self._row_scores_of(subject)) or {}).items():
            known = {**self._in_pipeline(subject), "pooling": pooling, "layers": layers}
            tested = [of_set for of_set in found if of_set.split != "dev"]
            rows += harness.rows_of(tested, known, self.inputs.pipeline.evaluation.resamples, self.contamination.clean)
        return rows

    def _kept(self, model: str) -> dict[Choice, list[RowScores]]:
        """Return what is kept of a model (its id; ``backbone`` and ``ensemble``)."""
        found: dict[Choice, list[RowScores]] = {}
        for subject in [self._ensemble] if model == "ensemble" else self._subjects:
            if subject is not None and (subject.model is None or subject.model.id == model):
                found |= scores.read(self._row_scores_of(subject)) or {}
        return found

    def row_scores(self, model: str) -> dict[Choice, ModelScores]:
        """Return the scores of a model (its id; ``backbone`` and ``ensemble``) by which it is compared."""
        return {choice: scores.scores_by_set(found) for choice, found in self._kept(model).items()}

    def dev_scores(self, model: str) -> dict[Choice, float]:
        """Return the scores of a model on the development set, by which checkpoints are selected, too."""
        if (dev := self.dev) is None:
            return {}
        on_dev = {c: [of for of in found if of.split == "dev"] for c, found in self._kept(model).items()}
        return {choice: dev.values(found)[dev.metrics[0]] for choice, found in on_dev.items() if found}

    def _weights(self, store: Store) -> dict[str, float]:
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
        judged = [*(self.dev.texts if self.dev else ()), *(self.agreement.texts if self.agreement else ())]
        return list(dict.fromkeys([*harness.sentences(self.inputs.corpus, self.inputs.tasks), *judged]))

    @property
    def dev(self) -> Dev | None:
        return self.inputs.chooser if scored_on_dev(self.inputs.pipeline, self.role) else None

    @property
    def pooling(self) -> str:
        """Of the token vectors, where a model has none of its own."""
        return next(iter(_choices(self.inputs, self.role)))

    @cached_property
    def contamination(self) -> Contamination:
        return self.inputs.contamination()

    @cached_property
    def chosen(self) -> list[Model]:
        return selected(self.members, self.inputs.pipeline.select_top)

    @cached_property
    def chosen_by(self) -> dict[str, str | None]:
        """The development set that chose a model among others, by the model's id; that of an ensemble by ``ensemble``."""
        pipeline = self.inputs.pipeline
        dev, top = self.inputs.dev_name(members_dev(pipeline)), pipeline.select_top
        outcome = decide(candidates(self.members), [], combine=pipeline.combine, select_top=top, dev=dev)
        return {"ensemble": dev if top is not None else None, outcome.selected or "": outcome.selected_by}

    def _as_trained(self, model: Model | None, embedded: dict[Layers, Representation]) -> dict[Layers, Representation]:
        """With the one choice of layers of a model with heads as its recipe says it: the last may be ``only-12`` there."""
        job = getattr(model, "job", None)
        if job is None or len(embedded) > 1 or embedded.keys() <= set(self.inputs.pipeline.measured):
            return embedded
        return {job.recipe.layers: next(iter(embedded.values()))}

    def _in_pipeline(self, subject: Subject) -> Row:
        """The columns that only this pipeline knows, of every row that was measured of a subject."""
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


def similarities_of(model: Path) -> Mapping[str, Similarity]:
    """What a model, or vectors that are there, are measured by."""
    encoder = teachers.kind(model) == "encoder"
    return pretrained.similarities(model) if encoder else {"cosine": cosine_of_vectors}


class PartialSums:
    """The sum of the vectors of the first :attr:`count` members of an ensemble. ``totals``: per choice of layers what
    :func:`raysts.ops.ensemble.added` makes of them, float32."""

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

"""Scores of a backbone, members with their ensemble, weight averages, or students on the tasks.

The row scores of a model are named by what decides them, ``row_scores/<id>.parquet``. Another pipeline that measures
an equal model on equal data reads them and adds its own columns and clean rows, and a killed step continues.
``evaluations/<step>/`` holds the sum of the members' vectors (``members.npz``) until the step is done.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysts.errors import RunFailed
from raysts.evaluation import harness, results, retrieval, scores
from raysts.evaluation.contamination import Contamination
from raysts.evaluation.dev import Dev
from raysts.evaluation.scores import Choice, ModelScores, RowScores
from raysts.evaluation.statistics import UndefinedCorrelationError
from raysts.evaluation.tasks import lookup
from raysts.evaluation.transfer import PROBE
from raysts.ids import content_id
from raysts.log import say
from raysts.models.embedders import open_embedder
from raysts.models.layers import Layers, as_layers
from raysts.models.prompts import Text
from raysts.ops import ensemble
from raysts.ops.ensemble import Target
from raysts.ops.similarity import Similarity, cosine_of_vectors
from raysts.pipeline.inputs import Inputs
from raysts.pipeline.outcome import Candidate, decide, members_dev
from raysts.pipeline.step import Context, Load, Step, new_step, run_id, select_members, step_id
from raysts.pipeline.steps.agreement import Agreement, EmbeddedTexts, EmbedTexts, teacher_vectors
from raysts.pipeline.steps.vectors import Teachers, foreign
from raysts.storage.atomic import remove_drafts
from raysts.storage.store import Store

if TYPE_CHECKING:
    from raysts.models.sentence_model import Representation

Row = dict[str, Any]
ROW_BYTES = 12
"""Bytes of scores and results that a model writes for each sentence, roughly."""
ON_MAP, LETTERS = 300, 300
"""Most texts of the page's map, and their first letters that it shows."""
Role = Literal["backbone", "member", "soup", "greedy-soup", "student"]
TITLES: dict[Role, str] = {
    "backbone": "backbone", "member": "members", "soup": "soup", "greedy-soup": "greedy soup", "student": "student"
}  # fmt: skip


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Subject:
    """A model at a pooling of its token vectors, or an ensemble."""

    name: str  # the model's id, ``backbone`` or ``ensemble``
    pooling: str
    layers: tuple[Layers, ...]
    file: Path  # its row scores
    folder: Path  # of the model; of an ensemble, unused
    model: Step | None = None  # None for the backbone and the ensemble


@dataclass(frozen=True)
class RoleEvaluation:
    """The models of one role, the step that scores them, and their scores."""

    inputs: Inputs
    role: Role
    models: Sequence[Step]  # empty for the backbone
    members: Sequence[Step]
    agreement: Agreement | None  # a measure besides the tasks, without labels that select
    teachers: Teachers | None  # of the students; they weight the members of the ensemble

    @cached_property
    def step(self) -> Step:
        """Return the step that scores the models and writes their results rows."""
        inputs, pipeline, weights = self.inputs, self.inputs.pipeline, self._weights_by
        combined = [pipeline.combine, pipeline.select_top, str(pipeline.compared_layers), inputs.target, weights]
        step = step_id(
            "scores", role=self.role, row_scores=[subject.file.stem for subject in self.single],
            training_text=sorted(inputs.specs),  # clean rows do not hold it
            resamples=pipeline.evaluation.resamples, system=pipeline.name, ensemble=combined,
        )  # fmt: skip
        judged = len(self.dev.texts) if self.dev and not inputs.uses_agreement else 0
        judged += len(self.agreement.texts) if self.agreement else 0
        models = max(1, len(self.models)) + len(self.besides)
        sentences, heavy = (inputs.test_sentences + judged) * models, [n for n in inputs.tasks if n in harness.HEAVY]
        size = inputs.size_of([model.output for model in self.models])
        title = "teachers" if self.role == "member" and pipeline.teachers else TITLES[self.role]
        return new_step(
            inputs,
            "scores",
            step,
            [*self.models, self.agreement.step if self.agreement else None, weights],
            title=" with ".join([f"evaluate {title}", *heavy]),
            work=self._measure,
            sentences=sentences,
            load=Load(size, inputs.test_tokens, units=models),
            bytes=round(sentences * ROW_BYTES),
            left=self._share,
        )

    # -- what is measured --------------------------------------------------------------------------------------------

    @cached_property
    def subjects(self) -> list[Subject]:
        if self.role == "backbone":
            choices = self._choices.items()
            return [self._subject("backbone", pooling, layers) for pooling, layers in choices]
        layers = self._choices[self.pooling]
        return [self._subject(model.id, self._pooled_by(model)[0], layers, model) for model in self.models]

    @cached_property
    def besides(self) -> list[Subject]:
        """Return the backbone or the members at other poolings. None of them is combined, chosen or delivered."""
        poolings = [mode for mode in self.inputs.pipeline.evaluation.poolings if mode not in self._choices]
        layers = self._choices[self.pooling]
        if self.role == "backbone":
            return [self._subject("backbone", mode, layers) for mode in poolings]
        plain = [m for m in self.models if self.role == "member" and m.job and not m.job.recipe.has_head]
        return [self._subject(m.id, mode, layers, m) for m in plain for mode in poolings]

    @property
    def single(self) -> list[Subject]:
        """Return all single models at all poolings, without the ensemble."""
        return [*self.subjects, *self.besides]

    @cached_property
    def ensemble(self) -> Subject | None:
        """Return the combination of the members, or None if the pipeline combines none."""
        inputs = self.inputs
        if self.role != "member" or not inputs.pipeline.combine:
            return None
        members = [[model.id, self._pooled_by(model)] for model in self.chosen]
        content = ["ensemble", members, str(inputs.pipeline.compared_layers), [inputs.target, self._weights_by]]
        return self._subject("ensemble", self.pooling, self._choices[self.pooling], content=content)

    def _subject(
        self, name: str, pooling: str, layers: tuple[Layers, ...], model: Step | None = None, content: Any = None
    ) -> Subject:
        """Return what is measured of a model. ``content`` identifies an ensemble in ids."""
        content = model.id if model else content or self.inputs.backbone_id
        identity = [harness.VERSION, [content, pooling, [str(choice) for choice in layers]], self._prompt, self._data]
        identity += [self.agreement.step.id if self.agreement else None]
        identity += [self.index.id] if self.index else []
        file = self.inputs.storage / "row_scores" / f"{content_id(identity)}.parquet"
        folder = model.output if model else self.inputs.start
        return Subject(name=name, pooling=pooling, layers=layers, file=file, folder=folder, model=model)

    @cached_property
    def chosen(self) -> list[Step]:
        return select_members(self.members, self.inputs.pipeline.select_top)

    @property
    def pooling(self) -> str:
        """Return the pooling of models that configure none."""
        return next(iter(self._choices))

    @property
    def dev(self) -> Dev | None:
        """Return the development set that scores this role: of the start, and of what may be delivered."""
        scored = self.role == "backbone" or self.inputs.pipeline.deliver == "best"
        return self.inputs.chooser if scored else None

    @cached_property
    def texts(self) -> list[Text]:
        """Return the distinct sentences of the tasks and of the development sets that are scored."""
        judged = [*(self.dev.texts if self.dev else ()), *(self.agreement.texts if self.agreement else ())]
        return list(dict.fromkeys([*harness.sentences(self.inputs.corpus, self.inputs.tasks), *judged]))

    @cached_property
    def _choices(self) -> dict[str, tuple[Layers, ...]]:
        """Return the measured choices of layers, by default pooling. The recipes' pooling is first."""
        inputs, pipeline = self.inputs, self.inputs.pipeline
        recipes = (pipeline.sed if self.role == "student" else None, *reversed(pipeline.stages_of(0).values()))
        pooling: str = next((recipe.pooling for recipe in recipes if recipe), "mean")
        stored = [open_embedder(path).stored_pooling for path in inputs.teacher_folders]
        if self.role == "member" and len(poolings := {pooled[0] for pooled in stored if pooled}) == 1:
            (pooling,) = poolings
        choices = {pooling: pipeline.measured_layers}
        if self.role == "backbone":
            distributed, layers = inputs.distributed_pooling
            choices[distributed] = tuple(dict.fromkeys([*choices.get(distributed, ()), layers]))
        return choices

    def _pooled_by(self, model: Step) -> tuple[str, Layers | None]:
        """Return a model's pooling and layers. Layers are None if the recipes determine them."""
        external = self.role == "member" and foreign(model)
        stored = open_embedder(model.output).stored_pooling if external else None
        return stored or (self.pooling, None)

    @property
    def _prompt(self) -> str | None:
        """Return the prompt for models that configure none."""
        return {"backbone": self.inputs.pipeline.prompt, "member": self.inputs.pipeline.teacher_prompt}.get(self.role)

    @property
    def _weights_by(self) -> str | None:
        """Return the id of the step that finds the weights of the ensemble, or None for equal weights."""
        teachers = self.teachers if self.role == "member" else None
        return teachers.vectors.id if teachers and teachers.settings.weights else None

    def _share(self, store: Store) -> float:
        """Return the share of the models that no other run has scored. An ensemble needs all of them."""
        missing = [subject for subject in self.single if not store.exists(subject.file)]
        if store.exists(self.step.output) or (missing and self.role == "member" and self.inputs.pipeline.combine):
            return 1.0
        if not missing and self.ensemble and not store.exists(self.ensemble.file):
            return 1.0
        return len(missing) / len(self.single)

    # -- scores on record --------------------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        return results.read_rows(self.step.output)

    def row_scores(self, model: str, similarity: str | None = None) -> dict[Choice, ModelScores]:
        """Return the scores that comparisons of a model use, by its first similarity or the named one."""
        by_choice = self._read_scores(model).items()
        return {c: scores.scores_by_set(s for s in rows if similarity in (None, s.similarity)) for c, rows in by_choice}

    def costs(self) -> dict[str, dict[str, Any]]:
        """Return the costs of the measured models, by id, and of an ensemble of several together."""
        costs = {s.name: cost for s in self.subjects if (cost := scores.read_cost(s.file))}
        members = [costs[member.id] for member in self.chosen if member.id in costs]
        if self.ensemble and len(members) > 1 and len(members) == len(self.chosen):
            columns = {name: [cost[name] for cost in members] for name in members[0]}
            sums = {n: None if None in columns[n] else sum(columns[n]) for n in ("parameters", "bytes", "dimensions")}
            if self.inputs.target != "concat":
                sums["dimensions"] = columns["dimensions"][0]
            speeds = {n: 1 / sum(1 / x for x in columns[n]) for n in ("texts_per_second", "texts_per_cpu_second")}
            costs["ensemble"] = {**sums, "tokens": float(np.mean(columns["tokens"])), **speeds}
        return costs

    def dev_scores(self, model: str) -> dict[Choice, float]:
        """Return a model's scores on the development set, which also select checkpoints."""
        if (dev := self.dev) is None:
            return {}
        by_choice = {choice: [s for s in rows if s.split == "dev"] for choice, rows in self._read_scores(model).items()}
        return {choice: dev.values(on_dev)[dev.metrics[0]] for choice, on_dev in by_choice.items() if on_dev}

    def _read_scores(self, model: str) -> dict[Choice, list[RowScores]]:
        named = [subject for subject in (*self.subjects, self.ensemble) if subject and subject.name == model]
        return {choice: rows for subject in named for choice, rows in (scores.read(subject.file) or {}).items()}

    @cached_property
    def _data(self) -> list[Any]:
        """Return the names and content of the tables that the scores are of, and a probe that is not standard."""
        corpus, tasks = self.inputs.corpus, harness.tasks_of(self.inputs.corpus)
        tables = [(name, table) for name in self.inputs.tasks for table in tasks[name].tables(corpus)]
        tables += [("dev", members_dev(self.inputs.pipeline))] if self.dev is not None else []
        contents = [[name, table, corpus.fingerprint(table) if corpus.files(table) else None] for name, table in tables]
        probe = self.inputs.pipeline.evaluation.probe
        return contents + ([["probe", probe]] if probe != PROBE and "transfer" in self.inputs.tasks else [])

    # -- the work ----------------------------------------------------------------------------------------------------

    def _measure(self, context: Context) -> None:
        store, inputs, subjects, combined = context.store, self.inputs, self.single, self.ensemble
        title, sums = self.step.title, PartialSums(store, self.step.id)
        missing = {s.file for s in (*subjects, combined) if s and store.get(s.file) is None}
        weights: dict[str, float] = {}
        if combined and combined.file in missing:
            of_chosen = self.teachers.weights(store) if self.teachers else [1.0] * len(self.chosen)
            weights = dict(zip((model.id for model in self.chosen), of_chosen, strict=True))
        index = self._embed_index(context) if missing else {}
        to_sum = {subject.file for subject in [s for s in self.subjects if s.name in weights][sums.count :]}
        waiting = [subject for subject in subjects if subject.file in missing | to_sum]
        if stored := len(subjects) - len(waiting):
            say(f"{title}: {stored} of {len(subjects)} were measured before")
        for subject, embedding in self._embed(waiting, context):
            embedding = embedding._replace(vectors=self._as_trained(subject.model, embedding.vectors))
            if subject.file in missing:
                self._write(subject, embedding, open_embedder(subject.folder).similarities, index)
            if subject.model and subject.file in to_sum:
                sums.add(self._as_taught(subject.model, embedding.vectors), inputs.target, weights[subject.name])
            if subject.model:
                say(f"{title}: {subjects.index(subject) + 1} of {len(subjects)}")
            if not embedding.vectors:
                lacks = "has no vectors of the test texts; neither it nor an ensemble is measured"
                say(f"{title}: {subject.folder} {lacks}")
        rows = [self._rows(subject) for subject in subjects]
        if combined and all(rows):
            if weights:
                weight = list(weights.values())
                totals = {k: ensemble.combine(inputs.target, total, weight) for k, total in sums.totals.items()}
                means = EmbeddedTexts({layers: {"vectors": total} for layers, total in totals.items()}, {})
                self._write(combined, means, {"cosine": cosine_of_vectors})
            rows.append(self._rows(combined))
        results.write(inputs.storage, self.step.id, list(itertools.chain(*rows)))
        store.delete(sums.file.parent)

    def _embed(self, subjects: Sequence[Subject], context: Context) -> Iterable[tuple[Subject, EmbeddedTexts]]:
        """Yield each subject with the result of :class:`EmbedTexts` for its model."""
        for layers, group in itertools.groupby(subjects, key=lambda subject: subject.layers):
            batch, args = list(group), (self.texts, layers, self._prompt, self.inputs.model_sets)
            units = [(s.folder, self.inputs.contents.get(s.folder), s.pooling) for s in batch]
            yield from zip(batch, context.map(EmbedTexts, args, units), strict=True)

    @property
    def index(self) -> Step | None:
        """Return the teacher that embedded the documents for the students' queries, or None."""
        return self.members[0] if self.role == "student" and self.inputs.pipeline.keep_index else None

    def _embed_index(self, context: Context) -> dict[Text, np.ndarray]:
        """Return the vector of each document in the index that the students keep."""
        documents = retrieval.documents_of(harness.sets_of(self.inputs.corpus, self.inputs.tasks)) if self.index else []
        if not self.index or not documents:
            return {}
        (vectors_ND,) = teacher_vectors(self.inputs, context, [self.index], documents)
        return {} if vectors_ND is None else dict(zip(documents, vectors_ND, strict=True))

    def _as_taught(self, model: Step, vectors: Mapping[Layers, Representation]) -> dict[Layers, np.ndarray]:
        """Return a member's vectors for the ensemble. An external member has its own pooling."""
        if foreign(model):
            first = next(iter(vectors.values()), None)
            chosen = vectors.get(self._pooled_by(model)[1] or "", first)
            return {self.inputs.pipeline.compared_layers: chosen["vectors"]} if chosen else {}
        return {layers: values["vectors"] for layers, values in vectors.items()}

    def _as_trained(self, model: Step | None, vectors: dict[Layers, Representation]) -> dict[Layers, Representation]:
        """Return the vectors under the recipe's choice (perhaps ``only-12``) of a model with heads."""
        if model is None or model.job is None or len(vectors) > 1:
            return vectors
        measured = vectors.keys() <= set(self.inputs.pipeline.measured_layers)
        return vectors if measured else {model.job.recipe.layers: next(iter(vectors.values()))}

    def _write(
        self, subject: Subject, embedding: EmbeddedTexts, similarities: Mapping[str, Similarity],
        index: Mapping[Text, np.ndarray] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """Compute the row scores of a subject, and of its queries in an ``index``, and store them.

        Raises:
            RunFailed: the model gives values that are not finite, or the same for every pair.
        """
        inputs, by_choice = self.inputs, dict[Choice, list[RowScores]]()
        tested = harness.sets_of(inputs.corpus, inputs.tasks, inputs.pipeline.evaluation.probe)
        sets = [*tested, *(self.agreement.test.sets if self.agreement else ())]
        for layers, values in embedding.vectors.items():
            represent = lookup(self.texts, values)
            try:
                of_layers = harness.row_scores(sets, represent, similarities)
                of_layers += retrieval.index_scores(sets, represent, index) if index else []
                of_layers += self.dev.row_scores(represent, similarities) if self.dev else []
                harness.rows_of(of_layers, {}, 0)
            except UndefinedCorrelationError as error:  # which of several
                raise RunFailed(f"{self.step.title}: '{subject.folder}': {error}") from None
            by_choice[subject.pooling, str(layers)] = of_layers
        for layers, row_scores in embedding.scores.items():
            by_choice.setdefault((subject.pooling, str(layers)), []).extend(row_scores)
        inputs.corpus.check_unchanged(inputs.test_tables)
        if embedding.vectors and subject in self.map_subjects:
            self._write_map(subject, embedding.vectors)
        scores.write(subject.file, by_choice, asdict(embedding.cost) if embedding.cost else None)

    @property
    def map_subjects(self) -> list[Subject]:
        """Return what the map of texts on the page shows: the ensemble, or students."""
        if self.role == "student":
            return self.subjects
        return [self.ensemble] if self.ensemble else []

    def map_file(self, subject: Subject) -> Path:
        return self.inputs.storage / "maps" / subject.file.name

    def _write_map(self, subject: Subject, vectors: Mapping[Layers, Representation]) -> None:
        """Keep the vectors of some texts, the same ones for the ensemble and its students."""
        among = self.agreement.texts if self.agreement else harness.sentences(self.inputs.corpus, self.inputs.tasks)
        texts = [among[place] for place in np.random.default_rng(0).permutation(len(among))[:ON_MAP]]
        chosen = vectors.get(self.inputs.pipeline.compared_layers) or next(iter(vectors.values()))
        vectors_ND = lookup(self.texts, chosen)(texts)["vectors"].astype(np.float16)
        table = pa.table({"text": [str(text)[:LETTERS] for text in texts], "vector": list(vectors_ND)})
        with Store.of(subject.file).put(self.map_file(subject)) as draft:
            pq.write_table(table, draft)

    # -- results rows, when the members are done -----------------------------------------------------------------------

    def _rows(self, subject: Subject) -> list[Row]:
        rows: list[Row] = []
        inputs, resamples = self.inputs, self.inputs.pipeline.evaluation.resamples
        sets = harness.sets_of(inputs.corpus, inputs.tasks) if self.role == "backbone" else []
        for (pooling, layers), row_scores in (scores.read(subject.file) or {}).items():
            columns = {**self._columns(subject), "pooling": pooling, "layers": layers}
            tested = [of_set for of_set in row_scores if of_set.split != "dev"]
            rows += harness.rows_of(tested, columns, resamples, self._contamination.clean)
            rows += harness.baseline_rows(sets, columns, resamples, self._contamination.clean)
        return rows

    @cached_property
    def _contamination(self) -> Contamination:
        return self.inputs.contamination()

    @cached_property
    def _selected_by(self) -> dict[str, str | None]:
        """Return the development set that selected a model, by model id or ``ensemble``."""
        pipeline, members = self.inputs.pipeline, [Candidate.of(model.id, model.record) for model in self.members]
        dev, top = self.inputs.dev_name(members_dev(pipeline)), pipeline.select_top
        outcome = decide(members, [], combine=pipeline.combine, select_top=top, dev=dev)
        return {"ensemble": dev if top is not None else None, outcome.selected or "": outcome.selected_by}

    def _columns(self, subject: Subject) -> Row:
        """Return the columns of a subject's rows that depend on this pipeline."""
        inputs, model = self.inputs, subject.model
        role = "ensemble" if subject.name == "ensemble" else self.role
        record, job = (model.record, model.job) if model else ({}, None)
        parents = record.get("parents") or ([inputs.backbone_id] if role == "backbone" else [*map(run_id, self.chosen)])
        transductive = role == "ensemble" and any(member.record.get("transductive") for member in self.chosen)
        return {
            "run_id": run_id(model) if model else None,
            "parent_run_ids": parents,
            "system": inputs.pipeline.name,
            "recipe": "-".join(inputs.pipeline.stages) or "raw",
            "role": role,
            # A student that is one of several here may have been trained as the only one.
            "member": job.facts["member"] if job else record.get("member"),
            "seed": record.get("seed"),
            "transductive": bool(record.get("transductive", transductive)),
            "selected_by": record.get("selected_by") or self._selected_by.get(subject.name),
            "step": (record.get("kept") or {}).get("step"),
        }


class PartialSums:
    """Sum of the float32 vectors of the first :attr:`count` members of an ensemble, by choice of layers."""

    def __init__(self, store: Store, step: str) -> None:
        self.store, self.file = store, store.path(f"evaluations/{step}/members.npz")
        self.totals: dict[Layers, np.ndarray] = {}
        self.count = 0
        remove_drafts(self.file.parent)
        if store.get(self.file):
            with np.load(self.file) as arrays:
                self.totals = {as_layers(name): arrays[name] for name in arrays.files if name != "count"}
                self.count = int(arrays["count"])

    def add(self, vectors: Mapping[Layers, np.ndarray], target: Target = "mean", weight: float = 1.0) -> None:
        """Add the vectors of the next member, and store the sum."""
        for layers, values in vectors.items():
            self.totals[layers] = ensemble.added(target, self.totals.get(layers), values, weight)
        self.count += 1
        arrays: dict[str, Any] = {str(layers): total for layers, total in self.totals.items()}
        with self.store.put(self.file) as draft, draft.open("wb") as opened:
            np.savez(opened, count=self.count, **arrays)

"""Evaluating a model on the STS sets: raysts' harness and sentence-transformers' evaluator, the same files, in turns, fp32.

raysts embeds each distinct sentence once for all sets, sorted by length; the other side has one
``EmbeddingSimilarityEvaluator`` a set, as its users do. Both start from the files and end with Spearman of every set;
intervals are left out (``--resamples 0``), which the other side does not have, and are timed apart.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import measure
import workload

SIDES: dict[str, dict[str, Any]] = {
    "raysts": {"who": "raysts", "resamples": 0},
    "raysts, 1,000 resamples": {"who": "raysts", "resamples": 1_000},
    "sentence-transformers, batch 32": {"who": "st", "batch": 32},
    "sentence-transformers, batch 128": {"who": "st", "batch": 128},
}
"""sentence-transformers' evaluator has a batch of 16 by default; larger ones are faster or level here."""


class Raysts:
    """``harness.evaluate`` with one choice of layers and the model's own similarity."""

    def __init__(self, model: Path, data: str, tasks: list[str], counts: dict[str, int], resamples: int) -> None:
        from raysts.models.pretrained import load

        self.model, self.data, self.tasks, self.counts, self.resamples = (
            load(model, device="cpu"),
            data,
            tasks,
            counts,
            resamples,
        )

    def __call__(self, number: int) -> measure.Sample:
        from raysts.data.corpora import Corpus
        from raysts.evaluation import harness

        began = time.perf_counter()
        rows = harness.evaluate(
            self.model, Corpus(self.data), self.tasks, (self.model.layers,), resamples=self.resamples
        )
        seconds = time.perf_counter() - began
        found = {r["dataset"]: r["value"] for r in rows if (r["metric"], r["aggregation"]) == ("spearman", "all")}
        return {"seconds": seconds, "values": found, **self.counts}


class SentenceTransformers:
    """One ``EmbeddingSimilarityEvaluator`` a set."""

    def __init__(self, model: Path, data: str, tasks: list[str], counts: dict[str, int], batch: int) -> None:
        from sentence_transformers import SentenceTransformer

        self.model = SentenceTransformer(str(model), device="cpu", model_kwargs={"dtype": "float32"})
        self.data, self.tasks, self.counts, self.batch = data, tasks, counts, batch

    def __call__(self, number: int) -> measure.Sample:
        from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

        from raysts.data.corpora import Corpus
        from raysts.evaluation.harness import TASKS

        began = time.perf_counter()
        found = {}
        for name in self.tasks:
            corpus = Corpus(self.data)
            parts = [corpus.read(table).to_pydict() for table in TASKS[name].tables(corpus)]
            columns = [[x for part in parts for x in part[c]] for c in ("sentence1", "sentence2", "score")]
            evaluator = EmbeddingSimilarityEvaluator(
                *columns, batch_size=self.batch, main_similarity="cosine", similarity_fn_names=["cosine"], name=name
            )
            found[name] = evaluator(self.model)[f"{name}_spearman_cosine"]
        return {"seconds": time.perf_counter() - began, "values": found, **self.counts}


def write_rows(
    data: str | None, tasks: list[str] | None, rows: int | None, folder: Path
) -> tuple[list[str], dict[str, int]]:
    """Copy the first ``rows`` of every STS table to ``folder``; the tasks, and how many sentences of pairs they have."""
    import pyarrow.parquet as pq

    from raysts.data.corpora import corpus_of
    from raysts.evaluation.harness import TASKS, check_tasks, sentences
    from raysts.evaluation.sts import STS_TASKS

    corpus = corpus_of(data)
    chosen = [name for name in check_tasks(corpus, tasks) if name in STS_TASKS]
    for table in dict.fromkeys(table for name in chosen for table in TASKS[name].tables(corpus)):
        path = folder / f"{table}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        columns = ["sentence1", "sentence2", "score"]  # without subsets, which the other side does not know
        pq.write_table(corpus.read(table, columns).slice(0, rows), path)
    from raysts.data.corpora import Corpus

    made = Corpus(folder)
    texts = [
        text
        for name in chosen
        for t in TASKS[name].tables(made)
        for c in columns[:2]
        for text in made.read(t)[c].to_pylist()
    ]
    return chosen, {"sentences": len(texts), "distinct": len(sentences(made, chosen)), "tokens": 0}


def main() -> None:
    import tempfile

    parser = measure.parser(__doc__)
    parser.add_argument("--tasks", help="comma-separated STS tasks (default: all that have files)")
    parser.add_argument("--rows", type=int, help="the first so many rows of every set (default: all)")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds must be positive")
    facts = measure.machine(args.threads)
    model = workload.model_folder(args.model)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tasks, counts = write_rows(args.data, args.tasks.split(",") if args.tasks else None, args.rows, folder)
        sides = []
        for name, settings in SIDES.items():
            own = {"model": model, "data": str(folder), "tasks": tasks, "counts": counts}
            own |= {key: value for key, value in settings.items() if key != "who"}
            side = measure.Side(
                name, Raysts if settings["who"] == "raysts" else SentenceTransformers, own, args.threads
            )
            stack.callback(side.close)
            sides.append(side)
        found = measure.in_turns(sides, args.rounds)
    reference = found["sentence-transformers, batch 32"][0]["values"]
    rows = []
    for name in SIDES:
        values = found[name][0]["values"]
        assert values.keys() == reference.keys()
        difference = max(abs(values[task] - reference[task]) for task in values)
        if difference > 1e-3:
            raise SystemExit(f"{name}: differs by {difference:.2g} in Spearman: the sides do not measure the same")
        row = measure.row(name, found[name], largest_difference=f"{difference:.1e}")
        del row["tokens_per_sentence"]
        rows.append({**row, "distinct": counts["distinct"]})
    theirs = measure.fastest(found, [name for name in SIDES if name.startswith("sentence")])
    ratios = [
        {"compared": ", ".join(tasks), "raysts": ours, "other": theirs} | measure.ratio(found[ours], found[theirs])
        for ours in SIDES
        if ours.startswith("raysts")
    ]
    measure.publish(args.json, facts, rows, ratios)


if __name__ == "__main__":
    main()

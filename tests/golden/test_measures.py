"""What a fixed encoder scores on the embedded sets, and against another one, as the golden record has it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from evaluation_fakes import HashedWords, write_table
from golden.golden import Golden

from raysts.data.corpora import Corpus
from raysts.data.world import EMBEDDED
from raysts.evaluation import harness
from raysts.evaluation.compare import compare_gains, compare_spread, compare_systems

TABLES = ("sts/sts12", "sts/stsb_test", "sick/sick_test", "nli/snli_dev", "nli/snli_test")
TASKS = ("sts12", "stsb", "sickr", "sick-2way", "sick-direction", "snli-direction", "retrieval")


def test_scores_and_differences(tmp_path: Path, golden: Golden) -> None:
    for table in TABLES:
        (tmp_path / table).parent.mkdir(exist_ok=True)
        shutil.copy(EMBEDDED / f"{table}.parquet", tmp_path / f"{table}.parquet")
    pairs = Corpus(EMBEDDED).read("sts/stsb_dev", ["sentence1", "sentence2", "score"]).to_pylist()[:300]
    documents = {"doc_id": [f"d{n}" for n in range(300)], "text": [pair["sentence2"] for pair in pairs]}
    queries = {"query_id": [f"q{n}" for n in range(60)], "text": [pair["sentence1"] for pair in pairs[:60]]}
    judged = {"query_id": queries["query_id"], "doc_id": documents["doc_id"][:60], "score": [1.0, 2.0] * 30}
    for part, columns in {"corpus": documents, "queries": queries, "qrels": judged}.items():
        write_table(tmp_path, f"retrieval/pairs/{part}", columns)
    corpus, model = Corpus(tmp_path), HashedWords()
    clean = {"stsb": np.arange(len(corpus.read("sts/stsb_test", ["score"]))) % 3 > 0}
    rows = harness.evaluate(model, corpus, TASKS, resamples=20, clean=clean)
    names = ("dataset", "rows", "role", "layers", "similarity", "metric", "aggregation", "subset")
    numbers = ("value", "ci_low", "ci_high", "n")
    scores = {" ".join(str(row[name]) for name in names if row[name]): [row[n] for n in numbers] for row in rows}
    golden.check("measures/scores", scores, 1e-6)

    sets = harness.sets_of(corpus, TASKS)
    texts = harness.distinct_texts(sets)
    by_layers = model.represent_layers(texts, (1, 2, 3))
    one, two, three = (harness.compared_scores(sets, texts, by_layers[k], model.similarities) for k in (1, 2, 3))
    compared = {
        "one": compare_systems([one], [two], 50),
        "several": compare_systems([one, three], [two], 50, ("spearman",), draw_sets=True),
        "spread": [compare_spread([one, three], [two, three], 50)],
        "gains": [compare_gains([one], [two, three], [two], [three], 50)],
    }
    decided = {
        name: [{k: v for k, v in row.items() if k != "dataset_sha256"} for row in rows]
        for name, rows in compared.items()
    }
    golden.check("measures/compared", decided, 1e-6)

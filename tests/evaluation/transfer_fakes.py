"""Small sets of SentEval's shape that a probe can learn."""

from pathlib import Path
from typing import Any

import numpy as np
from evaluation_fakes import write_table

from raysts.data.corpora import Corpus

WORDS = [f"w{i}" for i in range(18)]
NLI = ("entailment", "neutral", "contradiction")


def judged(rows: int, seed: int, classes: int = 2) -> dict[str, list[Any]]:
    """Texts whose class depends on the numbers of their words, with noise."""
    rng = np.random.default_rng(seed)
    chosen = rng.integers(0, len(WORDS), size=(rows, 4))
    noisy = (chosen % 6).mean(axis=1) + rng.normal(0, 0.5, rows)
    codes = np.empty(rows, np.int64)
    codes[np.argsort(noisy)] = np.arange(rows) * classes // rows  # as many of each
    texts = [f"{' '.join(WORDS[i] for i in row)} t{number}" for number, row in enumerate(chosen)]
    return {"text": texts, "label": codes.tolist()}


def related(rows: int, seed: int, low: int) -> dict[str, list[Any]]:
    """Pairs that share more words the higher their score; ``label`` follows the score."""
    rng = np.random.default_rng(seed)
    table: dict[str, list[Any]] = {"sentence1": [], "sentence2": [], "score": [], "label": []}
    for _ in range(rows):
        shared, first = int(rng.integers(0, 6)), list(rng.choice(WORDS, size=5))
        table["sentence1"].append(" ".join(first))
        table["sentence2"].append(" ".join(first[:shared] + list(rng.choice(WORDS, size=5 - shared))))
        table["score"].append(round(float(np.clip(low + shared * (5 - low) / 5 + rng.normal(0, 0.3), low, 5)), 2))
        table["label"].append(NLI[2 - shared // 2])
    return table


def write_sets(root: Path) -> Corpus:
    """All sets but cr, mpqa and subj."""
    write_table(root, "senteval/mr", judged(120, 0))
    for seed, split in enumerate(("train", "dev", "test")):
        write_table(root, f"senteval/sst2_{split}", judged(80, 10 + seed))
        write_table(root, f"senteval/sst5_{split}", judged(100, 20 + seed, classes=5))
        write_table(root, f"sts/stsb_{split}", related(80, 30 + seed, low=0))
    for seed, split in enumerate(("train", "trial", "test")):
        write_table(root, f"sick/sick_{split}", related(80, 40 + seed, low=1))
    for seed, split in enumerate(("train", "test")):
        write_table(root, f"senteval/trec_{split}", judged(90, 50 + seed, classes=3))
        pairs = related(90, 60 + seed, low=1)
        write_table(root, f"senteval/mrpc_{split}", pairs | {"label": [int(x == NLI[0]) for x in pairs["label"]]})
    return Corpus(root)

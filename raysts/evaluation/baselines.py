"""What needs no model, and what a model's score must be held against: words in common, and the longer sentence."""

from collections.abc import Mapping, Sequence

import numpy as np

from raysts.data.corpora import Corpus
from raysts.evaluation import harness
from raysts.evaluation.entailment import DirectionTask
from raysts.evaluation.row_scores import ModelScores
from raysts.evaluation.sts import StsTask

OVERLAP, LONGER = "word overlap", "longer sentence"

Arrays = Mapping[str, np.ndarray]


def baseline_scores(corpus: Corpus, tasks: Sequence[str]) -> dict[str, ModelScores]:
    """Scores of rows by baseline: on STS sets the Jaccard index of the words of a pair, on pairs of entailment that the
    longer sentence (in words) is the one that entails the other."""
    texts = harness.sentences(corpus, tasks)
    place = {text: index for index, text in enumerate(texts)}
    words = [frozenset(text.lower().split()) for text in texts]
    lengths = np.array([len(text.split()) for text in texts], dtype=np.float64)

    def represent(wanted: Sequence[str]) -> Arrays:
        return {"vectors": np.array([place[text] for text in wanted])}

    def overlap(a: Arrays, b: Arrays) -> np.ndarray:
        pairs = [(words[i], words[j]) for i, j in zip(a["vectors"], b["vectors"], strict=True)]
        return np.array([len(one & other) / max(1, len(one | other)) for one, other in pairs])

    def longer(a: Arrays, b: Arrays) -> np.ndarray:
        return lengths[b["vectors"]]

    found: dict[str, ModelScores] = {}
    for name, kind, similarity in ((OVERLAP, StsTask, overlap), (LONGER, DirectionTask, longer)):
        of_kind = [harness.TASKS[task] for task in tasks if isinstance(harness.TASKS[task], kind)]
        each = [s for t in of_kind for s in t.row_scores(corpus, represent, {name: similarity})]  # type: ignore[attr-defined]
        found[name] = {scores.dataset: scores for scores in each}
    return found

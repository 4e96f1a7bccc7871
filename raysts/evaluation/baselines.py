"""Baselines without a model: words in common, and the longer sentence."""

from collections.abc import Mapping, Sequence

import numpy as np

from raysts.data.corpora import Corpus
from raysts.evaluation import harness
from raysts.evaluation.entailment import Direction
from raysts.evaluation.scores import ModelScores
from raysts.evaluation.sts import Pairs
from raysts.models.prompts import Text

OVERLAP, LONGER = "word overlap", "longer sentence"

Arrays = Mapping[str, np.ndarray]


def baseline_scores(corpus: Corpus, tasks: Sequence[str]) -> dict[str, ModelScores]:
    """Return the row scores of baselines: the Jaccard index of words, and the longer sentence."""
    sets = harness.sets_of(corpus, tasks)
    texts = list(dict.fromkeys(text for labelled in sets for text in labelled.texts))
    place = {text: index for index, text in enumerate(texts)}
    words = [frozenset(str(text).lower().split()) for text in texts]

    def represent(wanted: Sequence[Text]) -> Arrays:
        return {"vectors": np.array([place[text] for text in wanted])}

    def overlap(a: Arrays, b: Arrays) -> np.ndarray:
        pairs = [(words[i], words[j]) for i, j in zip(a["vectors"], b["vectors"], strict=True)]
        return np.array([len(one & other) / max(1, len(one | other)) for one, other in pairs])

    overlaps = harness.row_scores([each for each in sets if isinstance(each, Pairs)], represent, {OVERLAP: overlap})
    directions = harness.row_scores([each for each in sets if isinstance(each, Direction)], represent, {})
    longer = [scores for scores in directions if scores.role == "baseline"]
    return {name: {of.dataset: of for of in scores} for name, scores in ((OVERLAP, overlaps), (LONGER, longer))}

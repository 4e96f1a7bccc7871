from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysts.data.corpora import Corpus
from raysts.papers.verdicts import LONGER, OVERLAP, baseline_scores


def test_word_overlap_and_the_longer_sentence(tmp_path: Path) -> None:
    pairs = {"sentence1": ["a b c", "A b", "x"], "sentence2": ["b c d", "a B", "y z"], "score": [1.0, 5.0, 0.0]}
    labelled = {
        "premise": ["a b c d", "a b", "a b"], "hypothesis": ["a b", "a b c", "b a"], "label": ["entailment"] * 3,
        "source": ["snli"] * 3,
    }  # fmt: skip
    for name, columns in (("sts/stsb_test", pairs), ("nli/snli_test", labelled)):
        path = tmp_path / f"{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), path)
    found = baseline_scores(Corpus(tmp_path), ["stsb", "snli-direction"])
    np.testing.assert_allclose(found[OVERLAP]["stsb"].values, [2 / 4, 1.0, 0.0])
    np.testing.assert_array_equal(found[LONGER]["snli-direction"].values, [1, 0, 0])  # a tie is wrong
    assert {*found[OVERLAP]} == {"stsb"} and {*found[LONGER]} == {"snli-direction"}

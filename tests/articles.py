"""Articles as those of Wikipedia."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

PLACES = ("river", "mountain", "village", "station", "library", "harbour", "bridge", "castle")
VERBS = ("was built", "was opened", "was mapped", "was sold", "was restored", "was described")
SMALL = {"seed": 3, "block_bytes": 16_000}
"""Many pieces and ranges of few articles."""


def articles_of(count: int) -> pa.Table:
    """Articles of eight sentences; some sentences repeat in other articles, also with other numbers or other case."""
    rng = np.random.default_rng([7, count])
    texts = []
    for i in range(count):
        sentences = [
            f"The {PLACES[rng.integers(8)]} number {rng.integers(90)} near the old {PLACES[rng.integers(8)]} "
            f"{VERBS[rng.integers(6)]} by people from the {PLACES[rng.integers(8)]}."
            for _ in range(7)
        ]
        texts.append(" ".join(sentences) + f"\nThe unique article of letter {chr(0x4E00 + i)} ends here now.")
    return pa.table({"article_id": np.arange(count), "title": ["T"] * count, "text": texts})

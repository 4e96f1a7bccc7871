"""Encoding sentences/s of raysts and of sentence-transformers: same model, same sentences, in turns, tokenising included."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import measure
import numpy as np
import workload

COMPARED = 64
"""Sentences whose vectors are compared between the sides."""

BATCHES = (16, 32, 128)

SIDES: dict[str, tuple[str, dict[str, Any]]] = {
    "raysts fp32": ("raysts", {"precision": "fp32"}),
    **{f"sentence-transformers fp32, batch {n}": ("st", {"dtype": "float32", "batch": n}) for n in BATCHES},
    "raysts bf16": ("raysts", {"precision": "bf16"}),
    **{f"sentence-transformers bf16, batch {n}": ("st", {"dtype": "bfloat16", "batch": n}) for n in BATCHES},
}
"""sentence-transformers' own default is a batch of 32; both sides sort the sentences by length."""


class Raysts:
    """``SentenceModel.encode``."""

    def __init__(self, model: Path, texts: list[str], tokens: int, precision: str) -> None:
        from raysts.models.pretrained import load

        self.model, self.texts, self.tokens = load(model, device="cpu", precision=precision), texts, tokens

    def __call__(self, number: int) -> measure.Sample:
        began = measure.clocks()
        return sample_of(self.model.encode(self.texts), self.tokens, began)


class SentenceTransformers:
    """``SentenceTransformer.encode``."""

    def __init__(self, model: Path, texts: list[str], tokens: int, dtype: str, batch: int) -> None:
        from sentence_transformers import SentenceTransformer

        self.model = SentenceTransformer(str(model), device="cpu", model_kwargs={"dtype": dtype})
        self.texts, self.tokens, self.batch = texts, tokens, batch

    def __call__(self, number: int) -> measure.Sample:
        began = measure.clocks()
        vectors = self.model.encode(self.texts, batch_size=self.batch, show_progress_bar=False)
        return sample_of(vectors, self.tokens, began)


def sample_of(vectors: np.ndarray, tokens: int, began: tuple[float, float]) -> measure.Sample:
    clock, cpu = measure.clocks()
    found = {"sentences": len(vectors), "tokens": tokens, "vectors": vectors[:COMPARED]}
    return found | {"seconds": clock - began[0], "cpu": cpu - began[1]}


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("--sentences", type=int, default=2_000, help="Wikipedia sentences to encode in a segment")
    args = parser.parse_args()
    if args.sentences < 1 or args.rounds < 1:
        parser.error("--sentences and --rounds must be positive")
    facts = measure.machine(args.threads)
    model = workload.model_folder(args.model)
    texts = workload.sentences(args.data, args.sentences)
    from raysts.models.pretrained import load

    tokens = int(load(model, device="cpu").tokenize(texts).lengths.sum())
    with ExitStack() as stack:
        sides = []
        for name, (who, settings) in SIDES.items():
            own = {"model": model, "texts": texts, "tokens": tokens, **settings}
            side = measure.Side(name, Raysts if who == "raysts" else SentenceTransformers, own, args.threads)
            stack.callback(side.close)
            sides.append(side)
        found = measure.in_turns(sides, args.rounds)
    reference = found["sentence-transformers fp32, batch 32"][0]["vectors"].astype(np.float64)
    peaks = {precision: measure.peak(precision, args.threads) for precision in ("fp32", "bf16")}
    each, rows = measure.work_per_token(model), []
    for name in SIDES:
        difference = float(np.abs(found[name][0]["vectors"].astype(np.float64) - reference).max())
        row = measure.row(name, found[name], largest_difference=f"{difference:.1e}")
        at_best = peaks["fp32" if "fp32" in name else "bf16"]
        rows.append(row | {"share_of_peak": measure.share_of_peak(found[name], each, at_best)})
    names = {who: [name for name, side in SIDES.items() if side[0] == who] for who in ("raysts", "st")}
    fp32 = [name for name in names["st"] if SIDES[name][1]["dtype"] == "float32"]
    pairs = {
        "default": ("raysts fp32", "sentence-transformers fp32, batch 32"),
        "equal": ("raysts fp32", measure.fastest(found, fp32)),
        "best": (measure.fastest(found, names["raysts"]), measure.fastest(found, names["st"])),
    }
    ratios = [
        {"objective": "encode", "compared": what, "raysts": ours, "other": theirs}
        | measure.ratio(found[ours], found[theirs])
        for what, (ours, theirs) in pairs.items()
    ]
    best = next(entry["raysts"] for entry in ratios if entry["compared"] == "best")
    shares = {"encode": next(row["share_of_peak"] for row in rows if row["side"] == best)}
    measure.publish(args.json, facts, rows, ratios, measure.summary(ratios, shares))


if __name__ == "__main__":
    main()

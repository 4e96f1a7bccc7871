"""Training sentences/s on a GPU, raysts and sentence-transformers in turns: one table of every objective.

    python benchmarks/gpu.py

``--device cpu --model FOLDER --rows 200 --steps 4 --rounds 1`` is the same at toy size without one.
"""

from __future__ import annotations

import importlib.util

import measure
import training_speed

SIDES = {
    "raysts fp32": ("raysts", {"precision": "fp32", "compiled": True}),
    "raysts auto": ("raysts", {"precision": "auto", "compiled": True}),
    "sentence-transformers fp32": ("st", {"bf16": False, "attention": "sdpa"}),
    "sentence-transformers bf16": ("st", {"bf16": True, "attention": "sdpa"}),
}
FLASH = {"sentence-transformers bf16, flash attention": ("st", {"bf16": True, "attention": "flash_attention_2"})}
"""Where flash-attn is installed: then it flattens its batches."""


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where both sides train")
    flash = importlib.util.find_spec("flash_attn") is not None
    training_speed.SIDES = SIDES | (FLASH if flash else {})
    args, rows, ratios, summary = training_speed.run(parser, training_speed.NAMES)
    facts = measure.machine(args.threads)
    if args.device == "cuda":
        import torch

        facts["gpu"] = torch.cuda.get_device_name()
    columns = ("objective", "side", "precision", "min", "median", "max", "share_of_peak")
    best = {ratio["objective"]: ratio["ratio"] for ratio in ratios if ratio["compared"] == "best"}
    table = [{name: row[name] for name in columns} for row in rows]
    for row in table:
        name = row["objective"].removesuffix("-unsup")
        row["best against best"] = best[name] if row["side"].startswith("raysts auto") else ""
    measure.publish(args.json, facts, table, [], summary)


if __name__ == "__main__":
    main()

"""What a distillation costs beside its least work: each teacher encodes each text once, and one epoch of the student.

Sides are processes of their own, one after the other, whose CPU seconds count from their start to their end: imports, models
that are loaded, files that are written. `raysts distill` tokenises, holds a tenth of the texts out, embeds, trains, measures
backbone, teachers, ensemble and student on what is held out, and writes model, card and page. The least work is done on the
same texts, in the same batches, once with raysts' encoder and once with sentence-transformers.
"""

from __future__ import annotations

import csv
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import measure
import workload

from raysts.commands.context import corpus_of
from raysts.data.user import TEXT
from raysts.recipes.recipe import DEFAULTS

PARTS = ("raysts", "sentence-transformers")
"""Whose encoder does the least work."""


def least(whose: str, teachers: list[str], student: str, texts: list[str]) -> None:
    """Cosines of the teachers' concatenated vectors, learnt by the student in batches of the recipe, in one epoch."""
    import numpy as np
    import torch

    recipe = DEFAULTS["sed"]
    longest = recipe.train.max_length
    if whose == "raysts":
        from raysts.models.pretrained import load

        def vectors(model: str) -> np.ndarray:
            return load(model, max_length=longest, device="cpu").encode(texts, normalize=True)

        learner = load(student, max_length=longest, device="cpu")
        module, tokens = learner.encoder.train(), learner.tokenize(texts)

        def forward(rows: np.ndarray) -> torch.Tensor:
            return learner.encoder(*tokens.take(rows).pad(learner.encoder.pad_id))
    else:
        from sentence_transformers import SentenceTransformer

        def model_of(name: str) -> SentenceTransformer:
            model = SentenceTransformer(name, device="cpu", local_files_only=True)
            model.max_seq_length = longest
            return model

        def vectors(model: str) -> np.ndarray:
            return model_of(model).encode(texts, normalize_embeddings=True)

        module = model_of(student).train()

        def forward(rows: np.ndarray) -> torch.Tensor:
            return module(module.tokenize([texts[row] for row in rows]))["sentence_embedding"]

    target = torch.from_numpy(np.concatenate([vectors(teacher) for teacher in teachers], axis=1))
    target /= len(teachers) ** 0.5
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-4)
    for rows in np.array_split(np.random.default_rng(0).permutation(len(texts)), -(-len(texts) // recipe.batch)):
        units = torch.nn.functional.normalize(forward(rows), dim=1)
        loss = (units @ units.T - target[rows] @ target[rows].T).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def cpu_seconds(arguments: list[str]) -> tuple[float, float]:
    """(CPU, clock) seconds of a Python process from its start to its end."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.perf_counter() - began


def main() -> None:
    parser = measure.parser(__doc__)
    parser.set_defaults(threads=1)
    parser.add_argument("--student", help="what the student starts from (default: the model)")
    parser.add_argument("--sentences", type=int, default=3_000, help="distinct Wikipedia sentences")
    parser.add_argument("--least", choices=PARTS, help="do the least work in this process, of the texts in --text")
    parser.add_argument("--text", type=Path)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    model = str(workload.model_folder(args.model))
    student = args.student or model
    teachers = list(dict.fromkeys([model, student]))
    if args.least:
        with args.text.open(newline="", encoding="utf-8") as file:
            least(args.least, teachers, student, [row["text"] for row in csv.DictReader(file)])
        return
    facts = measure.machine(args.threads)
    with tempfile.TemporaryDirectory(prefix="raysts-benchmark-") as name:
        folder, texts = Path(name), dict[str, None]()
        for batch in corpus_of(args.data).batches(TEXT, ["sentence"]):
            texts |= dict.fromkeys(batch.column(0).to_pylist())
        chosen = list(texts)[: args.sentences]
        with (folder / "text.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["text"], *([text] for text in chosen)])
        asked = ["--set", f"backbone={student}", "--text", str(folder / "text.csv"), "--column", "text"]
        here = ["--address", "none", "--set", f"resources.cpus={args.threads}", "--storage"]
        found: dict[str, list[measure.Sample]] = {}
        for number in range(args.rounds):
            storage = str(folder / f"storage-{number}")
            sides = {"raysts distill": ["-m", "raysts", "distill", *teachers, *asked, *here, storage]}
            for whose in PARTS:
                common = ["--least", whose, "--model", model, "--student", student, "--text", str(folder / "text.csv")]
                sides[f"least work, {whose}"] = [__file__, *common, "--threads", str(args.threads)]
            for side, arguments in sides.items():
                cpu, seconds = cpu_seconds(arguments)
                measure.say(f"  round {number + 1}: {side}: {cpu:.1f} s of CPU, {seconds:.1f} s")
                sample = {"cpu": cpu, "seconds": seconds, "sentences": len(chosen), "tokens": 0}
                found.setdefault(side, []).append(sample)
    rows = [
        {"side": side, "sentences": len(chosen), "CPU s, min": min(cpus), "max": max(cpus)}
        for side, samples in found.items()
        for cpus in [[sample["cpu"] for sample in samples]]
    ]
    ours, *others = found
    ratios = []
    for other in others:
        times = measure.ratio(found[other], found[ours])  # how many times faster the least work is
        ratios.append({"compared": f"raysts distill / {other}", "objective": "CPU s", **times})
    measure.publish(args.json, facts, rows, ratios, measure.summary(ratios, {}))


if __name__ == "__main__":
    main()

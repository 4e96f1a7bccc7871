"""Where the CPU time of a training step goes, and what the code gains that is compiled for CPUs (``raysts/cpu/native.cpp``).

    python benchmarks/anatomy.py --data DATA --runs sed:bf16,nli:bf16,nli:fp32

Seconds are CPU seconds of the process. The shares by operation come from steps in which every operation is timed by itself,
which makes those of a view or a cast look larger than they are. The gain comes from whole steps in turns: as they are, and with
transformers' own layers and gradients of the whole word table.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import measure
import torch
import workload
from torch.utils._python_dispatch import TorchDispatchMode

from raysts.cpu import native
from raysts.models.encoder import Encoder
from raysts.training import optim
from raysts.training.job import Job
from raysts.training.loop import Run, update
from raysts.training.runtime import Runtime

STEPS, COUNTED, WARM_UP = 5_000, 4, 2

GROUPS = {
    "matmuls of linear layers": "mm addmm _linear_pointwise",
    "attention": "bmm _softmax _softmax_backward_data masked_fill masked_fill_ attention attention_backward",
    "casts": "cast",
    "gelu": "gelu gelu_backward",
    "layer norm; its dropout": "native_layer_norm native_layer_norm_backward norm norm_backward random_ native_dropout lt",
    "optimiser and clip": "_fused_adamw_ _fused_adam_ adam linalg_vector_norm _foreach_norm _foreach_mul_ stack",
    "embeddings": "embedding embedding_dense_backward index index_select _coalesce",
    "copies, transposes": "copy_ clone cat transpose",
    "sums": "sum column_sums",
    "additions, multiplications": "add add_ mul mul_ sub div",
}
GROUP_OF = {name: group for group, names in GROUPS.items() for name in names.split()}


CALL = native.call


class Timed(TorchDispatchMode):
    """CPU seconds around every operation, by group."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: Counter[str] = Counter()
        self.calls = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        began = time.process_time()
        result = function(*args, **(kwargs or {}))
        seconds = time.process_time() - began
        name = str(function).removeprefix("aten.").removeprefix("mkldnn.").split(".")[0]
        if name in ("_to_copy", "copy_"):
            source = args[0] if name == "_to_copy" else args[1]
            name = "cast" if isinstance(source, torch.Tensor) and source.dtype != result.dtype else "copy_"
        self.seconds[GROUP_OF.get(name, "all else")] += seconds
        self.calls += 1
        return result

    def call(self, name: str, *args: Any) -> None:
        """What is compiled here, as ``native.call``."""
        began = time.process_time()
        CALL(name, *args)
        self.seconds[GROUP_OF[name]] += time.process_time() - began
        self.calls += 1


def as_it_is(run: Run, on: bool) -> None:
    """Compute as a run does by itself, or by torch and transformers alone."""
    for module in run.objective.modules():
        if isinstance(module, Encoder):
            module.fused = on
            if module.word_table is not None:
                module.word_table.sparse = False
    if on:
        optim.use_sparse_gradients(run.objective, run.job.recipe.optim)


def run_of(objective: str, precision: str, args: Any, folder: Path) -> Run:
    """A run on the benchmark's rows, from the first step."""
    model = workload.model_folder(args.model)
    work = workload.prepare(objective, args.data, model, folder, args.rows)
    job = Job(
        id="anatomy",
        recipe=workload.recipe_of(objective, work["rows"], STEPS, precision),
        seed=1,
        folder=folder / "run",
        parent=model,
        store=work["store"],
        teacher=work["teacher"],
        facts={"stage": objective, "member": 0},
    )
    return Run(job, Runtime("cpu", threads=args.threads))


def step(run: Run) -> float:
    """CPU seconds of one step."""
    batch = run.next_batch()
    began = time.process_time()
    loss, scalars = update(run, batch)
    seconds = time.process_time() - began
    run.after_step(loss, scalars)
    return seconds


def anatomy(objective: str, precision: str, args: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The shares of one objective's step, and its row of the table of gains."""
    with tempfile.TemporaryDirectory(prefix="raysts-benchmark-") as folder:
        run = run_of(objective, precision, args, Path(folder))
        for on in (False, True) * WARM_UP:
            as_it_is(run, on)
            step(run)
        whole, without = [], []
        for _ in range(args.rounds):
            whole.append(step(run))
            as_it_is(run, False)
            without.append(step(run))
            as_it_is(run, True)
        timed = Timed()
        native.call = timed.call
        with timed:
            for _ in range(COUNTED):
                step(run)
        native.call = CALL
    total = sum(timed.seconds.values())
    name = f"{objective} {precision}"
    shares = [
        {"step": name, "part": part, "percent": 100 * seconds / total, "ms a step": 1000 * seconds / COUNTED}
        for part, seconds in timed.seconds.most_common()
    ]
    gains = [b / a for a, b in zip(whole, without, strict=True)]
    return shares, {
        "step": name,
        "CPU s": statistics.median(whole),
        "by torch and transformers": statistics.median(without),
        "times as fast": statistics.median(gains),
        "least": min(gains),
        "most": max(gains),
        "operations": timed.calls // COUNTED,
    }


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("--runs", default="sed:bf16,nli:bf16,nli:fp32", help="OBJECTIVE:PRECISION, by commas")
    parser.add_argument("--rows", type=int, default=4_000, help="rows of the training table to draw from")
    parser.set_defaults(rounds=10)
    args = parser.parse_args()
    facts, shares, bounds = measure.machine(args.threads), [], []
    for word in args.runs.split(","):
        objective, _, precision = word.partition(":")
        found = anatomy(objective, precision, args)
        shares += found[0]
        bounds.append(found[1])
        measure.say(f"{word}: done")
    print(measure.table(shares), end="\n\n")
    measure.publish(args.json, facts, bounds, [], {row["step"]: round(row["times as fast"], 3) for row in bounds})


if __name__ == "__main__":
    main()

"""Training sentences/s of raysts and of sentence-transformers' own trainer: same backbone, same batches, in turns."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import measure
import workload

SKIPPED = 2
"""First steps of a segment that are not timed."""

RUN_STEPS = 5_000
"""Steps that a run plans for (metrics every 50); a segment trains on its own few batches."""

SIDES: dict[str, tuple[str, dict[str, Any]]] = {
    "raysts fp32, no compiled layers": ("raysts", {"precision": "fp32", "compiled": False}),
    "sentence-transformers fp32": ("st", {"bf16": False, "attention": "sdpa"}),
    "raysts fp32": ("raysts", {"precision": "fp32", "compiled": True}),
    "raysts auto": ("raysts", {"precision": "auto", "compiled": True}),
    "sentence-transformers bf16": ("st", {"bf16": True, "attention": "sdpa"}),
    "sentence-transformers bf16, eager attention": ("st", {"bf16": True, "attention": "eager"}),
}


class SegmentOver(Exception):  # noqa: N818
    """Ends a run that plans for more steps than a segment has."""


class Raysts:
    """Segments of the training loop; tokenising, done once before, is added to the time.

    The clock runs from the batch after the first ``SKIPPED`` to the end of the last step.
    """

    def __init__(
        self, objective: str, work: dict[str, Any], model: Path, device: str, precision: str, compiled: bool
    ) -> None:
        from raysts.cpu import native

        if not compiled:
            native.library = lambda: None
        self.objective, self.work, self.model, self.precision = objective, work, model, precision
        self.device = device
        self.folder = Path(tempfile.mkdtemp(prefix="raysts-benchmark-"))
        recipe = workload.recipe_of(objective, work["rows"], RUN_STEPS, precision)
        self.facts = {"precision": self.resolved()}
        self.recipe = recipe

    def resolved(self) -> str:
        """fp32 or bf16."""
        import torch

        from raysts.models.precision import resolve

        return resolve(self.precision, torch.device(self.device))

    def __call__(self, number: int) -> measure.Sample:
        import torch

        from raysts.data.batches import read_batches
        from raysts.data.windows import Windows
        from raysts.training.job import Job
        from raysts.training.loop import train
        from raysts.training.runtime import Runtime

        steps, times = self.work["steps"], []

        def read(windows: Windows, order: Any, start: int, stop: int, rank: int = 0, world: int = 1) -> Iterator[Any]:
            own = workload.order_of(self.objective, self.recipe, windows)
            for share in read_batches(windows, own, number * steps, (number + 1) * steps):
                times.append(measure.clocks(self.device) if len(times) == SKIPPED else (0.0, 0.0))
                yield share
            times.append(measure.clocks(self.device))
            raise SegmentOver

        run = self.folder / f"segment-{number}"
        job = Job(
            id=f"segment-{number}",
            recipe=self.recipe,
            seed=number,
            folder=run,
            parent=self.model,
            store=self.work["store"],
            teacher=self.work["teacher"],
            facts={"stage": self.objective, "member": 0},
        )
        with suppress(SegmentOver):
            train(job, Runtime(self.device, threads=torch.get_num_threads(), read=read))
        shutil.rmtree(run)
        return sample_of(self.objective, self.work, number, times, self.device, tokenised=True)


class SentenceTransformers:
    """Segments of SentenceTransformerTrainer on the same batches; the clock runs over the same steps."""

    def __init__(
        self,
        objective: str,
        work: dict[str, Any],
        model: Path,
        device: str,
        data: str | None,
        bf16: bool,
        attention: str,
    ) -> None:
        from datasets import Dataset, disable_progress_bars
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer import losses
        from torch import nn
        from transformers.utils import logging as transformers_logging

        disable_progress_bars()
        transformers_logging.set_verbosity_error()
        logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
        self.objective, self.work, self.bf16, self.device = objective, work, bf16, device
        self.recipe = workload.recipe_of(objective, work["rows"], RUN_STEPS, "fp32")
        self.folder = Path(tempfile.mkdtemp(prefix="st-benchmark-"))
        self.model = SentenceTransformer(str(model), device=device, model_kwargs={"attn_implementation": attention})
        self.model.max_seq_length = self.recipe.train.max_length
        while type(self.model[-1]).__name__ == "Normalize":  # raysts trains the pooled vectors themselves
            self.model.pop(-1)
        if not self.recipe.train.dropout:
            self.model[0].auto_model.config.attention_probs_dropout_prob = 0.0
            for module in self.model.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0
        self.model[0].unpad_inputs = True
        self.facts = {"unpads": bool(self.model[0].can_flatten_inputs)}
        if not self.facts["unpads"]:
            self.model[0].unpad_inputs = None  # its default
        width = self.model.get_embedding_dimension()
        self.loss = {
            "nli": lambda: losses.SoftmaxLoss(self.model, width, num_labels=3),
            "ct": lambda: losses.ContrastiveTensionLoss(self.model),
            "sed": lambda: losses.MSELoss(self.model),
            "sts": lambda: losses.CosineSimilarityLoss(self.model),
            "simcse-unsup": lambda: losses.MultipleNegativesRankingLoss(self.model),
        }[objective]()
        self.dataset = Dataset.from_dict(self._columns(data))

    def _columns(self, data: str | None) -> dict[str, list[Any]]:
        from raysts.data.corpora import corpus_of
        from raysts.recipes.catalog import CATALOG

        spec, found = CATALOG[self.objective], self.work["batches"]
        texts = workload.texts_of(corpus_of(data), self.recipe.table, self.recipe.data, spec.texts)
        examples = found["examples"]
        if self.objective == "ct":
            sentence = texts["sentence"]
            return {
                "sentence_a": [sentence[example[0]] for example in examples],
                "sentence_b": [sentence[example[-1]] for example in examples],
                "label": [float(len(example) == 1) for example in examples],
            }
        columns: dict[str, list[Any]] = {name: [texts[name][example[0]] for example in examples] for name in spec.texts}
        if self.objective == "simcse-unsup":
            return columns | {"again": columns["sentence"]}
        label = {"sed": lambda v: v.tolist(), "nli": int, "sts": lambda v: float(v) / 5}[self.objective]
        return columns | {"label": list(map(label, next(iter(found["values"].values()))))}

    def __call__(self, number: int) -> measure.Sample:
        import torch
        from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
        from torch.utils.data import BatchSampler, SequentialSampler
        from transformers import PrinterCallback, TrainerCallback

        times: list[tuple[float, float]] = []
        device = self.device

        class Clock(TrainerCallback):
            def on_step_begin(self, *_: Any, **__: Any) -> None:
                times.append(measure.clocks(device) if len(times) == SKIPPED else (0.0, 0.0))

            def on_train_end(self, *_: Any, **__: Any) -> None:
                times.append(measure.clocks(device))

        steps, batch, optim = self.work["steps"], self.recipe.batch, self.recipe.optim
        rmsprop = optim.name == "rmsprop"
        arguments = SentenceTransformerTrainingArguments(
            output_dir=str(self.folder),
            use_cpu=device == "cpu",
            bf16=self.bf16,
            max_steps=steps,
            per_device_train_batch_size=batch,
            learning_rate=optim.lr,
            lr_scheduler_type="constant",
            optim="rmsprop" if rmsprop else "adamw_torch_fused",
            optim_args="alpha=0.9,eps=1e-7" if rmsprop else None,
            weight_decay=optim.weight_decay,
            max_grad_norm=optim.clip or 0.0,
            batch_sampler=lambda dataset, batch_size, drop_last, **_: BatchSampler(
                SequentialSampler(dataset), batch_size, drop_last
            ),
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = SentenceTransformerTrainer(
            model=self.model,
            args=arguments,
            train_dataset=self.dataset.select(range(number * steps * batch, (number + 1) * steps * batch)),
            loss=self.loss,
            callbacks=[Clock()],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        assert len(times) == steps + 1 and torch.get_num_threads() == self.work["threads"]
        return sample_of(self.objective, self.work, number, times, self.device, tokenised=False)


def sample_of(
    objective: str,
    work: dict[str, Any],
    number: int,
    times: list[tuple[float, float]],
    device: str,
    tokenised: bool,
) -> measure.Sample:
    """The timed steps of a segment; ``tokenised``: add what tokenising their sentences once took."""
    from raysts.recipes.catalog import CATALOG

    steps, batch = work["steps"], work["batch"]
    sentences = (steps - SKIPPED) * batch * CATALOG[objective].sentences
    tokens = sum(work["batches"]["tokens"][number * steps + SKIPPED : (number + 1) * steps])
    before = sentences * work["tokenize_seconds"] if tokenised else 0.0
    clock, cpu = (end - begin + before for begin, end in zip(times[SKIPPED], times[-1], strict=True))
    return {"seconds": clock, "sentences": sentences, "tokens": tokens} | ({"cpu": cpu} if device == "cpu" else {})


def compare(
    objective: str, args: Any, model: Path, folder: Path, peaks: dict[str, float], work_per_token: float
) -> tuple[list[dict], list[dict]]:
    """Rows and ratios of one objective."""
    recipe = workload.recipe_of(objective, args.rows, RUN_STEPS, "fp32")
    work = workload.prepare(objective, args.data, model, folder, args.rows)
    work |= {"steps": args.steps, "batch": recipe.batch, "threads": args.threads}
    work["batches"] = workload.batches(
        objective, recipe, work["store"], work["teacher"], args.steps * (args.rounds + 1)
    )
    with ExitStack() as stack:
        sides = []
        for name, (who, settings) in SIDES.items():
            own = {"objective": objective, "work": work, "model": model, "device": args.device, **settings}
            if who == "st":
                own["data"] = args.data
            side = measure.Side(name, Raysts if who == "raysts" else SentenceTransformers, own, args.threads)
            stack.callback(side.close)
            sides.append(side)
        measure.say(f"{objective}: batch {recipe.batch}, {args.steps} steps a segment")
        found = measure.in_turns(sides, args.rounds)
        facts = {side.name: side.facts for side in sides}
    rows = []
    for name, (who, settings) in SIDES.items():
        precision = facts[name]["precision"] if who == "raysts" else "bf16" if settings["bf16"] else "fp32"
        row = measure.row(name, found[name], objective=objective, batch=recipe.batch, precision=precision)
        # Backward takes twice what forward does.
        rows.append(row | {"share_of_peak": measure.share_of_peak(found[name], 3 * work_per_token, peaks[precision])})
    names = {who: [name for name, side in SIDES.items() if side[0] == who] for who in ("raysts", "st")}
    best = {who: measure.fastest(found, names[who]) for who in names}
    pairs = {
        "no compiler": ("raysts fp32, no compiled layers", "sentence-transformers fp32"),
        "fp32": ("raysts fp32", "sentence-transformers fp32"),
        "default": ("raysts auto", "sentence-transformers fp32"),
        "best": (best["raysts"], best["st"]),
    }
    ratios = [
        {"objective": objective.removesuffix("-unsup"), "compared": what, "raysts": ours, "other": theirs}
        | measure.ratio(found[ours], found[theirs])
        for what, (ours, theirs) in pairs.items()
        if ours in found  # on a GPU no layer is compiled
    ]
    unpads = any(facts[name].get("unpads") for name in names["st"])
    measure.say(f"sentence-transformers unpad_inputs on this machine: {'used' if unpads else 'not possible, it pads'}")
    return rows, ratios


def run(parser: Any, names: dict[str, str]) -> tuple[Any, list[dict], list[dict], dict[str, Any]]:
    """(arguments, rows, ratios, summary) of the objectives, by what people call them."""
    parser.add_argument("--objectives", default=",".join(names), help="objectives, by commas")
    parser.add_argument("--steps", type=int, default=30, help=f"steps a segment, the first {SKIPPED} not timed")
    parser.add_argument("--rows", type=int, default=20_000, help="rows of the training table to draw from")
    args = parser.parse_args()
    objectives = args.objectives.split(",")
    if not set(objectives) <= set(names) or args.steps <= SKIPPED:
        parser.error(f"--objectives are among {', '.join(names)}, --steps more than {SKIPPED}")
    model = workload.model_folder(args.model)
    peaks = {precision: measure.peak(precision, args.threads, args.device) for precision in ("fp32", "bf16")}
    each, rows, ratios = measure.work_per_token(model), [], []
    for objective in objectives:
        with tempfile.TemporaryDirectory(prefix="raysts-benchmark-") as folder:
            found = compare(names[objective], args, model, Path(folder), peaks, each)
            rows += found[0]
            ratios += found[1]
    best = {ratio["objective"]: ratio["raysts"] for ratio in ratios if ratio["compared"] == "best"}
    shares = {
        name: row["share_of_peak"]
        for name, side in best.items()
        for row in rows
        if (row["objective"], row["side"]) == (names[name], side)
    }
    return args, rows, ratios, measure.summary(ratios, shares)


NAMES = {name.removesuffix("-unsup"): name for name in workload.RECIPES}


def main() -> None:
    parser = measure.parser(__doc__)
    parser.set_defaults(device="cpu")
    args, rows, ratios, summary = run(parser, NAMES)
    measure.publish(args.json, measure.machine(args.threads), rows, ratios, summary)


if __name__ == "__main__":
    main()

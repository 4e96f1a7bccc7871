"""The one training loop."""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysts.cpu.kernels import keep_memory
from raysts.cpu.rowwise import clip
from raysts.data.batches import BatchOrder
from raysts.data.windows import Windows
from raysts.errors import Infeasible, RunFailed
from raysts.evaluation.statistics import UndefinedCorrelationError
from raysts.ids import derive_seed
from raysts.log import logger
from raysts.models.encoder import Encoder
from raysts.models.packing import has_kernel, to_device
from raysts.models.precision import autocast, numbers
from raysts.models.pretrained import load
from raysts.models.sentence_model import SentenceModel
from raysts.models.tokens import LocalBatch, Tokens
from raysts.models.weights import add_adapters, merge_adapters, randomise
from raysts.objectives import MODULES
from raysts.objectives.objective import Batch
from raysts.ops import collective
from raysts.recipes.catalog import BANK_TEXTS
from raysts.storage.runs import RunFolder
from raysts.storage.store import Store
from raysts.training import checkpoint, optim, record
from raysts.training.checkpoint import CheckpointPolicy
from raysts.training.job import ORPHAN_WAIT, Job, total_steps
from raysts.training.metrics import MetricsLog, metrics_until
from raysts.training.runtime import Preempted, Preemption, Runtime
from raysts.training.shard import local_tensor


def train(job: Job, runtime: Runtime) -> dict[str, Any]:
    """Train one run from its last checkpoint to its end and return its record.

    Raises:
        Infeasible: the loss is not finite, or there are too few rows for a batch.
        Preempted: this process was told to end; the run has saved its progress.
    """
    folder = RunFolder(job.folder)
    writing = folder.lock(f"training of run {job.id}", ORPHAN_WAIT)  # which receives the files to resume from
    with writing if runtime.rank == 0 else contextlib.nullcontext():
        runtime.barrier()  # nobody reads anything before the folder is ours: its last writer may just have finished
        if runtime.rank > 0:
            folder.join()
        done = folder.done_record()
        if done is not None:
            return done
        run = Run(job, runtime)
        try:
            _train(run)
        finally:  # others may write here then
            run.close()
        return run.record


class CachedTokensModel(SentenceModel):
    """Model with a replaceable encoder, which tokenises its development sentences once."""

    def __init__(self, model: SentenceModel) -> None:
        super().__init__(model.encoder, model.tokenizer, model.max_length, prompts=model.prompts)
        self._tokenized: tuple[Sequence[str], Tokens] | None = None

    def tokenize(self, texts: Sequence[str], prompt: str | None = None) -> Tokens:
        if self._tokenized is None or self._tokenized[0] is not texts:
            self._tokenized = texts, super().tokenize(texts, prompt)
        return self._tokenized[1]


CHECK_EVERY = 10
"""Steps after which loss and weights are looked at, also where no line is due: a GPU is waited for no more often."""

LEFT_WITHIN = 8.0
"""Seconds that an interrupted process waits for checkpoints on their way to the store."""


def _train(run: Run) -> None:
    by_clock = run.job.recipe.train.checkpoint_every is None and run.runtime.rank == 0
    policy = CheckpointPolicy(by_clock)
    while not (run.state.stopped or run.state.step == run.steps):
        loss, scalars = update(run, run.next_batch())
        decision = policy.decide(run.runtime.preemption(), *run.since_checkpoint())
        run.after_step(loss, scalars, save=bool(decision))
        if decision == Preemption.END:
            run.sent()
            raise Preempted
    run.finish()


def update(run: Run, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Make one step of the optimiser and return its loss and scalars."""
    recipe = run.job.recipe
    run.seed_rng()
    run.wrapped.train(recipe.train.dropout)
    with autocast(run.runtime.device, run.precision):
        loss, scalars = run.wrapped(batch)
    if loss.requires_grad:  # what is fitted in closed form has no gradient
        loss.backward()
    if recipe.optim.clip is not None:
        clip(run.objective.parameters(), recipe.optim.clip)
    for group in run.optimizer.param_groups:
        group["lr"] = run.rate(run.state.step)
    run.optimizer.step()
    run.optimizer.zero_grad(set_to_none=True)
    return loss.detach(), scalars


class Run:
    """A run in training: its modules, progress, schedule and files.

    Raises:
        Infeasible: there are too few rows for a batch, or the untrained model cannot be scored.
    """

    def __init__(self, job: Job, runtime: Runtime) -> None:
        recipe, device = job.recipe, runtime.device
        self.job, self.runtime, self.began = job, runtime, time.monotonic()
        self.record = record.begin(job, runtime)
        self.precision = self.record["layout"]["precision"]

        if device.type == "cpu":
            keep_memory()
        begun_on = torch.device("cpu") if runtime.shards else device  # whole it may not fit on a GPU
        self.model = self._load_model(begun_on)
        drops = recipe.train.attention_dropout == "auto" and recipe.train.dropout and self.model.encoder.family.packed
        if drops and has_kernel(device, numbers(self.precision)):  # which has no dropout; the record says so
            self.model.encoder.attention_dropout = self.record["layout"]["attention_dropout"] = False
        self.model.encoder.fused = self.record["layout"].get("fused_layers", False)
        if recipe.train.gradient_checkpointing:
            self.model.encoder.recompute_layers()
        if recipe.train.compile:
            self.model.encoder.compile_layers()
        self.scored = CachedTokensModel(self.model)
        torch.manual_seed(derive_seed(job.seed, "init"))
        self.objective = MODULES[recipe.objective](recipe.settings, self.model.encoder).to(begun_on)
        if device.type == "cpu" and runtime.world == 1:
            # A GPU would be waited for, and processes exchange dense gradients.
            optim.use_sparse_gradients(self.objective, recipe.optim)
        self.wrapped = runtime.wrap(self.objective, self.precision)
        self.optimizer = optim.build(recipe.optim, self.objective)
        self.windows = Windows(job.store, job.teacher)
        self.objective.hold(self._held_arrays(), device)
        sizes, seed, drop_last = self.windows.sizes, derive_seed(job.seed, "order"), recipe.train.drop_last
        self.order = BatchOrder(sizes, recipe.group, recipe.batch, seed, drop_last, recipe.data.bootstrap)
        self.steps = steps = total_steps(recipe, self.order)
        if steps == 0:
            rows = f"{self.windows.rows} training rows"
            raise Infeasible(f"{rows} are too few for one batch={recipe.batch}; take a smaller batch, or more rows")
        metrics, trained = job.folder / "metrics.jsonl", (self.objective, self.optimizer)

        def checksum(step: int) -> str:
            return hashlib.sha256(metrics_until(metrics, step)).hexdigest()

        self.state = checkpoint.restore(job.folder / "checkpoints", *trained, checksum, recipe.uses_dev_labels)
        logger.debug("%s (run %s): step %d of %d, %s", job.title, job.id, self.state.step, steps, runtime.device)
        self.log = MetricsLog(metrics, self.state.step) if runtime.rank == 0 else None

        self.eval_every = recipe.train.eval_every or (max(1, steps // 10) if recipe.uses_dev_labels else -(-steps // 4))
        self.save_every = recipe.train.checkpoint_every or max(50, steps // 20)
        self.log_every = max(1, min(50, steps // 100))
        if self.state.step == 0 and recipe.train.eval_first and job.dev is not None and self.state.best is None:
            self._evaluate()
        self.local_batches: Iterator[LocalBatch] | None = None
        self.before, self.examples_since = self.state.seconds, 0
        self.resumed = self.last_log = time.monotonic()
        self.saved: tuple[float, float] | None = None  # when this process last wrote a checkpoint, and for how long
        self.upload: Future[None] | None = None  # of that checkpoint

    def _load_model(self, device: torch.device) -> SentenceModel:
        job, recipe = self.job, self.job.recipe
        pooled: dict[str, Any] = {"pooling": recipe.pooling, "layers": recipe.layers, "max_length": job.max_length}
        pooled |= {"prompt": job.prompt, "heads": recipe.spec.head == "pooled"}
        model = load(job.parent, device=device, content=job.content, **pooled)
        if recipe.train.init == "random":
            randomise(model.encoder, derive_seed(job.seed, "weights"))
        if recipe.train.lora is not None:
            add_adapters(model.encoder, recipe.train.lora, derive_seed(job.seed, "lora"))
        model.normalize = False
        return model

    def _held_arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays that a distillation holds: the map of its teachers' vectors, and its bank."""
        job, windows, arrays = self.job, self.windows, dict[str, np.ndarray]()
        if job.to_target is not None:
            if Store.of(job.to_target).get(job.to_target) is None:
                raise RunFailed(
                    f"{job.to_target}: it was removed or damaged. Run the same command again to make it again"
                )
            arrays["to_target"] = np.load(job.to_target)
        if getattr(job.recipe.settings, "bank", 0):
            texts = windows.documents(job.recipe.data.spans)
            if len(texts) > BANK_TEXTS:
                rng = np.random.default_rng(derive_seed(job.seed, "bank"))
                texts = np.sort(rng.choice(texts, BANK_TEXTS, replace=False))
            arrays |= {"bank_rows": texts, "bank": windows.teacher_vectors(texts)}
        return arrays

    def rate(self, step: int) -> float:
        """Return the learning rate of optimiser step ``step`` (0-based)."""
        return optim.learning_rate(self.job.recipe.optim, step, self.steps)

    def seed_rng(self) -> None:
        """Seed dropout by (seed, step, rank), so that a resumed run needs no generator state."""
        torch.manual_seed(derive_seed(self.job.seed, "step", self.state.step, self.runtime.rank))

    def next_batch(self) -> Batch:
        runtime, step = self.runtime, self.state.step
        first = self.local_batches is None
        if self.local_batches is None:
            self.local_batches = runtime.read(self.windows, self.order, step, self.steps, runtime.rank, runtime.world)
        share = next(self.local_batches)
        if first:  # the first batch has come: what was before is start-up
            self.resumed = self.last_log = time.monotonic()
            self.record["timings"]["startup_seconds"] = round(self.resumed - self.began, 3)
        self.examples_since += share.size
        batch = self.objective.collate(share._replace(progress=step / self.steps))
        return to_device(batch, runtime.device)

    def since_checkpoint(self) -> tuple[float, float | None]:
        """Return the seconds since this process wrote a checkpoint or began, and its duration."""
        if self.upload is not None and not self.upload.done():
            return 0.0, None  # the next one would have to wait for it
        written, seconds = self.saved or (self.resumed, None)
        return time.monotonic() - written, seconds

    def sent(self) -> None:
        """Wait until the storage has the last checkpoint."""
        if self.upload is not None:
            self.upload.result()

    def after_step(self, loss: Tensor, scalars: dict[str, Tensor], save: bool = False) -> None:
        """Count a step. When due, check, evaluate, log, save and report.

        ``save``: also write a checkpoint now. It must not change anything else, because a resumed run does not repeat it.

        Raises:
            Infeasible: the loss or a weight is not finite.
        """
        train, state = self.job.recipe.train, self.state
        state.step += 1
        state.loss_sum = loss + state.loss_sum  # type: ignore[assignment]  # read when due: no wait for the device
        state.loss_count += 1

        last = state.step == self.steps
        due_eval = self.job.dev is not None and (state.step % self.eval_every == 0 or last)
        due_save = state.step % self.save_every == 0
        due_line = last or due_eval or due_save or state.step % self.log_every == 0
        if not (due_line or save or state.step % CHECK_EVERY == 0):
            return
        mean_loss = self._check_finite()
        time_now = time.monotonic()
        state.seconds = self.before + time_now - self.resumed
        if due_line:
            line = self._line(mean_loss, scalars, time_now - self.last_log)
            state.loss_sum, state.loss_count = 0.0, 0
            if due_eval:
                selecting, *further = self._evaluate().items()
                line |= {"dev": selecting[1], **{f"dev_{metric}": value for metric, value in further}}
                state.stopped = train.patience is not None and state.since_best >= train.patience
            if self.log is not None:
                self.log.write(line)
                self.runtime.observe(self.job, line)
        last = last or state.stopped
        if save or (self.runtime.saves_end if last else due_save):
            self._save()
        if due_eval or last:
            self.runtime.report(self.job, line)
        if due_line:
            self.last_log, self.examples_since = time.monotonic(), 0

    def _check_finite(self) -> float:
        """Return the mean loss since the last line, and raise unless loss and weights are finite."""
        recipe, state = self.job.recipe, self.state
        state.loss_sum = float(state.loss_sum)
        mean_loss = state.loss_sum / state.loss_count
        # The loss is that of the weights before the step; whatever is scored or saved next are the weights after it.
        sums = torch.stack([local_tensor(parameter.detach()).sum() for parameter in self.objective.parameters()])
        if self.runtime.shards:
            sums = collective.total(sums)
        if not math.isfinite(mean_loss) or not torch.isfinite(sums).all():
            wrong = "weights are not finite" if math.isfinite(mean_loss) else f"the loss is {mean_loss}"
            raise Infeasible(
                f"{wrong} after step {state.step - state.loss_count}; "
                f"lower {recipe.objective}.optim.lr ({recipe.optim.lr:g}) or set {recipe.objective}.train.precision=fp32"
            )
        return mean_loss

    def _line(self, mean_loss: float, scalars: dict[str, Tensor], seconds: float) -> dict[str, Any]:
        """Return a line of ``metrics.jsonl`` without dev scores. ``seconds`` is its duration."""
        step = self.state.step
        return {
            "step": step, "steps": self.steps, "epoch": round(step / self.order.steps_per_epoch, 4), "loss": mean_loss,
            "lr": self.rate(step - 1), **{name: float(value) for name, value in scalars.items()},
            "examples_per_second": self.examples_since / max(1e-9, seconds), "seconds": round(self.state.seconds, 3),
        }  # fmt: skip

    def _save(self) -> None:
        began = time.monotonic()
        folder, rank = self.job.folder, self.runtime.rank
        if self.log is not None:
            self.sent()  # its files are removed now
            self.state.metrics = self.log.sync()
        if self.log is not None or self.runtime.shards:
            checkpoint.save(folder / "checkpoints", self.objective, self.optimizer, self.state, rank)
        if self.log is not None:
            self.upload = RunFolder(folder).upload_checkpoint()
        self.runtime.barrier()
        self.saved = time.monotonic(), time.monotonic() - began

    def _evaluate(self) -> dict[str, float]:
        """Score the candidates on dev, keep the best if dev selects, and return the scores of the best now."""
        job, runtime, state, candidates = self.job, self.runtime, self.state, self.objective.candidates()
        assert job.dev is not None
        scores = torch.zeros(len(candidates), len(job.dev.metrics), dtype=torch.float64)
        if not job.recipe.uses_dev_labels:
            candidates = dict(list(candidates.items())[:1])
        scoring = runtime.rank == 0 or runtime.shards  # all processes run what is sharded
        for i, encoder in enumerate(candidates.values() if scoring else ()):
            self.scored.encoder = encoder
            try:
                dev_scores = job.dev.scores(self.scored)
                scores[i] = torch.tensor([dev_scores[metric] for metric in job.dev.metrics], dtype=torch.float64)
            except UndefinedCorrelationError:
                scores[i] = math.nan  # every process learns it, and ends
        scores = collective.total(scores.to(runtime.device) * (runtime.rank == 0)).cpu()
        if not torch.isfinite(scores).all():
            raise Infeasible(
                f"after {state.step} steps the model gives the same or no finite similarity for every dev pair; lower "
                f"{job.recipe.objective}.optim.lr ({job.recipe.optim.lr:g})"
            )
        first = scores[: len(candidates), 0].tolist()
        number = first.index(max(first))  # the first of equals: the default candidate
        name, score = list(candidates)[number], first[number]
        state.latest = dict(zip(job.dev.metrics, scores[number].tolist(), strict=True))
        state.since_best += 1
        if state.best is None or score > state.best:
            state.best, state.best_step, state.best_candidate, state.since_best = score, state.step, name, 0
            state.best_scores = state.latest
            if job.recipe.uses_dev_labels and scoring:
                checkpoint.save_best(job.folder / "checkpoints", state, candidates[name], runtime.rank)
        return state.latest

    def finish(self) -> None:
        """Write the selected model, then mark the run as done."""
        self._stop_reading()
        self.sent()
        self.runtime.barrier()  # the others may read the best weights from the store
        self._write_model()
        self.runtime.barrier()

    def close(self) -> None:
        """Stop the background work of training."""
        self._stop_reading()
        if self.log is not None:
            self.log.close()
        if self.upload is not None:
            wait([self.upload], LEFT_WITHIN)

    def _stop_reading(self) -> None:
        if self.local_batches is not None and hasattr(self.local_batches, "close"):
            self.local_batches.close()

    def _gather(self, encoder: Encoder) -> Encoder:
        """Return the gathered encoder in main memory. Rank 0 has its weights."""
        state, recipe = checkpoint.trained_state(encoder), self.job.recipe
        objective = MODULES[recipe.objective](recipe.settings, self._load_model(torch.device("cpu")).encoder)
        gathered = next(iter(objective.candidates().values()))
        if self.runtime.rank == 0:
            checkpoint.load_trained_state(gathered, state)
        return gathered

    def _write_model(self) -> None:
        job, candidates = self.job, self.objective.candidates()
        encoder = next(iter(candidates.values()))
        encoder = self._gather(encoder) if self.runtime.shards else encoder
        if job.recipe.uses_dev_labels:
            checkpoint.load_best(job.folder / "checkpoints", self.state, encoder)
            self.runtime.barrier()  # rank 0 removes below what the others may still be reading
        record.end(self.record, job, self.state, next(iter(candidates)), time.monotonic() - self.began)
        if self.log is None:
            return
        if job.recipe.train.lora is not None:
            merge_adapters(encoder)
        if not len(encoder.heads):
            encoder.layers = job.export_layers
        folder, trained = RunFolder(job.folder), self.model
        model = SentenceModel(encoder, trained.tokenizer, trained.max_length, prompts=trained.prompts)
        model.save(job.folder / "model")
        self.log.seal()
        folder.upload_model()
        folder.store.write_json(job.folder / "run.json", self.record)
        checkpoint.clear(job.folder / "checkpoints")

"""Runs the steps of a plan that are not done, in order, on an executor."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raysts.errors import InputError, RunFailed, StoreFailed, limit_reached
from raysts.evaluation import harness
from raysts.log import logger, say
from raysts.pipeline.deliver import card_of, write_model
from raysts.pipeline.executor import Executor
from raysts.pipeline.plan import Plan
from raysts.pipeline.price import ExpectedTime, Price, Rates, clock, price, record_rates, seconds_of
from raysts.pipeline.step import SCRATCH, Context, State, Step, ready
from raysts.pipeline.steps.train import train_all
from raysts.pipeline.verdict import Verdict, notes_before
from raysts.recipes.tree import to_plain
from raysts.storage.atomic import remove_drafts
from raysts.storage.store import Store, run_parallel

Report = Callable[[Store, Mapping[str, Any]], Path | None]
"""Writes the report of a run from its storage and its record, and returns the path."""

Follow = Callable[[str, float, float, float, int], None]
"""Receives the arguments of :meth:`raysts.log.Screen.follow`."""


SWEPT = (
    "agreements", "backbones", "contamination", "evaluations", "maps", "pipelines", "rates", "reports", "results",
    "row_scores", "tables",
)  # fmt: skip
"""Folders in which a killed driver may have left drafts; those of token stores, means and runs are swept by who writes there."""


@dataclass
class Driver:
    """Execution of a plan that was checked. The report, also of a failed run, shows ``command``."""

    plan: Plan
    executor: Executor
    name: str
    command: str
    report: Report = lambda store, record: None
    follow: Follow = lambda title, rest, running, measured, texts: None
    prices: Mapping[str, float] | None = None

    def run(self) -> dict[str, Any]:
        """Run the remaining steps and return the fields of the JSON line.

        Raises:
            RunFailed: a step failed; finished steps stay finished.
            InputError: another driver holds the name.
        """
        self.store, self.key = self.plan.store, f"pipelines/{self.name}.json"
        record = self.store.path(self.key)
        try:
            with self.store.lock(f"locks/{self.name}.lock", f"raysts run {self.name}", protects=record):
                self._prepare()
                return self._run()
        except OSError as error:
            if (limit := limit_reached(error)) is None:
                raise
            raise RunFailed(limit) from error

    def _prepare(self) -> None:
        """Remove what killed runs left, and write what the run begins with: the record and the backbone."""
        plan, before = self.plan, self.store.read_json(self.key, fresh=True) or {}
        replaced = {step["output"] for step in before.get("steps", ())}
        replaced -= {step.to_record(plan.storage)["output"] for step in plan.steps}
        self.seconds: dict[str, float] = before.get("seconds", {})
        self.expected: dict[str, float] = before.get("expected", {})
        self.price: dict[str, str] = {} if replaced else before.get("price", {})
        self.slots, self.measured = self.executor.slots(plan.pipeline.resources), 0.0
        remove_drafts(self.store.root, "*")
        runs = [step.output.parent for step in plan.steps if step.output.name == "model"]
        for folder in (*map(self.store.path, SWEPT), *runs):
            remove_drafts(folder)
        self.done = {step for step, state in plan.states().items() if state == State.DONE}
        self._write_record()
        say(f"{self.name}: {len(plan.steps)} steps, {len(self.done)} done{' before' if self.done else ''}")
        if replaced:
            say(
                f"{self.name}: replaces an earlier run of this name. 'raysts list' and 'raysts remove' no longer know "
                f"{len(replaced)} of its artifacts; another --name keeps both"
            )
        rates = Rates(self.store)
        self.left = {step.id: rates.predict(step) for step in plan.steps if step.id not in self.done}
        if self.left:
            say((cost := self._price(self.left)).text)
            self.measured = cost.measured
            self.price.setdefault("expected", cost.amounts)
        # A run that goes on keeps what was expected before it began.
        self.expected = {id_: round(step.seconds, 2) for id_, step in self.left.items()} | self.expected
        plan.write_backbone()
        tasks = dict.fromkeys([*plan.tasks, *plan.pipeline.evaluation.also])
        for line in (*notes_before(plan), *harness.left_out(plan.corpus, list(tasks))):
            say(line)
        ended = [step for step in plan.steps if step.id in self.done and step.kind in SCRATCH]
        scratch = [self.store.path(SCRATCH[step.kind].format(step.id)) for step in ended]
        for path in itertools.compress(scratch, run_parallel(self.store.exists, scratch)):
            self.store.delete(path)

    def _run(self) -> dict[str, Any]:
        again: set[str] = set()
        while True:
            batch = ready(self.plan.steps, self.done)
            if damaged := self._find_damaged(batch) & self.done:
                if damaged & again:
                    raise RunFailed(
                        f"{self.store.uri}: what was just written is damaged; look at the disk, then run again"
                    )
                self.done, again = self.done - damaged, again | damaged
            elif not batch:
                return self._end()
            else:
                if failures := self._run_batch(batch):
                    self._leave_out(batch, failures)
                self.done |= {step.id for step in batch}

    def _find_damaged(self, batch: Sequence[Step]) -> set[str]:
        read = {need for step in batch for need in step.needs}
        if not batch:
            read = {self.plan.outcome.selected or "", *(evaluation.step.id for evaluation in self.plan.evaluations)}
        steps = [step for step in self.plan.steps if step.id in read]
        states = run_parallel(lambda step: step.state(self.store, deep=True), steps)
        return {step.id for step, state in zip(steps, states, strict=True) if state != State.DONE}

    def _run_batch(self, batch: list[Step]) -> list[str]:
        waiting = [step for step in self.plan.steps if step.id not in self.done]
        if batch[0].job:  # other steps are told one by one, as they begin
            self._follow(batch, waiting)
        context = Context(self.executor, self.store, self.plan.pipeline.resources)
        try:
            failures = run_batch(batch, context, lambda step, texts: self._watch(step, texts, waiting))
        except RunFailed as error:
            if not isinstance(error, StoreFailed):  # which takes no record
                self._write_record(State.FAILED)
            raise
        self.seconds |= {step.id: seconds for step in batch if (seconds := seconds_of(step.record))}
        return failures

    def _follow(self, running: Sequence[Step], waiting: list[Step], texts: int = 0) -> None:
        """Tell the screen the seconds by the clock of what begins and of what is left, and the texts to embed."""
        title = running[0].title if len(running) == 1 else f"{len(running)} runs train"
        self.follow(title, self._clock(waiting), self._clock(running), self.measured, texts)

    def _clock(self, steps: Sequence[Step]) -> float:
        kinds = [[s for s in steps if s.kind == kind] for kind in dict.fromkeys(s.kind for s in steps)]
        rates = Rates(self.store) if any(step.id not in self.left for step in steps) else None
        self.left |= {step.id: rates.predict(step) for step in steps if rates and step.id not in self.left}
        return sum(clock(batch, self.left, self.slots) for batch in kinds)

    def _leave_out(self, batch: Sequence[Step], failures: list[str]) -> None:
        """Continue without the failed members, if ``min_members`` allows it.

        Raises:
            RunFailed: too few members finished, or another step failed.
        """
        plan, least = self.plan, self.plan.pipeline.min_members
        members = {step.id for chain in plan.chains for step in chain}
        chains, least = (plan.chains, least) if batch[0].id in members else (plan.student_chains, None)
        done = [chain[-1].state(self.store) == State.DONE for chain in chains]
        finished = f"{sum(done)} of {len(chains)}"
        if least is None or sum(done) < least:
            self.report(self.store, self._write_record(State.FAILED, Verdict(plan)))
            needed = "" if least is None else f", and min_members={least}"
            end = f"{finished} finished{needed}; run the same command again to go on from there"
            raise RunFailed("\n".join([*failures, end]))
        self.plan = replace(plan, without=frozenset(i for i, finished in enumerate(done) if not finished))
        say(f"going on with {finished} members (min_members={least}); the others failed")
        self._write_record()

    def _price(self, seconds: Mapping[str, ExpectedTime]) -> Price:
        return price(self.plan.steps, seconds, self.store, self.slots, self.prices)

    def _end(self) -> dict[str, Any]:
        plan, verdict = self.plan, Verdict(self.plan)
        if self.left:
            measured = {s.id: ExpectedTime(self.seconds[s.id], True) for s in plan.steps if s.id in self.seconds}
            self.price["taken"] = self._price(measured).amounts
        assert verdict.contamination is not None, "the last steps score"
        rows = plan.rows_on_record()
        model, chosen = write_model(plan, verdict.outcome)
        if model is not None and chosen is not None and chosen.kind != "named":
            with self.store.put(model / "README.md") as draft:
                draft.write_text(card_of(plan, verdict, chosen, model, rows, self.name, self.command), encoding="utf-8")
        record = self._write_record(State.DONE, verdict, model)
        report, names = self.report(self.store, record), plan.names_in_tables
        return {
            "status": "done", "storage": self.store.uri, "name": self.name, "model": str(model) if model else None,
            "delivered": record["delivered"], "report": str(report) if report else None, "results": rows,
            "models": record["models"], **({"teachers": names} if names else {}),
            "contamination": verdict.contamination.entries(plan.pipeline.name), "notes": verdict.notes,
            "left_out": plan.left_out, "skipped": plan.skipped_files,
        }  # fmt: skip

    def _write_record(
        self, status: State = State.RUNNING, verdict: Verdict | None = None, model: Path | None = None
    ) -> dict[str, Any]:
        """Write all that a report needs besides the folders of steps and rows, and return it."""
        plan, corpus = self.plan, self.plan.corpus
        place = model.relative_to(plan.storage) if model and model.is_relative_to(plan.storage) else model or ""
        record = {
            "name": self.name, "status": status, "command": self.command, "pipeline": to_plain(plan.pipeline),
            "data": corpus.uri, "sources": corpus.sources_text, "own": corpus.user.as_plain(), "skip_bad": corpus.skip_bad,
            "skipped": plan.skipped_files, "backbone_id": plan.backbone_id, "distributed": list(plan.distributed_pooling),
            "reads": plan.reads,
            "members": [model.id for model in plan.members], "teachers": plan.names_in_tables,
            "steps": [step.to_record(plan.storage) for step in plan.steps], "seconds": self.seconds,
            "expected": self.expected, "price": self.price, "model": str(place), "caches": self._caches(verdict),
            **({**verdict.as_record(), "models": plan.costs(), "maps": plan.maps(), "dev": self._dev_sets()} if verdict else {}),
        }  # fmt: skip
        self.store.write_json(self.key, record)
        return record

    def _caches(self, verdict: Verdict | None) -> list[str]:
        searched = verdict.contamination.caches if verdict and verdict.contamination else ()
        files = [str(file.relative_to(self.plan.storage)) for file in searched]
        return self.plan.caches(verdict is not None) + files

    def _dev_sets(self) -> dict[str, dict[str, Any]]:
        """Return the development set of each stage: its table, the score that selects, and its rows."""
        recipes = self.plan.pipeline.recipes
        tables = {stage: recipe.spec.dev for stage, recipe in recipes.items()}
        devs = {stage: (table, dev) for stage, table in tables.items() if (dev := self.plan.dev(table)) is not None}
        return {s: {"table": table, "metric": dev.metrics[0], "rows": dev.size} for s, (table, dev) in devs.items()}

    @contextlib.contextmanager
    def _watch(self, step: Step, texts: int, waiting: list[Step]) -> Iterator[None]:
        """Measure a step, report when it is done, and sum its seconds over interrupted attempts."""
        self._follow([step], waiting, texts)
        waiting.remove(step)
        began = time.monotonic()
        say(f"{step.title} ...")
        logger.debug("%s %s: reads %s; writes %s", step.kind, step.id, ", ".join(step.needs) or "data", step.output)
        try:
            yield
        finally:
            seconds = time.monotonic() - began
            self.seconds[step.id] = round(self.seconds.get(step.id, 0.0) + seconds, 2)
            self._write_record()
        say(f"{step.title}: done in {seconds:.1f} s")


def run_batch(
    batch: Sequence[Step],
    context: Context,
    around: Callable[[Step, int], contextlib.AbstractContextManager[None]] = lambda *_: contextlib.nullcontext(),
) -> list[str]:
    """Do steps of one kind and return the failures of training. Other failures raise RunFailed.

    Other steps are done within ``around``, which receives the step and the number of texts that are left of it.
    """
    slots = context.executor.slots(context.resources)
    if batch[0].job:
        failures = train_all(batch, context)
        record_rates(context.store, [step for step in batch if step.state(context.store) == State.DONE], {}, slots)
        return failures
    for step in batch:
        assert step.work is not None
        measured = replace(step, sentences=round(step.sentences * step.left(context.store)))
        began = time.monotonic()
        with around(step, measured.sentences):
            try:
                step.work(context)
            except InputError as error:  # what nobody could know before it was tried
                raise RunFailed(f"{step.title}: {error}") from error
        record_rates(context.store, [measured], {step.id: time.monotonic() - began}, slots)
    return []

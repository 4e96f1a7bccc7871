"""Runs a plan: every node that is not done, in order, on an executor; killed anywhere and run again, it goes on."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from raysts.data.shards import skipped_line
from raysts.errors import InputError, RunFailed, limit_reached
from raysts.evaluation import harness
from raysts.pipeline.deliver import Delivered, cautions, delivered, write_model
from raysts.pipeline.local import Executor, Say
from raysts.pipeline.model_card import card_of
from raysts.pipeline.nodes.model import ModelNode, RunNode
from raysts.pipeline.nodes.node import Node
from raysts.pipeline.outcome import Outcome
from raysts.pipeline.plan import Plan
from raysts.recipes.tree import to_plain
from raysts.storage.atomic import remove_drafts
from raysts.storage.store import at_once

Report = Callable[[Plan, dict[str, float]], Path]
"""Writes the report of a plan, given the seconds that nodes took by their ids, and returns its path."""


def run(
    plan: Plan, executor: Executor, name: str, command: str, say: Say, report: Report | None = None
) -> dict[str, Any]:
    """Run what is left of the plan and return the fields of the JSON line.

    Args:
        plan: a plan that ``check`` has passed.
        command: the command that started this, for the report.
        report: writes the report, of a run that failed too.

    Raises:
        RunFailed: a node failed; what was finished stays finished.
        InputError: another driver holds the name.
    """
    try:
        record = plan.store.path(f"pipelines/{name}.json")
        with plan.store.lock(f"locks/{name}.lock", f"raysts run {name}", of=record):
            return _Driver(plan, executor, name, command, say, report).run()
    except OSError as error:
        if (limit := limit_reached(error)) is None:
            raise
        raise RunFailed(limit) from error


SWEPT = (
    "agreements", "backbones", "contamination", "evaluations", "pipelines", "reports", "results", "row_scores",
    "tables",
)  # fmt: skip
"""Folders in which a killed driver may have left drafts; those of token stores, means and runs are swept by who writes there."""


class _Driver:
    """One run of a plan; state is what the report needs: seconds per node."""

    def __init__(
        self, plan: Plan, executor: Executor, name: str, command: str, say: Say, report: Report | None
    ) -> None:
        self.plan, self.executor, self.name, self.command, self.say, self.report = (
            plan, executor, name, command, say, report,
        )  # fmt: skip
        self.store, self.key = plan.store, f"pipelines/{name}.json"
        self.seconds: dict[str, float] = (self.store.read_json(self.key, fresh=True) or {}).get("seconds", {})

    def run(self) -> dict[str, Any]:
        remove_drafts(self.store.root, of="*")
        of_runs = [node.folder for node in self.plan.nodes if isinstance(node, RunNode)]
        for folder in (*map(self.store.path, SWEPT), *of_runs):
            remove_drafts(folder)
        done = {node for node, status in self.plan.statuses().items() if status == "done"}
        self._write_record()
        self.say(f"{self.name}: {len(self.plan.nodes)} nodes, {len(done)} done")
        for line in [*self.plan.text_notes(), *map(skipped_line, self.plan.skipped)]:
            self.say(line)
        self.plan.write_backbone()
        for line in harness.left_out(self.plan.corpus, self.plan.tasks):
            self.say(line)
        leftovers = [path for node in self.plan.nodes if node.id in done for path in node.leftovers()]
        for path in itertools.compress(leftovers, at_once(self.store.exists, leftovers)):
            self.store.delete(path)
        again: set[str] = set()
        while True:
            batch = _ready(self.plan.nodes, done)
            if damaged := self._damaged(batch) & done:
                if damaged & again:
                    raise RunFailed(
                        f"{self.store.uri}: what was just written is damaged; look at the disk, then run again"
                    )
                done, again = done - damaged, again | damaged
                continue
            if not batch:
                return self._end()
            if failures := self._run_batch(batch):
                self._leave_out(batch, failures)
            done = {node.id for node in batch} | done

    def _damaged(self, batch: Sequence[Node]) -> set[str]:
        """The nodes whose files are not what they wrote any more, of those that a batch reads, or that are handed out."""
        read = {need for node in batch for need in node.needs}
        if not batch:
            read = {self.plan.outcome.selected or "", *(node.id for node in self.plan.evaluations)}
        return {node.id for node in self.plan.nodes if node.id in read and not node.is_sound(self.store, deep=True)}

    def _run_batch(self, batch: list[Node]) -> list[str]:
        if batch[0].together:
            return batch[0].run_all(batch, self.executor, self.store, self.say)
        with self.executor.keeping():
            for node in batch:
                with self._timed(node):
                    try:
                        node.run(self.executor, self.store, self.say)
                    except InputError as error:  # what nobody could know before it was tried
                        raise RunFailed(f"{node.title}: {error}") from error
        return []

    def _leave_out(self, batch: Sequence[Node], failures: list[str]) -> None:
        """Go on without the members that failed, where not all need to finish (``min_members``).

        Raises:
            RunFailed: too few did, or what failed is no member.
        """
        plan, least = self.plan, self.plan.pipeline.min_members
        members = {node.id for chain in plan.chains for node in chain}
        chains, least = (plan.chains, least) if batch[0].id in members else (plan.student_chains, None)
        done = [chain[-1].is_done(self.store) for chain in chains]
        if least is None or sum(done) < least:
            self._write_report()
            needed = "" if least is None else f", and min_members={least}"
            raise RunFailed(
                "\n".join(failures)
                + f"\n{sum(done)} of {len(chains)} finished{needed}; run the same command again to go on from there"
            )
        self.plan = replace(plan, without=frozenset(i for i, finished in enumerate(done) if not finished))
        self.say(f"going on with {sum(done)} of {len(chains)} members (min_members={least}); the others failed")
        self._write_record()

    def _end(self) -> dict[str, Any]:
        plan, outcome = self.plan, self.plan.outcome
        rows, report = plan.rows_on_record(), self._write_report()
        model, chosen = write_model(plan, outcome)
        known = delivered(plan, outcome)
        if model is not None and chosen is not None and not isinstance(chosen, ModelNode):
            with self.store.put(model / "README.md") as draft:
                draft.write_text(card_of(plan, outcome, chosen, model, rows, self.name, self.command), encoding="utf-8")
        contamination = plan.contamination()
        self._write_record("done", outcome, known)
        return {
            "status": "done",
            "storage": self.store.uri,
            "name": self.name,
            "model": str(model) if model else None,
            "delivered": known.as_plain() if known else None,
            "report": str(report) if report else None,
            "results": rows,
            **({"teachers": names} if (names := plan.teacher_names) else {}),
            "contamination": contamination.entries(plan.pipeline.name),
            "notes": [*plan.text_notes(), *cautions(plan), *plan.cut(), *contamination.lines(plan.pipeline.name)],
            "left_out": plan.left_out,
            "skipped": plan.skipped,
        }

    def _write_report(self) -> Path | None:
        return self.report(self.plan, self.seconds) if self.report else None

    def _write_record(
        self, status: str = "running", outcome: Outcome | None = None, known: Delivered | None = None
    ) -> None:
        plan = self.plan
        record = {
            "name": self.name,
            "status": status,
            "command": self.command,
            "pipeline": to_plain(plan.pipeline),
            "data": plan.corpus.uri,
            "own": plan.corpus.given.as_plain(),
            "skip_bad": plan.corpus.skip_bad,
            "skipped": plan.skipped,
            "backbone_id": plan.backbone_id,
            "members": [node.id for node in plan.members],
            "nodes": [node.id for node in plan.nodes],
            "seconds": self.seconds,
        }
        if outcome:
            record |= {"outcome": asdict(outcome), "delivered": known.as_plain() if known else None}
        self.store.write_json(self.key, record)

    @contextlib.contextmanager
    def _timed(self, node: Node) -> Iterator[None]:
        """Time a node, say when it is done, and add up its seconds over interrupted tries."""
        began = time.monotonic()
        self.say(f"{node.title} ...")
        try:
            yield
        finally:
            seconds = time.monotonic() - began
            self.seconds[node.id] = round(self.seconds.get(node.id, 0.0) + seconds, 2)
            self._write_record()
        self.say(f"{node.title}: done in {seconds:.1f} s")


def _ready(nodes: Sequence[Node], done: set[str]) -> list[Node]:
    """The first node whose needs are done, with all of its kind that are ready, or will be after others of them."""
    waiting = [node for node in nodes if node.id not in done]
    first = next((node for node in waiting if done.issuperset(node.needs)), None)
    batch: dict[str, Node] = {}
    for node in waiting if first else []:
        if type(node) is type(first) and all(need in done or need in batch for need in node.needs):
            batch[node.id] = node
    return list(batch.values())

"""Runs a plan: every node that is not done, in order, on an executor; killed anywhere and run again, it goes on."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from raysts.data.shards import skipped_line
from raysts.data.windows import Windows
from raysts.errors import RunFailed
from raysts.evaluation import harness, results
from raysts.models import pretrained
from raysts.models.encoder import PoolingMode
from raysts.models.head import Similarity, cosine_of_vectors
from raysts.models.layers import Layers
from raysts.models.sentence_model import Representation
from raysts.pipeline import overlap, teacher
from raysts.pipeline.evaluated import Evaluated
from raysts.pipeline.local import Executor, Say
from raysts.pipeline.model_card import model_card
from raysts.pipeline.outcome import Outcome, dev_of, joined
from raysts.pipeline.plan import TINY, Node, Plan, stored_rows
from raysts.pipeline.refresh import refresh
from raysts.recipes import names
from raysts.recipes.overrides import dump
from raysts.recipes.tree import to_plain
from raysts.report.run.data import report_data
from raysts.report.run.page import write_report
from raysts.storage.atomic import read_json, remove_drafts
from raysts.storage.manifests import need_folder, push_folder
from raysts.storage.store import aside, bring, location, lock, write_json


def run(plan: Plan, executor: Executor, name: str, command: str, say: Say) -> dict[str, Any]:
    """Run what is left of the plan and return the fields of the JSON line.

    Args:
        plan: a plan that ``check`` has passed.
        executor: where nodes run.
        name: name of the run in the storage; one driver at a time may use it.
        command: the command that started this, for the report.
        say: takes one line of progress.

    Raises:
        RunFailed: a node failed; what was finished stays finished.
        InputError: another driver holds the name.
    """
    try:
        with lock(plan.storage / "locks" / f"{name}.lock", f"raysts run {name}"):
            return _Driver(plan, executor, name, command, say).run()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise RunFailed(
            f"the disk is full ({error}); free space in {plan.storage} and run the same command again: it goes on where "
            f"it stopped"
        ) from error


class _Driver:
    """One run of a plan; state is what the report needs: seconds per node."""

    def __init__(self, plan: Plan, executor: Executor, name: str, command: str, say: Say) -> None:
        self.plan, self.executor, self.name, self.command, self.say = plan, executor, name, command, say
        self.record_file = plan.storage / "pipelines" / f"{name}.json"
        bring(self.record_file)
        self.seconds: dict[str, float] = (read_json(self.record_file) or {}).get("seconds", {})

    def run(self) -> dict[str, Any]:
        plan = self.plan
        for folder in ("backbones", "results", "reports", "pipelines", "contamination"):
            remove_drafts(plan.storage / folder)
        refresh(plan.nodes)  # another driver may have ended since the plan was made
        self._note()
        waiting = [node for node in plan.nodes if node.status != "done"]
        self.say(f"{self.name}: {len(plan.nodes)} nodes, {len(plan.nodes) - len(waiting)} done")
        for each in plan.skipped:
            self.say(skipped_line(each))
        plan.write_backbone()
        self._tokens()
        plan = self._members()
        if plan.teacher is not None:
            self._teacher(plan.teacher)
        if plan.student_chains:
            self._student_start()
            if failures := self._train(plan.student_chains):
                raise self._failed(failures, len(plan.student_chains), len(plan.student_chains) - len(failures))
        for line in harness.left_out(plan.corpus, plan.tasks):
            self.say(line)
        for node in plan.evaluations:
            self._evaluate(node)
        rows = stored_rows(plan)
        report = self._report()
        outcome = plan.outcome
        selected = next((node for node in [*plan.outcomes, *plan.members] if node.id == outcome.selected), None)
        if selected is not None:
            need_folder(selected.model)
            self._card(selected, outcome, rows)
        model = selected.model if selected else None if plan.pipeline.combine else plan.backbone
        text = overlap.searched(plan)
        self._note("done", outcome=asdict(outcome))
        return {
            "status": "done",
            "storage": location(plan.storage),
            "name": self.name,
            "model": str(model) if model else None,
            "report": str(report),
            "results": rows,
            "contamination": text.entries(plan.pipeline.name),
            "notes": text.lines(plan.pipeline.name),
            "left_out": plan.left_out,
            "skipped": plan.skipped,
        }

    # -- nodes -------------------------------------------------------------------------------------------------------

    def _tokens(self) -> None:
        for node in self.plan.token_nodes:
            if node.status != "done":
                spec = self.plan.specs[node.id]
                with self._timed(node):
                    folder = self.plan.store_folder(spec)
                    folder.mkdir(parents=True, exist_ok=True)
                    remove_drafts(folder)
                    self.plan.corpus.write_derived(spec.table)
                    self.executor.tokenize(spec, self.plan.groups(spec), self.plan.start, folder, self.say)

    def _members(self) -> Plan:
        """Train the members; the plan of what is made of those that finished, where not all need to (``min_members``)."""
        chains, least = self.plan.chains, self.plan.pipeline.min_members
        failures = self._train(chains)
        done = [chain[-1].status == "done" for chain in chains]
        if failures and (least is None or sum(done) < least):
            raise self._failed(failures, len(chains), sum(done), least)
        if failures:
            self.plan = replace(self.plan, without=frozenset(i for i, finished in enumerate(done) if not finished))
            self.say(f"going on with {sum(done)} of {len(chains)} members (min_members={least}); the others failed")
            self._note()
        return self.plan

    def _train(self, chains: list[list[Node]]) -> list[str]:
        """Train what is left of the chains; why some failed."""
        left = [[node for node in chain if node.status != "done"] for chain in chains]
        left = [chain for chain in left if chain]
        if not left:
            return []
        jobs = [[node.job for node in chain if node.job is not None] for chain in left]
        outcomes = self.executor.train(jobs, self.plan.pipeline.resources, self.say)
        refresh([node for chain in left for node in chain])
        return [reason for reason in outcomes if reason is not None]

    def _failed(self, failures: list[str], count: int, done: int, least: int | None = None) -> RunFailed:
        self._report()
        needed = "" if least is None else f", and min_members={least}"
        return RunFailed(
            "\n".join(failures)
            + f"\n{done} of {count} finished{needed}; run the same command again to go on from there"
        )

    def _report(self) -> Path:
        data = report_data(self.plan, self.name, self.command, self.seconds)
        return write_report(data, self.plan.storage / "reports" / self.name)

    def _teacher(self, node: Node) -> None:
        if node.status == "done":
            return
        recipe = self.plan.pipeline.sed
        assert recipe is not None
        folder, tokens = node.marker.parent, self.plan.store_folder(self.plan.store_spec(recipe))
        chosen = self.plan.selected_members()
        with self._timed(node):
            folder.mkdir(parents=True, exist_ok=True)
            remove_drafts(folder)
            self.executor.teacher(
                [member.model for member in chosen],
                tokens,
                folder,
                recipe.pooling,
                recipe.layers,
                self.plan.pipeline.resources,
                self.say,
            )
            teacher.finish(Windows(tokens), folder, [member.id for member in chosen], {"store": tokens.name})

    def _student_start(self) -> None:
        """Write what the students start from, where that depends on which members were selected."""
        plan = self.plan
        assert plan.student is not None and plan.student.job is not None
        folder, start = plan.student.job.parent, plan.pipeline.student_start
        if start == "backbone":
            return
        need_folder(folder)
        if not folder.is_dir():
            chosen = [member.model for member in self.plan.selected_members()]
            pretrained.save(pretrained.average(chosen[:1] if start == "member" else chosen), folder)
        push_folder(folder)

    def _evaluate(self, node: Node) -> None:
        if node.status == "done":
            return
        plan = self.plan
        texts = harness.sentences(plan.corpus, plan.tasks)
        what = node.title.split()[-1]
        sed = plan.pipeline.sed if what == "student" else None
        pooling: PoolingMode = next((r.pooling for r in (sed, *reversed(plan.pipeline.stages.values())) if r), "mean")
        with self._timed(node):
            done = Evaluated(plan.storage, node.id)
            rows = done.rows
            if what == "backbone":
                for found in self._embed([plan.start], texts, pooling):
                    rows += self._score(texts, found, pretrained.similarities(plan.backbone), pooling, "backbone", None)
            else:
                nodes = plan.members if what == "members" else plan.outcomes
                chosen = {member.id for member in plan.selected_members()} if what == "members" else set()
                left = nodes[done.count :]
                for model, found in zip(left, self._embed([n.model for n in left], texts, pooling), strict=True):
                    role, similarities = (
                        "member" if what == "members" else "student",
                        pretrained.similarities(model.model),
                    )
                    found = self._as_trained(model, found)
                    summed = plan.pipeline.combine and model.id in chosen
                    done.add(
                        self._score(texts, found, similarities, pooling, role, model),
                        {k: representation["vectors"] for k, representation in found.items()} if summed else {},
                    )
                    self.say(f"{node.title}: {done.count} of {len(nodes)}")
                if done.sums:
                    means = {k: {"vectors": total / np.float32(len(chosen))} for k, total in done.sums.items()}
                    rows += self._score(texts, means, {"cosine": cosine_of_vectors}, pooling, "ensemble", None)
            results.write(plan.storage, node.id, rows)
            done.close()

    def _as_trained(self, node: Node, found: dict[Layers, Representation]) -> dict[Layers, Representation]:
        """With the one choice of layers of a model with heads as its recipe says it: the last may be ``only-12`` there."""
        if node.job is None or len(found) > 1 or found.keys() <= set(self.plan.pipeline.evaluation.layers):
            return found
        return {node.job.recipe.layers: next(iter(found.values()))}

    def _embed(
        self, models: list[Path], texts: list[str], pooling: PoolingMode
    ) -> Iterable[dict[Layers, Representation]]:
        return self.executor.embed(
            models, texts, pooling, self.plan.pipeline.evaluation.layers, self.plan.pipeline.resources, self.say
        )

    def _score(
        self,
        texts: list[str],
        found: dict[Layers, Representation],
        similarities: Mapping[str, Similarity],
        pooling: str,
        role: str,
        node: Node | None,
    ) -> list[dict[str, Any]]:
        plan = self.plan
        record = node.record if node else {}
        transductive = role == "ensemble" and any(
            member.record.get("transductive") for member in self.plan.selected_members()
        )
        parents = (
            [plan.backbone_id] if role == "backbone" else [_run_id(member) for member in self.plan.selected_members()]
        )
        context = {
            "run_id": _run_id(node) if node else None,
            "parent_run_ids": record.get("parents") or parents,
            "system": plan.pipeline.name,
            "recipe": "-".join(plan.pipeline.stages) or "raw",
            "role": role,
            # A student that is one of several here may have been trained as the only one.
            "member": node.job.facts["member"] if node and node.job else record.get("member"),
            "seed": record.get("seed"),
            "transductive": bool(record.get("transductive", transductive)),
            "selected_by": record.get("selected_by") or self._chosen_by(role, node),
            "step": (record.get("kept") or {}).get("step"),
            "git_commit": results.git_commit(),
            "pooling": pooling,
        }
        text = overlap.searched(plan)
        return [
            row
            for k, representation in found.items()
            for row in harness.score(
                plan.corpus,
                plan.tasks,
                texts,
                representation,
                similarities,
                {**context, "layers": str(k)},
                resamples=plan.pipeline.evaluation.resamples,
                contaminated=text,
            )
        ]

    def _chosen_by(self, role: str, node: Node | None) -> str | None:
        """The development set that chose a model among others, rather than its checkpoint."""
        pipeline, outcome = self.plan.pipeline, self.plan.outcome
        if role == "ensemble" and pipeline.select_top is None:
            return None
        chosen = role == "ensemble" or (role == "member" and node is not None and node.id == outcome.selected)
        return outcome.selected_by if chosen else None

    # -- records -----------------------------------------------------------------------------------------------------

    def _timed(self, node: Node) -> _Timer:
        return _Timer(self, node)

    def _note(self, status: str = "running", **more: Any) -> None:
        plan = self.plan
        write_json(
            self.record_file,
            {
                "name": self.name,
                "status": status,
                "command": self.command,
                "pipeline": to_plain(plan.pipeline),
                "data": plan.corpus.where,
                "skip_bad": plan.corpus.skip_bad,
                "skipped": plan.skipped,
                "backbone_id": plan.backbone_id,
                "members": [node.id for node in plan.members],
                "nodes": [node.id for node in plan.nodes],
                "seconds": self.seconds,
                **more,
            },
        )

    def _card(self, node: Node, outcome: Outcome, rows: list[dict[str, Any]]) -> None:
        """Write the model card of the run that comes out."""
        plan, recipes = self.plan, self.plan.pipeline.recipes
        record, folder = node.record, node.model
        by_labels = {dev_of([recipe.objective]) for recipe in recipes.values() if recipe.by_dev}
        entry = names.RECIPES.get(plan.pipeline.name)
        recipe = recipes[record["stage"]]
        text = model_card(
            name=f"{self.name} ({record['role']})",
            path=str(folder),
            system=plan.pipeline.name,
            role=record["role"],
            members=len(plan.members),
            backbone=plan.pipeline.backbone,
            dimension=pretrained.dim(folder),
            similarity=next(iter(pretrained.similarities(folder))),
            max_length=recipe.train.max_length,
            pooling=recipe.pooling,
            layers=node.job.export_layers if node.job else 1,
            data=[
                {"stage": stage, "table": r.table, "rows": plan.rows(r), "sha256": plan.corpus.fingerprint(r.table)}
                for stage, r in recipes.items()
            ],
            recipe_yaml=dump(plan.pipeline),
            rows=[row for row in rows if row["run_id"] == node.id],
            command=self.command,
            source=entry.source if entry else None,
            selected_by=joined([outcome.selected_by, *by_labels]),
            random_backbone=plan.pipeline.backbone == TINY,
            versions=record.get("versions"),
            notes=[
                *([outcome.choice] if outcome.choice else []),
                *(f"Training data is not whole; {skipped_line(each)}" for each in plan.skipped),
            ],
        )
        with aside(folder / "README.md") as draft:
            draft.write_text(text, encoding="utf-8")


def _run_id(node: Node) -> str:
    """The run behind a model; its content id where there is none on record (a model from elsewhere)."""
    return str(node.record.get("run_id") or node.id)


class _Timer:
    """Times a node, says when it is done, and adds up its seconds over interrupted tries."""

    def __init__(self, driver: _Driver, node: Node) -> None:
        self.driver, self.node = driver, node

    def __enter__(self) -> None:
        self.began = time.monotonic()
        self.driver.say(f"{self.node.title} ...")

    def __exit__(self, kind: object, *rest: object) -> None:
        seconds = time.monotonic() - self.began
        self.driver.seconds[self.node.id] = round(self.driver.seconds.get(self.node.id, 0.0) + seconds, 2)
        self.driver._note()
        if kind is None:
            self.driver.say(f"{self.node.title}: done in {seconds:.1f} s")

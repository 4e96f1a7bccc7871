from __future__ import annotations

import ctypes
import json
import os
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import run_commands
from run_commands import EVALUATION, EVERY, TASKS, TINY, WHOLE, overrides, raysts, result

from raysts.data.corpora import Corpus
from raysts.evaluation import results
from raysts.models.pretrained import load
from raysts.recipes.names import NameParts, parse
from raysts.schema import RESULTS, SCHEMA_VERSION
from raysts.storage.atomic import ASIDE, lock

NULLABLE = {"run_id", "study", "trial", "member", "seed", "subset", "aggregation", "selected_by", "step", "git_commit"}
NEVER = {"study", "trial"}


def trained(storage: Path) -> dict[str, float]:
    """When each training run of a storage was written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in storage.glob("runs/*/run.json")}


def drafts(folder: Path) -> list[Path]:
    return list(folder.rglob(f"{ASIDE}*"))


# -- every named recipe runs to its end ----------------------------------------------------------------------------------


def parts_of(name: str) -> NameParts:
    if name == "raw":
        return NameParts((), None, None)
    return parse({"quickstart": "nli-ct-sed", "best": "nli-sed"}.get(name, name))


def expected_roles(name: str) -> dict[str, int]:
    """The roles that are measured, and at how many choices of layers: a head belongs to one."""
    stages, combine, post = parts_of(name)
    headed = bool(post and combine != "sed") or "gausscse" in "".join(stages[-1:])
    found = {"backbone": 2}
    if stages or post:
        found["member"] = 1 if headed else 2
    if combine:
        found["ensemble"] = found["member"]
    if combine == "sed":
        found["student"] = 1 if post else 2
    if name in ("quickstart", "best"):  # they hand over the best of all
        found |= {"soup": 2, "greedy-soup": 2}
    return found


def expected_transductive(name: str) -> set[str]:
    """The roles that have seen the sentences of the test sets."""
    _, combine, post = parts_of(name)
    if post not in ("flow", "whiten", "centre"):
        return set()
    return {"student"} if combine == "sed" else {"member", "ensemble"} & set(expected_roles(name))


@pytest.mark.parametrize("name", EVERY)
def test_a_named_recipe_measures_what_it_makes(name: str, finished: run_commands.Finished) -> None:
    found = finished.results[name]
    assert found["storage"] == str(finished.storage) and Path(found["report"]).is_file()
    rows = found["results"]
    roles = expected_roles(name)
    assert Counter(role for role, _ in {(row["role"], row["layers"]) for row in rows}) == roles
    assert {row["layers"] for row in rows} <= {"1", "2"}
    assert {row["role"] for row in rows if row["transductive"]} == expected_transductive(name)
    assert {row["dataset"] for row in rows} == set(TASKS)
    if "member" in roles:
        assert {row["member"] for row in rows if row["role"] == "member"} == {0, 1}
        assert len({row["run_id"] for row in rows if row["role"] == "member"}) == 2
    models = Counter(tuple(row[key] for key in ("role", "member", "pooling", "layers", "similarity")) for row in rows)
    assert len({*models.values()}) == 1, "every model is measured on the same things"
    if "ensemble" in roles and "student" not in roles:
        assert found["model"] is None
    else:
        assert (Path(found["model"]) / "config.json").is_file()
    for row in rows:  # each is complete
        assert list(row) == RESULTS.names
        assert {column for column, value in row.items() if value is None} <= NULLABLE
        assert all(row[column] is None for column in NEVER)
        assert row["schema_version"] == SCHEMA_VERSION and row["system"] == name
        assert (row["subset"] is None) == (row["aggregation"] is not None)
        assert row["n"] > 1 and -1 <= row["value"] <= 1 and -1 <= row["ci_low"] <= row["ci_high"] <= 1
        assert row["split"] == "test" and row["rows"] == "all"
        assert len(row["dataset_sha256"]) == 64 and row["parent_run_ids"]
        if row["role"] in ("member", "student"):
            assert row["run_id"] and row["seed"] is not None and row["step"] is not None


def test_the_storage_of_finished_runs_holds_every_row_and_nothing_half_written(finished: run_commands.Finished) -> None:
    told = Counter(json.dumps(row) for name in WHOLE for row in finished.results[name]["results"])
    parts = [*(finished.storage / "results").glob("[!.]*.parquet")]
    assert all(pq.read_schema(part).equals(RESULTS) for part in parts)
    stored = Counter(json.dumps(row) for part in parts for row in results.read_rows(part))
    assert told <= stored and sum(told.values()) > 1_000
    assert not drafts(finished.storage)
    assert not list(finished.storage.glob("runs/*/checkpoints")), "a finished run needs no checkpoints"
    assert not list(finished.storage.glob("embeddings/*/sum-*")), "a finished teacher needs no partial sums"


@pytest.mark.parametrize("name", EVERY)
def test_a_second_run_trains_nothing_and_the_report_names_each_step(name: str, finished: run_commands.Finished) -> None:
    arguments = finished.arguments(name)
    before, parts = trained(finished.storage), sorted(finished.storage.glob("results/*"))
    # No address: Ray is not even started when nothing is left to do.
    again = raysts("run", *arguments, "--json")
    assert again.code == 0, again.err
    assert trained(finished.storage) == before and sorted(finished.storage.glob("results/*")) == parts
    assert json.loads(again.out)["results"] == finished.results[name]["results"]
    steps = json.loads((finished.storage / "pipelines" / f"{name}.json").read_text(encoding="utf-8"))["steps"]
    assert f"{len(steps)} steps, {len(steps)} done" in again.err
    page = Path(finished.results[name]["report"]).read_text(encoding="utf-8")
    assert f"raysts run {name}" in page and [step["title"] for step in steps if step["title"] not in page] == []


# -- what the numbers are ------------------------------------------------------------------------------------------------


def test_the_ensemble_is_the_mean_of_its_members(finished: run_commands.Finished) -> None:
    """Recomputed from the written models with scipy."""
    from scipy.stats import pearsonr, spearmanr

    pairs = Corpus(finished.data).read("sts/stsb_test").to_pydict()
    rows = finished.results["nli-ct-sed"]["results"]
    runs = sorted({row["run_id"] for row in rows if row["role"] == "member"})
    for k in (1, 2):
        models = [load(finished.storage / "runs" / run / "model", layers=k) for run in runs]
        a, b = (np.mean([model.encode(pairs[side]) for model in models], axis=0) for side in ("sentence1", "sentence2"))
        similarity = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        for metric, scipy_metric in (("spearman", spearmanr), ("pearson", pearsonr)):
            wanted = {"role": "ensemble", "dataset": "stsb", "layers": str(k), "metric": metric, "aggregation": "all"}
            (ours,) = (row["value"] for row in rows if wanted.items() <= row.items())
            assert ours == pytest.approx(scipy_metric(similarity, pairs["score"]).statistic, abs=1e-4)


def test_sentence_transformers_loads_what_is_handed_over(finished: run_commands.Finished) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    path = finished.results["nli-ct-sed"]["model"]
    ours, theirs = load(path, device="cpu"), sentence_transformers.SentenceTransformer(path, device="cpu")
    assert ours.layers == finished.results["nli-ct-sed"]["delivered"]["layers"]
    texts = Corpus(finished.data).read("sts/sts12").column("sentence1").to_pylist()[:20] + ["a", "?!", "a " * 300]
    np.testing.assert_allclose(ours.encode(texts), theirs.encode(texts), atol=1e-5)


# -- when it goes wrong --------------------------------------------------------------------------------------------------


def command_of(tmp_path: Path, data: Path, name: str = "nli", **more: Any) -> list[object]:
    chosen = {key.replace("__", "."): value for key, value in more.items()}
    return ["run", name, "--data", data, "--storage", tmp_path / "storage", "--address", "none",
            *overrides(TINY, EVALUATION, chosen)]  # fmt: skip


def test_one_driver_at_a_time(few_world: Path, tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    with lock(storage / "locks" / "nli.lock", "raysts run nli"):
        refused = raysts(*command_of(tmp_path, few_world))
        assert refused.code == 2 and not (storage / "runs").exists()
        for part in ("nli.lock", f"process {os.getpid()}", "--name"):
            assert part in refused.err
        assert raysts(*command_of(tmp_path, few_world, "raw"), "--name", "other").code == 0
    assert raysts(*command_of(tmp_path, few_world, "raw"), "--name", "nli").code == 0


MOUNT = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Any]:
    """Makes a file system of a given size, or of another size, at one place; skips where that is not allowed."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = False

    def size(kilobytes: int) -> Path:
        nonlocal mounted
        flags = 32 if mounted else 0  # MS_REMOUNT
        if MOUNT.mount(b"tmpfs", str(place).encode(), b"tmpfs", flags, f"size={kilobytes}k".encode()):
            pytest.skip("needs the right to mount a small file system")
        mounted = True
        return place

    # By a process that sees this one end, also when it is killed; lazily: whatever is still mapped must not keep it for ever.
    unmount = ["sh", "-c", 'read -r _; exec umount -l "$0"', place]
    with subprocess.Popen(unmount, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True):
        yield size


@pytest.mark.whole
def test_a_full_disk(small_disk: Any, few_world: Path) -> None:
    """A disk that grows: the same command gets on a little with every step, and to the end."""
    threads = threading.active_count()
    for kilobytes, where in ((4, "record"), (1550, "tokens"), (2800, "checkpoint"), (9500, "teacher or student")):
        place = small_disk(kilobytes)
        arguments = command_of(place, few_world, "nli-sed", evaluation__tasks="[stsb]", sed__data__sample=400)
        full = raysts(*arguments)
        assert full.code == 3 and full.out == "", (where, full.err)
        assert "run the same command again" in full.err
        if where in ("record", "tokens"):
            assert "the disk is full" in full.err and str(place / "storage") in full.err
        assert not drafts(place), "nothing half-written is left"
        assert threading.active_count() <= threads, "one that still writes would end with a traceback after the message"
    small_disk(65_536)
    assert {row["role"] for row in result(*arguments)["results"]} == {"backbone", "member", "ensemble", "student"}

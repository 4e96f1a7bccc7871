"""One storage contract: a folder, a bucket in memory, of S3 and of Azure, and seen from a machine that has nothing of it."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from filled import below, fill

from raysts.errors import InputError
from raysts.storage import store as storage
from raysts.storage.bucket import AT_ONCE, Conflict, run_parallel
from raysts.storage.store import Store

CALLS = (
    "get", "get_all", "get_dir", "put", "put_dir", "read", "replace", "exists", "list", "delete", "check",
    "read_json", "write_json",
)  # fmt: skip


class FromAnotherMachine:
    """A storage whose mirror is gone before every call, as on a machine that has never asked for anything."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        if name in CALLS:
            shutil.rmtree(self.store.root, ignore_errors=True)
        return getattr(self.store, name)


KINDS = ("folder", "memory", "s3", "azure")
here = pytest.mark.parametrize("store", KINDS, indirect=True)
"""What does not depend on what this machine has of a storage."""


@pytest.fixture(params=[*KINDS, "memory from another machine"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "folder":
        return Store.open(tmp_path / "storage")
    kind, *another = request.param.split(" from ")
    bucket = Store.open(request.getfixturevalue(kind))
    return FromAnotherMachine(bucket) if another else bucket


def relative(store: Any, paths: list[Path]) -> list[str]:
    return [path.relative_to(store.root).as_posix() for path in paths]


def put(store: Any, key: str, text: str) -> None:
    with store.put(key) as draft:
        draft.write_text(text)


def put_dir(store: Any, key: str, **files: str) -> None:
    with store.put_dir(key) as draft:
        fill(draft, **files)


# -- files ---------------------------------------------------------------------------------------------------------------
def test_nothing_is_there_at_first(store: Any) -> None:
    for fresh in (False, True):
        assert store.get("a/b.json", fresh) is None and store.get_dir("a", fresh) is None
        assert store.read_json("a/b.json", fresh) is None
    assert not store.exists("a/b.json") and store.read("a/b.json") is None
    assert store.list() == store.list("a", recursive=True) == store.get_all("a") == []


def test_a_file_is_there_under_relative_and_absolute_keys(store: Any) -> None:
    store.write_json("pipelines/a.json", {"x": [1]})
    assert store.exists("pipelines/a.json") and store.exists(store.root / "pipelines/a.json")
    for fresh in (False, True):
        path = store.get(store.root / "pipelines/a.json", fresh)
        assert path == store.path("pipelines/a.json") and path.read_text() == '{\n "x": [\n  1\n ]\n}\n'
        assert store.read_json("pipelines/a.json", fresh) == {"x": [1]}


def test_a_name_that_begins_like_another_is_another(store: Any) -> None:
    put(store, "runs/xy", "1")
    put_dir(store, "runs/a/model", weights="1")
    assert not store.exists("runs/x") and not store.exists("runs/a/mode") and store.get("runs/x") is None
    store.delete("runs/x")
    store.delete("runs/a/mode")
    assert store.exists("runs/xy") and store.exists("runs/a/model") and store.list("run") == []


@pytest.mark.parametrize("text", ["", "x" * (2 * storage.SMALL)], ids=["empty", "large"])
def test_a_file_that_is_put_again_is_read_fresh(text: str, store: Any) -> None:
    put(store, "a/b.txt", "before")
    put(store, "a/b.txt", text)
    assert store.get("a/b.txt", fresh=True).read_text() == text
    put(store, "a/b.txt", text.replace("x", "y"))
    assert store.get("a/b.txt", fresh=True).read_text() == text.replace("x", "y")


def test_a_record_grows_beyond_one_request(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "ONE_REQUEST", 100)
    for size in (10, 1000, 10, 10):
        put(store, "runs/x/metrics.jsonl", "x" * size)
        assert store.read("runs/x/metrics.jsonl")[0] == b"x" * size


def test_a_file_whose_writer_fails_is_what_it_was_and_a_torn_one_is_none(store: Any) -> None:
    store.write_json("a.json", ["ü", 1])
    with pytest.raises(ZeroDivisionError), store.put("a.json") as draft:
        draft.write_text("half")
        raise ZeroDivisionError
    assert store.read_json("a.json", fresh=True, kind=list) == ["ü", 1]
    assert relative(store, store.list()) == ["a.json"]
    put(store, "a.json", "[1, 2")
    assert store.read_json("a.json", fresh=True, kind=list) is None


def test_names_of_any_kind(store: Any) -> None:
    for name in ("a b", "ü", "100%", "a+b", "a%20b", "x#1", "[z]&b=c", "it's a:b", "~-,b;c (x)"):
        put(store, f"own/{name}/{name}.txt", name)
        assert store.get(f"own/{name}/{name}.txt", fresh=True).read_text() == name
        assert relative(store, store.list("own", recursive=True)) == [f"own/{name}/{name}.txt"]
        assert relative(store, store.list("own")) == [f"own/{name}"]
        store.delete(f"own/{name}")
        assert store.list("own", recursive=True) == []


def test_a_file_of_the_users_own_is_brought_as_it_is_now(store: Any) -> None:
    for text in ("one", "two"):
        put(store, "own/docs.csv", text)
        store.bring("own/docs.csv")
        assert store.path("own/docs.csv").read_text() == text
    store.bring("own/none.csv")


# -- conditional writes --------------------------------------------------------------------------------------------------
def test_a_file_is_created_once_and_replaced_by_who_saw_it(store: Any) -> None:
    def refused(tag: Any, current: Any) -> None:
        """Nothing is written by who has seen another version; the refusal names the current one."""
        before = store.read("runs/x/run.json")
        with pytest.raises(Conflict) as conflict:
            store.replace("runs/x/run.json", b"refused", tag)
        assert conflict.value.tag == current and store.read("runs/x/run.json") == before
        # Here no trace of it is left either.
        assert not [text for text in below(store.root).values() if "refused" in text]

    first = store.replace("runs/x/run.json", b"1", None)
    assert store.read("runs/x/run.json") == (b"1", first)
    refused(None, first)
    second = store.replace("runs/x/run.json", b"2", first)
    assert second != first and store.read("runs/x/run.json") == (b"2", second)
    refused(first, second)
    assert store.get("runs/x/run.json", fresh=True).read_bytes() == b"2"
    assert relative(store, store.list("runs", recursive=True)) == ["runs/x/run.json"]
    put(store, "runs/x/run.json", "3")  # a file that is put has a tag too
    content, third = store.read("runs/x/run.json")
    assert content == b"3"
    refused(second, third)
    store.replace("runs/x/run.json", b"4", third)
    store.delete("runs/x/run.json")
    refused(third, None)
    store.replace("runs/x/run.json", b"5", None)


@here
def test_no_change_of_many_writers_is_lost(store: Any) -> None:
    all_have_read = threading.Barrier(AT_ONCE)

    def count(number: int) -> None:
        while True:
            content, tag = store.read("a/count") or (b"0", None)  # one of them creates it
            if tag is None and number < AT_ONCE:
                all_have_read.wait(120)
            try:
                store.replace("a/count", str(int(content) + 1).encode(), tag)
                return
            except Conflict:
                continue

    run_parallel(count, range(24))
    assert store.read("a/count")[0] == b"24"


# -- folders -------------------------------------------------------------------------------------------------------------
def test_a_folder_is_whole_or_absent_and_replaced_whole(store: Any) -> None:
    with pytest.raises(ZeroDivisionError), store.put_dir("runs/x/model") as draft:
        fill(draft, weights="half")
        raise ZeroDivisionError
    assert not store.exists("runs/x/model") and store.get_dir("runs/x/model") is None
    put_dir(store, "runs/x/model", weights="1", deep__config="{}")
    assert store.exists("runs/x/model") and store.get("runs/x/model/deep/config").read_text() == "{}"
    assert below(store.get_dir("runs/x/model")) == {"weights": "1", "deep/config": "{}"}
    assert store.is_whole("runs/x/model") and store.is_whole("runs/x/model", deep=True)
    put_dir(store, "runs/x/model", weights="2", other="3", **{"README.md": "old"})
    put(store, "runs/x/model/README.md", "new")  # a card alone is put into a whole folder
    assert below(store.get_dir("runs/x/model", fresh=True)) == {"weights": "2", "other": "3", "README.md": "new"}
    files = ["runs/x/model/README.md", "runs/x/model/other", "runs/x/model/weights"]
    assert relative(store, store.list("runs/x/model", recursive=True)) == files


def test_a_folder_that_was_written_in_place_is_sealed(store: Any) -> None:
    plain = getattr(store, "store", store)
    for written, whole in (({"one": "1", "two": "2"}, {}), ({"two": "3", "three": "3"}, {"one": "1"})):
        fill(store.path("runs/x/checkpoints"), **written)
        plain.seal("runs/x/checkpoints")
        assert below(store.get_dir("runs/x/checkpoints", fresh=True)) == whole | written


def test_files_that_were_written_in_place_are_sent(store: Any) -> None:
    fill(store.path("studies/s"), **{"optuna.db": "db", "views__1": "v"})
    store.upload("studies/s")
    assert [path.read_text() for path in store.get_all("studies/s")] == ["db", "v"]
    fill(store.path("studies/s"), **{"optuna.db": "db2"})
    store.upload("studies/s/optuna.db")
    assert [path.read_text() for path in store.get_all("studies/s", "optuna.db")] == ["db2"]


def test_a_scratch_folder_goes_and_is_never_of_the_store(store: Any) -> None:
    fill(store.path("studies/s/tune"), left="by a killed process")
    with store.scratch("studies/s/tune") as folder:
        assert not folder.exists()
        fill(folder, state="1")
    assert not folder.exists() and store.list("studies", recursive=True) == []


# -- listings ------------------------------------------------------------------------------------------------------------
def test_listings_name_what_the_store_holds(store: Any) -> None:
    for run in ("b", "a"):
        store.write_json(f"runs/{run}/run.json", {"run": run})
        put_dir(store, f"runs/{run}/model", weights=run)
    store.write_json("runs/readme.json", 0)
    files = ["a/model/weights", "a/run.json", "b/model/weights", "b/run.json", "readme.json"]
    with store.lock("runs/a/writer.lock", "a test"):  # a lock is none of them
        assert relative(store, store.list()) == ["runs"]
        assert relative(store, store.list("runs")) == ["runs/a", "runs/b", "runs/readme.json"]
        assert relative(store, store.list("runs", recursive=True)) == [f"runs/{name}" for name in files]
        assert relative(store, store.get_all("runs")) == [f"runs/{name}" for name in files]
    sizes = {name: store.size(name) for name in ("runs/a/model", "runs/a/run.json", "runs/none")}
    assert sizes == {"runs/a/model": 1, "runs/a/run.json": len('{\n "run": "a"\n}\n'), "runs/none": 0}


def test_all_files_that_match_are_brought_as_they_are_now(store: Any) -> None:
    for name in ("s/study.json", "s/trials/1.json", "t/study.json", "t/notes.txt"):
        store.write_json(f"studies/{name}", name)
    records = ["studies/s/study.json", "studies/t/study.json"]
    assert relative(store, store.get_all("studies", "study.json")) == records
    assert [path.name for path in store.get_all("studies", "trials/*.json", "*.txt")] == ["1.json", "notes.txt"]
    assert len(store.get_all("studies")) == 4
    store.write_json("studies/t/study.json", "new")
    assert [path.read_text() for path in store.get_all("studies", "t/study.json")] == ['"new"\n']
    store.delete("studies/t/study.json")
    assert relative(store, store.get_all("studies", "study.json")) == records[:1]


def test_what_is_deleted_is_gone(store: Any) -> None:
    store.delete("nothing")
    store.write_json("runs/x/run.json", 1)
    put_dir(store, "runs/x/model", weights="1")
    store.delete("runs/x/model")
    assert not store.exists("runs/x/model") and store.get_dir("runs/x/model") is None
    assert relative(store, store.list("runs", recursive=True)) == ["runs/x/run.json"]
    store.delete("runs/x")
    assert store.get("runs/x/run.json") is None and store.list("runs", recursive=True) == []
    put_dir(store, "runs/x/model", weights="2")
    assert below(store.get_dir("runs/x/model")) == {"weights": "2"}


# -- locks ---------------------------------------------------------------------------------------------------------------
@here
def test_one_holds_a_lock(store: Any) -> None:
    """Of a bucket, on one machine, that of the mirror already tells who."""
    with store.lock("locks/a.lock", "the first"):
        holder = f"the first (process {os.getpid()} on {os.uname().nodename})"
        refusal = re.escape(f"{store.path('locks/a.lock')} is held by {holder}")
        with pytest.raises(InputError, match=refusal), store.lock("locks/a.lock", "the second"):
            pass
        with store.lock("locks/b.lock", "the second"):
            store.write_json("a.json", 1)
        assert store.is_locked("locks/a.lock") and not store.is_locked("locks/b.lock")
        store.write_json("a.json", 2)
    with pytest.raises(ZeroDivisionError), store.lock("locks/a.lock", "the second"):
        raise ZeroDivisionError
    with store.lock("locks/a.lock", "the third"):
        pass


@here
def test_of_many_that_wait_one_at_a_time_has_a_lock(store: Any) -> None:
    inside, most = 0, 0

    def work(_: int) -> None:
        nonlocal inside, most
        with store.lock("locks/a.lock", "one of many", wait=60):
            inside += 1
            most = max(most, inside)
            time.sleep(0.02)
            inside -= 1

    run_parallel(work, range(4))
    assert (most, inside) == (1, 0)


@pytest.mark.parametrize("store", ["folder", "s3", "azure"], indirect=True)
def test_another_process_sees_what_was_written_and_the_lock_that_it_holds_ends_with_it(store: Any) -> None:
    store.write_json("runs/x/run.json", {"x": 1})
    put_dir(store, "runs/x/model", weights="1")
    program = (
        "import json, os, sys; from raysts.storage.store import Store\n"
        "store = Store.open(sys.argv[1]); content, tag = store.read('runs/x/run.json')\n"
        "store.replace('runs/x/run.json', b'{\"x\": 2}', tag)\n"
        "weights = (store.get_dir('runs/x/model') / 'weights').read_text()\n"
        "print(json.dumps([json.loads(content), weights]), flush=True)\n"
        "with store.lock('locks/a.lock', 'killed'):\n    os.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, store.uri], check=False, capture_output=True, text=True)
    assert ended.returncode == -9 and json.loads(ended.stdout) == [{"x": 1}, "1"]
    with store.lock("locks/a.lock", "after"):
        pass
    assert store.read_json("runs/x/run.json", fresh=True) == {"x": 2}
    store.write_json("runs/x/run.json", {"x": 3})
    assert json.loads(store.read("runs/x/run.json")[0]) == {"x": 3}


# -- handles -------------------------------------------------------------------------------------------------------------
def test_a_check_leaves_nothing(store: Any) -> None:
    store.check()
    store.check(writes=True)
    assert relative(store, store.list(recursive=True)) == []


@here
def test_a_handle_travels_and_is_that_of_the_paths_below(store: Any) -> None:
    copy = pickle.loads(pickle.dumps(store))
    assert copy == store and copy.uri == store.uri and copy.root == store.root
    copy.write_json("a/b.json", {"x": 1})
    assert Store.of(store.root / "a/b.json").read_json(store.root / "a/b.json") == {"x": 1}
    assert Store.of(store.root) == Store.open(store.uri) == store


# -- the helper that all of this runs on ---------------------------------------------------------------------------------
def test_results_come_in_the_order_of_the_items_and_an_error_ends_what_has_not_begun() -> None:
    for count in (0, 30):
        assert run_parallel(lambda item: item * item, range(count)) == [item * item for item in range(count)]
    begun: list[int] = []

    def fails(item: int) -> None:
        begun.append(item)
        if item == 3:
            raise ZeroDivisionError
        time.sleep(0.1)  # on a busy machine the news of an error travels slowly

    with pytest.raises(ZeroDivisionError):
        run_parallel(fails, range(1000))
    assert len(begun) < 100

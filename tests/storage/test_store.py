"""One storage contract: on a folder, in a bucket, and in a bucket seen from a machine that has nothing of it yet."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from raysts.data.windows import Windows
from raysts.errors import InputError, RunFailed
from raysts.search.record import read_records
from raysts.storage import store as storage
from raysts.storage.bucket import Bucket
from raysts.storage.store import BucketStore, FolderStore, Store

WORDS = (
    "get", "get_all", "get_dir", "put", "put_dir", "upload", "exists", "list", "delete", "lock", "check",
    "read_json", "write_json",
)  # fmt: skip


class FromAnotherMachine:
    """A storage whose mirror is gone before every call, as on a machine that has never asked for anything."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        if name in WORDS and name != "upload":  # what was written in place is only on this machine
            shutil.rmtree(self.store.root, ignore_errors=True)
        return getattr(self.store, name)


@pytest.fixture(params=["folder", "bucket", "bucket from another machine"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "folder":
        return Store.open(tmp_path / "storage")
    found = Store.open(request.getfixturevalue("s3"))
    return found if request.param == "bucket" else FromAnotherMachine(found)


def fill(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def below(folder: Path | None) -> dict[str, str]:
    assert folder is not None
    return {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()}


def relative(store: Any, paths: list[Path]) -> list[str]:
    return [path.relative_to(store.root).as_posix() for path in paths]


class TestConformance:
    def test_a_file_that_is_put_is_there_under_relative_and_absolute_keys(self, store: Any) -> None:
        assert store.get("pipelines/a.json") is None and store.get("pipelines/a.json", fresh=True) is None
        assert not store.exists("pipelines/a.json") and store.read_json("pipelines/a.json") is None
        store.write_json("pipelines/a.json", {"x": [1]})
        assert store.exists("pipelines/a.json") and store.exists(store.root / "pipelines/a.json")
        assert not store.exists("pipelines/a.jso") and not store.exists("other")
        for fresh in (False, True):
            path = store.get(store.root / "pipelines/a.json", fresh)
            assert path == store.path("pipelines/a.json") and path.read_text() == '{\n "x": [\n  1\n ]\n}\n'
            assert store.read_json("pipelines/a.json", fresh) == {"x": [1]}

    def test_what_is_put_again_is_read_fresh(self, store: Any) -> None:
        for text in ("first", "other", "x" * 2 * storage.SMALL, "y" * 2 * storage.SMALL):
            with store.put("a/b.txt") as draft:
                draft.write_text(text)
            assert store.get("a/b.txt", fresh=True).read_text() == text

    def test_a_file_whose_writer_fails_is_what_it_was(self, store: Any) -> None:
        store.write_json("a.json", {"x": 1})
        with pytest.raises(ZeroDivisionError), store.put("a.json") as draft:
            draft.write_text("half")
            raise ZeroDivisionError
        assert store.read_json("a.json", fresh=True) == {"x": 1} and relative(store, store.list()) == ["a.json"]

    def test_a_folder_is_whole_or_absent(self, store: Any) -> None:
        assert store.get_dir("runs/x/model") is None and store.get_dir("runs/x/model", fresh=True) is None
        with pytest.raises(ZeroDivisionError), store.put_dir("runs/x/model") as draft:
            fill(draft, weights="half")
            raise ZeroDivisionError
        assert not store.exists("runs/x/model") and store.get_dir("runs/x/model") is None
        with store.put_dir("runs/x/model") as draft:
            fill(draft, weights="1", deep__config="{}")
        assert store.exists("runs/x/model") and store.get("runs/x/model/deep/config").read_text() == "{}"
        assert below(store.get_dir("runs/x/model")) == {"weights": "1", "deep/config": "{}"}
        with store.put_dir("runs/x/model") as draft:
            fill(draft, weights="2", other="3")
        assert below(store.get_dir("runs/x/model", fresh=True)) == {"weights": "2", "other": "3"}
        assert relative(store, store.list("runs/x/model", recursive=True)) == [
            "runs/x/model/other",
            "runs/x/model/weights",
        ]

    def test_a_card_is_put_into_a_whole_folder(self, store: Any) -> None:
        with store.put_dir("runs/x/model") as draft:
            fill(draft, weights="1", **{"README.md": "old"})
        with store.put("runs/x/model/README.md") as draft:
            draft.write_text("new")
        assert below(store.get_dir("runs/x/model")) == {"weights": "1", "README.md": "new"}

    def test_listings_name_what_the_store_holds(self, store: Any) -> None:
        assert store.list("runs") == [] and store.list("runs", recursive=True) == [] and store.get_all("runs") == []
        for run in ("b", "a"):
            store.write_json(f"runs/{run}/run.json", {"run": run})
            with store.put_dir(f"runs/{run}/model") as draft:
                fill(draft, weights=run)
        store.write_json("runs/readme.json", 0)
        assert relative(store, store.list("runs")) == ["runs/a", "runs/b", "runs/readme.json"]
        files = ["a/model/weights", "a/run.json", "b/model/weights", "b/run.json", "readme.json"]
        assert relative(store, store.list("runs", recursive=True)) == [f"runs/{name}" for name in files]
        with store.lock("runs/a/writer.lock", "a test"):
            assert relative(store, store.list("runs/a")) == ["runs/a/model", "runs/a/run.json"]
            assert len(store.list("runs", recursive=True)) == 5

    def test_all_files_that_match_are_brought_as_they_are_now(self, store: Any) -> None:
        for name in ("s/study.json", "s/trials/1.json", "t/study.json", "t/notes.txt"):
            store.write_json(f"studies/{name}", name)
        assert relative(store, store.get_all("studies", "study.json")) == [
            "studies/s/study.json",
            "studies/t/study.json",
        ]
        assert [path.name for path in store.get_all("studies", "trials/*.json", "*.txt")] == ["1.json", "notes.txt"]
        assert len(store.get_all("studies")) == 4
        store.write_json("studies/t/study.json", "new")
        assert [path.read_text() for path in store.get_all("studies", "t/study.json")] == ['"new"\n']
        store.delete("studies/t/study.json")
        assert relative(store, store.get_all("studies", "study.json")) == ["studies/s/study.json"]

    def test_what_is_deleted_is_gone(self, store: Any) -> None:
        store.delete("nothing")
        store.write_json("runs/x/run.json", 1)
        with store.put_dir("runs/x/model") as draft:
            fill(draft, weights="1")
        store.delete("runs/x/model")
        assert not store.exists("runs/x/model") and store.get_dir("runs/x/model") is None
        assert relative(store, store.list("runs", recursive=True)) == ["runs/x/run.json"]
        store.delete("runs/x")
        assert store.get("runs/x/run.json") is None and store.list("runs", recursive=True) == []

    def test_what_was_written_in_place_is_uploaded(self, store: Any) -> None:
        folder = store.path("studies/s")
        fill(folder, **{"optuna.db": "db", "views__1": "v"})
        store.upload("studies/s")
        assert [path.read_text() for path in store.get_all("studies/s")] == ["db", "v"]

    def test_a_scratch_folder_goes_and_is_never_of_the_store(self, store: Any) -> None:
        fill(store.path("studies/s/tune"), left="by a killed process")
        with store.scratch("studies/s/tune") as folder:
            assert not folder.exists()
            fill(folder, state="1")
        assert not folder.exists() and store.list("studies", recursive=True) == []

    def test_one_holds_a_lock(self, store: Any) -> None:
        with store.lock("locks/a.lock", "the first"):
            with pytest.raises(InputError, match="is held by the first"), store.lock("locks/a.lock", "the second"):
                pass
            with store.lock("locks/b.lock", "the second"):
                store.write_json("a.json", 1)
            store.write_json("a.json", 2)
        with store.lock("locks/a.lock", "the second"):
            pass

    def test_a_handle_travels_and_is_that_of_the_paths_below(self, store: Any) -> None:
        plain = getattr(store, "store", store)
        store.check(writes=True)
        assert relative(store, store.list(recursive=True)) == []
        copy = pickle.loads(pickle.dumps(plain))
        assert copy == plain and copy.uri == plain.uri and copy.root == plain.root
        copy.write_json("a/b.json", {"x": 1})
        assert Store.of(plain.root / "a/b.json").read_json(plain.root / "a/b.json") == {"x": 1}
        assert Store.of(plain.root) == Store.open(plain.uri) == plain


def test_a_folder_says_of_paths_below_it_no_more_than_where_they_are(tmp_path: Path) -> None:
    assert Store.of(tmp_path / "runs/x") == FolderStore(tmp_path / "runs/x")
    assert Store.open(tmp_path).uri == str(tmp_path)


def test_keys_stay_in_the_storage(s3: str, tmp_path: Path) -> None:
    store = Store.open(s3)
    for key in ("../x", "a/../../x", "/etc/passwd", tmp_path / "elsewhere"):
        with pytest.raises(InputError, match="must stay in its folder"):
            store.get(key)


def test_nothing_is_visible_here_before_it_is_in_the_bucket(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(s3)

    def refused(*arguments: object) -> None:
        raise OSError("no")

    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "upload", refused)
        with pytest.raises(OSError, match="no"):
            store.write_json("pipelines/c.json", {})
        with pytest.raises(OSError, match="no"), store.put_dir("runs/x/model") as draft:
            fill(draft, weights="1")
    assert below(store.root) == {}


def test_a_file_of_the_same_size_in_the_same_second_is_seen(s3: str, tmp_path: Path) -> None:
    here, elsewhere = two_machines(s3, tmp_path)
    for text in ("running", "stopped", "ended__"):
        elsewhere.write_json("run.json", {"status": text})
        assert here.read_json("run.json", fresh=True) == {"status": text}
        assert elsewhere.read_json("run.json") == {"status": text}


def test_only_what_changed_travels(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, elsewhere = two_machines(s3, tmp_path)
    with here.put("table.parquet") as draft:
        draft.write_text("x" * 2 * storage.SMALL)
    with here.put_dir("runs/x/model") as draft:
        fill(draft, one="1", two="2")
    assert elsewhere.get("table.parquet", fresh=True) and elsewhere.get_dir("runs/x/model")
    moved: list[str] = []
    for name in ("upload", "download"):
        real = getattr(Bucket, name)
        monkeypatch.setattr(Bucket, name, lambda *a, real=real: moved.append(str(a)) or real(*a))
    elsewhere.get("table.parquet", fresh=True)
    elsewhere.get_dir("runs/x/model", fresh=True)
    with here.put_dir("runs/x/model") as draft:
        fill(draft, one="1", two="new")
    assert len(moved) == 1
    assert below(elsewhere.get_dir("runs/x/model", fresh=True)) == {"one": "1", "two": "new"}
    assert len(moved) == 2 and all("two" in move for move in moved)


def two_machines(s3: str, tmp_path: Path) -> tuple[BucketStore, BucketStore]:
    here = Store.open(s3)
    assert isinstance(here, BucketStore)
    return here, BucketStore(tmp_path / "another machine" / here.root.name, here.uri)


def test_a_folder_written_in_place_arrives_as_it_is(s3: str, tmp_path: Path) -> None:
    here, elsewhere = two_machines(s3, tmp_path)
    fill(here.path("checkpoints"), one="1", deep__two="2")
    here.upload_dir("checkpoints")
    assert below(elsewhere.get_dir("checkpoints", fresh=True)) == {"one": "1", "deep/two": "2"}
    here.path("checkpoints/one").unlink()
    fill(here.path("checkpoints"), three="3")
    here.upload_dir("checkpoints")
    assert here.bucket.listed("checkpoints", recursive=True).keys() == {"deep/two", "three"}
    assert below(elsewhere.get_dir("checkpoints", fresh=True)) == {"deep/two": "2", "three": "3"}
    here.delete("checkpoints")
    assert elsewhere.get_dir("checkpoints", fresh=True) is None
    assert below(elsewhere.path("checkpoints")), "what is here alone stays"


def test_an_upload_that_was_interrupted_is_ignored_and_made_good(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = two_machines(s3, tmp_path)
    folder = "runs/a/checkpoints"
    fill(here.path(folder), one="1")
    here.upload_dir(folder)

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    fill(here.path(folder), two="2")
    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "write", interrupted)  # the data is there, the manifest is not
        with pytest.raises(KeyboardInterrupt):
            here.upload_dir(folder)
    assert here.bucket.has(f"{folder}/two")
    assert below(elsewhere.get_dir(folder, fresh=True)) == {"one": "1"}

    fill(elsewhere.path(folder), three="3")
    elsewhere.upload_dir(folder)  # another machine goes on from what it got
    assert here.bucket.listed(folder).keys() == {"one", "three"}
    assert below(here.get_dir(folder, fresh=True)) == {"one": "1", "three": "3"}


def test_a_folder_that_is_not_what_its_manifest_says_is_refused(s3: str, tmp_path: Path) -> None:
    here, elsewhere = two_machines(s3, tmp_path)
    model = "runs/a/model"

    def put() -> None:
        with here.put_dir(model) as draft:
            fill(draft, weights="12345")

    put()
    here.bucket.write(f"{model}/weights", b"1234x")
    refusal = r"runs/a/model is not what its manifest says \(weights\).*run the same command"
    with pytest.raises(RunFailed, match=refusal):
        elsewhere.get_dir(model)
    assert not elsewhere.path(f"{model}/weights").exists()
    here.bucket.delete(f"{model}/weights")
    with pytest.raises(RunFailed, match="not what its manifest says"):
        elsewhere.get_dir(model)
    here.delete(model)
    put()
    assert below(elsewhere.get_dir(model)) == {"weights": "12345"}


@pytest.mark.parametrize("name", ["../../outside", "/tmp/outside", "a/../../outside", "a\\..\\b", "", "a\x00b"])
def test_a_manifest_cannot_name_a_file_outside_its_folder(name: str, s3: str, tmp_path: Path) -> None:
    here, elsewhere = two_machines(s3, tmp_path)
    with here.put_dir("runs/a/model") as draft:
        fill(draft, weights="12345")
    entry = json.loads(here.bucket.read("runs/a/model.manifest.json") or b"")["files"]["weights"]
    here.bucket.write("runs/a/model.manifest.json", json.dumps({"files": {name: entry}}).encode())
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="must stay in its folder, so this is refused"):
        elsewhere.get_dir("runs/a/model")
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_listing_cannot_name_a_file_outside_its_folder(s3: str, tmp_path: Path) -> None:
    """Keys are any text: one of them may hold dots."""
    boto3 = pytest.importorskip("boto3")
    client, store = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"]), Store.open(s3)
    assert isinstance(store, BucketStore)
    client.put_object(Bucket=store.bucket.bucket, Key="some/prefix/pipelines/../../../outside.json", Body=b"{}")
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    for ask in (store.get_all, store.list):
        with pytest.raises(InputError, match="must stay in its folder"):
            ask("pipelines")
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", ["/etc", "..", "../x", "a/b"])
def test_records_and_token_stores_cannot_name_other_folders(name: str, tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    record = {"id": name, "point": {}, "seed": 0, "status": "finished", "finished_at": "2026"}
    store.write_json("study/trials/a.json", record)
    with pytest.raises(InputError, match="a trial names .* must stay in its folder"):
        read_records(tmp_path / "study")
    store.write_json("tokens/manifest.json", {"parts": [{"file": name, "windows": [1]}]})
    with pytest.raises(InputError, match="manifest.json names .* must stay in its folder"):
        Windows(tmp_path / "tokens")

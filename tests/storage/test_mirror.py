"""A bucket and its mirrors: what travels, what does not, and what a store cannot make this machine write."""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from filled import below, fill, overwrite

from raysts.data.windows import Windows
from raysts.errors import InputError, RunFailed
from raysts.search.record import read_records
from raysts.storage import store as storage
from raysts.storage.bucket import Bucket
from raysts.storage.runs import RunFolder, State, record_of
from raysts.storage.store import Store


def test_keys_stay_in_the_storage(memory: str, tmp_path: Path) -> None:
    store = Store.open(memory)
    for key in ("../x", "a/../../x", "/etc/passwd", tmp_path / "elsewhere"):
        with pytest.raises(InputError, match="must stay in its folder"):
            store.get(key)


def test_nothing_is_visible_here_before_it_is_in_the_bucket(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(memory)

    def refused(*arguments: object) -> None:
        raise OSError("no")

    with monkeypatch.context() as patch:
        for name in ("upload", "replace"):
            patch.setattr(Bucket, name, refused)
        with pytest.raises(OSError, match="no"):
            store.write_json("pipelines/c.json", {})
        with pytest.raises(OSError, match="no"), store.put_dir("runs/x/model") as draft:
            fill(draft, weights="1")
    assert below(store.root) == {}


def test_a_file_of_the_same_size_in_the_same_second_is_seen(memory: str, tmp_path: Path) -> None:
    here, elsewhere = two_machines(memory, tmp_path)
    for text in ("running", "stopped", "ended__"):
        elsewhere.write_json("run.json", {"status": text})
        assert here.read_json("run.json", fresh=True) == {"status": text}
        assert elsewhere.read_json("run.json") == {"status": text}


def test_only_what_changed_travels(memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, elsewhere = two_machines(memory, tmp_path)
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
    assert len(moved) == 1 and below(elsewhere.get_dir("runs/x/model", fresh=True)) == {"one": "1", "two": "new"}
    assert len(moved) == 2 and all("two" in move for move in moved)


def two_machines(memory: str, tmp_path: Path) -> tuple[Store, Store]:
    here = Store.open(memory)
    assert here.remote
    return here, Store(tmp_path / "another machine" / here.root.name, here.uri)


def test_an_interrupted_upload_is_made_good(memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, elsewhere = two_machines(memory, tmp_path)
    folder = "runs/a/checkpoints"
    fill(here.path(folder), one="1")
    here.seal(folder)

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    fill(here.path(folder), two="2")
    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "replace", interrupted)  # the data is there, the manifest is not
        with pytest.raises(KeyboardInterrupt):
            here.seal(folder)
    assert here.bucket.entry(f"{folder}/two") and below(elsewhere.get_dir(folder, fresh=True)) == {"one": "1"}

    fill(elsewhere.path(folder), three="3")
    elsewhere.seal(folder)  # another machine goes on from what it got
    assert here.bucket.list_objects(folder).keys() == {"one", "three"}
    assert below(here.get_dir(folder, fresh=True)) == {"one": "1", "three": "3"}


def test_a_log_keeps_the_lines_of_all_its_drivers(memory: str, tmp_path: Path) -> None:
    """Of one that was killed here, of one elsewhere, and of one that is refused while another writes."""
    here, there = two_machines(memory, tmp_path)
    here.path("logs/a.log").parent.mkdir(parents=True)
    here.path("logs/a.log").write_text("killed\n")
    with here.append("logs/a.log") as log, log.open("a", buffering=1) as file:
        file.write("first\n")
        with here.append("logs/a.log"), log.open("a") as other:
            other.write("refused\n")
        with there.append("logs/a.log") as elsewhere:
            elsewhere.parent.mkdir(parents=True, exist_ok=True)
            elsewhere.write_text("elsewhere\n")
        file.write("last\n")
    stored = here.read("logs/a.log")
    assert stored and stored[0].decode().split() == ["killed", "first", "refused", "elsewhere", "last"]


def test_a_folder_that_is_not_what_its_manifest_says_is_refused(memory: str, tmp_path: Path) -> None:
    here, elsewhere = two_machines(memory, tmp_path)
    model = "runs/a/model"

    def put() -> None:
        with here.put_dir(model) as draft:
            fill(draft, weights="12345")

    put()
    overwrite(here.bucket, f"{model}/weights", b"1234x")
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


def test_what_is_done_here_but_not_in_the_bucket_is_not_done(memory: str) -> None:
    """Somebody has emptied the bucket, which alone says what there is."""
    store = Store.open(memory)
    run = RunFolder(store.path("runs/a"))
    with run.lock("a worker"):
        fill(run.path / "model", weights="1")
        run.upload_model()
        store.write_json("runs/a/run.json", {"status": State.DONE})
    assert run.done_record() and below(store.get_dir("runs/a/model"))
    for entry in store.bucket.list_objects("", recursive=True):
        store.bucket.delete(entry)
    assert run.written() and run.done_record() is None and not run.written()


def test_a_run_goes_on_elsewhere_from_its_last_checkpoint(memory: str, tmp_path: Path) -> None:
    here, there = (RunFolder(store.path("runs/a")) for store in two_machines(memory, tmp_path))
    with here.lock("one"):
        here.write({"status": State.RUNNING})
        fill(here.path, checkpoints__last="1", **{"recipe.json": "{}", "metrics.jsonl": "{}"})
        upload = here.upload_checkpoint()
        assert upload is not None and upload.result(60) is None
    fill(there.path / "model", weights="of a try that others have overtaken")
    with there.lock("another"):
        assert below(there.path / "checkpoints") == {"last": "1"} and not (there.path / "model").exists()
        assert there.written() == {"status": "running"} and (there.path / "metrics.jsonl").is_file()
        fill(there.path / "checkpoints", last="2")
        there.join()
        assert below(there.path / "checkpoints") == {"last": "2"}, "who holds the lock is on this machine"
    there.join()
    assert below(there.path / "checkpoints") == {"last": "1"}
    there.change(State.STOPPED)
    assert here.record() == {"status": "stopped"} and here.done_record() is None
    fill(there.path / "model", weights="2")
    there.upload_model()
    there.change(State.DONE)
    assert here.done_record() == {"status": "done"} and below(here.store.get_dir("runs/a/model")) == {"weights": "2"}


def test_checkpoints_that_never_came_to_the_bucket_stay_where_they_are(memory: str) -> None:
    run = RunFolder(Store.open(memory).path("runs/a"))
    run.store.write_json("runs/a/run.json", {"status": State.RUNNING})
    fill(run.path, checkpoints__last="1", model__weights="1")
    with run.lock("a worker"):
        assert below(run.path / "checkpoints") == {"last": "1"} and below(run.path / "model") == {"weights": "1"}


def test_the_record_of_a_model_is_that_of_its_run(tmp_path: Path) -> None:
    for name, found in (("0123456789abcdef", {"status": "done"}), ("0123456789abcdeg", {}), ("mine", {})):
        RunFolder(tmp_path / name).write({"status": State.DONE})
        assert record_of(tmp_path / name / "model") == found and record_of(tmp_path / name / "checkpoints") == {}


@pytest.mark.parametrize("name", ["../../outside", "/tmp/outside", "", "a\x00b"])
def test_a_manifest_cannot_name_a_file_outside_its_folder(name: str, memory: str, tmp_path: Path) -> None:
    here, elsewhere = two_machines(memory, tmp_path)
    with here.put_dir("runs/a/model") as draft:
        fill(draft, weights="12345")
    content, _ = here.bucket.read("runs/a/model.manifest.json") or (b"", {})
    entry = json.loads(content)["files"]["weights"]
    overwrite(here.bucket, "runs/a/model.manifest.json", json.dumps({"files": {name: entry}}).encode())
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="must stay in its folder, so this is refused"):
        elsewhere.get_dir("runs/a/model")
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.fixture(params=["memory", "s3"])
def console(request: pytest.FixtureRequest) -> tuple[Store, Callable[[str], object]]:
    """A storage, and what makes an object of any key below its prefix, as other programs do."""
    store = Store.open(request.getfixturevalue(request.param))
    name, prefix = store.bucket.bucket, store.bucket.prefix
    if request.param == "memory":
        return store, lambda key: store.bucket._client.put(f"{prefix}/{key}", b"")
    client = pytest.importorskip("boto3").client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    return store, lambda key: client.put_object(Bucket=name, Key=f"{prefix}/{key}", Body=b"")


@pytest.mark.parametrize(("console", "name"), [
    ("memory", "a\\..\\b"), ("s3", "../../../outside.json"), ("s3", "a//b"),
], indirect=["console"])  # fmt: skip
def test_a_listing_cannot_name_a_file_outside_its_folder(console: Any, name: str, tmp_path: Path) -> None:
    """Keys are any text: one of them may hold dots."""
    store, make = console
    make(f"pipelines/{name}")
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    for ask in (store.get_all, partial(store.list, recursive=True)):
        with pytest.raises(InputError, match="must stay in its folder"):
            ask("pipelines")
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_folder_that_somebody_made_in_a_console_is_a_folder(console: Any) -> None:
    """It is an object of no bytes whose name ends in a slash."""
    store, make = console
    store.write_json("runs/x/run.json", 1)
    for key in ("", "runs/", "runs/x/", "empty/"):
        make(key)
    for folder in ("", "runs", "runs/x"):
        paths = store.list(folder, recursive=True)
        assert store.path("runs/x/run.json") in paths and store.path("runs") not in paths
    assert store.list("runs") == [store.path("runs/x")] and store.list("runs/x") == [store.path("runs/x/run.json")]
    assert [path.name for path in store.get_all("runs")] == ["run.json"] and store.list("empty") == []


@pytest.mark.parametrize("name", ["/etc", "..", "a/b"])
def test_records_and_token_stores_cannot_name_other_folders(name: str, tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    record = {"id": name, "point": {}, "seed": 0, "status": "finished", "finished_at": "2026"}
    store.write_json("study/trials/a.json", record)
    with pytest.raises(InputError, match="a trial names .* must stay in its folder"):
        read_records(tmp_path / "study")
    store.write_json("tokens/manifest.json", {"parts": [{"file": name, "windows": [1]}]})
    with pytest.raises(InputError, match="manifest.json names .* must stay in its folder"):
        Windows(tmp_path / "tokens")

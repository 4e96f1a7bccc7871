from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from raysts.data.windows import Windows
from raysts.errors import InputError, RunFailed
from raysts.search.record import read_records
from raysts.storage import atomic as files
from raysts.storage import manifests
from raysts.storage import store as storage
from raysts.storage.bucket import Bucket


@pytest.fixture
def root(s3: str) -> Path:
    return storage.mirror(s3)


@pytest.fixture
def elsewhere(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The mirror of another machine."""
    with monkeypatch.context() as patch:
        patch.setenv("RAYSTS_MIRROR", str(tmp_path / "other-machine"))
        return storage.mirror(s3)


def bucket_of(root: Path) -> Bucket:
    place = storage.place_of(root)
    assert place is not None
    return place.bucket


def fill(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def content(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()}


def test_a_folder_arrives_as_it_is_and_only_what_changed_travels(
    root: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = root / "runs/a/checkpoints", elsewhere / "runs/a/checkpoints"
    fill(here, one="1", deep__two="2")
    manifests.push_folder(here)
    assert manifests.has_folder(there) and manifests.pull_folder(there)
    assert content(there) == {"one": "1", "deep/two": "2"}

    (here / "one").unlink()
    fill(here, three="3")
    moved: list[str] = []
    for name in ("upload", "download"):
        real = getattr(Bucket, name)
        monkeypatch.setattr(Bucket, name, lambda *a, real=real: moved.append(str(a)) or real(*a))
    manifests.push_folder(here)
    assert manifests.pull_folder(there) and content(there) == {"deep/two": "2", "three": "3"}
    assert len(moved) == 2 and all("three" in each for each in moved)
    assert bucket_of(root).listed("runs/a/checkpoints", recursive=True).keys() == {"deep/two", "three"}
    moved.clear()
    manifests.push_folder(here)
    manifests.need_folder(there)
    assert not moved

    manifests.remove(here)
    assert not here.exists() and not manifests.has_folder(there) and not manifests.pull_folder(there)
    assert content(there)  # what is here alone stays


def test_a_card_may_change_without_the_folder(root: Path, elsewhere: Path) -> None:
    manifests.push_folder(fill(root / "runs/a/model", config="c", **{"README.md": "old"}))
    with storage.aside(root / "runs/a/model/README.md") as draft:
        draft.write_text("new")
    manifests.need_folder(elsewhere / "runs/a/model")
    assert content(elsewhere / "runs/a/model") == {"config": "c", "README.md": "new"}


def test_an_upload_that_was_interrupted_is_ignored_and_made_good(
    root: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = root / "runs/a/checkpoints", elsewhere / "runs/a/checkpoints"
    manifests.push_folder(fill(here, one="1"))

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    fill(here, two="2")
    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "write", interrupted)  # the data is there, the manifest is not
        with pytest.raises(KeyboardInterrupt):
            manifests.push_folder(here)
    assert bucket_of(root).has("runs/a/checkpoints/two")
    assert manifests.pull_folder(there) and content(there) == {"one": "1"}

    fill(there, three="3")
    manifests.push_folder(there)  # another machine goes on from what it got
    assert bucket_of(root).listed("runs/a/checkpoints").keys() == {"one", "three"}
    assert manifests.pull_folder(here) and content(here) == {"one": "1", "three": "3"}


def test_a_folder_that_is_not_what_its_manifest_says_is_refused(root: Path, elsewhere: Path) -> None:
    manifests.push_folder(fill(root / "runs/a/model", weights="12345"))
    bucket_of(root).write("runs/a/model/weights", b"1234x")
    with pytest.raises(
        RunFailed, match=r"runs/a/model is not what its manifest says \(weights\).*run the same command"
    ):
        manifests.pull_folder(elsewhere / "runs/a/model")
    assert not (elsewhere / "runs/a/model/weights").exists()
    bucket_of(root).delete("runs/a/model/weights")
    with pytest.raises(RunFailed, match="not what its manifest says"):
        manifests.need_folder(elsewhere / "runs/a/model")
    manifests.remove(root / "runs/a/model")
    manifests.push_folder(fill(root / "runs/a/model", weights="12345"))
    manifests.need_folder(elsewhere / "runs/a/model")
    assert content(elsewhere / "runs/a/model") == {"weights": "12345"}


@pytest.mark.parametrize("name", ["../../outside", "/tmp/outside", "a/../../outside", "a\\..\\b", "", "a\x00b"])
def test_a_manifest_cannot_name_a_file_outside_its_folder(
    name: str, root: Path, elsewhere: Path, tmp_path: Path
) -> None:
    manifests.push_folder(fill(root / "runs/a/model", weights="12345"))
    entry = json.loads(bucket_of(root).read("runs/a/model.manifest.json") or b"")["files"]["weights"]
    bucket_of(root).write("runs/a/model.manifest.json", json.dumps({"files": {name: entry}}).encode())
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="must stay in its folder, so this is refused"):
        manifests.pull_folder(elsewhere / "runs/a/model")
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_listing_cannot_name_a_file_outside_its_folder(root: Path, tmp_path: Path) -> None:
    """Keys are any text: one of them may hold dots."""
    boto3 = pytest.importorskip("boto3")
    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    bucket = bucket_of(root)
    client.put_object(Bucket=bucket.bucket, Key="some/prefix/pipelines/../../../outside.json", Body=b"{}")
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="must stay in its folder"):
        storage.fetch(root / "pipelines")
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", ["/etc", "..", "../x", "a/b"])
def test_records_and_token_stores_cannot_name_other_folders(name: str, tmp_path: Path) -> None:
    record = {"id": name, "point": {}, "seed": 0, "status": "finished", "finished_at": "2026"}
    files.write_json(tmp_path / "study/trials/a.json", record)
    with pytest.raises(InputError, match="a trial names .* must stay in its folder"):
        read_records(tmp_path / "study")
    files.write_json(tmp_path / "tokens/manifest.json", {"parts": [{"file": name, "windows": [1]}]})
    with pytest.raises(InputError, match="manifest.json names .* must stay in its folder"):
        Windows(tmp_path / "tokens")


def test_a_local_storage_has_neither_manifests_nor_anything_to_fetch(tmp_path: Path) -> None:
    folder = fill(tmp_path / "model", weights="1")
    manifests.push_folder(folder)
    storage.push(folder / "weights")
    storage.fetch(tmp_path)
    assert manifests.has_folder(folder) and manifests.pull_folder(folder) and storage.names(folder) == {"weights"}
    storage.write_json(tmp_path / "x.json", [1])
    assert {path.name for path in tmp_path.iterdir()} == {"model", "x.json"} and storage.remote(
        folder / "weights"
    ) is None
    manifests.remove(folder)
    assert not folder.exists()


def test_single_files_are_in_the_store_before_they_are_here(
    root: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.write_json(root / "pipelines/a.json", {"x": 1})
    storage.write_json(root / "studies/s/trials/b.json", {"y": 2})
    storage.fetch(elsewhere / "pipelines")
    storage.fetch(elsewhere / "studies")
    assert content(elsewhere) == content(root)
    assert storage.names(elsewhere / "studies/s/trials") == {"b.json"}

    def refused(*arguments: object) -> None:
        raise OSError("no")

    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "upload", refused)
        with pytest.raises(OSError, match="no"):
            storage.write_json(root / "pipelines/c.json", {})
    assert not (root / "pipelines/c.json").exists()
    shutil.rmtree(elsewhere)
    storage.need(elsewhere / "pipelines/a.json")
    storage.need(elsewhere / "pipelines/absent.json")
    assert content(elsewhere) == {"pipelines/a.json": (root / "pipelines/a.json").read_text()}

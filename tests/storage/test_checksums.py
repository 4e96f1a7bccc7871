import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from damage import BYTES

from raysts import ids
from raysts.errors import InputError
from raysts.search.record import read_records
from raysts.storage import checksums
from raysts.storage.atomic import atomic_write, write_json
from raysts.storage.checksums import checked_write, intact, read_record, write_record
from raysts.storage.foreign import check_ordinary
from raysts.storage.foreign import read_json as read_foreign
from raysts.storage.store import Store

DAMAGE = BYTES | {"binary": os.urandom(64).__add__, "another digit": lambda content: content.replace(b"1", b"2")}
TRIAL = {"id": "abc", "point": {"a": 1}, "seed": 0, "status": "finished", "value": 0.1, "finished_at": "2026"}


def written(path: Path, value: object = TRIAL) -> Path:
    write_record(path, value)
    return path


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_record_is_absent_and_named(how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path / "a.json")
    assert read_record(path) == TRIAL
    path.write_bytes(DAMAGE[how](path.read_bytes()))
    ids._digest.cache_clear()
    assert read_record(path) is None and not path.exists()
    assert str(path) in caplog.text and (tmp_path / "a.json.damaged").exists() and read_record(written(path)) == TRIAL


@pytest.mark.parametrize("content", ["", "{", "null", "[1]", "\0" * 9, "[" * 100_000, "{} {}"])
def test_a_record_without_a_checksum_must_be_an_object(content: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(content, encoding="utf-8")
    assert read_record(path) is None and not path.exists()


def test_a_damaged_trial_is_none(tmp_path: Path) -> None:
    """A bit of its value would be another best point."""
    for name in ("one", "two"):
        written(tmp_path / "trials" / f"{name}.json", TRIAL | {"id": name})
    path = tmp_path / "trials" / "two.json"
    path.write_bytes(DAMAGE["another digit"](path.read_bytes()))
    ids._digest.cache_clear()
    write_json(tmp_path / "trials" / "of another version.json", {"id": "x"})
    assert [record.id for record in read_records(tmp_path)] == ["one"]


def test_a_kill_between_a_checksum_and_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was there is still right."""
    path, rename = written(tmp_path / "a.json", {"x": 1}), Path.replace

    def killed(draft: Path, target: Path) -> Path:
        if target == path:
            raise KeyboardInterrupt
        return rename(draft, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        for value in (2, 3, 3):
            with pytest.raises(KeyboardInterrupt), checked_write(path) as draft:
                draft.write_text(json.dumps({"x": value}))
                os.link(draft, tmp_path / f"aside{value}-{len(list(tmp_path.iterdir()))}")
    assert len(checksums._lines(path)) == 3, "two that were never seen, and that of the file"
    ids._digest.cache_clear()
    assert read_record(path) == {"x": 1}


def test_a_checksum_that_is_torn_or_gone_says_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "a.json")
    for content in ("", "abc", "\0" * 70, "x" * 64 + " many"):
        checksums._sidecar(path).write_text(content)
        ids._digest.cache_clear()
        assert read_record(path) == TRIAL


def test_readers_beside_a_writer_never_see_damage(tmp_path: Path) -> None:
    path = written(tmp_path / "a.json", {"x": 0})

    def write() -> None:
        for value in range(60):
            write_record(path, {"x": value, "more": "y" * value})

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(write)
        while not writer.done():
            time.sleep(1e-4)  # the writer must have its turn
            ids._digest.cache_clear()
            assert read_record(path) is not None
    assert writer.exception() is None and read_record(path)["x"] == 59 and not list(tmp_path.glob("*.damaged"))


@pytest.mark.parametrize("how", [*DAMAGE, "missing"])
def test_a_damaged_folder_is_absent(how: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    for _ in range(2):
        with store.put_dir("model") as draft:
            (draft / "deep").mkdir()
            (draft / "deep" / "weights").write_text("1" * 50)
        assert store.get_dir("model") and store.is_whole("model", deep=True)
        path = tmp_path / "model" / "deep" / "weights"
        if how == "missing":
            path.unlink()
        else:
            path.write_bytes(DAMAGE[how](path.read_bytes()))
        ids._digest.cache_clear()
        same_size = how in ("zeros", "flipped", "another digit")
        assert store.is_whole("model") == same_size
        assert store.get_dir("model") is None and (tmp_path / "model.damaged").is_dir()
        assert not store.exists("model") and store.list() == []


def test_files_of_others_are_taken_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not even read: a corpus of others may be of any size."""
    monkeypatch.setattr(checksums, "checksum", lambda path: pytest.fail("it is read"))
    with atomic_write(tmp_path / "a") as draft:
        draft.write_text("x")
    assert intact(tmp_path / "a") and not intact(tmp_path / "absent")


def test_pipes_and_absurd_sizes_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(InputError, match="ordinary file"):
            check_ordinary(path)
    (tmp_path / "large").write_bytes(b"12345")
    with pytest.raises(InputError, match="5 bytes"):
        check_ordinary(tmp_path / "large", 4)
    check_ordinary(tmp_path / "absent")
    with pytest.raises(InputError, match="cannot be read"):
        check_ordinary(tmp_path / ("x" * 5_000))
    assert read_foreign(tmp_path / "absent") is None

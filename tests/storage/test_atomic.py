import errno
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from raysts.errors import InputError
from raysts.storage import atomic
from raysts.storage.atomic import ASIDE, REPLACED, atomic_write, draft_name, lock, remove_drafts, start_of
from raysts.storage.store import Store


def test_a_file_is_not_there_before_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.txt"
    with atomic_write(path) as draft:
        draft.write_text("half")
        assert not path.exists() and draft.parent == path.parent and draft.name.startswith(ASIDE)
    assert path.read_text() == "half" and [p.name for p in path.parent.iterdir()] == ["file.txt"]


def test_what_becomes_visible_is_on_the_disk_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss of power leaves no folder with empty files; last the name itself is written."""
    path = tmp_path / "model"
    synced: list[tuple[int, bool]] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append((os.fstat(handle).st_ino, path.exists())))
    with atomic_write(path) as draft:
        (draft / "deep").mkdir(parents=True)
        for name in ("config", "deep/weights"):
            (draft / name).touch()
    *before, last = synced
    assert set(before) == {(found.stat().st_ino, False) for found in (path, *path.rglob("*"))}
    assert last == (tmp_path.stat().st_ino, True)
    synced.clear()
    with atomic_write(tmp_path / "view", synced=False) as draft:
        draft.touch()
    assert not synced


@pytest.mark.parametrize("end", [KeyboardInterrupt, OSError])
def test_a_folder_whose_successor_fails_goes_back(end: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder is replaced by two renames, and the second fails."""
    path, rename = tmp_path / "model", Path.replace
    path.mkdir()
    (path / "old").touch()

    def fails(source: Path, target: Path) -> Path:
        if target == path and (source / "new").exists():
            raise end
        return rename(source, target)

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(end), atomic_write(path) as draft:
        draft.mkdir()
        (draft / "new").touch()
    assert [str(found.relative_to(tmp_path)) for found in sorted(tmp_path.rglob("*"))] == ["model", "model/old"]


def test_a_folder_whose_successor_was_killed_on_its_way_goes_back(tmp_path: Path) -> None:
    kill = """
import os, signal, sys
from pathlib import Path
from raysts.storage.atomic import atomic_write

def killed(path, target):
    Path.rename(path, target)
    if target.name.endswith(".replaced"):
        os.kill(os.getpid(), signal.SIGKILL)

Path.replace = killed
for name in ("old", "new"):
    with atomic_write(Path(sys.argv[1])) as draft:
        draft.mkdir()
        (draft / name).touch()
"""
    model = tmp_path / "a.model"
    assert subprocess.run([sys.executable, "-c", kill, str(model)], check=False).returncode == -signal.SIGKILL
    assert not model.exists() and len(list(tmp_path.iterdir())) == 2
    remove_drafts(tmp_path)
    assert [str(found.relative_to(tmp_path)) for found in sorted(tmp_path.rglob("*"))] == ["a.model", "a.model/old"]


def test_drafts_of_a_killed_writer_are_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    with subprocess.Popen(["true"]) as ended:
        ended.wait()

    def of_the_dead(name: str) -> str:
        return draft_name(name).replace(f".{os.getpid()}.", f".{ended.pid}.")

    (tmp_path / "sub" / of_the_dead("x")).touch()
    model = tmp_path / of_the_dead("model")
    model.mkdir()
    (model / "weights").touch()
    earlier = tmp_path / draft_name("x").replace(f".{start_of(os.getpid())}.", ".1.")  # whose number is ours now
    earlier.touch()
    (tmp_path / "keep").touch()
    (tmp_path / f"{of_the_dead('old')}{REPLACED}").mkdir()  # whose successor never came
    for name in ("new", f"{of_the_dead('new')}{REPLACED}"):
        (tmp_path / name).mkdir()
    elsewhere = re.sub(r"\.[0-9a-f]{12}\.", ".0123456789ab.", of_the_dead("y"))
    older = f"{ASIDE}y.{os.uname().nodename}.{ended.pid}.1"  # of an older version
    others = [draft_name("y"), elsewhere, older]
    for name in others:
        (tmp_path / name).touch()
    remove_drafts(tmp_path)
    assert sorted(p.name for p in tmp_path.rglob("*")) == sorted(["keep", "new", "old", "sub", *others])
    remove_drafts(tmp_path / "absent")


def test_drafts_of_another_machine_are_removed_when_nobody_has_written_for_a_day(tmp_path: Path) -> None:
    old, at_work = (tmp_path / f"{ASIDE}model.another-host.{number}.2" for number in (1, 2))
    for draft in (old, at_work):
        draft.mkdir()
        (draft / "weights").touch()
        os.utime(draft, (1, 1))
    os.utime(old / "weights", (1, 1))
    remove_drafts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [at_work.name]


def test_drafts_of_a_killed_process_that_nobody_waited_for(tmp_path: Path) -> None:
    killed = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    name = draft_name("x").replace(f".{start_of(os.getpid())}.", f".{start_of(killed.pid)}.")
    draft = tmp_path / name.replace(f".{os.getpid()}.", f".{killed.pid}.")
    draft.touch()
    remove_drafts(tmp_path)
    assert draft.exists()
    killed.kill()
    os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)  # ended, and still in the table of processes
    remove_drafts(tmp_path)
    assert not draft.exists()
    killed.communicate()


def test_a_container_with_our_host_name_is_another_place() -> None:
    """The number of a process there is nobody's here, so its drafts stay."""
    command = [sys.executable, "-c", "from raysts.storage.atomic import place; print(place())"]
    here, inside = (
        subprocess.run([*prefix, *command], capture_output=True, text=True, check=False).stdout.strip()
        for prefix in ([], ["unshare", "--pid", "--fork"])
    )
    if not inside:
        pytest.skip("needs the right to make a PID namespace")
    assert here == atomic.place() != inside


def test_a_sweep_beside_a_writer_raises_nothing(tmp_path: Path) -> None:
    """A sweep begins with each part that is written: they work at once, and none waits for long."""
    parts = threading.Semaphore(0)

    def write() -> None:
        for number in range(100):
            with atomic_write(tmp_path / "model", synced=False) as draft:
                for part in "abcd":
                    (draft / part / str(number)).mkdir(parents=True)
                    parts.release()

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(write)
        while not writer.done():
            parts.acquire(timeout=0.1)
            remove_drafts(tmp_path)
    assert writer.exception() is None
    assert (tmp_path / "model/d/99").is_dir() and len(list((tmp_path / "model").iterdir())) == 4


def test_what_is_written_follows_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also weights, which safetensors lets nobody else read; what may be run stays so."""
    os.umask(umask := os.umask(0))
    assert umask == atomic.UMASK
    monkeypatch.setattr(atomic, "UMASK", 0o002)
    with atomic_write(tmp_path / "model") as draft:
        draft.mkdir()
        (draft / "plain").touch()
        (draft / "run").touch(0o700)
        save_file({"x": np.zeros(3)}, draft / "weights")
    with atomic_write(tmp_path / "model" / "alone") as draft:
        save_file({"x": np.zeros(3)}, draft)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "model").iterdir()}
    assert modes == {"plain": 0o664, "run": 0o764, "weights": 0o664, "alone": 0o664}


def test_a_file_system_without_locks_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("raysts.storage.atomic.fcntl.flock", none)
    with pytest.raises(InputError, match=r"has no locks \(No locks available\)"), lock(tmp_path / "lock", "a"):
        pass


def test_who_waited_for_a_lock_that_was_removed_holds_the_next_one_of_its_name(tmp_path: Path) -> None:
    path, held = tmp_path / "x.lock", threading.Event()

    def hold() -> None:
        with lock(path, "the first"):
            held.set()
            time.sleep(0.3)
            path.unlink()

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(120)
    with lock(path, "the second", wait=120), pytest.raises(InputError, match="the second"), lock(path, "the third"):
        raise AssertionError("two hold it")
    holder.join()


def test_writable(tmp_path: Path) -> None:
    assert list(atomic.writable(tmp_path / "new" / "folder", "--storage").iterdir()) == []
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match="--storage .* cannot be written to"):
            atomic.writable(path, "--storage")


def test_a_folder_that_goes_meanwhile_has_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run removes old checkpoints while another command lists or measures the storage."""
    store, scan = Store(tmp_path), os.scandir
    for name in ("checkpoints/last.pt", "model/weights"):
        store.path(name).parent.mkdir()
        store.path(name).write_bytes(b"12345")

    def go_first(path: Any = ".") -> Any:
        if not isinstance(path, int) and Path(path).name == "checkpoints":
            shutil.rmtree(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", go_first)
    assert store.list(recursive=True) == [tmp_path / "model" / "weights"]
    store.path("checkpoints").mkdir()
    assert store.size("") == 5


def test_a_look_at_a_lock_takes_nothing_and_a_driver_that_starts_during_one_is_not_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    assert not atomic.is_locked(path) and not path.exists()
    with lock(path, "the first"):
        assert atomic.is_locked(path)
    assert not atomic.is_locked(path) and "the first" in path.read_text(), "who held it stays written"
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        looked = threading.Timer(0.05, fcntl.flock, [file, fcntl.LOCK_UN])
        looked.start()
        with lock(path, "a driver"):
            looked.join()

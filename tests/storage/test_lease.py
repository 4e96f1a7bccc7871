from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from processes import wait_until

from raysts.errors import InputError, RunFailed, StoreFailed
from raysts.storage import lease
from raysts.storage import store as storage
from raysts.storage.atomic import start_of
from raysts.storage.bucket import Bucket, canonical
from raysts.storage.lease import Lease, epochs_of, place
from raysts.storage.store import Store

KEY = "locks/name.lock"


@pytest.fixture
def bucket(s3: str) -> Bucket:
    return Bucket(canonical(s3))


def claim(**changes: object) -> bytes:
    found = {
        "holder": "raysts run a",
        "host": "other",
        "pid": 7,
        "place": "another machine",
        "started": "1",
        "held": True,
    }
    return json.dumps({**found, **changes}).encode()


@pytest.mark.parametrize(
    ("where", "beats", "dead"),
    [
        ("another machine", 0, False), ("another machine", 1.5, False), ("another machine", lease.MISSED + 0.9, False),
        ("another machine", lease.MISSED + 1.1, True), (place(), 100, False),
    ],
)  # fmt: skip
def test_a_claim_from_elsewhere_lives_until_beats_are_missed_and_one_from_here_with_its_process(
    where: str, beats: float, dead: bool
) -> None:
    process = {"pid": os.getpid(), "started": start_of(os.getpid())}
    found = json.loads(claim(place=where, **process))
    assert lease._is_dead(found, beats * lease.BEAT) is dead
    assert lease._is_dead({**found, "started": "another one"}, beats * lease.BEAT) is (where == place() or dead)


def test_a_lease_is_lost_when_it_was_not_renewed_for_three_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store answers again in the third beat, and then never: the count begins anew with every renewal."""
    clock, answers = [0.0], [False, False, True]

    class Store:
        def __init__(self, uri: str, tries: int) -> None:
            self.uri = uri

        def listed(self, key: str) -> dict[str, None]:
            if answers and answers.pop(0):
                return {held.name: None}
            raise StoreFailed("no answer")

        def write(self, path: str, content: bytes) -> None:
            assert path == f"{KEY}/{held.name}"

    def wait(seconds: float) -> bool:
        clock[0] += seconds
        return clock[0] > 100 * lease.BEAT

    monkeypatch.setattr(lease, "Bucket", Store)
    monkeypatch.setattr(lease, "_clock", lambda: clock[0])
    held = Lease(Store("s3://bucket", 1), KEY, "a")  # type: ignore[arg-type]
    monkeypatch.setattr(held._stop, "wait", wait)
    held._keep()
    assert clock[0] == (3 + lease.MISSED + 1) * lease.BEAT and not answers
    with pytest.raises(RunFailed, match="could not be renewed for 30 s"):
        held.check()


class Memory:
    """A bucket in this process: files with the ages that a test gives them."""

    uri = "s3://bucket"

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, float]] = {}
        self.looks = 0

    def write(self, path: str, content: bytes, age: float = 0.0) -> None:
        self.files[path] = content, 1000.0 - age

    def read(self, path: str) -> bytes | None:
        return self.files.get(path, (None, 0.0))[0]

    def delete(self, path: str) -> None:
        self.files.pop(path, None)

    def names(self, folder: str) -> list[str]:
        return sorted(path.rpartition("/")[2] for path in self.files if path.rpartition("/")[0] == folder)

    def listed(self, folder: str) -> dict[str, SimpleNamespace]:
        self.looks += 1
        assert self.looks < 20, "it waits for ever"
        return {name: SimpleNamespace(written=self.files[f"{folder}/{name}"][1]) for name in self.names(folder)}


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    made = Memory()
    monkeypatch.setattr(lease, "Bucket", lambda uri, tries: made)
    monkeypatch.setattr(lease.random, "uniform", lambda *_: 0.0)  # what a contender sleeps
    return made


@pytest.mark.parametrize(("where", "raised"), [("another machine", 1), (place(), 0)])
def test_an_epoch_is_raised_for_a_claim_whose_process_may_come_back(where: str, raised: int, memory: Memory) -> None:
    memory.write(f"{KEY}/other.json", claim(place=where, pid=os.getpid()), age=lease.BEAT * (lease.MISSED + 2))
    held = Lease(memory, KEY, "a")  # type: ignore[arg-type]
    held.take()
    assert memory.names(KEY) == [held.name]
    assert memory.names(epochs_of(KEY)) == ([held.epoch] if raised else []) and bool(held.epoch) == bool(raised)
    held.release()


def test_of_two_that_contend_the_first_by_name_goes_on_and_the_other_gives_way(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "SETTLE", 0.0)
    memory.write(f"{KEY}/!.json", claim(held=False))
    second = Lease(memory, KEY, "b")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="held by raysts run a"):
        second.take()
    assert memory.names(KEY) == ["!.json"]

    memory.files.clear()
    first = Lease(memory, KEY, "b")  # type: ignore[arg-type]
    memory.write(f"{KEY}/~.json", claim(held=False))
    monkeypatch.setattr(lease.random, "uniform", lambda *_: memory.delete(f"{KEY}/~.json") or 0.0)
    first.take()
    assert memory.names(KEY) == [first.name]
    first.release()


def test_a_second_one_is_refused_and_told_who_is_first(bucket: Bucket) -> None:
    first, second = Lease(bucket, KEY, "raysts run one"), Lease(bucket, KEY, "raysts run two")
    first.take()
    with pytest.raises(
        InputError, match=rf"is held by raysts run one \(process {os.getpid()} on {os.uname().nodename}\)"
    ):
        second.take()
    assert list(bucket.listed(KEY)) == [first.name]
    first.release()
    second.take()
    second.release()
    assert not bucket.listed(KEY)


def test_of_many_at_once_one_gets_it(bucket: Bucket) -> None:
    inside, most, done = 0, 0, 0
    guard = threading.Lock()

    def work() -> None:
        nonlocal inside, most, done
        each = Lease(bucket, KEY, "one of many")
        each.take(wait=60)
        with guard:
            inside += 1
            most = max(most, inside)
        time.sleep(0.02)
        with guard:
            inside, done = inside - 1, done + 1
        each.release()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, done) == (1, 4)


def test_the_lock_of_a_dead_process_of_this_machine_is_broken_at_once(bucket: Bucket) -> None:
    program = (
        "import os, sys; from raysts.storage.lease import Lease; from raysts.storage.bucket import Bucket\n"
        f"Lease(Bucket(sys.argv[1]), '{KEY}', 'killed').take(); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", program, bucket.uri], check=False).returncode == -9
    assert json.loads(bucket.read(f"{KEY}/{next(iter(bucket.listed(KEY)))}") or b"")["held"]
    after = Lease(bucket, KEY, "after")
    after.take()
    assert list(bucket.listed(KEY)) == [after.name]
    after.release()


def test_another_process_with_the_number_of_the_dead_one_does_not_keep_its_lock(bucket: Bucket) -> None:
    bucket.write(f"{KEY}/a.json", claim(pid=os.getpid(), place=place(), started="another time"))
    after = Lease(bucket, KEY, "after")
    after.take()
    after.release()
    bucket.write(f"{KEY}/a.json", claim(pid=os.getpid(), place=place(), started=lease.start_of(os.getpid())))
    with pytest.raises(InputError, match="raysts run a"):
        Lease(bucket, KEY, "after").take()


def test_the_lock_of_another_machine_dies_after_missed_beats(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.write(f"{KEY}/other.json", claim())
    with pytest.raises(InputError, match=r"raysts run a \(process 7 on other\).*try again in 40 s"):
        Lease(bucket, KEY, "after").take()
    monkeypatch.setattr(lease, "BEAT", 0.5)
    after = Lease(bucket, KEY, "after")
    after.take(wait=60)
    assert list(bucket.listed(KEY)) == [after.name]
    after.release()


def test_a_live_lock_is_renewed_and_one_that_was_broken_writes_no_more(
    bucket: Bucket, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "BEAT", 0.2)
    store = Store.open(s3)
    with store.lock(KEY, "a driver"):
        (name,) = bucket.listed(KEY)
        before = bucket.listed(KEY)[name].written
        wait_until(lambda: bucket.listed(KEY)[name].written > before)
        store.write_json("pipelines/a.json", 1)
        wait_until(
            lambda: bucket.delete(f"{KEY}/{name}") or next(iter(storage._leases)).lost
        )  # again, for it may be being renewed
        with pytest.raises(RunFailed, match="lost locks/name.lock: its claim was removed.*goes on from"):
            store.write_json("pipelines/a.json", 2)
    assert bucket.read("pipelines/a.json") == b"1\n" and not storage._leases


def test_a_process_that_comes_back_to_life_sees_who_has_its_lock(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "BEAT", 0.2)
    held = Lease(bucket, KEY, "a")
    held.take()
    bucket.write(f"{KEY}/zzz.json", claim(holder="raysts run b"))
    wait_until(lambda: held.lost)
    with pytest.raises(RunFailed, match="raysts run b .* has taken it"):
        held.check()
    held.release()


def test_a_process_that_was_stopped_in_a_renewal_sees_that_another_had_its_lock(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its look and its renewal another has broken its claim, held the lock and given it back."""
    held = Lease(bucket, KEY, "a")
    held.take()
    held._stop.set()
    renew = held._write

    def stopped(**options: object) -> None:
        held._renewed -= lease.BEAT * (lease.MISSED + 1)
        bucket.write(f"{epochs_of(KEY)}/00000001-b", b"")
        bucket.delete(f"{KEY}/{held.name}")
        renew(**options)

    monkeypatch.setattr(held, "_write", stopped)
    held._renew()
    with pytest.raises(RunFailed, match="another process had it"):
        held.check()
    held.release()


def test_on_one_machine_the_mirror_is_locked_too(s3: str) -> None:
    store = Store.open(s3)
    refusal = re.escape(f"{store.path(KEY)} is held by first")
    with store.lock(KEY, "first"), pytest.raises(InputError, match=refusal), store.lock(KEY, "second"):
        pass

"""One holder of a lock in a bucket, and what becomes of one that was stopped or cut off."""

import json
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import s3_faults
import two_writers
from filled import overwrite
from processes import wait_until

from raysts.errors import InputError, RunFailed
from raysts.storage import lease
from raysts.storage import store as storage
from raysts.storage.atomic import start_of
from raysts.storage.bucket import Bucket
from raysts.storage.client import canonical
from raysts.storage.lease import Lease, place
from raysts.storage.store import Store

LOCK, RECORD = "locks/a.lock", "pipelines/a.json"


@pytest.fixture(params=["memory", "s3", "azure"])
def bucket(request: pytest.FixtureRequest) -> Bucket:
    return Bucket(canonical(request.getfixturevalue(request.param)), tries=1)


def write(bucket: Bucket, **changes: object) -> None:
    """Write the claim of another process, whatever is there."""
    claim = {"holder": "raysts run a", "host": "other", "pid": 7, "place": "another machine", "started": "1"}
    overwrite(bucket, LOCK, json.dumps({**claim, "nonce": "other", "held": True, "write": 1, **changes}).encode())


def claim(bucket: Bucket) -> dict[str, Any]:
    return json.loads((bucket.read(LOCK) or (b"", None))[0])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[float], None]], list[float]]:
    """Make waiting take no time: the seconds that have gone, and a call of what is given at each of them."""

    def start(tick: Callable[[float], None] = lambda seconds: None) -> list[float]:
        now = [0.0]

        def sleep(seconds: float) -> None:
            before, now[0] = now[0], now[0] + seconds
            if int(before) != int(now[0]):
                tick(now[0])

        monkeypatch.setattr(lease, "_clock", lambda: now[0])
        monkeypatch.setattr(lease.time, "sleep", sleep)
        return now

    return start


def test_the_lock_of_a_machine_that_is_gone_is_taken_after_four_beats(bucket: Bucket, clock: Any) -> None:
    """One that names nobody is taken as that of another machine."""
    for content in (None, b"{", b"[1]"):
        write(bucket)
        if content:
            overwrite(bucket, LOCK, content)
        now, after = clock(), Lease(bucket, LOCK, "after")
        after.take()
        assert 4 * lease.BEAT < now[0] < 4.2 * lease.BEAT and claim(bucket)["holder"] == "after"
        after.release()
        assert claim(bucket)["held"] is False


def test_a_holder_of_another_machine_that_renews_is_known_at_its_next_beat(bucket: Bucket, clock: Any) -> None:
    write(bucket)
    now = clock(lambda seconds: write(bucket, write=seconds) if int(seconds) % lease.BEAT == 0 else None)
    with pytest.raises(InputError, match=r"is held by raysts run a \(process 7 on other\): one driver at a time"):
        Lease(bucket, LOCK, "after").take()
    assert lease.BEAT <= now[0] < 1.2 * lease.BEAT and claim(bucket)["holder"] == "raysts run a"


def test_another_process_with_the_number_of_the_dead_one_does_not_keep_its_lock(bucket: Bucket, clock: Any) -> None:
    now = clock()
    write(bucket, pid=os.getpid(), place=place(), started="another time")
    after = Lease(bucket, LOCK, "after")
    after.take()
    after.release()
    write(bucket, pid=os.getpid(), place=place(), started=start_of(os.getpid()))
    with pytest.raises(InputError, match="raysts run a"):
        Lease(bucket, LOCK, "after").take()
    assert now[0] == 0.0


def test_a_renewal_whose_answer_never_came_is_ours(bucket: Bucket) -> None:
    held = Lease(bucket, LOCK, "a")
    held.take()
    tag = held._tag
    held.confirm()
    held._tag = tag
    held.confirm()
    assert held.lost is None and claim(bucket)["write"] == 4  # the third was refused, and made again
    write(bucket, holder="raysts run b")
    with pytest.raises(RunFailed, match=r"lost locks/a.lock: raysts run b .* has taken it"):
        held.confirm()
    held.release()
    assert claim(bucket)["holder"] == "raysts run b"


def test_a_lease_is_lost_when_it_was_not_renewed_for_three_beats(memory: str, clock: Any) -> None:
    now, held = clock(), Lease(Bucket(memory), LOCK, "a")
    held.take()
    now[0] = 3 * lease.BEAT
    held.check()
    assert claim(held.bucket)["write"] == 1, "it is not late yet"
    now[0] += 1
    held.check()
    assert claim(held.bucket)["write"] == 2, "it is renewed first"
    held.bucket.uri = "gs://nowhere/x"
    now[0] += 3 * lease.BEAT + 1
    with pytest.raises(RunFailed, match=r"lost locks/a.lock: .*could not be renewed for 30 s.*goes on from what was"):
        held.check()
    held.release()


def test_a_live_lock_is_renewed_and_a_lost_one_writes_no_more(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT", 0.2)
    store, bucket = Store.open(memory), Bucket(canonical(memory))
    with store.lock(LOCK, "a driver"):
        wait_until(lambda: claim(bucket)["write"] > 2)
        store.write_json(RECORD, 1)
        write(bucket, holder="raysts run b")
        wait_until(lambda: next(iter(storage._leases)).lost)
        with pytest.raises(RunFailed, match=r"lost locks/a.lock: raysts run b .* has taken it.*goes on from"):
            store.write_json(RECORD, 2)
    assert (bucket.read(RECORD) or b"")[0] == b"1\n" and not storage._leases
    assert claim(bucket)["holder"] == "raysts run b", "what is not ours is not given back"
    bucket.delete(LOCK)
    with store.lock(LOCK, "a driver"):
        bucket.delete(LOCK)
        wait_until(lambda: next(iter(storage._leases)).lost)
        with pytest.raises(RunFailed, match=r"lost locks/a.lock: it was removed"):
            store.write_json(RECORD, 2)


# -- two that both believe to hold it ------------------------------------------------------------------------------------
def test_what_was_on_its_way_when_the_lock_was_taken_is_refused(
    s3: str, s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "BEAT", 0.25)
    arrived, let_through = threading.Event(), threading.Event()

    def hold(method: str, path: str) -> None:
        if method == "PUT" and path.endswith(RECORD) and not arrived.is_set():
            arrived.set()
            assert let_through.wait(120)

    with s3_faults.proxy(s3_endpoint) as between:
        first = Store(tmp_path / "first", canonical(s3).replace(s3_endpoint[-5:], between.endpoint[-5:]))
        second = Store(tmp_path / "second", canonical(s3))
        reader = Store(tmp_path / "reader", canonical(s3))
        monkeypatch.setattr(lease, "place", lambda: "first machine")
        with first.lock(LOCK, "first", protects=first.path(RECORD)):
            first.write_json(RECORD, {"of": "first"})
            (held,) = storage._leases
            held._stop.set()  # it renews no more
            between.fault = hold
            late = ThreadPoolExecutor(1).submit(first.write_json, RECORD, {"of": "first, too late"})
            assert arrived.wait(120)
            monkeypatch.setattr(lease, "place", lambda: "second machine")
            with second.lock(LOCK, "second", wait=60, protects=second.path(RECORD)):
                assert second.read_json(RECORD, fresh=True) == {"of": "first"}
                second.write_json(RECORD, {"of": "second"})
                let_through.set()
                lost = late.exception(120)
                assert [request.status for request in between.log if request.path.endswith(RECORD)][:2] == [200, 412]
                assert re.search(r"lost locks/a.lock: second .*goes on from what was uploaded", str(lost))
                with pytest.raises(RunFailed, match=r"lost locks/a.lock: "):
                    first.write_json(RECORD, {"of": "first, much too late"})
                assert reader.read_json(RECORD, fresh=True) == {"of": "second"}
    with second.lock(LOCK, "after", protects=second.path(RECORD)):
        second.write_json(RECORD, {"of": "third"})
        assert reader.read_json(RECORD, fresh=True) == {"of": "third"}


def test_what_an_earlier_holder_wrote_late_is_replaced(memory: str, tmp_path: Path) -> None:
    """It came between the takeover and the first write of the next holder, who has seen another version."""
    late, holder = Store(tmp_path / "late", canonical(memory)), Store.open(memory)
    with holder.lock(LOCK, "holder", protects=holder.path(RECORD)):
        holder.write_json(RECORD, {"of": "holder"})
        overwrite(late.bucket, RECORD, b'{"of": "late"}')
        holder.write_json(RECORD, {"of": "holder", "count": 2})
        assert late.read_json(RECORD, fresh=True) == {"of": "holder", "count": 2}


def test_a_holder_whose_clock_stood_still_replaces_nothing_of_the_next_one(memory: str) -> None:
    """A machine that was frozen from outside counts no seconds: only the store knows that its lease is over."""
    store, bucket = Store.open(memory), Bucket(canonical(memory))
    with store.lock(LOCK, "first", protects=store.path(RECORD)):
        store.write_json(RECORD, {"of": "first"})
        (held,) = storage._leases
        held._stop.set()
        held._renewed = float("inf")
        write(bucket, holder="second")
        overwrite(bucket, RECORD, b'{"of": "second"}')
        with pytest.raises(RunFailed, match=r"lost locks/a.lock: second .* has taken it"):
            store.write_json(RECORD, {"of": "first, too late"})
        assert store.read_json(RECORD, fresh=True) == {"of": "second"}


@pytest.mark.slow
@pytest.mark.parametrize("way", two_writers.WAYS)
def test_two_processes(way: str, s3: str, s3_endpoint: str) -> None:
    """``benchmarks/faults.py --writers`` makes many such trials."""
    found = two_writers.trial(way, 1, s3_endpoint, s3.removeprefix("s3://").split("/")[0])
    assert found.stale == 0 and "it writes no more. Run the same command again" in found.said


# -- a look at it, which takes nothing -----------------------------------------------------------------------------------
def test_the_lock_of_a_process_of_this_machine_is_held_as_long_as_it_lives(bucket: Bucket) -> None:
    assert not lease.is_held(bucket, LOCK)
    held = Lease(bucket, LOCK, "a")
    held.take()
    assert lease.is_held(bucket, LOCK) and claim(bucket)["write"] == 1, "it was only looked at"
    held.release()
    assert not lease.is_held(bucket, LOCK)
    write(bucket, pid=os.getpid(), place=place(), started="another time")
    assert not lease.is_held(bucket, LOCK)


@pytest.mark.parametrize("ahead", [-3600, 60, 3600])
@pytest.mark.parametrize("renews", [True, False])
def test_a_holder_on_another_machine_is_watched_if_its_last_renewal_seems_old(
    ahead: int, renews: bool, memory: str, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``ahead``: seconds of our clock before that of the store, or since the holder was killed: nobody can tell."""
    bucket, real = Bucket(canonical(memory)), lease.time.time
    write(bucket)
    now = clock(lambda seconds: renews and write(bucket, write=seconds))
    monkeypatch.setattr(lease.time, "time", lambda: real() + ahead)
    is_watched = 40 < ahead < 900
    assert lease.is_held(bucket, LOCK) == (ahead < 40 or (is_watched and renews))
    assert now[0] == 0.0 if not is_watched else now[0] < 2 * lease.BEAT if renews else now[0] > 4 * lease.BEAT

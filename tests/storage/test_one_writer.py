"""Of two that believe to hold a lock of an object store, only what the later one writes is ever read."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import s3_faults
import two_writers

from raysts.errors import RunFailed
from raysts.storage import lease
from raysts.storage import store as storage
from raysts.storage.bucket import canonical
from raysts.storage.lease import epochs_of
from raysts.storage.store import BucketStore

LOCK, KEY = "locks/a.lock", "pipelines/a.json"


def test_what_was_on_its_way_when_the_lock_was_taken_is_not_read(
    s3: str, s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "BEAT", 0.25)
    arrived, let_through = threading.Event(), threading.Event()

    def hold(method: str, path: str) -> None:
        if method == "PUT" and path.endswith(KEY):
            arrived.set()
            assert let_through.wait(30)

    with s3_faults.proxy(s3_endpoint) as between:
        first = BucketStore(tmp_path / "first", canonical(s3).replace(s3_endpoint[-5:], between.endpoint[-5:]))
        second = BucketStore(tmp_path / "second", canonical(s3))
        reader = BucketStore(tmp_path / "reader", canonical(s3))
        assert not reader.exists(KEY)  # it is connected: that waits for requests of the process that are on their way
        monkeypatch.setattr(lease, "place", lambda: "first machine")
        with first.lock(LOCK, "first", of=first.path(KEY)):
            first.write_json(KEY, {"of": "first"})
            (held,) = storage._leases
            held._stop.set()  # it renews no more
            between.fault = hold
            late = threading.Thread(target=first.write_json, args=(KEY, {"of": "first, too late"}))
            late.start()
            assert arrived.wait(30)
            monkeypatch.setattr(lease, "place", lambda: "second machine")
            with second.lock(LOCK, "second", wait=60, of=second.path(KEY)):
                assert second.read_json(KEY, fresh=True) == {"of": "first"}
                second.write_json(KEY, {"of": "second"})
                let_through.set()
                late.join()
                assert [request.status for request in between.log if request.path.endswith(KEY)] == [200, 200]
                with pytest.raises(RunFailed, match=r"lost locks/a.lock: .*goes on from what was uploaded"):
                    first.write_json(KEY, {"of": "first, much too late"})
                assert reader.read_json(KEY, fresh=True) == {"of": "second"}
                (path,) = reader.get_all("", "a.json")
                assert path == reader.path(KEY) and json.loads(path.read_bytes()) == {"of": "second"}
                assert reader.list("pipelines") == [path] and reader.exists(KEY)
    with second.lock(LOCK, "after", of=second.path(KEY)):
        second.write_json(KEY, {"of": "third"})
        assert reader.read_json(KEY, fresh=True) == {"of": "third"}
        second.delete(KEY)
        assert reader.read_json(KEY, fresh=True) is None
    assert not reader.bucket.listed(epochs_of(KEY)) and not reader.bucket.has(KEY)


@pytest.mark.slow
@pytest.mark.parametrize("way", two_writers.WAYS)
def test_two_processes(way: str, s3: str, s3_endpoint: str) -> None:
    """``benchmarks/faults.py --writers`` makes many such trials."""
    found = two_writers.trial(way, 1, s3_endpoint, s3.removeprefix("s3://").split("/")[0])
    assert found.stale == 0 and "it writes no more. Run the same command again" in found.said

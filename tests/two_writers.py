"""Two writers of one record on an object store, of which the first is stopped, cut off, or cannot renew its lease."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import s3_faults
import s3_server

from raysts.storage.store import Store

BEAT = 0.5
"""Seconds between two renewals, of the lease's ten."""

WAYS = ("stopped", "cut off", "lease not renewed")
"""SIGSTOP until another has the lease; no request of it gets through; no write to the lock does."""

WRITER = """
import json, random, sys, time
from raysts.errors import RunFailed
from raysts.storage import lease
from raysts.storage.store import Store

who, uri, name, beat = sys.argv[1:]
lease.BEAT, lease.place = float(beat), lambda: who  # as on a machine of its own

def say(**said):
    print(json.dumps({**said, "at": time.monotonic()}), flush=True)

store = Store.open(uri)
key, count = f"pipelines/{name}.json", 0
say(ready=True)
sys.stdin.readline()
try:
    with store.lock(f"locks/{name}.lock", f"driver {who}", wait=60, protects=store.path(key)):
        say(took=True)
        until = time.monotonic() + (3 * lease.BEAT if who == "second" else 60)
        while time.monotonic() < until:
            store.write_json(key, {"who": who, "count": count})
            count += 1
            if count == 1:
                say(wrote=True)
            time.sleep(random.uniform(0, 0.03))
    say(ended=count)
except RunFailed as error:
    say(lost=str(error), count=count)
"""


class Trial(NamedTuple):
    """What came of one: whether another's record was read once the second had written; requests of the first that
    changed an object once the second had the lease; those of them that changed the lease; what the first said in the end."""

    way: str
    stale: int
    late: int
    double: int
    said: str


class Writer:
    """One of the two, with a proxy and a mirror of its own."""

    def __init__(self, who: str, bucket: str, name: str, endpoint: str, mirrors: Path) -> None:
        environment = dict(os.environ)
        s3_server.environment(endpoint, mirrors / who, environment.__setitem__)
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, who, f"s3://{bucket}/p", name, str(BEAT)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def hears(self, word: str) -> dict[str, Any]:
        """What it says next, which must hold this word, if any."""
        assert self.process.stdout is not None
        said: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert not word or word in said, said
        return said

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


def trial(way: str, seed: int, endpoint: str, bucket: str) -> Trial:
    """One trial on the server at ``endpoint``, in a bucket that is there."""
    drawn, name, folder = random.Random(seed), f"trial-{seed}", Path(tempfile.mkdtemp(prefix="writers-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        between = stack.enter_context(s3_faults.proxy(endpoint))
        first = Writer("first", bucket, name, between.endpoint, folder)
        second = Writer("second", bucket, name, endpoint, folder)
        for writer in (first, second):
            stack.callback(writer.process.wait)
            stack.callback(writer.process.kill)
            writer.hears("ready")
        first.go()
        first.hears("took")
        first.hears("wrote")
        time.sleep(drawn.uniform(0, 2 * BEAT))
        if way == "stopped":
            first.process.send_signal(signal.SIGSTOP)
        elif way == "cut off":
            between.fault = lambda method, path: "refused"
        else:
            between.fault = lambda method, path: "unavailable" if method == "PUT" and "/locks/" in path else None
        second.go()
        took = second.hears("took")["at"]
        wrote = second.hears("wrote")["at"]
        back = threading.Timer(drawn.uniform(0, 4 * BEAT), _back, (first, between))
        back.start()
        options = f"?endpoint_override={endpoint}&scheme=http"
        reader = Store.open(f"s3://{bucket}/p{options}")
        stale = 0
        while second.process.poll() is None or back.is_alive() or time.monotonic() < wrote + 6 * BEAT:
            content, _ = reader.read(f"pipelines/{name}.json") or (b"{}", {})
            stale += json.loads(content).get("who") != "second"
            time.sleep(0.02)
        said = first.hears("")
        late = [each for each in between.log if each.at > took]
        records, locks = (sum(_changes(each, f"/{key}/{name}") for each in late) for key in ("pipelines", "locks"))
        return Trial(way, stale, records, locks, str(said.get("lost")))


def _back(first: Writer, between: s3_faults.Proxy) -> None:
    between.fault = lambda method, path: None
    first.process.send_signal(signal.SIGCONT)


def _changes(request: s3_faults.Request, key: str) -> bool:
    return request.method in ("PUT", "DELETE", "POST") and request.status < 300 and key in request.path


@contextlib.contextmanager
def ground() -> Iterator[tuple[str, str]]:
    """A server and a bucket on it, for trials."""
    folder = Path(tempfile.mkdtemp(prefix="ground-"))
    before = dict(os.environ)
    try:
        with s3_server.server(folder / "log") as endpoint:
            s3_server.environment(endpoint, folder / "mirrors", os.environ.__setitem__)
            yield endpoint, s3_server.new_bucket()
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)

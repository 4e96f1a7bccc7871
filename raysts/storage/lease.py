"""The lock of a bucket: an object that names its holder and that the holder renews.

Each write replaces the version that its writer saw, and holds a nonce and a number, so no two versions have one tag. A waiter
takes over if the object stays the same for ``BEAT * (MISSED + 1)`` seconds of the waiter's clock. The holder stops writing
``BEAT * MISSED`` seconds after the *start* of its last renewal. A holder that was suspended may still send one request. Records
are replaced by tag (:mod:`raysts.storage.store`), so that request fails once the next holder has written.
"""

import contextlib
import json
import os
import random
import secrets
import threading
import time
from typing import Any

from raysts.errors import LockedError, RunFailed, StoreFailed
from raysts.log import say
from raysts.storage.atomic import ONE_DRIVER, place, process_lives, start_of
from raysts.storage.bucket import Bucket, Conflict, Tag
from raysts.storage.checksums import parse_record

BEAT = 10.0
"""Seconds between two renewals."""

MISSED = 3
"""Renewals that a holder may miss before it writes no more; others take its lock one beat later."""

SKEW = 900.0
"""Seconds by which a clock may differ from that of a store, which refuses the requests of others."""


def is_held(bucket: Bucket, key: str) -> bool:
    """Return False if the lock at ``key`` is free, or its holder has ended.

    If the last renewal of a holder on another machine seems old, it waits for the next one as long as :meth:`Lease.take`.
    """
    began, first, patience = _clock(), None, BEAT * (MISSED + 1)
    while (stored := bucket.read(key)) and (entry := bucket.entry(key)):
        claim, age = parse_record(stored[0]), time.time() - entry.written
        if not claim.get("held", True) or _is_dead(claim) or age > SKEW + patience:
            break
        if claim.get("place") == place() or age < patience or stored[1] != (first or stored[1]):
            return True
        if _clock() - began > patience:
            break
        if first is None:
            say(f"{_holder(claim)} has given no sign for {age:.0f} s; watching for {patience:g} s whether it does ...")
        first = stored[1]
        time.sleep(BEAT * 0.1)
    return False


class Lease:
    """The lock at ``key`` of a bucket."""

    def __init__(self, bucket: Bucket, key: str, holder: str) -> None:
        self.bucket, self.key = bucket, key
        self.lost: str | None = None
        process = {"host": os.uname().nodename, "pid": os.getpid(), "place": place(), "started": start_of(os.getpid())}
        self._claim = {"holder": holder, **process, "nonce": secrets.token_hex(8)}
        self._writes = 0
        self._tag: Tag | None = None
        self._renewed = 0.0
        self._renewing = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"lease {key}", daemon=True)

    def take(self, wait: float = 0.0) -> None:
        """Take the lock, or raise an InputError if another live process holds it.

        A holder on another machine is alive if it renews the lock while this process watches.
        """
        deadline, seen, since, lives = time.monotonic() + wait, None, 0.0, False
        while True:
            self._renewed = _clock()
            stored = self.bucket.read(self.key)
            claim, tag = (parse_record(stored[0]), stored[1]) if stored else ({"held": False}, None)
            if tag != seen:
                lives = seen is not None and claim.get("held", True)
                seen, since = tag, _clock()
            if not claim.get("held", True) or _is_dead(claim) or _clock() - since > BEAT * (MISSED + 1):
                try:
                    self._write(self.bucket, tag)
                    break
                except Conflict:  # another one was first
                    continue
            if (lives or claim.get("place") == place()) and time.monotonic() >= deadline:
                raise LockedError(f"{self.bucket.uri}: {self.key} is held by {_holder(claim)}: {ONE_DRIVER}")
            time.sleep(BEAT * random.uniform(0.01, 0.05))
        self._thread.start()

    def release(self) -> None:
        """Release the lock. The object stays, because a deletion cannot depend on a tag."""
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(StoreFailed):  # the lock of a process that has ended delays nobody for long
            self._renew(Bucket(self.bucket.uri, tries=2), is_held=False)

    def check(self) -> None:
        """Raise a RunFailed if another process holds the lock, or may hold it."""
        if self.lost is None and self._is_late():
            with contextlib.suppress(StoreFailed):
                self._renew(Bucket(self.bucket.uri, tries=1, seconds=BEAT))
            if self._is_late():
                self.lost = self.lost or f"its lease could not be renewed for {BEAT * MISSED:g} s"
        if self.lost is not None:
            raise RunFailed(
                f"{self.bucket.uri}: this process lost {self.key}: {self.lost}; it writes no more. Run the same command "
                f"again: it goes on from what was uploaded"
            )

    def confirm(self) -> None:
        """Renew the lock now, or raise a RunFailed if another process holds it."""
        self._renew(self.bucket)
        self.check()

    def _write(self, bucket: Bucket, tag: Tag | None, is_held: bool = True) -> None:
        self._writes += 1
        claim = {**self._claim, "held": is_held, "write": self._writes}
        self._tag = bucket.replace(self.key, json.dumps(claim).encode(), tag)

    def _is_late(self) -> bool:
        return _clock() - self._renewed > BEAT * MISSED

    def _keep(self) -> None:
        while self.lost is None and not self._stop.wait(BEAT):
            with contextlib.suppress(StoreFailed):
                self._renew(Bucket(self.bucket.uri, tries=1, seconds=BEAT))

    def _renew(self, bucket: Bucket, is_held: bool = True) -> None:
        with self._renewing:
            while self.lost is None:
                began = _clock()
                try:
                    self._write(bucket, self._tag, is_held)
                except Conflict:  # by another holder, or by a renewal of ours whose answer never came
                    stored = bucket.read(self.key)
                    claim = parse_record(stored[0]) if stored else {}
                    if stored and claim.get("nonce") == self._claim["nonce"]:
                        self._tag = stored[1]
                    else:
                        self.lost = f"{_holder(claim)} has taken it" if stored else "it was removed"
                else:
                    self._renewed = began
                    return


def _holder(claim: dict[str, Any]) -> str:
    return f"{claim.get('holder', 'an unknown process')} (process {claim.get('pid')} on {claim.get('host')})"


def _is_dead(claim: dict[str, Any]) -> bool:
    """Return True if the process of a claim ran on this machine and has ended."""
    is_local = claim.get("place") == place() and isinstance(claim.get("pid"), int)
    return is_local and not process_lives(claim["pid"], claim.get("started"))


def _clock() -> float:
    """Return seconds that include the sleep of the machine."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

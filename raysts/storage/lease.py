"""The lock of an object store: a claim beside which no other stands, renewed while its process lives.

A contender writes its claim and then looks who else has one. Listings of these stores show every write that has ended, so
of two that do this at once at least one sees the other, and nobody takes the lock while another live claim is there.
Ages are differences of the store's own times: no two clocks are compared.

A process that was stopped and goes on renews its claim before it writes, and ends where it cannot. That leaves the one
request which it was sending when it was stopped. So who breaks the claim of a process that may come back raises the
*epoch* of the lock, and what its holders write from then on has names that hold the epoch (:func:`epochs_of`): what
arrives late is written where nobody looks any more. The client library knows no conditional writes, nor do all stores.
"""

import contextlib
import json
import os
import random
import secrets
import threading
import time
from pathlib import PurePosixPath
from typing import Any

from raysts.errors import InputError, RunFailed, StoreFailed
from raysts.storage.atomic import place, process_lives, start_of
from raysts.storage.bucket import Bucket, short

BEAT = 10.0
"""Seconds between two renewals of a claim."""

MISSED = 3
"""Renewals that a holder may miss before it writes no more. Others take its claim for dead one beat later, by the store's
times, which are those of ends of renewals and may be rounded to seconds. On one machine its process is asked for."""

SETTLE = 10.0
"""Seconds that contenders who arrive at the same moment take at most to agree on one."""


class Lease:
    """A lock in ``bucket`` at ``key``, a folder of claims."""

    def __init__(self, bucket: Bucket, key: str, holder: str) -> None:
        self.bucket, self.key, self.holder = bucket, key, holder
        self.name = f"{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(4)}.json"
        self.lost: str | None = None
        self.epoch = ""
        """Names of what is written under the lock; empty while no claim of a process that may come back was broken."""
        self._broken: set[str] = set()
        self._renewed = 0.0
        self._renewing = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, wait: float = 0.0) -> None:
        """Take the lock.

        Raises:
            InputError: another live process holds it.
        """
        deadline = time.monotonic() + wait
        try:
            while True:
                self._renewed = _clock()
                self._write(held=False)
                others = self._others()
                if not others:
                    self.epoch = max(self._epochs(), default="")
                    self._write(held=True)
                    if not self._is_late():
                        break
                    continue
                held = [name for name, claim in others.items() if claim.get("held")]
                if held or min(others) < self.name:
                    self.bucket.delete(f"{self.key}/{self.name}")
                    if time.monotonic() >= deadline + (0.0 if held else SETTLE):
                        raise InputError(self._refusal(others[held[0] if held else min(others)]))
                time.sleep(random.uniform(0.1, 0.5))
        except BaseException:
            self.release()
            raise
        self._thread = threading.Thread(target=self._keep, name=f"lease {self.key}", daemon=True)
        self._thread.start()

    def release(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        with contextlib.suppress(StoreFailed):  # the claim of a process that has ended delays nobody for long
            Bucket(self.bucket.uri, tries=2).delete(f"{self.key}/{self.name}")

    def check(self) -> None:
        """Raise a RunFailed when another process has taken the lock, because this one seemed to be dead, or may have."""
        if self.lost is None and self._is_late():
            self._renew()
        if self.lost is not None:
            raise RunFailed(
                f"{self.bucket.uri}: this process lost {self.key}: {self.lost}; it writes no more. Run the same command "
                f"again: it goes on from what was uploaded"
            )

    def _write(self, held: bool, bucket: Bucket | None = None) -> None:
        claim = {
            "holder": self.holder,
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "place": place(),
            "started": start_of(os.getpid()),
            "held": held,
        }
        (bucket or self.bucket).write(f"{self.key}/{self.name}", json.dumps(claim).encode())

    def _others(self) -> dict[str, dict[str, Any]]:
        """The live claims of others; those of the dead are removed."""
        listed = self.bucket.listed(self.key)
        now = listed[self.name].written if self.name in listed else 0.0
        found = {}
        for name in sorted(listed.keys() - {self.name} - self._broken):
            content = self.bucket.read(f"{self.key}/{name}")
            if content is None:
                continue
            claim = _claim(content)
            if _is_dead(claim, now - listed[name].written):
                self._broken.add(name)
                if claim.get("place") != place():  # it is not known to be dead; before its claim goes
                    number = int(max(self._epochs(), default="0").partition("-")[0]) + 1
                    self.bucket.write(f"{epochs_of(self.key)}/{number:08d}-{secrets.token_hex(4)}", b"")
                self.bucket.delete(f"{self.key}/{name}")
            else:
                found[name] = claim
        return found

    def _epochs(self) -> list[str]:
        return self.bucket.names(epochs_of(self.key))

    def _is_late(self) -> bool:
        """Whether others may take this process for dead soon, or have done so."""
        return _clock() - self._renewed > BEAT * MISSED

    def _keep(self) -> None:
        while self.lost is None and not self._stop.wait(BEAT):
            self._renew()

    def _renew(self) -> None:
        """Renew the claim while it is ours; no request is tried again, the next beat is soon enough."""
        quick = Bucket(self.bucket.uri, tries=1)
        with self._renewing:
            began = _clock()
            try:
                lost = self._taken_by(quick)
                if lost is None:
                    self._write(held=True, bucket=quick)
                    if self._is_late():  # between the look and the renewal somebody may break it, or have had it
                        lost = self._taken_by(quick, contenders=True)
                        if self.epoch != max(quick.names(epochs_of(self.key)), default=""):
                            lost = "another process had it while this one did not answer"
            except (RunFailed, InputError) as error:
                if self._is_late():
                    self.lost = f"its claim could not be renewed for {BEAT * MISSED:g} s ({short(error)})"
            else:
                self.lost, self._renewed = lost, began

    def _taken_by(self, bucket: Bucket, contenders: bool = False) -> str | None:
        """Why the lock is not ours any more, or with ``contenders`` may soon be somebody else's."""
        names = bucket.listed(self.key).keys()
        if self.name not in names:
            return "its claim was removed, as that of a process that did not answer"
        for name in names - {self.name}:
            if name in self._broken:  # its process lives after all, and wrote once more before it looked
                bucket.delete(f"{self.key}/{name}")
                continue
            claim = _claim(bucket.read(f"{self.key}/{name}") or b"{}")
            if claim.get("held") or contenders:
                return f"{claim.get('holder')} (process {claim.get('pid')} on {claim.get('host')}) has taken it"
        return None

    def _refusal(self, claim: dict[str, Any]) -> str:
        return (
            f"{self.bucket.uri}: {self.key} is held by {claim.get('holder')} (process {claim.get('pid')} on "
            f"{claim.get('host')}): one driver at a time may write here; wait for it to end, stop it, or choose another "
            f"--name or --storage. If its machine is gone, try again in {BEAT * (MISSED + 1):g} s"
        )


def epochs_of(key: str) -> str:
    """The folder of what was written under a lock whose epoch was raised, or of the epochs of a lock: the last name counts."""
    path = PurePosixPath(key)
    return str(path.with_name(".epochs") / path.name)


def _claim(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"holder": "an unknown process"}


def _is_dead(claim: dict[str, Any], age: float) -> bool:
    """Whether the process of a claim is gone, or, on another machine, has not renewed it for too long."""
    if claim.get("place") == place() and isinstance(claim.get("pid"), int):
        return not process_lives(claim["pid"], claim.get("started"))
    return age > BEAT * (MISSED + 1)


def _clock() -> float:
    """Seconds, those included in which the machine slept."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

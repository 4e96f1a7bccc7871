"""Ports for the servers that tests start."""

from __future__ import annotations

import contextlib
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now nor is given by chance before they are used: they lie between those that Ray's workers
    take (from 10002 on) and those of which the system gives one to whoever asks for any (from 32768 on)."""
    found: set[int] = set()
    while len(found) < count:
        port = 20_000 + secrets.randbelow(12_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.add(port)
    return list(found)


@contextlib.contextmanager
def listening(command: Sequence[str], port: int, log: Path) -> Iterator[str]:
    """Run a server in a process of its own, and give its ``host:port`` once it listens there."""
    with log.open("wb") as file:
        process = subprocess.Popen([*command], stdout=file, stderr=file, cwd=log.parent)
    try:
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()

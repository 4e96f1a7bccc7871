"""Ports for the servers that tests start."""

from __future__ import annotations

import contextlib
import secrets
import socket


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now nor is given by chance before they are used: they lie between those that Ray's workers
    take (from 10002 on) and those of which the system gives one to whoever asks for any (from 32768 on)."""
    found: set[int] = set()
    while len(found) < count:
        port = 20_000 + secrets.randbelow(12_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.add(port)
    return list(found)

"""An S3 server of a test session's own, and the environment in which raysts finds it."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ports import free_ports

SERVE = """
import logging
from moto import backends, server
modules = list(backends.list_of_moto_modules())
backends.list_of_moto_modules = lambda: modules  # else each request lists the folders of all services
logging.getLogger("werkzeug").setLevel("ERROR")  # and writes a line
server.main()
"""
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing-secret", "AWS_REGION": "us-east-1"}


@contextlib.contextmanager
def server(log: Path) -> Iterator[str]:
    """A moto server in a process of its own; its ``host:port``."""
    (port,) = free_ports(1)
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE, "-H", "127.0.0.1", "-p", str(port)],
            stdout=file,
            stderr=file,
        )
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


def environment(endpoint: str, mirrors: Path, setenv: Callable[[str, str], None]) -> None:
    """Say in the environment where the server is and how to get in."""
    found = {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://{endpoint}", "RAYSTS_MIRROR": str(mirrors)}
    for name, value in found.items():
        setenv(name, value)


def new_bucket() -> str:
    """A bucket that nobody else uses; the environment says where."""
    from pyarrow import fs

    name = f"bucket-{secrets.token_hex(4)}"
    endpoint = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
    fs.S3FileSystem(endpoint_override=endpoint, scheme="http", allow_bucket_creation=True).create_dir(name)
    return name

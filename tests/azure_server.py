"""Azurite, an Azure Blob Storage of a test session's own, and the environment in which raysts finds it."""

from __future__ import annotations

import base64
import contextlib
import email.utils
import hashlib
import hmac
import os
import secrets
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from ports import free_ports, listening

COMMAND = "azurite-blob"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that every Azurite has, by its documentation."""


@contextlib.contextmanager
def server(log: Path) -> Iterator[str]:
    """A server in a process of its own that keeps nothing on disk; its ``host:port``."""
    (port,) = free_ports(1)
    command = shutil.which(COMMAND)
    assert command, f"needs {COMMAND} (npm install azurite)"
    options = ["--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--blobPort", str(port)]
    with listening([command, *options], port, log) as endpoint:
        yield endpoint


def environment(endpoint: str, mirrors: Path, setenv: Callable[[str, str], None]) -> None:
    """Say in the environment where the server is and how to get in."""
    setenv("AZURE_STORAGE_ENDPOINT", f"http://{endpoint}/{ACCOUNT}")
    setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    setenv("RAYSTS_MIRROR", str(mirrors))


def new_container() -> str:
    """A container that nobody else uses; the environment says where."""
    name = f"container-{secrets.token_hex(4)}"
    headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2023-11-03"}
    resource = f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    lines = ["PUT", *[""] * 11, *(f"{header}:{value}" for header, value in headers.items()), resource]
    digest = hmac.new(base64.b64decode(KEY), "\n".join(lines).encode(), hashlib.sha256).digest()
    headers |= {"Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}", "Content-Length": "0"}
    url = f"{os.environ['AZURE_STORAGE_ENDPOINT']}/{name}?restype=container"
    urllib.request.urlopen(urllib.request.Request(url, headers=headers, method="PUT")).close()
    return name

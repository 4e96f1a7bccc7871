"""Vectors of texts from a server behind an address, in the format of OpenAI's ``/v1/embeddings``.

A storage keeps them as Parquet, each text once, in a folder that is named by address and model. The secret is read from the
environment and written nowhere.

Shapes: N texts, D dimensions.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Sequence
from functools import cached_property, lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysts.errors import InputError, RunFailed
from raysts.ids import content_id
from raysts.log import screen
from raysts.storage.store import Store

FOLDER = "endpoints"
"""Folder of a storage with a folder for each address and model."""

KEY, RATE = "RAYSTS_TEACHER_KEY", "RAYSTS_TEACHER_RATE"
"""Variables of the environment: the secret, and the most requests of a process in a minute."""

BATCH, FILE = 32, 512
"""Texts of a request, and of a file."""

TRIES, PAUSE, LONGEST = 7, 1.0, 60.0
"""Requests for the same texts, seconds before the second (twice as many before each later one), and at most."""

TIMEOUT = 300
"""Seconds that an answer may take."""

BUSY = (408, 425, 429, 500, 502, 503, 504)
"""Answers after which the same request may succeed."""


def name_of(url: str | None, model: str | None) -> str:
    """Return the name of a teacher, ``URL#MODEL``.

    Raises:
        InputError: one of them is missing, or the address cannot be used or holds a secret.
    """
    if not url or not model:
        raise InputError("--teacher-url URL and --teacher-model NAME belong together; give both")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.fragment:
        raise InputError(f"--teacher-url '{url}': must look like http://HOST/v1/embeddings")
    if parts.username or parts.password or any(word in parts.query.lower() for word in ("key", "token", "secret")):
        raise InputError(
            f"--teacher-url: the address at {parts.hostname} holds a secret, which would be written; set ${KEY}"
        )
    return f"{url}#{model}"


def folder_of(name: str) -> str | None:
    """Return the folder in a storage of a teacher behind an address, or None for another name."""
    url, _, model = name.partition("#")
    return f"{FOLDER}/{quote(name_of(url, model), safe='')}" if url.startswith(("http://", "https://")) else None


def is_endpoint(path: Path) -> bool:
    """Return True if a path is such a folder, which may not be there yet."""
    return path.parent.name == FOLDER and path.name.startswith(("http%3A", "https%3A"))


@lru_cache(maxsize=16)
def open_endpoint(folder: Path) -> Endpoint:
    """Return the server of a folder, one in a process."""
    return Endpoint(folder)


class _Redirects(HTTPRedirectHandler):
    """Makes an error of an answer that names another address, so that the secret stays with the server."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Endpoint:
    """A model of a server, with the vectors that it gave before."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, Store.of(folder)
        self.url, _, self.model = unquote(folder.name).partition("#")
        self._opener, self._last = build_opener(_Redirects), 0.0

    @cached_property
    def _places(self) -> dict[bytes, tuple[Path, int]]:
        """File and row of each text that has a vector."""
        places: dict[bytes, tuple[Path, int]] = {}
        for path in self.store.list(self.folder):
            if path.suffix == ".parquet" and self.store.get(path):
                texts = pq.read_table(path, columns=["text"]).column(0).to_pylist()
                places |= {_key(text): (path, row) for row, text in enumerate(texts)}
        return places

    @cached_property
    def dim(self) -> int:
        """D. Unless vectors are kept, the server is asked for one.

        Raises:
            InputError: it does not give it.
        """
        if self._places:
            return self._read(next(iter(self._places.values()))[0]).shape[1]
        try:
            return self._ask(["a"], tries=1).shape[1]
        except RunFailed as error:
            raise InputError(str(error)) from None

    def vectors(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of texts, float32 [N, D]. Those that the storage lacks are asked for and kept.

        Raises:
            RunFailed: the server does not give them.
        """
        missing = [text for text in dict.fromkeys(texts) if _key(text) not in self._places]
        for part in (missing[first : first + FILE] for first in range(0, len(missing), FILE)):
            answers: list[np.ndarray] = []
            try:
                for first in range(0, len(part), BATCH):
                    answers.append(self._ask(part[first : first + BATCH]))
            finally:  # what was given before an error is kept
                if answers:
                    self._keep(part, np.concatenate(answers))
        places = [self._places[_key(text)] for text in texts]
        vectors_ND = np.empty((len(texts), self.dim), np.float32)
        for path in dict.fromkeys(path for path, _ in places):
            numbers = [number for number, place in enumerate(places) if place[0] == path]
            vectors_ND[numbers] = self._read(path)[[places[number][1] for number in numbers]]
        return vectors_ND

    def _read(self, path: Path) -> np.ndarray:
        if (file := self.store.get(path)) is None:
            raise RunFailed(
                f"{path}: was removed or damaged; run the same command again, which asks for its texts again"
            )
        column = pq.read_table(file, columns=["embedding"]).column(0)
        return np.stack(column.to_numpy()).astype(np.float32, copy=False)

    def _keep(self, texts: Sequence[str], vectors_ND: np.ndarray) -> None:
        """Write the vectors of the first N texts."""
        rows = list(texts[: len(vectors_ND)])
        path = self.folder / f"{content_id(rows)}.parquet"
        with self.store.put(path) as draft:
            pq.write_table(pa.table({"text": rows, "embedding": [*vectors_ND]}), draft)
        self._places.update({_key(text): (path, row) for row, text in enumerate(rows)})

    def _ask(self, texts: Sequence[str], tries: int = TRIES) -> np.ndarray:
        """Return the vectors that the server gives, float32 [N, D], after at most so many requests."""
        body = json.dumps({"model": self.model, "input": list(texts), "encoding_format": "float"}).encode()
        secret, headers, reason = os.environ.get(KEY, ""), {"Content-Type": "application/json"}, ""
        if secret:
            headers["Authorization"] = f"Bearer {secret}"
        rate = os.environ.get(RATE, "")
        between = 60 / int(rate) if rate.isdigit() and int(rate) else 0.0
        for attempt in range(tries):
            pause = min(PAUSE * 2**attempt, LONGEST)
            time.sleep(max(0.0, self._last + between - time.monotonic()))
            self._last = time.monotonic()
            try:
                with self._opener.open(Request(self.url, body, headers), timeout=TIMEOUT) as answer:
                    vectors_ND = self._vectors_in(json.load(answer), len(texts))
                screen.embed(len(texts))
                return vectors_ND
            except HTTPError as error:
                text = error.read(300).decode("utf-8", "replace")
                reason = f"HTTP {error.code} {error.reason}: {' '.join(text.split())}"
                if error.code not in BUSY:
                    break
                asked_pause = error.headers.get("Retry-After") or ""
                pause = min(float(asked_pause), LONGEST) if asked_pause.isdigit() else pause
            except (URLError, OSError, http.client.HTTPException, ValueError) as error:
                reason = str(getattr(error, "reason", None) or error or type(error).__name__)
            if attempt + 1 < tries:
                time.sleep(pause)
        reason = reason.replace(secret, "***") if secret else reason
        raise RunFailed(
            f"teacher '{self.model}' at {self.url} gives no vectors ({reason}); see that it runs there, and that ${KEY} holds "
            f"its key if it needs one; what it gave is kept: run the same command again"
        )

    def _vectors_in(self, answer: Any, count: int) -> np.ndarray:
        """Return the vectors of an answer. Raise ValueError if it is another."""
        try:
            items = sorted(answer["data"], key=lambda item: item["index"])
            vectors_ND = np.array([item["embedding"] for item in items], np.float32)
        except (KeyError, TypeError) as error:
            raise ValueError(f"its answer has no data with index and embedding ({error})") from None
        width = self.__dict__.get("dim", vectors_ND.shape[-1])
        if vectors_ND.shape != (count, width) or not np.isfinite(vectors_ND).all():
            raise ValueError(f"its answer has shape {vectors_ND.shape} in place of {(count, width)}, or is not finite")
        return vectors_ND


def _key(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()

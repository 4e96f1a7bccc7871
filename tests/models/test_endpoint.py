"""Teachers behind an address: a real server of this machine, which may be busy, wrong or gone."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import raysts
from raysts.data.corpora import Corpus
from raysts.errors import InputError, RunFailed
from raysts.models import endpoint
from raysts.models.embedders import open_embedder
from raysts.models.pretrained import load
from raysts.models.sentence_model import SentenceModel

SECRET = "sk-very-secret"


class Server:
    """Answers by a model. ``faults``: codes and bodies of the next answers."""

    def __init__(self, model: SentenceModel) -> None:
        self.model, self.texts, self.faults, self.most = model, list[str](), list[tuple[int, str]](), 10**9
        self.retry_after = "0"
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # noqa: N802 (its name)
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.headers["Authorization"] != f"Bearer {SECRET}" or asked["model"] != "tiny":
                    self.answer(401, f"wrong key {self.headers['Authorization']}")
                elif outer.faults:
                    self.answer(*outer.faults.pop(0))
                elif len(outer.texts) >= outer.most:
                    self.answer(400, "no credit is left")
                else:
                    outer.texts += asked["input"]
                    vectors = outer.model.encode(asked["input"]).tolist()
                    data = [{"index": number, "embedding": vector} for number, vector in enumerate(vectors)]
                    self.answer(200, json.dumps({"data": data[::-1]}))

            def answer(self, code: int, text: str) -> None:
                self.send_response(code)
                self.send_header("Retry-After", outer.retry_after)
                self.send_header("Location", "http://localhost:1/")
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}/v1/embeddings"


@pytest.fixture
def server(tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv(endpoint.KEY, SECRET)
    monkeypatch.setattr(endpoint, "PAUSE", 0.01)
    monkeypatch.setattr(endpoint, "FILE", 64)
    endpoint.open_endpoint.cache_clear()
    server = Server(load(tiny_backbone, device="cpu"))
    yield server
    server.http.shutdown()
    endpoint.open_endpoint.cache_clear()


def test_a_student_of_a_server(server: Server, tiny_backbone: Path, small_corpus: Corpus, tmp_path: Path) -> None:
    texts = list(dict.fromkeys(small_corpus.read("wikipedia/sentences").column("sentence").to_pylist()))[:300]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    storage = tmp_path / "storage"
    sets = {"backbone": str(tiny_backbone), "train.max_steps": 2, "evaluation.resamples": 0}
    options = {"text": tmp_path / "texts.txt", "storage": storage, "address": "none", "teacher_url": server.url}
    server.most = 150
    with pytest.raises(RunFailed, match="HTTP 400 Bad Request: no credit is left.*run the same command") as failed:
        raysts.distill([], sets, **options, teacher_model="tiny")
    assert SECRET not in str(failed.value) and 100 <= len(server.texts) <= 160
    endpoint.open_endpoint.cache_clear()
    server.most, server.faults = 10**9, [(429, ""), (503, "down"), (200, "no JSON"), (200, '{"data": []}')]
    result = raysts.distill([], sets, **options, teacher_model="tiny")
    again = [text for text in {*server.texts} if server.texts.count(text) > 1]
    assert not server.faults and {*texts} <= {*server.texts} and len(again) <= 1, "what was given is kept"
    asked = len(server.texts)
    endpoint.open_endpoint.cache_clear()
    assert raysts.distill([], sets, **options, teacher_model="tiny")["model"] == result["model"]
    assert len(server.texts) == asked, "a finished run asks for nothing"
    (folder,) = (storage / "endpoints").iterdir()
    kept = pq.read_table(folder)
    expected = server.model.encode(kept.column("text").to_pylist())
    np.testing.assert_allclose(np.stack(kept.column("embedding").to_numpy()), expected, atol=1e-5)
    teachers = json.loads((storage / "pipelines/distilled.json").read_text())["teachers"]
    assert any("embeddings#tiny" in name for name in teachers.values())
    written = b"".join(path.read_bytes() for path in storage.rglob("*") if path.is_file())
    assert SECRET.encode() not in written and server.url.encode() in written


def test_what_a_server_may_do_wrong(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = endpoint.name_of(server.url, "tiny")
    teacher = open_embedder(tmp_path / str(endpoint.folder_of(name)))
    server.faults = [(302, "elsewhere")]
    with pytest.raises(RunFailed, match="HTTP 302"):
        teacher.vectors(teacher.tokenize(["a dog"]))
    server.faults = [(500, "")] * endpoint.TRIES
    with pytest.raises(RunFailed, match="HTTP 500"):
        teacher.vectors(teacher.tokenize(["a dog"]))
    texts = ["a dog", "é€😀", "a dog"]
    np.testing.assert_allclose(teacher.vectors(teacher.tokenize(texts)), server.model.encode(texts), atol=1e-5)
    server.model.truncate_dim = 4
    with pytest.raises(RunFailed, match=r"has shape \(1, 4\) in place of \(1, \d+\)"):
        teacher.vectors(teacher.tokenize(["another"]))
    monkeypatch.setenv(endpoint.KEY, "sk-other")
    endpoint.open_endpoint.cache_clear()
    with pytest.raises(InputError, match=r"HTTP 401 .*wrong key Bearer \*\*\*"):
        open_embedder(tmp_path / "new" / str(endpoint.folder_of(name))).check()
    server.http.server_close()
    with pytest.raises(InputError, match="gives no vectors.*see that it runs there"):
        open_embedder(tmp_path / "other" / str(endpoint.folder_of(name))).check()


def test_addresses_that_are_refused() -> None:
    for url, model, why in (
        ("http://h/v1", None, "belong together"), ("ftp://h/v1", "m", "must look like http://HOST"),
        ("http:///v1", "m", "must look like http://HOST"), ("http://h/v1#part", "m", "must look like http://HOST"),
        ("http://me:pass@h/v1", "m", "holds a secret"), ("http://me@h/v1", "m", "holds a secret"),
        ("https://h/v1?api-key=1", "m", "holds a secret"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=why) as refused:
            endpoint.name_of(url, model)
        assert "pass@" not in str(refused.value)


def test_a_rate_is_kept(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setenv(endpoint.RATE, "30")
    monkeypatch.setattr(endpoint.time, "sleep", slept.append)
    monkeypatch.setattr(endpoint.time, "monotonic", lambda: 100.0)
    asked = endpoint.Endpoint(tmp_path / str(endpoint.folder_of(endpoint.name_of(server.url, "tiny"))))
    asked.vectors([f"text {number}" for number in range(70)])
    assert slept == [0.0, 2.0, 2.0], "three requests, two seconds after the one before"
    monkeypatch.delenv(endpoint.RATE)
    monkeypatch.setattr(endpoint, "PAUSE", 3.0)
    for after, pauses in (("", [3, 6, 12, 24, 48, 60]), ("45", [45] * 6), ("99", [60] * 6)):
        server.retry_after, server.faults = after, [(503, "")] * 7
        slept.clear()
        with pytest.raises(RunFailed, match="HTTP 503"):
            asked.vectors(["another"])
        assert [seconds for seconds in slept if seconds] == pauses, "none after the last of seven requests"

"""Vectors of fewer dimensions and bits, and directories that are sent to the hub."""

from __future__ import annotations

import base64
import itertools
import json
import os
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from run_commands import raysts, result

from raysts.evaluation.statistics import spearman
from raysts.models.pretrained import load
from raysts.ops.similarity import cosine
from raysts.storage.atomic import ASIDE

VERBS = ("runs", "sleeps", "is red", "is small")
TEXTS = [f"{word} {verb}" for word in ("a dog", "the cat", "nobody") for verb in VERBS]
TOKEN = "hf_secretsecretsecret"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "texts.parquet", row_group_size=5)
    return tmp_path / "texts.parquet"


def embed(model: Path, source: Path, output: Path, *more: object) -> dict[str, Any]:
    files = ("--input", source, "--column", "text", "--output", output)
    return result("embed", model, *files, "--precision", "fp32", "--address", "none", *more)


def stored(output: Path) -> np.ndarray:
    shards = [pq.read_table(path) for path in sorted(output.glob("part-*.parquet"))]
    return np.stack(pa.concat_tables(shards).column("embedding").to_numpy())


@pytest.mark.parametrize(("dtype", "dims"), [("int8", 12), ("binary", 16), ("float32", 5)])
def test_embedded_as_sentence_transformers_quantises(
    dtype: Any, dims: int, tiny_backbone: Path, source: Path, tmp_path: Path
) -> None:
    quantization = pytest.importorskip("sentence_transformers.util.quantization")
    vectors = load(tiny_backbone, device="cpu").encode(TEXTS)[:, :dims]
    options = ["--dtype", dtype, "--dims", dims]
    embed(tiny_backbone, source, tmp_path / "out", *options)
    found, manifest = stored(tmp_path / "out"), json.loads((tmp_path / "out" / "_manifest.json").read_text())
    ranges = np.array(manifest["ranges"], np.float32) if dtype == "int8" else None
    expected = quantization.quantize_embeddings(vectors, dtype, ranges=ranges)
    assert found.dtype == expected.dtype and manifest["dim"] == dims
    # Batches of other sizes round the last bit of a number otherwise, which may lie at the border of a step.
    assert np.abs(found.astype(float) - expected).max() <= (1 if dtype == "int8" else 1e-6)
    if ranges is not None:
        np.testing.assert_allclose(ranges, [vectors.min(0), vectors.max(0)], atol=1e-6, err_msg="all rows are drawn")
        assert (found != expected).mean() < 0.01 and manifest["rows"] == len(TEXTS)
    if dtype == "int8":  # a file that changes is embedded again on the scale of the others
        pq.write_table(pa.table({"text": ["it is not a ball"] * 3}), source)
        embed(tiny_backbone, source, tmp_path / "out", *options)
        assert json.loads((tmp_path / "out" / "_manifest.json").read_text())["ranges"] == manifest["ranges"]
        assert stored(tmp_path / "out").shape == (3, dims)
    refused = raysts("embed", tiny_backbone, "--input", source, "--column", "text", "--output", tmp_path / "out")
    assert refused.code == 2 and "another job" in refused.err


def test_what_it_costs_on_dev(tiny_backbone: Path, source: Path, tmp_path: Path) -> None:
    """Signs are compared by their cosine, which orders pairs as the Hamming distance does."""
    dev = tmp_path / "mine.jsonl"
    gold = np.array([i * j % 7 for i in range(len(TEXTS)) for j in range(len(TEXTS))], float)
    pairs = zip(itertools.product(TEXTS, TEXTS), gold, strict=True)
    dev.write_text("\n".join(json.dumps({"sentence1": a, "sentence2": b, "score": score}) for (a, b), score in pairs))
    said = ["--dims", 8, "--dtype", "binary", "--dev", f"mine={dev}"]
    found = result("export", tiny_backbone, "--to", tmp_path / "model", *said)
    vectors = load(tiny_backbone, device="cpu").encode(TEXTS)
    left, right = (np.repeat(vectors, len(TEXTS), 0), np.tile(vectors, (len(TEXTS), 1)))
    assert found["cost"]["on"] == "mine"
    assert found["cost"]["before"] == pytest.approx(spearman(cosine(left, right), gold), abs=1e-4)
    distance = ((left[:, :8] > 0) != (right[:, :8] > 0)).sum(1)
    assert found["cost"]["after"] == pytest.approx(spearman(-distance, gold), abs=1e-6)
    card = (tmp_path / "model" / "README.md").read_text()
    for words in ("first 8 of its 32 dimensions", 'precision="binary"', "on mine the rank correlation"):
        assert words in card
    files = ("--input", source, "--column", "text", "--output", tmp_path / "out")
    told = raysts("embed", tiny_backbone, *files, "--address", "none", *said)
    assert told.code == 0 and "8 dimensions as binary: on mine the rank correlation is" in told.err


def test_cards_in_any_encoding_stay(tiny_backbone: Path, copy_of: Callable[[Path, str], Path], tmp_path: Path) -> None:
    model = copy_of(tiny_backbone, "latin")
    (model / "README.md").write_bytes("Modèle de phrases".encode("latin-1"))
    left = tmp_path / f"{ASIDE}out.another-host.1.2"
    left.touch()
    os.utime(left, (1, 1))
    assert raysts("export", model, "--to", tmp_path / "out").code == 0
    assert (tmp_path / "out" / "README.md").read_text(encoding="utf-8") == "Mod\ufffdle de phrases"
    assert not left.exists()  # of an export that was killed


def test_a_directory_of_fewer_dimensions(tiny_backbone: Path, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    told = raysts("export", tiny_backbone, "--to", tmp_path / "model", "--dims", 8)
    assert told.code == 0 and "what that costs was not measured; name a development set" in told.err
    whole = load(tiny_backbone, device="cpu").encode(TEXTS)
    loaded = sentence_transformers.SentenceTransformer(str(tmp_path / "model"), device="cpu")
    np.testing.assert_allclose(loaded.encode(TEXTS), whole[:, :8], atol=1e-5)
    assert load(tmp_path / "model", device="cpu").dim == 8
    for dtype in ("int8", "binary"):
        assert raysts("export", tiny_backbone, "--to", tmp_path / dtype, "--dtype", dtype).code == 0
        card = (tmp_path / dtype / "README.md").read_text()
        assert f'precision="{dtype}"' in card and "dimensions" not in card
        assert ("must be on one scale" in card) is (dtype == "int8")
    for option, message in (
        (["--dims", 33], "have 32 dimensions; give a number from 1"), (["--dims", 0], "give a number from 1"),
        (["--private"], "--private is of --push"), (["--push", "a/b/c"], "give user/name"),
    ):  # fmt: skip
        refused = raysts("export", tiny_backbone, "--to", tmp_path / "other", *option)
        assert refused.code == 2 and message in refused.err and not (tmp_path / "other").exists(), refused.err


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as takes a directory."""

    files: ClassVar[dict[str, bytes]] = {}
    """What it was sent, by path."""
    known: ClassVar[dict[str, bool]] = {}
    """Did the last request of a path come with the token?"""
    made: ClassVar[dict[str, Any]] = {}

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self.answer(404, error="Repository not found")

    def do_POST(self) -> None:
        body, address = self.rfile.read(int(self.headers["Content-Length"])), f"http://{self.headers['Host']}"
        self.known[self.path] = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if self.path == "/api/repos/create":
            self.made.update(json.loads(body))
            self.answer(403 if "refused" in self.made["name"] else 200, url=f"{address}/somebody/encoder")
        elif self.path.endswith("/preupload/main"):
            kind = {"uploadMode": "regular", "shouldIgnore": False}
            self.answer(files=[{"path": file["path"], **kind} for file in json.loads(body)["files"]])
        elif self.path.endswith("/commit/main"):
            sent = [line["value"] for line in map(json.loads, body.splitlines()) if line["key"] == "file"]
            self.files.update((file["path"], base64.b64decode(file["content"])) for file in sent)
            self.answer(commitUrl=f"{address}/somebody/encoder/commit/1", commitOid="1", success=True)
        else:
            self.answer(errors=[], warnings=[])

    def answer(self, status: int = 200, **found: object) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())


def test_a_directory_is_sent_to_the_hub(tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that stands in for the hub has then what the folder holds; the token is in no line."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address, model = f"http://127.0.0.1:{server.server_port}", tmp_path / "model"
        constants = {"ENDPOINT": address, "HF_HUB_OFFLINE": False, "HF_TOKEN_PATH": str(tmp_path / "none")}
        for name, value in constants.items():
            monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)  # read when the library is imported
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        ended = raysts("export", tiny_backbone, "--json", "--to", model, "--push", "somebody/encoder", "--private")
        assert ended.code == 0, ended.err
        written = [path for path in model.rglob("[!.]*") if path.is_file()]
        assert Hub.files == {path.relative_to(model).as_posix(): path.read_bytes() for path in written}
        assert "private" in str(Hub.made), "a key or a value, as the version of the library has it"
        assert (Hub.made["organization"], Hub.made["name"]) == ("somebody", "encoder")
        assert all(known for path, known in Hub.known.items() if "validate-yaml" not in path) and len(Hub.known) >= 3
        assert json.loads(ended.out)["pushed"] == f"{address}/somebody/encoder"
        refused = raysts("export", tiny_backbone, "--to", tmp_path / "again", "--push", "somebody/refused")
        assert refused.code == 3 and "is written, and could not be sent to somebody/refused" in refused.err
        assert TOKEN not in "".join((*ended[1:], *refused[1:]))
        monkeypatch.delenv("HF_TOKEN")
        refused = raysts("export", tiny_backbone, "--to", tmp_path / "third", "--push", "somebody/refused")
        assert refused.code == 2 and "no token of the Hugging Face hub" in refused.err
        server.shutdown()

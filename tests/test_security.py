"""What a stranger's model directory may not do, and what may not be written down."""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import run_commands
import torch

from raysts.cli import written_down
from raysts.errors import redact

SECRETS = {
    "HF_TOKEN": "hf_VerySecretOfTheTest",
    "AWS_SECRET_ACCESS_KEY": "aws/SecretOfTheTest+42",
    "RAY_AUTH_TOKEN": "0123456789abcdefsecret",
}


class Trap:
    """Its unpickling makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("how", ["zipped", "plain"])
def test_a_pickle_that_would_run_code_is_refused(
    how: str, tiny_backbone: Path, copy_of: Callable[[Path, str], Path], tmp_path: Path
) -> None:
    model, sprung, storage = copy_of(tiny_backbone, "trap"), tmp_path / "sprung", tmp_path / "storage"
    (model / "model.safetensors").unlink()
    weights = model / "pytorch_model.bin"
    if how == "zipped":
        torch.save({"embeddings.word_embeddings.weight": torch.zeros(2), "x": Trap(sprung)}, weights)
    else:
        weights.write_bytes(pickle.dumps(Trap(sprung)))
    for arguments in (
        ["run", "nli", "--set", f"backbone={model}", "--storage", storage, "--address", "none"],
        ["plan", "nli", "--set", f"backbone={model}", "--storage", storage],
        ["evaluate", model, "--tasks", "stsb"],
        ["export", model, "--to", tmp_path / "exported"],
    ):
        outcome = run_commands.raysts(*arguments)
        assert outcome.code == 2, outcome.err
        assert "pickle" in outcome.err and "safetensors" in outcome.err and "weights_only" not in outcome.err
    assert not sprung.exists() and not storage.exists()
    # The trap is a real one: unpickled the usual way it goes off.
    torch.load(weights, weights_only=False) if how == "zipped" else pickle.loads(weights.read_bytes())
    assert sprung.exists()


def test_pickled_tensors_are_weights(tiny_backbone: Path, copy_of: Callable[[Path, str], Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file

    from raysts.models import pretrained

    model = copy_of(tiny_backbone, "pickled")
    torch.save(load_file(model / "model.safetensors"), model / "pytorch_model.bin")
    (model / "model.safetensors").unlink()
    pretrained.check(model)
    assert (pretrained.load(model).encode(["A man."]) == pretrained.load(tiny_backbone).encode(["A man."])).all()


@pytest.mark.parametrize(("file", "more"), [
    ("config.json", {"auto_map": {"AutoModel": "own.Own"}}),
    ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": "own.Own"}}),
    ("modules.json", [{"idx": 0, "name": "0", "path": "", "type": "own.Own"}]),
])  # fmt: skip
def test_code_of_a_model_is_refused_and_not_run(
    file: str, more: Any, tiny_backbone: Path, copy_of: Callable[[Path, str], Path], tmp_path: Path
) -> None:
    model, sprung = copy_of(tiny_backbone, "code"), tmp_path / "sprung"
    (model / "own.py").write_text(f"import os; os.mkdir({str(sprung)!r})\nfrom transformers import BertModel as Own")
    if (model / file).exists():
        more = json.loads((model / file).read_text()) | more
    (model / file).write_text(json.dumps(more))
    for arguments in (
        ["run", "nli", "--set", f"backbone={model}", "--storage", tmp_path / "storage", "--address", "none"],
        ["evaluate", model, "--tasks", "stsb"],
    ):
        outcome = run_commands.raysts(*arguments)
        assert outcome.code == 2 and "own.Own" in outcome.err and file in outcome.err, outcome.err
    assert not sprung.exists() and not (tmp_path / "storage").exists()


def contents(folder: Path) -> dict[Path, str]:
    """The text of every file of a folder, that of Parquet files unpacked."""
    texts = {path: path.read_bytes().decode("utf-8", "replace") for path in folder.rglob("*") if path.is_file()}
    for path in folder.rglob("*.parquet"):
        texts[path] = str(pq.read_table(path).to_pydict()) + str(pq.read_schema(path).metadata)
    return texts


@pytest.mark.whole
def test_no_secret_is_written_down(few_world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    storage = tmp_path / "storage"
    arguments = ["run", "nli-sed", "--data", few_world, "--storage", storage, "--address", "none"]
    sets = run_commands.overrides(run_commands.TINY, run_commands.EVALUATION, {"members": 1, "sed.data.sample": 60})
    outcome = run_commands.raysts(*arguments, *sets, "--name", "named-hf_Very", "--json")
    assert outcome.code == 0, outcome.err
    texts = contents(storage)
    assert len(texts) > 20 and any("named-hf_Very" in text for text in texts.values())  # the search finds what is there
    for name, value in SECRETS.items():
        assert value not in outcome.out + outcome.err, name
        assert not [str(path) for path, text in texts.items() if value in text or value in str(path)], name
    monkeypatch.setenv("LANGUAGE_KEYS", "ordinary-value")
    monkeypatch.setenv("SHORT_KEY", "run")
    shown = written_down(["run", "nli", "--data", f"bucket/{SECRETS['AWS_SECRET_ACCESS_KEY']}/ordinary-value"])
    assert shown == "raysts run nli --data 'bucket/${AWS_SECRET_ACCESS_KEY}/ordinary-value'"


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("http://alice:pass@host/", "http://...@host/"),
        ("s3://key:sec/ret@bucket/p", "s3://...@bucket/p"),
        ("postgresql://user:p@ss%40@host:5432/db?x=1", "postgresql://...@host:5432/db?x=1"),
        ("proxy http://u:p@host:3 for http://token@other:9/x", "proxy http://...@host:3 for http://...@other:9/x"),
        ("s3:/key:sec/ret@bucket/p of s3:/token@bucket", "s3:/...@bucket/p of s3:/...@bucket"),
        ("http://alice:pa'ss@host/ and /data/a:b@c", "http://...@host/ and /data/a:b@c"),
        *(
            (shown, shown)
            for shown in ("gs://anonymous@bucket/x", "http://host:8080/@name", "sqlite:///runs.db and me@host")
        ),
    ],
)
def test_users_and_passwords_of_uris_are_not_shown(uri: str, shown: str) -> None:
    assert redact(uri) == shown


def test_no_code_of_ours_asks_for_code_of_others() -> None:
    """Nothing in raysts unpickles or runs what a model directory brings."""
    import raysts

    for path in Path(raysts.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"pickle\.loads?\(|weights_only=False|trust_remote_code=True\b(?!`)", text), path
        assert text.count("torch.load(") == len(re.findall(r"torch\.load\([^\n]*weights_only=True", text)), path

"""Model directories that others wrote, wrong in every file: one message that names what is wrong, in no time."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from raysts.errors import InputError
from raysts.models import pretrained

DEEP = "[" * 100_000


def write(name: str, value: Any) -> Callable[[Path], None]:
    text = value if isinstance(value, str) else json.dumps(value)
    return lambda folder: (folder / name).write_text(text, encoding="utf-8") and None


def changed(name: str, **values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / name).read_text(encoding="utf-8"))
        (folder / name).write_text(json.dumps(config | values), encoding="utf-8")

    return change


def piped(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return change


def decoy(folder: Path) -> None:
    """A pickle that runs code, and weights beside it that nobody reads."""
    shutil.move(folder / "model.safetensors", folder / "decoy.safetensors")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(os.getcwd))


def module(**values: Any) -> list[dict[str, Any]]:
    return [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer", **values}]


def without(*names: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return change


def weights(keep: Callable[[str], bool]) -> Callable[[Path], None]:
    """Keep some of the weights."""

    def change(folder: Path) -> None:
        state = load_file(folder / "model.safetensors")
        save_file({name: value for name, value in state.items() if keep(name)}, folder / "model.safetensors")

    return change


def torn(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


DENSE = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}

SAYS: dict[str, str] = {
    "config.json model_type=bart": "bart",
    "config.json model_type=nonsense": "nonsense",
    "no weights": "model.safetensors",
    "weights of one layer": "layer.1",
    "no tokenizer": "tokenizer",
    "no tokenizer at all": "tokenizer",
    "no pooling": "pooling must be one of",
    "no Dense": "Dense",
}
"""Words of the message, where more than the folder is needed."""

WRONG: dict[str, Callable[[Path], None]] = {
    **{
        f"modules.json {str(value)[:30]}": write("modules.json", value)
        for value in (
            {}, [], "null", "3", [3], [{}], [None], DEEP, "\0" * 50, "",
            module(path=None), module(path=3), module(path="../.."), module(path="/etc"), module(path="a\0b"),
            module(type=None), module(type=["x"]), module(type="Unknown"),
        )
    },
    **{
        f"config.json {str(value)[:30]}": write("config.json", value)
        for value in ("null", "3", "[]", DEEP, "", {"model_type": ["bert"]}, {"model_type": None})
    },
    **{
        f"config.json {key}={value}": changed("config.json", **{key: value})
        for key, value in (
            ("model_type", "bart"), ("model_type", "nonsense"), ("intermediate_size", 48),
            ("num_hidden_layers", 10**6), ("num_hidden_layers", -1), ("num_hidden_layers", "2"), ("hidden_size", None),
            ("hidden_size", 1e300), ("num_attention_heads", 0), ("vocab_size", 10**15), ("vocab_size", True),
            ("hidden_size", 20_000), ("intermediate_size", 10**6), ("type_vocab_size", 10**9),
            ("max_position_embeddings", 10**12), ("hidden_act", "no such"), ("hidden_act", 3), ("max_position_embeddings", "x"),
        )
    },
    "config.json is a pipe": piped("config.json"),
    "tokenizer.json is a pipe": piped("tokenizer.json"),
    "model.safetensors is a pipe": piped("model.safetensors"),
    "tokenizer.json null": write("tokenizer.json", "null"),
    "tokenizer.json list": write("tokenizer.json", "[]"),
    "tokenizer.json deep": write("tokenizer.json", DEEP),
    **{
        f"tokenizer_config.json {key}={value}": changed("tokenizer_config.json", **{key: value})
        for key, value in (
            ("model_max_length", [1]), ("model_max_length", float("nan")), ("model_max_length", 0), ("pad_token", "[NEW]"),
        )
    },
    "tokenizer_config.json list": write("tokenizer_config.json", "[]"),
    "prompts are a list": write("config_sentence_transformers.json", {"prompts": ["query"]}),
    "similarity is a list": write("config_sentence_transformers.json", {"similarity_fn_name": ["cosine"]}),
    "length x": write("sentence_bert_config.json", {"max_seq_length": "x"}),
    "length -5": write("sentence_bert_config.json", {"max_seq_length": -5}),
    "pickle behind a decoy": decoy,
    "no weights": without("model.safetensors"),
    "weights of one layer": weights(lambda name: "layer.1." not in name),
    "torn weights": torn,
    "no tokenizer": without("tokenizer.json"),
    "no tokenizer at all": without("tokenizer.json", "tokenizer_config.json"),
    "no pooling": changed("1_Pooling/config.json", pooling_mode_mean_tokens=False),
    "no Dense": write("modules.json", [*module(), DENSE]),
    "junk for a pickle": lambda folder: (
        shutil.move(folder / "model.safetensors", folder / "x"),
        (folder / "pytorch_model.bin").write_bytes(b"junk"),
    )[0]
    and None,
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("foreign") / "model"
    pretrained.load(tiny_backbone, device="cpu").save(folder)
    return folder


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_model_is_one_message(wrong: str, whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "model"))
    WRONG[wrong](folder)
    with pytest.raises(InputError) as found:
        pretrained.load(folder, device="cpu")
    assert str(tmp_path) in str(found.value) and len(str(found.value)) < 1_000
    assert SAYS.get(wrong, "") in str(found.value)

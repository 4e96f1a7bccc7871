"""Model directories that others wrote, wrong in every file: one message that names what is wrong, in no time."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from raysts.errors import InputError
from raysts.models import pretrained

DEEP = "[" * 100_000
WEIGHTS = "model.safetensors"


def write(folder: Path, name: str, value: Any) -> None:
    (folder / name).write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")


def change(folder: Path, name: str, key: str, value: Any) -> None:
    write(folder, name, json.loads((folder / name).read_text(encoding="utf-8")) | {key: value})


def pipe(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)


def remove(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).unlink()


def hide(folder: Path, content: bytes) -> None:
    """A pickle, and weights beside it that nobody reads."""
    shutil.move(folder / WEIGHTS, folder / "decoy.safetensors")
    (folder / "pytorch_model.bin").write_bytes(content)


def take_a_layer(folder: Path) -> None:
    state = load_file(folder / WEIGHTS)
    save_file({name: value for name, value in state.items() if "layer.1." not in name}, folder / WEIGHTS)


def tear(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) // 2])


def weigh_layers(folder: Path, start: int) -> None:
    (folder / "w").mkdir()
    write(folder, "w/config.json", {"layer_start": start, "num_hidden_layers": 2})
    save_file({"layer_weights": torch.ones(2)}, folder / "w" / WEIGHTS)
    write(folder, "modules.json", module(path="w", type="sentence_transformers.models.WeightedLayerPooling"))


def module(**values: Any) -> list[dict[str, Any]]:
    return [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer", **values}]


DENSE = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}

CONTENTS: dict[str, tuple[Any, ...]] = {
    "modules.json": (
        {}, [], "null", "3", [3], [{}], [None], DEEP, "\0" * 50, "",
        module(path=None), module(path=3), module(path="../.."), module(path="/etc"), module(path="a\0b"),
        module(type=None), module(type=["x"]), module(type="Unknown"), [*module(), DENSE],
    ),
    "config.json": ("null", "3", "[]", DEEP, "", {"model_type": ["bert"]}, {"model_type": None}),
    "tokenizer.json": ("null", "[]", DEEP),
    "tokenizer_config.json": ("[]",),
    "config_sentence_transformers.json": (
        {"prompts": ["query"]}, {"similarity_fn_name": ["cosine"]}, {"similarity_fn_name": "maxsim"}, {"truncate_dim": -1},
        {"default_prompt_name": "query"},
    ),
    "sentence_bert_config.json": ({"max_seq_length": "x"}, {"max_seq_length": -5}),
}  # fmt: skip
VALUES: dict[str, tuple[tuple[str, Any], ...]] = {
    "config.json": (
        ("model_type", "bart"), ("model_type", "nonsense"), ("intermediate_size", 48), ("auto_map", "own"),
        ("num_hidden_layers", 10**6), ("num_hidden_layers", -1), ("num_hidden_layers", "2"), ("hidden_size", None),
        ("hidden_size", 1e300), ("num_attention_heads", 0), ("vocab_size", 10**15), ("vocab_size", True),
        ("hidden_size", 20_000), ("intermediate_size", 10**6), ("type_vocab_size", 10**9),
        ("max_position_embeddings", 10**12), ("hidden_act", "no such"), ("hidden_act", 3), ("max_position_embeddings", "x"),
    ),
    "tokenizer_config.json": (
        ("model_max_length", [1]), ("model_max_length", float("nan")), ("model_max_length", 0), ("pad_token", "[NEW]"),
    ),
    "1_Pooling/config.json": (("pooling_mode_mean_tokens", False),),
}  # fmt: skip
WRONG: dict[str, Callable[[Path], None]] = {
    **{
        f"{name} {number}: {str(value)[:30]}": partial(write, name=name, value=value)
        for name, values in CONTENTS.items()
        for number, value in enumerate(values)
    },
    **{
        f"{name} {key}={value}": partial(change, name=name, key=key, value=value)
        for name, values in VALUES.items()
        for key, value in values
    },
    **{f"{name} is a pipe": partial(pipe, name=name) for name in ("config.json", "tokenizer.json", WEIGHTS)},
    "pickle that runs code": lambda folder: hide(folder, pickle.dumps(os.getcwd)),
    "junk for a pickle": lambda folder: hide(folder, b"junk"),
    "no weights": lambda folder: remove(folder, WEIGHTS),
    "weights of one layer": take_a_layer,
    "torn weights": tear,
    "a layer without weight": lambda folder: weigh_layers(folder, 0),
    "layers that no encoder has": lambda folder: weigh_layers(folder, 3),
    "no tokenizer": lambda folder: remove(folder, "tokenizer.json"),
    "no tokenizer at all": lambda folder: remove(folder, "tokenizer.json", "tokenizer_config.json"),
}
SAYS: dict[str, str] = {
    "config.json model_type=bart": "bart",
    "config.json model_type=nonsense": "nonsense",
    "config.json hidden_size=20000": "hidden_size=20000, and no weights",
    "config.json intermediate_size=1000000": "intermediate_size=1000000, and no weights",
    "config.json intermediate_size=48": "has no weights of the shape",
    "config.json auto_map=own": "asks for code of the model's own (own)",
    "config_sentence_transformers.json 2: {'similarity_fn_name': 'maxsi": "='maxsim'; it must be one of cosine, dot",
    "config_sentence_transformers.json 3: {'truncate_dim': -1}": "truncate_dim=-1; it must be a whole number of at least 1",
    "config_sentence_transformers.json 4: {'default_prompt_name': 'query": "='query'; it must be one of no prompts",
    "a layer without weight": "2 layer weights for 3 layers",
    "layers that no encoder has": "no layers of an encoder",
    "no weights": WEIGHTS,
    "weights of one layer": "layer.1",
    "no tokenizer": "tokenizer",
    "no tokenizer at all": "tokenizer",
    "1_Pooling/config.json pooling_mode_mean_tokens=False": "pooling must be one of",
}
"""Words of the message, where more than the folder is needed."""


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

"""What a model directory from elsewhere must not hold: anything that would run as code when it is loaded."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from raysts.errors import InputError
from raysts.storage.atomic import read_json

CODE_KEY = "auto_map"
"""Key of config.json and tokenizer_config.json under which transformers finds the code that a directory brings."""


def refuse_code(folder: Path) -> None:
    """Refuse a directory whose weights or whose configuration ask for code to be run.

    Weights in safetensors hold no code. Pickled ones (``pytorch_model*.bin``), which count where there are no others, may
    hold tensors and nothing else. Code of its own would not be run, but the model would then not be the one meant.

    Raises:
        InputError: naming the file.
    """
    for name in ("config.json", "tokenizer_config.json"):
        try:
            config: Any = read_json(folder / name)
        except ValueError:  # whoever reads it says what is wrong
            continue
        if isinstance(config, dict) and config.get(CODE_KEY):
            raise InputError(
                f"{folder / name}: '{CODE_KEY}' asks for code of the model's own ({config[CODE_KEY]}); raysts runs no code "
                f"from a model directory: give a model of a known family, or load this one with its own library"
            )
    if not list(folder.glob("*.safetensors")):
        for path in sorted(folder.glob("pytorch_model*.bin")):
            try:
                torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
            except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError) as error:
                raise InputError(_unreadable(path, error)) from None


def _unreadable(path: Path, error: Exception) -> str:
    """Why pickled weights are refused, without what the unpickler recommends (to run them)."""
    reason = " ".join(str(error).split())
    start = reason.find("Trying to load")
    shown = reason[start:].partition(". ")[0] if start >= 0 else type(error).__name__
    return (
        f"{path}: pickled weights that hold more than tensors, or are damaged ({shown}); raysts unpickles tensors alone, "
        f"for a pickle can run any code: get the model as model.safetensors from a source that you trust"
    )

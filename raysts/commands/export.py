"""``raysts export``: a model as a sentence-transformers directory, or as ONNX."""

from __future__ import annotations

import argparse
from pathlib import Path

from raysts.commands.options import Command, Result, add, add_layers, say_on_stderr
from raysts.errors import InputError

FORMATS = ("sentence-transformers", "onnx")


HELP = "write a model as a sentence-transformers directory or as ONNX"
EXAMPLE = "raysts export RUN_ID --to my-encoder"


def _arguments(command: argparse.ArgumentParser) -> None:
    add(command, "model")
    command.add_argument("--to", required=True, metavar="DIR", help="directory to write; must not hold anything")
    command.add_argument(
        "--format",
        choices=FORMATS,
        default=FORMATS[0],
        help="onnx: model.onnx beside the tokenizer and the modules, which SentenceTransformer(DIR, backend='onnx') opens; of an "
        "encoder with pooling and dense layers; needs raysts[onnx]",
    )
    add_layers(command, "the model's own")
    add(command, "--storage")


def export(
    model: str | Path,
    to: str | Path,
    *,
    storage: str | Path | None = None,
    layers: int | str | None = None,
    format: str = FORMATS[0],
) -> Result:
    """Write a model as a sentence-transformers directory, or as ONNX.

    Args:
        model: a MODEL.
        to: the directory; it must not hold anything.
        storage: where run ids are looked up.
        layers: pool these layers instead of the model's own.
        format: ``sentence-transformers``, or ``onnx`` for an encoder with its pooling and dense layers alone:
            ``model.onnx`` and the tokenizer's files.

    Returns:
        status, storage, model (path of the directory).
    """
    from raysts.commands.context import locate, store_of
    from raysts.models import onnx, pretrained
    from raysts.models.layers import layer_indices
    from raysts.storage.store import FolderStore

    if format not in FORMATS:
        raise InputError(f"--format '{format}' must be one of {', '.join(FORMATS)}")
    store, target = store_of(storage), Path(to)
    path = locate(model, store)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(
            f"--to '{target}' exists already and is not an empty folder; nothing is overwritten, choose another"
        )
    FolderStore(target.absolute().parent).check(writes=True, option="--to")
    card, loaded = path / "README.md", pretrained.load(path, layers=layers, device="cpu")
    if layers is not None and layer_indices(loaded.layers, loaded.depth) != layer_indices(layers, loaded.depth):
        raise InputError(
            f"--layers {layers}: the model's heads were trained on layers '{loaded.layers}' and give nothing of use on "
            f"others; leave --layers out, or export the model that the heads were fitted on"
        )
    if format == "onnx":
        onnx.check(loaded)
        for lost in onnx.losses(loaded):
            say_on_stderr(f"{target}: {lost}")
        onnx.save(loaded, target.absolute())
    else:
        loaded.save(target.absolute(), card.read_text(encoding="utf-8") if card.is_file() else None)
    return {"status": "done", "storage": store.uri, "model": str(target)}


COMMANDS = (Command("export", HELP, EXAMPLE, _arguments, export, lambda result: f"model: {result['model']}"),)

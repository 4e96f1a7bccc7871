"""``raysts export``: a model as a sentence-transformers directory, or as ONNX."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from raysts.commands.options import Command, Result, add, add_layers, on_this_machine, say_on_stderr
from raysts.errors import InputError, RunFailed

if TYPE_CHECKING:
    from raysts.evaluation.compression import Dtype

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
    add(command, "--dims", "--dtype", "--data", "--dev")
    command.add_argument(
        "--push",
        metavar="REPO",
        help="also send the directory to this model repository of the Hugging Face hub (user/name), which is made if it is not "
        "there; the token is that of 'hf auth login', or $HF_TOKEN",
    )
    command.add_argument("--private", action="store_true", help="--push makes a repository that others cannot see")
    add(command, "--storage")


def export(
    model: str | Path,
    to: str | Path,
    *,
    storage: str | Path | None = None,
    layers: int | str | None = None,
    format: str = FORMATS[0],
    dims: int | None = None,
    dtype: Dtype = "float32",
    data: str | Path | None = None,
    dev: Mapping[str, str | Path] | None = None,
    push: str | None = None,
    private: bool = False,
    say: Callable[[str], None] = say_on_stderr,
) -> Result:
    """Write a model as a sentence-transformers directory, or as ONNX.

    Args:
        model: a MODEL.
        to: the directory; it must not hold anything.
        storage: where run ids are looked up.
        layers: pool these layers instead of the model's own.
        format: ``sentence-transformers``, or ``onnx`` for an encoder with its pooling and dense layers alone:
            ``model.onnx``, the tokenizer's files and sentence-transformers' modules.
        dims: the model gives the first so many dimensions alone (``truncate_dim`` of its directory).
        dtype: what the vectors are to be stored as. A directory has no place for it: its card says how whoever reads it asks
            sentence-transformers for such numbers, and what they cost.
        data: where what ``dims`` and ``dtype`` cost is measured; as :func:`raysts.embed`.
        dev: as :func:`raysts.embed`.
        push: model repository of the Hugging Face hub that the directory is sent to as well.
        private: as a repository that others cannot see.
        say: takes progress.

    Returns:
        status, storage, model (path of the directory); where it was measured also cost, and with ``push`` pushed (address).
    """
    from raysts.commands.context import locate, store_of
    from raysts.commands.smaller import measuring, section
    from raysts.evaluation import compression
    from raysts.models import onnx, pretrained
    from raysts.models.layers import layer_indices
    from raysts.storage.atomic import remove_drafts
    from raysts.storage.store import FolderStore

    if format not in FORMATS:
        raise InputError(f"--format '{format}' must be one of {', '.join(FORMATS)}")
    if private and push is None:
        raise InputError("--private is of --push REPO; name the repository, or leave it out")
    if push is not None:
        _check_push(push)
    store, target = store_of(storage), on_this_machine(to, "--to")
    path = locate(model, store)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(
            f"--to '{target}' exists already and is not an empty folder; nothing is overwritten, choose another"
        )
    if target.absolute().is_relative_to(path.absolute()):
        raise InputError(
            f"--to '{target}' lies in the folder of the model, whose content names what is made of it; choose another"
        )
    FolderStore(target.absolute().parent).check(writes=True, option="--to")
    remove_drafts(target.absolute().parent, of=target.name)
    card, loaded = path / "README.md", pretrained.load(path, layers=layers, device="cpu")
    if layers is not None and layer_indices(loaded.layers, loaded.depth) != layer_indices(layers, loaded.depth):
        raise InputError(
            f"--layers {layers}: the model's heads were trained on layers '{loaded.layers}' and give nothing of use on "
            f"others; leave --layers out, or export the model that the heads were fitted on"
        )
    compression.check(loaded, dims, dtype)
    whole, loaded.truncate_dim = loaded.truncate_dim, dims or loaded.truncate_dim
    if format == "onnx":
        onnx.check(loaded)
    cost = measuring(loaded, whole, dtype, data, dev, say)(None)
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else None  # whoever wrote it
    if dims or dtype != "float32":
        text = (text or f"# {target.name}\n") + section(loaded, dtype, cost)
    if format == "onnx":
        for lost in onnx.losses(loaded):
            say(f"{target}: {lost}")
        onnx.save(loaded, target.absolute(), text)
    else:
        loaded.save(target.absolute(), text)
    result: Result = {"status": "done", "storage": store.uri, "model": str(target)}
    if cost:
        result["cost"] = cost.as_plain()
    if push is not None:
        result["pushed"] = _push(target, push, private)
    return result


def _check_push(repository: str) -> None:
    """Check what ``--push`` needs before anything is written.

    Raises:
        InputError: no name of a repository, no token, or the hub is switched off.
    """
    from huggingface_hub import constants, get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise InputError(f"--push '{repository}': {error}; give user/name") from None
    if constants.HF_HUB_OFFLINE:
        raise InputError("--push: $HF_HUB_OFFLINE is set, so nothing can be sent; unset it")
    if get_token() is None:
        raise InputError("--push: no token of the Hugging Face hub is here; 'hf auth login', or set $HF_TOKEN")


def _push(folder: Path, repository: str, private: bool) -> str:
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        made = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(repo_id=made.repo_id, folder_path=folder, commit_message="Export of raysts")
    except Exception as error:  # of the hub's library, of the one that it sends with, and of the machine
        reason = " ".join(str(error).split())
        raise RunFailed(
            f"{folder} is written, and could not be sent to {repository} ({reason}); send it with "
            f"'hf upload {repository} {folder}'"
        ) from None
    return str(made)


def _text(result: Result) -> str:
    return "\n".join(f"{name}: {result[name]}" for name in ("model", "pushed") if name in result)


COMMANDS = (Command("export", HELP, EXAMPLE, _arguments, export, _text),)

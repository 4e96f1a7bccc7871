"""``raysts export``: a model as a sentence-transformers directory, or as ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, get_args

from raysts.commands import options as opt
from raysts.commands.options import Command, Result, on_this_machine, option, say_on_stderr
from raysts.errors import InputError, RunFailed

Format = Literal["sentence-transformers", "onnx"]
FORMATS = get_args(Format)


def export(
    model: opt.Model,
    to: Annotated[str | Path, option("directory to write; must not hold anything", "DIR")],
    *,
    storage: opt.StoragePlace = None,
    layers: Annotated[int | str | None, opt.layers_option("the model's own")] = None,
    format: Annotated[  # noqa: A002
        Format,
        option(
            "onnx: model.onnx beside the tokenizer and the modules, which SentenceTransformer(DIR, backend='onnx') opens; of an "
            "encoder with pooling and dense layers; needs raysts[onnx]"
        ),
    ] = "sentence-transformers",
    dims: opt.Dims = None,
    dtype: opt.Dtype = "float32",
    data: opt.Data = None,
    dev: opt.Dev = None,
    push: Annotated[
        str | None,
        option(
            "also send the directory to this model repository of the Hugging Face hub (user/name), which is made if it is not "
            "there; the token is that of 'hf auth login', or $HF_TOKEN",
            "REPO",
        ),
    ] = None,
    private: Annotated[bool, option("--push makes a repository that others cannot see")] = False,
    say: opt.Say = say_on_stderr,
) -> Result:
    """Write a model as a sentence-transformers directory, or as ONNX.

    Args:
        format: ``sentence-transformers``, or ``onnx`` for an encoder with its pooling and dense layers alone:
            ``model.onnx``, the tokenizer's files and sentence-transformers' modules.
        dims: number of leading dimensions that the model returns (``truncate_dim`` of its directory).
        dtype: storage type of the vectors. A directory cannot store it: its card tells readers how to ask
            sentence-transformers for this type, and its cost.
        data: data that measure the cost of ``dims`` and ``dtype``, as :func:`raysts.embed`.
        dev: as :func:`raysts.embed`.

    Returns:
        status, storage, model (path of the directory); if measured also cost, and with ``push`` pushed (address).
    """
    from raysts.commands.context import store_of
    from raysts.commands.models import locate
    from raysts.commands.smaller import measuring, section
    from raysts.evaluation import compression
    from raysts.models import onnx, pretrained
    from raysts.models.layers import layer_indices
    from raysts.storage.atomic import remove_drafts
    from raysts.storage.store import Store

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
    Store(target.absolute().parent).check(writes=True, option="--to")
    remove_drafts(target.absolute().parent, target.name)
    card, loaded = path / "README.md", pretrained.load(path, layers=layers, device="cpu")
    if layers is not None and layer_indices(loaded.layers, loaded.depth) != layer_indices(layers, loaded.depth):
        raise InputError(
            f"--layers {layers}: the model's heads were trained on layers '{loaded.layers}' and give nothing of use on "
            f"others; leave --layers out, or export the model that the heads were fitted on"
        )
    compression.check(loaded, dims, dtype)
    full_dims, loaded.truncate_dim = loaded.truncate_dim, dims or loaded.truncate_dim
    if format == "onnx":
        onnx.check(loaded)
    cost = measuring(loaded, full_dims, dtype, data, dev, say)(None)
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else None  # of any encoding
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
        InputError: invalid repository name, no token, or the hub is switched off.
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
        created = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(repo_id=created.repo_id, folder_path=folder, commit_message="Export of raysts")
    except Exception as error:  # of the hub's library, its transport, or the machine
        reason = " ".join(str(error).split())
        raise RunFailed(
            f"{folder} is written, and could not be sent to {repository} ({reason}); send it with "
            f"'hf upload {repository} {folder}'"
        ) from None
    return str(created)


def _text(result: Result) -> str:
    return "\n".join(f"{name}: {result[name]}" for name in ("model", "pushed") if name in result)


COMMANDS = (Command("export", export, _text, "raysts export RUN_ID --to my-encoder", opt.USE, ("model",)),)

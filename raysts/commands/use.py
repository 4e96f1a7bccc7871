"""Commands that use an encoder: ``embed`` and ``export``."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from raysts.commands import options as opt
from raysts.commands.options import USE, Command, Result, local_path
from raysts.errors import InputError, RunFailed
from raysts.log import say, screen

if TYPE_CHECKING:
    import numpy as np

    from raysts.evaluation.compression import Cost
    from raysts.models.sentence_model import SentenceModel

Measure = Callable[["np.ndarray | None"], "Cost | None"]
"""Function that measures the cost of smaller vectors, given the ranges of int8."""


def embed(
    model: opt.Model,
    input: Annotated[str | Path, Parameter(metavar="FILE_OR_DIR")],  # noqa: A002
    column: Annotated[str, Parameter(metavar="NAME")],
    output: Annotated[str | Path, Parameter(metavar="DIR")],
    *,
    storage: opt.StoragePlace = None,
    layers: opt.Layers = None,
    prompt: opt.Prompt = None,
    side: Literal["query", "document"] | None = None,
    dims: opt.Dims = None,
    dtype: opt.Dtype = "float32",
    data: opt.Data = None,
    dev: opt.Dev = None,
    precision: opt.Precision = "auto",
    address: opt.Address = None,
) -> Result:
    """Embed a column of texts into Parquet shards. A killed job continues shard by shard.

    A model that reads queries and documents differently embeds them by two calls, each with its ``side``. ``data`` and
    ``dev`` measure what ``dims`` and ``dtype`` cost.

    Args:
        input: Parquet, CSV, TSV, JSONL, plain lines (.txt, column 'text'), .gz of the last four, a folder of them (if it
            holds Parquet, of that alone), or a folder that datasets saved.
        column: the text column.
        side: read the texts behind the model's prompt of queries, or of documents.
        output: folder for Parquet shards with all columns and 'embedding', a list of so many numbers; '_manifest.json' has
            the ranges of int8.

    Returns:
        status, output, rows, shards, dim; if measured also cost (on, before, after: rank correlations).
    """
    from raysts.commands.context import executor, store_of
    from raysts.commands.models import locate
    from raysts.ids import folder_id
    from raysts.models import pretrained
    from raysts.models.modules import describe
    from raysts.pipeline import embed as bulk
    from raysts.recipes.recipe import Resources
    from raysts.storage.store import Store

    opt.check_precision(precision)
    if side not in (None, "query", "document") or None not in (side, prompt):
        raise InputError(f"--side {side}: must be query or document, and stands in place of --prompt; give one of them")
    source = local_path(input, "--input").absolute()
    target = local_path(output, "--output", writes=True).absolute()
    path = locate(model, store_of(storage))
    units = bulk.units(source, column, target)
    content = folder_id(path)
    if side is not None:
        prompt = describe(path).prompts.side_prompt(side)
    loaded = pretrained.load(path, layers=layers, prompt=prompt, device="cpu", content=content)
    measure = _shrink(loaded, dims, dtype, data, dev)
    parent_folder = Store(target.parent)
    parent_folder.check(writes=True, option="--output")
    with parent_folder.lock(f".{target.name}.lock", f"raysts embed --output {target}"):
        spec = {"model": content, "input": str(source), "column": column, "layers": loaded.layers}
        spec |= {"prompt": prefix} if (prefix := loaded.prompts.resolve()) else {}
        spec |= {"dims": dims} if dims else {}
        spec |= {"dtype": dtype} if dtype != "float32" else {}
        spec["precision"] = precision
        shards = bulk.open_output(target, spec, units)
        waiting = [work for work in shards.items() if not bulk.is_done(*work)]
        finished = len(units) - len(waiting)
        say(f"embed: {_shards(len(units))}, {finished} done")
        ranges = bulk.calibrate(target, loaded, units, column) if dtype == "int8" and units else None
        cost = measure(ranges)
        if waiting:
            with executor(address) as chosen:
                began, options = time.monotonic(), {"content": content, "layers": layers, "precision": precision}
                args = (path, options | {"prompt": prefix}, column, dims, dtype, ranges)
                written = chosen.map(bulk.EmbedFile, args, waiting, Resources())
                ends = [*itertools.accumulate(unit.rows for unit, _ in waiting)]
                screen.follow("embed", 1.0, 1.0, texts=ends[-1])
                for done, (rows, _) in enumerate(zip(ends, written, strict=True), start=1):
                    rate = rows / (time.monotonic() - began)
                    screen.within(rows / ends[-1])
                    say(f"embed: {finished + done} of {_shards(len(units))}, {rate:.0f} rows/s")
        manifest = bulk.close_output(target, shards, loaded, dtype)
    result = {"status": "done", "output": str(target), "rows": manifest["rows"], "shards": len(units)}
    result |= {"dim": manifest["dim"]} | ({"cost": cost.as_plain()} if cost else {})
    return result


def _shards(count: int) -> str:
    return "1 shard" if count == 1 else f"{count:,} shards"


def _embed_text(result: Result) -> str:
    return f"{result['rows']:,} rows in {_shards(result['shards'])}: {result['output']}"


def export(
    model: opt.Model,
    to: Annotated[str | Path, Parameter(metavar="DIR")],
    *,
    storage: opt.StoragePlace = None,
    layers: opt.Layers = None,
    format: Literal["sentence-transformers", "onnx"] = "sentence-transformers",  # noqa: A002
    dims: opt.Dims = None,
    dtype: opt.Dtype = "float32",
    data: opt.Data = None,
    dev: opt.Dev = None,
    push: Annotated[str | None, Parameter(metavar="REPO")] = None,
    private: bool = False,
) -> Result:
    """Write a model as a sentence-transformers directory, or as ONNX.

    A directory cannot store ``dtype``: its card tells readers how to ask sentence-transformers for this type, and its cost,
    which ``data`` or ``dev`` measures. ``dims`` becomes its ``truncate_dim``.

    Args:
        to: directory to write; must not hold anything.
        format: onnx: model.onnx beside the tokenizer and the modules, which SentenceTransformer(DIR, backend='onnx') opens; of
            an encoder with pooling and dense layers; needs raysts[onnx].
        push: also send the directory to this model repository of the Hugging Face hub (user/name), which is made if it does
            not exist; the token is that of 'hf auth login', or $HF_TOKEN.
        private: --push makes a repository that others cannot see.

    Returns:
        status, storage, model (path of the directory); if measured also cost, and with ``push`` pushed (address).
    """
    from raysts.commands.context import store_of
    from raysts.commands.models import locate
    from raysts.models import onnx, pretrained
    from raysts.models.layers import layer_indices
    from raysts.storage.atomic import remove_drafts
    from raysts.storage.store import Store

    if format not in (formats := ("sentence-transformers", "onnx")):
        raise InputError(f"--format '{format}' must be one of {', '.join(formats)}")
    if private and push is None:
        raise InputError("--private is of --push REPO. Name the repository, or remove --private")
    if push is not None:
        _check_push(push)
    store, target = store_of(storage), local_path(to, "--to", writes=True)
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
            f"others. Remove --layers, or export the model that the heads were fitted on"
        )
    measure = _shrink(loaded, dims, dtype, data, dev)
    if format == "onnx":
        onnx.check(loaded)
    cost = measure(None)
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else None  # of any encoding
    if dims or dtype != "float32":
        text = (text or f"# {target.name}\n") + _section(loaded, dtype, cost)
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


def _export_text(result: Result) -> str:
    return "\n".join(f"{name}: {result[name]}" for name in ("model", "pushed") if name in result)


def _shrink(
    model: SentenceModel,
    dims: int | None,
    dtype: opt.Dtype,
    data: str | Path | None,
    dev: Mapping[str, str | Path] | None,
) -> Measure:
    """Truncate a model, and return a function that measures and reports what smaller vectors cost.

    The development set is opened and checked here. The function returns None if the vectors stay as they are, and without a
    development set, which it reports.
    """
    from raysts.data.corpora import corpus_of
    from raysts.data.user import UserData
    from raysts.evaluation.compression import check, cost, judge

    check(model, dims, dtype)
    full_dims, model.truncate_dim = model.truncate_dim, dims or model.truncate_dim
    if dtype == "float32" and model.truncate_dim == full_dims:
        return lambda _: None
    user_data = UserData.of(dev=dev)
    data = data or os.environ.get("RAYSTS_DATA") or None
    judged = judge(corpus_of(data, user_data=user_data)) if data or user_data else None

    def measure_cost(ranges: np.ndarray | None) -> Cost | None:
        result = cost(model, full_dims, judged, dtype, ranges) if judged else None
        unknown = "what that costs was not measured; name a development set with --data PATH or --dev NAME=FILE"
        say(f"{model.dim} dimensions as {dtype}: {result.text if result else unknown}")
        return result

    return measure_cost


def _section(model: SentenceModel, dtype: opt.Dtype, cost: Cost | None) -> str:
    """Return the section on smaller vectors of the card of an exported directory."""
    lines = (
        [f"The model gives the first {model.dim} of its {model.encoder.dim} dimensions."] if model.truncate_dim else []
    )
    if dtype != "float32":
        lines.append(
            f"A directory cannot say what its vectors are stored as: ask for {dtype} where they are made, by "
            f'`model.encode(texts, precision="{dtype}")`.'
        )
    if dtype == "int8":
        lines.append(
            "Vectors that are compared must be on one scale: give the ranges of one draw of your texts to all of them "
            '(`quantize_embeddings(vectors, "int8", ranges=...)` of `sentence_transformers.util.quantization`; `raysts embed '
            "--dtype int8` does, and keeps them in its manifest)."
        )
    if cost:
        lines.append(f"What that costs: {cost.text}.")
    return "\n## Smaller vectors\n\n" + "\n".join(lines) + "\n"


COMMANDS = (
    Command(
        "embed",
        embed,
        _embed_text,
        "raysts embed MODEL --input docs.parquet --column text --output vectors/",
        USE,
        ("model",),
    ),
    Command("export", export, _export_text, "raysts export RUN_ID --to my-encoder", USE, ("model",)),
)

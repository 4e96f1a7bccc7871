"""``raysts embed``: a column of files of texts into Parquet shards of vectors."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from raysts.commands import options as opt
from raysts.commands.options import Command, Result, on_this_machine, option, say_on_stderr


def embed(
    model: opt.Model,
    input: Annotated[  # noqa: A002
        str | Path,
        option(
            "Parquet, CSV, TSV, JSONL, plain lines (.txt, column 'text'), .gz of the last four, a folder of them (where it holds "
            "Parquet, of that alone), or a folder that datasets saved",
            "FILE_OR_DIR",
        ),
    ],
    column: Annotated[str, option("the text column", "NAME")],
    output: Annotated[str | Path, option("folder for Parquet shards with all columns and 'embedding'", "DIR")],
    *,
    storage: opt.StoragePlace = None,
    layers: Annotated[int | str | None, opt.layers_option("the model's own")] = None,
    prompt: opt.Prompt = None,
    dims: opt.Dims = None,
    dtype: opt.Dtype = "float32",
    data: opt.Data = None,
    dev: opt.Dev = None,
    precision: opt.Precision = "auto",
    address: opt.Address = None,
    say: opt.Say = say_on_stderr,
) -> Result:
    """Embed a column of texts into Parquet shards. A killed job continues shard by shard.

    Args:
        output: folder of the shards: every input column and ``embedding``, a fixed-size list of float32.
        prompt: before every text: the name of a prompt that the model has, or a text; default: the model's default. A
            model that reads queries and passages differently embeds them by two calls.
        dims: number of leading dimensions to keep.
        dtype: ``float32``; ``int8``, each dimension in 255 steps of its range over a seeded draw of the input (``_manifest.json``
            has the ranges); ``binary``, the signs, eight to a byte: as sentence-transformers' ``quantize_embeddings`` has them.
        data: data with the development set that measures the cost of ``dims`` and ``dtype``, as :func:`raysts.run`, but
            never the embedded world.
        dev: user files of scored pairs by name, for the same purpose.
        precision: ``auto`` (bf16 where the hardware multiplies it natively, else fp32), ``bf16``, ``fp16``, ``fp32``
            or ``tf32``; the vectors are float32 in any case.

    Returns:
        status, output, rows, shards, dim; if measured also cost (on, before, after: rank correlations).
    """
    from raysts.commands.context import executor, store_of
    from raysts.commands.models import locate
    from raysts.commands.smaller import measuring
    from raysts.evaluation import compression
    from raysts.ids import folder_id
    from raysts.models import pretrained
    from raysts.pipeline import embed as bulk
    from raysts.recipes.recipe import Resources
    from raysts.storage.store import Store

    opt.check_precision(precision)
    source, target = (on_this_machine(*place).absolute() for place in ((input, "--input"), (output, "--output")))
    path = locate(model, store_of(storage))
    units = bulk.units(source, column, target)
    content = folder_id(path)
    loaded = pretrained.load(path, layers=layers, prompt=prompt, device="cpu", content=content)
    compression.check(loaded, dims, dtype)
    full_dims, loaded.truncate_dim = loaded.truncate_dim, dims or loaded.truncate_dim
    measured = measuring(loaded, full_dims, dtype, data, dev, say)
    parent_folder = Store(target.parent)
    parent_folder.check(writes=True, option="--output")
    with parent_folder.lock(f".{target.name}.lock", f"raysts embed --output {target}"):
        spec = {"model": content, "input": str(source), "column": column, "layers": loaded.layers}
        if prefix := loaded.prompts.resolve():
            spec["prompt"] = prefix
        spec |= {"dims": dims} if dims else {}
        spec |= {"dtype": dtype} if dtype != "float32" else {}
        spec["precision"] = precision
        shards = bulk.open_output(target, spec, units)
        waiting = [work for work in shards.items() if not bulk.is_done(*work)]
        finished = len(units) - len(waiting)
        say(f"embed: {len(units)} shards, {finished} done")
        ranges = bulk.calibrate(target, loaded, units, column) if dtype == "int8" and units else None
        cost = measured(ranges)
        if waiting:
            with executor(address) as chosen:
                began, args = time.monotonic(), (path, content, layers, column, prefix, dims, dtype, ranges, precision)
                written = chosen.map(bulk.EmbedFile, args, waiting, Resources(), say)
                for done, _ in enumerate(written, start=1):
                    rate = sum(unit.rows for unit, _ in waiting[:done]) / (time.monotonic() - began)
                    say(f"embed: {finished + done}/{len(units)} shards, {rate:.0f} rows/s")
        manifest = bulk.close_output(target, shards, loaded, dtype)
    return {
        "status": "done",
        "output": str(target),
        "rows": manifest["rows"],
        "shards": len(units),
        "dim": manifest["dim"],
        **({"cost": cost.as_plain()} if cost else {}),
    }


def _text(result: Result) -> str:
    return f"{result['rows']:,} rows in {result['shards']} shards: {result['output']}"


EXAMPLE = "raysts embed MODEL --input docs.parquet --column text --output vectors/"
COMMANDS = (Command("embed", embed, _text, EXAMPLE, opt.USE, ("model",)),)

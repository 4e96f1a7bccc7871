"""``raysts data``: fetch public sets, prepare Wikipedia's sentences, check what is there."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from raysts.commands.options import Command, Result, add, names, say_on_stderr
from raysts.errors import InputError


def _fetch_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--data", required=True, metavar="PATH", help="folder to fill, in the canonical layout")
    command.add_argument(
        "--tables",
        type=names,
        help="comma-separated names or folders of tables, also words/glove.6B.{50,100,200,300}d (default: all tables, "
        "no word vectors)",
    )
    command.add_argument("--source", metavar="DIR", help="folder with local copies of the repositories (and archives)")


def fetch(
    data: str | Path,
    tables: Sequence[str] | None = None,
    *,
    source: str | Path | None = None,
    say: Callable[[str], None] = say_on_stderr,
) -> Result:
    """Fetch public data sets from the Hugging Face hub into the canonical layout; see ``raysts.data.fetch.fetch``."""
    from raysts.data.fetch.fetch import fetch

    root = _own_folder(data)
    return {"status": "done", "data": str(root), **fetch(root, list(tables) if tables else None, source, progress=say)}


def _fetch_text(result: Result) -> str:
    rows = {name: f", {entry['rows']:,} rows" if "rows" in entry else "" for name, entry in result["tables"].items()}
    return "\n".join(f"{name}: {entry['status']}{rows[name]}" for name, entry in result["tables"].items())


def _prepare_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("corpus", choices=["wikipedia"])
    command.add_argument(
        "--data", required=True, metavar="PATH", help="folder in the canonical layout; gets wikipedia/sentences"
    )
    command.add_argument(
        "--input",
        metavar="FILE",
        help="articles (Parquet) or a MediaWiki dump (.xml, .xml.bz2); default: wikipedia/articles of --data",
    )
    command.add_argument("--sample", type=int, metavar="N", help="draw exactly N sentences (default: all)")
    command.add_argument("--seed", type=int, default=0, help="seed of the draw (default 0)")
    add(command, "--address", "--skip-bad")


def prepare(
    data: str | Path,
    *,
    input: str | Path | None = None,  # noqa: A002
    sample: int | None = None,
    seed: int = 0,
    address: str | None = None,
    skip_bad: bool = False,
    say: Callable[[str], None] = say_on_stderr,
) -> Result:
    """Turn Wikipedia articles or a dump into clean, distinct sentences; see ``raysts.data.wikipedia.prepare``."""
    from raysts.commands.context import IN_PROCESS, on_ray
    from raysts.data.corpora import Corpus
    from raysts.data.wikipedia.prepare import prepare_wikipedia
    from raysts.storage.store import FolderStore

    root = _own_folder(data)
    FolderStore(root.absolute()).check(writes=True, option="--data")
    if input is None:
        if not Corpus(root).files("wikipedia/articles"):
            raise InputError(f"{root} has no wikipedia/articles: fetch them, or give a dump with --input FILE")
        input = root / "wikipedia" / "articles.parquet"
        input = input if input.exists() else root / "wikipedia" / "articles"
    if not Path(input).exists():
        raise InputError(f"--input '{input}' does not exist: it must be articles in Parquet or a MediaWiki dump")
    with contextlib.ExitStack() as held:
        options: dict[str, Any] = {}
        if address != IN_PROCESS:
            held.enter_context(on_ray(address))
            from raysts.cluster.prepare import over_ray

            options["spread"] = over_ray
        result = prepare_wikipedia(Path(input), root, sample, seed, say=say, skip_bad=skip_bad, **options)
    return {**result, "status": "done", "data": str(root)}


def _prepare_text(result: Result) -> str:
    from raysts.data.shards import skipped_line

    skipped = map(skipped_line, result.get("skipped", []))
    return "\n".join([*skipped, f"{result['rows']:,} sentences: wikipedia/sentences in {result['data']}"])


def check(data: str | Path | None = None) -> Result:
    """What a data folder holds, what is wrong with it, and which training text occurs in which evaluation set."""
    from raysts.commands.context import corpus_of
    from raysts.evaluation.contamination import text_overlap

    corpus = corpus_of(data)
    return {"status": "done", "data": corpus.where, **text_overlap.check_folder(corpus)}


def _check_text(result: Result) -> str:
    from raysts.evaluation.contamination.text_overlap import format_check

    return format_check(result)


def _own_folder(data: str | Path) -> Path:
    if "://" in str(data):
        raise InputError(
            f"--data '{data}': is written to here; give a folder, and copy it to the store when it is done"
        )
    return Path(data)


COMMANDS = (
    Command(
        "data fetch",
        "get the public sets from the Hugging Face hub and GitHub, and word vectors",
        "raysts data fetch --data DATA --tables sts/stsb_dev,sts/sts12",
        _fetch_arguments,
        fetch,
        _fetch_text,
    ),
    Command(
        "data prepare",
        "turn Wikipedia articles or a dump into sentences",
        "raysts data prepare wikipedia --data DATA --sample 1000000",
        _prepare_arguments,
        prepare,
        _prepare_text,
    ),
    Command(
        "data check",
        "say what is there, what is wrong, and what overlaps",
        "raysts data check --data DATA",
        lambda command: add(command, "--data"),
        check,
        _check_text,
    ),
)

"""``raysts data``: fetch public sets, import files of one's own, prepare Wikipedia's sentences, check what is there."""

import argparse
import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from raysts.commands.options import Command, Result, add, names, on_this_machine, say_on_stderr
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

    root = on_this_machine(data, "--data")
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
        help="articles (Parquet, columns article_id and text); default: wikipedia/articles of --data",
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
    """Turn Wikipedia articles into clean, distinct sentences; see ``raysts.data.wikipedia.prepare``."""
    from raysts.commands.context import IN_PROCESS, on_ray
    from raysts.data.corpora import Corpus
    from raysts.data.wikipedia.prepare import prepare_wikipedia
    from raysts.storage.store import FolderStore

    root = on_this_machine(data, "--data")
    FolderStore(root.absolute()).check(writes=True, option="--data")
    if input is None:
        if not Corpus(root).files("wikipedia/articles"):
            raise InputError(f"{root} has no wikipedia/articles: fetch them, or give articles with --input FILE")
        input = root / "wikipedia" / "articles.parquet"
        input = input if input.exists() else root / "wikipedia" / "articles"
    if not on_this_machine(input, "--input").exists():
        raise InputError(f"--input '{input}' does not exist: it must be articles in Parquet")
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


def _pairs(text: str) -> dict[str, str]:
    found = dict(item.split("=", 1) for item in text.split(",") if "=" in item)
    if len(found) != text.count(",") + 1 or not all([*found, *found.values()]):
        raise argparse.ArgumentTypeError(f"'{text}' must look like a=b,c=d")
    return found


def _import_arguments(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Turn a file of your own into a canonical table of --data.\n\n"
        "sentences: wikipedia/sentences, which ct, simcse-unsup, mlm and sed train on (sentence)\n"
        "pairs:     tests/NAME, a task of that name (sentence1, sentence2, score)\n"
        "nli:       nli/train (premise, hypothesis, label)\n"
        "triplets:  nli/triplets, which simcse-sup and gausscse train on (anchor, positive, negative); without negatives\n"
        "           nli/pairs, which simcse-sup trains on\n"
        "retrieval: retrieval/NAME/corpus (doc_id, text, title), queries (query_id, text) or qrels (query_id, doc_id, score):\n"
        "           whichever --columns name\n\n"
        "Rows without a text, a label or an id are left out; one that cannot be used otherwise is refused."
    )
    command.add_argument(
        "file",
        metavar="FILE",
        help="Parquet, CSV, TSV, JSONL, plain lines (.txt), a folder of them, or a saved data set",
    )
    kinds = "sentences|pairs|nli|triplets|retrieval"
    command.add_argument("--as", dest="kind", metavar=kinds, required=True, help="what the file holds")
    command.add_argument(
        "--data", required=True, metavar="PATH", help="data folder to write to, in the canonical layout"
    )
    command.add_argument(
        "--columns",
        type=_pairs,
        default={},
        metavar="canonical=theirs,...",
        help="the file's column for each canonical one (default: that of the same name)",
    )
    command.add_argument(
        "--name",
        help="name of the test or retrieval set (default: the file's), or another canonical table of the kind: sts/stsb_dev",
    )
    command.add_argument(
        "--labels",
        type=_pairs,
        default={},
        metavar="theirs=entailment,...",
        help="the file's words for entailment, neutral and contradiction; 'drop' leaves their rows out (--labels=-1=drop: a word "
        "that begins with '-' is written together with the option)",
    )
    command.add_argument(
        "--drop-duplicates",
        dest="drop",
        action="store_true",
        help="leave out rows whose texts equal those of an earlier row",
    )
    command.add_argument(
        "--split-sentences", dest="split", action="store_true", help="cut texts into sentences (English)"
    )
    command.add_argument("--force", action="store_true", help="replace the table that is there")


def import_table(
    file: str | Path,
    kind: str,
    data: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    name: str | None = None,
    labels: Mapping[str, str] | None = None,
    drop: bool = False,
    split: bool = False,
    force: bool = False,
) -> Result:
    """Write a file of the user's own as a canonical table; see :class:`raysts.data.imports.Import`.

    Returns:
        status, data, table, file, rows_read, rows_written, empty, left_out, exact_duplicates.
    """
    from raysts.data.imports import Import
    from raysts.evaluation.harness import TASKS
    from raysts.storage.store import FolderStore

    root = on_this_machine(data, "--data").absolute()
    FolderStore(root).check(writes=True, option="--data")
    wanted = Import(
        file=str(file), kind=kind, root=root, columns=columns or {}, name=name, labels=labels or {}, drop=drop,
        split=split, force=force, taken=TASKS,
    )  # fmt: skip
    return {"status": "done", "data": str(root), **wanted.run()}


def _import_text(result: Result) -> str:
    return (
        f"{result['table']}: {result['rows_written']:,} rows of {result['rows_read']:,} read; {result['empty']:,} empty and "
        f"{result['left_out']:,} with a dropped label left out; {result['exact_duplicates']:,} exact duplicates\n"
        f"{result['file']}"
    )


def check(data: str | Path | None = None) -> Result:
    """What a data folder holds and what of it nothing reads, what is wrong, and which training text is in which test set."""
    from raysts.commands.context import corpus_of
    from raysts.evaluation.contamination.text_overlap import check_folder
    from raysts.evaluation.harness import check_tasks, default_tasks, taken_names

    corpus = corpus_of(data)
    found = check_folder(corpus)
    problems = found["problems"] + taken_names(corpus)
    if not problems and (tasks := default_tasks(corpus)):
        try:
            check_tasks(corpus, tasks)
        except InputError as error:
            problems = error.problems
    return {"status": "done", "data": corpus.where, **found, "problems": problems}


def _check_text(result: Result) -> str:
    from raysts.evaluation.contamination.text_overlap import format_check

    return format_check(result)


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
        "turn Wikipedia articles into sentences",
        "raysts data prepare wikipedia --data DATA --sample 1000000",
        _prepare_arguments,
        prepare,
        _prepare_text,
    ),
    Command(
        "data import",
        "turn a file of your own into a canonical table",
        "raysts data import faq.csv --as pairs --columns sentence1=question,sentence2=asked,score=rating --data DATA",
        _import_arguments,
        import_table,
        _import_text,
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

"""``raysts data``: public sets, imports of user files, Wikipedia's sentences, and checks."""

import contextlib
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from raysts.commands import options as opt
from raysts.commands.options import Command, Result, local_path, option
from raysts.errors import InputError

Target = Annotated[str | Path, option("folder to write to, in the canonical layout", "PATH")]


def fetch(data: Target, tables: opt.NamesOption = None, *, source: opt.Folder = None) -> Result:
    """Get the public sets from the Hugging Face hub and GitHub, and word vectors.

    Args:
        tables: comma-separated names or folders of tables, also words/glove.6B.{50,100,200,300}d, words/glove.840B.300d, which
            its own name alone fetches, and beir/NAME (default: all tables without these).
        source: folder with local copies of the repositories (and archives).
    """
    from raysts.data.fetch import fetch

    root = local_path(data, "--data", writes=True)
    return {"status": "done", "data": str(root), **fetch(root, list(tables) if tables else None, source)}


def _fetch_text(result: Result) -> str:
    rows = {name: f", {entry['rows']:,} rows" if "rows" in entry else "" for name, entry in result["tables"].items()}
    return "\n".join(f"{name}: {entry['status']}{rows[name]}" for name, entry in result["tables"].items())


def prepare(
    data: Target,
    corpus: Literal["wikipedia"] = "wikipedia",
    *,
    input: opt.File = None,  # noqa: A002
    sample: opt.Number = None,
    seed: Annotated[int, Parameter(metavar="N")] = 0,
    address: opt.Address = None,
    skip_bad: opt.SkipBad = False,
) -> Result:
    """Turn Wikipedia articles into clean, distinct sentences: wikipedia/sentences of --data.

    Args:
        corpus: what is prepared.
        input: articles (Parquet, columns article_id and text); default: wikipedia/articles of --data.
        sample: draw exactly N sentences (default: all).
        seed: of the draw.
    """
    from raysts.commands.context import IN_PROCESS, ray_context
    from raysts.data.corpora import Corpus
    from raysts.data.wikipedia.prepare import prepare_wikipedia
    from raysts.storage.store import Store

    root = local_path(data, "--data", writes=True)
    Store(root.absolute()).check(writes=True, option="--data")
    if input is None:
        if not (files := Corpus(root).files("wikipedia/articles")):
            raise InputError(f"{root} has no wikipedia/articles: fetch them, or give articles with --input FILE")
        input = files[0] if files[0].name == "articles.parquet" else files[0].parent
    if not local_path(input, "--input").exists():
        raise InputError(f"--input '{input}' does not exist: it must be articles in Parquet")
    with contextlib.ExitStack() as stack:
        options: dict[str, Any] = {}
        if address != IN_PROCESS:
            stack.enter_context(ray_context(address))
            from raysts.cluster.stream import over_ray

            options["spread"] = over_ray
        result = prepare_wikipedia(Path(input), root, sample, seed, skip_bad=skip_bad, **options)
    return {**result, "status": "done", "data": str(root)}


def _prepare_text(result: Result) -> str:
    from raysts.data.checks import skipped_line

    skipped = map(skipped_line, result.get("skipped", []))
    return "\n".join([*skipped, f"{result['rows']:,} sentences: wikipedia/sentences in {result['data']}"])


def import_table(
    file: Annotated[str | Path, Parameter(metavar="FILE")],
    kind: Annotated[str, Parameter(metavar="sentences|pairs|nli|triplets|retrieval", name="--as")],
    data: Target,
    *,
    columns: Annotated[opt.WordsOption, Parameter(metavar="canonical=theirs,...")] = None,
    name: opt.Name = None,
    labels: Annotated[opt.WordsOption, Parameter(metavar="theirs=entailment,...")] = None,
    drop: Annotated[bool, Parameter(name="--drop-duplicates")] = False,
    split: Annotated[bool, Parameter(name="--split-sentences")] = False,
    force: bool = False,
) -> Result:
    """Turn a file of your own into a canonical table of --data.

    sentences: wikipedia/sentences, which ct, simcse-unsup, mlm and sed train on (sentence).
    pairs: tests/NAME, a task of that name (sentence1, sentence2, score).
    nli: nli/train (premise, hypothesis, label).
    triplets: nli/triplets, which simcse-sup and gausscse train on (anchor, positive, negative); without negatives nli/pairs,
    which simcse-sup trains on.
    retrieval: retrieval/NAME/corpus (doc_id, text, title), queries (query_id, text) or qrels (query_id, doc_id, score):
    the one that --columns names.

    Rows without a text, a label or an id are left out. Any other unusable row is an error.

    Args:
        file: Parquet, CSV, TSV, JSONL, plain lines (.txt), a folder of them, or a saved data set.
        kind: what the file holds.
        columns: the file's column for each canonical one (default: that of the same name).
        name: of the test or retrieval set (default: the file's), or another canonical table of the kind: sts/stsb_dev.
        labels: the file's words for entailment, neutral and contradiction; 'drop' leaves their rows out (--labels=-1=drop: a
            word that begins with '-' is written together with the option).
        drop: leave out rows that repeat the texts of an earlier row.
        split: cut texts into sentences (English).
        force: replace an existing table.

    Returns:
        status, data, table, file, rows_read, rows_written, empty, left_out, exact_duplicates.
    """
    from raysts.data.importing import Import
    from raysts.evaluation.harness import TASKS
    from raysts.storage.store import Store

    root = local_path(data, "--data", writes=True).absolute()
    Store(root).check(writes=True, option="--data")
    table_import = Import(
        file=str(file), kind=kind, root=root, columns=columns or {}, name=name, labels=labels or {}, drop=drop,
        split=split, force=force, taken=TASKS,
    )  # fmt: skip
    return {"status": "done", "data": str(root), **table_import.run()}


def _import_text(result: Result) -> str:
    return (
        f"{result['table']}: {result['rows_written']:,} rows of {result['rows_read']:,} read; {result['empty']:,} empty and "
        f"{result['left_out']:,} with a dropped label left out; {result['exact_duplicates']:,} exact duplicates\n"
        f"{result['file']}"
    )


def check(data: opt.Data = None) -> Result:
    """List tables, missing ones, problems of files and rows, and unread files."""
    from raysts.data.corpora import corpus_of
    from raysts.data.derive import DERIVED
    from raysts.data.importing import find_unused
    from raysts.evaluation.harness import check_tasks, default_tasks, taken_names
    from raysts.schema import TABLES

    corpus = corpus_of(data)
    tables: dict[str, Any] = {}
    problems: list[str] = []
    for name in corpus.tables():
        rows, bad = None, []
        try:
            bad = corpus.problems([name])
            rows = corpus.rows(name)
        except InputError as error:
            bad = error.problems
        tables[name] = {"rows": rows, "files": len(corpus.files(name))}
        problems += bad
    problems += taken_names(corpus)
    if not problems and (tasks := default_tasks(corpus)):
        try:
            check_tasks(corpus, tasks)
        except InputError as error:
            problems = error.problems
    files = {path for name in tables for path in corpus.files(name)}
    unused = []
    if not (corpus.empty or corpus.store.remote):
        unused = find_unused(corpus.root, lambda p: p in files or p.name == "manifest.json" or "words" in p.parts)
    missing = [name for name in TABLES if name not in tables and name not in DERIVED]
    report = {"tables": tables, "missing": missing, "problems": problems, "unused": unused}
    return {"status": "done", "data": corpus.where, "root": corpus.where, **report}


def _check_text(result: Result) -> str:
    lines = [f"data folder {result['data']}", "", "tables"]
    width = max((len(name) for name in result["tables"]), default=0)
    for name, table in result["tables"].items():
        rows = "unreadable" if table["rows"] is None else f"{table['rows']:,}"
        lines.append(f"  {name:<{width}}  {rows:>12}" + (f"  ({table['files']} files)" if table["files"] > 1 else ""))
    lines += [] if result["tables"] else ["  none"]
    if result["missing"]:
        lines += ["", "not there", "  " + ", ".join(result["missing"])]
    lines += ["", "problems"] + [f"  {problem}" for problem in result["problems"] or ["none"]]
    if result["unused"]:
        lines += ["", "files that raysts does not use"]
        for entry in result["unused"]:
            lines.append(f"  {entry['file']}: {'; '.join(filter(None, (entry['why'], entry['command'])))}")
    return "\n".join(lines)


IMPORT = "raysts data import faq.csv --as pairs --columns sentence1=question,sentence2=asked,score=rating --data DATA"
PREPARE = "raysts data prepare wikipedia --data DATA --sample 1000000"
COMMANDS = (
    Command(
        "data fetch", fetch, _fetch_text, "raysts data fetch --data DATA --tables sts/stsb_dev,sts/sts12", opt.DATA
    ),
    Command("data prepare", prepare, _prepare_text, PREPARE, opt.DATA, ("corpus",)),
    Command("data import", import_table, _import_text, IMPORT, opt.DATA, ("file",)),
    Command("data check", check, _check_text, "raysts data check --data DATA", opt.DATA),
)

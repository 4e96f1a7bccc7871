"""What README, CONTRIBUTING and docs/ tell people to type and where they say things are, and that the site builds."""

from __future__ import annotations

import ast
import csv
import inspect
import itertools
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import run_commands

import raysts
from raysts.commands import parser, study
from raysts.commands.distill import student_search
from raysts.commands.options import RunOptions
from raysts.data.corpora import Corpus
from raysts.data.fetch import sources

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "cluster.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="needs a checkout")
TEXT, README, TREE = (
    path.read_text(encoding="utf-8") if path.exists() else ""
    for path in (PAGE, ROOT / "README.md", ROOT / "CONTRIBUTING.md")
)


def blocks(text: str, language: str = "bash") -> list[str]:
    """Return the blocks of a page in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


BASH = [line for block in blocks(TEXT) for line in block.splitlines()]


def test_ray_commands_of_the_page_of_clusters_exist_and_take_these_options() -> None:
    import click
    from ray.scripts.scripts import cli as ray

    assert len(blocks(TEXT)[0].splitlines()) == 10
    for line in (line for line in BASH if line.startswith("ray ")):
        words, _, entry = line.partition(" -- ")
        group: click.Command = ray
        arguments = shlex.split(words)[1:]
        while isinstance(group, click.Group):
            command = group.get_command(click.Context(group), arguments.pop(0))
            assert command is not None, line
            group = command
        group.make_context("ray", [*arguments, *(["--", *shlex.split(entry)] if entry else [])])
        if entry:
            python, script, *rest = shlex.split(entry)
            assert python == "python" and (ROOT / script).exists()
            parser.parse(["run", *rest])


def test_the_page_of_clusters_names_files_that_exist_and_messages_that_are_printed() -> None:
    others = [line for line in BASH if not line.startswith("ray ")]
    assert {line.split()[0] for line in others} == {"aws", "export", "kubectl"}
    for path in re.findall(r"(?:jobs|docs)/[\w.-]+\w|cluster[\w-]*\.yaml", TEXT):
        assert (ROOT / path).exists(), path
    ours = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "raysts").rglob("*.py"))
    ours += re.sub(r"\{[^{}]*\}", "N", ours)
    for message in (
        "waiting for the cluster to have room for", "no node can hold such a worker", "no Ray cluster answers there",
        "its processes died", "one driver at a time", "auto_map",
    ):  # fmt: skip
        assert message in TEXT and message in ours, message


PAGES = [path for path in sorted((ROOT / "docs").glob("*.md")) if path != PAGE] + [ROOT / "README.md"]
OTHERS = {"README": {"python", "ray", "pytest", "git", "export", "cd"}}
"""Programs besides raysts and pip that a page calls."""


def commands(page: Path) -> list[list[str]]:
    """Return the commands in the blocks of a page, in words."""
    text = "".join(blocks(page.read_text(encoding="utf-8"))).replace("\\\n", " ")
    lines = [part for line in text.splitlines() for part in re.split(" && | ; ", line)]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def test_the_commands_of_every_page_parse() -> None:
    for page in PAGES:
        for program, *arguments in commands(page):
            assert program in {"raysts", "pip", *OTHERS.get(page.stem, ())}
            if program == "raysts":
                _, bound, _ = parser.parse(arguments)
                for wanted in bound.get("tables") or ():
                    assert any(name == wanted or name.startswith(f"{wanted}/") for name in sources()), wanted
        text = page.read_text(encoding="utf-8")
        for words in re.findall(r"`raysts ([a-z][^`]*)`", text):  # in a sentence, perhaps without its arguments
            assert words.split()[0] in {name.split()[0] for name in parser.COMMANDS}, words


def test_the_links_of_a_page_lead_somewhere() -> None:
    for page in (*PAGES, PAGE, ROOT / "CONTRIBUTING.md"):
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            assert "://" in link or (page.parent / link).exists(), (page.name, link)


def test_the_site_builds(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert built.returncode == 0, built.stderr
    pages = {path.parent.name for path in (tmp_path / "site").rglob("index.html")}
    assert {path.stem for path in PAGES if path.stem not in ("index", "README")} <= pages
    for name in ("llms.txt", "SKILL.md"):
        text = (tmp_path / "site" / name).read_text(encoding="utf-8")
        assert all(f"- `raysts {command}`: " in text for command in parser.COMMANDS)
    linked = re.findall(r"\]\((.*?)\)", (tmp_path / "site" / "llms.txt").read_text(encoding="utf-8"))
    assert {path.name for path in PAGES if path.stem != "README"} <= {*linked} and all(
        (tmp_path / "site" / name).is_file() for name in linked
    )
    for path in (tmp_path / "site").rglob("*.html"):
        assert not re.findall(r'(?:src|href)="https?://(?:fonts|cdn|unpkg)', path.read_text(encoding="utf-8"))


TUTORIALS = ("first-hour", "documents", "search")
FEW = {
    "run": ["--set", "train.max_steps=2", "--set", "evaluation.resamples=4", "--address", "none"],
    "tune": ["--set", "train.max_steps=2", "--set", "train.keep=last", "--address", "none"],
    "embed": ["--address", "none"], "compare": ["--resamples", "4"], "evaluate": ["--resamples", "4"],
}  # fmt: skip
FEW["distill"] = FEW["run"]
"""What a tutorial's commands take in addition, to end in seconds."""


@pytest.fixture
def user_folder(tmp_path: Path, small_corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the tutorials speak of, in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAYSTS_DATA", raising=False)
    texts = small_corpus.read("wikipedia/sentences").column("sentence").to_pylist()[:300]
    pairs = small_corpus.read("sts/stsb_test").select(["sentence1", "sentence2", "score"]).to_pylist()[:60]
    Path("help").mkdir()
    tables = {
        "docs.csv": [{"body": text, "text": text} for text in texts], "dev.csv": pairs[40:], "faq.csv": pairs[:40],
        "help/corpus.csv": [{"doc_id": f"d{i}", "text": text} for i, text in enumerate(texts[:30])],
        "help/queries.csv": [{"query_id": f"q{i}", "text": text[:20]} for i, text in enumerate(texts[:9])],
        "help/qrels.csv": [{"query_id": f"q{i}", "doc_id": f"d{i}", "score": 1} for i in range(9)],
    }  # fmt: skip
    for name, rows in tables.items():
        run_commands.write_csv(Path(name), rows)
    return tmp_path


@pytest.mark.parametrize("page", TUTORIALS)
def test_a_tutorial_runs(page: str, user_folder: Path, tiny_backbone: Path) -> None:
    """Every command and every Python block of the page in its order, on the files that it speaks of, with few steps."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").replace("\\\n", " ")
    for language, block in re.findall(r"^```(bash|python)\n(.*?)^```$", text, re.M | re.S):
        if language == "python":
            exec(compile(block, page, "exec"), {})
        for line in block.splitlines() if language == "bash" and "pip" not in block else ():
            words = [re.sub("ENCODER|TEACHER_[AB]", str(tiny_backbone), word) for word in shlex.split(line)[1:]]
            words = ["seeds=1" if word == "seeds=2" else word for word in words]
            outcome = run_commands.raysts(*words, *FEW.get(words[0], []))
            assert outcome.code == 0, (words, outcome.err)
    if page == "first-hour":
        (user_folder / "my-encoder" / "config.json").read_text()
        record = json.loads((user_folder / "raysts-storage" / "pipelines" / "run.json").read_text())
        assert [step["kind"] for step in record["steps"]].count("train") == 5, "four members and a student"
        maps = {path.parent.name for path in user_folder.rglob("map.html")}
        assert maps == {"run", "distilled"}, "30 of 300 texts are held out"


ELSEWHERE = ("data fetch", "data prepare", "export MODEL --to encoder-hub", "distill --from-study")
"""Beginnings of commands that need the internet, or a study: tests of their own run them."""
ANY_MODEL = (
    "ENCODER|STUDENT|TEACHER(?:_[AB])?|MODEL|OTHER|[ABCS]|my-run|bert-base-uncased|sentence-transformers/[a-zA-Z0-9-]+"
)


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem not in TUTORIALS], ids=lambda page: page.stem)
def test_every_other_command_does_what_it_says(
    page: Path, user_folder: Path, few_world: Path, small_world: Path, tiny_backbone: Path
) -> None:
    """On the files that it speaks of. What trains is planned, which opens its models, data and options."""
    shutil.copytree(few_world, "DATA")
    shutil.copy(small_world / "nli" / "train.parquet", "DATA/nli")  # triplets for a batch are in many rows
    for path in Path("DATA/senteval").glob("*.parquet"):
        if path.stem != "cr":  # one small set is enough
            path.unlink()
    write_other_files(tiny_backbone)
    smaller = {"backbone_layers=3": "backbone_layers=1", "256": "16"}
    for line in (words[1:] for words in commands(page) if words[0] == "raysts"):
        if " ".join(line).startswith(ELSEWHERE):
            continue
        # A probe trains: test_price.py has one.
        words = [smaller.get(word, word) for word in line if (line[0], word) != ("plan", "--probe")]
        if words[0] in ("evaluate", "compare", "embed", "export"):
            words[1] = "MODEL"  # the run that a line above would have made
        words = [re.sub(rf"(?<![\w/.-])({ANY_MODEL})(?![\w/.-])", str(tiny_backbone), word) for word in words]
        if words[0] == "tune":
            _, options, _ = parser.parse(words)
            search, models, settings = options.pop("search"), options.pop("models", ()), options.pop("overrides", {})
            opened = RunOptions.from_arguments(**options)
            wanted = student_search(models, settings, opened) if search == "distill" else search
            study.plan_study(wanted, settings, opened)
            continue
        if words[0] in ("run", "distill"):
            words = ["plan", *words[words[0] == "run" :]]
            words = [word for before, word in zip(["", *words], words, strict=False) if "--name" not in (before, word)]
        if words[0] == "claims" and "--plan" not in words:
            words.append("--plan")
        if words[:2] == ["data", "import"]:
            words[words.index("DATA")] = "MINE"  # the world has such tables
        if words[0] == "init":
            Path("run.yaml").unlink()
            words += [] if "--backbone" in words else ["--backbone", str(tiny_backbone)]
        outcome = run_commands.raysts(*words, *FEW.get(words[0], []))
        assert outcome.code == 0, (words, outcome.err)


def write_other_files(tiny_backbone: Path) -> None:
    """Write what pages besides the tutorials speak of into the current folder."""
    assert run_commands.raysts("init", "run.yaml", "--backbone", tiny_backbone).code == 0
    with Path("docs.csv").open(newline="") as file:
        texts = [row["body"] for row in csv.DictReader(file)]
    pairs = [*itertools.pairwise(texts)]
    for name in ("docs", "documents"):
        pq.write_table(pa.table({"text": texts}), f"{name}.parquet")
    pq.write_table(pa.table({"body": texts, "url": [f"u{number}" for number in range(len(texts))]}), "pages.parquet")
    for path in Path("help").glob("*.csv"):
        rows = [*csv.DictReader(path.read_text().splitlines())]
        Path("DATA/retrieval/NAME").mkdir(parents=True, exist_ok=True)
        columns = {name: [int(row[name]) if name == "score" else row[name] for row in rows] for name in rows[0]}
        pq.write_table(pa.table(columns), f"DATA/retrieval/NAME/{path.stem}.parquet")
    Path("docs.txt").write_text("\n".join(texts))
    Path("articles.txt").write_text("\n".join(texts[:20]))
    scored = Path("faq.csv").read_text()
    Path("pairs.csv").write_text(scored)
    Path("questions.csv").write_text(scored.replace("sentence1,sentence2,score", "question,asked,rating"))
    Path("clicks.tsv").write_text("query\tclicked\n" + "".join(f"{query}\t{clicked}\n" for query, clicked in pairs))
    lines = [{"q": question, "a": answer, "gold": "yes"} for question, answer in pairs]
    Path("inference.jsonl").write_text("\n".join(map(json.dumps, lines)))


@pytest.mark.parametrize("steps", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_the_notebook_is_current(steps: int, tmp_path: Path, few_world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code cells in one process, without a kernel. Their values are of the kind that is stored. With fewer steps than it
    has, on a smaller world, another model is the best."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAYSTS_DATA", raising=False)
    if steps == 2:
        monkeypatch.setattr("raysts.data.corpora.world_path", lambda: few_world)
    notebook = json.loads((ROOT / "examples" / "first_hour.ipynb").read_text(encoding="utf-8"))
    names: dict[str, object] = {}
    shown = []
    for cell in (cell for cell in notebook["cells"] if cell["cell_type"] == "code"):
        source = "".join(cell["source"])
        if steps == 2:
            source = source.replace('"train.max_steps": 20', '"train.max_steps": 2, "data.sample": 200')
        *body, last = ast.parse(source).body
        assert isinstance(last, ast.Expr), "a cell ends with what it shows"
        exec(compile(ast.Module(body, []), "notebook", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "notebook", "eval"), names)
        (stored,) = [output for output in cell["outputs"] if output["output_type"] == "execute_result"]
        assert ("text/html" in stored["data"]) == hasattr(value, "_repr_html_"), repr(value)
        shown.append(("".join(stored["data"]["text/plain"]), repr(value)))
    varies = r"[+-]?\d+\.\d+" + (r"|between the [a-z ]+ and|layers=\d|\b1[56]\b" if steps == 2 else "")
    for stored, here in (shown[0], shown[2], shown[4]):  # verdict, model and status; processors round differently
        assert re.sub(varies, "N", stored.splitlines()[0]) == re.sub(varies, "N", here.splitlines()[0])
    assert [text.count("[") for text in shown[3]] == [4, 4]


# -- README, the tree, jobs ------------------------------------------------------------------------------------------------


def test_the_readme_is_short_and_names_what_exists_and_what_ci_runs() -> None:
    assert len(README.splitlines()) <= 120 and "docs/cluster.md" in README
    (picture,) = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README)
    assert ElementTree.parse(ROOT / picture).getroot().tag.endswith("svg")
    shown = commands(ROOT / "README.md")
    typed = {words[1] for words in shown if words[0] == "raysts"}
    assert {"run", "plan", "evaluate", "embed", "export", "data"} <= typed
    for command in (["pytest"], ["raysts", "run", "quickstart"]):
        assert command in [words[: len(command)] for words in shown]
        assert " ".join(command) in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    known = {names for name in parser.COMMANDS for option in run_commands.options_of(name) for names in option.names}
    used = {*re.findall(r"`(--[a-z][a-z-]*)", README)}
    assert used and used <= {*known, "--working-dir"}
    for path in re.findall(r"`((?:benchmarks|jobs|tests|raysts|\.ci)/[\w./-]+)`", README):
        assert (ROOT / path).exists(), path


def test_python_calls_functions_that_exist_with_arguments_they_take() -> None:
    for text in blocks(README, "python"):
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        ours = [call for call in calls if ast.unparse(call.func).startswith("raysts.")]
        assert ours
        for call in ours:
            function = getattr(raysts, ast.unparse(call.func).removeprefix("raysts."))
            keywords = {str(keyword.arg): None for keyword in call.keywords}
            inspect.signature(function).bind(*map(ast.unparse, call.args), **keywords)


def test_the_tree_of_contributing_is_that_of_the_package() -> None:
    """It lists what exists, and every module and package at the top of raysts."""
    text = next(block for block in blocks(TREE, r"\w*") if block.startswith("raysts/"))
    found: list[Path] = []
    for line in text.splitlines():
        for word in itertools.takewhile(lambda word: re.fullmatch(r"[\w.]+(/|\.py)", word), line.split()):
            found.append(Path("raysts", word) if line.startswith("  ") else Path(word))
    assert [str(path) for path in found if not (ROOT / path).exists()] == []
    files = [path for path in (ROOT / "raysts").iterdir() if not path.name.startswith("_")]
    there = {path.name for path in files if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert there <= {path.name for path in found}


@pytest.mark.parametrize("path", sorted((ROOT / "jobs").glob("*.py")), ids=lambda path: path.name)
def test_a_job_is_its_command(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that its call of ``main`` names, and in its example."""
    source = path.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 40
    (words,) = re.findall(r'main\(\[((?:"[\w-]+", )+)\*sys\.argv\[1:\]\]\)', source)
    command = re.findall(r"[\w-]+", words)
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    with pytest.raises(SystemExit, match="^0$"):
        runpy.run_path(str(path), run_name="__main__")
    named = command[:1] if command[0] == "tune" else command[:2]  # which search is an argument
    assert f"Usage: raysts {' '.join(named)}" in capsys.readouterr().out
    example = re.search(r"^ray job submit .*? -- python (jobs/\S+) (.*)$", source, re.MULTILINE)
    assert example and (ROOT / example[1]).samefile(path)
    parser.parse([*command, *shlex.split(example[2])])

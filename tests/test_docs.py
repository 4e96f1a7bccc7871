"""What the pages of docs/ tell people to type, which messages they will see, and that the site builds."""

from __future__ import annotations

import ast
import csv
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import run_commands

from raysts.commands import parser
from raysts.data.corpora import Corpus

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "cluster.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="needs a checkout")
TEXT = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
BASH = [line for block in re.findall(r"^```bash\n(.*?)^```$", TEXT, re.M | re.S) for line in block.splitlines()]


def test_the_way_to_a_cluster_has_ten_lines() -> None:
    first = re.findall(r"^```bash\n(.*?)^```$", TEXT, re.M | re.S)[0]
    assert len(first.splitlines()) == 10


@pytest.mark.parametrize("line", [line for line in BASH if line.startswith("ray ")])
def test_a_ray_command_exists_and_takes_these_options(line: str) -> None:
    import click
    from ray.scripts.scripts import cli as ray

    words, _, entry = line.partition(" -- ")
    group: click.Command = ray
    arguments = shlex.split(words)[1:]
    while isinstance(group, click.Group):
        command = group.get_command(click.Context(group), arguments.pop(0))
        assert command is not None, line
        group = command
    for word in arguments:
        if word.endswith(".yaml"):
            assert (ROOT / word).exists()
    group.make_context("ray", [*arguments, *(["--", *shlex.split(entry)] if entry else [])])
    if entry:
        python, script, *rest = shlex.split(entry)
        assert python == "python" and (ROOT / script).exists()
        parser.parse(["run", *rest])


def test_other_lines_name_files_that_exist() -> None:
    others = [line for line in BASH if not line.startswith("ray ")]
    assert {line.split()[0] for line in others} == {"aws", "export", "kubectl"}
    for path in re.findall(r"(?:jobs|docs)/[\w.-]+\w|cluster[\w-]*\.yaml", TEXT):
        assert (ROOT / path).exists(), path


PAGES = [path for path in sorted((ROOT / "docs").glob("*.md")) if path != PAGE]


def commands(page: Path) -> list[list[str]]:
    """Return the commands in the blocks of a page, in words."""
    text = "".join(re.findall(r"^```bash\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S))
    lines = [part for line in text.replace("\\\n", " ").splitlines() for part in line.split(" && ")]
    return [shlex.split(line) for line in lines]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_parse(page: Path) -> None:
    for program, *arguments in commands(page):
        assert program in ("raysts", "pip")
        if program == "raysts":
            parser.parse(arguments)
    text = page.read_text(encoding="utf-8")
    for words in re.findall(r"`raysts ([a-z][^`]*)`", text):  # in a sentence, perhaps without its arguments
        assert words.split()[0] in {name.split()[0] for name in parser.COMMANDS}, words


@pytest.mark.parametrize(
    "page", [*PAGES, PAGE, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.stem
)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert "://" in link or (page.parent / link).exists(), link


def test_the_site_builds(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert built.returncode == 0, built.stderr
    pages = {path.parent.name for path in (tmp_path / "site").rglob("index.html")}
    assert {path.stem for path in PAGES if path.stem != "index"} <= pages
    for name in ("llms.txt", "SKILL.md"):
        text = (tmp_path / "site" / name).read_text(encoding="utf-8")
        assert all(f"- `raysts {command}`: " in text for command in parser.COMMANDS)
    linked = re.findall(r"\]\((.*?)\)", (tmp_path / "site" / "llms.txt").read_text(encoding="utf-8"))
    assert {path.name for path in PAGES} <= {*linked} and all((tmp_path / "site" / name).is_file() for name in linked)
    for path in (tmp_path / "site").rglob("*.html"):
        assert not re.findall(r'(?:src|href)="https?://(?:fonts|cdn|unpkg)', path.read_text(encoding="utf-8"))


FEW = {
    "run": ["--set", "train.max_steps=2", "--set", "evaluation.resamples=4", "--address", "none"],
    "tune": ["--set", "train.max_steps=2", "--set", "train.keep=last", "--address", "none"],
    "embed": ["--address", "none"],
    "compare": ["--resamples", "4"],
    "evaluate": ["--resamples", "4"],
}
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
        "docs.csv": [{"body": text} for text in texts],
        "dev.csv": pairs[40:],
        "faq.csv": pairs[:40],
        "help/corpus.csv": [{"doc_id": f"d{i}", "text": text} for i, text in enumerate(texts[:30])],
        "help/queries.csv": [{"query_id": f"q{i}", "text": text[:20]} for i, text in enumerate(texts[:9])],
        "help/qrels.csv": [{"query_id": f"q{i}", "doc_id": f"d{i}", "score": 1} for i in range(9)],
    }
    for name, rows in tables.items():
        with Path(name).open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return tmp_path


@pytest.mark.parametrize("page", ["first-hour", "documents", "search"])
def test_a_tutorial_runs(page: str, user_folder: Path, tiny_backbone: Path) -> None:
    """Every command and every Python block of the page in its order, on the files that it speaks of, with few steps."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").replace("\\\n", " ")
    for language, block in re.findall(r"^```(bash|python)\n(.*?)^```$", text, re.M | re.S):
        if language == "python":
            exec(compile(block, page, "exec"), {})
        for line in block.splitlines() if language == "bash" and "pip" not in block else ():
            words = [re.sub("ENCODER|TEACHER_[AB]", str(tiny_backbone), word) for word in shlex.split(line)[1:]]
            outcome = run_commands.raysts(*words, *FEW.get(words[0], []))
            assert outcome.code == 0, (words, outcome.err)
    if page == "first-hour":
        (user_folder / "my-encoder" / "config.json").read_text()
        record = json.loads((user_folder / "raysts-storage" / "pipelines" / "run.json").read_text())
        assert [step["kind"] for step in record["steps"]].count("train") == 5, "four members and a student"


def test_the_messages_of_the_table_are_in_the_code() -> None:
    ours = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "raysts").rglob("*.py"))
    ours += re.sub(r"\{[^{}]*\}", "N", ours)
    for message in (
        "waiting for the cluster to have room for", "no node can hold such a worker", "no Ray cluster answers there",
        "its processes died", "one driver at a time", "auto_map",
    ):  # fmt: skip
        assert message in TEXT and message in ours, message


def test_the_readme_leads_there() -> None:
    assert "docs/cluster.md" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_notebook_runs_and_shows_what_it_shows_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code cells in one process, without a kernel. Their values are of the kind that is stored, the vectors equal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAYSTS_DATA", raising=False)
    notebook = json.loads((ROOT / "examples" / "first_hour.ipynb").read_text(encoding="utf-8"))
    names: dict[str, object] = {}
    shown = []
    for cell in (cell for cell in notebook["cells"] if cell["cell_type"] == "code"):
        *body, last = ast.parse("".join(cell["source"])).body
        assert isinstance(last, ast.Expr), "a cell ends with what it shows"
        exec(compile(ast.Module(body, []), "notebook", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "notebook", "eval"), names)
        (stored,) = [output for output in cell["outputs"] if output["output_type"] == "execute_result"]
        assert ("text/html" in stored["data"]) == hasattr(value, "_repr_html_"), repr(value)
        shown.append(("".join(stored["data"]["text/plain"]), repr(value)))
    (result, now), *_, (model, model_now), (vectors, vectors_now), (status, status_now) = shown
    first, first_now = (re.sub(r"[+-]?\d+\.\d+", "N", text.splitlines()[0]) for text in (result, now))
    assert first == first_now, "processors round differently, so the numbers differ"
    assert model == model_now and status == status_now
    assert vectors.count("[") == vectors_now.count("[") == 4

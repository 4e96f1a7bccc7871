"""Text and judges of a user's own, and nothing else: from a plain file to a delivered model and its page."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.stats
import small_runs
import torch
from run_commands import plan_of, write_csv
from run_commands import raysts as command
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel

import raysts
from raysts.commands.follow import report
from raysts.data.corpora import Corpus
from raysts.data.user import TEXT, UserData, open_text
from raysts.data.windows import Windows
from raysts.errors import InputError
from raysts.models.encoder import Encoder
from raysts.models.prompts import Prompts
from raysts.pipeline.inputs import use_user_text
from raysts.pipeline.plan import describe
from raysts.pipeline.verdict import note_last_step, note_rising
from raysts.recipes import names
from raysts.training.metrics import read_metrics

TESTED = {"mine": "pairs.csv", "also": "pairs.csv", "chosen-by": "turned.tsv", "leaky": "leaky.csv"}
STEPS = {"train.max_steps": 3, "train.eval_every": 3, "train.max_length": 24, "evaluation.resamples": 4}
OF_SED = {"target": "similarity", "train.keep": "best", "train.eval_every": 1, "train.checkpoint_every": 1}

Job = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, small_corpus: Corpus) -> Path:
    """docs.csv, pairs.csv, dev.csv and the encoders A and B."""
    folder = tmp_path_factory.mktemp("own")
    texts = small_corpus.read("wikipedia/sentences").column("sentence").to_pylist()[:600]
    write_csv(folder / "docs.csv", [{"id": i, "text": text} for i, text in enumerate([*texts, "", texts[0]])])
    pairs = small_corpus.read("sts/stsb_test").select(["sentence1", "sentence2", "score"]).to_pylist()
    for name, rows in (("pairs", pairs[:40]), ("dev", pairs[40:80])):
        write_csv(folder / f"{name}.csv", rows)
    turned = [(row["sentence2"].upper(), row["sentence1"], row["score"]) for row in [*pairs[40:80], pairs[0]]]
    with (folder / "turned.tsv").open("w") as file:
        file.writelines("\t".join(map(str, row)) + "\n" for row in [("sentence1", "sentence2", "score"), *turned])
    leaky = [{"sentence1": texts[i], "sentence2": texts[i + 1], "score": i % 5} for i in range(30)]
    write_csv(folder / "leaky.csv", leaky)
    for seed, name in enumerate("AB"):
        small_runs.write_backbone(folder / name, "bert", seed=seed)
    return folder


def test_own_dev_selects_and_own_test_reports(own: Path, tmp_path: Path) -> None:
    result = raysts.run(
        "simcse-unsup-sed", {"backbone": str(own / "A"), "members": 2, **STEPS}, text=own / "docs.csv", column="text",
        dev={"mine-dev": own / "dev.csv"}, test={name: own / file for name, file in TESTED.items()}, storage=tmp_path,
        address="none",
    )  # fmt: skip
    assert {(row["dataset"], row["split"]) for row in result["results"]} == {(name, "test") for name in TESTED}
    assert {model["role"] for model in result["models"]} == {"backbone", "member", "ensemble", "student"}
    card, page = (Path(result["model"]) / "README.md").read_text(), Path(result["report"]).read_text()
    assert "Size and speed, measured on this machine" in page and 'id="cost-t">Score against cost</title>' in page
    tested_on_dev = "Warning: 40 of the 41 rows of chosen-by are also in the development set mine-dev. Scores on them"
    assert f"{tested_on_dev} are not of unseen rows." in result["notes"]
    members = [row for row in result["results"] if row["role"] == "member"]
    assert {row["selected_by"] for row in members} == {"mine-dev"} and all(row["ci_low"] is not None for row in members)
    # The first that is given, whatever it is called.
    assert result["delivered"]["on"] == "mine" and result["delivered"]["beats_input"] is not None
    assert result["notes"][0].startswith("text docs: 601 texts; 1 empty rows left out; 1 rows repeat")
    entries = {entry["task"]: entry for entry in result["contamination"]}
    assert entries.keys() == TESTED.keys() and all(entry["training_tables"] == ["docs"] for entry in entries.values())
    assert (entries["leaky"]["sentence_rows"], entries["leaky"]["trained_rows"]) == (30, 0)
    assert all(entry["unknown"] for entry in entries.values()), "what the encoder was trained on is not on record"
    assert "| sed | `docs` | 601 |" in card and "mine test" in card and "wikipedia" not in card.split("```yaml")[0]
    assert tested_on_dev in card
    assert all(text in page for text in (tested_on_dev, "Labels of mine-dev chose", "tokenise docs"))
    record = json.loads((tmp_path / "pipelines" / "simcse-unsup-sed.json").read_text())
    assert tmp_path / record["model"] == Path(result["model"]) and not Path(record["model"]).is_absolute()
    assert record["maps"].keys() == {"member", "student"}
    assert all((tmp_path / map_).is_file() for map_ in record["maps"].values())
    rates = [json.loads(path.read_text()) for path in (tmp_path / "rates").glob("*.json")]
    taken = [*record["seconds"].values(), *(row["seconds"] for rate in rates for row in rate["observed"])]
    assert len(taken) > 8 and max(taken) < 100 < 10 * min(cost["texts_per_second"] for cost in result["models"])
    assert record["data"] is None and record["own"]["test"] == {name: str(own / file) for name, file in TESTED.items()}
    with pytest.raises(InputError, match="table 'nli/train' is missing.*ct-sed or simcse-unsup-sed"):
        raysts.run("nli", {"backbone": str(own / "A")}, text=own / "docs.csv", column="text", storage=tmp_path)
    with pytest.raises(InputError, match="--test stsb=.*public task"):
        raysts.run("ct", test={"stsb": own / "pairs.csv"}, storage=tmp_path)


def distilled(own: Path, storage: Path, name: str | None = None, **overrides: Any) -> dict[str, Any]:
    places = {"text": own / "docs.csv", "column": "text", "storage": storage, "address": "none", "name": name}
    teachers = [str(own / "A"), str(own / "B")]
    return raysts.distill(teachers, {"backbone": teachers[0], **STEPS, **overrides}, **places)


class Passes:
    """Counts texts on their way through encoders by the file that sends them, and may end the process at one of them."""

    def __init__(self, patch: pytest.MonkeyPatch, last: tuple[str, int] | None = None) -> None:
        self.texts: Counter[str] = Counter()
        self.passes: Counter[str] = Counter()
        self.last, self.pack = last, Encoder._pack
        patch.setattr(Encoder, "_pack", lambda encoder, *batch: self._count(encoder, *batch))

    def _count(self, encoder: Encoder, ids: torch.Tensor, lengths: torch.Tensor, known: Any) -> Any:
        paths = (Path(frame.filename) for frame in inspect.stack(0))
        where = next(path.stem for path in paths if path.parent.name in ("steps", "training"))
        self.texts[where] += len(lengths)
        self.passes[where] += 1
        if self.last and self.passes[self.last[0]] == self.last[1]:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.pack(encoder, ids, lengths, known)


@pytest.fixture(scope="module")
def job(own: Path) -> Iterator[Job]:
    """Distils into a storage from ``docs.csv`` and two encoders, in windows of 100 texts."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("raysts.data.windows", "raysts.pipeline.inputs"):
            patch.setattr(f"{module}.WINDOW", 100)
        yield partial(distilled, own, **{f"sed.{key}": value for key, value in OF_SED.items()})


@pytest.fixture(scope="module")
def whole(job: Job, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Passes]:
    """What it gives undisturbed."""
    with pytest.MonkeyPatch.context() as patch:
        passes = Passes(patch)
        return job(tmp_path_factory.mktemp("whole")), passes


def test_two_encoders_and_a_text_give_a_student_and_its_page(own: Path, whole: tuple[dict[str, Any], Passes]) -> None:
    result, passes = whole
    rows = {(row["role"], row["layers"]): row for row in result["results"] if row["metric"] == "spearman"}
    assert {row["dataset"] for row in rows.values()} == {"agreement"}
    student, told = rows["student", "1"], result["delivered"]
    assert 0 < student["value"] < 1 and student["ci_low"] < student["value"] < student["ci_high"]
    of_student = {"what": "student", "beats_input": None, "on": None, "agreement": student["value"]}
    assert of_student.items() <= told.items() and "judge" not in told, "more than one judges"
    card, page = (Path(result["model"]) / "README.md").read_text(), Path(result["report"]).read_text()
    for text in (card, page):
        assert "No agreement shows that it is better than the starting model" in text
    assert "No labels chose the checkpoint: agreement with the ensemble" in card and "| sed | `docs` |" in card
    assert "a student distilled from the cosines of 2 teachers" in card and "\nlanguage:" not in card
    for text in ("There are no scored pairs to test on.", "Agreement with the ensemble, without labels, chose"):
        assert text in page

    lines = read_metrics(Path(result["model"]).parent / "metrics.jsonl")
    scores = [line["dev"] for line in lines if line.get("dev") is not None]
    rising = [note for note in result["notes"] if "still gets better" in note]
    assert len(scores) == STEPS["train.max_steps"] and rising == note_rising(scores, "agreement")

    again = report("distilled", storage=result["storage"])["reports"]
    assert again == [result["report"]] and Path(*again).read_text().count("docs") == page.count("docs")

    text = open_text(own / "docs.csv", "text").holding_out()
    (written,) = Path(result["storage"], "tables").glob("[!.]*.parquet")
    assert text.held_count and not {*text.held_out} & {*pq.read_table(written).column("sentence").to_pylist()}
    # Each teacher reads each text once to teach; held-out texts it reads to agree, and as every model to be measured.
    assert (passes.texts["vectors"], passes.texts["agreement"]) == (2 * text.rows, (2 + 4) * text.held_count)
    (path,) = Path(result["storage"], "agreements").glob("*.parquet")
    pairs = pq.read_table(path, filters=[("split", "=", "test")])
    models = [raysts.load(own / name) for name in "AB"]
    sides = [pairs[f"sentence{side}"].to_pylist() for side in (1, 2)]
    one, two = (np.stack([model.encode(side, normalize=True) for model in models]) for side in sides)
    np.testing.assert_allclose((one * two).sum(2).mean(0), pairs["score"], atol=1e-4)
    expected = scipy.stats.spearmanr((one * two).sum(2)[1], pairs["score"]).statistic
    of_members = {"role": "member", "layers": "1", "metric": "spearman"}
    measured = [row["value"] for row in result["results"] if of_members.items() <= row.items()]
    assert measured[1] == pytest.approx(expected, abs=1e-5)


def test_a_distillation_is_planned_alike(own: Path, whole: tuple[dict[str, Any], Passes], tmp_path: Path) -> None:
    """The steps are those that were run, and all of them are done."""
    (result, _), teachers = whole, [str(own / "A"), str(own / "B")]
    settings = {"backbone": teachers[0], **STEPS, **{f"sed.{key}": value for key, value in OF_SED.items()}}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    places = {"text": str(own / "docs.csv"), "column": "text", "storage": result["storage"]}
    file = tmp_path / "student.yaml"
    file.write_text(json.dumps({"base": "distill", "teachers": teachers, **settings, **places}))
    at = [word for key, place in places.items() for word in (f"--{key}", place)]
    by_command = command("plan", "distill", *teachers, *words, *at, "--json")
    nodes = json.loads(by_command.out)["nodes"]
    assert {node["status"] for node in nodes} == {"done"}
    for by_python in (
        raysts.plan("distill", {**settings, "teachers": teachers}, **places),
        raysts.plan("distill", settings, models=teachers, **places),
        raysts.plan(file),
    ):
        assert by_python["nodes"] == nodes
    combined = {"backbone": teachers[0], "teachers": teachers, "combine": "ensemble"}
    assert plan_of("distill", combined, **places).pipeline.name == "ensemble"  # as the command calls it
    shown = command("show", file)
    assert shown.code == 0 and f"- {teachers[1]}" in shown.out
    for wrong, why in (
        (["distill"], "needs teachers"),
        (["nli-sed", teachers[0]], "only 'plan distill' takes teachers"),
        (["nli-sed", "--keep-index", teachers[0]], "Remove --keep-index"),
        (["distill", "--keep-index", teachers[0], *words, *at], "the student learns the teacher's own vectors"),
    ):
        refused = command("plan", *wrong)
        assert refused.code == 2 and why in refused.err


def test_a_student_that_still_gets_better_says_so() -> None:
    (note,) = note_rising([0.5, 0.7, 0.705], "faq")
    assert note.startswith("The student still gets better at its end: 70.00, then 70.50 on faq.")
    for scores in ([], [0.7], [0.5, 0.7, 0.704], [0.8, 0.7, 0.75]):
        assert note_rising(scores, "faq") == []


def test_the_best_by_agreement_is_no_claim(job: Job, whole: tuple[dict[str, Any], Passes]) -> None:
    result = job(Path(whole[0]["storage"]), name="best", deliver="best")
    told = result["delivered"]
    assert (told["by"], told["beats_input"], told["on"]) == ("agreement", None, None) and 0 < told["agreement"] <= 1
    assert "No agreement shows" in Path(result["report"]).read_text()


def test_recipes_read_the_text_and_nothing_chooses_without_labels(own: Path, small_corpus: Corpus) -> None:
    text = UserData.of(text=own / "docs.csv", column="text")
    alone, beside = Corpus(None, user=text), Corpus(small_corpus.root, user=text)
    unsupervised = use_user_text(names.pipeline("simcse-unsup-sed"), alone)
    assert (unsupervised.stages["simcse-unsup"].train.keep, unsupervised.sed.train.keep) == ("last", "last")
    assert note_last_step(unsupervised, alone)[0].startswith("simcse-unsup: no development set is there")
    with_dev = use_user_text(names.pipeline("simcse-unsup-sed"), beside)
    assert with_dev.stages["simcse-unsup"].train.keep == "best" and not note_last_step(with_dev, beside)
    for name, table in (("latte", "nli/sentences"), ("flow", "targets")):
        (recipe,) = names.pipeline(name).stages.values()
        assert recipe.table == table
        (fitted,) = use_user_text(names.pipeline(name), alone).stages.values()
        assert fitted.table == TEXT  # where nothing else is there; what a data folder has is read as ever
        assert use_user_text(names.pipeline(name), beside).stages[name].table == table
    assert not note_last_step(use_user_text(names.pipeline("ct"), alone), alone)


@pytest.mark.whole
def test_which_of_several_models_has_collapsed(own: Path, tmp_path: Path) -> None:
    zero = Path(shutil.copytree(own / "B", tmp_path / "zero"))
    weights = {name: 0 * value for name, value in load_file(zero / "model.safetensors").items()}
    save_file(weights, zero / "model.safetensors", metadata={"format": "pt"})
    places = ["--test", f"mine={own / 'pairs.csv'}", "--storage", tmp_path / "storage"]
    ended = command("compare", own / "A", zero, *places)
    said = ended.err.splitlines()[-1]
    assert ended.code == 3 and said.startswith("raysts: B, mine: all ") and "lower learning rate" in said


@pytest.mark.whole
def test_a_student_of_some_layers_of_its_teacher(own: Path, tmp_path: Path) -> None:
    layers = {"backbone": str(own / "A"), "backbone_layers": 1}
    given = {"storage": tmp_path, "text": own / "docs.csv", "column": "text"}
    result = raysts.distill([str(own / "A")], layers | STEPS, address="none", **given)
    (start,) = (tmp_path / "backbones").glob("layers-????????????????")
    assert [raysts.load(path).encoder.depth for path in (start, result["model"], own / "A")] == [1, 1, 2]
    assert any(note.startswith("Training starts from 1 of the 2 layers of ") for note in result["notes"])
    card = (Path(result["model"]) / "README.md").read_text()
    assert "Training starts from 1 of the 2 layers of " in card
    assert "of 100 of the teacher: " in card and "than the starting model or the teacher;" in card, "no ensemble of one"
    recipe = json.loads((Path(result["model"]).parent / "recipe.json").read_text())
    assert {"loss": "cosine", "axes": "teachers", "bank": 0.1}.items() <= recipe["settings"].items()
    assert {"sample": None, "spans": 0}.items() <= recipe["data"].items()
    assert (recipe["optim"]["lr"], recipe["batch"]) == (5e-4, 64)
    plan = plan_of("simcse-unsup", layers, **given)
    assert describe(plan)["backbone"] == {"name": str(own / "A"), "id": plan.backbone_id, "layers": [0]}


@pytest.fixture(scope="module")
def documents(own: Path, small_corpus: Corpus) -> Path:
    """Documents of six sentences each."""
    path, texts = own / "documents.parquet", small_corpus.read("wikipedia/sentences").column("sentence").to_pylist()
    pq.write_table(pa.table({"text": [" ".join(texts[first : first + 6]) for first in range(0, len(texts), 6)]}), path)
    return path


def student_of(own: Path, documents: Path, storage: Path, queries: Path | None = None, **sets: Any) -> dict[str, Any]:
    """The student of one layer of A on the documents, with the default recipe but for ``sets``."""
    asked = {"backbone": str(own / "A"), "backbone_layers": 1, "evaluation.resamples": 4, **sets}
    return raysts.distill([str(own / "A")], asked, text=documents, queries=queries, storage=storage, address="none")


@pytest.mark.whole
def test_a_student_on_documents_reads_them_whole_and_in_spans(own: Path, documents: Path, tmp_path: Path) -> None:
    result = student_of(own, documents, tmp_path, **{"train.max_steps": 3})
    folder = Path(result["model"])
    recipe = json.loads((folder.parent / "recipe.json").read_text())
    lengths = raysts.load(own / "A").tokenize(pq.read_table(documents).column(0).to_pylist()).lengths
    texts = len(lengths) - len(lengths) // 20 * 2  # without those that are held out
    assert recipe["data"]["spans"] == 4 and recipe["data"]["sample"] is None
    assert recipe["train"]["max_length"] == np.ceil(np.quantile(lengths, 0.95)) < lengths.max()
    assert raysts.load(folder).max_length == recipe["train"]["max_length"], "it reads what it was taught to read"
    (tokens,) = (path for path in (tmp_path / "tokens").glob("*/manifest.json"))
    assert json.loads(tokens.read_text())["rows"] == 5 * texts
    record = json.loads((folder.parent / "run.json").read_text())
    assert record["data"]["rows"] == texts
    spans = f"trains on {texts} texts and on 4 spans of each (4 to 64 words): 80% of its rows are spans"
    for where in (result["notes"], (folder / "README.md").read_text().splitlines()):
        for said in (spans, "95% of the texts have no more"):
            assert sum(said in line for line in where) == 1
    assert [line["bank"] > 0 for line in map(json.loads, (folder.parent / "metrics.jsonl").open())].count(True) > 0


@pytest.mark.whole
@pytest.mark.skipif(torch.cuda.is_available(), reason="a process that has used a GPU cannot be forked")
def test_a_killed_student_of_spans_and_a_bank_ends_as_another(own: Path, documents: Path, tmp_path: Path) -> None:
    """With queries, in windows of 100 rows, killed in the first shard of the teacher but one, in training, and when models are
    measured; the last start measures the rest and does nothing else."""
    (own / "asked.txt").write_text("\n".join(f"a dog {number}" for number in range(70)))
    sets = {"sed.train.checkpoint_every": 2, "train.max_steps": 6, "queries": own / "asked.txt"}
    with pytest.MonkeyPatch.context() as patch:
        for module in ("raysts.data.windows", "raysts.pipeline.inputs"):
            patch.setattr(f"{module}.WINDOW", 100)
        for place in (("vectors", 2), ("loop", 4), ("agreement", 3)):
            child = os.fork()
            if not child:
                try:
                    Passes(pytest.MonkeyPatch(), place)
                    student_of(own, documents, tmp_path / "killed", **sets)
                finally:
                    os._exit(0)
            assert os.waitpid(child, 0)[1] == signal.SIGKILL, place
        passes, ended = {}, {}
        for name in ("killed", "whole"):
            with pytest.MonkeyPatch.context() as watched:
                passes[name] = Passes(watched).passes
                ended[name] = student_of(own, documents, tmp_path / name, **sets)
    assert passes["killed"].keys() == {"agreement"} and 0 < passes["killed"]["agreement"] < passes["whole"]["agreement"]
    killed, whole = (Path(found["model"]) for found in ended.values())
    assert killed.parent.name == whole.parent.name
    assert small_runs.metrics(killed.parent) == small_runs.metrics(whole.parent)
    for file in ("model.safetensors", "config.json", "tokenizer.json"):
        assert killed.joinpath(file).read_bytes() == whole.joinpath(file).read_bytes()

    def record(found: dict[str, Any]) -> Any:
        """What both must have written, without times and places."""
        kept = json.loads(Path(found["storage"], "pipelines", "distilled.json").read_text())
        run = json.loads(Path(found["model"]).with_name("run.json").read_text())
        rows = [{**row, "created_at": None} for row in found["results"]]
        timeless = kept | {"seconds": None, "price": None, "models": None}
        return timeless, run["kept"], run["dev"], rows, found["delivered"], found["notes"]

    assert record(ended["killed"]) == record(ended["whole"])


@pytest.fixture
def sided(own: Path, tmp_path: Path) -> dict[str, Path]:
    """Two models that read queries and documents behind prompts of their own."""
    for name, prompt in (("sided", "a query: "), ("student", "the dog asks: ")):
        model = raysts.load(own / "A", device="cpu")
        model.prompts = Prompts(texts={"query": prompt, "document": f"{prompt} not "})
        model.save(tmp_path / name)
    return {name: tmp_path / name for name in ("sided", "student")}


def check_sides(folder: Path, models: dict[str, Path], sides: np.ndarray) -> None:
    """Each model has read each text of the one table behind its prompt of that side."""
    stores = [Windows(path.parent) for path in (folder / "tokens").glob("*/manifest.json")]
    (table,) = (folder / "tables").glob("*.parquet")
    texts = pq.read_table(table).column("sentence").to_pylist()
    read = [[row for i in range(len(of)) for row in of.read(i).column("sentence").to_pylist()] for of in stores]
    assert len(read) == 2
    for model in (raysts.load(path, device="cpu") for path in models.values()):
        model.max_length = max(map(len, read[0]))
        names = ["query" if side else "document" for side in sides]
        assert [model.tokenize([text], of).flat.tolist() for text, of in zip(texts, names, strict=True)] in read


@pytest.mark.whole
def test_every_other_span_is_a_query(own: Path, documents: Path, tmp_path: Path, sided: dict[str, Path]) -> None:
    sets = {"train.max_steps": 2, "precision": "fp32", "sed.target": "unit-mean", "data.spans": 4}
    options = {"text": documents, "storage": tmp_path / "s", "address": "none"}
    result = raysts.distill([str(sided["sided"])], {"backbone": str(sided["student"]), **sets}, **options)
    rows = json.loads((Path(result["model"]).parent / "run.json").read_text())["data"]["rows"]
    check_sides(tmp_path / "s", sided, np.arange(5 * rows) % 5 % 2 == 1)
    assert any("are spans, every other one read as a query." in line for line in result["notes"])
    for student, prompt in ((own / "A", None), (sided["student"], "x ")):  # who reads all texts alike
        alike = {"backbone": str(student), "prompt": prompt, "sed.data.sample": 100, **sets}
        planned = raysts.plan("distill", alike, storage=tmp_path / "t", models=[str(sided["sided"])], text=documents)
        assert "are spans." in str(planned) and "as a query" not in str(planned)
        assert {node["sentences"] for node in planned["nodes"] if node["kind"] == "tokens"} == {5 * 100}


@pytest.mark.whole
def test_queries_are_read_behind_their_prompts(documents: Path, tmp_path: Path, sided: dict[str, Path]) -> None:
    asked = [f"a dog {number}" for number in range(40)]
    pq.write_table(pa.table({"id": range(40), "asked": asked}), tmp_path / "asked.parquet")
    options = {"text": documents, "queries": tmp_path / "asked.parquet", "storage": tmp_path / "s", "address": "none"}
    sets = {"backbone": str(tmp_path / "student"), "train.max_steps": 2, "precision": "fp32", "sed.target": "unit-mean"}
    for given, why in (
        ({}, "say with --queries-column NAME"),
        ({"text": None}, "stand beside the documents of --text PATH"),
    ):
        with pytest.raises(InputError, match=why):
            raysts.distill([str(tmp_path / "sided")], sets, **options | given)
    options["queries_column"] = "asked"
    assert describe(plan_of("ct-sed", {"backbone": sets["backbone"]}, **options))["text"]["queries"] == 40
    result = raysts.distill([str(tmp_path / "sided")], sets, **options)
    sides = pq.read_table(next((tmp_path / "s/tables").glob("*.parquet"))).column("query").to_numpy()
    assert sides.sum() == 40
    check_sides(tmp_path / "s", sided, sides)
    record = json.loads((Path(result["model"]).parent / "run.json").read_text())
    assert record["data"]["queries"] == 40 and record["data"]["rows"] == len(sides) - 4 * int((~sides).sum()) // 5
    names = {"backbone": str(tmp_path / "student"), "member": "sided", "student": Path(result["model"]).parent.name}
    assert {cost["role"]: cost["model"] for cost in result["models"]} == names
    assert all(cost["texts_per_second"] > 0 and cost["bytes"] == 4 * cost["parameters"] for cost in result["models"])
    for lines in (result["notes"], (Path(result["model"]) / "README.md").read_text().splitlines()):
        assert any("40 queries (asked), read behind the prompts of queries" in line for line in lines)


@pytest.fixture(scope="module")
def searched(own: Path, documents: Path) -> Path:
    """A retrieval set of 60 documents, each found by its own first words."""
    texts = pq.read_table(documents).column("text").to_pylist()[:60]
    folder, ids = own / "searched", [f"d{number}" for number in range(60)]
    folder.mkdir()
    pq.write_table(pa.table({"doc_id": ids, "text": texts}), folder / "corpus.parquet")
    queries = [" ".join(text.split()[:5]) for text in texts]
    pq.write_table(pa.table({"query_id": ids, "text": queries}), folder / "queries.parquet")
    pq.write_table(pa.table({"query_id": ids, "doc_id": ids, "score": [1] * 60}), folder / "qrels.parquet")
    return folder


@pytest.mark.whole
def test_a_student_that_keeps_an_index(own: Path, documents: Path, searched: Path, tmp_path: Path) -> None:
    """Narrower than its teacher it gets a layer; what is measured is what 'evaluate --documents-by' measures."""
    wide = Path(shutil.copytree(own / "A", own / "wide"))
    config = BertConfig.from_pretrained(wide)
    config.hidden_size = 48
    torch.manual_seed(5)
    BertModel(config, add_pooling_layer=False).save_pretrained(wide)
    result = raysts.distill(
        overrides={"backbone": str(own / "A"), "evaluation.resamples": 20, "train.max_steps": 4, "precision": "fp32"},
        text=documents, test={"found": searched}, keep_index=str(wide), storage=tmp_path, address="none",
    )  # fmt: skip
    assert raysts.load(result["model"]).encoder.dim == 48
    rows = [row for row in result["results"] if row["role"] == "student" and row["metric"] == "ndcg@10"]
    values = {row["similarity"]: row for row in rows if row["rows"] == "all" and row["layers"] == "1"}
    assert values.keys() == {"cosine", "cosine, documents by the teacher"}
    again = raysts.evaluate(
        result["model"], documents_by=str(wide), test={"found": searched}, storage=tmp_path, resamples=20
    )
    of_all = {"metric": "ndcg@10", "rows": "all", "layers": "1", "similarity": "cosine"}
    (expected,) = (row for row in again["results"] if of_all.items() <= row.items())
    kept = values["cosine, documents by the teacher"]
    for key in ("value", "n", "ci_low"):
        assert kept[key] == pytest.approx(expected[key], abs=1e-6)
    recipe = json.loads((Path(result["model"]).parent / "recipe.json").read_text())["settings"]
    assert (recipe["target"], recipe["axes"], recipe["projection"]) == ("mean", "teachers", 48)

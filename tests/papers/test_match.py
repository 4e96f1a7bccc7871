from __future__ import annotations

import json
import re
import statistics
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import evaluation_fakes
import pytest
from golden.golden import Golden

from raysts.cli import execute
from raysts.commands.follow import report as write_reports
from raysts.errors import InputError
from raysts.evaluation import results
from raysts.papers.match import MeasuredRow, MeasuredValue, match_value, paper_tables
from raysts.papers.measured import every_row, report_data
from raysts.papers.published import PAPERS, Measure, PrintedValue
from raysts.papers.tables import filling, format_paper, render
from raysts.recipes.names import pipeline
from raysts.recipes.tree import to_plain
from raysts.storage.atomic import write_json

STS = ("sts12", "sts13", "sts14", "sts15", "sts16")
SIZES = dict(zip(STS, (3108, 1500, 3750, 3000, 1186), strict=True)) | {"stsb": 1379, "sickr": 4927, "snli-2way": 9824}


def row(system: str, dataset: str, value: float, role: str = "member", **columns: Any) -> dict[str, Any]:
    known = {"run_id": f"run-of-{system}", "member": 0, "aggregation": "mean", "n": SIZES.get(dataset, 1000)}
    return evaluation_fakes.row(system, role, dataset, value, **known | columns)


def labels(system: str) -> dict[str, Any]:
    """CT as at `@paper`, where labels choose the checkpoint."""
    return {"ct.train.keep": "dev"} if "ct" in system.split("-") else {}


def of(made: dict[str, Any], backbone: str = "some-encoder", run: str = "a run", **settings: Any) -> MeasuredRow:
    """A row as it comes from a storage, made by the recipe of its system with some settings changed."""
    tree = to_plain(pipeline(made["system"], labels(made["system"]) | settings))
    return MeasuredRow(row=made, run=run, backbone=backbone, backbone_id=backbone, stages=tree["recipes"])


def filled(paper: str, *rows: MeasuredRow) -> dict[tuple[int, str, str, str], dict[str, MeasuredValue]]:
    """What stands beside published values, by table, row, column and metric."""
    return {
        (shown.table.number, shown.table.rows[i].name, column.name, column.metrics[k]): dict(found)
        for shown in paper_tables(paper, rows)
        for (i, j, k), found in shown.measured.items()
        for column in [shown.table.columns[j]]
    }


CT = row("ct", "sts12", 0.61)


def test_a_row_stands_beside_the_values_of_its_system_and_nowhere_else() -> None:
    found = filled("sed", of(CT))
    rows = (1, "L"), (5, "D"), (5, "B"), (5, "L")
    assert {*found} == {(table, f"BERT-{size}-CT", "STS12", "spearman") for table, size in rows}
    for cell in found.values():
        assert list(cell) == ["some-encoder"] and cell["some-encoder"].value == 0.61 and cell["some-encoder"].n == 1
        assert cell["some-encoder"].source.run == "a run" and cell["some-encoder"].source.ids == ("run-of-ct",)
    assert not filled("latte-mix", of(CT)) and not filled("gausscse", of(CT))


@pytest.mark.parametrize(
    "changed",
    [
        {"layers": "1"}, {"aggregation": "all"}, {"split": "dev"},
        {"pooling": "cls"}, {"similarity": "l2"}, {"metric": "accuracy"}, {"dataset": "stsb"}, {"system": "mlm-ct"},
        {"role": "ensemble"},
    ],
    ids=str,
)  # fmt: skip
def test_a_row_of_anything_else_does_not(changed: dict[str, Any]) -> None:
    found = filled("sed", of(CT | changed))
    assert not {cell for cell in found if cell[0] in (1, 5)}


def test_settings_that_a_table_varies_must_be_those_of_the_cell() -> None:
    point = row("gausscse-ent+con", "snli-2way", 0.66, metric="auc_pr", split="dev", aggregation=None, pooling="cls",
                layers="1", similarity="gauss", n=9842)  # fmt: skip
    found = filled("gausscse", of(point, **{"gausscse.batch": 32, "gausscse.optim.lr": 3e-5}))
    assert set(found) == {(3, "Batch Size 32", "Learning Rate 3e-5", "auc_pr")}
    assert not filled("gausscse", of(point, **{"gausscse.batch": 48}))
    latte = row("latte", "stsb", 0.56, aggregation="all", layers="1")
    names = {(table, name) for table, name, *_ in filled("latte-mix", of(latte, **{"latte.settings.classes": 20}))}
    assert names == {(4, "Latte-Mix (20-class) + Cosine")}
    names = {(table, name) for table, name, *_ in filled("latte-mix", of(latte))}
    assert {(1, "BERT-Base + Latte-Mix + Cosine"), (4, "Latte-Mix (0.3-tau) + Cosine")} <= names
    assert not any("GloVe" in name for _, name in names), "an encoder does not stand in for word vectors"


def test_what_no_label_chose_has_rows_of_its_own() -> None:
    """The rows of Table 1 that the paper does not have; the paper's rows hold values of its protocol alone."""
    text = {"ct.train.keep": "second", "flow.data.sources": [f"sts{year}" for year in range(12, 17)]}
    student = row("ct-sed-flow", "sts12", 0.6, role="student")
    flow = {"flow.layers": 2}
    for settings, name in (({}, "BERT-L-CT-SED-Flow"), (text, "BERT-L-CT-SED-Flow, without labels")):
        found = filled("sed", of(student, **flow, **settings))
        assert {cell[1] for cell in found if cell[0] == 1} == {name}
    found = filled("sed", of(student, **flow, **text | {"flow.data.sources": ["sts12"]}))
    assert not [cell for cell in found if cell[0] == 1]
    found = filled("sed", of(CT, **{"ct.train.keep": "second"}))
    assert {cell[1] for cell in found if cell[0] == 1} == {"BERT-L-CT, without labels"}
    (shown, *_) = paper_tables("sed", [])
    why = {row.name: why for row, why in shown.empty}
    assert why["BERT-L-CT, without labels"].startswith("not run: 'raysts run sed-main@paper-text'")


def test_the_average_needs_every_set_and_is_that_of_each_model() -> None:
    values = {(member, name): 0.5 + member / 10 + i / 100 for member in range(2) for i, name in enumerate(STS)}
    rows = [of(row("ct-sed", name, value, member=m, run_id=f"m{m}")) for (m, name), value in values.items()]
    found = filled("sed", *rows)
    means = [statistics.fmean(values[m, name] for name in STS) for m in range(2)]
    average = found[1, "BERT-L-CT", "Avg.", "spearman"]["some-encoder"]
    assert (average.value, average.std, average.n) == (
        pytest.approx(statistics.fmean(means)), pytest.approx(statistics.stdev(means)), 2
    )  # fmt: skip
    assert average.source.ids == ("m0", "m1")
    of_table_3 = [found[3, "BERT-L-CT", column, "spearman"]["some-encoder"].value for column in ("Max", "Mean", "STD")]
    assert of_table_3 == pytest.approx([max(means), statistics.fmean(means), statistics.stdev(means)])
    lacking = filled("sed", *(each for each in rows if each.row["dataset"] != "sts14"))
    assert lacking and not [cell for cell in lacking if cell[0] == 3 or cell[2] == "Avg."]
    single = filled("sed", *(each for each in rows if each.row["member"] == 0))
    assert (3, "BERT-L-CT", "Max", "spearman") in single and (3, "BERT-L-CT", "STD", "spearman") not in single


def test_a_backbone_of_the_paper_stands_beside_its_own_rows() -> None:
    found = filled("sed", of(CT, "bert-base-uncased"), of(CT, "MiniLM"))
    assert set(found[5, "BERT-B-CT", "STS12", "spearman"]) == {"bert-base-uncased", "MiniLM"}
    assert set(found[5, "BERT-L-CT", "STS12", "spearman"]) == {"MiniLM"}
    assert set(found[1, "BERT-L-CT", "STS12", "spearman"]) == {"bert-base-uncased", "MiniLM"}, "Table 1 has no other"
    raw = row("raw", "stsb", 0.5, role="backbone", aggregation="all", layers="1")
    glove = of(raw, "glove.6B.300d.txt")
    assert {name for table, name, *_ in filled("latte-mix", glove) if table == 5} == {"GloVe + Mean + Cosine"}


def test_other_data_of_the_same_name_stand_in_a_column_that_says_so() -> None:
    found = filled("sed", of(CT), of(CT | {"n": 400, "value": 0.2}, run="on the world"))
    cell = found[1, "BERT-L-CT", "STS12", "spearman"]
    assert {name: each.value for name, each in cell.items()} == {"some-encoder": 0.61, "some-encoder, other data": 0.2}
    assert "other data than the paper's" in cell["some-encoder, other data"].source.remarks[0]
    assert not found[1, "BERT-L-CT", "STS12", "spearman"]["some-encoder"].source.remarks
    first = row("ct", "sts13", 0.6)
    for n, column in ((1530, "some-encoder"), (1531, "some-encoder, other data")):  # of 1,500 the fiftieth part is 30
        assert [*filled("sed", of(first | {"n": n}))[1, "BERT-L-CT", "STS13", "spearman"]] == [column]
    (table, *_) = paper_tables("sed", [of(CT), of(CT | {"n": 400}, "a-first")])
    assert table.backbones == ("some-encoder", "a-first, other data")


@pytest.mark.parametrize("names", [("simlex999",), STS])
def test_a_cell_holds_one_protocol_and_one_copy_of_a_set(names: tuple[str, ...]) -> None:
    """Of several in one run the last counts, whole: no mean is over two of them."""

    def measured(member: int, value: float, hour: int, **columns: Any) -> list[MeasuredRow]:
        free = {"pooling": None} if "simlex999" in names else {}
        created = {"created_at": f"2026-01-01T{hour:02}:00:00+00:00", "run_id": f"m{member}", "member": member}
        return [of(row("ct", name, value, **free, **created, **columns)) for name in names]

    def cell(*rows: list[MeasuredRow]) -> tuple[float, int]:
        measures = tuple(Measure(dataset=name, metric="spearman", layers="2") for name in names)
        value = PrintedValue(value=50.0, measures=measures, settings={})
        fitting: dict[Any, list[MeasuredRow]] = {}
        for one in sorted((each for part in rows for each in part), key=lambda each: each.created_at):
            fitting.setdefault((one.system, one.row["dataset"], one.row["metric"]), []).append(one)
        (found,) = match_value(value, "ct", "BERT-large", frozenset({"BERT-large"}), fitting).values()
        return found.value, found.n

    first = measured(0, 0.5, 1), measured(1, 0.6, 1)
    assert cell(*first) == (pytest.approx(0.55), 2)
    for other in ({"similarity": "senteval"}, {"pooling": "cls"}, {"dataset_sha256": "corrected"}):
        columns = {key: other[key] for key in other if not (key == "pooling" and "simlex999" in names)}
        if columns:
            assert cell(*first, measured(0, 0.9, 2, **other)) == (pytest.approx(0.9), 1), other
            assert cell(*first, measured(1, 0.9, 0, **other)) == (pytest.approx(0.55), 2), other


def test_another_number_of_rows_is_said() -> None:
    sick = row("ct", "sickr-relatedness", 0.8, metric="pearson", similarity="senteval", aggregation="all", n=4906)
    (found,) = filled("sed", of(sick))[7, "BERT-Large-CT", "SICK-R", "pearson"].values()
    assert found.source.remarks == ("sickr-relatedness: 4,906 rows, the paper's has 4,927",)


def test_the_latest_run_stands_there_with_what_is_special_about_it() -> None:
    later = {"created_at": "2026-02-01T00:00:00+00:00"}
    again = of(CT | later | {"value": 0.62})
    found = filled("sed", again, of(CT))[1, "BERT-L-CT", "STS12", "spearman"]["some-encoder"]
    assert (found.value, found.n) == (0.62, 1), "a model that was measured again counts once"
    other = of(
        CT | later | {"value": 0.7, "selected_by": "stsb-dev", "transductive": True, "run_id": "x"}, run="another",
        **{"ct.train.max_steps": 9, "ct.train.epochs": 2.0, "ct.data.sample": 5, "ct.data.sample_seed": 6, "ct.optim.lr": 0.5},
        **{"ct.batch": 8, "ct.layers": 2},
    )  # fmt: skip
    found = filled("sed", other, of(CT))[1, "BERT-L-CT", "STS12", "spearman"]["some-encoder"]
    assert (found.value, found.source.run, found.source.ids) == (0.7, "another", ("x",))
    assert found.source.remarks == (
        "checkpoints chosen by stsb-dev labels",
        "fitted on the sentences of the test sets (transductive)",
        "other settings than the recipe's: ct.data.sample=5, ct.data.sample_seed=6, ct.batch=8, ct.optim.lr=0.5, "
        "ct.train.epochs=2.0, ct.train.max_steps=9 and 1 more",
    )


# -- from a storage ------------------------------------------------------------------------------------------------------


def store(storage: Path, name: str, system: str, part: str, rows: list[dict[str, Any]], **changes: Any) -> None:
    tree = to_plain(pipeline(system, {"backbone": "/models/some-encoder", **labels(system), **changes}))
    record = {"name": name, "pipeline": tree, "backbone_id": "content-of-it", "steps": [{"id": "tokens"}, {"id": part}]}
    write_json(storage / "pipelines" / f"{name}.json", record)
    results.write(storage, part, rows)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    storage = tmp_path_factory.mktemp("stored")
    pearson = [row("ct-sed", "sts12", 0.59 + m / 100, member=m, run_id=f"m{m}", metric="pearson") for m in range(2)]
    members = [row("ct-sed", "sts12", 0.60 + m / 50, member=m, run_id=f"m{m}") for m in range(2)]
    student = [row("ct-sed", "sts12", 0.7, role="student", run_id="s", member=None)]
    store(storage, "mine", "ct-sed", "part-1", members + pearson + student)
    subset = row("ct", "sts12", 0.9, subset="MSRvid")
    store(storage, "parts", "ct", "part-2", [subset, row("ct", "sts12", 0.9, rows="clean")])
    store(storage, "not-from-scratch", "ct", "part-3", [row("ct", "sts12", 0.9)], backbone="m0")
    write_json(storage / "runs" / "m0" / "run.json", {})
    facts = {"stage": "ct", "backbone": "other/encoder", "backbone_id": "another", "parents": ["another"]}
    write_json(storage / "runs" / "z" / "run.json", facts)
    write_json(storage / "runs" / "z" / "recipe.json", to_plain(pipeline("ct", labels("ct")).stages["ct"]))
    results.write(storage, "of-no-pipeline", [row("ct", "sts13", 0.5, run_id="z")])
    results.write(storage, "nobody-knows", [row("raw", "sts12", 0.3, role="backbone", run_id=None, layers="1")])
    return storage


def test_a_storage_says_which_run_and_which_backbone(stored: Path) -> None:
    found = {(each.run, each.backbone, each.row["value"]) for each in every_row(stored) if not each.row["subset"]}
    assert found == {
        ("mine", "some-encoder", 0.59), ("mine", "some-encoder", 0.6), ("mine", "some-encoder", 0.62),
        ("mine", "some-encoder", 0.7), ("evaluation of-no-pi", "other/encoder", 0.5),
        ("evaluation nobody-k", "backbone not on record", 0.3),
    }  # fmt: skip
    stages = {(each.row["role"], *each.stages) for each in every_row(stored)}
    assert stages == {("member", "ct"), ("student", "ct", "sed"), ("backbone",)}


def test_an_evaluation_names_its_model_and_a_set_without_subsets_is_its_own_mean(tmp_path: Path) -> None:
    parted = row("my/encoder", "sts12", 0.4, role="backbone", run_id="content")
    stsb = parted | {"dataset": "stsb", "aggregation": "all", "study": "s", "trial": "t"}
    results.write(tmp_path, f"{results.EVALUATION}0123456789", [stsb, parted, parted | {"aggregation": "all"}])
    rows = every_row(tmp_path)
    found = sorted((each.row["dataset"], each.row["aggregation"]) for each in rows)
    assert found == [("sts12", "all"), ("sts12", "mean"), *(("stsb", name) for name in ("all", "mean", "wmean"))]
    assert {each.run for each in rows} == {"evaluation 01234567", "s/t"}
    assert {each.backbone for each in rows} == {"my/encoder"}


def test_the_trials_of_a_search_fill_the_table_of_its_grid(tmp_path: Path) -> None:
    folder = tmp_path / "studies" / "edge"
    tree = to_plain(pipeline("gausscse-ent+con", {"backbone": "bert-base-uncased"}))
    study = {"name": "edge", "pipeline": tree, "identity": {"backbone": "id"}, "data": str(tmp_path / "gone")}
    write_json(folder / "study.json", study)
    trials = [(16, 5e-5, 0.66), (16, 5e-5, 0.68), (8, 1e-4, 0.7), (32, 5e-5, None)]
    for number, (batch, rate, value) in enumerate(trials):
        point = {"gausscse.batch": batch, "gausscse.optim.lr": rate}
        status = "finished" if value else "infeasible"
        trial = {"id": f"t{number}", "point": point, "seed": number % 2, "status": status, "value": value}
        write_json(folder / "trials" / f"t{number}.json", trial | {"finished_at": "2026-01-01T00:00:00+00:00"})
    other = {**study, "name": "bounds", "pipeline": to_plain(pipeline("sts"))}
    write_json(tmp_path / "studies" / "bounds" / "study.json", other)
    gone = {**study, "pipeline": {**tree, "recipes": {"x": {"objective": "gone"}}}}
    write_json(tmp_path / "studies" / "gone" / "study.json", gone)
    found = filled("gausscse", *every_row(tmp_path))
    assert {*found} == {(3, "Batch Size 16", "Learning Rate 5e-5", "auc_pr")}, "what the paper did not try is not there"
    (cell,) = [found[key]["bert-base-uncased"] for key in found]
    assert (cell.value, cell.n, cell.source.run, cell.source.ids) == (pytest.approx(0.67), 2, "edge", ("t0", "t1"))


@pytest.mark.parametrize(
    "more", [{"own": {"dev": {"mine": "p.csv"}}}, {"metric": "loss"}, {"system": "gausscse-ent+con-sed"}]
)
def test_trials_that_another_score_compares_are_not_in_that_table(more: dict[str, Any], tmp_path: Path) -> None:
    study = {"name": "s", "identity": {"backbone": "id"}, "data": str(tmp_path / "gone"), "metric": "auc_pr"}
    point = {"nli.optim.lr": 1e-5, "batch": 16, "backbone": "bert-base-uncased", "gausscse.optim.lr": 5e-5}
    for name, changes in (("usual", {}), ("other", more)):
        tree = to_plain(pipeline(changes.pop("system", "nli-gausscse-ent+con")))
        write_json(tmp_path / "studies" / name / "study.json", {**study, "name": name, "pipeline": tree, **changes})
        trial = {"id": name, "point": point if name == "usual" else {}, "seed": 0, "status": "finished", "value": 0.5}
        trial["finished_at"] = "2026-01-01T00:00:00+00:00"
        write_json(tmp_path / "studies" / name / "trials" / f"{name}.json", trial)
    (found,) = every_row(tmp_path)
    assert (found.run, found.backbone, found.setting("gausscse.batch")) == ("usual", "bert-base-uncased", 16)


def test_encoders_of_one_name_have_columns_of_their_own(tmp_path: Path) -> None:
    store(tmp_path, "a", "ct", "part-a", [CT], backbone="/first/encoder")
    store(tmp_path, "b", "ct", "part-b", [CT], backbone="/second/encoder")
    record = json.loads((tmp_path / "pipelines" / "b.json").read_text())
    write_json(tmp_path / "pipelines" / "b.json", record | {"backbone_id": "0123456789"})
    assert {each.backbone for each in every_row(tmp_path)} == {"encoder (content-)", "encoder (01234567)"}


def test_a_pipeline_that_borrows_a_name_is_not_that_system(tmp_path: Path) -> None:
    store(tmp_path, "a", "ct", "part", [CT, row("ct", "sts12", 0.4, role="backbone", layers="1")])
    record = json.loads((tmp_path / "pipelines" / "a.json").read_text())
    record["pipeline"]["recipes"]["nli"] = to_plain(pipeline("nli").stages["nli"])
    write_json(tmp_path / "pipelines" / "a.json", record)
    assert [each.row["role"] for each in every_row(tmp_path)] == ["backbone"]


def test_the_text_is_that_of_the_golden_record(stored: Path, golden: Golden) -> None:
    text = format_paper(report_data("sed", stored))
    of_any_machine = [line for line in text.splitlines() if not line.startswith("empty: ")]
    golden.check("pages/paper-sed", of_any_machine)


def test_the_page_is_well_formed_and_loads_nothing(stored: Path) -> None:
    text = render(report_data("sed", stored))
    assert text.startswith("<!DOCTYPE html>\n") and not re.search(r"https?:|<script|url\(|@import|src=", text)
    root = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    tables = root.findall(".//table")
    assert len(tables) == len(root.findall(".//caption")) == 8
    for table in tables:
        widths = {sum(int(cell.get("colspan", 1)) for cell in line) for line in table.iter("tr")}
        assert len(widths) == 1, "every row is as wide as the table"
        assert all(cell.get("scope") for cell in table.iter("th"))
    cells = ["".join(cell.itertext()) for cell in tables[0].iter("td")]
    assert "69.63 / 69.50" in cells and "59.50 ±0.71 / 61.00 ±1.41 [2]" in cells
    assert "mine on some-encoder: 2 members (m0, m1)" in text


def test_the_command_the_text_the_page_and_the_json_say_the_same(
    stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = report_data("sed", stored)
    first, second, _, fourth, *_ = (filling(shown) for shown in data.tables)
    assert first[0] == "5 of 156 cells are filled" and fourth[0] == "0 of 23 cells are filled"
    assert second[-1].startswith("empty: BERT-L-NLI; BERT-L-NLI-CT; ")
    assert " and 3 more: not run: 'raysts run sed-main@paper'" in second[-1] and first[0] in render(data)
    command = ["report", "--storage", str(stored), "--paper"]
    assert execute([*command, "sed"]) == 0 and "\n".join(first) in capsys.readouterr().out
    assert execute([*command, "sed", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["status"] == "done" and found["reports"] == [str(stored / "reports" / "paper-sed" / "index.html")]
    assert Path(found["reports"][0]).read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    table = found["tables"][0]
    assert (table["filled"], table["cells_count"]) == (5, 156)
    why = reasons("sed", 1)["Avg GloVe *"]
    assert table["empty"][0] == {"row": "Avg GloVe *", "group": None, "why": why}
    cells = {(c["row"], c["column"], c["metric"]): c for c in table["cells"]}
    cell = cells["BERT-L-CT-SED", "STS12", "spearman"]
    assert (cell["published"], cell["system"], cell["backbone"]) == (69.87, "ct-sed", "BERT-large")
    (beside,) = cell["measured"]
    names = ("backbone", "value", "run", "run_ids")
    assert tuple(beside[name] for name in names) == ("some-encoder", 0.7, "mine", ["s"])
    assert not cells["BERT-L-CT-SED", "STS13", "spearman"]["measured"] and "text" not in found
    assert cells["BERT-L-CT", "Avg.", "pearson"]["remark"].startswith("Table 8 has 74.76")
    assert cells["Skip-Thoughts *", "Avg.", "pearson"]["remark"].startswith("a decoder of the sentences around one")
    assert [shown.table.number for shown in report_data("sed", stored, [3, 1]).tables] == [1, 3]


def test_papers_that_the_command_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["report", "--paper", "latte", "--storage", str(tmp_path / "wrong")]) == 2
    assert "did you mean 'latte-mix'?" in capsys.readouterr().err and not (tmp_path / "wrong").exists()
    with pytest.raises(InputError, match="sed, gausscse, latte-mix"):
        write_reports(paper="bert", storage=tmp_path)
    assert execute(["report", "--paper", "sed", "--name", "mine"]) == 2
    assert "--name and --paper: give one" in capsys.readouterr().err


# -- what is empty, and why ---------------------------------------------------------------------------------------------


def reasons(paper: str, number: int, *rows: MeasuredRow) -> dict[str, str]:
    (shown,) = [table for table in paper_tables(paper, rows) if table.table.number == number]
    return {row.name: why for row, why in shown.empty}


@pytest.mark.parametrize("paper", PAPERS)
def test_of_nothing_measured_every_row_is_empty_and_says_why(paper: str, tmp_path: Path) -> None:
    data = report_data(paper, tmp_path)
    for shown, plain in zip(data.tables, data.as_plain()["tables"], strict=True):
        assert (plain["filled"], plain["cells_count"]) == (0, len(plain["cells"]))
        assert len(plain["empty"]) == len(shown.table.rows)
        for empty, published in zip(plain["empty"], shown.table.rows, strict=True):
            assert (empty["row"], empty["group"]) == (published.name, published.group)
            assert empty["why"] == published.unmade or empty["why"].startswith("not run: 'raysts ")


STANDARD = row("ct", "cr", 0.6, metric="accuracy", split="cv", similarity=None)
RAW = row("raw", "stsb", 0.5, role="backbone", aggregation="all", layers="1")


@pytest.mark.parametrize(
    "paper, number, rows, name, why",
    [
        ("sed", 1, [CT], "Skip-Thoughts *", "a decoder of the sentences around one"),
        ("sed", 1, [CT], "Avg GloVe *", "which needs the file glove.840B.300d.txt in the working directory"),
        ("sed", 4, [], "RoBERTa-L", "'raysts run sed-supervised@paper', with roberta-large, which is not on this"),
        ("sed", 7, [CT], "BERT-Large-CT", "'raysts run sed-main@paper', with senteval/cr, senteval/mr, "),
        ("sed", 7, [STANDARD], "BERT-Large-CT", "similarity=senteval"),
        ("sed", 8, [CT], "BERT-L-CT", "ct was not measured on sts13, sts14, sts15, sts16: 'raysts run sed-pooling@paper', "),
        ("gausscse", 3, [], "Batch Size 16", "not run: 'raysts tune gausscse@paper'"),
        ("latte-mix", 1, [], "GloVe + Max + Cosine", "not run: 'raysts run latte-distances@paper', which needs the file glove"),
        ("latte-mix", 7, [RAW], "BERT-Base, Layer 1 + Mean + Cosine", "raw was measured, but not with layers=only-1, "),
        ("latte-mix", 8, [RAW], "BERT-Base, Layer 2", "'raysts run latte-layers@paper', with web/word_similarity, "),
    ],
)  # fmt: skip
def test_the_reason_comes_from_what_is_there(
    paper: str, number: int, rows: list[dict[str, Any]], name: str, why: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert why in reasons(paper, number, *(of(one) for one in rows))[name]
    if "glove.840B" in why:  # once it is there it is not asked for
        Path("glove.840B.300d.txt").write_text("a 1\n", encoding="utf-8")
        assert reasons(paper, number)[name] == "not run: 'raysts run sed-main@paper'"


def test_a_row_that_was_measured_in_another_way_says_so() -> None:
    every = [of(row("ct", f"sts{year}", 0.5, layers="first_last")) for year in range(12, 17)]
    why = "ct was measured, but not with layers=1, pooling=mean, similarity=cosine, aggregation=mean, split=test: "
    assert reasons("sed", 8, *every)["BERT-L-CT"] == f"{why}'raysts run sed-pooling@paper'"
    assert "BERT-L-CT" not in reasons("sed", 1, of(CT)), "a row with a filled cell is not empty"

"""``raysts evaluate`` on small encoders: what its options change, and what its rows say of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import run_commands
from run_commands import result

import raysts
from raysts.commands.parser import COMMANDS
from raysts.models.pretrained import load
from raysts.storage.store import Store

RUN = "a" * 16


@pytest.fixture
def measure(tiny_backbone: Path, few_world: Path, tmp_path: Path) -> Any:
    """Measures the tiny encoder on STS-B without intervals."""

    def evaluate(model: Any = tiny_backbone, **options: Any) -> dict[str, Any]:
        given = {"tasks": ["stsb"], "data": few_world, "storage": tmp_path / "storage", "resamples": 0, **options}
        return raysts.evaluate(model, **given)

    return evaluate


def column(told: dict[str, Any], *names: str) -> set[Any]:
    """The values in columns of the rows, in one column alone or together."""
    return {row[names[0]] if len(names) == 1 else tuple(row[name] for name in names) for row in told["results"]}


def test_pooling_and_layers(measure: Any, tmp_path: Path) -> None:
    scores = []
    for pooling in ("mean", "cls", "max"):
        told = measure(pooling=pooling, layers=2)
        assert column(told, "pooling", "layers", "ci_low") == {(pooling, "2", None)}
        scores.append(told["results"][0]["value"])
        measure(pooling=pooling, layers=2)
    assert len({*scores}) == 3
    parts = [*(tmp_path / "storage" / "results").glob("*.parquet")]
    assert len(parts) == 3, "a repeated measurement replaces the first"
    assert column(measure(layers="only-all"), "layers") == {"only-1", "only-2"}
    assert column(measure(), "layers") == {"1"}


def test_another_precision_stands_behind_the_system(measure: Any) -> None:
    lines: list[str] = []
    with run_commands.listening(lines.append):
        full, half = (measure(precision=name) for name in ("fp32", "bf16"))
    values = [told["results"][0]["value"] for told in (full, half)]
    assert values[0] != values[1] == pytest.approx(values[0], abs=0.02)
    (system,) = column(full, "system")
    assert column(half, "system") == {f"{system}, bf16"}
    assert lines[0].startswith("evaluate: embedding ") and len(lines) == 2
    for command in (["evaluate", RUN], ["compare", RUN, RUN]):
        refused = run_commands.raysts(*command, "--precision", "bf61")
        assert refused.code == 2 and "--precision bf61: must be one of" in refused.err


def test_similarities(measure: Any) -> None:
    assert column(measure(), "similarity") == {"cosine"} and column(measure(similarity="l2"), "similarity") == {"l2"}
    for name, said in (
        ("cosin", r"--similarity 'cosin': this model has cosine, l2 \(did you mean 'cosine'\?\)"),
        ("variance", "compares no two texts; .* this model has cosine, l2$"),
    ):
        with pytest.raises(raysts.InputError, match=said):
            measure(similarity=name)


def test_the_rows_of_a_run_say_what_its_record_says(measure: Any, tiny_backbone: Path, tmp_path: Path) -> None:
    """And those of a model without a record name its content and its role."""
    store = Store.open(tmp_path / "storage")
    load(tiny_backbone, device="cpu").save(store.path(f"runs/{RUN}/model"))
    record = {
        "run_id": RUN, "parents": ["b" * 16], "system": "ct", "stage": "nli", "role": "member", "member": 3, "seed": 5,
        "transductive": True, "selected_by": "sts/stsb_dev", "kept": {"step": 7},
    }  # fmt: skip
    store.write_json(f"runs/{RUN}/run.json", {**record, "status": "done"})
    (row,) = (row for row in measure(RUN[:9])["results"] if row["metric"] == "spearman" and row["aggregation"] == "all")
    expected = {**record, "parent_run_ids": ["b" * 16], "recipe": "nli", "step": 7}
    assert {key: row[key] for key in row if key in expected} == {key: expected[key] for key in row if key in expected}
    columns = ("run_id", "system", "role", "member", "transductive", "step")
    told = measure()
    assert column(told, *columns) == {(None, str(tiny_backbone), "backbone", None, False, None)}
    (parents,) = {tuple(row["parent_run_ids"]) for row in told["results"]}
    assert len(parents) == 1 and len(parents[0]) == 16
    assert told["notes"][-1].startswith(f"{tiny_backbone}: ") and told["models"][0]["role"] == "backbone"
    text = COMMANDS["evaluate"].text(told)
    assert text.splitlines()[-1] == told["notes"][-1] and "model" in text and "backbone" not in text.splitlines()[0]


def test_without_labels(tiny_backbone: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"the {i % 17} dogs saw {i} cats in {i % 5} gardens\n" for i in range(240)))
    options = ["--storage", tmp_path / "storage", "--text", texts, "--resamples", "0"]
    rows = result("evaluate", tiny_backbone, "--like", tiny_backbone, *options)["results"]
    found = {row["metric"]: (row["value"], row["n"]) for row in rows}
    assert found["overlap@10"] == (1.0, 24) and found["spearman"][0] == pytest.approx(1.0)
    assert {row["dataset"] for row in rows} == {"agreement"}
    for wrong in (["--like", tiny_backbone], options[2:4], ["--like", RUN, *options[2:4], "--test", f"a={texts}"]):
        refused = run_commands.raysts("evaluate", tiny_backbone, *wrong)
        assert refused.code == 2 and "--like MODEL and --text PATH belong together" in refused.err


def test_files_of_mteb(measure: Any, tmp_path: Path) -> None:
    told = measure(mteb=tmp_path / "mteb", tasks=["stsb", "sts12"])
    assert [Path(path).name for path in told["mteb"]] == ["STSBenchmark.json", "STS12.json"]
    text = COMMANDS["evaluate"].text(told)
    assert text.endswith(f"MTEB results: 2 files, which mteb.ResultCache('{tmp_path}/mteb') reads")
    with pytest.raises(raysts.InputError, match="--similarity l2: MTEB's main score is by cosine"):
        measure(mteb=tmp_path / "mteb", similarity="l2")


def test_results_that_cannot_be_kept_are_shown(measure: Any, tmp_path: Path) -> None:
    (tmp_path / "storage").mkdir()
    (tmp_path / "storage" / "results").touch()
    lines: list[str] = []
    with run_commands.listening(lines.append):
        assert measure()["results"]
    assert lines[-1].startswith(f"the results are not kept for reports: {tmp_path}/storage cannot be written to (")

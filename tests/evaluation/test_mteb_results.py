"""Files in MTEB's format, read by mteb itself. Its numbers: test_minilm_has_its_published_values."""

import json
from pathlib import Path

import pytest
from evaluation_fakes import HashedWords, scored_pairs, write_table

from raysts.data.corpora import Corpus
from raysts.evaluation import harness, mteb_results


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    write_table(tmp_path, "sts/sts12", scored_pairs(50, 1) | {"subset": ["a", "b"] * 25})
    write_table(tmp_path, "sts/stsb_test", scored_pairs(60, 2))
    return Corpus(tmp_path)


def written(corpus: Corpus, folder: Path, model: str = "an/encoder") -> list[Path]:
    rows = harness.evaluate(HashedWords(), corpus, layers=(1, 2), resamples=0)
    return mteb_results.write(rows, folder, model, "r1", 1, "cosine")


def test_mteb_reads_the_values_of_all_rows_concatenated(corpus: Corpus, tmp_path: Path) -> None:
    paths, folder = written(corpus, tmp_path / "out"), tmp_path / "out/results/an__encoder/r1"
    assert paths == [folder / "STS12.json", folder / "STSBenchmark.json"]
    rows = harness.evaluate(HashedWords(), corpus, ["sts12"], layers=(1,), resamples=0)
    whole = {row["metric"]: row["value"] for row in rows if row["aggregation"] == "all"}
    (scores,) = json.loads(paths[0].read_text())["scores"]["test"]
    assert scores["main_score"] == scores["cosine_spearman"] == scores["spearman"] == whole["spearman"]
    assert scores["cosine_pearson"] == whole["pearson"]
    assert json.loads(paths[0].read_text())["dataset_revision"] == f"sha256:{corpus.fingerprint('sts/sts12')}"
    local = written(corpus, tmp_path / "out", "/some/my model")
    assert local[0] == tmp_path / "out/results/raysts__my-model/r1/STS12.json"

    mteb = pytest.importorskip("mteb")
    from mteb.models.model_meta import ModelMeta

    cache = mteb.ResultCache(cache_path=tmp_path / "out")
    for path in paths:
        assert cache.get_task_result_path(path.stem, "an/encoder", "r1") == path
        assert cache.load_task_result(path.stem, "an/encoder", "r1").task_name == path.stem
        found = mteb.TaskResult.from_disk(path, load_historic_data=False)
        assert found.get_score() == json.loads(path.read_text())["scores"]["test"][0]["cosine_spearman"]
        assert found.languages == ["eng"]
        task = mteb.get_task(found.task_name)
        assert task.metadata.main_score == mteb_results.MAIN and set(found.scores) == set(task.eval_splits)
    meta = ModelMeta.model_validate(json.loads((path.parent / "model_meta.json").read_text()))
    assert (meta.name, meta.revision) == ("an/encoder", "r1")


def test_what_cannot_be_written_is_said(corpus: Corpus) -> None:
    assert mteb_results.problems(["sts12", "snli-2way"], None) == mteb_results.problems(["stsb"], "cosine") == []
    (none,) = mteb_results.problems(["snli-2way"], None)
    assert "none of the tasks snli-2way is one of MTEB's" in none
    (other,) = mteb_results.problems(["stsb"], "l2")
    assert "main score is by cosine" in other

import gzip
import hashlib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, Features, Value
from run_commands import listening

from raysts.data import manifest
from raysts.data.corpora import Corpus
from raysts.data.fetch import Download, _mix, beir_sources, fetch, sources
from raysts.data.vectors import VECTORS
from raysts.errors import InputError, RunFailed
from raysts.evaluation.harness import check_tasks
from raysts.schema import TABLES

SNLI_CARD = """---
dataset_info:
  config_name: plain_text
  features:
  - {name: premise, dtype: string}
  - {name: hypothesis, dtype: string}
  - {name: label, dtype: {class_label: {names: {'0': contradiction, '1': neutral, '2': entailment}}}}
configs:
- config_name: plain_text
  data_files: [{split: train, path: plain_text/train-*}, {split: validation, path: plain_text/validation-*},
    {split: test, path: plain_text/test-*}]
---
"""


def _jsonl(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def _parquet(path: Path, rows: list[dict], schema: pa.Schema | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema), path)


def _nli(tag: str, count: int) -> list[dict]:
    pairs = ((f" {tag} premise {i} ", f"{tag} hypothesis {i}", i % 4 - 1) for i in range(count))
    return [dict(zip(("premise", "hypothesis", "label"), pair, strict=True)) for pair in pairs]


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files as the hub's repositories hold them: Parquet, JSON lines, class names in a README, a config in a folder."""
    root = tmp_path_factory.mktemp("mirror")
    pair = {"sentence1": "A  man\tsings.", "sentence2": "Someone sings.", "score": 3.8}
    _jsonl(root / "mteb/sts12-sts/test.jsonl.gz", [pair])
    for split in ("train", "validation", "test"):
        news = {"genre": "main-news", "dataset": "headlines"}
        rows = [news | {"sentence1": f"{split} {i}", "sentence2": "b", "score": i / 2} for i in range(11)]
        _jsonl(root / f"stsbenchmark-sts/{split}.jsonl.gz", rows)
        pair = {"id": "1", "sentence_B": "A dog moves", "relatedness_score": 3.3}
        pair |= {"entailment_AB": "A_entails_B", "entailment_BA": "B_neutral_A"}
        sick = [pair | {"sentence_A": f"A dog runs {i}", "label": i} for i in range(3)]
        types = pa.Table.from_pylist(sick).schema
        types = types.set(types.get_field_index("relatedness_score"), pa.field("relatedness_score", pa.float32()))
        _parquet(root / f"RobZamp/sick/default/{split}/0000.parquet", sick, types)
        # class names in another order than NLI_LABELS: the converter must go by name
        _parquet(root / f"stanfordnlp/snli/plain_text/{split}-00000-of-00001.parquet", _nli(f"snli {split}", 4000))
    (root / "stanfordnlp/snli/README.md").write_text(SNLI_CARD)
    _parquet(root / "nyu-mll/multi_nli/data/train-00000-of-00001.parquet", _nli("mnli", 2000))
    texts = [f"First  line {i}.\n\nSecond line.\n" for i in range(2500)]
    articles = [{"id": str(i), "url": "u", "title": f"T{i}", "text": text} for i, text in enumerate(texts)]
    _parquet(root / "wikimedia/wikipedia/20231101.en/train-00000-of-00002.parquet", articles[:1500])
    _parquet(root / "wikimedia/wikipedia/20231101.en/train-00001-of-00002.parquet", articles[1500:])
    _parquet(root / "wikimedia/wikipedia/20231101.de/train-00000-of-00001.parquet", articles[:5])
    return root


def test_every_source_names_a_canonical_table_and_a_whole_commit() -> None:
    assert set(sources()) <= set(TABLES)
    for parts in sources().values():
        for part in parts:
            assert part.rows > 0 and (part.revision is None or (len(part.revision) == 40 and int(part.revision, 16)))
    assert {part.dataset for parts in sources().values() for part in parts if part.revision is None} == {
        "RobZamp/sick", "SetFit/SentEval-CR", "rahulsikder223/SentEval-MPQA",
    }  # fmt: skip
    assert {name for name in TABLES if name.startswith(("senteval/", "web/"))} <= set(sources())
    for name, archive in VECTORS.items():
        assert name == f"words/{archive.member.removesuffix('.txt')}" and len(archive.sha256) == 64


BEIR_CARD = """---
configs:
- {config_name: default, data_files: [{split: test, path: qrels/test.jsonl}]}
- {config_name: corpus, data_files: [{split: corpus, path: corpus.jsonl}]}
- {config_name: queries, data_files: [{split: queries, path: queries.jsonl}]}
---
"""


def test_a_set_of_beir_by_its_name(tmp_path: Path) -> None:
    """Texts stay as they are; a document without a title, or without a text, stays; it is a task at once."""
    folder = tmp_path / "hub" / "mteb" / "nfcorpus"
    documents = [("MED-1", "Tea", " green  tea\u0301 "), ("MED-2", "", "milk"), ("MED-3", "Title alone", "")]
    _jsonl(folder / "corpus.jsonl", [dict(zip(("_id", "title", "text"), row, strict=True)) for row in documents])
    _jsonl(folder / "queries.jsonl", [{"_id": "P-1", "text": "tea"}, {"_id": "P-2", "text": "of train alone"}])
    _jsonl(folder / "qrels/test.jsonl", [{"query-id": "P-1", "corpus-id": "MED-1", "score": 2}])
    (folder / "README.md").write_text(BEIR_CARD)
    found = fetch(tmp_path / "data", ["beir/nfcorpus"], source=tmp_path / "hub")["tables"]
    assert list(found) == [f"retrieval/nfcorpus/{part}" for part in ("corpus", "queries", "qrels")]
    corpus = Corpus(tmp_path / "data")
    rows = corpus.read("retrieval/nfcorpus/corpus").to_pylist()
    assert [(row["doc_id"], row["title"], row["text"]) for row in rows] == documents
    assert check_tasks(corpus) == ("retrieval",)
    entry = json.loads((tmp_path / "data" / "manifest.json").read_text())
    assert "mteb/nfcorpus" in json.dumps(entry) and "local copy" in json.dumps(entry)
    assert not [name for name in sources() if name.startswith("retrieval/")], "unasked, BEIR is not fetched"
    assert len(beir_sources()) == 3 * 13
    for (part,) in beir_sources().values():
        assert len(part.revision or "") == 40 and int(part.revision or "", 16)
    with pytest.raises(InputError, match=r"table 'beir/nfcorpu' cannot be fetched \(did you mean 'beir/nfcorpus'"):
        fetch(tmp_path / "data", ["beir/nfcorpu"])


def test_a_manifest_that_others_wrote(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    for wrong in ([], {"x": 3}, {"x": {"rows": 1, "files": {"a": 3}}}, {"x": {"files": {}}}):
        path.write_text(json.dumps({"tables": wrong}))
        with pytest.raises(InputError, match=f"{path}: its 'tables' are not as raysts writes them"):
            manifest.read(tmp_path)
    path.write_text(json.dumps({"name": "mine"}))
    pq.write_table(pa.table({"a": [1]}), tmp_path / "x.parquet")
    manifest.record(tmp_path, "x", {})
    assert json.loads(path.read_text())["name"] == "mine" and manifest.read(tmp_path)["x"]["rows"] == 1


def test_fetch_writes_the_canonical_layout(mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In shards, with a manifest."""
    lines: list[str] = []
    monkeypatch.setattr("raysts.data.fetch.SHARD_BYTES", 1)
    monkeypatch.setattr("raysts.data.fetch.ROW_GROUP_ROWS", 1_000)
    wanted = ["sts/sts12", "sts/stsb_train", "sts/stsb_dev", "sts/stsb_test", "sick", "nli", "wikipedia"]
    with listening(lines.append):
        result = fetch(tmp_path, wanted, source=mirror)
    corpus = Corpus(tmp_path)
    assert corpus.tables() == [name for name in TABLES if name in result["tables"]]
    assert corpus.problems(corpus.tables()) == []

    (pair,) = corpus.read("sts/sts12").to_pylist()
    assert pair == {"sentence1": "A man sings.", "sentence2": "Someone sings.", "score": 3.8}
    assert corpus.read("sts/stsb_dev").column("subset")[0].as_py() == "main-news/headlines"
    sick = corpus.read("sick/sick_test").to_pylist()
    assert [row["label"] for row in sick] == ["entailment", "neutral", "contradiction"]
    assert sick[0]["score"] == 3.3 and sick[0]["entailment_ab"] == "A_entails_B"

    train = corpus.read("nli/train").to_pylist()
    assert Counter(row["source"] for row in train) == {"snli": 3000, "mnli": 1500}  # a quarter has label -1
    by_source = {row["source"]: row for row in reversed(train)}
    assert by_source["snli"] == {"premise": "snli train premise 1", "hypothesis": "snli train hypothesis 1",
                                 "label": "contradiction", "source": "snli"}  # fmt: skip
    assert by_source["mnli"]["label"] == "entailment"  # no class names given: the hub's order
    assert len({row["source"] for row in train[:2000]}) == 2  # mixed, not one after the other
    assert result["tables"]["nli/train"]["dropped"] == 1500

    shards = [tmp_path / f"wikipedia/articles/part-{number:05d}.parquet" for number in range(3)]
    assert corpus.files("wikipedia/articles") == shards, "one batch of at most 1,000 rows each"
    assert corpus.read("wikipedia/articles").column("article_id").to_pylist() == list(range(2500))
    (last,) = corpus.read("wikipedia/articles").slice(2499).to_pylist()
    assert last == {"article_id": 2499, "title": "T2499", "text": "First line 2499.\nSecond line."}
    manifest = json.loads((tmp_path / "manifest.json").read_text())["tables"]
    assert set(manifest) == set(result["tables"])
    entry = manifest["sts/stsb_test"]
    assert entry["rows"] == 11 and entry["sources"][0]["dataset"] == "mteb/stsbenchmark-sts"
    assert entry["sources"][0]["revision"] == "local copy" and not entry["sources"][0]["pinned"]
    digest = hashlib.sha256((tmp_path / "sts/stsb_test.parquet").read_bytes()).hexdigest()
    assert entry["files"]["sts/stsb_test.parquet"]["sha256"] == digest
    assert any(line.startswith("nli/train: 4,500 rows, 1,500 ") for line in lines)


WORDS = {
    "word_similarity": "tiger\tcat\t7.35\nking cabbage 0.23\n",
    "word_analogy": ",type,word1,word2,word3,target\n0,capital,Athens,Greece,Oslo,Norway\n",
    "word_categorization": ",category,word\n0,tree,oak\n1,tree,\n",
}


@pytest.fixture(scope="module")
def small_sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sets of SentEval as the hub holds them, the word benchmarks as GitHub does."""
    root = tmp_path_factory.mktemp("small_sets")
    tomatoes = root / "cornell-movie-review-data/rotten_tomatoes"
    tomatoes.mkdir(parents=True)
    features = Features({"text": Value("string"), "label": ClassLabel(names=["neg", "pos"])})
    for split in ("train", "validation", "test"):
        named = Dataset.from_dict({"text": [f"{split} good", f"{split} bad"], "label": [1, 0]}, features=features)
        named.to_parquet(tomatoes / f"{split}.parquet")
        mrpc = {"sentence1": f"{split} a", "sentence2": f"{split} b", "label": 1, "idx": 0}
        _parquet(root / f"nyu-mll/glue/mrpc/{split}-00000-of-00001.parquet", [mrpc])
        phrases = [{"idx": 0, "sentence": "a phrase", "label": 1}, {"idx": 1, "sentence": "unlabelled", "label": -1}]
        _parquet(root / f"stanfordnlp/sst2/data/{split}-00000-of-00001.parquet", phrases)
    for name in ("sst2", "sst5", "subj", "SentEval-CR"):
        for split in ("train", "dev", "test"):
            fine = {"text": f" {name}  {split}", "label": 4, "label_text": "fine"}
            _jsonl(root / f"SetFit/{name}/{split}.jsonl", [fine])
    for split in ("train", "test"):
        _parquet(root / f"SentEval-MPQA/data/{split}-00000-of-00001.parquet", [{"sentence": split, "label": 0}])
        question = {"text": "How far is it ?", "coarse_label": 5, "fine_label": 40}
        _parquet(root / f"CogComp/trec/default/{split}/0000.parquet", [question])
    similar = root / "mfaruqui/eval-word-vectors/data/word-sim"
    words = root / "word-benchmarks"
    for table in ("web/word_similarity", "web/word_analogy", "web/word_categorization"):
        for part in sources()[table]:
            assert part.file is not None
            path = (words if part.file.endswith(".csv") else similar.parents[1]) / part.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(WORDS[part.shape])
    return root


def test_fetch_of_the_sets_of_senteval(small_sets: Path, tmp_path: Path) -> None:
    result = fetch(tmp_path, ["senteval"], source=small_sets)["tables"]
    corpus = Corpus(tmp_path)
    assert corpus.tables() == [name for name in TABLES if name.startswith("senteval/")]
    assert corpus.problems(corpus.tables()) == []
    mr = corpus.read("senteval/mr")
    assert mr.num_rows == 6 and set(mr.column("label").to_pylist()) == {"neg", "pos"}
    assert {row["text"].split()[1]: row["label"] for row in mr.to_pylist()} == {"good": "pos", "bad": "neg"}
    assert corpus.read("senteval/sst2_train").to_pylist() == [{"text": "a phrase", "label": "1"}]
    assert result["senteval/sst2_train"]["dropped"] == 1
    assert corpus.read("senteval/sst5_dev").to_pylist() == [{"text": "sst5 dev", "label": "fine"}]
    assert corpus.read("senteval/trec_test").to_pylist() == [{"text": "How far is it ?", "label": "5"}]
    pairs = [(f"{split} a", f"{split} b", "1") for split in ("train", "validation")]
    assert [tuple(row.values()) for row in corpus.read("senteval/mrpc_train").to_pylist()] == pairs
    assert sorted(corpus.read("senteval/mpqa").column("text").to_pylist()) == ["test", "train"]


def test_fetch_of_the_word_benchmarks(small_sets: Path, tmp_path: Path) -> None:
    result = fetch(tmp_path, ["web"], source=small_sets)["tables"]
    corpus = Corpus(tmp_path)
    assert len(result) == 3 and corpus.problems(corpus.tables()) == []
    similar = corpus.read("web/word_similarity").to_pylist()
    assert len(similar) == 2 * 13
    assert {"dataset": "SimLex999", "word1": "king", "word2": "cabbage", "score": 0.23} in similar
    assert corpus.read("web/word_analogy").to_pylist()[0] == {
        "dataset": "Google", "category": "capital", "a": "Athens", "b": "Greece", "c": "Oslo", "d": "Norway",
    }  # fmt: skip
    oak = {"category": "tree", "word": "oak"}
    names = ("AP", "BLESS", "Battig", "ESSLLI2008")
    assert corpus.read("web/word_categorization").to_pylist() == [{"dataset": name, **oak} for name in names]
    assert result["web/word_categorization"]["dropped"] == 4
    source = result["web/word_analogy"]["sources"][1]
    assert source["file"] == "word-analogy/monolingual/en/msr.csv" and source["revision"] == "local copy"
    assert {entry["status"] for entry in fetch(tmp_path, ["web"], source=small_sets)["tables"].values()} == {"present"}


def test_a_file_of_github_is_asked_for_at_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Served by a file tree in the place of GitHub; then not at all."""
    part = sources()["web/word_analogy"][0]
    for each in sources()["web/word_analogy"]:
        assert each.file is not None
        served = tmp_path / "served" / each.dataset / (each.revision or "") / each.file
        served.parent.mkdir(parents=True, exist_ok=True)
        served.write_text(",type,word1,word2,word3,target\n0,x,a,b,c,d\n")
    monkeypatch.setattr("raysts.data.fetch.GITHUB", (tmp_path / "served").as_uri())
    entry = fetch(tmp_path / "data", ["web/word_analogy"])["tables"]["web/word_analogy"]
    assert entry["rows"] == 4 and entry["sources"][0]["revision"] == part.revision and entry["sources"][0]["pinned"]
    assert fetch(tmp_path / "data", ["web/word_analogy"])["tables"]["web/word_analogy"]["status"] == "present"
    monkeypatch.setattr("raysts.data.fetch.GITHUB", (tmp_path / "nowhere").as_uri())
    with pytest.raises(RuntimeError, match=r"vecto-ai/word-benchmarks .*google-analogies.csv\) could not .*GitHub"):
        fetch(tmp_path / "other", ["web/word_analogy"])
    assert Corpus(tmp_path / "other").tables() == []


def test_a_source_that_gives_other_rows_than_at_its_commit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    part = Download(dataset="a/b", rows=5, shape="sts", revision="0" * 40)
    batches = [(2, pa.table({"x": [1, 2]}))] * 2
    monkeypatch.setattr(Download, "batches", lambda part: iter(batches))
    with pytest.raises(RunFailed, match=r"a/b \(test\) gave 4 rows, 5 were expected at its pinned commit"):
        list(_mix({part: 0}))
    for other in ({"rows": 4}, {"rows": 0}, {"pinned": False}, {"folder": Path("copy")}, {"file": "a.csv"}):
        assert len(list(_mix({replace(part, **other): 0}))) == 2


def test_a_rerun_goes_on_and_never_replaces_foreign_files(mirror: Path, tmp_path: Path) -> None:
    fetch(tmp_path, ["sts/sts12"], source=mirror)
    before = (tmp_path / "sts/sts12.parquet").stat().st_mtime_ns
    _parquet(tmp_path / "sts/stsb_dev.parquet", [{"sentence1": "mine", "sentence2": "mine", "score": 1.0}])
    again = fetch(tmp_path, ["sts/sts12", "sts/stsb_dev", "sts/stsb_test"], source=mirror)["tables"]
    assert {name: entry["status"] for name, entry in again.items()} == {
        "sts/sts12": "present", "sts/stsb_dev": "kept", "sts/stsb_test": "fetched",
    }  # fmt: skip
    assert (tmp_path / "sts/sts12.parquet").stat().st_mtime_ns == before
    assert pq.read_table(tmp_path / "sts/stsb_dev.parquet").num_rows == 1
    (tmp_path / "sts/sts12.parquet").unlink()
    assert fetch(tmp_path, ["sts/sts12"], source=mirror)["tables"]["sts/sts12"]["status"] == "fetched"


def test_wrong_arguments_are_refused_before_anything_is_written(mirror: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with pytest.raises(InputError, match=r"'sts/sts17' cannot be fetched \(did you mean"):
        fetch(data, ["sts/sts17"], source=mirror)
    with pytest.raises(InputError, match="is not a folder"):
        fetch(data, ["sts"], source=tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"does not hold data set mteb/sts13-sts: expected its files in"):
        fetch(data, ["sts/sts12", "sts/sts13"], source=mirror)
    assert not data.exists()
    copy = tmp_path / "copy"  # whose second table is broken
    _jsonl(copy / "sts12-sts/test.jsonl", [{"sentence1": "a", "sentence2": "b", "score": 1}])
    _jsonl(copy / "sts13-sts/test.jsonl", [{"sentence1": "a", "score": 1}])
    with pytest.raises(RuntimeError, match=r"mteb/sts13-sts .*'sentence2' is missing"):
        fetch(data, ["sts/sts12", "sts/sts13"], source=copy)
    assert [path.name for path in (data / "sts").iterdir()] == ["sts12.parquet"]


def test_without_the_hub_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """A pinned commit needs no look-up, a branch does."""
    for library in ("huggingface_hub.constants", "datasets.config"):
        monkeypatch.setattr(f"{library}.HF_HUB_OFFLINE", True)
    for place in ("huggingface_hub.constants.HF_HUB_CACHE", "datasets.config.HF_DATASETS_CACHE"):
        monkeypatch.setattr(place, str(tmp_path / "cache"))
    for table, dataset in (("sts/sts12", "mteb/sts12-sts"), ("sick/sick_test", "RobZamp/sick")):
        with pytest.raises(RuntimeError) as refused:
            fetch(tmp_path, [table])
        line = str(refused.value)
        assert f"data set {dataset} (split test) could not be read from the Hugging Face hub" in line
        assert "HF_ENDPOINT" in line and "--source" in line
    (warned,) = [line for line in caplog.messages if line.startswith("WARNING")]
    assert warned.startswith("WARNING RobZamp/sick: not a pinned commit") and not list(tmp_path.glob("s*/*"))

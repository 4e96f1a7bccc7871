from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from evaluation_fakes import write_table

from raysts.data.corpora import Corpus
from raysts.data.derive import pairs
from raysts.data.windows import select
from raysts.errors import InputError
from raysts.recipes.recipe import Data
from raysts.schema import NLI_LABELS

NLI = {
    "premise": [*"abaabaca"],
    "hypothesis": ["a+", "b+", "a-", "a0", "b0", "a++", "c-", "a--"],
    "label": [NLI_LABELS[code] for code in (0, 0, 2, 1, 1, 0, 2, 2)],
    "source": [*"smssmmss"],
}


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    write_table(tmp_path, "data/nli/train", NLI)
    for name, one, two in (("sts12", ["x", "y"], ["y", "z"]), ("stsb_test", ["x", "w"], ["v", "w"])):
        write_table(tmp_path, f"data/sts/{name}", {"sentence1": one, "sentence2": two, "score": [1.0, 2.0]})
    return Corpus(tmp_path / "data").writing_to(tmp_path / "made")


def written(corpus: Corpus, name: str) -> list[dict]:
    corpus[name].write()
    (path,) = {group.path for group in corpus[name].row_groups()}
    return pq.read_table(path).to_pylist()


def test_triplets_are_the_entailments_with_a_contradiction_and_pairs_are_all(corpus: Corpus) -> None:
    """b has no contradiction, c no entailment."""
    first, alone, second = ("a", "a+", "a-", "s"), ("b", "b+", None, "m"), ("a", "a++", "a--", "m")
    assert [tuple(row.values()) for row in written(corpus, "nli/triplets")] == [first, second]
    assert [tuple(row.values()) for row in written(corpus, "nli/pairs")] == [first, alone, second]


def test_pairs_take_the_contradictions_of_a_premise_in_turn() -> None:
    labels = {"+": "entailment", "-": "contradiction", "0": "neutral"}
    hypotheses = ["b-1", "a+1", "a-1", "a+2", "a-2", "b+1", "a+3", "c+1", "b+2", "a01"]
    table = {"premise": [name[0] for name in hypotheses], "hypothesis": hypotheses}
    made = pairs({"nli/train": pa.table({**table, "label": [labels[name[1]] for name in hypotheses]})})
    assert dict(zip(made.column("positive").to_pylist(), made.column("negative").to_pylist(), strict=True)) == {
        "a+1": "a-1", "a+2": "a-2", "a+3": "a-1", "b+1": "b-1", "b+2": "b-1", "c+1": None,
    }  # fmt: skip
    assert made.column("anchor").to_pylist() == [name[0] for name in made.column("positive").to_pylist()]


def test_triplets_that_are_there_are_the_pairs(corpus: Corpus, tmp_path: Path) -> None:
    own = {"anchor": ["p", "p"], "positive": ["q", "r"], "negative": [None, "s"]}
    pq.write_table(pa.table(own), tmp_path / "data/nli/triplets.parquet")
    corpus = Corpus(tmp_path / "data").writing_to(tmp_path / "made")
    corpus.check(["nli/pairs"])
    assert written(corpus, "nli/pairs") == pa.table(own).to_pylist()
    for table in ("triplets", "train"):
        (tmp_path / f"data/nli/{table}.parquet").unlink()
    with pytest.raises(InputError, match=r"'nli/pairs' is missing: .* \(or what it is made of, nli/triplets or nli/t"):
        Corpus(tmp_path / "data").check(["nli/pairs"])


def test_sentences_are_distinct_within_their_source(corpus: Corpus) -> None:
    rows = Counter((row["sentence"], row["source"]) for row in written(corpus, "nli/sentences"))
    assert set(rows.values()) == {1}
    assert rows.keys() == {*zip(NLI["premise"] + NLI["hypothesis"], NLI["source"] * 2, strict=True)}


def test_sentences_to_teach_on_are_those_of_nli_and_wikipedia(corpus: Corpus, tmp_path: Path) -> None:
    """Whichever is there."""
    assert written(corpus, "sentences") == written(corpus, "nli/sentences")
    write_table(tmp_path, "data/wikipedia/sentences", {"sentence": ["a fact", "a fact", "p"]})
    corpus = Corpus(tmp_path / "data").writing_to(tmp_path / "made")
    rows = [(row["sentence"], row["source"]) for row in written(corpus, "sentences")]
    assert rows[len(written(corpus, "nli/sentences")) :] == [("a fact", "wikipedia"), ("p", "wikipedia")]


def test_targets_are_the_sentences_of_the_test_sets_without_scores(corpus: Corpus) -> None:
    rows = written(corpus, "targets")
    assert [(row["sentence"], row["source"]) for row in rows] == [
        ("x", "sts12"), ("y", "sts12"), ("z", "sts12"), ("x", "stsb_test"), ("w", "stsb_test"), ("v", "stsb_test"),
    ]  # fmt: skip
    assert rows[0].keys() == {"sentence", "source"}
    (group,) = select(corpus, "targets", Data(sources=("stsb_test",)))
    assert group.size == 3 and group.rows is not None and group.rows.tolist() == [3, 4, 5]


def test_planning_writes_nothing_and_knows_rows_and_fingerprints(corpus: Corpus, tmp_path: Path) -> None:
    assert corpus.rows("nli/triplets") == 2
    corpus.check(["nli/triplets", "targets"])
    assert corpus.tables() == ["sts/sts12", "sts/stsb_test", "nli/train"]
    before = corpus.fingerprint("nli/triplets"), corpus.fingerprint("targets")
    pq.write_table(pa.table(NLI).slice(1), tmp_path / "data/nli/train.parquet")
    again = Corpus(tmp_path / "data")
    assert again.fingerprint("nli/triplets") != before[0] and again.fingerprint("targets") == before[1]
    assert not (tmp_path / "made").exists()


def test_what_cannot_be_made_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    pq.write_table(pa.table({name: values[:1] for name, values in NLI.items()}), tmp_path / "data/nli/train.parquet")
    with pytest.raises(InputError, match="nli/triplets: no rows can be made of nli/train"):
        select(Corpus(tmp_path / "data").writing_to(tmp_path / "made"), "nli/triplets", Data())
    (tmp_path / "data/nli/train.parquet").unlink()
    with pytest.raises(InputError, match="table 'nli/train' is missing"):
        Corpus(tmp_path / "data").check(["nli/triplets"])

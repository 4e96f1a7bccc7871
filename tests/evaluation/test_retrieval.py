from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from evaluation_fakes import HashedWords, accurate, correlated, scored_pairs, write_table
from scipy import stats

from raysts.data.corpora import Corpus
from raysts.errors import InputError
from raysts.evaluation import harness, retrieval
from raysts.evaluation.compare import compare_systems, conclusion
from raysts.evaluation.retrieval import METRICS, retrieval_task, search
from raysts.evaluation.scores import read, scores_by_set, write
from raysts.evaluation.standings import format_results
from raysts.evaluation.tasks import lookup
from raysts.models.prompts import Prompts, SideText
from raysts.models.sentence_model import SentenceModel
from raysts.ops.similarity import cosine_of_vectors, dot_of_vectors, l2_of_vectors

WORDS = [f"word{i}" for i in range(30)]


def collection(root: Path, name: str, documents: int = 60, queries: int = 25, seed: int = 0) -> None:
    """Graded judgements; documents with equal texts, one that is a query, a query without a relevant document, one without
    judgements; ids of several lengths, so that their order is not that of numbers."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, 4)) for _ in range(documents)]
    asked = [" ".join(rng.choice(WORDS, 3)) for _ in range(queries)]
    texts[1] = texts[0]
    texts[2] = asked[0]
    title = [None, ""] + ["Title"] * (documents - 2)
    write_table(root, f"retrieval/{name}/corpus", {"doc_id": list(range(documents)), "text": texts, "title": title})
    write_table(root, f"retrieval/{name}/queries", {"query_id": [f"q{i}" for i in range(queries)], "text": asked})
    qrels: dict[str, list[Any]] = {"query_id": [], "doc_id": [], "score": []}
    for query in range(queries - 1):
        for row in rng.choice(documents, 8, replace=False):
            qrels["query_id"].append(f"q{query}")
            qrels["doc_id"].append(int(row))
            qrels["score"].append(0 if query == 1 else int(rng.integers(-1, 4)))
    write_table(root, f"retrieval/{name}/qrels", qrels)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    collection(tmp_path, "Books")
    collection(tmp_path, "news", seed=1)
    return Corpus(tmp_path)


def by_query(corpus: Corpus, model: HashedWords, name: str = "Books") -> dict[str, np.ndarray]:
    (judged,) = retrieval_task(name).sets(corpus)
    found = judged.row_scores(lookup(judged.texts, model.represent(judged.texts)), {"cosine": cosine_of_vectors})
    return {scores.metrics[0]: scores.values for scores in found}


def test_metrics_are_those_of_trec_eval(corpus: Corpus) -> None:
    """``recip_rank`` has no depth: its run is the first ten documents."""
    pytrec_eval = pytest.importorskip("pytrec_eval")
    model, read_ = HashedWords(), lambda part: corpus.read(f"retrieval/Books/{part}").to_pylist()
    documents, queries = read_("corpus"), read_("queries")
    texts = [f"{row['title']} {row['text']}" if row["title"] else row["text"] for row in documents]
    represented = [model.represent([query["text"]] * len(texts)) for query in queries]
    cosines = [cosine_of_vectors(query, model.represent(texts)) for query in represented]
    qrels: dict[str, dict[str, int]] = {}
    for row in read_("qrels"):
        qrels.setdefault(row["query_id"], {})[str(row["doc_id"])] = row["score"]
    run, ids = {}, [str(row["doc_id"]) for row in documents]
    for query, scores in zip(queries, cosines, strict=True):
        run[query["query_id"]] = dict(zip(ids, scores.tolist(), strict=True))
    expected = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "recall.100", "map"}).evaluate(run)
    ten = {q: dict(sorted(r.items(), key=lambda d: (np.float32(d[1]), d[0]))[-10:]) for q, r in run.items()}
    first = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank"}).evaluate(ten)
    found = by_query(corpus, model)
    assert list(expected) == [f"q{i}" for i in range(24)], "q24 has no judgement; q1 none that is relevant"
    for metric, theirs in (("ndcg@10", "ndcg_cut_10"), ("recall@100", "recall_100"), ("map", "map")):
        assert found[metric] == pytest.approx([values[theirs] for values in expected.values()], abs=1e-6), metric
    assert found["mrr@10"] == pytest.approx([values["recip_rank"] for values in first.values()], abs=1e-6)
    assert found["map"][1] == 0 and found["map"].max() > 0.2


def test_metrics_by_hand(tmp_path: Path) -> None:
    """Ranked a, c, b by the query; a and b are equal, so b, whose id is larger, stands first."""
    write_table(tmp_path, "retrieval/x/corpus", {"doc_id": ["a", "b", "c"], "text": ["one two", "one two", "three"]})
    write_table(tmp_path, "retrieval/x/queries", {"query_id": ["q"], "text": ["one two"]})
    write_table(tmp_path, "retrieval/x/qrels", {"query_id": ["q", "q"], "doc_id": ["a", "c"], "score": [2, 1]})
    found, ideal = by_query(Corpus(tmp_path), HashedWords(), "x"), 2 + 1 / np.log2(3)
    assert found["ndcg@10"] == pytest.approx((2 / np.log2(3) + 1 / 2) / ideal)
    assert found["mrr@10"] == pytest.approx(1 / 2)
    assert found["recall@100"] == 1 and found["map"] == pytest.approx((1 / 2 + 2 / 3) / 2)
    (judged,) = retrieval_task("x").sets(Corpus(tmp_path))
    cases = ((9, 1 / np.log2(11), 1 / 10, 0.5), (10, 0, 0, 0.5), (99, 0, 0, 0.5), (100, 0, 0, 0))
    for place, ndcg, mrr, recall in cases:
        ranked = np.full((1, 101), -1)
        ranked[0, place] = 0  # c: documents are in the descending order of their ids
        values = {metric: of_query[0] for metric, of_query in judged.measure(ranked).items()}
        assert values["ndcg@10"] == pytest.approx(ndcg / ideal) and values["map"] == pytest.approx(0.5 / (place + 1))
        assert (values["mrr@10"], values["recall@100"]) == (mrr, recall), "the eleventh and the hundred and first"


@pytest.mark.parametrize("similarity", [cosine_of_vectors, dot_of_vectors, l2_of_vectors])
def test_search_in_blocks_is_that_of_all_pairs(similarity: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few distinct vectors, so that ties lie across the borders of blocks and of what is kept."""
    monkeypatch.setattr(retrieval, "_DOCUMENTS", 7)
    monkeypatch.setattr(retrieval, "_QUERIES", 3)
    rng = np.random.default_rng(0)
    some = rng.normal(size=(9, 5)).astype(np.float32)
    queries, documents = {"vectors": some[rng.integers(0, 9, 10)]}, {"vectors": some[rng.integers(0, 9, 50)]}
    found = search(queries, documents, similarity, 20)
    for row, vector in zip(found, queries["vectors"], strict=True):
        scores = similarity({"vectors": np.tile(vector, (50, 1))}, documents).astype(np.float32)
        assert row.tolist() == np.lexsort([np.arange(50), -scores])[:20].tolist()
    zeros = {"vectors": np.array([[0.0], [-0.0]])}
    found = search({"vectors": np.array([[-1.0]])}, zeros, lambda a, b: (a["vectors"] * b["vectors"])[:, 0])
    assert found.tolist() == [[0, 1]], "-0 is 0"
    with pytest.raises(RuntimeError, match="NaN or infinite"):
        search(queries, {"vectors": np.full((3, 5), np.nan, np.float32)}, similarity)


def test_every_set_is_measured_once_with_the_interval_over_queries(corpus: Corpus) -> None:
    rows = harness.evaluate(HashedWords(), corpus, ["retrieval", "retrieval:news"], layers=(1,), resamples=300)
    values = {name: by_query(corpus, HashedWords(), name) for name in ("Books", "news")}
    rows = [row for row in rows if row["role"] != "BM25"]
    expected = [(f"retrieval:{n}", m, pytest.approx(values[n][m].mean()), 24) for n in values for m in METRICS]
    assert [(row["dataset"], row["metric"], row["value"], row["n"]) for row in rows] == expected
    drawn = np.random.default_rng(5).integers(0, 24, (2000, 24))
    for row in (row for row in rows if row["dataset"] == "retrieval:Books"):
        expected = np.quantile(values["Books"][row["metric"]][drawn].mean(axis=1), [0.025, 0.975])
        assert (row["ci_low"], row["ci_high"]) == pytest.approx(expected, abs=0.03)


def reference_bm25(documents: list[str], query: str) -> np.ndarray:
    """Lucene's formula, Robertson et al. with idf log(1 + (N - n + .5) / (n + .5)), and no factor k1 + 1."""
    split = [document.lower().split() for document in documents]
    mean, scores = np.mean([len(words) for words in split]), np.zeros(len(split))
    for word in query.lower().split():
        n = sum(word in words for words in split)
        idf = np.log(1 + (len(split) - n + 0.5) / (n + 0.5))
        counts = np.array([words.count(word) for words in split])
        lengths = np.array([len(words) for words in split])
        scores += idf * counts / (counts + 0.9 * (1 - 0.4 + 0.4 * lengths / mean))
    return scores


def test_bm25_stands_beside_the_models(corpus: Corpus) -> None:
    """By the formula; what has no word in common with the query is not found."""
    (judged,) = retrieval_task("Books").sets(corpus)
    documents = [*map(str, judged.documents)]
    for ranked, query in zip(retrieval.search_words(judged), judged.queries, strict=True):
        scores = reference_bm25(documents, str(query)).astype(np.float32)
        found = ranked[ranked >= 0]
        assert len(found) == (scores > 0).sum() and (ranked[len(found) :] == -1).all()
        assert scores[found] == pytest.approx(np.sort(scores[scores > 0])[::-1], abs=1e-5)
    rows = harness.evaluate(HashedWords(), corpus, ["retrieval:Books"], layers=(1, 2), resamples=20)
    beside = [row for row in rows if row["role"] == "BM25"]
    assert [(row["layers"], row["metric"]) for row in beside] == [(layers, m) for layers in "12" for m in METRICS]
    values = retrieval.search_words(judged)
    assert beside[0]["value"] == pytest.approx(judged.measure(values)["ndcg@10"].mean())
    assert {row["similarity"] for row in beside} == {"bm25"} and beside[0]["ci_low"] < beside[0]["value"]
    assert [cell for cell in format_results(rows).splitlines() if " BM25 " in cell], "a line of its own in the table"


def test_bm25_cuts_words_and_finds_nothing_without_any(tmp_path: Path) -> None:
    """d is found by its stem; a query of stop words alone, and one that nothing holds, find nothing."""
    write_table(tmp_path, "retrieval/x/corpus", {"doc_id": ["c", "d"], "text": ["the", "Dogs' running, and"]})
    queries = {"query_id": ["p", "q", "r"], "text": ["a dog runs", "the and", "cats"]}
    write_table(tmp_path, "retrieval/x/queries", queries)
    write_table(tmp_path, "retrieval/x/qrels", {"query_id": ["p", "q", "r"], "doc_id": ["d"] * 3, "score": [1] * 3})
    (judged,) = retrieval_task("x").sets(Corpus(tmp_path))
    assert retrieval.search_words(judged).tolist() == [[0, -1], [-1, -1], [-1, -1]]
    assert [scores.values.tolist() for scores in judged.baseline_scores()] == [[1.0, 0.0, 0.0]] * len(METRICS)
    write_table(tmp_path, "retrieval/x/corpus", {"doc_id": ["c", "d"], "text": ["the", "a"]})
    (judged,) = retrieval_task("x").sets(Corpus(tmp_path))
    assert retrieval.search_words(judged).tolist() == [[-1, -1]] * 3


def test_two_models_are_compared_query_by_query(corpus: Corpus, tmp_path: Path) -> None:
    """Kept, read again, and compared by the paired bootstrap and Student's test."""
    model = HashedWords()
    (judged,) = retrieval_task("Books").sets(corpus)
    vectors = {("mean", str(k)): v for k, v in model.represent_layers(judged.texts, (1, 2)).items()}
    by = {"cosine": cosine_of_vectors}
    of_model = {choice: judged.row_scores(lookup(judged.texts, v), by) for choice, v in vectors.items()}
    write(tmp_path / "kept.parquet", of_model)
    kept = read(tmp_path / "kept.parquet") or {}
    a, b = scores_by_set(kept["mean", "1"]), scores_by_set(kept["mean", "2"])
    assert list(a) == [f"retrieval:Books {metric}" for metric in METRICS]
    assert accurate("snli-2way", np.ones(2)).key == "snli-2way", "of one metric, the name of the set"
    assert correlated("stsb", np.ones(2), np.ones(2)).key == "stsb"
    rows = compare_systems([a], [b], 500)
    found = next(row for row in rows if row["metric"] == "map")
    x, y = (by["retrieval:Books map"].values for by in (a, b))
    expected = stats.ttest_rel(x, y)
    assert (found["dataset"], found["test"], found["df"]) == ("retrieval:Books", "paired-t", 23)
    assert (found["t"], found["test_p"]) == pytest.approx((expected.statistic, expected.pvalue))
    assert found["difference"] == pytest.approx((x - y).mean())
    assert [row["n"] for row in rows if row["dataset"] == "overall"] == [24] * len(METRICS)
    assert "ndcg@10 on retrieval:Books" in conclusion("A", "B", rows) and "paired t test" in conclusion("A", "B", rows)


def test_by_default_where_it_is_whole(corpus: Corpus, tmp_path: Path) -> None:
    write_table(tmp_path, "sts/stsb_test", scored_pairs(30))
    write_table(tmp_path, "retrieval/half/queries", {"query_id": ["q"], "text": ["a word"]})
    corpus = Corpus(tmp_path)
    assert harness.default_tasks(corpus) == ("stsb", "retrieval")
    (line,) = harness.left_out(corpus, ["retrieval"])
    assert line.startswith("retrieval: left out half; ") and "retrieval/half/corpus" in line
    with pytest.raises(InputError, match=r"'retrieval:half' has no files .* retrieval/half/corpus.parquet"):
        harness.check_tasks(corpus, ["retrieval:half"])
    with pytest.raises(InputError, match=r"unknown task 'retrieva:Books'"):
        harness.check_tasks(corpus, ["retrieva:Books"])
    assert "retrieval/Books/qrels" in corpus.tables() and "retrieval/half/queries" in corpus.tables()


@pytest.mark.parametrize(("part", "columns", "message"), [
    ("corpus", {"doc_id": [1, 1], "text": ["a", "b"]}, r"x/corpus: 1 ids are there several times \(the first: '1'\)"),
    ("queries", {"query_id": ["q", "q"], "text": ["a", "b"]}, r"x/queries: 1 ids are there several times"),
    ("qrels", {"query_id": ["q", "q"], "doc_id": [1, 1], "score": [1, 0]}, r"1 pair of query_id and doc_ids are there"),
    ("qrels", {"query_id": ["q"], "doc_id": [9], "score": [1]}, r"'doc_id' are not in retrieval/x/corpus .*'9'"),
    ("qrels", {"query_id": ["p"], "doc_id": [1], "score": [1]}, r"'query_id' are not in retrieval/x/queries .*'p'"),
    ("qrels", {"query_id": ["q"], "doc_id": [1], "score": [0.5]}, r"row 0, column 'score': score 0.5 must be a whole number"),
    ("qrels", {"query_id": ["q"], "doc_id": [1], "score": [0]}, r"no score is above 0"),
    ("corpus", {"doc_id": [1, 2], "text": ["", " "]}, r"x/corpus: no document has a title or a text"),
    ("corpus", {"doc_id": [1], "title": ["a"]}, r"column 'text' is missing"),
    ("corpus", {"docid": [1, 2], "text": ["a", "b"]}, r"column 'doc_id' is missing .* 'docid'"),
])  # fmt: skip
def test_what_cannot_be_used_is_refused(tmp_path: Path, part: str, columns: dict[str, Any], message: str) -> None:
    sound: dict[str, dict[str, Any]] = {
        "corpus": {"doc_id": [1, 2], "text": ["a", "b"]},
        "queries": {"query_id": ["q"], "text": ["a"]},
        "qrels": {"query_id": ["q"], "doc_id": [1], "score": [1]},
    }
    for name, table in (sound | {part: columns}).items():
        write_table(tmp_path, f"retrieval/x/{name}", table)
    with pytest.raises(InputError, match=message):
        harness.check_tasks(Corpus(tmp_path), ["retrieval:x"])


def test_a_title_is_a_document_and_nothing_is_none(tmp_path: Path) -> None:
    """b is its title; c and d are empty, and c is relevant: it counts as not found."""
    documents = {"doc_id": ["a", "b", "c", "d"], "text": ["three", None, " ", ""], "title": [None, "one two", "", None]}
    write_table(tmp_path, "retrieval/x/corpus", documents)
    write_table(tmp_path, "retrieval/x/queries", {"query_id": ["q"], "text": ["one two"]})
    write_table(tmp_path, "retrieval/x/qrels", {"query_id": ["q", "q"], "doc_id": ["b", "c"], "score": [1, 1]})
    corpus = Corpus(tmp_path)
    assert harness.check_tasks(corpus, ["retrieval:x"])
    (judged,) = retrieval_task("x").sets(corpus)
    assert sorted(map(str, judged.documents)) == ["one two", "three"]
    assert harness.left_out(corpus, ["retrieval"]) == ["retrieval:x: 2 documents without title and text left out"]
    found = by_query(corpus, HashedWords(), "x")
    assert found["ndcg@10"] == pytest.approx(1 / (1 + 1 / np.log2(3))) and found["recall@100"] == 0.5


def test_a_model_reads_queries_and_documents_behind_its_prompts(small: SentenceModel, corpus: Corpus) -> None:
    """As its own ``encode`` does with the prompts by their names; texts that are neither have none."""
    model = SentenceModel(small.encoder, small.tokenizer, small.max_length)
    texts = ["a man", SideText("a man", "query"), SideText("a man", "document"), "a man"]
    model.prompts = Prompts(texts={"query": "who plays a ", "passage": "the dog is "})
    found = model.represent(texts)["vectors"]
    for row, prompt in enumerate(["", "query", "passage", ""]):
        assert found[row] == pytest.approx(model.encode("a man", prompt=prompt), abs=1e-6)
    assert np.abs(found[1] - found[2]).max() > 1e-3
    model.prompts = replace(model.prompts, texts={"query": "who plays a "}, default="query")
    assert model.represent(texts[2:3])["vectors"][0] == pytest.approx(model.encode("a man", prompt=""), abs=1e-6)
    model.prompts = Prompts(texts={"both": "the dog is "}, default="both")
    assert model.represent(texts[1:2])["vectors"][0] == pytest.approx(model.encode("a man"), abs=1e-6)


def test_queries_that_cannot_search_the_documents_of_another_model() -> None:
    def of(dim: int, similarity: str) -> Any:
        return SimpleNamespace(dim=dim, similarities={similarity: None, "cosine": None})

    assert retrieval.index_problems(of(4, "dot"), of(4, "gauss")) == []
    dims, compared = retrieval.index_problems(of(4, "gauss"), of(5, "cosine"))
    assert "gives vectors of 5 dimensions and the model of 4" in dims
    assert "compares texts by 'gauss'" in compared and compared.endswith("it must be one of cosine, dot, l2, manhattan")

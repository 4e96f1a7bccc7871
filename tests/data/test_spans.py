from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_runs import tokenize_table

from raysts.data import spans
from raysts.data.checks import BATCH_ROWS
from raysts.data.corpora import Corpus
from raysts.data.user import UserData
from raysts.data.windows import StoreSpec, Windows, select, selected_rows
from raysts.data.world import world_tokenizer
from raysts.recipes.recipe import Data

NAME = "wikipedia/sentences"
WORDS = [f"w{number}" for number in range(200)]


def test_spans_are_pieces_that_begin_and_end_at_words() -> None:
    text = "  ".join(WORDS) + ".\n"
    drawn = [span for number in range(300) for span in spans.spans_of(f"{number}\t{text}", 4, 0)]
    lengths = [len(span.split()) for span in drawn]
    assert all(span in text or span.split()[0].isdigit() for span in drawn) and not any(s != s.strip() for s in drawn)
    assert {min(lengths), max(lengths)} == {4, 64}
    # Log-uniform: as many lengths from 4 to 15 as from 16 to 64, by the logarithms of 16/4 and 65/16.
    assert np.mean(np.array(lengths) < 16) == pytest.approx(np.log(4) / np.log(65 / 4), abs=0.05)
    assert len({*drawn}) > 1_000, "of 1,200"
    shorter = [len(span.split()) for number in range(100) for span in spans.spans_of(f"{number}\t{text}", 4, 0, 2, 5)]
    assert {*shorter} == {2, 3, 4, 5}


def test_a_draw_depends_on_text_and_seed_alone() -> None:
    text = " ".join(WORDS)
    assert spans.spans_of(text, 6, 0)[:4] == spans.spans_of(text, 4, 0)
    assert not set(spans.spans_of(text, 4, 0)) & {*spans.spans_of(text, 4, 1), *spans.spans_of(text + "!", 4, 0)}


def test_short_texts_and_texts_without_white_space() -> None:
    assert spans.spans_of("a dog runs", 2, 0) == ["a dog runs"] * 2
    chinese = "".join(chr(0x4E00 + number) for number in range(100))
    assert all(span in chinese and 4 <= len(span) <= 64 for span in spans.spans_of(chinese, 4, 0))


def test_documents_are_longer_than_a_few_sentences() -> None:
    assert spans.are_documents([" ".join(WORDS)] * 3 + ["a dog runs"] * 2)
    assert not spans.are_documents(["a dog runs"] * 3 + [" ".join(WORDS)] * 2) and not spans.are_documents([])


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """4,000 texts of 30 words, of the user's."""
    texts = [f"text {number} " + " ".join(WORDS[number % 100 :][:28]) for number in range(4_000)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "docs.parquet")
    return Corpus(None, user=UserData.of(tmp_path / "docs.parquet")).writing_to(tmp_path / "tables")


def test_each_text_stands_before_its_spans(corpus: Corpus) -> None:
    table = corpus.table_with_spans(NAME, Data(spans=4))
    texts = corpus.read(NAME).column("sentence").to_pylist()
    batches = list(table.batches(["sentence"]))
    assert [batch.num_rows for batch in batches] == [BATCH_ROWS, BATCH_ROWS, 20_000 - 2 * BATCH_ROWS]
    rows = [text for batch in batches for text in batch.column(0).to_pylist()]
    assert rows[::5] == texts and rows[6:10] == spans.spans_of(texts[1], 4, 0) and table.rows == len(rows)
    table.write()
    assert pq.read_table(table.path).column("sentence").to_pylist() == rows
    others = (Data(spans=5), Data(spans=4, sample_seed=1), Data(spans=4, span_tokens=(2, 8)))
    prints = {corpus.table_with_spans(NAME, data).fingerprint for data in (Data(), Data(spans=4), *others)}
    assert len(prints) == 5 and corpus.table_with_spans(NAME, Data()) is corpus[NAME]


def read(corpus: Corpus, data: Data, column: str = "sentence") -> list[Any]:
    batches = (batch for group in select(corpus, NAME, data) for batch in selected_rows(group, NAME, [column]))
    return [value for batch in batches for value in batch.column(0).to_pylist()]


def test_a_sample_is_one_of_texts_with_all_their_spans(corpus: Corpus) -> None:
    corpus[NAME].write(), corpus.table_with_spans(NAME, Data(spans=4)).write()
    texts, rows = read(corpus, Data(sample=50)), read(corpus, Data(sample=50, spans=4))
    assert rows[::5] == texts and len(rows) == 250
    assert rows == [row for text in texts for row in (text, *spans.spans_of(text, 4, 0))]


def test_documents_of_a_token_store_are_whole_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysts.data.windows.WINDOW", 8)
    (tmp_path / "docs.txt").write_text("".join(f"text {number} {' '.join(WORDS[:20])}\n" for number in range(12)))
    (tmp_path / "asked.txt").write_text("one\ntwo\n")
    data = Data(spans=2)
    corpus = Corpus(None, user=UserData.of(tmp_path / "docs.txt", queries=tmp_path / "asked.txt")).writing_to(tmp_path)
    corpus.table_with_spans(NAME, data).write()
    spec = StoreSpec(
        table=NAME, fingerprint="", texts=("sentence",), values=(), tokenizer="", max_length=20, data=data, query_prompt="?"
    )  # fmt: skip
    tokenize_table(corpus, spec, world_tokenizer(), tmp_path / "store")
    rows, windows = np.array(read(corpus, data)), Windows(tmp_path / "store")
    assert rows[windows.documents(2)].tolist() == (tmp_path / "docs.txt").read_text().splitlines()


@pytest.mark.parametrize("sample", [None, 50])
def test_queries_stand_evenly_between_documents_and_have_no_spans(corpus: Corpus, sample: int | None) -> None:
    asked = [f"query {number}" for number in range(1_500)]
    file = Path(corpus.user.paths[0]).parent / "asked.txt"
    file.write_text("\n".join(asked))
    both = Corpus(None, user=UserData.of(corpus.user.text, queries=file)).writing_to(file.parent / "tables")
    data = Data(spans=2, sample=sample)
    table, documents = both.table_with_spans(NAME, data), corpus.table_with_spans(NAME, data)
    assert (table.rows, table.query_rows) == (4_000 * 3 + 1_500, 1_500)
    assert both.fingerprint(NAME) != corpus.fingerprint(NAME)
    table.write(), documents.write()
    sides, texts = np.array(read(both, data, "query")), np.array(read(both, data))
    assert [texts[sides == side].tolist() for side in (False, True)] == [read(corpus, data), asked]
    if sample is None:
        assert {int(part.sum()) for part in np.array_split(sides, 15)} <= {99, 100, 101}

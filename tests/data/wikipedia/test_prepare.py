import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import damage
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from articles import SMALL, articles_of
from run_commands import listening

from raysts.data import manifest
from raysts.data.corpora import Corpus
from raysts.data.wikipedia import prepare
from raysts.data.wikipedia.prepare import make_run, pieces, prepare_wikipedia
from raysts.data.wikipedia.wikipedia import clean, dedup_key, split_sentences
from raysts.errors import InputError, RunFailed


@pytest.fixture(scope="module")
def articles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("articles") / "articles.parquet"
    pq.write_table(articles_of(300), path)
    return path


def distinct_sentences(table: pa.Table) -> set[tuple[str, int]]:
    """The least of each sentence's forms, with its article."""
    best: dict[bytes, tuple[str, int]] = {}
    for article_id, text in zip(table["article_id"].to_pylist(), table["text"].to_pylist(), strict=True):
        for sentence in split_sentences(clean(text)):
            key = dedup_key(sentence)
            best[key] = min(best.get(key, (sentence, article_id)), (sentence, article_id))
    return set(best.values())


def _rows(root: Path) -> list[tuple[str, int]]:
    table = Corpus(root).read("wikipedia/sentences", ["sentence", "article_id"])
    return list(zip(table["sentence"].to_pylist(), table["article_id"].to_pylist(), strict=True))


@pytest.fixture(scope="module")
def expected(articles: Path) -> set[tuple[str, int]]:
    return distinct_sentences(pq.read_table(articles))


@pytest.fixture(scope="module")
def calm(articles: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[str]]:
    """The sentences of the articles, made in this process, what was returned and what was said."""
    root, said = tmp_path_factory.mktemp("calm"), []
    with listening(said.append):
        return root, prepare_wikipedia(articles, root, **SMALL), said


def test_all_sentences_once_and_a_second_call_does_nothing(articles: Path, expected: set[Any], calm: Any) -> None:
    root, done, said = calm
    rows = _rows(root)
    assert len(rows) == len(expected) == done["rows"] == done["distinct"] < done["found"] and set(rows) == expected
    assert rows != sorted(rows)  # shuffled
    assert done["articles"] == 300 and len(said) == 3
    assert len(Corpus(root).files("wikipedia/sentences")) > 1  # several ranges were merged
    assert [path.name for path in (root / "wikipedia").iterdir()] == ["sentences"]  # the work is cleared away

    before = {path: path.stat().st_mtime_ns for path in (root / "wikipedia/sentences").iterdir()}
    with listening(said.append):
        again = prepare_wikipedia(articles, root, **SMALL)
    assert again["status"] == "present" and said[-1].startswith("wikipedia/sentences: present")
    assert {path: path.stat().st_mtime_ns for path in (root / "wikipedia/sentences").iterdir()} == before
    with pytest.raises(InputError, match="nothing is overwritten"):
        prepare_wikipedia(articles, root, seed=4)


def test_the_sample_depends_on_seed_and_content_only(articles: Path, tmp_path: Path) -> None:
    whole = pq.read_table(articles)
    prepare_wikipedia(articles, tmp_path / "a", sample=300, seed=5)
    # the same articles in another order, in shards, in small blocks
    order, shards = np.random.default_rng(1).permutation(len(whole)), tmp_path / "shards"
    shards.mkdir()
    for number, part in enumerate(np.array_split(order, 5)):
        pq.write_table(whole.take(part), shards / f"{number}.parquet")
    prepare_wikipedia(shards, tmp_path / "b", sample=300, seed=5, block_bytes=16_000)
    first = _rows(tmp_path / "a")
    assert len(first) == 300 and first == _rows(tmp_path / "b")
    prepare_wikipedia(articles, tmp_path / "c", sample=100, seed=5)
    assert _rows(tmp_path / "c") == first[:100]  # a smaller sample begins a larger one
    prepare_wikipedia(articles, tmp_path / "d", sample=300, seed=6)
    assert len(set(_rows(tmp_path / "d")) & set(first)) < 290
    assert Corpus(tmp_path / "a").files("wikipedia/sentences") == [tmp_path / "a/wikipedia/sentences.parquet"]


def test_too_large_a_sample_fails_and_work_is_used_again(articles: Path, expected: set[Any], tmp_path: Path) -> None:
    distinct = len(expected)
    with pytest.raises(InputError, match=rf"gives only {distinct:,} distinct sentences"):
        prepare_wikipedia(articles, tmp_path, sample=distinct + 1)
    assert Corpus(tmp_path).tables() == []
    said: list[str] = []
    with listening(said.append):
        assert prepare_wikipedia(articles, tmp_path, sample=distinct)["rows"] == distinct
    assert said[0].startswith("sentences: going on with")


def test_the_input_is_known_by_all_of_it(tmp_path: Path) -> None:
    """A change in the middle of a file is one, also while it is read."""
    middle, names = tmp_path / "articles", []
    for content in (b"a", b"b", b"a"):
        middle.write_bytes(bytes(3 << 20) + content + bytes(3 << 20))
        names.append(prepare._fingerprint([middle]))
    assert names[0] == names[2] != names[1]
    pq.write_table(articles_of(30), table := tmp_path / "articles.parquet")

    def changed(*work: Any) -> Iterator[dict[str, Any]]:
        yield from prepare.run_locally(*work)
        pq.write_table(articles_of(20), table)

    with pytest.raises(RunFailed, match=f"'{table}' was changed while it was read"):
        prepare_wikipedia(table, tmp_path / "data", spread=changed)
    assert not list((tmp_path / "data").rglob("*.json"))
    assert prepare_wikipedia(table, tmp_path / "data")["articles"] == 20


def test_wrong_input_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dump.xml").write_text("<mediawiki></mediawiki>")
    (tmp_path / "bad.parquet").write_bytes(b"PAR")
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "columns.parquet")
    pq.write_table(pa.table({"article_id": [1], "text": ["No sentence"]}), tmp_path / "empty.parquet")
    for name, said in (
        ("nothing", "holds no articles"), ("dump.xml", "not a readable Parquet file"),
        ("bad.parquet", "not a readable Parquet file"), ("columns.parquet", "columns found: text"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=said):
            prepare_wikipedia(tmp_path / name, tmp_path / "out")
        assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="only 0 distinct sentences"):
        prepare_wikipedia(tmp_path / "empty.parquet", tmp_path / "out")


@pytest.fixture
def shards(articles: Path, tmp_path: Path) -> list[Path]:
    """The articles in four files."""
    (tmp_path / "wikipedia").mkdir()
    shutil.copy(articles, tmp_path / "wikipedia/articles.parquet")
    return damage.shards(tmp_path, "wikipedia/articles")


def test_a_shard_that_cannot_be_read_is_named(shards: list[Path], tmp_path: Path) -> None:
    """By its footer before anything starts, by its pages as they are read."""
    damage.flipped(shards[1])
    with pytest.raises(RunFailed, match=r"^wikipedia/sentences: .*part-1\.parquet: its pages .* --skip-bad"):
        prepare_wikipedia(shards[0].parent, tmp_path / "out", block_bytes=32_000)
    damage.truncated(shards[2])
    damage.other_types(shards[3])
    with pytest.raises(InputError) as refused:
        prepare_wikipedia(shards[0].parent, tmp_path / "out2", block_bytes=32_000)
    assert [problem.partition(":")[0] for problem in refused.value.problems] == [str(path) for path in shards[2:]]
    assert not list((tmp_path / "out2").glob("wikipedia/*"))


def test_it_goes_on_without_the_shards_that_cannot_be_read(shards: list[Path], tmp_path: Path) -> None:
    rows = pq.read_metadata(shards[1]).num_rows
    damage.flipped(shards[1])
    damage.truncated(shards[2])
    said: list[str] = []
    out, options = tmp_path / "out", {"seed": 3, "block_bytes": 32_000}
    with listening(said.append):
        done = prepare_wikipedia(shards[0].parent, out, skip_bad=True, **options)
    skipped = [(each["file"], each["rows"]) for each in done["skipped"]]
    assert skipped == [("part-1.parquet", rows), ("part-2.parquet", None)]
    assert manifest.read(out)["wikipedia/sentences"]["skipped"] == done["skipped"]
    assert len([line for line in said if line.startswith("left out of wikipedia/articles: part-")]) == 2
    left = pa.concat_tables([pq.read_table(path) for path in (shards[0], shards[3])])
    assert set(_rows(out)) == distinct_sentences(left)

    assert prepare_wikipedia(shards[0].parent, out, skip_bad=True, **options)["status"] == "present"
    with pytest.raises(InputError, match="part-2"):
        prepare_wikipedia(shards[0].parent, out, **options)
    for path, ruin in ((shards[0], damage.truncated), (shards[3], damage.flipped)):
        ruin(path)
    with pytest.raises(InputError) as refused:
        prepare_wikipedia(shards[0].parent, tmp_path / "out2", skip_bad=True, **options)
    assert "part-0.parquet: not a readable" in str(refused.value)  # nothing is left


def test_work_is_cut_evenly_whatever_the_row_groups(tmp_path: Path) -> None:
    """Pieces of about a block cover every row once: of one large row group, of many small ones, of several files."""
    links = pa.array([[{"to": "x", "at": 1}]] * 1_000)  # a nested column before the text
    table = articles_of(1_000).add_column(0, "links", links)
    for number, size in enumerate((1_000, 7, 400)):
        options = {"row_group_size": size, "compression": "none", "use_dictionary": False}
        pq.write_table(table, tmp_path / f"{number}.parquet", **options)
    files, block_bytes = sorted(tmp_path.glob("*.parquet")), table.column("text").nbytes // 10
    found = pieces(files, block_bytes)
    for path in files:
        seen: list[int] = []
        mine = [piece for piece in found if piece["path"] == str(path)]
        sizes = [piece["last"] - piece["first"] for piece in mine]
        assert 9 <= len(mine) <= 13 and max(sizes) <= 1.5 * 1_000 / 10, sizes
        for piece in mine:
            (block,) = prepare._blocks(piece, 2 * block_bytes)
            seen += block["article_id"].to_pylist()
        assert seen == list(range(1_000))


def test_a_run_has_a_batch_for_each_partition(tmp_path: Path) -> None:
    path, articles, rows = make_run(articles_of(100), str(tmp_path), seed=-1, bits=3).values()
    with pa.memory_map(path) as file:
        reader = pa.ipc.open_file(file)
        batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
    assert (articles, rows, len(batches)) == (100, 800, 8) and sum(map(len, batches)) == 800
    for index, batch in enumerate(batches):
        assert {hash >> 61 for hash in batch["high"].to_pylist()} == {index}


def test_real_articles(real_data: Corpus, tmp_path: Path) -> None:
    root = real_data.root
    articles = pq.read_table(root / "wikipedia/articles.parquet").slice(0, 500)
    pq.write_table(articles, tmp_path / "articles.parquet", row_group_size=100)
    done = prepare_wikipedia(tmp_path / "articles.parquet", tmp_path / "data", seed=1, block_bytes=1 << 20)
    assert done["articles"] == 500 and done["distinct"] > 7_000
    found = {dedup_key(sentence) for sentence, _ in _rows(tmp_path / "data")}
    assert len(found) == done["distinct"]
    # another splitter made wikipedia/sentences from the same articles: most of its sentences are here as well
    given = pq.read_table(root / "wikipedia/sentences.parquet").to_pylist()
    ids = set(articles["article_id"].to_pylist())
    theirs = [row["sentence"] for row in given if row["article_id"] in ids]
    assert len(theirs) > 1_000 and sum(dedup_key(sentence) in found for sentence in theirs) > 0.95 * len(theirs)

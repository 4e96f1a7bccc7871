from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_runs import tokenize_table

from raysts.data.corpora import Corpus
from raysts.data.windows import StoreSpec, Windows, columns_of, select, shard_name
from raysts.data.world import world_tokenizer
from raysts.errors import InputError
from raysts.pipeline.steps.vectors import write_embeddings
from raysts.recipes.recipe import Data

TABLE = "nli/train"


def rows_of(count: int) -> dict[str, list[Any]]:
    return {
        "premise": [f"a dog runs {'very ' * (i % 3)}fast" for i in range(count)],
        "hypothesis": [f"cat {i}" for i in range(count)],
        "label": [("entailment", "neutral", "contradiction")[i % 3] for i in range(count)],
        "source": [("snli", "mnli", "world")[i % 5 % 3] for i in range(count)],
    }


def write(root: Path, rows: dict[str, list[Any]], files: Sequence[int], group: int | None = None) -> Corpus:
    """The table cut into files of the given sizes, row groups of ``group`` rows."""
    folder, first = root / TABLE, 0
    folder.mkdir(parents=True)
    for number, size in enumerate(files):
        part = {name: values[first : first + size] for name, values in rows.items()}
        pq.write_table(pa.table(part), folder / f"{number:03d}.parquet", row_group_size=group or size)
        first += size
    return Corpus(root)


def spec_of(corpus: Corpus, data: Data | None = None, max_length: int = 16) -> StoreSpec:
    return StoreSpec(
        table=TABLE, fingerprint=corpus.fingerprint(TABLE), texts=("premise", "hypothesis"), values=("label",),
        tokenizer="world", max_length=max_length, data=data or Data(),
    )  # fmt: skip


def chosen(corpus: Corpus, data: Data) -> list[int]:
    """Positions in the whole table of the selected rows."""
    starts, first = {}, 0
    for path in corpus.files(TABLE):
        file = pq.ParquetFile(path)
        for group in range(file.num_row_groups):
            starts[str(path), group] = first
            first += file.metadata.row_group(group).num_rows
    groups = select(corpus, TABLE, data)
    assert [group.first for group in groups] == np.cumsum([0, *(group.size for group in groups)])[:-1].tolist()
    found: list[int] = []
    for group in groups:
        rows = np.arange(group.size) if group.rows is None else group.rows
        assert len(rows) == group.size and (np.diff(rows) > 0).all()
        found += (starts[group.path, group.row_group] + rows).tolist()
    return found


def test_sources(tmp_path: Path) -> None:
    rows = rows_of(100)
    corpus = write(tmp_path, rows, (30, 70), 13)
    expected = [i for i, source in enumerate(rows["source"]) if source in ("snli", "world")]
    assert chosen(corpus, Data(sources=("snli", "world"))) == expected
    with pytest.raises(InputError, match="no row has a source in"):
        select(corpus, TABLE, Data(sources=("SNLI",)))
    del rows["source"]
    with pytest.raises(InputError, match="needs a column 'source'"):
        select(write(tmp_path / "without", rows, (100,)), TABLE, Data(sources=("snli",)))


def test_a_sample_depends_on_its_seed_alone_and_one_of_all_rows_is_the_table(tmp_path: Path) -> None:
    """The same rows whatever the files and row groups they are stored in; with sources, of those sources."""
    rows = rows_of(100)
    layouts = [((100,), None), ((40, 60), None), ((33, 33, 34), 7)]
    corpora = [write(tmp_path / str(i), rows, files, group) for i, (files, group) in enumerate(layouts)]
    for corpus in corpora:
        assert chosen(corpus, Data()) == chosen(corpus, Data(sample=100)) == list(range(100))
    for sources in ((), ("snli", "mnli")):
        found = [chosen(corpus, Data(sample=25, sources=sources)) for corpus in corpora]
        assert found[0] == found[1] == found[2] and len(set(found[0])) == 25
        assert not sources or {rows["source"][i] for i in found[0]} <= set(sources)
    assert chosen(corpora[0], Data(sample=25, sample_seed=1)) != chosen(corpora[0], Data(sample=25))


def read_all(windows: Windows) -> tuple[list[int], list[list[int]], list[list[int]], list[int]]:
    """(row ids, premises, hypotheses, labels) of all windows in stored order."""
    ids, premises, hypotheses, labels = [], [], [], []
    for table in map(windows.read, range(len(windows))):
        columns = columns_of(table, ("premise", "hypothesis"), ("label",))
        ids += table.column("row").to_pylist()
        labels += columns["label"].tolist()
        for tokens, target in ((columns["premise"], premises), (columns["hypothesis"], hypotheses)):
            target += [tokens.flat[a:b].tolist() for a, b in zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True)]
    return ids, premises, hypotheses, labels


@pytest.mark.parametrize(("files", "group", "data", "sizes"), [
    ((25, 35), 9, Data(), [8, 1, 8, 1, 7, 8, 1, 8, 1, 8, 1, 8]),  # a window is of one row group
    ((60,), None, Data(sample=30), [8, 8, 8, 6]),  # of selected rows, however they lie
    ((25, 35), 9, Data(sources=("mnli",)), None),
])  # fmt: skip
def test_tokens_are_the_tokenizers_own(
    files: Sequence[int], group: int | None, data: Data, sizes: list[int] | None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("raysts.data.windows.WINDOW", 8)
    rows, tokenizer = rows_of(60), world_tokenizer()
    corpus = write(tmp_path / "data", rows, files, group)
    tokenize_table(corpus, spec_of(corpus, data, max_length=6), tokenizer, tmp_path / "store")
    windows = Windows(tmp_path / "store")
    ids, premises, hypotheses, labels = read_all(windows)
    wanted = chosen(corpus, data)
    assert ids == list(range(len(wanted))) and windows.rows == len(wanted)
    assert windows.sizes.max() <= 8 and windows.sizes.sum() == len(wanted)
    assert sizes is None or windows.sizes.tolist() == sizes
    for name, found in (("premise", premises), ("hypothesis", hypotheses)):
        texts = [rows[name][i] for i in wanted]
        assert found == tokenizer(texts, truncation=True, max_length=6)["input_ids"]
    assert labels == [i % 3 for i in wanted]


def test_a_killed_tokenizer_leaves_nothing_that_is_read(tmp_path: Path) -> None:
    corpus = write(tmp_path / "data", rows_of(30), (10, 20))

    class Dies:
        calls = 0

        def __call__(self, texts: list[str], **options: Any) -> Any:
            self.calls += 1
            if self.calls > 3:
                raise KeyboardInterrupt
            return world_tokenizer()(texts, **options)

    with pytest.raises(KeyboardInterrupt):
        tokenize_table(corpus, spec_of(corpus), Dies(), tmp_path / "store")
    with pytest.raises(RuntimeError, match="the finished token store has gone"):
        Windows(tmp_path / "store")
    assert [path.name for path in (tmp_path / "store").glob("[!.]*")] == ["part-00000.arrow"]
    tokenize_table(corpus, spec_of(corpus), world_tokenizer(), tmp_path / "store")
    assert read_all(Windows(tmp_path / "store"))[0] == list(range(30))


def test_the_id_of_a_store_is_what_it_holds(tmp_path: Path) -> None:
    spec = spec_of(write(tmp_path, rows_of(10), (10,)))
    changed = [
        replace(spec, table="nli/snli_dev"), replace(spec, fingerprint="0"), replace(spec, texts=("premise",)),
        replace(spec, values=()), replace(spec, tokenizer="other"), replace(spec, max_length=17),
        replace(spec, data=Data(sources=("snli",))), replace(spec, data=Data(sample=5)),
        replace(spec, data=Data(sample=5, sample_seed=1)),
    ]  # fmt: skip
    assert len({spec.id, *(other.id for other in changed)}) == 1 + len(changed)
    assert replace(spec, data=Data(sample_seed=1)).id == spec.id, "without a sample there is no draw"


def test_teacher_means_come_with_their_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysts.data.windows.WINDOW", 8)
    corpus = write(tmp_path / "data", rows_of(20), (20,))
    tokenize_table(corpus, spec_of(corpus), world_tokenizer(), tmp_path / "store")
    plain = Windows(tmp_path / "store")
    means = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    first = 0
    for number, size in enumerate(plain.sizes):
        rows = plain.read(number).column("row")
        write_embeddings(tmp_path / "teacher" / shard_name(number), rows, means[first : first + size])
        first += size
    windows = Windows(tmp_path / "store", tmp_path / "teacher")
    for chosen in ([3, 8, 15, 19], [3, 19], [8]):
        np.testing.assert_array_equal(windows.teacher_vectors(np.array(chosen)), means[chosen])
    assert windows.documents(0).tolist() == [*range(20)] and windows.documents(4).tolist() == [0, 5, 10, 15]
    order = np.random.default_rng(1).permutation(int(windows.sizes[1]))
    table = windows.read(1).take(pa.array(order)).slice(2, 4)
    columns = columns_of(table, ("premise",), ("teacher", "label"))
    assert columns["teacher"].dtype == np.float32
    np.testing.assert_array_equal(columns["teacher"], means[8:16][order][2:6])
    np.testing.assert_array_equal(columns["label"], (8 + order[2:6]) % 3)

    write_embeddings(tmp_path / "teacher" / shard_name(0), plain.read(1).column("row"), means[:8])
    with pytest.raises(AssertionError, match="other rows"):
        windows.read(0)

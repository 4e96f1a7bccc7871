import shutil
from pathlib import Path

import damage
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysts.data.corpora import Corpus
from raysts.data.windows import StoreSpec, select, tokenize_group
from raysts.data.world import world_tokenizer
from raysts.errors import InputError, RunFailed
from raysts.recipes.recipe import Data
from raysts.storage.parquet import ParquetError, open_parquet, pages

TABLE = "nli/train"


@pytest.fixture
def world(small_world: Path, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    return Path(shutil.copytree(small_world, tmp_path / "data"))


@pytest.mark.parametrize("kind", damage.DAMAGE)
def test_a_bad_shard_is_refused_by_one_message_or_left_out_and_listed(kind: str, world: Path) -> None:
    paths = damage.shards(world, TABLE)
    rows, before = Corpus(world).rows(TABLE), Corpus(world).fingerprint(TABLE)
    assert Corpus(world, skip_bad=True).fingerprint(TABLE) == before
    size = pq.ParquetFile(paths[2]).metadata.num_rows
    damage.DAMAGE[kind](paths[2])
    with pytest.raises(InputError) as caught:
        Corpus(world).check([TABLE])
    (problem,) = caught.value.problems
    assert problem.startswith(f"{paths[2]}: ") and "\n" not in problem and str(paths[1]) not in problem
    assert "write it again or remove it" in problem and "--skip-bad" in problem

    corpus = Corpus(world, skip_bad=True)
    corpus.check([TABLE])
    assert corpus.files(TABLE) == [paths[0], paths[1], paths[3]]
    (left_out,) = corpus.find_skipped(["nli/triplets", TABLE])  # derived tables miss what their sources miss
    assert left_out["table"] == TABLE and left_out["file"] == "nli/train/part-2.parquet"
    assert left_out["rows"] == (None if kind in ("truncated", "empty file") else size)
    assert left_out["reason"] and str(world) not in left_out["reason"] and "--skip-bad" not in left_out["reason"]
    assert corpus.rows(TABLE) == corpus.read(TABLE).num_rows == rows - size
    assert corpus.fingerprint(TABLE) not in (before, Corpus(world).fingerprint(TABLE))

    paths[2].unlink()  # the same rows are the same data
    assert Corpus(world).fingerprint(TABLE) == corpus.fingerprint(TABLE)


def test_every_bad_shard_is_named(world: Path) -> None:
    paths = damage.shards(world, TABLE)
    for path, ruin in zip(paths[1:], (damage.truncated, damage.flipped, damage.other_columns), strict=True):
        ruin(path)
    with pytest.raises(InputError) as caught:
        Corpus(world).check([TABLE])
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [str(path) for path in paths[1:]]
    left_out = Corpus(world, skip_bad=True).find_skipped([TABLE])
    assert [each["file"] for each in left_out] == [f"nli/train/part-{number}.parquet" for number in (1, 2, 3)]

    damage.truncated(paths[0])
    none_left = Corpus(world, skip_bad=True)
    with pytest.raises(InputError) as caught:
        none_left.check([TABLE])
    assert len(caught.value.problems) == 4 and none_left.find_skipped([TABLE]) == []


@pytest.mark.parametrize("table", ["sts/stsb_dev", "sts/sts12"])
def test_what_selects_or_is_reported_on_is_never_cut(table: str, world: Path) -> None:
    damage.truncated(damage.shards(world, table)[1])
    with pytest.raises(InputError, match="part-1.parquet: not a readable") as caught:
        Corpus(world, skip_bad=True).check([table])
    assert "--skip-bad" not in str(caught.value)


@pytest.mark.parametrize(("options", "mask", "says"), [
    ({"compression": "zstd"}, 0xFF, "cannot be read"),
    ({"compression": "none"}, 0x80, "UTF8"),  # decodes, and is no text
    ({"compression": "none", "write_page_checksum": True}, 0x01, "CRC"),  # decodes, and is other text
])  # fmt: skip
def test_changed_bytes_are_seen(options: dict[str, object], mask: int, says: str, tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    words = [f" sentence number {number} of a table" for number in range(490)]
    texts = ["".join(words[first : first + 90]) for first in range(400)]
    pq.write_table(pa.table({"sentence": texts}), path, use_dictionary=False, **options)
    file = open_parquet(path, "mend it")
    assert [t for batch in pages(path, file, ["sentence"], "", rows=300) for t in batch.column(0).to_pylist()] == texts
    damage.flipped(path, mask=mask)
    with pytest.raises(ParquetError, match=says) as caught:
        list(pages(path, open_parquet(path, ""), ["sentence"], "mend it", [0]))
    assert str(caught.value).startswith(f"{path}: its pages of row group 0 ")
    assert str(caught.value).endswith("; mend it")


def test_tokenising_a_file_that_has_gone_bad_since_says_which(world: Path, tmp_path: Path) -> None:
    damage.shards(world, TABLE, 2)
    corpus = Corpus(world)
    spec = StoreSpec(
        table=TABLE, fingerprint=corpus.fingerprint(TABLE), texts=("premise", "hypothesis"), values=("label",),
        tokenizer="world", max_length=16, data=Data(),
    )  # fmt: skip
    group = select(corpus, TABLE, Data())[1]
    damage.flipped(Path(group.path))
    said = r"^tokenising nli/train: .*part-1\.parquet: its pages of row group 0 "
    with pytest.raises(RunFailed, match=said) as caught:
        tokenize_group(group, spec, world_tokenizer(), tmp_path / "store", 0)
    assert "--skip-bad" in str(caught.value) and "\n" not in str(caught.value)
    assert not list((tmp_path / "store").iterdir())

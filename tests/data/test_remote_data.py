"""Data in a bucket: read where it is needed, and nothing else of it."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from run_commands import plan_of as plan_recipe

import raysts
from raysts.commands.context import run_record, store_of
from raysts.commands.data import prepare as prepare_data
from raysts.commands.follow import report as write_reports
from raysts.commands.run import run as run_recipe
from raysts.data.corpora import Corpus
from raysts.data.user import open_text
from raysts.data.windows import select, tokenize_group
from raysts.errors import InputError
from raysts.models.pretrained import load_tokenizer
from raysts.storage.bucket import Bucket
from raysts.storage.client import canonical

SMALL: dict[str, Any] = {
    "backbone": "tiny", "members": 1, "train.max_steps": 2, "train.eval_every": 2, "train.max_length": 24,
    "evaluation.tasks": ["stsb"], "evaluation.resamples": 4,
}  # fmt: skip
TABLES = ("nli/train", "sts/stsb_dev", "sts/stsb_test", "wikipedia/sentences")


@pytest.fixture
def data(request: pytest.FixtureRequest, few_world: Path, tmp_path: Path) -> str:
    """URI of a bucket with some tables of the small world, one of them in two shards."""
    uri = canonical(request.getfixturevalue(getattr(request, "param", "memory")))
    bucket = Bucket(uri)
    for table in TABLES:
        bucket.upload(Corpus(few_world).files(table)[0], f"{table}.parquet")
    bucket.delete("nli/train.parquet")
    whole = Corpus(few_world).read("nli/train")
    for number, part in enumerate((whole.slice(0, 50), whole.slice(50))):
        pq.write_table(part, tmp_path / "part.parquet")
        bucket.upload(tmp_path / "part.parquet", f"nli/train/{number}.parquet")
    return uri


def test_text_in_a_bucket(data: str, tmp_path: Path) -> None:
    (tmp_path / "docs.csv").write_text("id,text\n1,first\n2,second\n")
    Bucket(data).upload(tmp_path / "docs.csv", "own/docs.csv")
    here = open_text(tmp_path / "docs.csv", "text")
    for where in (f"{data}/own/docs.csv", f"{data}/own"):
        there = open_text(where, "text")
        title = "own" if where.endswith("own") else "docs"
        assert (there.fingerprint, there.rows, there.title) == (here.fingerprint, 2, title)
    with pytest.raises(InputError, match=r"--text 'gs://.*/none.csv': not found"):
        open_text(f"{data}/own/none.csv", "text")


@pytest.mark.whole
@pytest.mark.parametrize("data", ["s3"], indirect=True)
def test_a_run_on_data_in_a_bucket_is_one_on_a_folder(data: str, few_world: Path, tmp_path: Path) -> None:
    shards, folder = Corpus(data), tmp_path / "folder"
    for table in ("nli/train", "sts/stsb_dev", "sts/stsb_test"):
        for path in shards.files(table):
            shards.store.get(path)
            target = folder / path.relative_to(shards.root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    shutil.rmtree(shards.root)

    run_recipe("nli", SMALL, data, tmp_path / "b", address="none")
    planned = raysts.plan("nli", SMALL, folder, tmp_path / "b")
    assert {node["status"] for node in planned["nodes"]} == {"done"}, "its ids are those of the content"
    assert run_record(store_of(tmp_path / "b"), "nli")["data"] == data
    assert not list(shards.root.rglob("sentences.parquet")), "nobody asked for it"
    shutil.rmtree(shards.root)
    assert write_reports("nli", storage=tmp_path / "b")["status"] == "done"


def test_another_node_brings_the_shard_that_it_tokenises(data: str, tmp_path: Path, tiny_backbone: Path) -> None:
    made = plan_recipe("nli", SMALL | {"backbone": str(tiny_backbone)}, data, tmp_path)
    (spec,) = made.specs.values()
    groups = select(made.corpus, spec.table, spec.data)
    assert [Path(group.path).name for group in groups] == ["0.parquet", "1.parquet"]
    shutil.rmtree(made.corpus.root)
    entry = tokenize_group(groups[1], spec, load_tokenizer(tiny_backbone), tmp_path / "store", 1)
    assert sum(entry["windows"]) == groups[1].size
    assert [path.name for path in made.corpus.root.rglob("*.parquet")] == ["1.parquet"]


def test_a_table_that_changes_in_the_bucket_is_brought_again(data: str, tmp_path: Path) -> None:
    before = Corpus(data)
    rows, known = before.read("sts/stsb_dev"), before.fingerprint("sts/stsb_dev")
    written = before.files("sts/stsb_dev")[0].stat().st_mtime_ns
    assert Corpus(data).fingerprint("sts/stsb_dev") == known
    assert before.files("sts/stsb_dev")[0].stat().st_mtime_ns == written, "it was there and was left alone"
    pq.write_table(rows.slice(1), tmp_path / "new.parquet")
    Bucket(data).upload(tmp_path / "new.parquet", "sts/stsb_dev.parquet")
    after = Corpus(data)
    assert after.read("sts/stsb_dev").num_rows == rows.num_rows - 1 and after.fingerprint("sts/stsb_dev") != known


def test_what_cannot_be_done_is_said_first(data: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"table 'sick/sick_test' is missing: expected gs://.*/sick/sick_test.parquet"):
        Corpus(data).require(["sick/sick_test"])
    with pytest.raises(InputError, match=r"--data 'gs://[^']*': there is no bucket 'nowhere-at-all'"):
        run_recipe("nli", SMALL, "gs://nowhere-at-all/x", tmp_path / "s", address="none")
    with pytest.raises(InputError, match=r"--data 'ftp://there/x': must be a path or begin with"):
        Corpus("ftp://there/x")
    with pytest.raises(InputError, match="must be a path on this machine"):
        prepare_data(data)
    assert not (tmp_path / "s").exists()

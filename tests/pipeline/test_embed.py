from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from damage import BYTES
from run_commands import raysts, result
from safetensors.torch import load_file, save_file

from raysts.errors import InputError
from raysts.evaluation import compression
from raysts.log import screen
from raysts.models.head import GaussianHead
from raysts.models.precision import native_bf16
from raysts.models.pretrained import load
from raysts.models.sentence_model import TOKEN_BUDGET
from raysts.pipeline import embed as bulk
from raysts.storage.atomic import ASIDE, atomic_write

WORDS = ("a man runs", "the dog sleeps", "two cats", "nobody", "it is red and small, and it is not a ball")


def write(
    path: Path, rows: int, *, row_group_size: int = 10_000, kind: pa.DataType | None = None, first: int = 0
) -> Path:
    """``rows`` texts of different lengths, numbered."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [" ".join(WORDS[: 1 + i % 5]) + f" {i}" for i in range(first, first + rows)]
    numbers = range(first, first + rows)
    table = pa.table({"id": numbers, "text": pa.array(texts, pa.string()), "extra": [[i] for i in numbers]})
    if kind is not None:
        table = table.set_column(1, "text", table.column("text").combine_chunks().cast(kind))
    pq.write_table(table, path, row_group_size=row_group_size)
    return path


def command(model: Path, source: Path, output: Path, precision: str = "fp32") -> list[object]:
    files = ["--input", source, "--column", "text", "--output", output]
    return ["embed", model, *files, "--precision", precision, "--address", "none"]


def embed(model: Path, source: Path, output: Path, *more: object, precision: str = "fp32") -> dict[str, Any]:
    return result(*command(model, source, output, precision), *more)


def dead_process() -> int:
    ended = subprocess.Popen(["true"])
    ended.wait()
    return ended.pid


def read(output: Path) -> pa.Table:
    return pq.read_table(output)  # as docs/methods.md says


def vectors_of(table: pa.Table) -> np.ndarray:
    return np.stack(table.column("embedding").to_numpy())


def test_one_shard_per_row_group_in_the_order_of_the_input(tiny_backbone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write(folder / "b" / "second.parquet", 30, first=70)
    write(folder / "a.parquet", 70, row_group_size=32)
    write(folder / ".ipynb_checkpoints" / "a-checkpoint.parquet", 70)  # what editors keep is no input
    found = embed(tiny_backbone, folder, tmp_path / "out")
    model = load(tiny_backbone)
    assert (found["output"], found["rows"], found["shards"]) == (str(tmp_path / "out"), 100, 4)
    assert found["dim"] == model.dim
    table = read(tmp_path / "out")
    assert table.column_names == ["id", "text", "extra", "embedding"]
    assert table.column("id").to_pylist() == list(range(100))
    assert table.schema.field("embedding").type == pa.list_(pa.float32(), model.dim)
    np.testing.assert_allclose(vectors_of(table), model.encode(table.column("text").to_pylist()), atol=1e-5)
    manifest = json.loads((tmp_path / "out" / "_manifest.json").read_text(encoding="utf-8"))
    assert [shard["rows"] for shard in manifest["shards"]] == [32, 32, 6, 30]
    shards = {shard["file"] for shard in manifest["shards"]}
    assert shards == {path.name for path in (tmp_path / "out").glob("*.parquet")}


def test_texts_of_every_type_and_those_that_are_null_or_empty_get_a_vector(tiny_backbone: Path, tmp_path: Path) -> None:
    kinds = {None: "plain", pa.large_string(): "large", pa.string_view(): "view"}
    kinds |= {pa.dictionary(pa.int32(), pa.string()): "dictionary"}
    for kind, name in kinds.items():
        embed(tiny_backbone, write(tmp_path / f"{name}.parquet", 12, kind=kind), tmp_path / name)
        np.testing.assert_array_equal(vectors_of(read(tmp_path / name)), vectors_of(read(tmp_path / "plain")))
    texts = ["a dog", None, "", "  "]
    pq.write_table(pa.table({"text": texts}), tmp_path / "in.parquet")
    assert embed(tiny_backbone, tmp_path / "in.parquet", tmp_path / "out")["rows"] == 4
    table = read(tmp_path / "out")
    assert table.column("text").to_pylist() == texts
    vectors = vectors_of(table)
    assert np.isfinite(vectors).all()
    np.testing.assert_allclose(vectors[1:], np.repeat(load(tiny_backbone).encode([""]), 3, axis=0), atol=1e-5)


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "saved"])
def test_what_is_no_parquet(name: str, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its shards have so many rows each, and all of its columns with the types that their values have."""
    monkeypatch.setattr(bulk, "READ_ROWS", 2)
    path, texts = tmp_path / name, [*WORDS[:3], None, WORDS[4]]
    rows = [{"text": text, "id": i, "half": i / 2, "list": [i, i]} for i, text in enumerate(texts)]
    if name == "saved":
        import datasets

        datasets.Dataset.from_list(rows).save_to_disk(path)
    elif name == "t.jsonl":  # a line may lack a column, and a number be whole
        lines = [{"text": texts[0]}, *({**row, "half": row["half"] or 0} for row in rows[1:])]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([rows[0], *(row.values() for row in rows)])
    rows_of, taken = bulk.rows_of, []
    monkeypatch.setattr(bulk, "rows_of", lambda *of: (taken.append(row) or row for row in rows_of(*of)))
    found = embed(tiny_backbone, path, tmp_path / "out")
    table = read(tmp_path / "out")
    assert (found["rows"], found["shards"]) == (5, 3)
    assert len(taken) == 2 * 5, "it is read through to know what it holds, and once more for all of its shards"
    given = [text or "" for text in table.column("text").to_pylist()]
    assert given == [text or "" for text in texts]
    np.testing.assert_allclose(vectors_of(table), load(tiny_backbone, device="cpu").encode(given), atol=1e-6)
    number, half, nested = (pa.string(),) * 3 if name == "t.csv" else (pa.int64(), pa.float64(), pa.string())
    assert table.schema.names == ["text", "id", "half", "list", "embedding"]
    assert [table.schema.field(column).type for column in ("id", "half", "list")] == [number, half, nested]
    assert table.column("list")[4].as_py() == "[4, 4]"
    assert embed(tiny_backbone, path, tmp_path / "out") == found
    (tmp_path / "out" / "part-00000-00001.parquet").unlink()
    embed(tiny_backbone, path, tmp_path / "out")
    assert read(tmp_path / "out").equals(table)
    reader, units = bulk.Reader(), bulk.units(path, "text", tmp_path / "other")
    next(reader(units[0]))  # a failure on the way
    for unit in (units[1], units[2], units[0]):
        rows = pa.Table.from_batches(list(reader(unit)))
        assert rows.equals(table.drop_columns("embedding").slice(2 * unit.row_group, 2)), unit


def test_shards_of_several_files_are_one_table(tiny_backbone: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    long = 2**53 + 1  # no double holds it
    (tmp_path / "in" / "a.jsonl").write_text(f'{{"text": "a dog", "n": null, "id": 1, "of": {long}, "by": {long}}}')
    (tmp_path / "in" / "b.jsonl").write_text('{"text": "a cat", "n": 2, "more": true, "of": 1.5, "by": 2}')
    (tmp_path / "in" / "c.csv").write_text("id,text\nx,two cats")
    embed(tiny_backbone, tmp_path / "in", tmp_path / "out")
    assert read(tmp_path / "out").drop_columns(["embedding"]).to_pylist() == [
        {"text": "a dog", "n": None, "id": "1", "of": str(long), "by": long, "more": None},
        {"text": "a cat", "n": 2, "id": None, "of": "1.5", "by": 2, "more": True},
        {"text": "two cats", "n": None, "id": "x", "of": None, "by": None, "more": None},
    ]
    (tmp_path / "in" / "d.jsonl").write_text('{"text": "a man", "n": "two"}')  # makes text of an earlier file's numbers
    embed(tiny_backbone, tmp_path / "in", tmp_path / "out")
    assert read(tmp_path / "out").column("n").to_pylist() == [None, "2", None, "two"]


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_diverged_model_gives_no_vectors_and_no_rows_none(dtype: str, tiny_backbone: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny_backbone, tmp_path / "nan"))
    weights = {name: value * torch.nan for name, value in load_file(model / "model.safetensors").items()}
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    source, output = write(tmp_path / "in.parquet", 3), tmp_path / "out"
    ended = raysts(*command(model, source, output), "--dtype", dtype)
    assert ended.code == 3 and "gives NaN or infinite vectors of 3 of 3 texts" in ended.err
    assert not list(output.glob("part-*"))
    empty = embed(model, write(tmp_path / "none.parquet", 0), tmp_path / "empty", "--dtype", dtype)
    assert (empty["rows"], empty["shards"]) == (0, 0)


def test_a_large_row_group_in_pieces(tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is larger than memory allows; progress comes from inside it."""
    source, shares, within = write(tmp_path / "in.parquet", 100), list[float](), screen.within
    embed(tiny_backbone, source, tmp_path / "whole")
    monkeypatch.setattr(bulk, "ROWS", 40)
    monkeypatch.setattr(screen, "within", lambda share: (shares.append(share), within(share)))
    monkeypatch.setitem(TOKEN_BUDGET, "cpu", 256)
    embed(tiny_backbone, source, tmp_path / "pieces")
    whole, pieces = read(tmp_path / "whole"), read(tmp_path / "pieces")
    assert pieces.drop_columns(["embedding"]).equals(whole.drop_columns(["embedding"]))
    np.testing.assert_allclose(vectors_of(pieces), vectors_of(whole), atol=1e-5)
    assert len(shares) > 4 and shares == sorted(shares) and 0 < shares[0] < 0.5 and shares[-1] == 1


def test_a_killed_job_goes_on_shard_by_shard(tiny_backbone: Path, tmp_path: Path) -> None:
    source, output = write(tmp_path / "in.parquet", 50, row_group_size=10), tmp_path / "out"
    embed(tiny_backbone, source, output)
    before = {path.name: path.stat().st_mtime_ns for path in output.glob("*.parquet")}
    lost = sorted(before)[2]
    (output / lost).unlink()
    (output / "_manifest.json").unlink()
    with atomic_write(output / lost) as draft:  # named as this machine names drafts, but by a process that is dead
        half = draft.with_name(draft.name.replace(f".{os.getpid()}.", f".{dead_process()}."))
        shutil.copy(output / "_job.json", draft)
    (output / lost).unlink()
    half.write_bytes(b"half")
    table = read(output)
    assert table.num_rows == 40
    outcome = raysts(*command(tiny_backbone, source, output))
    assert outcome.code == 0 and "5 shards, 4 done" in outcome.err
    after = {path.name: path.stat().st_mtime_ns for path in output.glob("part-*.parquet")}
    assert {name for name in before if after[name] != before[name]} == {lost}
    assert not list(output.glob(f"{ASIDE}*")) and (output / "_manifest.json").is_file()
    assert read(output).column("id").to_pylist() == list(range(50))


def test_what_changed_in_the_input_is_embedded_again_and_nothing_else(tiny_backbone: Path, tmp_path: Path) -> None:
    folder, output = tmp_path / "in", tmp_path / "out"
    for number, name in enumerate("bcd"):
        write(folder / f"{name}.parquet", 6, row_group_size=3, first=10 * number)
    embed(tiny_backbone, folder, output)
    before = {path.name: path.stat().st_mtime_ns for path in output.glob("part-*")}
    write(folder / "a.PARQUET", 3, first=90)  # before all others
    write(folder / "c.parquet", 3, first=80)
    (folder / "d.parquet").unlink()
    assert embed(tiny_backbone, folder, output)["rows"] == 12
    assert read(output).column("id").to_pylist() == [*range(6), 80, 81, 82, 90, 91, 92]
    kept = {path.name for path in output.glob("part-*") if path.stat().st_mtime_ns == before.get(path.name)}
    assert kept == {"part-00000-00000.parquet", "part-00000-00001.parquet"}
    manifest = json.loads((output / "_manifest.json").read_text(encoding="utf-8"))
    names = [Path(shard["source"]).name for shard in manifest["shards"]]
    assert names == ["a.PARQUET", "b.parquet", "b.parquet", "c.parquet"]
    table = read(output)
    wanted = load(tiny_backbone).encode(table.column("text").to_pylist())
    np.testing.assert_allclose(vectors_of(table), wanted, atol=1e-5)


def test_a_damaged_shard_is_made_again(tiny_backbone: Path, tmp_path: Path) -> None:
    source, output = write(tmp_path / "in.parquet", 20, row_group_size=10), tmp_path / "out"
    embed(tiny_backbone, source, output)
    shard = output / "part-00000-00001.parquet"
    good = shard.read_bytes()
    for damage in ("empty", "torn", "flipped", "zeros", "without its checksum"):
        shard.write_bytes(BYTES.get(damage, BYTES["empty"])(good))
        if damage not in BYTES:
            (output / f".{shard.name}.checksum").unlink()
        outcome = raysts(*command(tiny_backbone, source, output))
        assert outcome.code == 0 and "2 shards, 1 done" in outcome.err, damage
        assert shard.read_bytes() == good, damage


def test_input_that_changes_is_no_result(tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, output = write(tmp_path / "in.parquet", 4), tmp_path / "out"
    closing = bulk.close_output

    def changed(*arguments: Any) -> dict[str, Any]:
        write(source, 4, first=50)
        return closing(*arguments)

    monkeypatch.setattr(bulk, "close_output", changed)
    failed = raysts(*command(tiny_backbone, source, output))
    assert failed.code == 3 and f"{source}: was changed while" in failed.err
    assert not (output / "_manifest.json").exists()
    monkeypatch.undo()
    assert raysts(*command(tiny_backbone, source, output)).code == 0
    assert read(output).column("id").to_pylist() == [50, 51, 52, 53]


def test_another_job_does_not_mix_in(tiny_backbone: Path, tmp_path: Path) -> None:
    """What counts is the model's content, wherever its folder lies."""
    source, output = write(tmp_path / "in.parquet", 8), tmp_path / "out"
    first = embed(tiny_backbone, source, output)
    other = Path(shutil.copytree(tiny_backbone, tmp_path / "other"))
    assert embed(other, source, output) == first
    config = json.loads((other / "config.json").read_text(encoding="utf-8"))
    (other / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 1e-6}), encoding="utf-8")
    table = pq.read_table(source)
    pq.write_table(table.append_column("other", table.column("text")), source)
    before = {path.name: path.read_bytes() for path in output.iterdir()}
    for changes, model, given, column, more in (
        ("model", other, source, "text", []),
        ("input", tiny_backbone, write(tmp_path / "in2.parquet", 8), "text", []),
        ("column", tiny_backbone, source, "other", []),
        ("layers", tiny_backbone, source, "text", ["--layers", 2]),
    ):
        message = refused(model, given, column, output, *more)
        assert str(output) in message and f"differs in {changes}" in message
        assert {path.name: path.read_bytes() for path in output.iterdir()} == before


def test_in_less_than_float32_and_of_other_layers(tiny_backbone: Path, tmp_path: Path) -> None:
    source, found = write(tmp_path / "in.parquet", 20), {}
    embed(tiny_backbone, source, tmp_path / "two", "--layers", 2)
    wanted = load(tiny_backbone, layers=2).encode(read(tmp_path / "two").column("text").to_pylist())
    np.testing.assert_allclose(vectors_of(read(tmp_path / "two")), wanted, atol=1e-5)
    for precision in ("fp32", "bf16", "auto"):
        embed(tiny_backbone, source, tmp_path / precision, precision=precision)
        found[precision] = vectors_of(read(tmp_path / precision))
    assert not np.array_equal(found["bf16"], found["fp32"])
    np.testing.assert_allclose(found["bf16"], found["fp32"], atol=0.1)
    hardware = "bf16" if native_bf16(torch.device("cpu")) else "fp32"
    np.testing.assert_array_equal(found["auto"], found[hardware])


# -- what is refused -----------------------------------------------------------------------------------------------------


def refused(model: Path, source: Path, column: str, output: Path, *more: object) -> str:
    existed = output.exists()
    files = ["--input", source, "--column", column, "--output", output]
    outcome = raysts("embed", model, *files, "--address", "none", *more)
    assert outcome.code == 2 and outcome.out == "", outcome.err
    assert output.exists() == existed
    return outcome.err


def test_first_dimensions_are_of_models_that_compare_vectors_alone(tiny_backbone: Path) -> None:
    model = load(tiny_backbone, device="cpu")
    model.similarity_name = "dot"
    compression.check(model, 4, "float32")
    model.encoder = model.encoder.followed_by(GaussianHead(model.dim, model.dim))
    with pytest.raises(InputError, match="by 'gauss', which needs all"):
        compression.check(model, 4, "float32")


def test_wrong_input(tiny_backbone: Path, tmp_path: Path) -> None:
    folder, output = tmp_path / "in", tmp_path / "deep" / "out"
    source = write(folder / "a.parquet", 4)
    write(folder / "b.parquet", 4)
    both = refused(tiny_backbone, folder, "txet", output)
    assert "a.parquet" in both and "b.parquet" in both and "did you mean 'text'?" in both
    assert "has type int64; it must be text" in refused(tiny_backbone, source, "id", output)
    assert "has type list" in refused(tiny_backbone, source, "extra", output)
    assert "no such file or folder" in refused(tiny_backbone, tmp_path / "none", "text", output)
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"id": 1, "text": "a", "embedding": 1}\n')
    assert "has a column 'embedding' already" in refused(tiny_backbone, lines, "text", output)
    lines.write_text('{"id": 1, "text": "a"}\n{"id": 2}\n{"text": "b", "id": "c"}\n')
    assert "(line 1): column 'id' holds 1; it must be text" in refused(tiny_backbone, lines, "id", output)
    (tmp_path / "empty").mkdir()
    assert "the folder has no file of .parquet, .csv" in refused(tiny_backbone, tmp_path / "empty", "text", output)
    (tmp_path / "a.parquet").write_text("text\nx\n", encoding="utf-8")
    assert "not a readable Parquet file" in refused(tiny_backbone, tmp_path / "a.parquet", "text", output)
    assert "layers=9" in refused(tiny_backbone, source, "text", output, "--layers", 9)
    assert "layers=0" in refused(tiny_backbone, source, "text", output, "--layers", 0)
    smaller = ("--dims", 4, "--dev", "mine=none.csv")
    assert "none.csv': no such file" in refused(tiny_backbone, source, "text", output, *smaller)
    assert not output.parent.exists()


def test_wrong_output(tiny_backbone: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "in" / "a.parquet", 4)
    (tmp_path / "file").write_text("x", encoding="utf-8")
    assert "is a file" in refused(tiny_backbone, source, "text", tmp_path / "file")
    assert "cannot be written to" in refused(tiny_backbone, source, "text", tmp_path / "file" / "out")
    assert "cannot be written to" in refused(tiny_backbone, source, "text", Path("/proc/none/out"))
    assert "holds no embedding job" in refused(tiny_backbone, source, "text", tmp_path / "in")
    inside = refused(tiny_backbone, tmp_path / "in", "text", tmp_path / "in" / "vectors")
    assert "lies in --input" in inside, "the next run would read its own shards"
    embed(tiny_backbone, source, tmp_path / "out")
    assert "has a column 'embedding' already" in refused(tiny_backbone, tmp_path / "out", "text", tmp_path / "out2")


def test_pages_that_cannot_be_read_are_named(tiny_backbone: Path, tmp_path: Path) -> None:
    """The footer is whole, so this shows only when the job has begun: the other shards are kept."""
    source, output = write(tmp_path / "in.parquet", 4_000, row_group_size=2_000), tmp_path / "out"
    start = pq.ParquetFile(source).metadata.row_group(1).column(1).dictionary_page_offset or 0
    content = bytearray(source.read_bytes())
    content[start : start + 2_000] = os.urandom(2_000)
    source.write_bytes(content)
    failed = raysts(*command(tiny_backbone, source, output))
    assert failed.code == 3 and str(source) in failed.err and "row group 1" in failed.err
    assert [path.name for path in sorted(output.glob("part*"))] == ["part-00000-00000.parquet"]
    assert not (output / "_manifest.json").exists()

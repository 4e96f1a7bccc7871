"""Sentences of Wikipedia by workers of a cluster; what they do is in tests/data/wikipedia."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import damage
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from articles import SMALL, articles_of

from raysts.cluster.stream import over_ray
from raysts.data import manifest
from raysts.data.wikipedia.prepare import TABLE, prepare_wikipedia
from raysts.errors import RunFailed


@pytest.fixture
def articles(tmp_path: Path) -> Path:
    (tmp_path / "wikipedia").mkdir()
    pq.write_table(articles_of(600), tmp_path / "wikipedia/articles.parquet")
    return tmp_path / "wikipedia/articles.parquet"


def test_a_broken_shard_is_named(articles: Path, tmp_path: Path, cluster: None, capfd: pytest.CaptureFixture) -> None:
    shards = damage.shards(tmp_path, "wikipedia/articles")
    damage.flipped(shards[1])
    with pytest.raises(RunFailed, match=r"^wikipedia/sentences: .*part-1\.parquet: its pages") as failed:
        prepare_wikipedia(shards[0].parent, tmp_path / "out", block_bytes=32_000, spread=over_ray)
    assert "--skip-bad" in str(failed.value) and "\n" not in str(failed.value)
    output = capfd.readouterr()
    assert "Traceback" not in output.err and "ray.data" not in output.err


def test_kills_change_nothing(articles: Path, tmp_path: Path, cluster: None, capfd: pytest.CaptureFixture) -> None:
    """One is killed that has made runs, one that has merged a partition: the files are those made in one process."""
    root, out, killed = (tmp_path / name for name in ("calm", "out", "killed"))
    killed.mkdir()

    def deadly(function: Callable[..., pa.Table], *work: Any) -> Iterator[dict[str, Any]]:
        def killed_once(batch: pa.Table, **arguments: Any) -> pa.Table:
            made = function(batch, **arguments)
            try:
                (killed / function.__name__).touch(exist_ok=False)
            except FileExistsError:
                return made
            return os.kill(os.getpid(), signal.SIGKILL)

        return over_ray(killed_once, *work)

    prepare_wikipedia(articles, root, **SMALL)
    done = prepare_wikipedia(articles, out, spread=deadly, **SMALL)
    assert {path.name for path in killed.iterdir()} == {"make_runs", "merge_partition"}
    before, after = ({path.name: path.read_bytes() for path in (folder / TABLE).iterdir()} for folder in (root, out))
    assert len(before) > 10 and before == after
    entry = manifest.read(root)[TABLE]
    assert all(done[name] == entry[name] for name in ("articles", "found", "distinct", "rows", "files"))
    assert [path.name for path in (out / "wikipedia").iterdir()] == ["sentences"]  # no temporary file
    output = capfd.readouterr()
    assert "ray.data" not in output.err and "rogress" not in output.err and "xecution" not in output.err

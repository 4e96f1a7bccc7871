import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from raysts.errors import RunFailed
from raysts.storage import proof as proofs
from raysts.storage.proof import ROOM, Proof, proof_in
from raysts.storage.store import Store


def test_a_machine_that_sees_a_storage_answers_and_nothing_is_left(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "deep/storage")
    with proof_in(store) as proof:
        assert proof.problem() is None and not proof.has_answer("node")
        assert proof.problem("node") is None and proof.has_answer("node") and not proof.has_answer("other")
        assert (proof.problem("no/where") or "").startswith(f"it cannot write to --storage {store.uri}: No such file")
        assert (replace(proof, name="none").problem() or "").startswith(f"it does not see --storage {store.uri}: ")
    assert not list(tmp_path.iterdir())


def test_a_bucket_has_no_answers_and_must_be_reached(memory: str) -> None:
    with proof_in(Store.open(memory)) as proof:
        assert proof.problem("node") is None and proof.has_answer("node")
    problem = Proof("gs://nowhere/x", "").problem() or ""
    assert problem.startswith("it does not reach the storage: --storage 'gs://nowhere/x': there is no bucket")


def test_a_disk_must_have_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is that of the nearest folder that exists."""
    full = f"its disk has 1.1 GB left at {tmp_path}; at least 1.1 GB are needed"
    for free, problem in ((ROOM, None), (ROOM - 1, full)):
        monkeypatch.setattr(proofs.shutil, "disk_usage", {tmp_path: SimpleNamespace(free=free)}.__getitem__)
        assert Proof(str(tmp_path / "storage"), "").problem() == problem


def test_why_a_run_failed_is_not_what_cannot_be_cleaned_up_after_it(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="the reason"), proof_in(Store.of(tmp_path)) as proof:
        shutil.rmtree(tmp_path / proof.name)
        raise RunFailed("the reason")

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from run_commands import EVALUATION, overrides, raysts, result

SMALL = {
    "members": 3, "train.max_steps": 2, "train.eval_every": 2, "train.max_length": 16, "sed.data.sample": 64,
    "sed.train.max_steps": 1, "evaluation.layers": "[1]", "evaluation.compare": 1, "student_pooling": 1,
}  # fmt: skip


def test_an_ensemble_of_the_members_that_finished(few_world: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    """One of three has a broken checkpoint: exit 3, until two are said to be enough; mended, all three make a new student."""
    data, storage = ("--data", few_world), tmp_path / "storage"

    def arguments(command: str, **more: Any) -> list[object]:
        address = [] if command == "plan" else ["--address", "none"]
        chosen = overrides(SMALL, EVALUATION, {"backbone": tiny_backbone}, {"evaluation.tasks": "[stsb]"}, more)
        return [command, "nli-sed", *data, "--storage", storage, *address, *chosen]

    nodes = result(*arguments("plan"))["nodes"]
    members, (teacher,) = ([n["id"] for n in nodes if n["kind"] == kind] for kind in ("train", "vectors"))
    broken = storage / "runs" / members[1] / "checkpoints" / "step-0000001.pt"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"torn")

    for least in ("none", "3"):
        outcome = raysts(*arguments("run", min_members=least), "--json")
        assert outcome.code == 3 and outcome.out == "" and "member 1 nli" in outcome.err
        assert ("2 of 3 finished, and min_members=3" if least == "3" else "2 of 3 finished;") in outcome.err
        assert not (storage / "embeddings").exists()

    found = raysts(*arguments("run", min_members=2), "--json")
    assert found.code == 0 and "going on with 2 of 3 members" in found.err
    first = json.loads(found.out)
    (gone,) = first["left_out"]
    assert gone["member"] == 1 and gone["reason"]
    assert {row["member"] for row in first["results"] if row["role"] == "member"} == {0, 2}
    (manifest,) = storage.glob("embeddings/*/manifest.json")
    assert json.loads(manifest.read_text())["members"] == [members[0], members[2]] and manifest.parent.name != teacher
    page = Path(first["report"]).read_text()
    assert "Member 1 failed and is left out" in page and "the 2 of 3 members that finished" in page
    assert "Member 1 failed and is left out" in raysts(*arguments("run", min_members=2)).out
    assert [path.name for path in (storage / "embeddings").iterdir()] == [manifest.parent.name]

    broken.unlink()
    second = result(*arguments("run", min_members=2))
    assert second["left_out"] == [] and second["model"] != first["model"]
    assert {row["member"] for row in second["results"] if row["role"] == "member"} == {0, 1, 2}
    assert (storage / "embeddings" / teacher / "manifest.json").exists(), "the teacher of a run without failures"
    assert "left out" not in Path(second["report"]).read_text()

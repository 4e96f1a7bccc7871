"""What a student starts from, and members of another width."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import run_commands
import small_runs
from run_commands import EVALUATION, overrides, raysts, result

from raysts.models.pretrained import load


@pytest.mark.whole
def test_a_student_of_mean_and_variance(few_world: Path, tmp_path: Path) -> None:
    """It has the direction of entailment, which a student of vectors has not."""
    common = ["gausscse-ent+rev-sed", "--data", few_world, "--storage", tmp_path, "--address", "none"]
    settings = {"backbone": "tiny", "members": 1, "train.max_steps": 3, "train.max_length": 16, "data.sample": 64,
                "evaluation.resamples": 0, "evaluation.tasks": ["snli-direction"]}  # fmt: skip
    found = result("run", *common, *overrides(settings | {"sed.target": "gaussian"}))
    measured = {row["similarity"] for row in found["results"] if row["role"] == "student"}
    assert {"gauss", "variance"} <= measured and not [note for note in found["notes"] if "without variance" in note]
    student = load(Path(found["model"]), device="cpu")
    assert {"vectors", "log_var"} <= {*student.represent_layers(["a text"], (student.layers,))[student.layers]}
    teacher = next(row["run_id"] for row in found["results"] if row["role"] == "member")
    named = ["--data", few_world, "--storage", tmp_path, "--address", "none", "--name", "of-one"]
    small = {key: value for key, value in settings.items() if key not in ("members", "backbone")}
    other = {"backbone": small_runs.write_backbone(tmp_path / "other", "bert"), "sed.target": "gaussian"}
    wide = load(tmp_path / "runs" / teacher / "model", device="cpu").dim
    narrow = ["distill", teacher, *named[:-1], "narrow", *overrides(small | other)]
    refused = raysts(*narrow)
    assert refused.code == 2 and f"--set sed.projection={wide}" in refused.err
    projected = result(*narrow, "--set", f"sed.projection={wide}")
    assert {"gauss", "variance"} <= {row["similarity"] for row in projected["results"] if row["role"] == "student"}
    static = raysts("distill", teacher, *named, *overrides({"student": "static", "sed.target": "gaussian"}))
    assert static.code == 2 and "a table of tokens has no variance" in static.err


def test_members_of_another_width_need_a_projection(
    finished: run_commands.Finished, tiny_backbone: Path, tmp_path: Path
) -> None:
    """A student of 32 dimensions learns members of the tiny encoder's width behind a linear layer that it keeps."""
    members = sorted({row["run_id"] for row in finished.results["nli"]["results"] if row["role"] == "member"})
    common = ["distill", *members, *finished.options(), "--address", "none", "--name", "narrow"]
    common += overrides(
        {"train.max_steps": 3, "data.sample": 64, "backbone": tiny_backbone, "deliver": "system"}, EVALUATION
    )
    wide = load(finished.storage / "runs" / members[0] / "model", device="cpu").dim
    found = result(*common, "--set", f"sed.projection={wide}", "--set", "student_pooling=2")
    page = Path(found["report"]).read_text(encoding="utf-8")
    assert "the student scores" in page.lower() and "last layer pooled" in page, "a projection belongs to its layers"
    student = load(found["model"], device="cpu")
    assert student.encoder.width == small_runs.HIDDEN and student.dim == wide
    sentence_transformers = pytest.importorskip("sentence_transformers")
    texts = ["a dog runs", "the cat is sleeping"]
    theirs = sentence_transformers.SentenceTransformer(found["model"], device="cpu").encode(texts)
    np.testing.assert_allclose(student.encode(texts), theirs, rtol=0, atol=1e-5)

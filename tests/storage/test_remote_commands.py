"""Commands say the same of a storage in a bucket, from a machine that has nothing of it, as of one in a folder."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3_server
from run_commands import overrides, raysts

pytestmark = pytest.mark.slow  # every command twice; the commands of a bucket are also in test_remote_storage.py
SHORT = {
    "backbone": "tiny", "members": 2, "train.max_steps": 2, "train.eval_every": 2, "train.max_length": 24,
    "evaluation.tasks": "[stsb]", "evaluation.resamples": 4,
}  # fmt: skip
STUDENT = {"train.max_steps": 1, "sed.data.sample": 100, "evaluation.tasks": "[stsb]", "evaluation.resamples": 4}
"""A distillation of seconds: unasked it reads every sentence and is measured by every task."""
NAME = "nli-ct-sed"
TIMES = ("created_at", "seconds", "finished_at", "texts_per_second", "texts_per_cpu_second")


class Machine:
    """Commands on one storage; of a bucket nothing is here before any of them."""

    def __init__(self, storage: str, mirrors: Path | None, world: Path, output: Path) -> None:
        self.storage, self.mirrors, self.world, self.output = storage, mirrors, world, output

    def says(self, *arguments: object) -> tuple[int, Any]:
        """How a command ends and what it prints, without what names the storage and the hour."""
        if self.mirrors:
            shutil.rmtree(self.mirrors, ignore_errors=True)
        data = ["--data", self.world] if arguments[0] in ("run", "evaluate", "compare", "distill", "tune") else []
        local = ["--address", "none"] if arguments[0] in ("run", "distill", "tune", "embed") else []
        target = ["--output", self.output] if arguments[0] == "embed" else []
        ended = raysts(*arguments, *data, *local, *target, "--storage", self.storage, "--json")
        # A path in a mirror, the URI with its options, the folder: all of them are the storage.
        text = re.sub(r"""[^\s"']*/s3\+3A[^/\s"']*|s3://[^\s"']*""", "STORAGE", ended.out or ended.err)
        text = text.replace(self.storage, "STORAGE").replace(str(self.output), "OUTPUT")
        return ended.code, timeless(json.loads(text)) if ended.out else text

    def result(self, *arguments: object) -> Any:
        code, said = self.says(*arguments)
        assert code == 0, said
        return said


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key not in TIMES}
    if isinstance(value, str):  # a note that says a speed
        return re.sub(r"\d+ texts of (\d+) tokens a second here \(\d+ a CPU second\)", r"texts of \1 tokens", value)
    return [timeless(item) for item in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def both(s3_endpoint: str, small_world: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The machine with a folder and that with a bucket; in both a pipeline of several stages has run."""
    made = tmp_path_factory.mktemp("both")
    with pytest.MonkeyPatch.context() as patch:
        s3_server.environment(s3_endpoint, made / "mirrors", patch.setenv)
        folder = Machine(str(made / "folder"), None, small_world, made / "vectors")
        bucket = Machine(f"s3://{s3_server.new_bucket()}/p", made / "mirrors", small_world, made / "vectors-of-bucket")
        run = ("run", NAME, *overrides(SHORT))
        assert bucket.result(*run) == folder.result(*run)
        yield folder, bucket


def runs_of(machine: Machine) -> dict[str, str]:
    """Run ids by stage and role."""
    records = [json.loads(path.read_text()) for path in Path(machine.storage).glob("runs/*/run.json")]
    return {f"{record['stage']} {record['role']}": record["run_id"] for record in records}


def agree(both: tuple[Machine, Machine], *arguments: object) -> Any:
    """What both say, which must be the same."""
    folder, bucket = both
    expected = folder.says(*arguments)
    assert bucket.says(*arguments) == expected
    assert expected[0] == 0, expected[1]
    return expected[1]


def test_evaluate_and_its_search_for_training_text(both: tuple[Machine, Machine]) -> None:
    runs = runs_of(both[0])
    for run in ("ct member", "sed student"):
        measured = agree(both, "evaluate", runs[run], "--tasks", "stsb", "--resamples", "4")
        assert all("nli/train" in entry["training_tables"] for entry in measured["contamination"])
        assert not [entry for entry in measured["contamination"] if entry["unknown"]]
    tiny = next(Path(both[0].storage).glob("backbones/tiny-*"))
    code, said = both[0].says("evaluate", tiny, "--tasks", "stsb", "--resamples", "4")
    assert code == 0 and not said["contamination"][0]["unknown"]


def test_strict_contamination(both: tuple[Machine, Machine], small_world: Path, tmp_path: Path) -> None:
    """The parent of a run was trained on rows of a test set."""
    table = pq.read_table(small_world / "nli/train.parquet").slice(0, 40)
    scores = pa.array([float(i % 6) for i in range(40)])
    names = {"sentence1": table["premise"], "sentence2": table["hypothesis"], "score": scores}
    world = shutil.copytree(small_world, tmp_path / "world")
    pq.write_table(pa.table(names), world / "sts/stsb_test.parquet")
    strict = ("evaluate", runs_of(both[0])["ct member"], "--tasks", "stsb", "--strict-contamination")
    of_folder, of_bucket = (Machine(m.storage, m.mirrors, world, m.output).says(*strict) for m in both)
    assert of_folder == of_bucket and of_folder[0] == 2 and "40 of 40 rows of stsb are training rows" in of_folder[1]


def test_distill_and_what_comes_of_it(both: tuple[Machine, Machine]) -> None:
    distilled = agree(both, "distill", "--from-run", NAME, "--name", "again", *overrides(STUDENT))
    agree(both, "evaluate", Path(distilled["model"]).parent.name, "--tasks", "stsb", "--resamples", "4")
    agree(both, "compare", "again", NAME, "--tasks", "stsb", "--resamples", "4")


def test_compare_report_and_embed(both: tuple[Machine, Machine], small_world: Path) -> None:
    options = ("--tasks", "stsb", "--resamples", "4")
    agree(both, "compare", f"{NAME}:student", f"{NAME}:ensemble", *options)
    agree(both, "compare", NAME, runs_of(both[0])["nli member"][:8], *options)
    assert agree(both, "report")["reports"]
    agree(both, "report", "--name", NAME)
    agree(both, "report", "--paper", "sed")
    given = ("--input", small_world / "sts/stsb_dev.parquet", "--column", "sentence1")
    agree(both, "embed", runs_of(both[0])["sed student"], *given)

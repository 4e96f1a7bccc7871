"""What the machine, its owner or whoever reads the output may do to a command: one message, one of the known exit codes."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from run_commands import EVALUATION, TINY, Outcome, overrides, raysts
from safetensors.torch import load_file, save_file

from raysts.cli import main
from raysts.errors import limit_reached

COMMAND = (sys.executable, "-m", "raysts")
RIGHTS = (1 << 1) | (1 << 2)
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, by which root reads what it likes."""


def ended(*arguments: object, **how: Any) -> subprocess.CompletedProcess[str]:
    """A command as a process that has come to its end, in words and without a traceback."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | how
    done = subprocess.run([*COMMAND, *map(str, arguments)], text=True, check=False, **streams)
    assert "Traceback" not in f"{done.stdout}{done.stderr}"
    return done


def forked(work: Callable[[], object]) -> int:
    """Exit code of a fork of this process that does some work: it has imported what a command takes seconds to import."""
    if torch.cuda.is_available():
        pytest.skip("a process that has used a GPU cannot be forked")
    if not (child := os.fork()):
        code: Any = 1
        try:
            work()
            code = 0
        except SystemExit as end:
            code = end.code
        finally:  # whatever became of it, this process is none of pytest's
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def small_run(small_world: Path, storage: Path) -> list[object]:
    options = overrides(TINY, EVALUATION, {"members": 1})
    return ["run", "nli", "--data", small_world, "--storage", storage, "--address", "none", *options]


# -- output that cannot be written -------------------------------------------------------------------------------------------


def test_a_result_that_cannot_be_written() -> None:
    with Path("/dev/full").open("w") as full:
        for arguments in (["recipes"], ["recipes", "--json"], ["show", "nli"]):
            done = ended(*arguments, stdout=full)
            assert done.returncode == 3, arguments
            assert done.stderr.startswith("raysts: the result cannot be written to stdout (No space left"), arguments
        assert ended("recipes", stdout=full, stderr=full).returncode == 3
        assert ended("nonsense", stderr=full).returncode == 2


def test_a_run_whose_progress_cannot_be_written(small_world: Path, tmp_path: Path) -> None:
    """It goes on to its end, on a full disk and where the reader of a pipe has gone."""
    written = tmp_path / "result.json"

    def run() -> None:
        os.dup2(os.open(written, os.O_WRONLY | os.O_CREAT), 1)
        os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", 1) for number in (1, 2))
        main([*map(str, small_run(small_world, tmp_path / "full")), "--json"])

    assert forked(run) == 0 and json.loads(written.read_text())["status"] == "done"
    command = [*COMMAND, *map(str, small_run(small_world, tmp_path / "pipe")), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stderr.readline()
        process.stderr.close()
        result = process.stdout.read()
    assert process.returncode == 0 and json.loads(result)["status"] == "done"


def test_ctrl_c_while_modules_are_imported() -> None:
    """The pipe is small, so that the process waits among its imports until it is interrupted."""
    command = [sys.executable, "-X", "importtime", "-m", "raysts", "plan", "nli"]
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    with subprocess.Popen(command, stderr=write, stdout=subprocess.DEVNULL) as process, os.fdopen(read) as lines:
        os.close(write)
        next(line for line in lines if "raysts.errors" in line)
        process.send_signal(signal.SIGINT)
        left = lines.read()
    assert process.returncode == 130 and "Traceback" not in left and "raysts: interrupted" in left


# -- what may not be read, or not be written -----------------------------------------------------------------------------------


def give_up_rights() -> None:
    """Take from this process, if it is root's, what lets it read everything."""
    header, sets = (ctypes.c_uint32 * 2)(0x20080522), (ctypes.c_uint32 * 6)()  # version 3: two times three masks
    assert LIBC.capget(header, sets) == 0
    for mask in (0, 1):  # in effect, permitted
        sets[mask] &= ~RIGHTS
    assert LIBC.capset(header, sets) == 0


LIBC = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def forbidden(tmp_path: Path) -> Callable[..., Outcome]:
    """Runs a command while a path may not be read, in a fork without root's rights."""

    def run(path: Path, *arguments: object) -> Outcome:
        mode, said = path.stat().st_mode, tmp_path / "said.json"
        path.chmod(0)
        try:
            assert forked(lambda: (give_up_rights(), said.write_text(json.dumps(raysts(*arguments))))) == 0
        finally:
            path.chmod(mode)
        return Outcome(*json.loads(said.read_text()))

    return run


@pytest.mark.parametrize("what", ["storage", "model", "weights", "config", "text", "data", "plan"])
def test_what_may_not_be_read(
    what: str, forbidden: Any, small_world: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2 and one line that says permission; no file with a traceback."""
    model, storage, text = tmp_path / "model", tmp_path / "storage", tmp_path / "text.txt"
    shutil.copytree(tiny_backbone, model)
    shutil.copytree(small_world, tmp_path / "data")
    (storage / "pipelines").mkdir(parents=True)
    text.write_text("a dog\n" * 30)
    (tmp_path / "logs").mkdir()
    plan = ("plan", "ct", "--data", tmp_path / "data", "--storage", storage, *overrides({"backbone": model}))
    embed = ("embed", model, "--input", text, "--column", "text", "--output", tmp_path / "out", "--address", "none")
    path, arguments = {
        "storage": (storage, ("report", "--storage", storage)),
        "plan": (storage, plan),
        "model": (model, embed),
        "weights": (model / "model.safetensors", plan),
        "config": (model / "config.json", plan),
        "text": (text, embed),
        "data": (tmp_path / "data", plan),
    }[what]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "logs"))
    code, _, err = forbidden(path, *arguments)
    (line,) = [line for line in err.splitlines() if not line.startswith("... ")]  # a busy machine takes its time
    assert code == 2 and "no permission" in line and str(path) in line, line
    assert not [*(tmp_path / "logs").iterdir()]


# -- limits of the machine ------------------------------------------------------------------------------------------------------


def test_a_full_gpu_is_named_as_what_has_no_memory_left() -> None:
    said = limit_reached(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 96.00 MiB."))
    assert said and said.startswith("the GPU has no memory left (nvidia-smi shows what uses it) (CUDA out of memory.")
    assert "ulimit -v" in str(limit_reached(MemoryError()))


@pytest.mark.parametrize("option", ["f", "v"], ids=["file size", "memory"])
def test_a_limit_of_the_machine(small_world: Path, tmp_path: Path, option: str) -> None:
    """That of memory holds for all that a process has, so for one that has imported nothing before."""
    command, said = small_run(small_world, tmp_path / "s"), tmp_path / "said.json"

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        said.write_text(json.dumps(raysts(*command)))

    if option == "f":
        assert forked(small_files) == 0
        code, _, err = json.loads(said.read_text())
    else:
        most = (1_600_000_000, 1_600_000_000)
        limited = ended(*command, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, most), timeout=600)
        code, err = limited.returncode, limited.stderr
    assert code == 3 and f"ulimit -{option}" in err and "run the same command again" in err
    assert raysts(*command).code == 0


# -- a table of the user's own that was replaced ----------------------------------------------------------------------------


def test_a_table_that_was_replaced(tiny_backbone: Path, tmp_path: Path) -> None:
    """It is not called damaged alone, and stays under its name; without its checksum it is read as it is."""
    data, text = tmp_path / "data", tmp_path / "text.txt"
    text.write_text("".join(f"the dog number {number} runs\n" for number in range(300)))
    assert raysts("data", "import", text, "--as", "sentences", "--data", data).code == 0
    pairs, (table,) = tmp_path / "pairs.csv", data.rglob("*.parquet")
    pairs.write_text("sentence1,sentence2,score\n" + "".join(f"a dog,cat {number},{number}\n" for number in range(9)))
    options = ("--data", data, "--test", f"mine={pairs}", *overrides({"backbone": tiny_backbone}))
    before = raysts("plan", "ct", *options)
    other = pq.read_table(table).slice(20)
    pq.write_table(other, table)
    replaced = raysts("plan", "ct", *options)
    assert (
        replaced.code == 2
        and f"{table}: is not what raysts wrote there: it was replaced, or is damaged" in replaced.err
    )
    assert pq.read_table(table).equals(other) and not list(data.rglob("*.damaged"))
    table.with_name(f".{table.name}.checksum").unlink()
    assert raysts("plan", "ct", *options).code == before.code == 0


# -- weights that are no numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1e30])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_student_whose_weights_are_no_numbers(
    number: float, kind: torch.dtype, tiny_backbone: Path, tmp_path: Path
) -> None:
    """It is refused before anything is embedded, by file and tensor."""
    student, text = tmp_path / "student", tmp_path / "text.txt"
    weights = load_file(shutil.copytree(tiny_backbone, student) / "model.safetensors")
    weights = {name: value.to(kind) for name, value in weights.items()}
    weights["encoder.layer.1.output.dense.weight"][3, 5] = number
    save_file(weights, student / "model.safetensors", metadata={"format": "pt"})
    text.write_text("".join(f"the dog number {number} runs\n" for number in range(300)))
    options = (
        "--text",
        text,
        "--storage",
        tmp_path / "storage",
        "--address",
        "none",
        *overrides({"backbone": student}),
    )
    done = raysts("distill", tiny_backbone, *options)
    (line,) = done.err.splitlines()
    assert (
        done.code == 2 and str(student / "model.safetensors") in line and "encoder.layer.1.output.dense.weight" in line
    )
    assert not (tmp_path / "storage").exists()

"""What the machine, its owner or whoever reads the output may do to a command: one message, one of the known exit codes."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from run_commands import EVALUATION, TINY, overrides, raysts
from safetensors.torch import load_file, save_file

from raysts.cli import Lenient, execute
from raysts.errors import limit_reached

COMMAND = (sys.executable, "-m", "raysts")
RIGHTS = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--inh-caps", "-dac_override,-dac_read_search")


def ended(*arguments: object, **how: Any) -> subprocess.CompletedProcess[str]:
    """A command as a process that has come to its end, in words and without a traceback."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | how
    done = subprocess.run([*COMMAND, *map(str, arguments)], text=True, check=False, **streams)
    assert "Traceback" not in f"{done.stdout}{done.stderr}"
    return done


def small_run(small_world: Path, storage: Path) -> list[object]:
    options = overrides(TINY, EVALUATION, {"members": 1})
    return ["run", "nli", "--data", small_world, "--storage", storage, "--address", "none", *options]


# -- output that cannot be written -------------------------------------------------------------------------------------------


def test_a_result_that_cannot_be_written() -> None:
    with Path("/dev/full").open("w") as full:
        done = ended("recipes", "--json", stdout=full)
        assert done.returncode == 3 and "result cannot be written to stdout (No space left" in done.stderr
        assert ended("recipes", stdout=full, stderr=full).returncode == 3
        assert ended("nonsense", stderr=full).returncode == 2


def test_a_run_whose_progress_cannot_be_written(small_world: Path, tmp_path: Path) -> None:
    """As by the console script, to a stream that is written line by line."""
    printed, full = io.StringIO(), Path("/dev/full").open("w", buffering=1)  # noqa: SIM115 - its end fails
    with contextlib.redirect_stderr(Lenient(full)), contextlib.redirect_stdout(printed):
        assert execute([*map(str, small_run(small_world, tmp_path / "full")), "--json"]) == 0
    with pytest.raises(OSError, match="No space left"):
        full.close()
    assert json.loads(printed.getvalue())["status"] == "done"


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


FORBIDDEN = """
import contextlib, io, json, os, sys
from raysts.cli import execute
for path, arguments in json.loads(sys.argv[1]):
    mode = os.stat(path).st_mode
    os.chmod(path, 0)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = execute(arguments)
    os.chmod(path, mode)
    print(json.dumps([path, code, said.getvalue()]))
"""
"""Runs commands while a path may not be read. It is the process of somebody who has no more rights than others."""


def test_what_may_not_be_read(small_world: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    """Exit code 2 and one line that says permission; no file with a traceback."""
    before = RIGHTS if os.geteuid() == 0 else ()
    if before and (shutil.which(before[0]) is None or subprocess.run([*before, "true"], check=False).returncode):
        pytest.skip("root keeps its rights here")
    model, storage, text = tmp_path / "model", tmp_path / "storage", tmp_path / "text.txt"
    shutil.copytree(tiny_backbone, model)
    shutil.copytree(small_world, tmp_path / "data")
    (storage / "pipelines").mkdir(parents=True)
    text.write_text("a dog\n" * 30)
    (tmp_path / "logs").mkdir()
    plan = ["plan", "ct", "--data", tmp_path / "data", "--storage", storage, *overrides({"backbone": model})]
    embed = ["embed", model, "--input", text, "--column", "text", "--output", tmp_path / "out", "--address", "none"]
    cases = [
        (storage, ["report", "--storage", storage]),
        (storage, plan),
        (model, embed),
        (model / "model.safetensors", plan),
        (model / "config.json", plan),
        (text, embed),
        (tmp_path / "data", plan),
    ]
    given = json.dumps([(path, [*map(str, arguments)]) for path, arguments in cases], default=str)
    command = [*before, sys.executable, "-c", FORBIDDEN, given]
    environment = os.environ | {"TMPDIR": str(tmp_path / "logs")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    lines = done.stdout.splitlines()
    assert len(lines) == len(cases)
    for path, code, said in map(json.loads, lines):
        (line,) = [line for line in said.splitlines() if not line.startswith("... ")]  # a busy machine takes its time
        assert code == 2 and "no permission" in line and path in line, line
    assert not [*(tmp_path / "logs").iterdir()]


# -- limits of the machine ------------------------------------------------------------------------------------------------------


def test_a_full_gpu_is_named_as_what_has_no_memory_left() -> None:
    said = limit_reached(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 96.00 MiB."))
    assert said and said.startswith("the GPU has no memory left (nvidia-smi shows what uses it) (CUDA out of memory.")
    assert "ulimit -v" in str(limit_reached(MemoryError()))


def test_a_limit_of_memory(small_world: Path, tmp_path: Path) -> None:
    most = 1_600_000_000
    limited = ended(
        *small_run(small_world, tmp_path / "s"), preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most))
    )
    assert limited.returncode == 3 and "ulimit -v" in limited.stderr and "run the same command again" in limited.stderr


def test_a_limit_of_the_size_of_files(small_world: Path, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        limited = raysts(*small_run(small_world, tmp_path / "s"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert limited.code == 3 and "ulimit -f" in limited.err and "run the same command again" in limited.err
    assert raysts(*small_run(small_world, tmp_path / "s")).code == 0


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
    said = f"{table}: is not what raysts wrote there: it was replaced, or is damaged"
    assert replaced.code == 2 and said in replaced.err
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
    options = ("--text", text, "--storage", tmp_path / "storage", "--address", "none")
    done = raysts("distill", tiny_backbone, *options, *overrides({"backbone": student}))
    (line,) = done.err.splitlines()
    assert done.code == 2 and str(student / "model.safetensors") in line
    assert "encoder.layer.1.output.dense.weight" in line
    assert not (tmp_path / "storage").exists()

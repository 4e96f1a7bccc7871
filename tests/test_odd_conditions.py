"""What the machine, its owner or whoever reads the output may do to a command: one message, one of the known exit codes."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import killed
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from run_commands import EVALUATION, TINY, overrides, raysts
from safetensors.torch import load_file, save_file

from raysts.cli import Lenient, execute
from raysts.errors import limit_reached
from raysts.pipeline.steps import train


def small_run(few_world: Path, storage: Path) -> list[object]:
    options = overrides(TINY, EVALUATION, {"members": 1})
    return ["run", "nli", "--data", few_world, "--storage", storage, "--address", "none", *options]


def test_a_result_that_cannot_be_written() -> None:
    command = [sys.executable, "-m", "raysts", "recipes"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*command, "--json"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 3 and "Traceback" not in done.stderr
        assert "result cannot be written to stdout (No space left" in done.stderr
        assert subprocess.run(command, stdout=full, stderr=full, check=False).returncode == 3


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


FORBIDDEN = """
import contextlib, ctypes, io, json, os, struct, sys
from raysts.cli import execute

libc, header, rights = ctypes.CDLL(None), struct.pack("Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
assert libc.capget(header, rights) == 0
sets = [bits & ~0b110 for bits in struct.unpack("6I", rights)]  # root reads and writes whatever the mode says
assert libc.capset(header, struct.pack("6I", *sets)) == 0
ends = []
for path, arguments in json.loads(sys.argv[1]):
    mode = os.stat(path).st_mode
    os.chmod(path, 0)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = execute(arguments)
    os.chmod(path, mode)
    ends.append((path, code, said.getvalue()))
with open(sys.argv[2], "w") as file:
    json.dump(ends, file)
"""
"""Runs commands while a path may not be read. It is the process of somebody who has no more rights than others."""


def test_what_may_not_be_read(
    few_world: Path, tiny_backbone: Path, copy_of: Callable[[Path, str], Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Exit code 2 and one line that says permission; no file with a traceback."""
    model, data = copy_of(tiny_backbone, "model"), copy_of(few_world, "data")
    storage, text, logs = (tmp_path / name for name in ("storage", "text.txt", "logs"))
    (storage / "pipelines").mkdir(parents=True)
    text.write_text("a dog\n" * 30)
    logs.mkdir()
    plan = ["plan", "ct", "--data", data, "--storage", storage, *overrides({"backbone": model})]
    embed = ["embed", model, "--input", text, "--column", "text", "--output", tmp_path / "out", "--address", "none"]
    cases = [
        (storage, ["report", "--storage", storage]), (storage, plan), (model, embed),
        (model / "model.safetensors", plan), (model / "config.json", plan), (text, embed), (data, plan),
    ]  # fmt: skip
    given = json.dumps([(path, [*map(str, arguments)]) for path, arguments in cases], default=str)
    monkeypatch.setenv("TMPDIR", str(logs))
    assert killed.exit_code(FORBIDDEN, given, str(tmp_path / "ends")) == 0
    ends = json.loads((tmp_path / "ends").read_text())
    assert len(ends) == len(cases)
    for path, code, said in ends:
        (line,) = [line for line in said.splitlines() if not line.startswith("... ")]  # a busy machine takes its time
        assert code == 2 and "no permission" in line and path in line, line
    assert not [*logs.iterdir()]


def test_a_full_gpu_is_named_as_what_has_no_memory_left() -> None:
    said = limit_reached(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 96.00 MiB."))
    assert said and said.startswith("the GPU has no memory left (nvidia-smi shows what uses it) (CUDA out of memory.")
    assert "ulimit -v" in str(limit_reached(MemoryError()))


def test_a_limit_of_memory(few_world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Met in Python. Under ``ulimit -v`` a library's own thread may meet it first, and ends the process."""
    monkeypatch.setattr(train, "_tokenize", lambda *arguments: np.empty(10**15))
    limited = raysts(*small_run(few_world, tmp_path / "s"))
    assert limited.code == 3 and "ulimit -v" in limited.err and "run the same command again" in limited.err
    assert limited.out == ""


def test_a_limit_of_the_size_of_files_and_progress_that_cannot_be_written(few_world: Path, tmp_path: Path) -> None:
    """The first stops a run. The second, as by the console script to a stream that is written line by line, does not."""
    command = [*map(str, small_run(few_world, tmp_path / "s")), "--json"]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        limited = raysts(*command)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert limited.code == 3 and "ulimit -f" in limited.err and "run the same command again" in limited.err
    printed, full = io.StringIO(), Path("/dev/full").open("w", buffering=1)  # noqa: SIM115 - its end fails
    with contextlib.redirect_stderr(Lenient(full)), contextlib.redirect_stdout(printed):
        assert execute(command) == 0
    with pytest.raises(OSError, match="No space left"):
        full.close()
    assert json.loads(printed.getvalue())["status"] == "done"


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


def test_a_student_of_nan_weights(tiny_backbone: Path, copy_of: Callable[[Path, str], Path], tmp_path: Path) -> None:
    """It is refused before anything is embedded, by file and tensor."""
    student, text = copy_of(tiny_backbone, "student"), tmp_path / "text.txt"
    weights = load_file(student / "model.safetensors")
    weights["encoder.layer.1.output.dense.weight"][3, 5] = torch.nan
    save_file(weights, student / "model.safetensors", metadata={"format": "pt"})
    text.write_text("".join(f"the dog number {number} runs\n" for number in range(300)))
    options = ("--text", text, "--storage", tmp_path / "storage", "--address", "none")
    done = raysts("distill", tiny_backbone, *options, *overrides({"backbone": student}))
    (line,) = done.err.splitlines()
    assert done.code == 2 and str(student / "model.safetensors") in line
    assert "encoder.layer.1.output.dense.weight" in line and not (tmp_path / "storage").exists()

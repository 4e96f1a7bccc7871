"""What a search says while it runs: a live table on a terminal, a line per trial elsewhere; Ctrl-C on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import subprocess
import sys
import termios
import time
from pathlib import Path

from run_commands import overrides, raysts

ESCAPE = "\x1b["
TRIALS, STEPS = 3, 8


class Terminal:
    """A command on a terminal of its own; Ctrl-C is what the terminal makes of the key."""

    def __init__(self, arguments: list[str]) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, b"\x28\x00\xa0\x00\x00\x00\x00\x00")  # 40 lines of 160 columns
        self.process = subprocess.Popen(
            [sys.executable, *arguments], stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env={**os.environ, "TERM": "xterm"}, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)
        self.shown = ""

    def read_until(self, pattern: str, seconds: float = 300.0) -> None:
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.shown):
            assert time.monotonic() < deadline, self.shown
            if not self._read():
                raise AssertionError(f"ended before {pattern!r}:\n{self.shown}")

    def end(self) -> int:
        """Read the rest; its exit code."""
        while self._read():
            pass
        os.close(self.master)
        return self.process.wait(timeout=300)

    def _read(self) -> bool:
        try:
            found = os.read(self.master, 65536)
        except OSError:  # nobody writes any more
            return False
        self.shown += found.decode(errors="replace")
        return bool(found)


def test_a_live_table_on_a_terminal_ctrl_c_and_plain_lines_elsewhere(
    small_world: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    sets = overrides(
        {
            "backbone": tiny_backbone,
            "space.lower_bound": "0,0.3,0.6",
            "seeds": 1,
            "train.max_steps": STEPS,
            "train.eval_every": 4,
            "train.max_length": 24,
            "sts.data.sample": 96,
        }  # fmt: skip
    )
    arguments = ["tune", "lower-bound", *sets, "--data", small_world, "--storage", tmp_path / "s", "--address", "none"]
    terminal = Terminal(["-m", "raysts", *map(str, arguments)])
    try:
        terminal.read_until(rf"1/{TRIALS}  lower_bound=")
        os.write(terminal.master, b"\x03")
        code = terminal.end()
    finally:
        terminal.process.kill()
        terminal.process.wait()
    assert code == 130
    # One bar over all trials, drawn over, and gone at the end.
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.shown)
    assert re.search(rf"lower-bound: 0/{TRIALS} ━+ +\d+ %", plain) and f"{ESCAPE}2K" in terminal.shown
    assert "Traceback" not in terminal.shown
    last = plain.replace("\r", "").rstrip("\n").rpartition("raysts: ")[2]
    assert last.startswith("interrupted; finished work is kept. To go on: raysts tune lower-bound")
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("s/studies/*/trials/*.json")}
    assert 1 <= len(kept) < TRIALS

    outcome = raysts(*arguments)
    assert outcome.code == 0 and ESCAPE not in outcome.err
    ended = [line for line in outcome.err.splitlines() if re.match(rf"\d+/{TRIALS}  lower_bound=", line)]
    assert [line.split("/")[0] for line in ended] == [str(n + 1) for n in range(len(kept), TRIALS)]
    assert all(re.search(r": dev -?\d+\.\d\d in .*; best lower_bound=", line) for line in ended)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept

"""What a search says while it runs: a live table on a terminal, a line per trial elsewhere; Ctrl-C on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import termios
import time
from pathlib import Path

import killed
import pytest
from run_commands import overrides, raysts

pytestmark = pytest.mark.whole


ESCAPE = "\x1b["
TRIALS, STEPS = 3, 8
ON_A_TERMINAL = """
import fcntl, os, signal, sys, termios
terminal, *arguments = sys.argv[1:]
os.setsid()
opened = os.open(terminal, os.O_RDWR)
fcntl.ioctl(opened, termios.TIOCSCTTY, 0)
for stream in (0, 1, 2):
    os.dup2(opened, stream)
sys.stdin, sys.stdout, sys.stderr = (os.fdopen(stream, mode, buffering=1) for stream, mode in enumerate("rww"))
os.environ["TERM"] = "xterm"
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = ["raysts", *arguments]
from raysts.__main__ import main
main()
"""


class Terminal:
    """A command on a terminal of its own; Ctrl-C is what the terminal makes of the key."""

    def __init__(self, arguments: list[str]) -> None:
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, b"\x28\x00\xa0\x00\x00\x00\x00\x00")  # 40 lines of 160 columns
        self.process = killed.start(ON_A_TERMINAL, os.ttyname(self.slave), *arguments)
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
        self.process.join(300)
        return int(self.process.exitcode)

    def _read(self) -> bool:
        if not select.select([self.master], [], [], 300.0)[0]:
            return False
        try:
            found = os.read(self.master, 65536)
        except OSError:  # nobody writes any more
            return False
        if not self.shown:  # the command has the terminal now, and alone: where it ends, so does what is read
            os.close(self.slave)
        self.shown += found.decode(errors="replace")
        return bool(found)


def test_a_live_table_on_a_terminal_and_lines_elsewhere(few_world: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    space = {"backbone": tiny_backbone, "space.lower_bound": "0,0.3,0.6", "seeds": 1}
    short = {"train.max_steps": STEPS, "train.eval_every": 4, "train.max_length": 24, "sts.data.sample": 96}
    sets = overrides(space, short)
    arguments = ["tune", "lower-bound", *sets, "--data", few_world, "--storage", tmp_path / "s", "--address", "none"]
    terminal = Terminal([*map(str, arguments)])
    try:
        terminal.read_until(rf"1/{TRIALS}  lower_bound=")
        os.write(terminal.master, b"\x03")
        code = terminal.end()
    finally:
        terminal.process.kill()
        terminal.process.join()
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

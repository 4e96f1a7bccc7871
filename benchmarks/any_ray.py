"""Do the same commands give the same models on every Ray?

Five pieces of work on the Ray that this Python has, small enough for two CPUs: a short quickstart, `nli-ct-sed` with four
members, a search of eight points of which a trial and the driver are killed, a job that `ray job submit` runs, and a student
of the second piece's members. Prints one JSON line: seconds and a digest of all models (run id, weights) per piece. With
`--same-as FILE`, the line of another Ray, it names the pieces whose models differ. With `--short` each trains fewer steps, and
two members in place of four, for a first look at a new Ray.

    for ray in 2.51.2 2.60.0; do $ray/bin/python benchmarks/any_ray.py --storage /tmp/any/$ray > /tmp/any/$ray.json; done
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import ray
from kill_quickstart import weights

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "cluster"), str(Path(__file__).parents[1] / "tests")]
from heads import running_head  # noqa: E402
from processes import Command, trainer, wait_until  # noqa: E402

SHORT = {
    "train.max_steps": 20, "train.checkpoint_every": 5, "train.max_length": 24, "batch": 16, "sed.data.sample": 200,
    "evaluation.tasks": "[stsb]", "evaluation.resamples": 5,
}  # fmt: skip
QUICKSTART = {**SHORT, "members": 2}
MEMBERS = {**SHORT, "backbone": "tiny", "members": 4, "train.max_steps": 6}
SEARCH = {
    "backbone": "tiny", "space.lower_bound": "0,0.1,0.2,0.3,0.4,0.5,0.6,0.7", "seeds": 1, "keep": 8, "train.max_steps": 30,
    "train.checkpoint_every": 5, "train.max_length": 24, "sts.data.sample": 96,
}  # fmt: skip
JOB = {key: value for key, value in MEMBERS.items() if not key.startswith("sed.")} | {"members": 1}
STUDENT = {key: value for key, value in SHORT.items() if key != "batch"}
LESS = {"train.max_steps": 6, "train.checkpoint_every": 3, "sed.data.sample": 100}


def sets(overrides: dict[str, object]) -> list[str]:
    """The overrides as arguments."""
    return [part for key, value in overrides.items() for part in ("--set", f"{key}={value}")]


class Pieces:
    """The five pieces, each in a storage folder of its own but for the last."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commands: list[Command] = []

    def start(self, *arguments: object) -> Command:
        log = self.folder / f"{len(self.commands)}.log"
        line = ["-m", "raysts", *map(str, arguments), "--address", "local", "--json"]
        self.commands.append(Command(line, log, {"RAY_TMPDIR": str(self.sessions)}))
        return self.commands[-1]

    def end(self, command: Command) -> None:
        command.stdout()
        if command.process.returncode:
            raise SystemExit(f"{command.log}: exit code {command.process.returncode}\n{command.stderr()}")
        if left := command.left_behind():
            raise SystemExit(f"{command.log}: left behind {left}")

    def quickstart(self) -> Path:
        self.end(self.start("run", "quickstart", *sets(QUICKSTART), "--storage", self.folder / "quickstart"))
        return self.folder / "quickstart"

    def members(self) -> Path:
        self.end(self.start("run", "nli-ct-sed", *sets(MEMBERS), "--storage", self.folder / "members"))
        return self.folder / "members"

    def search(self) -> Path:
        storage = self.folder / "search"

        def records() -> int:
            return len(list(storage.glob("studies/*/trials/[!.]*.json")))

        def started() -> Command:
            return self.start("tune", "lower-bound", *sets(SEARCH), "--storage", storage)

        first = started()
        wait_until(lambda: (records() >= 1 and trainer(storage)) or first.ended())
        victim = trainer(storage)
        assert victim is not None and not first.ended(), first.stderr()
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: records() >= 3 or first.ended())
        assert not first.ended(), first.stderr()
        first.signal_driver(signal.SIGKILL)
        first.process.wait()
        before = records()
        self.end(started())
        assert before < records() == 8, (before, records())
        return storage

    def job(self) -> Path:
        storage = self.folder / "job"
        with running_head(self.folder, 2) as head:
            job = head.submit("run.py", "nli", *sets(JOB), "--storage", storage, "--json")
            output = job.communicate(timeout=600)[0]
        if job.returncode:
            raise SystemExit(output)
        return storage

    def distill(self) -> Path:
        storage = self.folder / "members"
        self.end(self.start("distill", "--from-run", "nli-ct-sed", *sets(STUDENT), "--storage", storage))
        return storage

    def run(self) -> dict[str, object]:
        """Do all five; return what each took and made."""
        pieces: dict[str, Callable[[], Path]] = {
            "quickstart": self.quickstart, "members": self.members, "search": self.search, "job": self.job,
            "distill": self.distill,
        }  # fmt: skip
        seconds, models, digests = {}, {}, {}
        with tempfile.TemporaryDirectory(
            prefix="ra-", dir="/tmp"
        ) as sessions:  # short: it becomes the name of a socket
            self.sessions = Path(sessions)
            try:
                for name, piece in pieces.items():
                    began = time.monotonic()
                    made = weights(piece())
                    seconds[name], models[name] = round(time.monotonic() - began), len(made)
                    digests[name] = hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:16]
                    print(
                        f"{ray.__version__} {name}: {models[name]} models, {seconds[name]} s",
                        file=sys.stderr,
                        flush=True,
                    )
            finally:
                for command in self.commands:
                    command.sweep()
        return {"ray": ray.__version__, "models": models, "digests": digests, "seconds": seconds}


def main() -> None:
    """Run the pieces, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--storage", type=Path, required=True, help="an empty folder")
    parser.add_argument("--same-as", type=Path, help="file with the line of another Ray")
    parser.add_argument("--short", action="store_true", help="fewer steps and members")
    options = parser.parse_args()
    options.storage.mkdir(parents=True)
    if options.short:
        for given in (QUICKSTART, MEMBERS, JOB, STUDENT, SEARCH):
            given |= {key: value for key, value in LESS.items() if key in given}
        MEMBERS["members"], SEARCH["train.max_steps"] = 2, 20
    os.environ.pop("RAYSTS_DATA", None)  # the embedded world, which the tiny backbone reads
    line = Pieces(options.storage.absolute()).run()
    if options.same_as is not None:
        other = json.loads(options.same_as.read_text().splitlines()[-1])["digests"]
        line["differ"] = [name for name, digest in line["digests"].items() if other[name] != digest]  # type: ignore[attr-defined]
    print(json.dumps(line))


if __name__ == "__main__":
    main()

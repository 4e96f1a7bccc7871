"""Wrong input of every kind, drawn at random: it is refused in one message, soon, and nothing is left behind."""

import random
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from golden.golden import Golden, without_places
from inputs import KINDS, Ground
from run_commands import EVALUATION, TINY, overrides, raysts, result

from raysts import cli
from raysts.commands import context, experiment, study
from raysts.errors import RunFailed

SECONDS, MOST_RECORDED = 60, 400
SLICE = {"recipes": 24, "models": 12}
"""Inputs of each kind in every run of the tests."""
ALL = {"values": 700, "recipes": 400, "tables": 400, "models": 400, "records": 100}
SLOW = [pytest.param(*each, marks=pytest.mark.slow) for each in ALL.items()]


class Hangs(BaseException):
    """A command takes too long."""


@pytest.fixture(autouse=True)
def _nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[BaseException]]:
    """What is accepted ends where work would start; nobody is asked over the network; surprises are kept."""
    surprises: list[BaseException] = []
    monkeypatch.chdir(tmp_path)  # a value that is drawn may be the name of a folder to write to
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")

    def start(*arguments: Any, **options: Any) -> Any:
        raise RunFailed("accepted: here work would start")

    def surprised(error: Exception, line: str) -> str:
        surprises.append(error)
        return f"surprise: {error!r}"

    def nobody(*arguments: Any, **options: Any) -> Any:
        raise OSError("no network in this test")

    def late(*arguments: Any) -> None:
        raise Hangs

    monkeypatch.setattr(context, "executor", start)
    monkeypatch.setattr(experiment, "executor", start)
    monkeypatch.setattr(context, "ray_context", start)
    monkeypatch.setattr(study, "run_session", start)
    monkeypatch.setattr(cli, "_crash_message", surprised)
    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    before = signal.signal(signal.SIGALRM, late)
    yield surprises
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def finished_storage(few_world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage with a run and a search."""
    storage = tmp_path_factory.mktemp("fuzz") / "storage"
    where = ["--data", few_world, "--storage", storage, "--address", "none"]
    result("run", "nli-sed", *where, *overrides(TINY, EVALUATION))
    search = {"backbone": "tiny", "train.max_steps": 2, "sts.data.sample": 64, "space.lower_bound": "0,0.5", "seeds": 1}
    result("tune", "lower-bound", *where, *overrides(search))
    return storage


def problem(kind: str, seed: int, ground: Ground, surprises: list[BaseException], messages: dict[str, str]) -> str:
    """What is wrong with how one input was met; empty where nothing is. ``messages`` takes what was said of it."""
    surprises.clear()
    shutil.rmtree(ground.place, ignore_errors=True)
    ground.place.mkdir()
    case = KINDS[kind](random.Random(f"{kind} {seed}"), ground)
    new, given = ground.place / "new-storage", case.arguments
    if given[0] not in ("recipes", "show", "data", "claims") and "--storage" not in given:
        given = [*given, "--storage", str(new)]
    signal.alarm(SECONDS)
    try:
        ended = raysts(*given)
    except Hangs:
        return f"{case.what}: longer than {SECONDS} s"
    except Exception as error:  # noqa: BLE001
        return f"{case.what}: raised {error!r:.300}"
    finally:
        signal.alarm(0)
    words = without_places(ended.err, ground.place, ground.world, ground.model).strip()
    messages[f"{seed}: {case.what}"] = f"{ended.code}: {words[:MOST_RECORDED]}"
    accepted = ended.code == 0 or any(said in ended.err for said in ("here work would start", "OfflineModeIsEnabled"))
    if surprises:
        return f"{case.what}: {surprises[0]!r:.300}"
    if not accepted and ended.code != 2 and kind != "records":
        return f"{case.what}: exit {ended.code}: {ended.err[-300:]}"
    if ended.code and not (ended.err + ended.out).strip():
        return f"{case.what}: exit {ended.code} without a word"
    if ended.code == 2 and new.exists():
        return f"{case.what}: left {sorted(new.rglob('*'))[:3]}, said {ended.err[-200:]}"
    return ""


@pytest.mark.parametrize(("kind", "count"), [*SLICE.items(), *SLOW])
def test_wrong_inputs(
    kind: str, count: int, few_world: Path, tiny_backbone: Path, tmp_path: Path, request: pytest.FixtureRequest,
    _nothing_starts: list[BaseException], golden: Golden,
) -> None:  # fmt: skip
    """``-s`` shows the inputs that are met badly as they come."""
    storage = request.getfixturevalue("finished_storage") if kind == "records" else None
    ground, messages, problems = Ground(few_world, tiny_backbone, storage, tmp_path / "place"), dict[str, str](), []
    for seed in range(count):
        if said := problem(kind, seed, ground, _nothing_starts, messages):
            problems.append(f"{kind} {seed}: {said}")
            print(problems[-1], flush=True)
    assert problems == []
    if count == SLICE.get(kind):
        golden.check(f"messages/{kind}", messages)

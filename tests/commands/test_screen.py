"""What a command shows while it works: the share that is done, and a sign of life in a log."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from run_commands import listening, plan_of

from raysts import log
from raysts.commands import experiment
from raysts.commands.options import RunOptions
from raysts.log import Screen


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(log.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def shown(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> Screen:
    screen = Screen()
    monkeypatch.setattr(log.logger, "handlers", [screen])
    return screen


def test_a_log_has_a_sign_of_life_and_fewer_of_a_long_step(clock: list[float], shown: Screen) -> None:
    messages: list[tuple[float, str]] = []
    shown.follow("train of 99", 400.0, 100.0)
    with listening(lambda text: messages.append((clock[0], text))):
        for second in range(1, 701):
            clock[0] = float(second)
            if second == 601:
                log.say("a message")
            shown.live()
    assert [when for when, _ in messages] == [*range(5, 600, 5), 601, 661]
    assert messages[0][1] == "... train of 99: 0 %, 5.0 s so far"


def test_checks_that_take_longer_are_seen(clock: list[float], shown: Screen) -> None:
    """Wrong input that is found at once has one message alone."""
    messages: list[str] = []
    with listening(messages.append), shown.working("checking data and models"):
        for clock[0] in (0.9, 1.5):
            shown.live()
    assert messages == ["... checking data and models: 1.5 s so far"]


def test_the_share_that_is_done_counts_expected_seconds(clock: list[float], shown: Screen) -> None:
    costs = [201.0, 3_001.0, 1_001.0]
    for number in range(3):
        shown.follow("", sum(costs[number:]), costs[number])
        assert shown.fraction == pytest.approx(sum(costs[:number]) / sum(costs))
    shown = Screen()
    shown.follow("", sum(costs), costs[0])
    shown.follow("", sum(costs[1:]), costs[1])
    clock[0] = 10.0
    shown.within(0.5)
    assert shown.fraction == pytest.approx((costs[0] + costs[1] / 2) / sum(costs))
    assert shown.note == "40 %, 10 s so far, about 17 s left"
    clock[0] = 21.0
    assert shown.note == "40 %, 21 s so far", "the pace so far says nothing of so long a step"


def test_the_time_left_begins_with_what_was_expected_and_goes_to_the_pace(clock: list[float], shown: Screen) -> None:
    shown.follow("", 1000.0, 1000.0)
    assert shown.seconds_left is None, "assumed costs are no seconds"
    shown.follow("", 1000.0, 1000.0, measured=1.0)
    assert shown.seconds_left == pytest.approx(1000)
    clock[0] = 20.0  # nothing is heard of the step yet
    assert shown.seconds_left == pytest.approx(980)
    for part in (0.02, 0.1, 0.5):  # it takes twice as long
        clock[0] = 2000 * part
        shown.within(part)
    assert 1.8 < shown.seconds_left / (1000 - 500) < 2.0


def test_a_step_that_waited_for_a_busy_machine_is_no_pace(clock: list[float], shown: Screen) -> None:
    """Nor is a stretch within a step that did. Costs are by assumed rates, whose unit is half a second here."""
    shown.follow("agreement", 1000.0, 60.0)
    clock[0] = 370.0  # instead of 30 s
    shown.follow("embeddings", 940.0, 840.0)
    for part in range(1, 26):
        clock[0] += 8.4 if part != 3 else 900.0  # 2 % of the step at its usual pace, or while others had the machine
        shown.within(part / 50)
    assert 0.9 < shown.seconds_left / (0.5 * (940 - 420)) < 1.1
    clock[0] += 250.0  # silent again
    assert 0.9 < shown.seconds_left / (0.5 * (940 - 420)) < 1.1


def test_a_machine_that_is_always_slow_has_that_pace(clock: list[float], shown: Screen) -> None:
    shown.follow("", 1000.0, 60.0)
    for left, step in ((940.0, 840.0), (100.0, 100.0)):
        clock[0] = 3 * (1000.0 - left)
        shown.follow("", left, step)
    assert shown.seconds_left == pytest.approx(300)


def test_the_start_of_a_step_is_no_pace(clock: list[float], shown: Screen) -> None:
    shown.follow("", 100.0, 80.0, measured=1.0)
    clock[0] = 16.0
    shown.within(0.02)  # the first steps, after the start
    assert shown.fraction == pytest.approx(0.16) and shown.seconds_left == pytest.approx(84)
    shown.within(1.0)
    assert shown.fraction == pytest.approx(0.8)


def test_an_estimate_waits_for_a_share_of_the_work(clock: list[float], shown: Screen) -> None:
    """Of 15 % by assumed rates, of 2 % once the start of processes is a small part of the time."""
    shown.follow("", 100.0, 100.0)
    for clock[0], part, known in ((10.0, 0.14, False), (11.0, 0.16, True)):
        shown.within(part)
        assert (shown.seconds_left is not None) is known
    for moment, known in ((179.0, False), (180.0, True)):
        clock[0] = 0.0
        again = Screen()
        again.follow("", 100.0, 100.0)
        clock[0] = moment
        again.within(0.03)
        assert (again.seconds_left is not None) is known
    again.within(0.019)
    assert again.seconds_left is None


def test_a_silent_step_takes_no_longer_than_was_expected_of_it(clock: list[float], shown: Screen) -> None:
    """As far as rates are measured, what passes in silence is work, until the step would be done."""
    shown.follow("", 200.0, 100.0, measured=1.0)
    clock[0] = 50.0
    shown.within(0.5)
    for clock[0], left in ((70.0, 130.0), (100.0, 100.0), (150.0, 100.0), (1000.0, 100.0)):
        assert shown.seconds_left == pytest.approx(left)
    shown.follow("", 0.0, 0.0, measured=1.0)
    assert (shown.fraction, shown.seconds_left) == (1.0, 0.0) and shown.note == "100 %, 16 min 40 s so far"


def test_texts_that_a_step_embeds_are_its_progress(clock: list[float], shown: Screen) -> None:
    shown.embed(5)
    shown.follow("", 10.0, 10.0, texts=80)
    assert shown.fraction == 0
    for texts, fraction in ((20, 0.25), (40, 0.75), (40, 1.0)):
        shown.embed(texts)
        assert shown.fraction == pytest.approx(fraction)
    shown.follow("", 10.0, 10.0)
    shown.within(1.0)
    assert shown.fraction == 1, "a step that tells of its end alone"


def test_bars_of_a_command_and_of_each_run(clock: list[float], shown: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, unless only warnings are shown. A run's bar goes when it is done."""
    monkeypatch.setattr(log.sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(log, "console", lambda: Console(file=io.StringIO(), force_terminal=True))
    shown.draw("a", "member 0", 1, 4, "loss 2")
    with shown.working("checking"), shown.working("again"):
        bars = shown.bars
        shown.follow("train", 100.0, 100.0)
        for run, done in (("a", 2), ("b", 1), ("a", 4)):
            shown.draw(run, f"member {run}", done, 4, f"loss {done}")
        shown.within(0.5)
        shown.live()
        seen = [(bar.description, bar.completed, bar.total, bar.visible, bar.fields["note"]) for bar in bars.tasks]
    whole = ("train", 0.5, 1.0, True, "50 %, 0.0 s so far")
    assert seen == [whole, ("member a", 4, 4, False, "loss 4"), ("member b", 1, 4, True, "loss 1")]
    assert shown.bars is None and not shown.active
    shown.setLevel(log.logging.WARNING)
    with shown.working("quiet"):
        assert shown.bars is None
    monkeypatch.setattr(log, "console", lambda: Console(force_terminal=True, _environ={"TERM": "dumb"}))
    assert log.progress_bars() is None


def test_messages_have_their_moment_where_debug_records_are_shown(
    clock: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock[0] = 4.0
    monkeypatch.setattr(log, "screen", Screen())
    monkeypatch.setattr(log.logger, "handlers", [log.screen])
    clock[0] = 6.5
    with log.showing(verbose=True):
        log.logger.debug("read")
    with log.showing(quiet=True):
        log.say("hidden")
    log.logger.debug("hidden")
    log.say("said")
    assert capsys.readouterr().err == "    2.50 s  read\nsaid\n"


def test_notes_are_folded_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(log.sys.stdout, "isatty", lambda: False, raising=False)
    note = "- one two three four five-six"
    assert log.fold(note) == note and log.columns() == 20
    monkeypatch.setattr(log.sys.stdout, "isatty", lambda: True, raising=False)
    assert log.fold(note) == "- one two three four\n  five-six" and log.fold(note[2:]) == "one two three four\nfive-six"


def test_generated_sentences_are_said_before_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAYSTS_DATA", raising=False)
    (line,) = experiment.cautions(plan_of("ct", {"backbone": "tiny", "train.max_steps": 100}, storage=tmp_path))
    assert "generated" in line
    quickstart = plan_of("quickstart", {"train.max_steps": 100}, storage=tmp_path)
    assert not experiment.cautions(quickstart)
    several = experiment.plan_experiment("claims-gausscse", {}, RunOptions(storage=tmp_path))
    assert experiment.cautions(*several.plans.values()) == [line]

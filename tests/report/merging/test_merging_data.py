"""The report about merging: its cells by hand, and rules that are judged on what they were not fitted on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from raysts.evaluation.tasks import RowScores
from raysts.report.merging import page
from raysts.report.merging.data import DISTANCES, SYSTEMS, WAYS, Configuration, MergingData, _cell, judged, rules, said

PAIRS = 120
GOLD = np.random.default_rng(1).normal(size=PAIRS)


def model(quality: float, seed: int) -> dict[str, RowScores]:
    """The similarities of a model on two sets: the gold scores with noise, the less the better it is."""
    noise = np.random.default_rng(seed).normal(size=(2, PAIRS))
    return {
        name: RowScores(name, "test", "0", "cosine", GOLD + of_set / quality, GOLD)
        for name, of_set in zip(("sts12", "stsb"), noise, strict=True)
    }


def configurations() -> list[Configuration]:
    """Near members are averaged best, far ones distilled; a distance says which they are."""
    found = []
    for regime, apart, best in (("short", 0.1, "soup"), ("long", 0.4, "soup"), ("random", 1.4, "sed")):
        for seed in range(3):
            quality = {system: 4.0 if system == best else 0.5 for system in SYSTEMS}
            found.append(
                Configuration(
                    regime=regime,
                    seed=seed,
                    distances=dict.fromkeys(DISTANCES, apart + 0.01 * seed),
                    scores={system: [model(quality[system], 7 * seed + n)] for n, system in enumerate(SYSTEMS)},
                    dev={system: value / 5 for system, value in quality.items()},
                )
            )
    return found


def test_a_cell_is_the_mean_over_seeds_and_its_paired_difference() -> None:
    made = configurations()[:3]
    scores = [
        [
            np.mean([stats.spearmanr(rows.values, rows.gold)[0] for rows in each.scores[system][0].values()])
            for each in made
        ]
        for system in ("soup", "best member")
    ]
    cell = _cell(made, "soup", 200)
    assert cell.mean == pytest.approx(np.mean(scores[0])) and cell.std == pytest.approx(np.std(scores[0], ddof=1))
    assert cell.difference == pytest.approx(np.mean(scores[0]) - np.mean(scores[1]))
    assert cell.shown and cell.low is not None and 0 < cell.low < cell.difference < (cell.high or 0)
    assert not _cell(made, "greedy-soup", 200).shown and _cell(made, "best member", 200).difference is None


def test_rules_and_what_they_lose() -> None:
    made = configurations()
    for distance, rule in rules(made).items():
        assert 0.42 < rule.threshold < 1.4 and said(rule) == f"soup below {rule.threshold:.3g}, else sed", distance
    found = {(each.rule, each.held_out): each for each in judged(made)}
    by_seed = found["by weights, relative L2", "a seed"]
    assert (by_seed.right, by_seed.lost, by_seed.worst) == (9, 0.0, 0.0)
    by_regime = found["by weights, relative L2", "a regime"]
    assert by_regime.right == 6 and by_regime.worst > by_regime.lost > 0.1, "no rule knows a regime it has not seen"
    always = {way: found[f"always {way}", ""] for way in WAYS}
    assert (always["soup"].right, always["sed"].right, always["greedy-soup"].right) == (6, 3, 0)


def test_the_page_and_its_markdown_hold_the_same(tmp_path) -> None:  # type: ignore[no-untyped-def]
    made = configurations()
    data = MergingData(
        name="merge-rules", command="raysts run merge-rules", created_at="2026-01-01T00:00:00+00:00", backbone="<tiny>",
        members=3, sets=("sts12", "stsb"), configurations=made, environment={},
        table={regime: {system: _cell([each for each in made if each.regime == regime], system, 50) for system in SYSTEMS}
               for regime in ("short", "long", "random")},
        distances={regime: dict.fromkeys(DISTANCES, (0.5, 0.01)) for regime in ("short", "long", "random")},
        rules=rules(made), judged=judged(made),
    )  # fmt: skip
    html = page.write_report(data, tmp_path).read_text(encoding="utf-8")
    text = (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert "&lt;tiny&gt;" in html and "<tiny>" not in html
    for _, rows in page.tables(data):
        for row in rows[1:]:
            assert f"| {' | '.join(row)} |" in text
            assert all(value.replace("**", "") in html.replace("<b>", "").replace("</b>", "") for value in row)
    without = replace(data, table={"short": {system: _cell(made[:1], system, 0) for system in SYSTEMS}})
    assert "[" not in page.tables(without)[0][1][3][1], "no interval, no difference"

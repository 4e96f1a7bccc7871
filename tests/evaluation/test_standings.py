from evaluation_fakes import row

from raysts.evaluation.standings import View, format_results, format_standings, named_teachers, remarks, standings

ALL = View(None)
"""Rank correlations on test sets, whatever layers are pooled."""


def test_one_teacher_is_no_ensemble() -> None:
    rows = [row("d", "member", "stsb", 0.8, run_id="m"), row("d", "ensemble", "stsb", 0.8, parent_run_ids=["m"])]
    assert [each["role"] for each in named_teachers(rows, {"m": "minilm"})] == ["teacher minilm"]
    rows[1]["parent_run_ids"] = ["m", "n"]
    assert [each["role"] for each in named_teachers(rows, {})] == ["member", "ensemble"]


def test_systems_trials_and_layers_are_kept_apart_and_in_order() -> None:
    rows = [row("a", "member", "sts12", 0.5, layers=layers) for layers in ("12", "2", "1")]
    rows += [row("b", "member", "sts12", 0.5, study="s", trial=trial) for trial in "12"]
    table = standings(rows, ALL)
    assert table.columns == ("sts12",) and {*table.lines[0].mean} == {"sts12"}, "a single set has no average"
    lines = [(line.system, line.trial, line.layers, line.mean["sts12"].n) for line in table.lines]
    assert lines == [
        ("a", None, "1", 1), ("a", None, "2", 1), ("b", "1", "2", 1), ("b", "2", "2", 1), ("a", None, "12", 1),
    ]  # fmt: skip


def test_a_plot_has_the_first_starting_model_and_a_remark_says_what_chose() -> None:
    rows = [row("a", role, "sts12", 0.5, layers=layers) for role in ("backbone", "student") for layers in "12"]
    lines = [(line.role, line.layers) for line in standings(rows, ALL).plot_lines]
    assert lines == [("backbone", "1"), ("student", "1"), ("student", "2")]
    labels, agreed = "checkpoints chosen by {} labels", "checkpoints chosen by agreement with the teachers"
    cases = {(None,): (), ("stsb", None, "faq"): (labels.format("faq and stsb"),), ("agreement",): (agreed,),
             ("stsb", "agreement"): (labels.format("stsb"), agreed)}  # fmt: skip
    for chose, said in cases.items():
        assert remarks([row("a", "student", "sts12", 0.5, selected_by=each) for each in chose]) == said
    assert remarks([row("a", "student", "sts12", 0.5, transductive=True)])[0].endswith("(transductive)")


def test_formatted_table() -> None:
    rows = []
    for member, value in enumerate((0.70, 0.72, 0.77)):
        own = {"member": member, "run_id": f"m{member}"}
        rows += [row("nli-sed", "member", "sts12", value, **own), row("nli-sed", "member", "stsb", value + 0.1, **own)]
    # The same run measured twice in one second: the later row counts. And a value measured earlier.
    rows += [row("nli-sed", "student", "sts12", 0.2)]
    values = {"sickr-all": 0.9, "stsb": 0.8, "sts12": 0.8}  # the first is inside another set: not in the average
    rows += [row("nli-sed", "student", name, value) for name, value in values.items()]
    rows += [row("nli-sed", "student", "sts12", 0.1, created_at="2025-12-31T00:00:00+00:00")]
    rows += [row("nli-sed", "backbone", "sts12", 0.3)]
    # What the table must not show.
    for other in ({"split": "dev"}, {"rows": "clean"}, {"metric": "pearson"}, {"aggregation": None, "subset": "x"}):
        rows += [row("nli-sed", "student", "sts12", 0.0, **other)]
    rows += [row("nli-sed", "member", "sts12", value, run_id="another") for value in (float("nan"), None)]
    assert format_standings(standings(rows, ALL)).splitlines() == [
        "spearman, all, x100",
        "system   role        pooling  layers  similarity        sts12         stsb  sickr-all          avg",
        "-" * 98,
        "nli-sed  backbone    mean     2       cosine            30.00",
        "nli-sed  member (3)  mean     2       cosine      73.00 ±3.61  83.00 ±3.61             78.00 ±3.61",
        "nli-sed  student     mean     2       cosine            80.00        80.00      90.00        80.00",
    ]


def test_metrics_without_aggregation_have_tables_of_their_own() -> None:
    accuracy = {"metric": "accuracy", "aggregation": None, "similarity": None}
    rows = [row("a", "member", "sts12", 0.7), row("a", "member", "mr", 0.8, split="cv", **accuracy)]
    rows += [row("a", "member", "trec", 0.9, **accuracy), row("a", "member", "trec", 0.1, subset="x", **accuracy)]
    assert format_results(rows[:1]) == format_standings(standings(rows, ALL))
    first, second = format_results(rows).split("\n\n")
    assert first == format_standings(standings(rows, ALL))
    title, head, _, *lines = second.splitlines()
    assert (title, head) == ("accuracy, x100", "system  role    pooling  layers  similarity     mr   trec")
    assert lines == ["a       member  mean     2       -           80.00  90.00"]
    assert format_results([]) == format_standings(standings([], ALL))

from __future__ import annotations

import ast
import re
from typing import Any

import pytest
import yaml

from raysts.pipeline.deliver import render
from raysts.schema import RESULTS


def row(dataset: str, value: float, **columns: Any) -> dict[str, Any]:
    given = {
        "dataset": dataset, "value": value, "metric": "spearman", "aggregation": "all", "split": "test", "rows": "all",
        "layers": "1", "similarity": "cosine", "ci_low": value - 0.01, "ci_high": value + 0.01, "n": 1379,
    }  # fmt: skip
    return dict.fromkeys(RESULTS.names) | given | columns


def card(**changes: Any) -> str:
    given: dict[str, Any] = {
        "name": "quickstart", "path": "models/my student", "system": "nli-ct-sed", "role": "student", "members": 4,
        "taught": "mean embeddings of 4 members",
        "backbone": "tiny", "dimension": 128, "max_length": 40, "pooling": "mean", "layers": 1,
        "data": [{"stage": "nli", "table": "nli/train", "rows": 12_000, "sha256": "ab" * 32}],
        "recipe_yaml": "name: quickstart\n", "rows": [row("stsb", 0.71234)], "command": "raysts run quickstart",
        "similarity": "cosine", "language": "en", "teachers": (), "datasets": (), "notes": (), "models": (),
        **dict.fromkeys(("source", "base_model", "licence", "compared", "selected_by", "versions")),
    }  # fmt: skip
    return render(given | changes)


def front(text: str) -> dict[str, Any]:
    empty, head, body = text.split("---\n", 2)
    assert empty == "" and body.startswith("\n# ")
    return yaml.safe_load(head)


def test_the_hubs_own_parser_reads_the_front_matter() -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    rows = [
        row("stsb", 0.71234),
        row("retrieval:mine", 0.4, metric="ndcg@10", aggregation=None),
        row("sts12", 0.3, rows="clean"),
    ]
    text = card(
        rows=rows, licence="mit", datasets=["stanfordnlp/snli"], teachers=["a/b", "other"], base_model="org/encoder"
    )
    found = huggingface_hub.ModelCard(text).data
    assert (found.license, found.datasets, found.base_model) == ("mit", ["stanfordnlp/snli"], "org/encoder")
    assert (found.library_name, found.pipeline_tag) == ("sentence-transformers", "sentence-similarity")
    assert found.language == "en" and found.tags.count("raysts") == 1 and "base_model" not in front(card())
    results = {result.dataset_name: result for result in found.eval_results}
    assert results["stsb"].metric_value == 0.71234 and results["stsb"].metric_type == "spearman_cosine"
    assert results["retrieval:mine"].task_type == "information-retrieval" and "sts12" not in results
    assert "Its teachers: `a/b`, `other`." in text and found.model_name == "quickstart"
    without = huggingface_hub.ModelCard(card(rows=[])).data
    assert without.license is None and without.eval_results is None


def test_the_code_of_the_card_is_python_and_names_the_model() -> None:
    blocks = re.findall(r"```python\n(.*?)\n```", card(path='it\'s "here"'), re.S)
    assert len(blocks) == 2
    for block in blocks:
        texts = [n.value for n in ast.walk(ast.parse(block)) if isinstance(n, ast.Constant)]
        assert 'it\'s "here"' in texts


def test_the_scores_are_those_of_the_rows_that_the_model_has() -> None:
    rows = [
        row("stsb", 0.71234),
        row("stsb", 0.70004, metric="pearson"),
        row("sts12", 0.5, ci_low=None, ci_high=None),
        row("stsb", 0.9, layers="2"),
        row("stsb", 0.8, split="dev"),
        row("sts12", 0.4, subset="headlines", aggregation=None),
        row("sickr", float("nan")),
    ]
    text = card(rows=rows)
    assert "| stsb test | spearman | all | 1 | cosine | 71.23 | 70.23 to 72.23 | 1,379 |" in text
    assert "| sts12 test | spearman | all | 1 | cosine | 50.00 | – | 1,379 |" in text
    assert text.index("70.00") > text.index("Other metrics")
    assert not re.search("90.00|80.00|40.00|nan", text)
    assert "Not measured." in card(rows=[]) and "None: nothing was trained." in card(data=[])


def test_the_card_says_what_a_user_must_know() -> None:
    text = card()
    assert "distilled from the mean embeddings of 4 members" in text
    assert "| nli | `nli/train` | 12,000 | `abababababababab` |" in text
    assert "No labels of an evaluation set chose the checkpoint." in text
    assert "```bash\nraysts run quickstart\n```" in text and "```yaml\nname: quickstart\n```" in text
    text = card(selected_by="stsb-dev", notes=["mind\nthis"], source="SED 5.1", role="member",
                layers=2, versions={"torch": "2.13"})  # fmt: skip
    assert "Labels of stsb-dev chose the checkpoint" in text and "- mind this" in text
    assert "one of 4 members" in text and "the last 2 layers" in text and "SED 5.1" in text and "torch 2.13" in text


def test_names_cannot_break_out_of_their_place() -> None:
    evil = "<script>alert(1)</script>\n# heading | cell ```"
    text = card(name=evil, system=evil, backbone=evil, command=evil, recipe_yaml=evil, notes=[evil], source=evil,
                data=[{"stage": evil, "table": evil, "rows": 1, "sha256": evil}], rows=[row(evil, 0.5)])  # fmt: skip
    outside = re.sub(r"^(`{3,})\w*\n.*?\n\1$", "", text, flags=re.S | re.M)
    assert "<script" not in outside
    assert [line for line in outside.splitlines() if line.startswith("# ")] == [
        "# &lt;script>alert(1)&lt;/script> # heading | cell ```"
    ]
    front(text)

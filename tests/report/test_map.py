import html
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from report_samples import recorded, report_data

from raysts.report.map import EDGE, FEWEST, SIDE, TextMap, write_map
from raysts.report.run import write_report
from raysts.storage.store import Store

HOSTILE = "</script><script>document.title='taken'</script>\"`${1}\x1b </option></select><b>"


def sample(count: int = 60) -> TextMap:
    draw = np.random.default_rng(3)
    teacher = draw.normal(size=(count, 8))
    student = teacher[:, :5] + 0.7 * draw.normal(size=(count, 5))
    given = {"member": teacher, "student": student}
    vectors = {role: values / np.linalg.norm(values, axis=1, keepdims=True) for role, values in given.items()}
    return TextMap([HOSTILE, *(f"text {number}" for number in range(1, count))], vectors)


def test_the_nearest_and_those_that_are_kept_are_those_of_the_cosines() -> None:
    data = sample()
    for text in range(60):
        nearest = []
        for role, vectors in data.vectors.items():
            order = sorted(set(range(60)) - {text}, key=lambda other: -float(vectors[text] @ vectors[other]))
            nearest.append(order[:10])
            assert data.nearest[role][text].tolist() == order[:10]
        assert data.overlap[text] == len(set(nearest[0]) & set(nearest[1]))


def test_a_turned_student_stands_where_its_teacher_does() -> None:
    vectors = sample().vectors["member"]
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(8, 8)))
    data = TextMap(sample().texts, {"member": vectors, "student": vectors @ turn})
    teacher, student = data.places.values()
    np.testing.assert_allclose(teacher, student, atol=1e-6)
    assert data.overlap == [10] * 60 and teacher.min() >= EDGE - 1e-6 and teacher.max() <= SIDE - EDGE + 1e-6
    flat = TextMap(data.texts, {"member": vectors[:, :2] * (9, 1)}).places["member"]
    drawn, given = (np.linalg.norm(rows - rows[0], axis=1)[1:] for rows in (flat, vectors[:, :2] * (9, 1)))
    np.testing.assert_allclose(drawn / given, drawn[0] / given[0], rtol=1e-6)  # of two dimensions nothing is lost


def test_a_map_needs_both_files_and_some_texts(tmp_path: Path) -> None:
    store, data = Store(tmp_path), sample()
    files = {"member": "maps/a.parquet", "student": "maps/b.parquet"}
    for count in (FEWEST - 1, FEWEST):
        assert TextMap.read(store, files) is None
        for role, path in files.items():
            table = {"text": data.texts[:count], "vector": list((2 * data.vectors[role][:count]).astype(np.float16))}
            with store.put(path) as draft:
                pq.write_table(pa.table(table), draft)
    read = TextMap.read(store, files)
    assert read is not None and read.texts == data.texts[:FEWEST]
    np.testing.assert_allclose(read.vectors["student"], data.vectors["student"][:FEWEST], atol=2e-3)
    assert TextMap.read(store, {"student": files["student"]}) is None


@pytest.mark.parametrize(("teachers", "name"), [({"a": "m"}, "the teacher m"), ({"a": "m", "b": "n"}, "the ensemble")])
def test_a_report_has_its_map_beside_it(teachers: dict[str, str], name: str, tmp_path: Path) -> None:
    write_report(recorded(replace(report_data(), map=sample()), teachers=teachers), tmp_path)
    assert name in (tmp_path / "map.html").read_text(encoding="utf-8")


def test_a_text_is_never_markup(tmp_path: Path) -> None:
    page = write_map(sample(), HOSTILE, f"the teacher {HOSTILE}", tmp_path)
    text = page.read_text(encoding="utf-8")
    assert page.name == "map.html" and text.count("<script") == 1 and text.count("<select") == 1
    assert "http" not in text and "src=" not in text
    assert "By chance it would keep 1.7." in text, "ten of 59 for each of ten"
    options = re.findall(r"<option>(.*?)</option>", text, re.S)
    assert [html.unescape(option) for option in options] == [HOSTILE.replace("\x1b", "\ufffd"), *sample().texts[1:]]
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.S)
    assert "taken" not in script, "no text is part of the script"


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")
def test_a_browser_shows_the_first_text_with_what_the_student_keeps(tmp_path: Path) -> None:
    data = sample()
    page = write_map(data, HOSTILE, "the ensemble", tmp_path)
    command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    shown = subprocess.run([*command, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120).stdout
    assert "<title>&lt;/script&gt;" in shown and f"The student keeps {data.overlap[0]} of them" in shown
    assert shown.count('<li class="is-kept">') == data.overlap[0] and shown.count("<li ") == 10
    assert shown.count('class="is-text"') == 2
    assert html.unescape(re.findall(r'<p id="text">(.*?)</p>', shown, re.S)[0]).startswith("</script><script>")

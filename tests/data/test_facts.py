from __future__ import annotations

from pathlib import Path

import pytest

from raysts.data import facts
from raysts.data.facts import Facts


def test_what_was_found_out_last_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(facts, "MOST", 20)
    for number in range(40):
        Facts("rows", number).add(rows=number)
        assert Facts("rows", number).read() == {"rows": number}
        assert len(list((tmp_path / "raysts" / "known").iterdir())) <= 20
    assert not Facts("rows", 0).read() and Facts("rows", 36).read() == {"rows": 36}
    (file := tmp_path / "file").write_text("a")
    Facts("text", files=[file]).add(rows=1)
    file.write_text("bb")
    assert not Facts("text", files=[file]).read()

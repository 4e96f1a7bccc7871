from __future__ import annotations

from pathlib import Path

import pytest

from raysts.data import known
from raysts.data.known import Known


def test_what_was_found_out_last_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(known, "MOST", 20)
    for number in range(40):
        Known("rows", number).add(rows=number)
        assert Known("rows", number).facts() == {"rows": number}
        assert len(list((tmp_path / "raysts" / "known").iterdir())) <= 20
    assert not Known("rows", 0).facts() and Known("rows", 36).facts() == {"rows": 36}
    (file := tmp_path / "file").write_text("a")
    Known("text", files=[file]).add(rows=1)
    file.write_text("bb")
    assert not Known("text", files=[file]).facts()

from pathlib import Path

import numpy as np
import pytest
from small_runs import write_backbone

from raysts.models import pretrained
from raysts.models.sentence_model import SentenceModel


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> SentenceModel:
    return pretrained.load(write_backbone(tmp_path_factory.mktemp("small") / "bert", "bert"), device="cpu")


@pytest.fixture
def static(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SentenceModel:
    """Word vectors of six words; that of ``nothing`` is zeros."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    lines = [f"{word} {' '.join(f'{x:.4f}' for x in rng.normal(size=3))}" for word in ("cat", "dog", "car", "t-shirt")]
    path = tmp_path / "vectors.txt"
    path.write_text("\n".join([*lines, "Rome 1 2 3", "nothing 0 0 0"]) + "\n", encoding="utf-8")
    return pretrained.load(path)

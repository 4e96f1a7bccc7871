"""raysts: Ray distributed training, distillation and tuning of sentence embeddings.

``raysts.run``, ``raysts.tune``, ``raysts.distill``, ``raysts.evaluate``, ``raysts.compare``, ``raysts.embed``,
``raysts.export`` and ``raysts.load`` do what the commands of the same name do. They are imported when first used, so that
``import raysts`` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"
_API = {
    **dict.fromkeys(("embed", "evaluate", "export", "load", "plan"), "context"),
    "compare": "compare",
    "tune": "tune",
    **dict.fromkeys(("distill", "run"), "study_run"),
}
__all__ = list(_API)


def __getattr__(name: str) -> Any:
    if name in _API:
        return getattr(importlib.import_module(f"raysts.commands.{_API[name]}"), name)
    raise AttributeError(f"module 'raysts' has no attribute '{name}'")

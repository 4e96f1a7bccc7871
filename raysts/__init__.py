"""raysts: Ray distributed training, distillation and tuning of sentence embeddings.

``raysts.run``, ``raysts.distill``, ``raysts.evaluate``, ``raysts.embed``, ``raysts.export`` and ``raysts.load`` do what
the commands of the same name do. They are imported when first used, so that ``import raysts`` stays cheap.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
_API = ("distill", "embed", "evaluate", "export", "load", "plan", "run")
__all__ = list(_API)


def __getattr__(name: str) -> Any:
    if name in _API:
        from raysts import api

        return getattr(api, name)
    raise AttributeError(f"module 'raysts' has no attribute '{name}'")

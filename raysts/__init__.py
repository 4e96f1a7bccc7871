"""raysts: Ray distributed training, distillation and tuning of sentence embeddings.

``raysts.run``, ``raysts.tune``, ``raysts.distill``, ``raysts.claims``, ``raysts.evaluate``, ``raysts.compare``, ``raysts.embed``,
``raysts.export`` and ``raysts.load`` do what the commands of the same name do. They are imported when first used, so that
``import raysts`` stays cheap.
"""

import importlib
from typing import Any

__version__ = "0.1.0"
__all__ = ["claims", "compare", "distill", "embed", "evaluate", "export", "load", "plan", "run", "tune"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        module = "context" if name == "load" else name  # one command, one file
        return getattr(importlib.import_module(f"raysts.commands.{module}"), name)
    raise AttributeError(f"module 'raysts' has no attribute '{name}'")

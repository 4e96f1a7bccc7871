"""raysts: Ray distributed training, distillation and tuning of sentence embeddings.

``raysts.run``, ``raysts.distill`` and the others of ``__all__`` do what the commands of the same name do. They are imported
when first used, so that ``import raysts`` stays cheap.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysts.commands.claims import claims
    from raysts.commands.compare import compare
    from raysts.commands.context import load
    from raysts.commands.distill import distill
    from raysts.commands.evaluate import evaluate
    from raysts.commands.follow import remove, status, watch
    from raysts.commands.look import plan
    from raysts.commands.run import run
    from raysts.commands.tune import tune
    from raysts.commands.use import embed, export
    from raysts.errors import InputError, RunFailed

__version__ = "0.1.0"
__all__ = [
    "InputError", "RunFailed", "claims", "compare", "distill", "embed", "evaluate", "export", "load", "plan", "remove",
    "run", "status", "tune", "watch",
]  # fmt: skip
_PLACES = {
    "InputError": "errors", "RunFailed": "errors", "load": "commands.context", "plan": "commands.look",
    "remove": "commands.follow", "status": "commands.follow", "watch": "commands.follow",
    "embed": "commands.use", "export": "commands.use",
}  # fmt: skip
"""Modules of the names that are no command with a file of that name."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module(f"raysts.{_PLACES.get(name, f'commands.{name}')}"), name)
    raise AttributeError(f"module 'raysts' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

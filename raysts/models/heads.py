"""The heads by their type in ``modules.json``. Adding one is a file here and a line."""

from __future__ import annotations

from pathlib import Path

from raysts.models.flow import FlowHead
from raysts.models.gaussian import LOG_VAR, GaussianHead
from raysts.models.head import Dense, Head
from raysts.models.latent_heads import CategoricalHead, NormalHead, PointHead

HEADS: dict[str, type[Head]] = {kind.module: kind for kind in (Dense, FlowHead, CategoricalHead, NormalHead, PointHead)}


def load_head(module: str, folder: Path) -> Head:
    """The head of type ``module`` that ``folder`` holds.

    Raises:
        ValueError: it cannot be read.
        KeyError: no such type.
    """
    name = module.rsplit(".", 1)[-1]  # sentence-transformers has moved its modules between packages
    if name == "Dense" and (folder / LOG_VAR).is_file():
        return GaussianHead.load(folder)
    kinds = {kind.module.rsplit(".", 1)[-1]: kind for kind in HEADS.values()}
    return kinds[name].load(folder)

"""Glow over sentence embeddings, as a module of sentence-transformers too.

BERT-flow, Li et al. 2020, and SED B.3. Model directories hold a copy of this file, ``raysts_glow.py``. It imports nothing of
raysts.

Each of L levels is ``depth`` steps: actnorm, reversal of the dimensions, additive coupling by a small network. After a
level half of the dimensions leave; z is what left, then what remained. The prior is N(0, I). Actnorm, coupling network
and their initial values are those of the official code (bohanli/BERT-flow).

Shapes: B texts, D dimensions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

Mean = Callable[[Tensor], Tensor]
"""[B, D] -> [D]: mean over the texts that the flow is initialised on."""

LOG_SCALE = 3.0
"""Scales are exp(3 logs): a factor on the learning rate of their logarithms."""


class ActNorm(nn.Module):
    """Map (x + bias) exp(3 logs) of each dimension, fitted to zero mean and unit variance, then trained."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(dim))
        self.logs = nn.Parameter(torch.zeros(dim))

    def forward(self, x_BD: Tensor, mean: Mean | None = None) -> Tensor:
        """Map [B, D] -> [B, D]. With a ``mean`` fit to ``x_BD`` first."""
        if mean is not None:
            centre_D = mean(x_BD)
            deviation_D = mean((x_BD - centre_D).square()).sqrt()
            self.bias.copy_(-centre_D)
            self.logs.copy_(-(deviation_D + 1e-6).log() / LOG_SCALE)
        return (x_BD + self.bias) * (LOG_SCALE * self.logs).exp()


class Shift(nn.Module):
    """Network of a coupling: two hidden layers with actnorm and ReLU. It begins as zero."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.linear = nn.ModuleList(nn.Linear(size, width, bias=False) for size in (dim, width))
        self.actnorm = nn.ModuleList(ActNorm(width) for _ in range(2))
        self.out = nn.Linear(width, dim)
        self.logs = nn.Parameter(torch.zeros(dim))
        for weight in self.linear.parameters():
            nn.init.normal_(weight, 0.0, 0.05)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x_BD: Tensor, mean: Mean | None = None) -> Tensor:
        for linear, actnorm in zip(self.linear, self.actnorm, strict=True):
            x_BD = F.relu(actnorm(linear(x_BD), mean))
        return self.out(x_BD) * (LOG_SCALE * self.logs).exp()


class GlowStep(nn.Module):
    """Actnorm, reversal, and one half of the dimensions shifted by what a network makes of the other half."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.actnorm = ActNorm(dim)
        self.shift = Shift(dim // 2, width)

    def forward(self, x_BD: Tensor, mean: Mean | None = None) -> Tensor:
        a, b = self.actnorm(x_BD, mean).flip(-1).chunk(2, -1)
        return torch.cat([a, b + self.shift(a, mean)], -1)


class Glow(nn.Module):
    """Invertible map of embeddings to values that follow N(0, I) once it is trained.

    ``dim``: D. Every level halves it, so 2^levels must divide it. ``levels``: L (2 in the paper's Table 7, 3 in the official
    code's default file).

    Raises:
        ValueError: a size below 1, or a ``dim`` that the levels do not divide.
    """

    initialized: Tensor

    def __init__(self, dim: int, levels: int = 2, depth: int = 3, width: int = 32) -> None:
        super().__init__()
        self.dim, self.depth, self.width = dim, depth, width
        for name, value in {"dim": dim, "levels": levels, "depth": depth, "width": width}.items():
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        if dim % 2**levels:
            raise ValueError(
                f"levels={levels}: every level of a flow halves the dimensions, so {2**levels} must divide their number, "
                f"which is {dim}; take fewer levels or a model of another width"
            )
        self.levels = nn.ModuleList(
            nn.ModuleList(GlowStep(dim >> level, width) for _ in range(depth)) for level in range(levels)
        )
        self.register_buffer("initialized", torch.tensor(False))

    def encode(self, x_BD: Tensor, mean: Mean | None = None) -> Tensor:
        """Map x -> z, both [B, D]. With a ``mean`` fit every actnorm on the way."""
        left = []
        with torch.autocast(x_BD.device.type, enabled=False):  # bf16 has no digits for densities
            for steps in self._steps:
                for step in steps:
                    x_BD = step(x_BD, mean)
                x_BD, leaving = x_BD.chunk(2, -1)
                left.append(leaving)
        return torch.cat([*left, x_BD], -1)

    def log_det(self) -> Tensor:
        """log |det dz/dx|, a scalar: couplings and reversals keep volumes, so it is the same everywhere."""
        logs = [step.actnorm.logs.sum() for steps in self._steps for step in steps]
        return LOG_SCALE * torch.stack(logs).sum()

    def bits_per_dimension(self, x_BD: Tensor) -> Tensor:
        """Return -(log N(z | 0, I) + log |det dz/dx|) / (D ln 2) per text [B], BERT-flow's objective."""
        z_BD = self.encode(x_BD)
        log_prior_B = -0.5 * (z_BD.square() + math.log(2 * math.pi)).sum(-1)
        return -(log_prior_B + self.log_det()) / (self.dim * math.log(2))

    @torch.no_grad()
    def initialize(self, x_BD: Tensor, mean: Mean) -> None:
        """Fit every actnorm over the first texts (Glow, Kingma and Dhariwal 2018)."""
        self.encode(x_BD, mean)
        self.initialized.fill_(True)

    @property
    def _steps(self) -> list[list[GlowStep]]:
        return cast("list[list[GlowStep]]", self.levels)

    # -- what sentence-transformers calls ------------------------------------------------------------------------------

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        """``sentence_embedding`` becomes z."""
        return features | {"sentence_embedding": self.encode(features["sentence_embedding"])}

    def get_embedding_dimension(self) -> int:
        return self.dim

    def config(self) -> dict[str, int]:
        return {"dim": self.dim, "levels": len(self.levels), "depth": self.depth, "width": self.width}

    def save(self, folder: str | Path) -> None:
        """Write ``config.json`` and ``model.safetensors`` into ``folder``, and this file beside it."""
        Path(folder, "config.json").write_text(json.dumps(self.config(), indent=2) + "\n", encoding="utf-8")
        state = {name: value.detach().cpu().contiguous() for name, value in self.state_dict().items()}
        save_file(state, Path(folder, "model.safetensors"))
        # sentence-transformers copies the code into folder, and looks for it in the folder above.
        Path(folder).parent.joinpath("raysts_glow.py").write_bytes(Path(__file__).read_bytes())

    @classmethod
    def load(cls, folder: str | Path) -> Glow:
        flow = cls(**json.loads(Path(folder, "config.json").read_text(encoding="utf-8")))
        flow.load_state_dict(load_file(Path(folder, "model.safetensors")))
        return flow

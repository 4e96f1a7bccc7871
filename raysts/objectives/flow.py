"""Flow (BERT-flow, SED B.3): an invertible map of embeddings to a normal distribution.

Shapes: B texts, D dimensions.
"""

import copy

import torch
from torch import Tensor

from raysts.models.encoder import Encoder
from raysts.models.head import FlowHead
from raysts.models.shipped.glow import Glow
from raysts.objectives.objective import Batch, Objective, token_columns
from raysts.ops import collective
from raysts.recipes.catalog import FlowSettings


class Flow(Objective):
    """Negative log-likelihood of a frozen model's embeddings in bits per dimension.

    The flow trains in float64 and is saved in float32. The gradient of actnorm's biases is 0 just after actnorm has
    been fitted. Adam would turn float32's rounding error there into steps of full size, which differ with the number of
    processes.
    """

    def __init__(self, settings: FlowSettings, encoder: Encoder) -> None:
        super().__init__(settings, encoder.requires_grad_(False))
        self.fitted = False
        """True once the actnorms are fitted. The module's flag is on the device."""
        self.head = FlowHead(Glow(encoder.dim, settings.levels, settings.depth, settings.width)).double()

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return bits per dimension.

        The first call fits the actnorms to the examples of all processes.
        """
        with torch.no_grad():
            x_BD = self.encoder(*token_columns(batch, "sentence")).double()
        weight_B = batch["weight"]
        glow = self.head.shipped
        if not self.fitted and not glow.initialized:
            count = collective.total(weight_B.sum())
            glow.initialize(x_BD, lambda v_BD: collective.total((v_BD * weight_B[:, None]).sum(0)) / count)
        self.fitted = True
        return collective.mean(glow.bits_per_dimension(x_BD), weight_B).float(), {}

    def candidates(self) -> dict[str, Encoder]:
        return {"encoder": self.encoder.followed_by(copy.deepcopy(self.head).float())}

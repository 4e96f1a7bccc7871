"""Siamese classification of natural language inference pairs (Sentence-BERT, SED B.1)."""

import torch.nn.functional as F
from torch import Tensor, nn

from raysts.models.encoder import Encoder
from raysts.objectives.objective import Batch, VectorObjective
from raysts.ops import collective, losses
from raysts.recipes.catalog import NLISettings
from raysts.schema import NLI_LABELS


class NLI(VectorObjective):
    """Softmax classifier of W [u, v, |u - v|] + b: entailment, neutral, contradiction.

    First dimensions use the columns of W that read them (MRL-E of Kusupati et al. 2022).
    """

    def __init__(self, settings: NLISettings, encoder: Encoder) -> None:
        super().__init__(settings, encoder)
        self.classifier = nn.Linear(3 * encoder.dim, len(NLI_LABELS), bias=settings.bias)

    def vectors(self, batch: Batch) -> tuple[Tensor, ...]:
        return self.embed_pair(batch, "premise", "hypothesis")

    def loss(self, vectors: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        u_BD, v_BD = (F.pad(part, (0, self.encoder.dim - part.shape[-1])) for part in vectors)
        logits_BC = self.classifier(losses.nli_features(u_BD, v_BD))
        loss = collective.mean(losses.softmax_cross_entropy(logits_BC, batch["label"]), batch["weight"])
        right_B = (logits_BC.detach().argmax(-1) == batch["label"]).float()
        return loss, {"accuracy": collective.mean(right_B, batch["weight"])}

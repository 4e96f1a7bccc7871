"""Masked language modelling (Devlin et al. 2019, section 3.1): continued pretraining.

Shapes: B texts, T tokens of the longest, N masked tokens of all texts, H hidden dimensions, V vocabulary.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysts.cpu.kernels import Linear
from raysts.models.encoder import Encoder
from raysts.models.tokens import LocalBatch
from raysts.objectives.objective import Batch, Objective, token_columns
from raysts.ops import collective, losses
from raysts.recipes.catalog import MLMSettings

MASKED, RANDOM = 0.8, 0.1
"""Shares of the chosen tokens that become the mask token or a random token. The rest stays."""

INITIAL = 0.02
"""Standard deviation of fresh weights, as in BERT."""

IGNORED = -100
"""Label of a token that is not predicted."""


class MLM(Objective):
    """Cross-entropy of the chosen tokens, mean over those of the global batch.

    The head is that of the BERT, DistilBERT and RoBERTa families: dense layer, GELU, layer norm, then the word
    embeddings as decoder with a separate bias. Only the encoder is saved.
    """

    def __init__(self, settings: MLMSettings, encoder: Encoder) -> None:
        super().__init__(settings, encoder)
        if encoder.mask_id is None:
            raise ValueError("mlm: the backbone's tokenizer has no mask token; take a BERT, DistilBERT or RoBERTa")
        words = encoder.backbone.get_input_embeddings().weight
        if words.shape[1] != encoder.width:
            raise ValueError(
                f"mlm: the backbone's word embeddings have {words.shape[1]} dimensions and its layers {encoder.width}, and the "
                f"decoder is the embeddings themselves; take a BERT, DistilBERT or RoBERTa"
            )
        self.ordinary = np.ones(len(words), bool)
        special = np.array([encoder.pad_id, *encoder.special_ids])
        self.ordinary[special[special < len(words)]] = False  # a tokenizer may have more tokens than the encoder
        self.dense = Linear(encoder.width, encoder.width)
        nn.init.normal_(self.dense.weight, std=INITIAL)
        nn.init.zeros_(self.dense.bias)
        self.norm = nn.LayerNorm(encoder.width, eps=getattr(encoder.config, "layer_norm_eps", 1e-12))
        self.decoder = Linear(encoder.width, len(words), device="meta")
        self.decoder.weight, self.decoder.bias = words, nn.Parameter(torch.zeros(len(words)))

    def collate(self, local: LocalBatch) -> Batch:
        """Return masked ``ids`` [B, T], their ``labels`` [B, T], and ``ids_length`` [B].

        A label is the original token. The array ``predicted`` [B] holds the number of predicted tokens.
        """
        tokens = local.rows["sentence"].take([example[0] for example in local.examples])
        batch = self.pad("ids", tokens)
        ids, labels = self.mask(batch["ids"].numpy(), tokens.lengths, local.seeds)
        return batch | {
            "ids": torch.from_numpy(ids),
            "labels": torch.from_numpy(labels),
            "predicted": (labels != IGNORED).sum(1),
            "weight": torch.from_numpy(local.weight),
        }

    def mask(self, ids_BT: np.ndarray, lengths_B: np.ndarray, seeds_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (ids, labels), both [B, T]: chosen tokens replaced, and those tokens as labels.

        Other labels are ``IGNORED``.
        """
        order_BT, fate_BT, word_BT = np.ones((3, *ids_BT.shape))
        for row, (seed, length) in enumerate(zip(seeds_B, lengths_B, strict=True)):
            draws = np.random.default_rng(seed).random((3, length))
            order_BT[row, :length], fate_BT[row, :length], word_BT[row, :length] = draws
        ordinary_BT = self.ordinary[ids_BT]  # padding is special too
        ordinary_B = ordinary_BT.sum(1)
        chosen_B = np.minimum(ordinary_B, np.maximum(1, np.rint(self.settings.rate * ordinary_B)))
        rank_BT = np.where(ordinary_BT, order_BT, np.inf).argsort(1).argsort(1)
        chosen_BT = rank_BT < chosen_B[:, None]
        masked_BT = ids_BT.copy()
        masked_BT[chosen_BT & (fate_BT < MASKED)] = self.encoder.mask_id
        swapped_BT = chosen_BT & (fate_BT >= MASKED) & (fate_BT < MASKED + RANDOM)
        words = np.flatnonzero(self.ordinary)
        masked_BT[swapped_BT] = words[(word_BT[swapped_BT] * len(words)).astype(np.int64)]
        return masked_BT, np.where(chosen_BT, ids_BT, IGNORED)

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return cross-entropy and accuracy. Only chosen tokens have logits."""
        predicted = int(batch["predicted"].sum())
        row_N, column_N = torch.nonzero_static(batch["labels"] != IGNORED, size=predicted).unbind(1)
        # One more place of weight 0: a process without a token to predict runs the same graph.
        weight_N = F.pad(batch["weight"][row_N], (0, 1))
        row_N, column_N = F.pad(row_N, (0, 1)), F.pad(column_N, (0, 1))
        tokens_NH = self.encoder.tokens(*token_columns(batch, "ids"))[row_N, column_N]
        logits_NV = self.decoder(self.norm(F.gelu(self.dense(tokens_NH))))
        labels_N = batch["labels"][row_N, column_N].clamp(min=0)
        loss = _mean(losses.softmax_cross_entropy(logits_NV, labels_N), weight_N)
        return loss, {"accuracy": _mean((logits_NV.detach().argmax(-1) == labels_N).float(), weight_N)}


def _mean(values_N: Tensor, weight_N: Tensor) -> Tensor:
    """Return the mean over the tokens of all processes, or 0 if no text has a token to predict."""
    has_tokens = (collective.total(weight_N.sum()) > 0).to(weight_N.dtype)
    return collective.mean(values_N * has_tokens, weight_N + (1.0 - has_tokens))

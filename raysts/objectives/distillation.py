"""Sentence Ensemble Distillation (SED 4): a student learns the target of an ensemble.

The default target is the mean of the members' embeddings. Shapes: B examples of this process, K of all processes, D
dimensions of the student, E of the teachers' vectors, N texts of the bank.
"""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysts.models.encoder import Encoder
from raysts.models.head import Dense, GaussianHead
from raysts.models.tokens import LocalBatch
from raysts.objectives.objective import Batch, VectorObjective, token_columns
from raysts.ops import collective, losses
from raysts.ops.gaussian import Gaussians, kl_divergence
from raysts.ops.similarity import cosine_deviation
from raysts.recipes.catalog import DistillationSettings

TEMPERATURE = 0.05
COLDEST = 1e-3
"""Lowest temperature of the bank's scores: the texts of a bank may all be alike."""


class Distillation(VectorObjective):
    """Distance between the student's embedding and the cached target.

    By default it is the mean squared error from the mean of the members' embeddings (equations 1 and 2). With
    Matryoshka widths the first dimensions learn those of the target, and by ``similarity`` the cosines of the whole
    target. With ``settings.bank`` it also learns how the teachers score each text against a bank of texts. The temperature
    of these scores is a share of the standard deviation of the teachers' cosines: some teachers' lie close together.

    Held arrays: ``to_target`` [E, D] maps the teachers' vectors to the target; ``bank`` [N, E] are the teachers' vectors
    of the bank, and ``bank_rows`` [N] its rows.

    ``log_variance`` is the head of the loss ``nll``, which is dropped after training.
    """

    def __init__(self, settings: DistillationSettings, encoder: Encoder) -> None:
        width, in_model = settings.projection, settings.keeps_projection
        if settings.target == "gaussian":
            encoder = encoder.followed_by(GaussianHead(encoder.dim, width or encoder.dim, "identity"))
        elif width is not None and in_model:
            encoder = encoder.followed_by(Dense(encoder.dim, width, "identity"))
        super().__init__(settings, encoder)
        self.projection = nn.Identity() if width is None or in_model else nn.Linear(encoder.dim, width)
        self.log_variance: nn.Linear | None = None
        if "nll" in settings.terms:
            dim = width or encoder.dim
            self.log_variance = nn.Linear(dim, dim)
            nn.init.zeros_(self.log_variance.weight)  # every variance is 1 before the first step
            nn.init.zeros_(self.log_variance.bias)
        self.to_target_ED: Tensor | None = None
        self.bank: tuple[Tensor, Tensor, Tensor, float] | None = None

    def hold(self, arrays: Mapping[str, np.ndarray], device: torch.device) -> None:
        tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        self.to_target_ED = tensors.get("to_target")
        if "bank" in tensors:
            bank_NE = tensors["bank"].float()
            target_ND = F.normalize(self._to_target(bank_NE), dim=-1)
            temperature = max(COLDEST, self.settings.bank_temperature * cosine_deviation(arrays["bank"]))
            self.bank = tensors["bank_rows"], F.normalize(bank_NE, dim=-1), target_ND, temperature

    def _to_target(self, vectors_NE: Tensor) -> Tensor:
        if self.to_target_ED is None:
            return vectors_NE
        with torch.autocast(vectors_NE.device.type, enabled=False):  # what is learnt is known to all digits
            return vectors_NE @ self.to_target_ED

    def collate(self, local: LocalBatch) -> Batch:
        batch = super().collate(local)
        if self.settings.bank:
            batch["row"] = torch.from_numpy(local.ids[[example[0] for example in local.examples]])
        return batch

    def vectors(self, batch: Batch) -> tuple[Tensor, ...]:
        student_BD = self.projection(self.embed_in_chunks(self._embed, *token_columns(batch, "sentence")))
        spread = () if self.log_variance is None else (self.log_variance(student_BD),)
        return student_BD, self._to_target(batch["teacher"]), *spread

    def _embed(self, ids_BT: Tensor, lengths_B: Tensor, host_lengths: np.ndarray | None = None) -> Tensor:
        """Return the vectors [B, D], or with target ``gaussian`` mu and log_var side by side [B, 2D]."""
        arrays = self.encoder.represent(ids_BT, lengths_B, host_lengths)
        names = ("vectors", "log_var") if self.settings.target == "gaussian" else ("vectors",)
        return torch.cat([arrays[name] for name in names], -1)

    def loss(self, vectors: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        matched, scalars = self._match(vectors, batch)
        if self.bank is None:
            return matched, scalars
        rows_N, bank_NE, target_ND, temperature = self.bank
        student_BD, own_BN = vectors[0], batch["row"][:, None] == rows_N
        if (width := student_BD.shape[-1]) < target_ND.shape[-1]:
            target_ND = F.normalize(target_ND[:, :width], dim=-1)
        divergence_B = losses.bank_divergence(student_BD, target_ND, batch["teacher"], bank_NE, own_BN, temperature)
        divergence = collective.mean(divergence_B, batch["weight"])
        return matched + self.settings.bank * divergence, scalars | {"bank": divergence.detach()}

    def _match(self, vectors: tuple[Tensor, ...], batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        terms = {name: self._term(name, vectors, batch) for name in self.settings.terms}
        if len(terms) == 1:
            return next(iter(terms.values())), {}
        total = torch.stack([weight * terms[name] for name, weight in self.settings.terms.items()]).sum()
        return total, {name: term.detach() for name, term in terms.items()}

    def _term(self, name: str, vectors: tuple[Tensor, ...], batch: Batch) -> Tensor:
        student_BD, teacher_BD, *spread = vectors
        weight = batch["weight"]
        if name == "mse":
            return collective.mean(losses.embedding_mse(student_BD, teacher_BD), weight)
        if name == "cosine":
            return collective.mean(losses.embedding_cosine(student_BD, teacher_BD), weight)
        if name == "nll":
            return collective.mean(losses.embedding_nll(student_BD, teacher_BD, spread[0]), weight)
        if name == "kl":
            student, teacher = (Gaussians(*x_BD.chunk(2, -1)) for x_BD in (student_BD, teacher_BD))
            return collective.mean(kl_divergence(teacher, student).mean(-1), weight)
        if name == "similarity":
            teacher_BD = batch["teacher"]  # cosines need no common width
        # Every process works on the whole batch: it is small, and the gradients come back through the gather.
        student_KD, teacher_KD, weight = (collective.gather(x) for x in (student_BD, teacher_BD, weight))
        if name == "similarity":
            return collective.mean(losses.similarity_mse(student_KD, teacher_KD, weight), weight)
        temperature = self.settings.temperature or TEMPERATURE
        logits_KK = losses.batch_logits(student_KD, teacher_KD, weight[None], temperature)
        positive_K = torch.arange(len(weight), device=logits_KK.device)
        return collective.mean(losses.softmax_cross_entropy(logits_KK, positive_K), weight)

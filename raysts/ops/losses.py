"""Losses as pure functions: tensors with named shapes in, one loss per example out.

Shapes: B examples, D embedding dimensions, C classes, N candidates. ``collective.mean`` takes means over the examples
of all ranks.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

LEFT_OUT = -1e4
"""Logit of a probability of 0 whose logarithm is still a number."""


def nli_features(u_BD: Tensor, v_BD: Tensor) -> Tensor:
    """Return [u, v, |u - v|] of premise and hypothesis -> [B, 3D] (Sentence-BERT, section 3)."""
    return torch.cat([u_BD, v_BD, (u_BD - v_BD).abs()], dim=-1)


def softmax_cross_entropy(logits_BC: Tensor, labels_B: Tensor) -> Tensor:
    """Return -log softmax(logits)[label] per example -> [B], in float32 or better."""
    return F.cross_entropy(_to_float32(logits_BC), labels_B, reduction="none")


def contrastive_tension(a_BD: Tensor, b_BD: Tensor, identical_B: Tensor) -> Tensor:
    """Return the binary cross-entropy of the dot product of two encoders' embeddings -> [B].

    SED B.2, and section 3 of the CT paper. ``identical_B``: 1 where both encoders read the same sentence, else 0.
    """
    logits_B = (_to_float32(a_BD) * _to_float32(b_BD)).sum(-1)
    return F.binary_cross_entropy_with_logits(logits_B, identical_B.to(logits_B.dtype), reduction="none")


def sts_regression(u_BD: Tensor, v_BD: Tensor, scores_B: Tensor, lower_bound: float) -> Tensor:
    """Return (cos(u, v) - target)^2 with target = l + (1 - l) * score / 5 -> [B].

    SED 5.5, and the regression of Sentence-BERT. ``scores_B``: gold similarity, 0 to 5. ``lower_bound``: l, the target of
    a pair that scores 0, in [0, 1).
    """
    cosine_B = F.cosine_similarity(_to_float32(u_BD), _to_float32(v_BD), dim=-1)
    target_B = lower_bound + (1.0 - lower_bound) * scores_B.to(cosine_B.dtype) / 5.0
    return (cosine_B - target_B).square()


def batch_logits(anchors_BD: Tensor, candidates_ND: Tensor, weight_N: Tensor, temperature: float) -> Tensor:
    """Return cos(anchor, candidate) / temperature -> [B, N], in float32 or better.

    With ``softmax_cross_entropy`` this is InfoNCE. Candidate i is the positive of anchor i, all others are its
    negatives (SimCSE, equations 1, 4 and 5).

    Args:
        anchors_BD: embeddings.
        candidates_ND: embeddings, the B positives first.
        weight_N: 0 excludes a candidate (-inf) from the negatives of every anchor, or with [B, N] of one anchor. It
            stays the positive of its anchor.
        temperature: tau, above 0.
    """
    anchors_BD, candidates_ND = _to_float32(anchors_BD), _to_float32(candidates_ND)
    with torch.autocast(anchors_BD.device.type, enabled=False):  # bf16 would keep two digits of a cosine
        logits_BN = F.normalize(anchors_BD, dim=-1) @ F.normalize(candidates_ND, dim=-1).T / temperature
    positive_BN = torch.eye(*logits_BN.shape, dtype=torch.bool, device=logits_BN.device)
    return logits_BN.masked_fill((weight_N == 0) & ~positive_BN, float("-inf"))


def false_negatives(anchor_B: Tensor, anchor_K: Tensor, positive_K: Tensor, candidate_N: Tensor) -> Tensor:
    """Return the candidates that are false negatives of each anchor -> bool [B, N].

    They are the anchor's text and every positive that an example of the batch has for that text. ``anchor_B``: the
    anchors' texts as numbers, equal for equal texts.
    """
    same_BK = (anchor_B[:, None] == anchor_K).float()
    positive_KN = (positive_K[:, None] == candidate_N).float()
    return (same_BK @ positive_KN > 0) | (anchor_B[:, None] == candidate_N)


def embedding_mse(student_BD: Tensor, teacher_BD: Tensor) -> Tensor:
    """Return the mean over dimensions of (student - teacher)^2 -> [B] (SED equation 2)."""
    return (_to_float32(student_BD) - _to_float32(teacher_BD)).square().mean(-1)


def embedding_cosine(student_BD: Tensor, teacher_BD: Tensor) -> Tensor:
    """Return 1 - cos(student, teacher) -> [B]. Lengths do not matter."""
    return 1.0 - F.cosine_similarity(_to_float32(student_BD), _to_float32(teacher_BD), dim=-1)


def embedding_nll(student_BD: Tensor, teacher_BD: Tensor, log_variance_BD: Tensor) -> Tensor:
    """Return the mean over dimensions of (log v + (teacher - student)^2 / v) / 2 -> [B].

    It is the negative log-likelihood of the teacher's vector under a Gaussian around the student's, without the constant
    (Formont et al. 2025, with the student's vector as the mean). Both vectors are scaled to length sqrt(D), so that a
    variance v of 1 is of the size of a dimension.
    """
    student_BD, teacher_BD, log_variance_BD = map(_to_float32, (student_BD, teacher_BD, log_variance_BD))
    with torch.autocast(student_BD.device.type, enabled=False):
        scale = student_BD.shape[-1] ** 0.5
        error_BD = scale * (F.normalize(teacher_BD, dim=-1) - F.normalize(student_BD, dim=-1))
        return (log_variance_BD + error_BD.square() * (-log_variance_BD).exp()).mean(-1) / 2


def similarity_mse(student_KD: Tensor, teacher_KE: Tensor, weight_K: Tensor) -> Tensor:
    """Return the mean of (student's cosine - teacher's)^2 over a batch's other examples -> [K].

    Student and teacher may differ in width, because the loss compares matrices of cosines (similarity-preserving
    distillation, Tung and Mori 2019, with the cosines instead of rows of unit length).

    Args:
        student_KD: the student's embeddings of a batch.
        teacher_KE: the teacher's of the same texts.
        weight_K: 0 excludes an example, also from the others of another one. A single example has loss 0.
    """
    student_KD, teacher_KE = _to_float32(student_KD), _to_float32(teacher_KE)
    with torch.autocast(student_KD.device.type, enabled=False):  # bf16 would keep two digits of a cosine
        student_KD, teacher_KE = F.normalize(student_KD, dim=-1), F.normalize(teacher_KE, dim=-1)
        error_KK = (student_KD @ student_KD.T - teacher_KE @ teacher_KE.T).square()
    others_KK = weight_K * (1.0 - torch.eye(len(weight_K), device=weight_K.device))
    return (error_KK * others_KK).sum(-1) / others_KK.sum(-1).clamp(min=1.0)


def bank_divergence(
    student_BK: Tensor, bank_NK: Tensor, teacher_BE: Tensor, bank_NE: Tensor, own_BN: Tensor, temperature: float
) -> Tensor:
    """Return KL(softmax(t D / tau) || softmax(s D / tau)) -> [B].

    D is a bank of texts: each example is scored against all of them by cosine, as SEED (Fang et al. 2021) does against a
    queue.

    Args:
        student_BK: s, the student's embeddings.
        bank_NK: unit vectors of the bank in the student's space.
        teacher_BE: t, the teacher's embeddings of the same texts.
        bank_NE: unit vectors of the bank in the teacher's space.
        own_BN: True where the text of the bank is the example itself, which is left out.
        temperature: tau, above 0.
    """
    student_BK, teacher_BE = _to_float32(student_BK), _to_float32(teacher_BE)
    with torch.autocast(student_BK.device.type, enabled=False):  # bf16 would keep two digits of a cosine
        pairs = (student_BK, bank_NK), (teacher_BE, bank_NE)
        logits = [F.normalize(vectors, dim=-1) @ bank.T / temperature for vectors, bank in pairs]
        student_BN, teacher_BN = (F.log_softmax(scores.masked_fill(own_BN, LEFT_OUT), -1) for scores in logits)
    return (teacher_BN.exp() * (teacher_BN - student_BN)).sum(-1)


def _to_float32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()

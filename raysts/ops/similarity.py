"""Similarities of paired rows, and the spread of those of all pairs, in float64.

Distances are negated: larger is more similar. Shapes: N pairs, D dimensions, V variables, K classes, T and S tokens.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

Ragged = Sequence[np.ndarray] | np.ndarray
"""An array per row. A single array has dtype object."""

BLOCK = 2**22
"""Numbers of one side that are held in float64 at once."""


def cosine(a_ND: np.ndarray, b_ND: np.ndarray) -> np.ndarray:
    """Return the cosine of corresponding rows -> float64 [N], 0 where either row is zero."""
    return _map_blocks(_cosine, a_ND, b_ND)


def _cosine(a_ND: np.ndarray, b_ND: np.ndarray) -> np.ndarray:
    # One root of the product: it is exact where a is b, so that pairs of equal texts are ties.
    norms_N = np.sqrt(_dot(a_ND, a_ND) * _dot(b_ND, b_ND))
    return np.divide(_dot(a_ND, b_ND), norms_N, out=np.zeros(len(a_ND)), where=norms_N > 0)


def _dot(a_ND: np.ndarray, b_ND: np.ndarray) -> np.ndarray:
    return np.einsum("nd,nd->n", a_ND, b_ND)


def cosine_deviation(vectors_ND: np.ndarray) -> float:
    """Return the standard deviation of the cosines between every two rows, 0 of fewer than two rows.

    The sums over all pairs come from the sum of the unit vectors and from their products [D, D], in float64.
    """
    count, width = vectors_ND.shape
    if count < 2:
        return 0.0
    total_D, products_DD, squares = np.zeros(width), np.zeros((width, width)), 0.0
    for begin in range(0, count, step := max(1, BLOCK // width)):
        block_BD = vectors_ND[begin : begin + step].astype(np.float64)
        norms_B1 = np.linalg.norm(block_BD, axis=1, keepdims=True)
        block_BD = np.divide(block_BD, norms_B1, out=block_BD, where=norms_B1 > 0)
        total_D += block_BD.sum(axis=0)
        products_DD += block_BD.T @ block_BD
        squares += np.einsum("bd,bd->", block_BD, block_BD)  # of the pairs of a row with itself
    pairs = count * (count - 1)
    mean, square = (total_D @ total_D - squares) / pairs, (np.square(products_DD).sum() - squares) / pairs
    return float(np.sqrt(max(0.0, square - mean**2)))


def jensen_shannon(a_NVK: np.ndarray, b_NVK: np.ndarray) -> np.ndarray:
    """Return minus the Jensen-Shannon divergence, mean over V -> float64 [N], from -ln 2 to 0."""

    def divergence(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        middle = (a + b) / 2
        entropy = _relative_entropy(a, middle) + _relative_entropy(b, middle)
        return -entropy.sum(axis=-1).mean(axis=-1) / 2

    return _map_blocks(divergence, a_NVK, b_NVK)


def l2_mixture(mu_a: Ragged, log_var_a: Ragged, mu_b: Ragged, log_var_b: Ragged) -> np.ndarray:
    """Return minus the L2 distance of the densities of two Gaussian mixtures -> float64 [N].

    Latte-Mix, section 2.4. The components of a mixture are diagonal Gaussians of equal weight. Integral (p - q)^2 =
    <p,p> + <q,q> - 2 <p,q>, where <p,q> is the mean over components i of p and j of q of N(mu_i; mu_j, var_i + var_j). It
    stays in logarithms up to the last step, because densities in many dimensions are far from 1. A mixture without
    components has density 0.

    Args:
        mu_a: [T, D] of each first text.
        log_var_a: [T, D] likewise, the logarithms of the variances.
        mu_b: [S, D] of each second text.
        log_var_b: [S, D] likewise.
    """
    scores = np.zeros(len(mu_a))
    for row, (m, v, n, w) in enumerate(zip(mu_a, log_var_a, mu_b, log_var_b, strict=True)):
        p, q = (m.astype(np.float64), np.exp(v, dtype=np.float64)), (n.astype(np.float64), np.exp(w, dtype=np.float64))
        logs = np.array([_log_overlap(*p, *p), _log_overlap(*q, *q), _log_overlap(*p, *q)])
        peak = logs.max()
        if peak == -np.inf:
            continue
        squared = np.exp(logs - peak) @ (1.0, 1.0, -2.0)  # relative to the largest; rounding may leave it below 0
        with np.errstate(divide="ignore", over="ignore"):
            scores[row] = -np.exp((peak + np.log(max(0.0, squared))) / 2)
    return np.maximum(scores, np.finfo(np.float64).min)


def _log_overlap(mu_TD: np.ndarray, var_TD: np.ndarray, mu_SD: np.ndarray, var_SD: np.ndarray) -> float:
    if not len(mu_TD) or not len(mu_SD):
        return -np.inf
    var_TSD = var_TD[:, None] + var_SD
    log_TS = -0.5 * (np.log(2 * np.pi * var_TSD) + (mu_TD[:, None] - mu_SD) ** 2 / var_TSD).sum(axis=-1)
    peak = log_TS.max()
    return float(peak + np.log(np.exp(log_TS - peak).mean()))


def _relative_entropy(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Return p log(p / q) of every element, 0 where p is 0."""
    return p * np.log(np.divide(p, q, out=np.ones_like(p), where=p > 0))


def _map_blocks(function: Callable[..., np.ndarray], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a function of rows in float64, of as many rows at a time as ``BLOCK`` allows -> [N]."""
    step, values_N = max(1, BLOCK // max(1, a[:1].size)), np.zeros(len(a))
    for first in range(0, len(a), step):
        rows = slice(first, first + step)
        values_N[rows] = function(a[rows].astype(np.float64), b[rows].astype(np.float64))
    return values_N


Similarity = Callable[[Mapping[str, np.ndarray], Mapping[str, np.ndarray]], np.ndarray]
"""Representations whose rows correspond -> one number per pair [N] float64, larger for more similar."""


def cosine_of_vectors(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the cosine of ``vectors``."""
    return cosine(a["vectors"], b["vectors"])


def l2_of_vectors(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return minus the Euclidean distance of ``vectors``."""
    return _map_blocks(lambda a_ND, b_ND: -np.linalg.norm(a_ND - b_ND, axis=1), a["vectors"], b["vectors"])


def dot_of_vectors(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the dot product of ``vectors``."""
    return _map_blocks(_dot, a["vectors"], b["vectors"])


def manhattan_of_vectors(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return minus the Manhattan distance of ``vectors``."""
    return _map_blocks(lambda a_ND, b_ND: -np.abs(a_ND - b_ND).sum(1), a["vectors"], b["vectors"])


SIMILARITIES: dict[str, tuple[str, Similarity]] = {
    "cosine": ("cosine", cosine_of_vectors),
    "dot": ("dot", dot_of_vectors),
    "euclidean": ("l2", l2_of_vectors),
    "manhattan": ("manhattan", manhattan_of_vectors),
}
"""Similarities of vectors by their sentence-transformers name: name in results and function."""

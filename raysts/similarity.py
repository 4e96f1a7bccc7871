"""Similarities of paired rows, in float64: what evaluation ranks by."""

from __future__ import annotations

import numpy as np


def cosine(a_ND: np.ndarray, b_ND: np.ndarray) -> np.ndarray:
    """Cosine of corresponding rows -> float64 [N]; 0 where either row is zero."""
    a, b = a_ND.astype(np.float64), b_ND.astype(np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return np.divide(np.einsum("nd,nd->n", a, b), norms, out=np.zeros(len(a)), where=norms > 0)

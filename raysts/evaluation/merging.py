"""How far members are from each other, and a rule that says from it how they are best made into one model.

Shapes: M members, N sentences, D dimensions, C configurations (members trained in some way), W ways of merging.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from torch import Tensor


def weight_distance(states: Iterable[Mapping[str, Tensor]]) -> float:
    """Distance between the weights of two members, relative to their length.

    The root of the mean square of |a - b| over pairs of members by that of |a| over members. From sums over members, so that
    one is in memory at a time: the squares of all pairs add up to M sum |a|^2 - |sum a|^2.
    """
    sums: dict[str, Tensor] = {}
    squares, members = 0.0, 0
    for state in states:
        members += 1
        for name, value in state.items():
            if value.is_floating_point():
                squares += float(value.double().square().sum())
                sums[name] = sums.get(name, 0.0) + value.double()
    assert members > 1, "a distance is between two"
    of_sum = sum(float(total.square().sum()) for total in sums.values())
    of_pairs = max(0.0, members * squares - of_sum) / (members * (members - 1) / 2)
    return math.sqrt(of_pairs / (squares / members))


def cosine_distance(vectors_MND: np.ndarray) -> float:
    """1 - the mean cosine of what two members give for a sentence, over pairs of members and sentences."""
    unit_MND = vectors_MND / np.linalg.norm(vectors_MND, axis=-1, keepdims=True)
    return 1 - float(np.mean([(a_ND * b_ND).sum(-1).mean() for a_ND, b_ND in combinations(unit_MND, 2)]))


def cka_distance(vectors_MND: np.ndarray) -> float:
    """1 - the mean linear centred kernel alignment of two members (Kornblith et al. 2019), which no rotation changes."""
    centred_MND = vectors_MND.astype(np.float64) - vectors_MND.mean(axis=1, keepdims=True, dtype=np.float64)
    own_M = [np.linalg.norm(x_ND.T @ x_ND) for x_ND in centred_MND]
    pairs = combinations(range(len(vectors_MND)), 2)
    return 1 - float(
        np.mean([np.linalg.norm(centred_MND[i].T @ centred_MND[j]) ** 2 / (own_M[i] * own_M[j]) for i, j in pairs])
    )


@dataclass(frozen=True, slots=True)
class Rule:
    """Members less than ``threshold`` apart are merged in the way ``near``, others in the way ``far``."""

    threshold: float
    near: int
    far: int

    def way(self, distance: float) -> int:
        return self.near if distance < self.threshold else self.far


def fit(distances_C: np.ndarray, scores_CW: np.ndarray) -> Rule:
    """The rule with the highest mean score; of equals the one that always says the same, the first of the ways.

    Thresholds are tried half way between the distances.
    """
    whole = int(scores_CW.mean(axis=0).argmax())
    best, reached = Rule(math.inf, whole, whole), scores_CW[:, whole].mean()
    seen = np.unique(distances_C)
    for threshold in (seen[:-1] + seen[1:]) / 2:
        near_C = distances_C < threshold
        near, far = (int(scores_CW[part].mean(axis=0).argmax()) for part in (near_C, ~near_C))
        score = np.where(near_C, scores_CW[:, near], scores_CW[:, far]).mean()
        if score > reached + 1e-12:
            best, reached = Rule(float(threshold), near, far), score
    return best


def predicted(distances_C: np.ndarray, scores_CW: np.ndarray, groups: Sequence[Hashable]) -> np.ndarray:
    """The ways [C] that rules say of configurations that they were not fitted on: one rule a group, fitted on the others."""
    ways_C = np.zeros(len(distances_C), dtype=int)
    for group in dict.fromkeys(groups):
        out_C = np.array([other == group for other in groups])
        rule = fit(distances_C[~out_C], scores_CW[~out_C])
        ways_C[out_C] = [rule.way(distance) for distance in distances_C[out_C]]
    return ways_C

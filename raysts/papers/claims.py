"""Claims of the three papers: which of two systems is above the other.

`claims.yaml` beside this file holds them, and describes the fields.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from raysts.recipes.tree import read_data

STAND_INS = {"snli-2way": "xnli-2way", "snli-direction": "xnli-direction"}
"""The sets on which claims may be held, marked, where the data lack their own.

Not SNLI dev for SNLI test: it selects GaussCSE's checkpoints (and not Sup-SimCSE's), and thresholds are the best on its rows.
XNLI's English test set was written as MultiNLI was, on which GaussCSE trains beside SNLI, and nothing selects by it. SICK has
none: its claims are about sentences of another make than those that are trained on, which XNLI's are not.
"""


class Side(NamedTuple):
    """A system of a claim. ``layers`` None: as compared. ``similarity`` None: the model's first."""

    point: str
    role: str = "model"
    layers: int | None = None
    similarity: str | None = None

    @property
    def text(self) -> str:
        role = "" if self.role == "model" else self.role
        layers = f"{self.layers} layers" if self.layers else None
        return ", ".join(filter(None, [self.point, role, layers, self.similarity]))


class Claim(NamedTuple):
    """A claim that A is above B, or further above ``a_over`` than B above ``b_over``.

    ``in_place_of``: the paper's sets, if ``on`` holds others (:data:`STAND_INS`).
    """

    source: str
    says: str
    a: Side
    b: Side
    on: tuple[str, ...]
    printed: str = ""
    holds: bool = True
    measure: str = "mean"
    backbone: str | None = None
    task: str | None = None
    a_over: Side | None = None
    b_over: Side | None = None
    in_place_of: tuple[str, ...] = ()

    @property
    def sides(self) -> tuple[Side, ...]:
        """Return A and B, then the systems that they are held against, if there are any."""
        return (self.a, self.b, *filter(None, (self.a_over, self.b_over)))

    @property
    def tasks(self) -> tuple[str, ...]:
        return (self.task,) if self.task else self.on

    @property
    def title(self) -> str:
        return f"{self.says} ({self.stands_in})" if self.in_place_of else self.says

    @property
    def stands_in(self) -> str:
        """Return the note on substituted sets: ``on xnli-2way in place of snli-2way``."""
        return f"on {', '.join(self.on)} in place of {', '.join(self.in_place_of)}"

    @property
    def table(self) -> str:
        """Return the group of claims that share one false-alarm rate."""
        return self.source.rpartition(", ")[2]


BASELINES = "not in the paper, a baseline"


def _side(plain: str | Sequence[Any]) -> Side:
    return Side(plain) if isinstance(plain, str) else Side(*plain)


def _claim(sets: Sequence[str], source: str = BASELINES, **fields: Any) -> Claim:
    fields |= {name: _side(fields[name]) for name in ("a", "b", "a_over", "b_over") if name in fields}
    return Claim(source=source, on=tuple(sets), **fields)


CLAIMS: dict[str, list[Claim]] = {
    paper: [_claim(**plain) for plain in claims] for paper, claims in read_data(__file__, "claims.yaml").items()
}
"""Claims by paper."""

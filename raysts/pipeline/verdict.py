"""The verdict on a run: what came out, how it compares, and the notes; computed once, and kept in the run's record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from typing import Any

from raysts.evaluation.compare import Difference
from raysts.evaluation.contamination.contamination import Contamination
from raysts.pipeline.deliver import Delivered, against, delivered
from raysts.pipeline.notes import notes_on
from raysts.pipeline.outcome import Outcome
from raysts.pipeline.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Result of a run, as far as it has come.

    Attributes:
        delivered: the delivered model and its comparison with the input; None before everything is scored.
        against: by role and set, how far what comes out is above the others.
        contamination: the training text in the test sets; None before anything is scored.
    """

    outcome: Outcome
    delivered: Delivered | None
    against: Mapping[str, Mapping[str, Difference]]
    contamination: Contamination | None
    notes: list[str]

    @classmethod
    def of(cls, plan: Plan) -> Verdict:
        """Return the verdict on what the storage holds of a plan."""
        scored = [evaluation.step.state(plan.store) == "done" for evaluation in plan.evaluations]
        outcome, complete = plan.outcome, all(scored)
        contamination = plan.contamination() if any(scored) else None
        return cls(
            outcome=outcome,
            delivered=delivered(plan, outcome) if complete else None,
            against=against(plan, outcome) if complete else {},
            contamination=contamination,
            notes=notes_on(plan, outcome, contamination),
        )

    def as_record(self) -> dict[str, Any]:
        """Return the fields of a run's record."""
        return {
            "outcome": asdict(self.outcome),
            "delivered": self.delivered.as_plain() if self.delivered else None,
            "against": {
                role: {name: astuple(gap) for name, gap in sets.items()} for role, sets in self.against.items()
            },
            "notes": self.notes,
        }

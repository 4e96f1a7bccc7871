"""What is known of ``simcse-sup`` and ``simcse-unsup`` (:mod:`raysts.objectives.simcse`)."""

from dataclasses import dataclass
from typing import Any, Literal

from raysts.ids import later
from raysts.objectives.kinds.contrastive import ContrastiveKind, ContrastiveSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class SimCSESettings(ContrastiveSettings):
    """Settings of ``simcse-sup`` and ``simcse-unsup``.

    Attributes:
        head: what follows the pooling: a dense layer with ``tanh`` (the paper, on the first token), or ``none``.
    """

    head: Literal["tanh", "none"] = later("tanh")


_PAPER: dict[str, Any] = {
    "pooling": "cls",
    "settings.head": "tanh",
    "settings.false_negatives": "kept",
    "train.eval_first": False,
}


class SimCSEKind(ContrastiveKind):
    """What both forms have in common."""

    settings_type = SimCSESettings
    keeps = ("best", "last")


class SupervisedSimCSEKind(SimCSEKind):
    """Anchor premise, positive entailment, hard negative contradiction."""

    trained_by = "simcse:SupervisedSimCSE"
    table = "nli/triplets"
    texts = ("anchor", "positive", "negative")
    sentences = 3
    scales = {"small": {"batch": 64, "train.max_steps": 500}, "paper": {**_PAPER, "data.table": None}}

    @classmethod
    def adds_head(cls, settings: SimCSESettings) -> bool:
        return settings.head == "tanh"


class UnsupervisedSimCSEKind(SimCSEKind):
    """Two dropout passes of one sentence."""

    trained_by = "simcse:UnsupervisedSimCSE"
    table = "wikipedia/sentences"
    texts = ("sentence",)
    sentences = 2
    scales = {"small": {"train.max_steps": 1_000}, "paper": _PAPER}

    @classmethod
    def problem(cls, batch: int) -> str | None:
        """Only other sentences are negatives."""
        return None if batch > 1 else "must be at least 2: a sentence's negatives are the others of its batch"

    @classmethod
    def undivided(cls, settings: SimCSESettings) -> str | None:
        if settings.head == "none":
            return None
        return "head=tanh reads all dimensions and is dropped after training; set head=none"

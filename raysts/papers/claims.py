"""Claims of the three papers: which of two systems is above the other.

Claims that a paper rejects (``holds`` False) are included: that a method does not help is a result.
"""

from typing import NamedTuple

PAPERS = ("sed", "gausscse", "latte-mix")

STS = ("sts12", "sts13", "sts14", "sts15", "sts16")
STSB = ("stsb",)
SNLI, SICK = ("snli-2way",), ("sick-2way",)
SNLI_DIRECTION, SICK_DIRECTION = ("snli-direction",), ("sick-direction",)

STAND_INS = {"snli-2way": "xnli-2way", "snli-direction": "xnli-direction"}
"""The sets on which claims may be held, marked, where the data lack their own.

Not SNLI dev for SNLI test: it selects GaussCSE's checkpoints (and not Sup-SimCSE's), and thresholds are the best on its rows.
XNLI's English test set was written as MultiNLI was, on which GaussCSE trains beside SNLI, and nothing selects by it. SICK has
none: its claims are about sentences of another make than those that are trained on, which XNLI's are not.
"""


class Side(NamedTuple):
    """A system of a claim.

    Attributes:
        point: the pipeline of the experiment ``claims-PAPER`` that makes it; or a baseline that needs no model.
        role: of the pipeline: ``model`` (its result), ``members``, ``best member`` on the same sets, which the papers'
            maxima
            are, ``ensemble``, ``backbone``.
        layers: pooled; None: as the pipeline compares.
    """

    point: str
    role: str = "model"
    layers: int | None = None

    @property
    def text(self) -> str:
        role = "" if self.role == "model" else f", {self.role}"
        return f"{self.point}{role}" + (f", {self.layers} layers" if self.layers else "")


class Claim(NamedTuple):
    """A claim that A is above B.

    Attributes:
        a: the system that is claimed to be above.
        on: test sets, of which the available ones are compared by their mean.
        printed: the paper's values, of B and of A; empty if the paper has none.
        holds: True if the paper confirms it; False: the paper finds that A is not above B.
        of: the compared value: the ``mean`` over models, or their ``spread``, which is claimed to be larger for A.
        backbone: the only one (a row of the paper's tables) for which the paper claims it; None: all.
        in_place_of: the paper's sets, if ``on`` holds others (:data:`STAND_INS`).
    """

    source: str
    says: str
    a: Side
    b: Side
    on: tuple[str, ...]
    printed: str = ""
    holds: bool = True
    of: str = "mean"
    backbone: str | None = None
    in_place_of: tuple[str, ...] = ()

    @property
    def marked(self) -> str:
        return f"{self.says} ({self.stands_in})" if self.in_place_of else self.says

    @property
    def stands_in(self) -> str:
        """Return the note on substituted sets: ``on xnli-2way in place of snli-2way``."""
        return f"on {', '.join(self.on)} in place of {', '.join(self.in_place_of)}"

    @property
    def table(self) -> str:
        """Return the group of claims that share one false-alarm rate."""
        return self.source.rpartition(", ")[2]


def _backbone(point: str) -> Side:
    return Side(point, "backbone")


def _members(point: str) -> Side:
    return Side(point, "members")


BASELINES = "not in the paper, a baseline"

_SED = [
    Claim("SED 5.2, Table 1", "CT is above the raw encoder", _members("ct-sed"), _backbone("ct-sed"), STS, "53.56 -> 75.49"),
    Claim("SED 5.2, Table 1", "Flow is above the raw encoder", Side("flow"), _backbone("flow"), STS, "53.56 -> 66.43"),
    Claim("SED 5.2, Table 1", "Flow on CT is above CT", Side("ct-flow"), _members("ct-sed"), STS, "75.49 -> 76.36"),
    Claim("SED 5.2, Table 1", "Flow on CT-SED is above CT-SED", Side("ct-sed-flow"), Side("ct-sed"), STS, "76.96 -> 77.15"),
    Claim("SED 5.3, Table 2", "NLI is above the raw encoder", Side("nli"), _backbone("nli"), STS, "53.56 -> 74.12"),
    Claim("SED 5.3, Table 2", "CT after NLI is above NLI", _members("nli-ct-sed"), Side("nli"), STS, "74.12 -> 77.96"),
    Claim("SED 5.3, Table 2", "Flow on NLI is above NLI", Side("nli-flow"), Side("nli"), STS, "74.12 -> 76.60"),
    Claim(
        "SED 5.3, Table 2", "Flow on NLI-CT is not above NLI-CT", Side("nli-ct-flow"), _members("nli-ct-sed"), STS,
        "77.96 -> 77.77", holds=False,
    ),
    Claim(
        "SED 5.3, Table 2", "Flow on NLI-CT-SED is above NLI-CT-SED", Side("nli-ct-sed-flow"), Side("nli-ct-sed"), STS,
        "77.91 -> 78.32",
    ),
    Claim("SED 5.4, Table 3", "SED is above the members' mean: CT", Side("ct-sed"), _members("ct-sed"), STS, "74.07 -> 76.76"),
    Claim(
        "SED 5.4, Table 3", "SED is above the members' mean: NLI-CT", Side("nli-ct-sed"), _members("nli-ct-sed"), STS,
        "76.91 -> 77.93",
    ),
    Claim(
        "SED 5.4, Table 3", "SED's mean is above the best member: CT", Side("ct-sed"), Side("ct-sed", "best member"), STS,
        "75.22 -> 76.76",
    ),
    Claim(
        "SED 5.4, Table 3", "SED's mean is above the best member: NLI-CT", Side("nli-ct-sed"),
        Side("nli-ct-sed", "best member"), STS, "77.35 -> 77.93",
    ),
    Claim(
        "SED 5.4, Table 3", "SED's mean is not above the full ensemble: CT", Side("ct-sed"), Side("ct-sed", "ensemble"), STS,
        "77.40 -> 76.76", holds=False,
    ),
    Claim(
        "SED 5.4, Table 3", "SED's mean is not above the full ensemble: NLI-CT", Side("nli-ct-sed"),
        Side("nli-ct-sed", "ensemble"), STS, "78.06 -> 77.93", holds=False,
    ),
    Claim(
        "SED 5.4, Table 3", "Members differ more than students: CT", _members("ct-sed"), Side("ct-sed"), STS, "0.20 -> 0.80",
        of="spread",
    ),
    Claim(
        "SED 5.4, Table 3", "Members differ more than students: NLI-CT", _members("nli-ct-sed"), Side("nli-ct-sed"), STS,
        "0.09 -> 0.32", of="spread",
    ),
    Claim(
        "SED 5.5, Table 4", "SED does not help the supervised grid", Side("sts-sed"), _members("sts-sed"), STSB,
        "86.35 -> 85.80 (BERT-L), 88.50 -> 88.29 (RoBERTa-L)", holds=False,
    ),
    Claim(
        "SED 5.5, Table 4", "Flow does not help the supervised grid", Side("sts-flow"), _members("sts-sed"), STSB,
        "86.35 -> 83.32 (BERT-L), 88.50 -> 86.52 (RoBERTa-L)", holds=False,
    ),
    Claim(
        "SED A.1, Table 5", "SED does not help CT on BERT-base", Side("ct-sed"), _members("ct-sed"), STS, "73.29 -> 72.45",
        holds=False, backbone="BERT-base",
    ),
    Claim(
        "SED A.1, Table 5", "SED helps CT on BERT-distil", Side("ct-sed"), _members("ct-sed"), STS, "73.78 -> 74.91",
        backbone="BERT-distil",
    ),
    Claim(
        "SED A.1, Table 6", "Flow does not help NLI-CT-SED on BERT-distil", Side("nli-ct-sed-flow"), Side("nli-ct-sed"), STS,
        "77.37 -> 76.65", holds=False, backbone="BERT-distil",
    ),
    Claim(
        "SED A.1, Table 6", "Flow does not help NLI-CT-SED on BERT-base", Side("nli-ct-sed-flow"), Side("nli-ct-sed"), STS,
        "77.23 -> 76.80", holds=False, backbone="BERT-base",
    ),
    Claim(
        "SED A.3, Table 8", "Two pooled layers are above one: CT", Side("ct-sed", "members", 2), Side("ct-sed", "members", 1),
        STS, "74.76 -> 75.22",
    ),
    Claim(
        "SED A.3, Table 8", "Two pooled layers are above one: NLI-CT-SED", Side("nli-ct-sed", "model", 2),
        Side("nli-ct-sed", "model", 1), STS, "77.42 -> 77.91",
    ),
    Claim(BASELINES, "The raw encoder is above word overlap", _backbone("flow"), Side("word overlap"), STS),
    Claim(BASELINES, "Flow is above taking the mean away", Side("flow"), Side("centre"), STS),
    Claim(BASELINES, "Flow is above whitening", Side("flow"), Side("whiten"), STS),
    Claim(BASELINES, "Flow fitted on other text is above the raw encoder", Side("flow.other-text"), _backbone("flow"), STS),
    Claim(BASELINES, "Whitening fitted on other text is above the raw encoder", Side("whiten.other-text"), _backbone("flow"),
          STS),
    Claim(BASELINES, "SED is above the members' weight average: CT", Side("ct-sed"), Side("ct-soup"), STS),
    Claim(BASELINES, "SED is above the members' weight average: NLI-CT", Side("nli-ct-sed"), Side("nli-ct-soup"), STS),
]  # fmt: skip

_ENT, _CON, _REV, _ALL = (Side(f"gausscse-{loss}") for loss in ("ent", "ent+con", "ent+rev", "ent+con+rev"))

_GAUSSCSE = [
    Claim("GaussCSE 3.3, Table 1", "ent+con is above Sup-SimCSE on SNLI", _CON, Side("simcse-sup"), SNLI, "74.96 -> 78.33"),
    Claim(
        "GaussCSE 3.3, Table 1", "ent+con is not above Sup-SimCSE on SICK", _CON, Side("simcse-sup"), SICK, "86.11 -> 85.21",
        holds=False,
    ),
    Claim("GaussCSE 3.3, Table 1", "Contradictions help: ent", _CON, _ENT, SNLI, "72.50 -> 78.33"),
    Claim("GaussCSE 3.3, Table 1", "Contradictions help: ent+rev", _ALL, _REV, SNLI, "70.64 -> 77.51"),
    Claim("GaussCSE 3.3, Table 1", "Contradictions help on SICK", _CON, _ENT, SICK, "76.50 -> 85.21"),
    Claim("GaussCSE 3.3, Table 1", "The reversed set does not help entailment: ent", _REV, _ENT, SNLI, "72.50 -> 70.64",
          holds=False),
    Claim("GaussCSE 3.3, Table 1", "The reversed set does not help entailment: ent+con", _ALL, _CON, SNLI, "78.33 -> 77.51",
          holds=False),
    Claim("GaussCSE 3.3, Table 2", "The reversed set gives the direction: ent", _REV, _ENT, SNLI_DIRECTION, "81.65 -> 97.01"),
    Claim("GaussCSE 3.3, Table 2", "The reversed set gives the direction: ent+con", _ALL, _CON, SNLI_DIRECTION,
          "61.56 -> 97.09"),
    Claim("GaussCSE 3.3, Table 2", "The reversed set gives the direction on SICK", _REV, _ENT, SICK_DIRECTION,
          "63.01 -> 71.23"),
    Claim("GaussCSE 3.3, Table 2", "Contradictions alone do not give the direction", _CON, _ENT, SNLI_DIRECTION,
          "81.65 -> 61.56", holds=False),
    Claim(BASELINES, "ent+rev is above calling the longer sentence the premise", _REV, Side("longer sentence"), SNLI_DIRECTION),
    Claim(BASELINES, "ent+rev is above calling the longer sentence the premise, on SICK", _REV, Side("longer sentence"),
          SICK_DIRECTION),
    Claim(BASELINES, "Sup-SimCSE is above word overlap on STS-B", Side("simcse-sup"), Side("word overlap"), STSB),
]  # fmt: skip

_LATTE = [
    Claim("Latte-Mix 4.1, Table 1", "Latte-Mix is above mean pooling on STS-B", Side("latte"), _backbone("latte"), STSB,
          "47.29 -> 56.82 (BERT-base), 61.54 -> 65.84 (GloVe)"),
    Claim("Latte-Mix 4.1, Table 1", "Latte-Mix is above mean pooling on SICK-R", Side("latte"), _backbone("latte"), ("sickr",),
          "58.22 -> 61.26 (BERT-base), 55.38 -> 56.49 (GloVe)"),
    Claim("Latte-Mix A.6, Table 5", "Latte-Mix is above mean pooling on STS12 to STS16", Side("latte"), _backbone("latte"), STS,
          "53.68 -> 58.97 (BERT-base), 63.78 -> 65.29 (GloVe)"),
    Claim("Latte-Mix 4.2, Table 2", "Latte-Mix is above the autoencoder", Side("latte"), Side("latte-ae"), STSB,
          "37.18 -> 56.82"),
    Claim("Latte-Mix 4.2, Table 2", "Latte-Mix is above the Normal-VAE", Side("latte"), Side("latte-normal"), STSB,
          "50.84 -> 56.82"),
    Claim("Latte-Mix 4.2, Table 2", "The autoencoder is not above mean pooling", Side("latte-ae"), _backbone("latte"), STSB,
          "47.29 -> 37.18", holds=False),
    Claim("Latte-Mix 4.2, Table 2", "The Normal-VAE is above mean pooling", Side("latte-normal"), _backbone("latte"), STSB,
          "47.29 -> 50.84"),
    Claim("Latte-Mix 4.2, Table 2", "A second layer of the encoder does not help", Side("latte.two-layers"), Side("latte"),
          STSB, "56.82 -> 45.22", holds=False),
    Claim("Latte-Mix A.5, Table 4", "A temperature of 1 is not above 0.3", Side("latte.tau-1"), Side("latte"), STSB,
          "55.60 -> 47.31", holds=False),
    Claim("Latte-Mix 4.3, Table 3", "On a model of NLI Latte-Mix is above mean pooling", Side("nli-latte"), Side("nli"), STSB,
          "76.98 -> 78.75"),
    Claim(BASELINES, "Mean pooling is above word overlap", _backbone("latte"), Side("word overlap"), STSB),
    Claim(BASELINES, "Latte-Mix is above taking the mean away, on STS-B", Side("latte"), Side("centre"), STSB),
    Claim(BASELINES, "Latte-Mix is above taking the mean away, on STS12 to STS16", Side("latte"), Side("centre"), STS),
    Claim(BASELINES, "Latte-Mix is above its untrained head, on STS-B", Side("latte"), Side("latte.untrained"), STSB),
    Claim(BASELINES, "Latte-Mix is above its untrained head, on STS12 to STS16", Side("latte"), Side("latte.untrained"), STS),
]  # fmt: skip

CLAIMS: dict[str, list[Claim]] = {"sed": _SED, "gausscse": _GAUSSCSE, "latte-mix": _LATTE}
"""By paper."""

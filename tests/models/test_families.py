"""Encoders of other families than BERT's: padded where nothing says that their texts can be packed, and right all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import write_backbone

from raysts.errors import InputError
from raysts.models import onnx
from raysts.models.families import FAMILIES, WORD_VECTORS, Family, family_of
from raysts.models.pretrained import load


@pytest.mark.parametrize("family", ["modernbert", pytest.param("mpnet", marks=pytest.mark.slow)])
def test_onnx(family: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    onnx.save(load(write_backbone(tmp_path / family, family), layers=2, device="cpu"), tmp_path / "out")
    assert (tmp_path / "out" / "model.onnx").is_file(), "it has been compared with the model"


def test_what_is_known_of_a_family() -> None:
    config = {"max_position_embeddings": 514}
    assert family_of("roberta").most_tokens(config) == 512 == family_of("mpnet").most_tokens(config)
    assert family_of("bert").most_tokens(config) == 514 and family_of("electra").most_tokens({}) == 512
    assert family_of("gpt2") == Family(width="n_embd", depth="n_layer", longest="n_positions")
    assert family_of("electra") == Family() and family_of("static") is WORD_VECTORS
    assert {name for name, family in FAMILIES.items() if not family.packed} == {"mpnet", "modernbert", "t5", "mt5"}


@pytest.mark.parametrize("kind", ["bart", "longt5", "fnet", "funnel", "vit", "nonsense", None])
def test_what_is_no_encoder_of_text_is_refused(kind: str | None) -> None:
    with pytest.raises(ValueError, match=f"is of type '{kind}': it must be an encoder of one of the families bert, "):
        family_of(kind)


def test_an_encoder_that_reads_its_padding_is_refused(tmp_path: Path) -> None:
    """ConvBERT's convolutions do not know the mask."""
    with pytest.raises(InputError, match="type 'convbert' that gives a padded text other vectors than the text alone"):
        load(write_backbone(tmp_path / "convbert", "convbert"), device="cpu")

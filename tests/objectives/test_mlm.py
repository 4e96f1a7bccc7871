from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from small_runs import share_of, tiny_encoder

from raysts.models.encoder import Encoder
from raysts.models.tokens import Tokens
from raysts.objectives.mlm import IGNORED, MLM
from raysts.recipes.catalog import MLMSettings

WORDS, PAD, UNKNOWN, CLS, SEP, MASK = 60, 0, 1, 2, 3, 4
SPECIAL = (UNKNOWN, SEP, PAD, CLS, MASK)
SHAPE = {"vocab_size": WORDS, "max_position_embeddings": 70, "pad_token_id": PAD}
LAYERS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def texts(lengths: np.ndarray, seed: int = 0) -> Tokens:
    """[CLS] words [SEP]; one word in twenty is unknown."""
    draw = np.random.default_rng(seed)
    rows = [[CLS, *draw.choice([UNKNOWN, *range(5, 24)], length - 2), SEP] for length in lengths]
    return Tokens(np.concatenate(rows).astype(np.int32), np.concatenate([[0], np.cumsum(lengths)]))


def encoder(backbone: Any = None) -> Encoder:
    if backbone is None:
        backbone = transformers.BertModel(transformers.BertConfig(**SHAPE, **LAYERS), add_pooling_layer=False)
    return Encoder(backbone, PAD, mask_id=MASK, special_ids=SPECIAL).eval()


def made(**settings: Any) -> MLM:
    torch.manual_seed(0)
    return MLM(MLMSettings(**settings), encoder()).eval()


def batch(objective: MLM, tokens: Tokens) -> dict[str, torch.Tensor]:
    examples = [(row,) for row in range(len(tokens))]
    return objective.collate(share_of({"sentence": tokens}, examples, np.ones(len(examples), np.float32)))


def reference(family: str) -> tuple[Any, dict[str, str]]:
    """A random model of transformers with its own head, and what its head calls the parameters of ours."""
    torch.manual_seed(3)
    if family == "bert":
        head = "cls.predictions"
        names = {"dense": f"{head}.transform.dense", "norm": f"{head}.transform.LayerNorm", "decoder": head}
        return transformers.BertForMaskedLM(transformers.BertConfig(**SHAPE, **LAYERS)), names
    if family == "roberta":
        names = {"dense": "lm_head.dense", "norm": "lm_head.layer_norm", "decoder": "lm_head"}
        config = transformers.RobertaConfig(type_vocab_size=1, layer_norm_eps=1e-5, **SHAPE, **LAYERS)
        return transformers.RobertaForMaskedLM(config), names
    shape = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}
    names = {"dense": "vocab_transform", "norm": "vocab_layer_norm", "decoder": "vocab_projector"}
    return transformers.DistilBertForMaskedLM(transformers.DistilBertConfig(**shape, **SHAPE)), names


@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta"])
def test_loss_and_gradients_are_those_of_transformers(family: str) -> None:
    theirs, names = reference(family)
    theirs.eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    objective = MLM(MLMSettings(), encoder(copy.deepcopy(theirs.base_model))).eval()
    known = dict(theirs.named_parameters())
    with torch.no_grad():
        for module in ("dense", "norm"):
            for kind in ("weight", "bias"):
                getattr(getattr(objective, module), kind).copy_(known[f"{names[module]}.{kind}"])
        objective.decoder.bias.copy_(known[f"{names['decoder']}.bias"])
    found = batch(objective, texts(np.array([9, 4, 30, 17])))
    loss, scalars = objective(found)
    loss.backward()
    attention = torch.arange(30) < found["ids_length"][:, None]
    output = theirs(input_ids=found["ids"], attention_mask=attention.long(), labels=found["labels"])
    output.loss.backward()
    assert float(loss.detach()) == pytest.approx(float(output.loss.detach()), abs=1e-5)
    chosen = found["labels"] != IGNORED
    right = output.logits.argmax(-1)[chosen] == found["labels"][chosen]
    assert float(scalars["accuracy"]) == pytest.approx(float(right.float().mean()))
    assert objective.decoder.weight is objective.encoder.backbone.get_input_embeddings().weight
    pairs = [(objective.encoder.backbone.get_input_embeddings(), theirs.base_model.get_input_embeddings())]
    pairs.append((objective.dense, theirs.get_submodule(names["dense"])))
    for mine, other in pairs:
        torch.testing.assert_close(mine.weight.grad, other.weight.grad, rtol=1e-3, atol=1e-5)


def test_which_tokens_are_chosen_and_what_becomes_of_them() -> None:
    objective = made()
    lengths = np.random.default_rng(2).integers(3, 65, 3000)
    tokens = texts(lengths)
    before = tokens.pad(PAD)[0].numpy()
    found = batch(objective, tokens)
    after, labels = found["ids"].numpy(), found["labels"].numpy()
    chosen, ordinary = labels != IGNORED, ~np.isin(before, SPECIAL)
    assert not (chosen & ~ordinary).any(), "special tokens and padding never"
    assert (after[~chosen] == before[~chosen]).all() and (labels[chosen] == before[chosen]).all()
    there = ordinary.sum(1)
    expected = np.where(there == 0, 0, np.maximum(1, np.rint(0.15 * there)))
    assert (chosen.sum(1) == expected).all() and (expected == 1).any() and (there == 0).any()
    assert chosen[there > 20].sum() / ordinary[there > 20].sum() == pytest.approx(0.15, abs=0.002)

    count = chosen.sum()
    masked = chosen & (after == MASK)
    replaced = chosen & ~masked & (after != before)
    words = WORDS - len(SPECIAL)
    for part, rate in ((masked, 0.8), (replaced, 0.1 * (1 - 1 / words))):
        assert part.sum() / count == pytest.approx(rate, abs=4 * np.sqrt(rate * (1 - rate) / count))
    assert set(after[replaced].tolist()) == set(range(5, WORDS)), "any ordinary word, and no other"
    early, late = (chosen[lengths > 40, first : first + 10] for first in (1, 29))
    assert early.mean() == pytest.approx(late.mean(), abs=0.01), "every place is as likely as any other"


def test_logits_are_made_for_the_chosen_tokens_alone() -> None:
    objective = made(rate=0.3)
    found = batch(objective, texts(np.array([12, 22, 7])))
    shapes: list[torch.Size] = []
    objective.decoder.register_forward_hook(lambda module, given, out: shapes.append(out.shape))
    objective(found)
    assert shapes == [(int((found["labels"] != IGNORED).sum()) + 1, WORDS)], "one more, which does not count"


def test_a_batch_without_an_ordinary_word_has_nothing_to_learn() -> None:
    objective = made()
    found = batch(objective, Tokens(np.array([CLS, SEP, CLS, UNKNOWN, SEP], np.int32), np.array([0, 2, 5])))
    loss, scalars = objective(found)
    loss.backward()
    assert float(loss.detach()) == 0.0 == float(scalars["accuracy"])
    assert all(p.grad is not None and not p.grad.any() for p in objective.parameters())


def test_special_tokens_that_the_encoder_lacks_are_no_words_and_a_mask_must_be() -> None:
    larger = encoder()
    larger.special_ids = (*SPECIAL, WORDS)
    np.testing.assert_array_equal(MLM(MLMSettings(), larger).ordinary, made().ordinary)
    with pytest.raises(ValueError, match="no mask token"):
        MLM(MLMSettings(), tiny_encoder())

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import random_tokens, tiny_encoder, write_backbone
from torch import Tensor

from raysts.cpu import fused, native
from raysts.models import packing, sentence_model
from raysts.models.encoder import Encoder, pool
from raysts.models.families import FAMILIES, omit_pooler
from raysts.models.pretrained import load_backbone
from raysts.models.sentence_model import SentenceModel, represent_tokens
from raysts.models.tokens import Tokens, tokenize

TEXTS = [
    "a dog runs", "a cat", "the small dog and the cat are sleeping near the house", "dog", "a cat sleeps", "dogs run",
]  # fmt: skip


def batch(rows: int = 9, longest: int = 17, seed: int = 0) -> tuple[Tensor, Tensor]:
    return random_tokens(rows, longest, seed).pad(0)


def reference_of(encoder: Encoder) -> Any:
    """Transformers' own model with the encoder's weights: its layers, its attention, its dropout, in eval mode."""
    config = copy.deepcopy(encoder.backbone.config)
    config._attn_implementation = "eager"
    kind = type(encoder.backbone)
    model = kind(config, **omit_pooler(kind))
    model.load_state_dict(encoder.backbone.state_dict())
    return model.eval()


def test_pooling_is_summed_in_float32() -> None:
    tokens = torch.full((1, 3000, 2), 1.5, dtype=torch.float16)
    tokens[0, 0] = 0.0
    found = pool(tokens, None, torch.tensor([3000]), "mean")
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.full((1, 2), 1.5 * 2999 / 3000))
    assert pool(tokens.double(), None, torch.tensor([3000]), "mean").dtype == torch.float64


def test_a_table_of_poolings() -> None:
    """Of three texts behind a prompt of so many tokens that are not pooled. A row is the same alone as in its batch."""
    tokens = torch.tensor([[1.0, 2.0, 6.0], [-4.0, -2.0, 9.0], [5.0, 9.0, 9.0]])[..., None]
    lengths = torch.tensor([3, 2, 1])
    mask, root = torch.arange(3) < lengths[:, None], 2**0.5
    table: dict[str, tuple[list[float], ...]] = {
        "mean": ([3, -3, 5], [4, -2, 0], [6, 0, 0]),
        "mean_sqrt_len_tokens": ([9 / 3**0.5, -6 / root, 5], [8 / root, -2, 0], [6, 0, 0]),
        "weightedmean": ([23 / 6, -8 / 3, 5], [22 / 5, -2, 0], [6, 0, 0]), "max": ([6, -2, 5], [6, -2, 0], [6, 0, 0]),
        "cls": ([1, -4, 5], [2, -2, 5], [6, -4, 5]), "lasttoken": ([6, -2, 5],) * 3,
    }  # fmt: skip
    for skipped in range(3):
        expected = torch.tensor([rows[skipped] for rows in table.values()], dtype=torch.float32).T
        torch.testing.assert_close(pool(tokens, mask, lengths, "+".join(table), skipped), expected)
        for row, length in enumerate(lengths):
            alone = pool(tokens[row, None, :length], None, length[None], "+".join(table), skipped)
            torch.testing.assert_close(alone[0], expected[row])


def test_rows_in_bf16_are_of_lengths_that_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, (ids, lengths), rows = tiny_encoder(layers=2).eval(), batch(rows=7), []
    encoder.backbone.register_forward_pre_hook(
        lambda _, args, given: rows.append(given["input_ids"].shape[1]), with_kwargs=True
    )

    def run(multiple: int) -> tuple[Tensor, list[Tensor]]:
        monkeypatch.setattr(packing, "ROUND", multiple)
        encoder.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = encoder(ids, lengths)
        found.square().sum().backward()
        return found.detach(), [p.grad.clone() for p in encoder.parameters() if p.grad is not None]

    (plain, gradients), (found, found_gradients) = run(1), run(32)
    assert rows[0] % 32 and rows[1] == rows[0] + -rows[0] % 32
    torch.testing.assert_close(found, plain, rtol=0, atol=0.02)
    for a, b in zip(found_gradients, gradients, strict=True):
        assert float((a - b).norm()) <= 0.02 * float(b.norm()), "padding takes no part"
    encoder(ids, lengths)
    assert rows[2] == rows[0], "in fp32 there is nothing to compile"


@pytest.mark.parametrize("training", [True, False])
def test_long_texts_attend_one_by_one(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, (ids, lengths), calls = tiny_encoder().eval(), batch(rows=24), list[Any]()
    encoder.fused, attend = False, packing._attend_padded
    monkeypatch.setattr(packing, "_attend_padded", lambda *given: calls.append(given[0]) or attend(*given))
    torchs, kernel = list[Any](), packing.F.scaled_dot_product_attention
    monkeypatch.setattr(
        packing.F, "scaled_dot_product_attention", lambda *given, **how: torchs.append(given) or kernel(*given, **how)
    )
    with torch.set_grad_enabled(training):
        whole = encoder(ids, lengths)
        assert len(calls) == encoder.depth
        monkeypatch.setattr(packing, "LONG", int(lengths.max()))
        torch.testing.assert_close(encoder(ids, lengths), whole, rtol=0, atol=1e-6)
    assert len(calls) == encoder.depth * (1 + 24) and bool(torchs) == (not training), "its backward is slow"


@torch.no_grad()
def test_dropout_of_attention_is_on_in_training_alone() -> None:
    encoder = tiny_encoder()
    for name, module in encoder.named_modules():
        if isinstance(module, torch.nn.Dropout) and not name.endswith("attention.self.dropout"):
            module.p = 0.0
    ids, lengths = batch()

    def run(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return encoder(ids, lengths)

    assert torch.equal(run(0), run(1))
    encoder.train()
    assert torch.equal(run(0), run(0)) and not torch.equal(run(0), run(1))


@pytest.mark.parametrize("family", [*FAMILIES, "electra", "deberta-v2"])
def test_families_against_transformers_own_masked_pass(family: str, tmp_path: Any) -> None:
    """Vectors, and gradients of every weight."""
    backbone, tokenizer = load_backbone(write_backbone(tmp_path / family, family))
    encoder = Encoder(backbone, int(tokenizer.pad_token_id), "mean", 2).eval()
    reference = reference_of(encoder)
    model = SentenceModel(encoder, tokenizer, 24)
    assert (encoder.dim, encoder.depth, model.dim) == (32, 2, 32)
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt", return_token_type_ids=False)
    states = reference(**inputs, output_hidden_states=True).hidden_states
    mask = inputs["attention_mask"][..., None]
    for layers in (1, 2):
        tokens = sum(states[-k] for k in range(1, layers + 1)) / layers
        expected = (tokens * mask).sum(1) / mask.sum(1)
        found = model.represent_layers(TEXTS, (layers,))[layers]["vectors"]
        np.testing.assert_allclose(found, expected.detach().numpy(), rtol=0, atol=1e-5)
    vectors = encoder(inputs["input_ids"], inputs["attention_mask"].sum(1))
    torch.testing.assert_close(vectors, expected, rtol=0, atol=1e-5)
    weights = torch.linspace(-1, 1, expected.numel()).view_as(expected)
    for of_all in (expected, vectors):
        (of_all * weights).sum().backward()
    theirs = dict(reference.named_parameters())
    for name, parameter in encoder.backbone.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-4, atol=1e-5, msg=name)


def one_by_one(q: Tensor, k: Tensor, v: Tensor, starts_q: Tensor, starts_k: Tensor, *most: int, scale: float) -> Tensor:
    """What torch says of ``varlen_attn``, which runs on GPUs alone: [N, heads, width], each text to itself."""
    assert starts_q is starts_k and starts_q.dtype == torch.int32 and int(starts_q.diff().max()) == most[0] == most[1]
    found = []
    for first, last in itertools.pairwise(starts_q.tolist()):
        weights = torch.softmax(torch.einsum("nae,mae->anm", q[first:last], k[first:last]) * scale, -1)
        found.append(torch.einsum("anm,mae->nae", weights, v[first:last]))
    return torch.cat(found)


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_ways_to_attend_are_one(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled, as on GPUs with the kernel for texts of any lengths, and padded for attention alone."""
    backbone, tokenizer = load_backbone(write_backbone(tmp_path / family, family))
    encoder = Encoder(backbone, int(tokenizer.pad_token_id), "mean+cls+max+lasttoken+weightedmean", "first_last").eval()
    compiled = all(fused.parts_of(layer, torch.float32) for layer in encoder.layer_list())
    assert compiled == (native.library() is not None)
    attend, compiled_calls = fused._attention, list[Any]()
    monkeypatch.setattr(fused, "_attention", lambda *given: compiled_calls.append(given) or attend(*given))
    monkeypatch.setattr(packing, "varlen_attn", one_by_one)
    for texts in (TEXTS, TEXTS[:1] * 2):
        ids, lengths = tokenize(tokenizer, texts, 24).pad(encoder.pad_id)
        ids = torch.nn.functional.pad(ids, (0, 3), value=encoder.pad_id)
        there = (torch.arange(ids.shape[1]) < lengths[:, None])[..., None]
        results = []
        for encoder.fused, kernel in ((False, False), (False, True), (True, False)):
            monkeypatch.setattr(packing, "has_kernel", lambda *_, kernel=kernel: kernel)
            encoder.zero_grad(), compiled_calls.clear()
            vectors, tokens = encoder(ids, lengths), encoder.tokens(ids, lengths, lengths.numpy())
            assert bool(compiled_calls) == (encoder.fused and compiled) and tokens.shape[:2] == ids.shape
            (vectors.square().sum() + (tokens * there).cumsum(0).sum()).backward()
            results.append((vectors.detach(), *(p.grad.clone() for p in encoder.parameters() if p.grad is not None)))
        for padded, *others in zip(*results, strict=True):
            atol = max(1e-5, 1e-6 * float(padded.abs().max()))  # a gradient is a sum over all tokens, in another order
            for other in others:
                torch.testing.assert_close(other, padded, rtol=1e-4, atol=atol)


def test_flash_attention_needs_a_gpu_of_its_generation_and_two_byte_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {
        ("cpu", torch.bfloat16): 9, ("cuda", torch.float32): 9, ("cuda", torch.bfloat16): 8, ("cuda", torch.float16): 7,
    }  # fmt: skip
    found = []
    for (device, dtype), generation in table.items():
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, major=generation: (major, 0))
        found.append(packing.has_kernel(torch.device(device), dtype))
    assert found == [False, False, True, False]


def test_bulk_embedding_keeps_rows_and_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In batches of few tokens, for which the longest texts are too long."""
    encoder, tokens, seen = tiny_encoder().train(), random_tokens(40, 17), list[int]()
    ids, lengths = tokens.pad(0)
    monkeypatch.setitem(sentence_model.TOKEN_BUDGET, "cpu", 15)
    found = [part["vectors"] for part in represent_tokens(encoder, tokens, (1, 2), progress=seen.append)]
    assert encoder.training and sum(seen) == 40 and len(seen) > 5
    with torch.no_grad():
        encoder.eval()
        for number in range(40):
            text = ids[number : number + 1, : lengths[number]], lengths[number : number + 1]
            for array, alone in zip(found, encoder.represent_layers(*text, (1, 2)), strict=True):
                assert array.dtype == np.float32
                np.testing.assert_allclose(array[number], alone["vectors"][0], rtol=0, atol=1e-5)
    (none,) = represent_tokens(encoder, tokens.take([]), (1,))
    assert none["vectors"].shape == (0, 16)


def test_tokens_take_and_pad() -> None:
    tokens = Tokens(np.array([5, 6, 7, 8, 9, 10], np.int32), np.array([0, 2, 3, 6]))
    assert len(tokens) == 3 and tokens.lengths.tolist() == [2, 1, 3]
    taken = tokens.take([2, 0, 2])
    assert taken.flat.tolist() == [8, 9, 10, 5, 6, 8, 9, 10] and taken.offsets.tolist() == [0, 3, 5, 8]
    ids, lengths = taken.pad(-1)
    assert ids.tolist() == [[8, 9, 10], [5, 6, -1], [8, 9, 10]] and lengths.tolist() == [3, 2, 3]
    assert len(tokens.take([])) == 0 and tokens.take([]).pad(0)[0].shape == (0, 1)


def test_equal_texts_have_equal_digests(tiny_backbone: Any) -> None:
    _, tokenizer = load_backbone(tiny_backbone)
    tokens = tokenize(tokenizer, ["a dog", None, "a dog runs", "a dog", None], 12)
    assert (tokens.lengths == 0).tolist() == [False, True, False, False, True]
    found = tokens.digests()
    assert found.dtype == np.int64 and (found >= 0).all()
    assert found[0] == found[3] and found[1] == found[4] and len(set(found.tolist())) == 3
    np.testing.assert_array_equal(tokens.take([4, 3, 2]).digests(), found[[4, 3, 2]])

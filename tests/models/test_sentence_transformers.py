"""Directories that sentence-transformers writes, and the same vectors before and after export, a training step and loading."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as kinds
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from sentence_transformers.util import quantize_embeddings
from small_runs import HIDDEN, write_backbone

from raysts.data.world import world_tokenizer
from raysts.errors import InputError
from raysts.models.embedders import open_embedder
from raysts.models.pretrained import check, load, tokenizer_id
from raysts.models.sentence_model import SentenceModel, quantize

TEXTS = ["a dog runs", "a cat", "the small dog and the cat are sleeping near the house", "dog", "A CAT sleeps", "a"]
ENCODERS = (
    "bert", "distilbert", "roberta", "xlm-roberta", "camembert", "mpnet", "modernbert", "deberta-v2", "electra", "albert",
    "t5",
)  # fmt: skip
DECODERS = ("bloom", "qwen3")
LIKE_OTHERS = ("xlm-roberta", "camembert", "electra", "albert", "bloom")
"""Layers of RoBERTa and BERT under another name, shared layers, and a second decoder. test_encoder.py holds families
against transformers' own pass."""
ALL_MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


def theirs(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def same(model: SentenceModel, folder: Path) -> SentenceTransformer:
    """What sentence-transformers loads from ``folder``, which gives the model's vectors, as what raysts loads does."""
    vectors, exported = model.encode(TEXTS), theirs(folder)
    np.testing.assert_allclose(exported.encode(TEXTS), vectors, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(load(folder, device="cpu").encode(TEXTS), vectors)
    return exported


@pytest.mark.whole
@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=pytest.mark.slow if name in LIKE_OTHERS else ()) for name in (*ENCODERS, *DECODERS)],
)
def test_architectures(family: str, tmp_path: Path) -> None:
    """Before and after export; a training step reaches every weight, also if layers are computed again."""
    folder = write_backbone(tmp_path / family, family)
    assert check(folder)["model_type"] == family and open_embedder(folder).dim == HIDDEN
    pooling = "lasttoken" if family in DECODERS else "mean"
    model = load(folder, pooling=pooling, device="cpu")
    assert (model.dim, model.depth, model.max_length) == (HIDDEN, 2, 128)
    plain = SentenceTransformer(modules=[Transformer(str(folder)), Pooling(HIDDEN, pooling)], device="cpu")
    vectors = model.encode(TEXTS)
    np.testing.assert_allclose(plain.encode(TEXTS), vectors, rtol=0, atol=1e-5)
    for text, vector in zip(TEXTS, vectors, strict=True):
        np.testing.assert_allclose(model.encode(text), vector, rtol=0, atol=1e-5)
    model.save(tmp_path / "model")
    same(model, tmp_path / "model")

    encoder, results = model.encoder.train(), list[list[torch.Tensor]]()
    for again in (False, True):
        if again:
            encoder.recompute_layers()
        encoder.zero_grad()
        torch.manual_seed(0)
        found = encoder(*model.tokenize(TEXTS).pad(encoder.pad_id))
        (found * torch.linspace(-1, 1, found.numel()).reshape(found.shape)).sum().backward()
        still = [name for name, weight in encoder.named_parameters() if weight.grad is None or not weight.grad.any()]
        assert not still
        results.append([found.detach(), *(weight.grad.clone() for weight in encoder.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True)), "what is computed again drops the same"


def layered(weights: torch.Tensor) -> kinds.WeightedLayerPooling:
    learnt = torch.nn.Parameter(weights)
    return kinds.WeightedLayerPooling(HIDDEN, num_hidden_layers=2, layer_start=0, layer_weights=learnt)


def dense(width: int, out: int, function: torch.nn.Module, **options: Any) -> Dense:
    torch.manual_seed(0)
    return Dense(width, out, activation_function=function, **options)


PROMPTS = {"prompts": {"query": "a cat: ", "passage": "the small "}, "default_prompt_name": "query"}
VARIANTS: dict[str, tuple[list[Callable[[], Any]], dict[str, Any]]] = {
    "last token": ([lambda: Pooling(HIDDEN, "lasttoken")], {}),
    "concatenated": ([lambda: Pooling(HIDDEN, ALL_MODES)], {}),
    "prompts": ([lambda: Pooling(HIDDEN, "mean")], PROMPTS),
    "prompts that are not pooled": ([lambda: Pooling(HIDDEN, ALL_MODES, include_prompt=False)], PROMPTS),
    "lower case": ([lambda: Pooling(HIDDEN, "mean")], {}),
    "truncated": ([lambda: Pooling(HIDDEN, "mean"), Normalize], {"truncate_dim": 5}),
    "dot": ([lambda: Pooling(HIDDEN, "cls")], {"similarity_fn_name": "dot"}),
    "dense": (
        [
            lambda: Pooling(HIDDEN, ("cls", "max")),
            lambda: dense(2 * HIDDEN, 12, torch.nn.GELU(), bias=False, use_residual=True),
            lambda: dense(12, 7, torch.nn.Identity()),
            Normalize,
        ],
        {},
    ),
    "two layers": ([lambda: layered(torch.tensor([0.0, 1.0, 1.0])), lambda: Pooling(HIDDEN, "mean")], {}),
    "trained layers": ([lambda: layered(torch.tensor([0.3, -0.2, 1.7])), lambda: Pooling(HIDDEN, "mean")], {}),
}


@pytest.fixture(scope="module")
def cased(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A backbone whose tokenizer leaves large letters as they are; its vocabulary has none."""
    from tokenizers import normalizers
    from transformers import PreTrainedTokenizerFast

    folder = write_backbone(tmp_path_factory.mktemp("cased") / "bert", "bert")
    tokenizer = world_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    names = {f"{kind}_token": getattr(tokenizer, f"{kind}_token") for kind in ("pad", "unk", "cls", "sep", "mask")}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, **names).save_pretrained(folder)
    yield folder


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_a_directory_says_is_obeyed_and_kept(variant: str, cased: Path, tmp_path: Path) -> None:
    modules, said = VARIANTS[variant]
    first = Transformer(str(cased), config_kwargs={"output_hidden_states": "layers" in variant})
    written = SentenceTransformer(modules=[first, *(make() for make in modules)], device="cpu", **said)
    written.save_pretrained(str(tmp_path / "theirs"), create_model_card=False)
    if variant == "lower case":  # as the library wrote it for years
        (tmp_path / "theirs" / "sentence_bert_config.json").write_text('{"max_seq_length": 9, "do_lower_case": true}')
    read = theirs(tmp_path / "theirs")
    expected = read.encode(TEXTS)

    model = load(tmp_path / "theirs", device="cpu")
    np.testing.assert_allclose(model.encode(TEXTS), expected, rtol=0, atol=1e-5)
    assert open_embedder(tmp_path / "theirs").dim == model.dim == expected.shape[1]
    model.save(tmp_path / "ours")
    exported = same(model, tmp_path / "ours")
    assert tokenizer_id(tmp_path / "ours") == tokenizer_id(tmp_path / "theirs")
    for name in ("prompts", "default_prompt_name", "truncate_dim", "similarity_fn_name", "max_seq_length"):
        assert getattr(exported, name) == getattr(read, name), name
    assert exported[0].do_lower_case == (variant == "lower case")

    if variant == "lower case":
        assert (model.encode("A CAT sleeps") == model.encode("a cat sleeps")).all() and model.max_length == 9
        assert tokenizer_id(tmp_path / "ours") != tokenizer_id(cased)
    if variant == "dot":
        assert list(open_embedder(tmp_path / "ours").similarities) == list(model.similarities) == ["dot", "cosine"]
        a, b = model.represent(TEXTS[:3]), model.represent(TEXTS[3:])
        pairs = written.similarity_pairwise(a["vectors"], b["vectors"])
        np.testing.assert_allclose(model.similarity(a, b), pairs, rtol=1e-5)
    if "prompts" in variant:
        for asked in ({"prompt_name": "passage"}, {"prompt": "house of "}, {"prompt": ""}):
            (prompt,) = asked.values()
            np.testing.assert_allclose(model.encode(TEXTS, prompt=prompt), exported.encode(TEXTS, **asked), atol=1e-5)
        with pytest.raises(InputError, match=r"prompt 'qery': .*it has .*query\) \(did you mean 'query'"):
            model.encode(TEXTS, prompt="qery")
        for asked in ("passage", "house of ", ""):
            loaded = load(tmp_path / "theirs", prompt=asked, device="cpu")
            np.testing.assert_array_equal(loaded.encode(TEXTS), model.encode(TEXTS, prompt=asked))


def test_encode_as_sentence_transformers_does(tiny_backbone: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = load(tiny_backbone, device="cpu")
    vectors = model.encode(TEXTS)
    assert vectors.shape == (len(TEXTS), model.dim) and model.encode(TEXTS[0]).shape == (model.dim,)
    np.testing.assert_array_equal(model.encode(TEXTS[0]), model.encode(TEXTS[:1])[0])
    assert model.encode([]).shape == (0, model.dim)
    np.testing.assert_allclose(np.linalg.norm(model.encode(TEXTS, normalize=True), axis=1), 1, rtol=1e-6)
    found = model.encode(TEXTS, batch_size=2, device="cpu", show_progress=True)
    np.testing.assert_allclose(found, vectors, rtol=0, atol=1e-6)
    assert "encode" in capfd.readouterr().err
    with_zeros = np.array([[0.0, 1.0] * 8, [-1.0, 0.0] * 8], np.float32)
    for precision in ("int8", "uint8", "binary", "ubinary"):
        found, expected = model.encode(TEXTS, precision=precision), quantize_embeddings(vectors, precision)  # type: ignore[arg-type]
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(quantize(with_zeros, precision), quantize_embeddings(with_zeros, precision))  # type: ignore[arg-type]
    for wrong in ({"precision": "int4"}, {"batch_size": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}="):
            model.encode(TEXTS, **wrong)  # type: ignore[arg-type]

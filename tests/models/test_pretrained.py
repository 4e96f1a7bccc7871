from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_commands import raysts
from safetensors.torch import load_file, save_file
from small_runs import write_backbone

from raysts.errors import InputError
from raysts.models import pretrained
from raysts.models.encoder import Encoder
from raysts.models.pretrained import check, find, load, tokenizer_id
from raysts.storage import foreign

TEXTS = ["a dog runs", "a cat", "the small dog and the cat are sleeping near the house", "dog", "", "A CAT sleeps"]
Copy = Callable[[Path, str], Path]


def test_minilm_as_sentence_transformers_reads_it(minilm: Path, tmp_path: Path) -> None:
    """Another author's directory: six layers, mean pooling, a Normalize module."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    expected = sentence_transformers.SentenceTransformer(str(minilm), device="cpu", local_files_only=True).encode(TEXTS)
    model = load(minilm, device="cpu")
    assert model.normalize and model.max_length == 256 and model.dim == 384
    np.testing.assert_allclose(model.encode(TEXTS), expected, rtol=0, atol=2e-6)
    model.save(tmp_path / "model")
    again = sentence_transformers.SentenceTransformer(str(tmp_path / "model"), device="cpu", local_files_only=True)
    np.testing.assert_allclose(again.encode(TEXTS), expected, rtol=0, atol=2e-6)


def test_what_is_saved_does_not_depend_on_what_was_encoded_before(tiny_backbone: Path, tmp_path: Path) -> None:
    model = load(tiny_backbone, max_length=9, device="cpu")
    model.save(tmp_path / "before")
    model.encode(TEXTS)
    model.save(tmp_path / "after")
    folders = ((tmp_path / name).iterdir() for name in ("before", "after"))
    before, after = ({path.name: path.read_bytes() for path in paths if path.is_file()} for paths in folders)
    assert before == after


@pytest.mark.filterwarnings("error")  # a user would see it
def test_half_precision_weights_load_as_float32(tiny_backbone: Path, copy_of: Copy) -> None:
    folder = copy_of(tiny_backbone, "half")
    weights = {name: value.bfloat16() for name, value in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    check(folder)
    model = load(folder, device="cpu")
    assert {p.dtype for p in model.encoder.parameters()} == {torch.float32}
    np.testing.assert_allclose(model.encode(TEXTS), load(tiny_backbone, device="cpu").encode(TEXTS), atol=0.1)


def test_options_win_over_the_directory(tiny_backbone: Path, tmp_path: Path) -> None:
    load(tiny_backbone, pooling="cls", layers=2, max_length=9, device="cpu").save(tmp_path / "model", "# a card\n")
    assert (tmp_path / "model" / "README.md").read_text() == "# a card\n"
    model = load(tmp_path / "model", pooling="max", layers=1, max_length=5, device="cpu")
    assert (model.pooling, model.layers, model.max_length) == ("max", 1, 5)
    assert repr(model).startswith("SentenceModel(0.0 M parameters, 2 layers, 32 dimensions, 5 tokens")
    assert model.tokenize(TEXTS).lengths.max() == 5
    lengths = [load(tiny_backbone, max_length=most, device="cpu").max_length for most in (1, 10_000)]
    assert lengths == [1, 130], "no more than there are positions"
    with pytest.raises(InputError, match="max_length=0: must be at least 1"):
        load(tiny_backbone, max_length=0, device="cpu")


def test_the_size_of_a_model_is_that_of_its_weights(tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = load_file(tiny_backbone / "model.safetensors")
    whole = sum(value.numel() for value in weights.values())
    assert pretrained.weight_bytes(tiny_backbone) == 4 * whole
    words = weights["embeddings.word_embeddings.weight"].numel()
    assert pretrained.token_parameters(tiny_backbone) == whole - words
    monkeypatch.setattr(pretrained, "weight_bytes", lambda folder: 0.4e9)  # 8 or 3 of it beside the 1.3 GB of a worker
    assert [pretrained.worker_gigabytes(tiny_backbone, on_gpu) for on_gpu in (False, True)] == [4.5, 2.5]


def test_a_masked_language_model_loads_without_its_head(tmp_path: Path) -> None:
    import transformers

    folder = write_backbone(tmp_path / "plain", "bert")
    config = transformers.BertConfig.from_pretrained(folder)
    torch.manual_seed(0)
    whole = transformers.BertForMaskedLM(config).eval()
    whole.save_pretrained(tmp_path / "mlm")
    for path in folder.glob("tokenizer*"):
        shutil.copy(path, tmp_path / "mlm")
    state = load(tmp_path / "mlm", device="cpu").encoder.backbone.state_dict()
    for name, value in whole.bert.state_dict().items():
        torch.testing.assert_close(state[name], value)


@pytest.mark.parametrize(("values", "refused"), [
    ([float("nan")], True), ([float("-inf")], True), ([-1e18], True), ([9.9e17], False),
    (torch.tensor([float("nan")]).bfloat16(), True), (torch.tensor([60_000.0]).half(), False),
    (torch.tensor(float("nan")), False),  # a single number may stand for a mask
])  # fmt: skip
def test_weights_are_finite_and_no_larger_than_their_squares_may_be(
    values: Any, refused: bool, copy_of: Copy, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretrained, "BLOCK", 32)  # bytes: the bad one is in the last of several parts
    folder, tensor = copy_of(tiny_backbone, "odd"), torch.as_tensor(values)
    tensor = torch.cat([torch.zeros(9, dtype=tensor.dtype), tensor]) if tensor.ndim else tensor
    save_file(load_file(folder / "model.safetensors") | {"odd": tensor}, folder / "model.safetensors")
    with pytest.raises(InputError, match="tensor 'odd' holds .*finite and below") if refused else nullcontext():
        check(folder)


def test_what_is_no_text_has_no_vector(tiny_backbone: Path) -> None:
    model = load(tiny_backbone)
    for nothing, why in (
        *((value, "is .*: must be text") for value in (None, float("nan"), 5)),
        ("a \ud83d", "has half a surrogate pair at character 2: .*surrogatepass"),
    ):
        with pytest.raises(InputError, match=rf"texts\[1\] {why}"):
            model.encode(["a dog", nothing])


@pytest.mark.parametrize("static", [False, True])
def test_more_tokens_than_embeddings_are_refused(static: bool, tiny_backbone: Path, tmp_path: Path) -> None:
    model = load(tiny_backbone, device="cpu")
    if static:
        from raysts.models.word_vectors import WordVectors

        rows_VH = model.encoder.backbone.get_input_embeddings().weight.detach()
        model.encoder = Encoder(WordVectors(rows_VH, model.tokenizer.pad_token_id, True), model.encoder.pad_id)
    model.tokenizer.add_tokens(["kangaroo"])
    model.save(tmp_path / "model")
    refused = raysts("evaluate", tmp_path / "model", "--tasks", "stsb", "--storage", tmp_path / "s")
    assert refused.code == 2 and "the token 'kangaroo' with the number" in refused.err
    assert "Traceback" not in refused.err


def test_an_empty_text_without_special_tokens_has_zeros(tiny_backbone: Path) -> None:
    model = load(tiny_backbone, device="cpu")
    model.tokenizer.backend_tokenizer.post_processor = None  # as of many decoders
    found = model.encode(["", "a dog", ""])
    np.testing.assert_array_equal(found[1], model.encode("a dog"))
    assert not found[[0, 2]].any() and not model.encode("").any()


def test_an_inner_namesake_is_another(tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(tiny_backbone, pooling="max")
    model.save(tmp_path / "enc")
    load(tiny_backbone, pooling="cls").save(tmp_path / "enc" / "enc")
    monkeypatch.chdir(tmp_path)
    assert load("enc").pooling == "max"


def test_places_where_no_model_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no config.json"):
        find(tmp_path / "empty")
    for name in (tmp_path / "absent", "./absent", "a/b/c"):
        with pytest.raises(InputError, match="is not there"):
            find(name)
    # As when ``raysts remove`` takes a teacher between the check of a command and its first step.
    with pytest.raises(InputError, match=r"gone' is not there\. It was moved or removed\. Make it again"):
        check(tmp_path / "gone")
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="hub did not give it"):
        find("raysts-tests/absent")


def test_the_tokenizer_id_is_read_once(tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of every point of a search asks for it, and a vocabulary takes a tenth of a second."""
    folder, reads = tmp_path / "model", list[str]()
    load(tiny_backbone, max_length=9, device="cpu").save(folder)
    monkeypatch.setattr(pretrained, "read_json", lambda path: reads.append(path.name) or foreign.read_json(path))
    assert tokenizer_id(folder) == tokenizer_id(folder) == tokenizer_id(tiny_backbone), "lengths do not count"
    assert reads.count("tokenizer.json") <= 2, "one for each folder"
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text.replace('"dog"', '"zebra"'))
    assert tokenizer_id(folder) != tokenizer_id(tiny_backbone)


def test_other_tokenizers_have_ids_of_their_own(tmp_path: Path) -> None:
    """By SentencePiece; and of one vocabulary, cased and uncased."""
    for name, lower in (("one", True), ("two", False)):
        for kind in ("pieces", "words"):
            (tmp_path / kind / name).mkdir(parents=True)
        (tmp_path / "pieces" / name / "sentencepiece.bpe.model").write_bytes(name.encode())
        (tmp_path / "words" / name / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ndog\nDog\n")
        config = {"tokenizer_class": "BertTokenizer", "do_lower_case": lower}
        (tmp_path / "words" / name / "tokenizer_config.json").write_text(json.dumps(config))
    for kind in ("pieces", "words"):
        assert tokenizer_id(tmp_path / kind / "one") != tokenizer_id(tmp_path / kind / "two")

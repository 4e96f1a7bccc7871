"""Models on disk: plain sentence-transformers directories (safetensors), loaded without executing code from them."""

from __future__ import annotations

import copy
import hashlib
import pickle
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from raysts.errors import InputError
from raysts.ids import content_id
from raysts.models import static, vector_files
from raysts.models.encoder import Encoder, PoolingMode
from raysts.models.families import FAMILIES, family_of, without_pooler
from raysts.models.head import Similarity, cosine_of_vectors
from raysts.models.layers import Layers, layer_indices
from raysts.models.modules import POOLING_KEYS, config_of, head_of, save_layers, settings
from raysts.models.sentence_model import SentenceModel
from raysts.storage.atomic import atomic_write, read_json, write_json
from raysts.storage.store import Store

_ST = "sentence_transformers.models."

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "sentencepiece.bpe.model")
_TOKENIZER_RULES = ("tokenizer_class", "do_lower_case", "strip_accents", "tokenize_chinese_chars")

CODE_KEY = "auto_map"
"""Key of config.json and tokenizer_config.json under which transformers finds the code that a directory brings."""


def load(
    model: str | Path,
    *,
    pooling: PoolingMode | None = None,
    layers: Layers | None = None,
    max_length: int | None = None,
    device: str | torch.device | None = None,
    heads: bool = True,
) -> SentenceModel:
    """Load a MODEL.

    A model with heads keeps the pooling and the layers that they were trained on, whatever is asked for.

    Args:
        model: a raysts or sentence-transformers directory, a bare Hugging Face encoder directory, a hub name, or a file of
            word vectors as text.
        pooling: ``mean``, ``cls`` or ``max``; default: what the directory says, ``mean`` for a bare encoder.
        layers: layers to pool; default: what the directory says, 1 for a bare encoder.
        max_length: tokens per text; default: what the directory says.
        device: default: the first GPU if there is one.
        heads: with the heads that the directory holds; otherwise its encoder and pooling alone.

    Raises:
        InputError: nothing is there, or it is not an encoder that raysts knows.
    """
    folder = find(model)
    asked = settings(folder)
    backbone, tokenizer = load_backbone(folder)
    limit = family_of(backbone.config.model_type).most_tokens(backbone.config.to_dict())
    kept = [head_of(kind, path) for kind, path in asked["heads"]] if heads else []
    if kept:
        pooling, layers = asked["pooling"], asked["layers"]
    try:
        encoder = Encoder(
            backbone,
            int(tokenizer.pad_token_id),
            pooling or asked["pooling"],
            asked["layers"] if layers is None else layers,
            kept,
            tokenizer.mask_token_id,
            tuple(tokenizer.all_special_ids),
        )
        layer_indices(encoder.layers, encoder.depth)
        _check_padding(encoder)
    except ValueError as error:
        raise InputError(f"'{model}': {error}") from None
    encoder.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()
    length = min(max_length or asked["max_length"] or tokenizer.model_max_length, limit)
    return SentenceModel(encoder, tokenizer, length, asked["normalize"])


def randomise(encoder: Encoder, seed: int) -> None:
    """Give an encoder the random weights that its family begins with, those of the seed."""
    from transformers import MODEL_MAPPING, AutoModel

    config = copy.deepcopy(encoder.backbone.config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = AutoModel.from_config(config, dtype=torch.float32, **without_pooler(MODEL_MAPPING[type(config)]))
    encoder.backbone.load_state_dict(fresh.state_dict())


def similarities(folder: Path) -> dict[str, Similarity]:
    """The similarities of the model in ``folder``, its own first, without reading its encoder's weights."""
    heads = settings(folder)["heads"]
    return head_of(*heads[-1]).similarities() if heads else {"cosine": cosine_of_vectors}


def dim(folder: Path) -> int:
    """D, the number of dimensions that the model in ``folder`` gives, without reading its encoder's weights."""
    heads = settings(folder)["heads"]
    if heads:
        return head_of(*heads[-1]).dim
    config = config_of(folder / "config.json")
    return int(config[family_of(config["model_type"]).width])


def average(folders: Sequence[Path]) -> SentenceModel:
    """The encoder whose weights are the mean of those in ``folders``, without heads (Wortsman et al. 2022, model soups).

    Summed in float64, one model after the other, and rounded once to float32; what is no floating-point number, and how it
    pools, is that of the first.
    """
    model = load(folders[0], device="cpu", heads=False)
    state = model.encoder.backbone.state_dict()
    sums = {name: value.double() for name, value in state.items() if value.is_floating_point()}
    for folder in folders[1:]:
        other = load(folder, device="cpu", heads=False).encoder.backbone.state_dict()
        for name, total in sums.items():
            total += other[name]
    mean = {name: (total / len(folders)).to(state[name].dtype) for name, total in sums.items()}
    model.encoder.backbone.load_state_dict(state | mean)
    return model


def check(folder: Path) -> dict[str, Any]:
    """The configuration of a model folder, after checking that it can be loaded, without reading its weights.

    Raises:
        InputError: it is no encoder that raysts knows, or its weights, its tokenizer or its modules cannot be used.
    """
    config = config_of(folder / "config.json")
    _refuse_other_types(folder, config.get("model_type") if isinstance(config, dict) else None)
    weights = list(static.input_folder(folder).glob("*.safetensors"))
    if not weights and not list(folder.glob("pytorch_model*.bin")):
        raise InputError(f"backbone '{folder}' holds no weights: expected model.safetensors")
    for path in weights:
        try:
            with safe_open(path, "pt"):
                pass
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path}: not a readable safetensors file ({error}); get the model again") from None
    family = family_of(config["model_type"])
    if missing := [key for key in (family.width, family.depth) if key not in config]:
        raise InputError(f"{folder / 'config.json'}: '{missing[0]}' is missing; get the model again")
    refuse_code(folder)
    tokenizer_id(folder)
    settings(folder)
    assert isinstance(config, dict)
    return config


def refuse_code(folder: Path) -> None:
    """Refuse a directory whose weights or whose configuration ask for code to be run.

    Weights in safetensors hold no code. Pickled ones (``pytorch_model*.bin``), which count where there are no others, may
    hold tensors and nothing else. Code of its own would not be run, but the model would then not be the one meant.

    Raises:
        InputError: naming the file.
    """
    for name in ("config.json", "tokenizer_config.json"):
        try:
            config: Any = read_json(folder / name)
        except ValueError:  # whoever reads it says what is wrong
            continue
        if isinstance(config, dict) and config.get(CODE_KEY):
            raise InputError(
                f"{folder / name}: '{CODE_KEY}' asks for code of the model's own ({config[CODE_KEY]}); raysts runs no code "
                f"from a model directory: give a model of a known family, or load this one with its own library"
            )
    if not list(folder.glob("*.safetensors")):
        for path in sorted(folder.glob("pytorch_model*.bin")):
            try:
                torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
            except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError) as error:
                raise InputError(_unreadable(path, error)) from None


def _unreadable(path: Path, error: Exception) -> str:
    """Why pickled weights are refused, without what the unpickler recommends (to run them)."""
    reason = " ".join(str(error).split())
    start = reason.find("Trying to load")
    shown = reason[start:].partition(". ")[0] if start >= 0 else type(error).__name__
    return (
        f"{path}: pickled weights that hold more than tensors, or are damaged ({shown}); raysts unpickles tensors alone, "
        f"for a pickle can run any code: get the model as model.safetensors from a source that you trust"
    )


@torch.inference_mode()
def _check_padding(encoder: Encoder) -> None:
    """Raise ValueError when an encoder of no listed family gives another value for a text that is padded.

    Some have convolutions or fixed windows that read beyond the mask; a text would be what it is batched with.
    """
    if encoder.config.model_type in (*FAMILIES, static.MODEL_TYPE):
        return
    ids_T = torch.tensor([token for token in range(13) if token != encoder.pad_id][:12])
    (alone_BTH,) = encoder.token_layers(ids_T[None, :4], torch.tensor([4]), (encoder.depth,))
    (beside_BTH,) = encoder.token_layers(ids_T.repeat(2, 1), torch.tensor([4, 12]), (encoder.depth,))
    difference = float((beside_BTH[0, :4] - alone_BTH[0]).abs().max())
    if not difference <= 1e-4 * max(1.0, float(alone_BTH.abs().max())):
        raise ValueError(
            f"an encoder of type '{encoder.config.model_type}' that gives a padded text other vectors than the text alone "
            f"(they differ by up to {difference:.2g}); take one of the families {', '.join(FAMILIES)}"
        )


def _refuse_other_types(folder: Path, model_type: object) -> None:
    try:
        family_of(model_type)
    except ValueError as error:
        raise InputError(f"backbone '{folder}' {error}") from None


def find(model: str | Path) -> Path:
    """The folder of ``model``: itself, of a file of word vectors what is made of it, or a hub name's local snapshot."""
    if not str(model).strip():
        raise InputError("model '': the name is empty; give a run id, a model directory or a Hugging Face name")
    folder = Store.of(Path(model)).get_dir(Path(model)) or Path(model)
    if folder.is_file():
        return vector_files.converted(folder)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise InputError(
                f"'{model}' is not a model directory: it has no config.json; give a Hugging Face or "
                f"sentence-transformers directory, a run id, or a hub name"
            )
        return folder
    if folder.is_absolute() or str(model).startswith(".") or str(model).count("/") > 1:
        raise InputError(f"model '{model}' is not there: it must be a run id, a model directory or a Hugging Face name")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(model), allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model"]))
    except Exception as error:
        raise InputError(
            f"model '{model}' is not there: no such directory, and the Hugging Face hub did not give it "
            f"({type(error).__name__}); give a local directory, or check the name and the network"
        ) from None


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a Hugging Face directory."""
    from transformers import AutoTokenizer

    _tokenizer_files(folder)
    if static.is_static(folder):
        return static.load_tokenizer(folder)
    return AutoTokenizer.from_pretrained(folder)


def tokenizer_id(folder: Path) -> str:
    """Content id of the tokenizer in a model folder: its vocabulary and rules, not its settings for length or padding."""
    files = _tokenizer_files(folder)
    digests = []
    for path in files[:1] if files[0].name == "tokenizer.json" else files:
        if path.name == "tokenizer.json":
            rules = {key: value for key, value in config_of(path).items() if key not in ("truncation", "padding")}
            digests.append((path.name, content_id(rules)))
        else:
            digests.append((path.name, hashlib.sha256(path.read_bytes()).hexdigest()))
    if files[0].name != "tokenizer.json":  # then the rules stand in the settings
        rules = config_of(folder / "tokenizer_config.json") or {}
        digests.append(("rules", content_id({key: rules.get(key) for key in _TOKENIZER_RULES})))
    return content_id(digests)


def _tokenizer_files(folder: Path) -> list[Path]:
    paths = [static.input_folder(Store.of(folder).get_dir(folder) or folder) / name for name in TOKENIZER_FILES]
    found = [path for path in paths if path.is_file()]
    if not found:  # transformers makes up a tokenizer that knows no word
        raise InputError(
            f"'{folder}' holds no tokenizer: expected one of {', '.join(TOKENIZER_FILES)}; save the model's tokenizer there"
        )
    return found


def load_backbone(folder: Path) -> tuple[Any, Any]:
    """(encoder without pooler head in float32, tokenizer) of a Hugging Face directory."""
    import transformers
    from transformers import MODEL_MAPPING, AutoConfig, AutoModel

    transformers.utils.logging.disable_progress_bar()
    verbosity = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    try:
        if static.is_static(folder):
            return static.load(folder)
        refuse_code(folder)
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        _refuse_other_types(folder, config.model_type)
        # Some checkpoints are stored in fp16, and transformers keeps the stored type unless told otherwise.
        backbone, loaded = AutoModel.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below
            **without_pooler(MODEL_MAPPING[type(config)]),
        )
        wrong = sorted([*loaded["missing_keys"], *(key[0] for key in loaded["mismatched_keys"])])
        if wrong:  # transformers draws them at random
            raise InputError(
                f"backbone '{folder}' has no weights of the shape that its config.json asks for: {', '.join(wrong[:3])}"
                f"{f' and {len(wrong) - 3} more' if len(wrong) > 3 else ''}; get the model again"
            )
        backbone.config.output_hidden_states = False
        return backbone, load_tokenizer(folder)
    except InputError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        first_line = str(error).strip().split("\n")[0]
        raise InputError(
            f"backbone '{folder}' cannot be loaded as an encoder with its tokenizer ({first_line}); it must be a "
            f"Hugging Face directory with config.json, safetensors weights and tokenizer files"
        ) from None
    finally:
        transformers.utils.logging.set_verbosity(verbosity)


def save(model: SentenceModel, folder: Path, card: str | None = None) -> None:
    """Write ``model`` as a plain sentence-transformers directory, aside then renamed.

    sentence-transformers loads it: a Transformer module, a WeightedLayerPooling where it is not the last layer that is
    pooled, and a Pooling module, without flags (word vectors: WordEmbeddings and Pooling); heads that it does not have,
    and the tokenizer of word vectors that are pooled by ``max``, bring their code and need ``trust_remote_code=True``.
    """
    encoder = model.encoder
    with atomic_write(folder) as draft:
        draft.mkdir(parents=True)
        indices = layer_indices(encoder.layers, encoder.depth)
        modules = [_save_input(model, draft, indices)]

        def module(kind: str) -> Path:
            modules.append((f"{len(modules)}_{kind.rsplit('.', 1)[-1]}", kind))
            (draft / modules[-1][0]).mkdir()
            return draft / modules[-1][0]

        if indices != (encoder.depth,) and not isinstance(encoder.backbone, static.WordVectors):
            save_layers(module(f"{_ST}WeightedLayerPooling"), encoder.width, indices, encoder.depth)
        pooled = encoder.width
        for head in encoder.heads:
            if head.reads == "tokens":
                head.save(module(head.module))
                pooled = head.dim
        write_json(
            module(f"{_ST}Pooling") / "config.json",
            {"word_embedding_dimension": pooled}
            | {key: encoder.pooling == mode for mode, key in POOLING_KEYS.items()}
            | {"pooling_mode_mean_sqrt_len_tokens": False},
        )
        for head in encoder.heads:
            if head.reads == "pooled":
                head.save(module(head.module))
        if model.normalize:
            module(f"{_ST}Normalize")
        for head in encoder.heads:
            if head.source is not None:
                shutil.copyfile(head.source, draft / f"{head.module.partition('.')[0]}.py")
        write_json(
            draft / "modules.json",
            [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(modules)],
        )
        write_json(draft / "sentence_bert_config.json", {"max_seq_length": model.max_length, "do_lower_case": False})
        write_json(draft / "config_sentence_transformers.json", {"prompts": {}, "similarity_fn_name": "cosine"})
        if card is not None:
            (draft / "README.md").write_text(card, encoding="utf-8")


def _save_input(model: SentenceModel, folder: Path, indices: tuple[int, ...]) -> tuple[str, str]:
    """Write backbone and tokenizer; the first module: (its folder, its type)."""
    backbone, depth = model.encoder.backbone, model.encoder.depth
    if isinstance(backbone, static.WordVectors):
        plain = model.pooling == "mean" and all(head.reads == "pooled" for head in model.encoder.heads)
        static.save(backbone, model.tokenizer, folder, model.max_length, plain)
        return static.FOLDER, f"{_ST}WordEmbeddings"
    config = copy.deepcopy(backbone.config)
    config.output_hidden_states = indices != (depth,)
    config.architectures = [type(backbone).__name__]
    config.save_pretrained(folder)
    weights = {name: value.detach().float().cpu().contiguous() for name, value in backbone.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer = copy.deepcopy(model.tokenizer)
    tokenizer.model_max_length = model.max_length
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:  # it remembers how it was last called: the file would say what the process has done before
        backend.no_truncation()
        backend.no_padding()
    tokenizer.save_pretrained(folder)
    return "", f"{_ST}Transformer"

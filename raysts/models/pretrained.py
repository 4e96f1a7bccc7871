"""Models on disk: sentence-transformers directories, loaded without executing their code."""

from __future__ import annotations

import contextlib
import json
import math
import zipfile
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open

from raysts.errors import InputError, first_line, lacking
from raysts.ids import content_id, file_digest, file_state, guard_content
from raysts.models import static
from raysts.models.families import FAMILIES, class_of, family_of, omit_pooler
from raysts.models.layers import Layers, layer_indices
from raysts.models.modules import MOST_LAYERS, describe, head_of, transformer_settings, whole_number
from raysts.models.precision import Precision, resolve
from raysts.models.tokens import lowers
from raysts.storage.foreign import check_ordinary, read_json
from raysts.storage.store import Store

if TYPE_CHECKING:  # what is asked of a model before anything starts needs no torch, which takes a second to import
    import torch

    from raysts.models.encoder import Encoder
    from raysts.models.sentence_model import SentenceModel

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "sentencepiece.bpe.model")
_TOKENIZER_RULES = ("tokenizer_class", "do_lower_case", "strip_accents", "tokenize_chinese_chars")

HUB_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*_Dense/*.bin", "*_WeightedLayerPooling/*.bin")
"""Files to fetch of a hub model. Weights of the small modules may be pickled tensors, which are unpickled as such."""

FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""Types of numbers in safetensors that may be no number, as numpy reads them."""

HUGE = 1e18
"""Limit of weights: float32 cannot hold the square of larger ones."""

BLOCK = 1 << 24
"""Bytes of weights that are looked at at once."""

INNER = ("intermediate_size", "hidden_dim", "d_ff")
"""Keys of config.json, one of them in each family's, for the width of the inner layers."""

PROCESS = 1.3e9
"""Bytes of a worker that trains next to nothing: Python, torch, Ray and what they prepare (measured: 1.28 to 1.32 GB)."""

ON_CPU = 8
"""Copies of the weights in training on a CPU: weights, gradients, two moments, best, a checkpoint, and two for activations."""

ON_GPU = 3
"""Copies in main memory in training on a GPU: loaded weights, best so far, a checkpoint."""

CODE_KEY = "auto_map"
"""Key of config.json and tokenizer_config.json under which transformers finds the code that a directory brings."""


def load(
    model: str | Path, *, pooling: str | None = None, layers: Layers | None = None, max_length: int | None = None,
    prompt: str | None = None, device: str | torch.device | None = None, heads: bool = True,
    precision: Precision = "fp32", content: str | None = None,
) -> SentenceModel:  # fmt: skip
    """Load a model. Default of most options: what its directory says.

    A model with heads keeps the pooling and the layers that they were trained on. Options do not change them.

    Args:
        model: a raysts or sentence-transformers directory, a bare Hugging Face encoder directory, a hub name, or a file
            of word vectors as text.
        pooling: as in :class:`raysts.models.encoder.Encoder`. Of a bare encoder ``mean``, of a bare decoder ``lasttoken``.
        layers: layers to pool, 1 of a bare encoder.
        max_length: tokens per text.
        prompt: name of a prompt of the directory, or a text, in front of every text. Empty: none.
        device: default: the first GPU, or the CPU without one.
        heads: with the heads of the directory. False: its encoder and pooling alone.
        precision: of embedding. With bf16 the backbone's weights are bf16 too, and the model cannot be saved.
        content: content id that its files must have. None: any.

    Raises:
        RunFailed: its files have another content id, or change while they are read.
        InputError: nothing exists there, it is not an encoder that raysts knows, it has no such prompt, texts would
            have no token, or the precision is unknown.
    """
    import torch

    from raysts.models.encoder import Encoder
    from raysts.models.sentence_model import SentenceModel
    from raysts.models.word_vectors import WordVectors

    if max_length is not None and max_length < 1:
        raise InputError(f"max_length={max_length}: must be at least 1; without it the model's own length counts")
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    computes = resolve(precision, place)
    folder = find(model)
    _check_weights(folder)
    with guard_content(folder, content):
        described = describe(folder)
        prompts = described.prompts.replace_default(prompt)
        backbone, tokenizer = load_backbone(folder)
        loaded_heads = [head_of(kind, path) for kind, path in described.heads] if heads else []
    limit = family_of(backbone.config.model_type).most_tokens(backbone.config.to_dict())
    if loaded_heads:
        pooling, layers = described.pooling, described.layers
    pad_id = next(token for token in (tokenizer.pad_token_id, tokenizer.eos_token_id, 0) if token is not None)
    pooling, layers = pooling or described.pooling, described.layers if layers is None else layers
    skipped = prompts.tokens(tokenizer, prompts.resolve())
    tokens: Any = tokenizer.mask_token_id, tuple(tokenizer.all_special_ids), skipped
    try:
        encoder = Encoder(backbone, pad_id, pooling, layers, loaded_heads, *tokens)
        layer_indices(encoder.layers, encoder.depth)
        _check_padding(encoder)
    except ValueError as error:
        raise InputError(f"'{model}': {error}") from None
    encoder.to(place).eval()
    if computes == "bf16" and not isinstance(backbone, WordVectors):
        backbone.to(torch.bfloat16)
    length = min(max_length or described.max_length or tokenizer.model_max_length, limit)
    return SentenceModel(
        encoder, tokenizer, length, described.normalize, prompts=prompts, truncate_dim=described.truncate_dim,
        similarity_name=described.similarity, precision=precision,
    )  # fmt: skip


def width(folder: Path) -> int:
    """Return H, the dimensions of the token vectors of the model in ``folder``."""
    config = read_json(folder / "config.json")
    return int(config[family_of(config["model_type"]).width])


def check(folder: Path) -> dict[str, Any]:
    """Return the configuration of a model folder, checked without reading its weights.

    Raises:
        InputError: it is not an encoder that raysts knows, or its weights, its tokenizer or its modules cannot be used.
    """
    if not folder.exists():
        raise InputError(
            f"model '{folder}' is not there. It was moved or removed. Make it again, or name another model"
        )
    config = read_json(folder / "config.json") or {}
    _check_config(folder, config)
    _check_weights(folder)
    family = family_of(config["model_type"])
    if missing := [key for key in (family.width, family.depth) if config.get(key) is None]:
        raise InputError(f"{folder / 'config.json'}: '{missing[0]}' is missing; get the model again")
    refuse_code(folder)
    for path in _weights(folder):
        _check_values(path, path.stat().st_mtime_ns)
    tokenizer_id(folder)
    describe(folder)
    return config


def _check_weights(folder: Path) -> None:
    if _weights(folder) or [*folder.glob("pytorch_model*.bin")]:
        return
    if [*folder.glob("model.onnx"), *folder.glob("onnx/model.onnx")]:
        raise InputError(
            f"model '{folder}' is an ONNX graph, which evaluate MODEL, distill and raysts.load alone read. Name the model that "
            f"it was exported from"
        )
    raise InputError(f"backbone '{folder}' holds no weights: expected model.safetensors")


def _weights(folder: Path) -> list[Path]:
    """Return the safetensors files of a model, all regular files."""
    paths = sorted(static.input_folder(folder).glob("*.safetensors"))
    for path in paths:
        check_ordinary(path)
    return paths


def _shapes(folder: Path) -> list[list[int]]:
    """Return the shapes of a model's weights, or nothing for pickled ones."""
    shapes: list[list[int]] = []
    for path in _weights(folder):
        try:
            with safe_open(path, "np") as file:
                shapes += [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118 (no mapping)
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path}: not a readable safetensors file ({error}); get the model again") from None
    return shapes


def weight_bytes(folder: Path) -> int:
    """Return the bytes of a model's weights in float32, of pickled ones as they are stored."""
    if static.is_static(folder) and not static.is_table(folder):
        return 0  # they stay on disk
    pickled = sum(path.stat().st_size for path in folder.glob("pytorch_model*.bin"))
    with contextlib.suppress(InputError):  # a damaged file does not stop an estimate: the loader reports it
        return sum(4 * math.prod(shape) for shape in _shapes(folder)) or pickled
    return pickled


def token_parameters(folder: Path) -> float:
    """Return the number of weights but those of the largest matrix, the embeddings."""
    sizes = [0]
    with contextlib.suppress(InputError):
        sizes += [math.prod(shape) for shape in _shapes(folder)]
    return sum(sizes) - max(sizes) or weight_bytes(folder) / 4


def worker_gigabytes(folder: Path, on_gpu: bool) -> float:
    """Return an estimate of the GB of main memory of a worker that trains the model, to a tenth."""
    return math.ceil((PROCESS + (ON_GPU if on_gpu else ON_CPU) * weight_bytes(folder)) / 1e8) / 10


@cache
def _check_values(path: Path, changed: int) -> None:
    """Raise InputError for weights that are NaN, infinite or huge. ``changed``: when, for the cache."""
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        for name, entry in json.loads(file.read(start - 8)).items():
            kind = FLOATS.get(entry.get("dtype"))
            if kind is None or not entry["shape"]:  # a single number may stand for a mask
                continue
            first, end = entry["data_offsets"]
            file.seek(start + first)
            for part in range(first, end, BLOCK):
                values = np.frombuffer(file.read(min(BLOCK, end - part)), kind)
                if kind == FLOATS["BF16"]:  # numpy has no such numbers: they are the upper halves of float32
                    values = (values.astype("<u4") << 16).view("<f4")
                limit = HUGE if float(np.finfo(values.dtype).max) > HUGE else np.inf
                if not (np.abs(values) < limit).all():
                    bad = float(values[~(np.abs(values) < limit)][0])
                    raise InputError(
                        f"{path}: tensor '{name}' holds {bad:g}; weights must be finite and below {HUGE:g}: take an earlier "
                        f"checkpoint, or get the model again"
                    )


def refuse_code(folder: Path) -> None:
    """Raise InputError if weights or configuration of a directory ask for code to be run.

    Pickled weights, which count without ``model.safetensors``, may hold tensors only. Code in the directory would not be
    run, but the model would then be another one.
    """
    for name in ("config.json", "tokenizer_config.json"):
        if code := (read_json(folder / name) or {}).get(CODE_KEY):
            raise InputError(
                f"{folder / name}: '{CODE_KEY}' asks for code of the model's own ({code}); raysts runs no code from a model "
                f"directory: give a model of a known family, or load this one with its own library"
            )
    if any((folder / f"model.safetensors{end}").is_file() for end in ("", ".index.json")):
        return
    import torch

    for path in sorted(folder.glob("pytorch_model*.bin")):
        check_ordinary(path)
        try:
            torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        except Exception as error:  # an unpickler may raise anything
            _, begin, reason = " ".join(str(error).split()).partition("Trying to load")  # not its advice to run them
            shown = f"{begin}{reason}".partition(". ")[0] or type(error).__name__
            raise InputError(
                f"{path}: pickled weights that hold more than tensors, or are damaged ({shown}); raysts unpickles tensors "
                f"alone, for a pickle can run any code: get the model as model.safetensors from a source that you trust"
            ) from None


def _check_padding(encoder: Encoder) -> None:
    """Raise ValueError if padding changes the vectors of an encoder of no listed family.

    Some have convolutions or fixed windows that read beyond the mask. A text would then depend on its batch.
    """
    if encoder.config.model_type in (*FAMILIES, static.MODEL_TYPE):
        return
    import torch

    ids_T = torch.tensor([token for token in range(13) if token != encoder.pad_id][:12])
    with torch.inference_mode():
        (alone_BTH,) = encoder.token_layers(ids_T[None, :4], torch.tensor([4]), (encoder.depth,))
        (padded_BTH,) = encoder.token_layers(ids_T.repeat(2, 1), torch.tensor([4, 12]), (encoder.depth,))
    difference = float((padded_BTH[0, :4] - alone_BTH[0]).abs().max())
    if not difference <= 1e-4 * max(1.0, float(alone_BTH.abs().max())):
        raise ValueError(
            f"an encoder of type '{encoder.config.model_type}' that gives a padded text other vectors than the text alone "
            f"(they differ by up to {difference:.2g}); take one of the families {', '.join(FAMILIES)}"
        )


def _check_config(folder: Path, config: dict[str, Any]) -> None:
    """Raise InputError for a configuration of no encoder, or with sizes that cannot be built."""
    try:
        family = family_of(config.get("model_type"))
    except (ValueError, TypeError) as error:
        raise InputError(f"backbone '{folder}' {error}") from None
    path = folder / "config.json"
    most = {family.depth: MOST_LAYERS, family.width: 10**6, "num_attention_heads": 10**6, "vocab_size": 10**8}
    for key, limit in most.items():
        whole_number(path, config, key, limit)
    inner = {family.longest: 10**7, "type_vocab_size": 10**4, **dict.fromkeys(INNER, 10**7)}
    for key, limit in inner.items():
        if isinstance(config.get(key), int | float):  # some families have another kind of value, or -1 for none
            whole_number(path, config, key, limit, least=-1)
    sizes = {size for shape in _shapes(folder) for size in shape}
    for key in (family.width, "vocab_size", *INNER) if sizes else ():
        value = config.get(key)
        # The configuration may also have another family's key for the inner layers, which builds nothing.
        if type(value) is int and value not in sizes and (key not in INNER or value > max(sizes)):
            raise InputError(
                f"{path}: {key}={value}, and no weights of backbone '{folder}' have that size; get the model again"
            )


def find(model: str | Path, fetch: bool = True) -> Path:
    """Return the folder of ``model``: a directory, converted word vectors, or a hub snapshot.

    ``fetch``: whether the hub may be asked for a missing snapshot.
    """
    if not str(model).strip():
        raise InputError("model '': the name is empty; give a run id, a model directory or a Hugging Face name")
    folder = Store.of(Path(model)).get_dir(Path(model).absolute()) or Path(model)
    if folder.suffix == ".parquet" and folder.is_file():
        raise InputError(f"model '{model}' is Parquet: vectors of texts, which distill alone reads. Name a model")
    if folder.is_file():
        return static.convert(folder)
    if folder.is_dir() and static.is_foreign_table(folder):
        return static.convert_table(folder)
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
        folder = Path(snapshot_download(str(model), allow_patterns=list(HUB_FILES), local_files_only=not fetch))
    except Exception as error:
        raise InputError(
            f"model '{model}' is not there: no such directory, and the Hugging Face hub did not give it "
            f"({type(error).__name__}); give a local directory, or check the name and the network"
        ) from None
    return static.convert_table(folder) if static.is_foreign_table(folder) else folder


def load_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of a Hugging Face directory.

    Raises:
        InputError: it cannot be loaded, or its longest text has no length.
    """
    from transformers import AutoTokenizer

    _tokenizer_files(folder)
    if static.is_static(folder):
        return static.load_tokenizer(folder)
    with _readable(folder):
        tokenizer = AutoTokenizer.from_pretrained(folder)
    longest = tokenizer.model_max_length
    if not isinstance(longest, int | float) or not longest >= 1:
        raise InputError(
            f"{folder / 'tokenizer_config.json'}: model_max_length={longest!r:.40}; it must be a number of at least 1"
        )
    tokenizer.model_max_length = int(min(longest, 1e30))
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and transformer_settings(folder).get("do_lower_case"):
        lowers(backend, also=True)
    return tokenizer


def tokenizer_id(folder: Path) -> str:
    """Return the content id of a tokenizer's vocabulary and rules, without those for length or padding."""
    files = _tokenizer_files(folder)
    lower_case = bool(transformer_settings(Store.of(folder).get_dir(folder) or folder).get("do_lower_case"))
    if files[0].name == "tokenizer.json":
        return content_id([(files[0].name, _rules_id(files[0], file_state(files[0]), lower_case))])
    digests = [(path.name, file_digest(path).hex()) for path in files]
    rules = read_json(folder / "tokenizer_config.json") or {}  # the settings hold the rules
    digests.append(("rules", content_id({key: rules.get(key) for key in _TOKENIZER_RULES})))
    digests += [("small letters", "")] if lower_case and not rules.get("do_lower_case") else []
    return content_id(digests)


@lru_cache(maxsize=64)
def _rules_id(path: Path, state: tuple[int, ...], lower_case: bool) -> str:
    """Return the content id of a ``tokenizer.json`` in this state, for which every point of a search asks."""
    rules = {key: value for key, value in read_json(path).items() if key not in ("truncation", "padding")}
    if lower_case:
        rules["normalizer"] = _lower_cased(rules.get("normalizer"))
    return content_id(rules)


def _lower_cased(normalizer: Any) -> dict[str, Any]:
    """Return the rules of a normaliser with lower case first, as sentence-transformers."""
    parts = [normalizer] if normalizer else []
    if normalizer is not None and normalizer["type"] == "Sequence":
        parts = normalizer["normalizers"]
    if any(part["type"] == "Lowercase" or part.get("lowercase") for part in parts):
        return dict(normalizer)
    return {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *parts]}


def _tokenizer_files(folder: Path) -> list[Path]:
    paths = [static.input_folder(Store.of(folder).get_dir(folder) or folder) / name for name in TOKENIZER_FILES]
    files = [path for path in paths if path.is_file()]
    if not files:  # transformers would invent a tokenizer without words
        raise InputError(
            f"'{folder}' holds no tokenizer: expected one of {', '.join(TOKENIZER_FILES)}; save the model's tokenizer there"
        )
    return files


@contextlib.contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Load what a model folder holds within the block, silently. Any error of it becomes an InputError."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # foreign files and libraries may raise anything
        if lacking(error):
            raise
        raise InputError(
            f"backbone '{folder}' cannot be loaded as an encoder with its tokenizer ({first_line(error)}); it must be a "
            f"Hugging Face directory with config.json, safetensors weights and tokenizer files"
        ) from None
    finally:
        logging.set_verbosity(verbosity)


def load_backbone(folder: Path) -> tuple[Any, Any]:
    """Return (encoder without pooler head in float32, tokenizer) of a Hugging Face directory."""
    import torch
    from transformers import AutoConfig

    weights = _weights(folder)
    if static.is_static(folder):
        from safetensors.torch import load_file

        from raysts.models.word_vectors import WordVectors

        with _readable(folder):  # the vectors are read when used
            trained, tokenizer = static.is_table(folder), load_tokenizer(folder)
            weight_VH = load_file(weights[0])[static.WEIGHTS[static.input_folder(folder).name]]
            if trained:
                weight_VH = weight_VH.clone()  # the file stays as it is
                _check_vocabulary(folder, tokenizer, len(weight_VH))
            return WordVectors(weight_VH, tokenizer.pad_token_id, trained), tokenizer
    with _readable(folder):
        refuse_code(folder)
        _check_config(folder, read_json(folder / "config.json") or {})
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        kind = class_of(config)
        # Some checkpoints are stored in fp16, and transformers keeps the stored type unless told otherwise.
        options = {"config": config, "dtype": torch.float32, "output_loading_info": True, **omit_pooler(kind)}
        options["ignore_mismatched_sizes"] = True  # they are refused below
        options["disable_mmap"] = True  # a file that is overwritten would end the process, or change the weights
        backbone, loaded = kind.from_pretrained(folder, **options)
        wrong = sorted([*loaded["missing_keys"], *(key[0] for key in loaded["mismatched_keys"])])
        if wrong:  # transformers draws them at random
            rest = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
            begin = f"backbone '{folder}' has no weights of the shape that its config.json asks for"
            raise InputError(f"{begin}: {', '.join(wrong[:3])}{rest}; get the model again")
        backbone.config.output_hidden_states = False
        if config.model_type not in FAMILIES:
            backbone.config.use_cache = False  # decoders would keep values that only the next token needs
        tokenizer = load_tokenizer(folder)
        _check_vocabulary(folder, tokenizer, len(backbone.get_input_embeddings().weight))
        return backbone, tokenizer


def _check_vocabulary(folder: Path, tokenizer: Any, rows: int) -> None:
    """Raise InputError for a tokenizer with a token beyond the ``rows`` of the embeddings."""
    number, token = max(((number, token) for token, number in tokenizer.get_vocab().items()), default=(0, ""))
    if number >= rows:
        raise InputError(
            f"model '{folder}': its tokenizer has the token {token!r:.40} with the number {number:,}, and its embeddings have "
            f"{rows:,} rows. Each token must have one; give the model the tokenizer that it was trained with"
        )

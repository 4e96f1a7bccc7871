"""ONNX: a model as one checked graph from token ids to embeddings, and a graph as an encoder.

Shapes: B texts, T tokens, H hidden, D embedding dimensions.
"""

import copy
import importlib.util
import shutil
import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysts.errors import InputError, RunFailed, first_line
from raysts.models import static
from raysts.models.encoder import pool
from raysts.models.families import omit_pooler
from raysts.models.head import Dense, GaussianHead
from raysts.models.layers import Layers, layer_indices, layer_weights
from raysts.models.modules import Description
from raysts.models.sentence_model import SentenceModel
from raysts.models.word_vectors import WordVectors
from raysts.ops.ensemble import unit
from raysts.storage.atomic import atomic_write, write_json
from raysts.storage.foreign import read_json

TOLERANCE = 1e-4
"""Largest difference between the embeddings of graph and model, relative to their largest number if that is above 1."""

NEEDS = ("onnx", "onnxruntime")
_LONGEST = 64  # tokens of the longest text that the check embeds


class Graph(nn.Module):
    """Model in operations that ONNX has."""

    def __init__(self, model: SentenceModel) -> None:
        super().__init__()
        encoder = model.encoder
        self.backbone = _plain(encoder.backbone)
        self.heads = encoder.heads
        indices = layer_indices(encoder.layers, encoder.depth)
        self.weights = layer_weights(encoder.layers) or [float(i in indices) for i in range(encoder.depth + 1)]
        self.pooling, self.skipped = encoder.pooling, encoder.skipped
        self.normalize, self.dim = model.normalize, model.dim

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return embeddings [B, D] and pooled token vectors [B, T, H], of ids and mask [B, T] int64."""
        output = self.backbone(input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True)
        layers = [(weight, layer) for weight, layer in zip(self.weights, output.hidden_states, strict=True) if weight]
        tokens_BTH = torch.stack([weight * layer for weight, layer in layers]).sum(0) / sum(self.weights)
        mask_BT = attention_mask.bool()
        lengths_B = attention_mask.sum(1)
        vectors_BD = pool(tokens_BTH, mask_BT, lengths_B.clamp(min=1), self.pooling, self.skipped)
        vectors_BD = vectors_BD.masked_fill(lengths_B[:, None] == 0, 0.0)
        for head in self.heads:
            vectors_BD = head(vectors_BD)
        return (F.normalize(vectors_BD, dim=-1) if self.normalize else vectors_BD)[:, : self.dim], tokens_BTH


class GraphEncoder(nn.Module):
    """ONNX graph in the place of an ``Encoder``, for a ``SentenceModel``.

    Its output is ``sentence_embedding`` [B, D], or token vectors [B, T, H], which are then pooled.

    Raises:
        InputError: onnxruntime is not installed, does not load the graph, or raysts cannot use its inputs.
    """

    backbone, heads, depth, is_bf16, has_choice = None, (), 0, False, False
    weight_bytes = 0

    def __init__(self, begin: str, path: Path, described: Description, pad_id: int, skipped: int, on_gpu: bool) -> None:
        super().__init__()
        self.begin, self.described, self.pad_id, self.skipped = begin, described, pad_id, skipped
        self.pooling, self.layers = described.pooling, described.layers
        self.weights = nn.Parameter(torch.empty(0))  # it reads tensors in main memory
        if importlib.util.find_spec("onnxruntime") is None:
            raise InputError(f"{self.begin} is ONNX, and onnxruntime is not installed: pip install 'raysts[onnx]'")
        try:
            self.session = _session(path, on_gpu)
        except Exception as error:  # the runtime may raise anything
            raise InputError(f"{self.begin}: onnxruntime does not load it ({first_line(error)})") from None
        self.inputs = [node.name for node in self.session.get_inputs()]
        self.outputs = [node.name for node in self.session.get_outputs()]
        if unknown := {*self.inputs} - {"input_ids", "attention_mask", "token_type_ids"}:
            raise InputError(f"{self.begin}: its graph reads {', '.join(sorted(unknown))}, which raysts does not give")
        if described.heads and "sentence_embedding" not in self.outputs:
            raise InputError(
                f"{self.begin}: has modules behind its pooling, which are not in the graph; export it as one graph"
            )

    @cached_property
    def dim(self) -> int:
        """D, which a vector of the graph tells."""
        single = torch.ones(1, dtype=torch.int64)
        try:
            return int(self.represent_layers(single[:, None], single, (self.layers,))[0]["vectors"].shape[1])
        except Exception as error:  # a foreign graph may raise anything
            raise InputError(f"{self.begin}: its graph gives no vector of a text ({first_line(error)})") from None

    def represent_layers(
        self, ids_BT: Tensor, lengths_B: Tensor, layers: Sequence[Layers], host_lengths: Any = None
    ) -> list[dict[str, Any]]:
        """Return the representation for its one choice of layers."""
        assert tuple(layers) == (self.layers,), "the graph decides"
        of_tokens, described = [name for name in self.outputs if name != "sentence_embedding"], self.described
        pools_all = not described.prompts.pooled and bool(of_tokens) and not described.heads
        pooled = "sentence_embedding" in self.outputs and not pools_all  # a graph cannot know how long a prompt is
        name = "sentence_embedding" if pooled else of_tokens[0]
        mask_BT = torch.arange(ids_BT.shape[1]) < lengths_B[:, None]
        arrays = {"input_ids": ids_BT, "attention_mask": mask_BT.long(), "token_type_ids": torch.zeros_like(ids_BT)}
        (output,) = self.session.run([name], {name: arrays[name].numpy() for name in self.inputs})
        if output.ndim != (2 if pooled else 3):
            raise ValueError(f"'{name}' has {output.ndim} axes")
        vectors = torch.from_numpy(output.astype(np.float32, copy=False))
        if not pooled:
            vectors = pool(vectors, mask_BT, lengths_B, self.pooling, self.skipped)
        dim = described.truncate_dim
        if described.normalize and not (pooled and vectors.shape[1] == dim):  # truncated after it in the graph
            vectors = torch.from_numpy(unit(vectors.numpy()))
        return [{"vectors": vectors[:, :dim]}]


def _session(path: Path, on_gpu: bool = False) -> Any:
    """Return the session of onnxruntime for a graph."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    on_gpu = on_gpu and "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    providers = ["CUDAExecutionProvider"] * on_gpu + ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(str(path), options, providers)


def _plain(backbone: Any) -> nn.Module:
    """Return the backbone without packed attention and oneDNN's products, which ONNX lacks."""
    if isinstance(backbone, WordVectors):
        return backbone
    config = copy.deepcopy(backbone.config)  # the constructor changes the attention that it names
    plain = type(backbone)._from_config(config, attn_implementation="eager", **omit_pooler(backbone))
    plain.load_state_dict(backbone.state_dict())
    return plain


def check(model: SentenceModel) -> None:
    """Raise InputError if packages are missing, or ``model.onnx`` cannot hold a head."""
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"--format onnx: {' and '.join(missing)} not installed; pip install 'raysts[onnx]'")
    unsupported = [head.module for head in model.encoder.heads if head.module != Dense.module]
    if unsupported:
        raise InputError(
            f"--format onnx: the model has a module '{unsupported[0]}', and model.onnx holds an encoder, its pooling and dense "
            f"layers alone; take --format sentence-transformers, or export the model that the module was fitted on"
        )


def losses(model: SentenceModel) -> list[str]:
    """Return notes on the features of the model that ``model.onnx`` lacks."""
    notes = []
    if isinstance(next(iter(model.encoder.heads[-1:]), None), GaussianHead):
        similarities = ", ".join(name for name in model.similarities if name != "cosine")
        notes.append(
            f"model.onnx gives the mean alone: the variance of each text, and with it the similarity {similarities} and the "
            f"direction of entailment, are in the sentence-transformers format only"
        )
    if prompt := model.prompts.resolve():
        notes.append(f"model.onnx reads token ids: put the model's prompt before every text yourself: {prompt!r}")
    return notes


def save(model: SentenceModel, folder: Path, card: str | None = None) -> None:
    """Write ``model.onnx``, tokenizer and sentence-transformers' files atomically.

    The graph reads ``input_ids`` and ``attention_mask`` [B, T] int64, of any B and T. It returns ``sentence_embedding``
    [B, D] float32 and ``last_hidden_state`` [B, T, H], the token vectors that are pooled, which
    ``SentenceTransformer(folder, backend="onnx")`` pools by the modules beside the graph.

    Raises:
        RunFailed: the graph cannot be made, or returns other embeddings than the model.
    """
    graph, example = Graph(model).eval(), _texts(model, (2, 5))
    names = {0: "batch", 1: "length"}
    axes = {"input_ids": names, "attention_mask": names, "sentence_embedding": {0: "batch"}, "last_hidden_state": names}
    inputs, outputs = [*axes][:2], [*axes][2:]
    with atomic_write(folder) as draft:
        if isinstance(model.encoder.backbone, WordVectors):
            draft.mkdir(parents=True)
            static.save_tokenizer(model.tokenizer.backend_tokenizer, draft)
        else:
            _save_modules(model, draft, card)
        path = draft / "model.onnx"
        options: Any = {"input_names": inputs, "output_names": outputs, "dynamic_axes": axes}
        try:
            with torch.inference_mode(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the result is checked below
                torch.onnx.export(graph, example, str(path), dynamo=False, **options)  # the other one needs onnxscript
            difference = _difference(model, path)
        except Exception as error:  # any error of the exporter and the runtime
            raise RunFailed(f"the model cannot be written as ONNX ({type(error).__name__}: {error})") from error
        if not difference <= TOLERANCE:
            raise RunFailed(
                f"the ONNX graph gives other embeddings than the model (they differ by up to {difference:.2g}, and "
                f"{TOLERANCE:g} is allowed); nothing was written; take --format sentence-transformers"
            )


def _save_modules(model: SentenceModel, draft: Path, card: str | None) -> None:
    """Write the model's directory without weights and choice of layers, which the graph has."""
    model.save(draft, card)
    (draft / "model.safetensors").unlink()
    listed = read_json(draft / "modules.json", list)
    for module in listed:
        if module["type"].endswith("WeightedLayerPooling"):
            shutil.rmtree(draft / module["path"])
    remaining = [module for module in listed if (draft / module["path"]).is_dir()]
    write_json(draft / "modules.json", remaining)
    write_json(draft / "config.json", read_json(draft / "config.json") | {"output_hidden_states": False})


def _difference(model: SentenceModel, path: Path) -> float:
    """Return the largest difference between graph and model, with and without padding."""
    import onnx

    onnx.checker.check_model(str(path))
    session = _session(path)
    worst = 0.0
    for lengths in ((1,), (min(_LONGEST, model.max_length), 1, 3, 7)):
        ids_BT, mask_BT = _texts(model, lengths)
        graph_BD, _ = session.run(None, {"input_ids": ids_BT.numpy(), "attention_mask": mask_BT.numpy()})
        with torch.inference_mode():
            expected_BD = model.encoder(ids_BT, mask_BT.sum(1))
        expected_BD = (F.normalize(expected_BD, dim=-1) if model.normalize else expected_BD)[:, : model.dim]
        scale = max(1.0, float(expected_BD.abs().max()))
        worst = max(worst, float(np.abs(graph_BD - expected_BD.numpy()).max()) / scale)
    return worst


def _texts(model: SentenceModel, lengths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return random token ids of texts of these lengths and their mask -> both [B, T]."""
    pad_id, shape, draw = model.encoder.pad_id, (len(lengths), max(lengths)), torch.Generator().manual_seed(0)
    ids_BT = torch.randint(model.encoder.config.vocab_size - 1, shape, generator=draw)
    mask_BT = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return (ids_BT + (ids_BT >= pad_id)).masked_fill(~mask_BT, pad_id), mask_BT.long()

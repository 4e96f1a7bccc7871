"""Models for users and evaluation: sentences in, representations out, similarity, directory."""

import contextlib
import copy
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from safetensors.torch import save_file

from raysts.cpu.kernels import keep_memory
from raysts.errors import InputError
from raysts.log import console, screen
from raysts.models import static, word_vectors
from raysts.models.encoder import Encoder
from raysts.models.head import similarities_of
from raysts.models.layers import Layers, layer_indices
from raysts.models.modules import pooling_config, save_layers
from raysts.models.packing import to_device
from raysts.models.precision import autocast, resolve
from raysts.models.prompts import Prompts, Side, SideText, Text, check_texts
from raysts.models.tokens import Tokens, lowers, tokenize
from raysts.models.word_vectors import WordVectors
from raysts.ops.ensemble import unit
from raysts.ops.similarity import Similarity
from raysts.storage.atomic import atomic_write, write_json

Representation = dict[str, np.ndarray]
"""Arrays whose first axis is the text; ``vectors`` [N, D] is always there. What differs in length from text to text (the
token Gaussians of a mixture) is an array of arrays."""

TOKEN_BUDGET = {"cpu": 4_096, "cuda": 65_536}
"""Tokens (padding included) that go through the encoder at once when embedding in bulk."""


Precision = Literal["float32", "int8", "uint8", "binary", "ubinary"]
"""Of the numbers that ``encode`` gives, as sentence-transformers names them (what it computes in:
``raysts.models.precision``)."""

_ST = "sentence_transformers.models."


@dataclass(eq=False, repr=False)
class SentenceModel:
    """Encoder with its heads and tokenizer.

    Attributes:
        encoder: an ``Encoder``, or a ``raysts.models.onnx.GraphEncoder``.
        max_length: tokens per text.
        normalize: give vectors of unit length (some sentence-transformers directories ask for it).
        prompts: texts in front of every text.
        truncate_dim: first dimensions of the vectors to give; None: all.
        similarity_name: of vectors, a name in ``raysts.ops.similarity.SIMILARITIES``.
        precision: of its computation, a ``raysts.models.precision.Precision``.
    """

    encoder: Any
    tokenizer: Any
    max_length: int
    normalize: bool = False
    _: KW_ONLY
    prompts: Prompts = field(default_factory=Prompts)
    truncate_dim: int | None = None
    similarity_name: str = "cosine"
    precision: str = "fp32"

    def __repr__(self) -> str:
        """Return size, reach and pooling on one line: the encoder itself prints a page."""
        parameters = sum(parameter.numel() for parameter in self.encoder.parameters())
        return (
            f"SentenceModel({parameters / 1e6:.1f} M parameters, {self.depth} layers, {self.dim} dimensions, "
            f"{self.max_length} tokens, {self.pooling} pooling of layers={self.layers}, {self.similarity_name})"
        )

    @property
    def pooling(self) -> str:
        return self.encoder.pooling

    @property
    def layers(self) -> Layers:
        return self.encoder.layers

    @property
    def depth(self) -> int:
        return self.encoder.depth

    @property
    def similarities(self) -> dict[str, Similarity]:
        """Similarities of its representations by their names in results, its default first."""
        return similarities_of(self.encoder.heads, self.similarity_name)

    @property
    def dim(self) -> int:
        """D, the number of dimensions of a vector."""
        return min(self.encoder.dim, self.truncate_dim or self.encoder.dim)

    def tokenize(self, texts: Sequence[str], prompt: str | None = None) -> Tokens:
        """Return token ids of ``texts`` behind ``prompt``, a name or text (default: the model's)."""
        return tokenize(self.tokenizer, texts, self.max_length, self.prompts.resolve(prompt))

    def encode(
        self, texts: str | Sequence[Text], *, prompt: str | None = None, normalize: bool = False,
        precision: Precision = "float32", batch_size: int | None = None, device: str | torch.device | None = None,
        show_progress: bool = False,
    ) -> np.ndarray:  # fmt: skip
        """Return vectors of ``texts`` -> float32 [N, D], of one text [D].

        On CPUs the process keeps up to 512 MiB of freed memory from then on, which is faster. ``MALLOC_TRIM_THRESHOLD_`` in
        the environment overrides this.

        Args:
            texts: one text, or many.
            prompt: name of one of the model's prompts, or a text. Default: the model's default. Empty: none.
            normalize: give vectors of unit length, also if the model does not.
            precision: ``int8`` and ``uint8`` divide the range of each dimension over these texts into 255 steps.
                ``binary`` and ``ubinary`` keep the signs, eight to a byte [N, D / 8], as int8 or uint8.
            batch_size: texts that pass through the encoder at once. Default: some thousands of tokens.
            device: the model moves there, and stays.
            show_progress: draw a bar on stderr.

        Raises:
            InputError: the prompt is unknown, or a value among the texts is not text.
            ValueError: the precision is unknown, or ``batch_size`` is not positive.
        """
        if precision not in get_args(Precision):
            raise ValueError(f"precision={precision!r} must be one of {', '.join(get_args(Precision))}")
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size={batch_size} must be positive")
        if device is not None:
            self.encoder.to(device)
        listed = [texts] if isinstance(texts, str) else texts
        options: dict[str, Any] = {"batch_size": batch_size}
        bar: Any = contextlib.nullcontext()
        if show_progress:
            from rich.progress import Progress

            bar = Progress(console=console())
            options["progress"] = partial(bar.advance, bar.add_task("encode", total=len(listed)))
        with bar:
            (representation,) = self.represent_layers(listed, (self.layers,), prompt, **options).values()
        vectors = representation["vectors"]
        vectors = quantize(unit(vectors) if normalize else vectors, precision)
        return vectors[0] if isinstance(texts, str) else vectors

    def represent(self, texts: Sequence[Text], prompt: str | None = None) -> Representation:
        return self.represent_layers(texts, (self.layers,), prompt)[self.layers]

    def represent_layers(
        self, texts: Sequence[Text], layers: Sequence[Layers], prompt: str | None = None, **options: Any
    ) -> dict[Layers, Representation]:
        """Return representations for several choices of layers, from one pass over ``texts``.

        A graph, and a model with heads, has one choice. Without a ``prompt``, queries and documents have that of their side.
        """
        check_texts(texts)
        if not self.encoder.has_choice:
            layers = (self.layers,)
        if prompt is None and any(isinstance(text, SideText) for text in texts):
            return self._represent_sides(texts, layers, options)
        for choice in layers if self.encoder.has_choice else ():
            layer_indices(choice, self.encoder.depth)
        plain = [str(text) for text in texts] if any(isinstance(text, SideText) for text in texts) else texts
        tokens = self.tokenize(plain, prompt)  # type: ignore[arg-type]
        if isinstance(self.encoder.backbone, WordVectors):
            self.encoder.backbone.say_unknown(tokens)
        encoder = self.encoder
        if prompt is not None:
            encoder = copy.copy(encoder)  # the same modules
            encoder.skipped = self.prompts.tokens(self.tokenizer, self.prompts.resolve(prompt))
        representations = represent_tokens(encoder, tokens, layers, self.precision, **options)
        return dict(zip(layers, map(self.finish, representations), strict=True))

    def _represent_sides(
        self, texts: Sequence[Text], layers: Sequence[Layers], options: dict[str, Any]
    ) -> dict[Layers, Representation]:
        """Return representations of queries, documents and other texts with their prompts, in order."""
        results: dict[Layers, Representation] = {choice: {} for choice in layers}
        rows_of_side: dict[Side | None, list[int]] = {}
        for row, text in enumerate(texts):
            rows_of_side.setdefault(text.side if isinstance(text, SideText) else None, []).append(row)
        for side, rows in rows_of_side.items():
            prompt = None if side is None else self.prompts.side_prompt(side)
            parts = self.represent_layers([str(texts[row]) for row in rows], layers, prompt, **options)
            for choice, part in parts.items():
                for name, values in part.items():
                    array = results[choice].setdefault(name, np.empty((len(texts), *values.shape[1:]), values.dtype))
                    array[rows] = values
        return results

    def finish(self, representation: Representation) -> Representation:
        """Return an encoder's arrays as the model gives them: of unit length and truncated if set."""
        if self.normalize:
            representation["vectors"] = unit(representation["vectors"])
        full, dim = self.encoder.dim, self.truncate_dim
        return {name: x[:, :dim] if x.shape[1:] == (full,) else x for name, x in representation.items()}

    def similarity(self, a: Representation, b: Representation) -> np.ndarray:
        """Return the model's default similarity of corresponding rows -> float64 [N]."""
        return next(iter(self.similarities.values()))(a, b)

    def save(self, folder: str | Path, card: str | None = None) -> None:
        """Write a sentence-transformers directory, atomically, which loads there without flags.

        Heads that it lacks, and the tokenizer of word vectors that are pooled by ``max``, bring their code and need
        ``trust_remote_code=True``.

        Raises:
            InputError: it was loaded in bf16, or is an ONNX graph.
        """
        encoder = self.encoder
        if encoder.backbone is None:
            raise InputError("this model is an ONNX graph, which has no weights to save: copy its directory")
        if encoder.is_bf16:
            raise InputError(
                "this model was loaded in bf16, which rounds its weights: load it with precision='fp32' to save it"
            )
        with atomic_write(Path(folder)) as draft:
            draft.mkdir(parents=True)
            last = layer_indices(encoder.layers, encoder.depth) == (encoder.depth,)
            modules = [self._save_input(draft, last)]

            def module(kind: str) -> Path:
                modules.append((f"{len(modules)}_{kind.rsplit('.', 1)[-1]}", kind))
                (draft / modules[-1][0]).mkdir()
                return draft / modules[-1][0]

            if not last and not isinstance(encoder.backbone, WordVectors):
                save_layers(module(f"{_ST}WeightedLayerPooling"), encoder.width, encoder.layers, encoder.depth)
            width = encoder.width
            for head in encoder.heads:
                if head.reads == "tokens":
                    head.save(module(head.module))
                    width = head.dim
            if modules[0][0] != static.TABLE:  # which pools by itself
                config = pooling_config(width, encoder.pooling, self.prompts)
                write_json(module(f"{_ST}Pooling") / "config.json", config)
            for head in encoder.heads:
                if head.reads == "pooled":
                    head.save(module(head.module))
            if self.normalize:
                module(f"{_ST}Normalize")
            listed = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(modules)]
            write_json(draft / "modules.json", listed)
            backend = getattr(self.tokenizer, "backend_tokenizer", None)  # some classes forget rules of their file
            lower = backend is not None and lowers(backend)
            write_json(draft / "sentence_bert_config.json", {"max_seq_length": self.max_length, "do_lower_case": lower})
            settings: dict[str, Any] = {"prompts": dict(self.prompts.texts), "similarity_fn_name": self.similarity_name}
            optional = {"default_prompt_name": self.prompts.default, "truncate_dim": self.truncate_dim}
            settings |= {name: value for name, value in optional.items() if value is not None}
            write_json(draft / "config_sentence_transformers.json", settings)
            if card is not None:
                (draft / "README.md").write_text(card, encoding="utf-8")

    def _save_input(self, folder: Path, last_layer: bool) -> tuple[str, str]:
        """Write backbone and tokenizer, and return the first module: (its folder, its type)."""
        backbone = self.encoder.backbone
        if isinstance(backbone, WordVectors):
            plain = self.pooling == "mean" and all(head.reads == "pooled" for head in self.encoder.heads)
            place, kind = word_vectors.save(backbone, self.tokenizer, folder, self.max_length, plain)
            return place, f"{_ST}{kind}"
        config = copy.deepcopy(backbone.config)
        config.output_hidden_states = not last_layer
        config.architectures = [type(backbone).__name__]
        config.save_pretrained(folder)
        tied = backbone._tied_weights_keys or ()  # stored once, and tied again when loaded
        state = {name: value.detach() for name, value in backbone.state_dict().items() if name not in tied}
        weights = {name: value.float().cpu().contiguous() for name, value in state.items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        tokenizer = copy.deepcopy(self.tokenizer)
        tokenizer.model_max_length = self.max_length
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is not None:
            # It remembers its last call, which must not reach the file.
            backend.no_truncation()
            backend.no_padding()
        tokenizer.save_pretrained(folder)
        return "", f"{_ST}Transformer"


def quantize(vectors_ND: np.ndarray, precision: Precision, ranges_2D: np.ndarray | None = None) -> np.ndarray:
    """Return vectors in a smaller type, bit for bit as sentence-transformers makes them.

    See its ``quantize_embeddings``. ``ranges_2D``: smallest and largest numbers of the 8-bit types, by default of these
    vectors.
    """
    if precision == "float32":
        return vectors_ND
    if precision in ("binary", "ubinary"):
        bits = np.packbits(vectors_ND > 0, axis=-1)
        return bits if precision == "ubinary" else (bits - 128).astype(np.int8)
    if not len(vectors_ND):
        return vectors_ND.astype(precision)
    lowest_D, highest_D = (vectors_ND.min(0), vectors_ND.max(0)) if ranges_2D is None else ranges_2D
    steps_D = (highest_D - lowest_D) / 255
    levels_ND = np.clip(np.floor((vectors_ND - lowest_D) / np.where(steps_D == 0, 1, steps_D)), 0, 255)
    return levels_ND.astype(np.uint8) if precision == "uint8" else (levels_ND - 128).astype(np.int8)


def represent_tokens(
    encoder: Encoder, tokens: Tokens, layers: Sequence[Layers], precision: str = "fp32",
    progress: Callable[[int], None] | None = None, batch_size: int | None = None,
) -> list[Representation]:  # fmt: skip
    """Return float32 representations of ``tokens`` for each choice of layers, without gradients.

    Texts of similar length pass through the encoder together, and rows come in the order of ``tokens``. A row depends on its
    batch only by floating-point rounding. Vectors of a text without tokens are zero.
    """
    device = next(encoder.parameters()).device
    computes = resolve(precision, device)
    if device.type == "cpu":
        keep_memory()
    results = [{"vectors": np.zeros((len(tokens), encoder.dim), np.float32)} for _ in layers]
    lengths, training = tokens.lengths, encoder.training
    computed: list[tuple[np.ndarray, list[Any]]] = []

    def fetch() -> None:
        rows, parts = computed.pop(0)
        for result, part in zip(results, parts, strict=True):
            for name, values in part.items():
                if isinstance(values, list):  # of one shape they would become an array of numbers
                    array = np.empty(len(values), dtype=object)
                    for number, row in enumerate(values):
                        array[number] = row.float().cpu().numpy()
                else:
                    array = values.float().cpu().numpy()
                if name not in result:
                    result[name] = np.zeros((len(tokens), *array.shape[1:]), array.dtype)
                result[name][rows] = array
        screen.embed(len(rows))
        if progress is not None:
            progress(len(rows))

    encoder.eval()
    try:
        with torch.inference_mode(), autocast(device, "fp32" if encoder.is_bf16 else computes):
            for rows in tokens.batches(TOKEN_BUDGET.get(device.type, 65_536), batch_size):
                if not len(rows := rows[lengths[rows] > 0]):  # the shortest are last
                    break
                ids, part_lengths = tokens.take(rows).pad(encoder.pad_id)
                batch = to_device({"ids": ids, "ids_length": part_lengths}, device)
                parts = encoder.represent_layers(batch["ids"], batch["ids_length"], layers, lengths[rows])
                computed.append((rows, parts))
                if len(computed) > 1:  # read while a GPU is at work on the next
                    fetch()
            if computed:
                fetch()
    finally:
        encoder.train(training)
    return results

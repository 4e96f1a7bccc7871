"""ONNX graphs that embed: a directory with ``model.onnx`` and a tokenizer.

Shapes: N texts, B of them at once, T tokens, H hidden, D dimensions.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from raysts.errors import InputError
from raysts.models.embedder import Embedder
from raysts.models.layers import Layers
from raysts.models.precision import check_finite
from raysts.models.prompts import Text
from raysts.models.tokens import Tokens, tokenize
from raysts.ops.ensemble import unit

if TYPE_CHECKING:
    import torch

    from raysts.models.sentence_model import Representation

LONGEST = 512
"""Tokens of a text if the tokenizer does not say how many the model reads."""


def graph_of(folder: Path) -> Path | None:
    """Return the ONNX graph of a directory, or None."""
    places = (folder / "model.onnx", folder / "onnx" / "model.onnx")
    return next((place for place in places if place.is_file()), None)


class OnnxModel(Embedder):
    """ONNX graph that embeds.

    Its output is ``sentence_embedding`` [B, D], or token vectors [B, T, H] that are pooled as the directory configures.
    """

    kind = "onnx"

    @property
    def pooling(self) -> str:
        """Pooling that the directory configures."""
        return self.description.pooling

    @property
    def layers(self) -> Layers:
        """Layers that the directory configures."""
        return self.description.layers

    def represent(self, texts: Sequence[Text]) -> Representation:
        """Return the vectors of texts by name, as evaluations take them."""
        return {"vectors": self.vectors(self.tokenize([str(text) for text in texts]))}

    def encode(self, texts: str | Sequence[str]) -> np.ndarray:
        """Return the vectors of texts, float32 [N, D], or of one text, float32 [D]."""
        return self.represent([texts])["vectors"][0] if isinstance(texts, str) else self.represent(texts)["vectors"]

    @property
    def dim(self) -> int:
        try:
            (width,) = self.vectors(self.tokenize(["a"]))[0].shape
        except InputError:
            raise
        except Exception as error:  # a foreign graph may raise anything
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(f"model '{self.path}': its graph gives no vector of a text ({reason})") from None
        return int(width)

    @property
    def weight_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.path.rglob("*.onnx"))

    @cached_property
    def session(self) -> Any:
        """Session of onnxruntime.

        Raises:
            InputError: onnxruntime is not installed, does not load the graph, or raysts cannot use its inputs.
        """
        if importlib.util.find_spec("onnxruntime") is None:
            raise InputError(
                f"model '{self.path}' is ONNX, and onnxruntime is not installed: pip install 'raysts[onnx]'"
            )
        import onnxruntime
        import torch

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        preferred = ["CUDAExecutionProvider"] if self.device == "cuda" else []
        providers = [name for name in preferred if name in onnxruntime.get_available_providers()]
        try:
            session = onnxruntime.InferenceSession(
                str(graph_of(self.path)), options, [*providers, "CPUExecutionProvider"]
            )
        except Exception as error:  # the runtime may raise anything
            raise InputError(
                f"model '{self.path}': onnxruntime does not load it ({str(error).splitlines()[0]})"
            ) from None
        if unknown := {node.name for node in session.get_inputs()} - {"input_ids", "attention_mask", "token_type_ids"}:
            raise InputError(
                f"model '{self.path}': its graph reads {', '.join(sorted(unknown))}, which raysts does not give"
            )
        if self.description.heads and "sentence_embedding" not in {node.name for node in session.get_outputs()}:
            raise InputError(
                f"model '{self.path}': has modules behind its pooling, which are not in the graph; export it as one graph"
            )
        return session

    def check(self) -> None:
        self.prompt, self.tokenizer, self.session  # noqa: B018 (reads them)

    @property
    def max_length(self) -> int:
        longest = super().max_length
        return longest if longest < 10**6 else LONGEST

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        return tokenize(self.tokenizer, texts, self.max_length, self.prompt)

    def vectors(self, tokens: Tokens) -> np.ndarray:
        from raysts.models.sentence_model import TOKEN_BUDGET

        batches = list(tokens.batches(TOKEN_BUDGET["cpu"]))
        if not batches:  # the width is known from an output alone
            return self.vectors(self.tokenize(["a"]))[:0]
        parts = [self._batch(*tokens.take(rows).pad(self.tokenizer.pad_token_id or 0)) for rows in batches]
        return check_finite(np.concatenate(parts)[np.argsort(np.concatenate(batches))], f"model '{self.path}'")

    def _batch(self, ids_BT: torch.Tensor, lengths_B: torch.Tensor) -> np.ndarray:
        import torch

        from raysts.models.encoder import pool

        outputs = [node.name for node in self.session.get_outputs()]
        pooled = "sentence_embedding" in outputs
        name = "sentence_embedding" if pooled else outputs[0]
        mask_BT = torch.arange(ids_BT.shape[1]) < lengths_B[:, None]
        arrays = {"input_ids": ids_BT, "attention_mask": mask_BT.long(), "token_type_ids": torch.zeros_like(ids_BT)}
        feeds = {node.name: arrays[node.name].numpy() for node in self.session.get_inputs()}
        (output,) = self.session.run([name], feeds)
        if output.ndim != (2 if pooled else 3):
            raise ValueError(f"'{name}' has {output.ndim} axes")
        if not pooled:
            tokens_BTH = torch.from_numpy(output.astype(np.float32, copy=False))
            output = pool(tokens_BTH, mask_BT, lengths_B, self.description.pooling).numpy()
        if self.description.normalize:
            output = unit(output)
        return output[:, : self.description.truncate_dim].astype(np.float32, copy=False)  # type: ignore[no-any-return]

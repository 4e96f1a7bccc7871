"""Estimates of the main memory of a worker."""

import math
from contextlib import suppress
from pathlib import Path

PROCESS = 1.3e9
"""Bytes of a worker that trains next to nothing: Python, torch, Ray and what they prepare (measured: 1.28 to 1.32 GB)."""

ON_CPU = 8
"""Copies of the weights in training on a CPU: weights, gradients, two moments, best, a checkpoint, and two for activations."""

ON_GPU = 3
"""Copies in main memory in training on a GPU: loaded weights, best so far, a checkpoint."""


def weights(model: Path) -> int:
    """Return the bytes of a model's weights in float32, of pickled ones as they are stored."""
    from safetensors import SafetensorError, safe_open

    total = 0
    for path in model.glob("*.safetensors"):
        # A damaged file does not stop an estimate: the loader reports it or makes it again.
        with suppress(SafetensorError, OSError), safe_open(path, "numpy") as file:
            shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118 (no mapping)
            total += sum(4 * math.prod(shape) for shape in shapes)
    return total or sum(path.stat().st_size for path in model.glob("pytorch_model*.bin"))


def worker_gigabytes(model: Path, on_gpu: bool) -> float:
    """Return the GB of main memory of a worker that trains the model, to a tenth."""
    copies = ON_GPU if on_gpu else ON_CPU
    return math.ceil((PROCESS + copies * weights(model)) / 1e8) / 10

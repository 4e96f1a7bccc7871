"""Estimates of the main memory of a worker."""

import math
from contextlib import suppress
from pathlib import Path

PROCESS = 1.3e9
"""Bytes of a worker that trains next to nothing: Python, torch, Ray and what they prepare (measured: 1.28 to 1.32 GB)."""

ON_CPU = 8
"""Copies of the weights that training takes on a CPU: themselves, gradients, two moments, the best so far, a checkpoint that
is written; and as much again as two of them for activations."""

ON_GPU = 3
"""Copies that pass through main memory where training is on a GPU: as they are loaded, the best so far, a checkpoint."""


def weights(model: Path) -> int:
    """Return the bytes of a model's weights in float32, of pickled ones as they are stored."""
    from safetensors import SafetensorError, safe_open

    total = 0
    for path in model.glob("*.safetensors"):
        # A file that is damaged is no matter of an estimate: whoever loads it says so, or makes it again.
        with suppress(SafetensorError, OSError), safe_open(path, "numpy") as file:
            shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118 (no mapping)
            total += sum(4 * math.prod(shape) for shape in shapes)
    return total or sum(path.stat().st_size for path in model.glob("pytorch_model*.bin"))


def worker_gigabytes(model: Path, on_gpu: bool) -> float:
    """Return the GB of main memory of a worker that trains the model, to a tenth."""
    copies = ON_GPU if on_gpu else ON_CPU
    return math.ceil((PROCESS + copies * weights(model)) / 1e8) / 10

"""``native.cpp``: kernels that torch does not have on CPUs, compiled at the first call."""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from raysts.storage.atomic import atomic_write, cache_folder

logger = logging.getLogger("raysts")

SOURCE = Path(__file__).with_name("native.cpp")
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-w")

NAMES = {torch.float32: "f32", torch.bfloat16: "bf16"}
COST = "a training step on CPUs takes up to 1.8 times as long, and gives other last digits"
REMEDY = (
    "Install g++ (CXX names another compiler), and have room in the temporary folder (TMPDIR) and a cache from which programs "
    "may run (XDG_CACHE_HOME, else ~/.cache)"
)
LANES = 16
"""Values that are computed at once. Widths must be multiples of it."""


@cache
def library() -> Any | None:
    """Return the compiled ``native.cpp`` from the cache, or None with a warning if it fails.

    ``$CXX`` names the compiler, by default ``g++``.
    """
    try:
        return ctypes.CDLL(str(_compile()))
    except (OSError, subprocess.CalledProcessError) as error:
        logger.warning(f"layers are not compiled here ({error}): {COST}. {REMEDY}")
        return None


def _compile() -> Path:
    compiler = shutil.which(name := os.environ.get("CXX", "g++"))
    if sys.platform != "linux" or compiler is None:
        raise OSError(f"no compiler '{name}' for {sys.platform}")
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line for line in cpuinfo if line.startswith(("flags", "Features"))), "")
    sources = (SOURCE.read_text(), FLAGS, os.path.realpath(compiler), platform.machine(), platform.libc_ver(), flags)
    path = cache_folder() / f"native-{hashlib.sha256(repr(sources).encode()).hexdigest()[:16]}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory() as folder, atomic_write(path) as linked:
            compiled = f"{folder}/native.o"
            subprocess.run([compiler, *FLAGS, "-c", str(SOURCE), "-o", compiled], check=True, capture_output=True)
            # Do not link OpenMP: the threads are torch's. (clang's OpenMP is another one, and its objects do not load.)
            subprocess.run([compiler, "-shared", compiled, "-o", str(linked)], check=True, capture_output=True)
    return path


def can(x: Tensor) -> bool:
    """Return True if the library exists and reads rows of this width and type."""
    return x.dtype in NAMES and x.shape[-1] % LANES == 0 and library() is not None


def call(name: str, dtypes: Any, *args: Any) -> None:
    """Call a function of the library, with the number of threads as last argument.

    Args:
        name: of the function.
        dtypes: types that its name ends in: one, several, or None.
        args: contiguous tensors (None: a null pointer), whole numbers of 32 bits, floats, or what ctypes takes.
    """
    if not isinstance(dtypes, tuple):
        dtypes = () if dtypes is None else (dtypes,)
    for dtype in dtypes:
        name += f"_{NAMES[dtype]}"
    getattr(library(), name)(*map(_to_ctypes, args), torch.get_num_threads())


def _to_ctypes(value: Any) -> Any:
    if isinstance(value, Tensor):
        assert value.is_contiguous() and value.device.type == "cpu"
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value, float):
        return ctypes.c_float(value)
    return ctypes.c_uint32(value) if isinstance(value, int) else value

"""Arrays that a distillation holds: the map of the teachers' vectors to the target, and the bank."""

import numpy as np

from raysts.data.windows import Windows
from raysts.errors import RunFailed
from raysts.ids import derive_seed
from raysts.recipes.catalog import BANK_TEXTS, DistillationSettings
from raysts.storage.store import Store
from raysts.training.job import Job


def held_arrays(job: Job, windows: Windows) -> dict[str, np.ndarray]:
    """Return the arrays that the objective of a run holds, none without teachers."""
    settings, arrays = job.recipe.settings, dict[str, np.ndarray]()
    if job.to_target is not None:
        if Store.of(job.to_target).get(job.to_target) is None:
            raise RunFailed(
                f"{job.to_target}: is not there, or was damaged; run the same command again: it is made again"
            )
        arrays["to_target"] = np.load(job.to_target)
    if isinstance(settings, DistillationSettings) and settings.bank:
        stride = 1 + job.recipe.data.spans  # of a text and its spans, the text comes first
        arrays["bank_rows"] = rows = stride * bank_texts(windows.rows // stride, derive_seed(job.seed, "bank"))
        arrays["bank"] = windows.teacher_vectors(rows)
    return arrays


def bank_texts(texts: int, seed: int) -> np.ndarray:
    """Return the numbers of a bank's texts, ascending: all, or ``BANK_TEXTS`` of them."""
    if texts <= BANK_TEXTS:
        return np.arange(texts)
    return np.sort(np.random.default_rng(seed).choice(texts, BANK_TEXTS, replace=False))

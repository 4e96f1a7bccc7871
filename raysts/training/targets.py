"""What a distillation holds beside its batches: the map of the teachers' vectors, and the bank of texts."""

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
        arrays["bank_rows"] = rows = bank_rows(windows.rows, derive_seed(job.seed, "bank"))
        arrays["bank"] = windows.teacher_vectors(rows)
    return arrays


def bank_rows(texts: int, seed: int) -> np.ndarray:
    """Return the rows of a bank, ascending: all texts, or ``BANK_TEXTS`` of them."""
    if texts <= BANK_TEXTS:
        return np.arange(texts)
    return np.sort(np.random.default_rng(seed).choice(texts, BANK_TEXTS, replace=False))

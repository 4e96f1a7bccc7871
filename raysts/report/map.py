"""Map of texts: the same texts as the ensemble and as the student place them, each in two dimensions.

Shapes: N texts, D dimensions, K nearest texts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from raysts.evaluation.agreement import NEAREST
from raysts.report import html
from raysts.storage.store import Store

FEWEST, SIDE, EDGE = 3 * NEAREST, 460, 14
"""Texts that a map needs (among fewer the nearest are kept by chance), pixels of a panel, and of its empty edge."""


@dataclass(frozen=True)
class TextMap:
    """Texts and their unit vectors by role [N, D]: of the ensemble that taught, and of the student."""

    texts: list[str]
    vectors: Mapping[str, np.ndarray]

    @classmethod
    def read(cls, store: Store, files: Mapping[str, str]) -> "TextMap | None":
        """Return the map of the vectors that a run has kept, or None without those of both roles."""
        tables = {role: pq.read_table(file) for role, path in files.items() if (file := store.get(path))}
        if len(tables) < 2 or len(tables["student"]) < FEWEST:
            return None
        vectors = {role: np.array(table["vector"].to_pylist(), np.float32) for role, table in tables.items()}
        unit = {
            role: rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
            for role, rows in vectors.items()
        }
        return cls(tables["student"]["text"].to_pylist(), unit)

    @cached_property
    def nearest(self) -> dict[str, np.ndarray]:
        """Return by role the K texts that are nearest to each text [N, K], nearest first."""
        cosines = {role: vectors @ vectors.T - 3 * np.eye(len(vectors)) for role, vectors in self.vectors.items()}
        return {role: (-cosines_NN).argsort(axis=1)[:, :NEAREST] for role, cosines_NN in cosines.items()}

    @cached_property
    def overlap(self) -> list[int]:
        """Return for each text how many of its nearest by the ensemble are its nearest by the student."""
        pairs = zip(*map(np.ndarray.tolist, self.nearest.values()), strict=True)
        return [len({*by_teacher} & {*by_student}) for by_teacher, by_student in pairs]

    @cached_property
    def places(self) -> dict[str, np.ndarray]:
        """Return by role where the texts stand [N, 2], in pixels, on the first two principal components.

        The student's are turned towards the ensemble's, because their directions have no meaning.
        """
        places = dict[str, np.ndarray]()
        for role, vectors in self.vectors.items():
            left, scales, _ = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)
            flat_N2 = left[:, :2] * scales[:2]
            first, _, second = np.linalg.svd(flat_N2.T @ next(iter(places.values()), flat_N2))
            flat_N2 = flat_N2 @ first @ second
            middle, reach = (flat_N2.max(axis=0) + flat_N2.min(axis=0)) / 2, np.ptp(flat_N2, axis=0).max()
            places[role] = SIDE / 2 + (SIDE - 2 * EDGE) * (flat_N2 - middle) / max(reach, 1e-9)
        return places


def write_map(data: TextMap, title: str, teacher: str, folder: Path) -> Path:
    """Write the page of the map into ``folder``, and return its path."""
    chance = NEAREST**2 / (len(data.texts) - 1)
    page = html.render("map.html", data=data, title=title, teacher=teacher, most=NEAREST, side=SIDE, chance=chance)
    return html.write_page(page, folder, "map.html")

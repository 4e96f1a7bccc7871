from __future__ import annotations

import numpy as np
import pytest
import scipy.spatial.distance

from raysts.ops.similarity import cosine


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_cosine_against_scipy(dtype: type) -> None:
    generator = np.random.default_rng(1)
    a, b = generator.normal(size=(50, 9)).astype(dtype), generator.normal(size=(50, 9)).astype(dtype)
    expected = [
        1 - scipy.spatial.distance.cosine(u, v) for u, v in zip(a.astype(np.float64), b.astype(np.float64), strict=True)
    ]
    found = cosine(a, b)
    assert found.dtype == np.float64 and found.shape == (50,)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_properties() -> None:
    generator = np.random.default_rng(2)
    a, b = generator.normal(size=(20, 5)), generator.normal(size=(20, 5))
    np.testing.assert_allclose(cosine(a, b), cosine(b, a))
    np.testing.assert_allclose(cosine(3 * a, 0.01 * b), cosine(a, b))
    np.testing.assert_allclose(cosine(a, a), 1.0)
    np.testing.assert_allclose(cosine(a, -a), -1.0)
    assert np.abs(cosine(a, b)).max() <= 1 + 1e-12


def test_zero_rows_have_similarity_zero() -> None:
    a = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]], np.float32)
    b = np.array([[1.0, 2.0], [0.0, 0.0], [0.0, 0.0]], np.float32)
    assert cosine(a, b).tolist() == [0.0, 0.0, 0.0]


def test_float32_vectors_of_any_length_do_not_overflow_or_vanish() -> None:
    a = np.array([[1e-30, 1e-30], [1e30, 1e30]], np.float32)
    b = np.array([[1e-30, 0.0], [1e30, 0.0]], np.float32)
    np.testing.assert_allclose(cosine(a, b), np.sqrt(0.5), rtol=1e-6)


def test_no_rows() -> None:
    assert cosine(np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32)).shape == (0,)

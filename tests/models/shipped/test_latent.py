from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import softmax
from small_runs import tiny_encoder

from raysts.models.encoder import Encoder
from raysts.models.head import CategoricalHead, LatentHead, NormalHead, PointHead
from raysts.models.shipped.latent import Categorical, Normal, Point
from raysts.ops.similarity import cosine, jensen_shannon, l2_mixture

LENGTHS = [5, 9, 2, 5]


def head(kind: str, width: int, layers: int = 1) -> LatentHead:
    """Weights of such a size that the distributions are neither flat nor one-hot."""
    torch.manual_seed(3)
    made: dict[str, LatentHead] = {
        "categorical": CategoricalHead(Categorical(width, 4, 5, 0.3, layers, 11)),
        "single": CategoricalHead(Categorical(width, 1, 7, 0.5, layers, 11)),
        "normal": NormalHead(Normal(width, 6, layers, 11)),
        "point": PointHead(Point(width, 6, layers, 11)),
    }
    return made[kind].eval()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, 50, (len(LENGTHS), max(LENGTHS)), generator=generator), torch.tensor(LENGTHS)


def by_hand(found: LatentHead, u_NH: np.ndarray) -> np.ndarray:
    """The MLP in numpy, float64."""
    x = u_NH.astype(np.float64)
    linears = [part for part in found.shipped.encoder if isinstance(part, torch.nn.Linear)]
    for i, part in enumerate(linears):
        weight, bias = (p.detach().double().numpy() for p in (part.weight, part.bias))
        x = (np.maximum(x, 0) if i else x) @ weight.T + bias
    return x


def alone(encoder: Encoder) -> list[np.ndarray]:
    """Token vectors of every text of the batch, each text by itself."""
    ids, lengths = batch()
    with torch.no_grad():
        return [encoder.tokens(ids[i : i + 1, :n], lengths[i : i + 1])[0].numpy() for i, n in enumerate(LENGTHS)]


@pytest.mark.parametrize(("kind", "layers"), [("categorical", 1), ("categorical", 3), ("single", 2)])
def test_a_text_is_the_mean_of_its_tokens_probabilities(kind: str, layers: int) -> None:
    """At the head's temperature, without noise, over the real tokens alone, of the encoder's layer."""
    base = tiny_encoder(layers="only-1")  # type: ignore[arg-type]
    found = head(kind, base.width, layers)
    vectors = base.followed_by(found)(*batch()).detach().numpy()
    for row, u_TH in enumerate(alone(base)):
        logits = by_hand(found, u_TH).reshape(len(u_TH), found.shipped.variables, found.shipped.classes)
        expected = softmax(logits / found.shipped.tau, axis=-1).mean(0)
        np.testing.assert_allclose(vectors[row], expected.ravel(), rtol=0, atol=1e-6)


def test_the_tokens_gaussians_stay_apart() -> None:
    base = tiny_encoder()
    found = head("normal", base.width, 2)
    with torch.no_grad():
        representation = base.followed_by(found).represent(*batch(), np.array(LENGTHS))
    for row, u_TH in enumerate(alone(base)):
        mu, log_var = np.split(by_hand(found, u_TH), 2, axis=1)
        np.testing.assert_allclose(representation["mu"][row], mu, atol=1e-6)
        np.testing.assert_allclose(representation["log_var"][row], log_var, atol=1e-6)
        np.testing.assert_allclose(representation["vectors"][row], mu.mean(0), atol=1e-6)


def test_similarities_by_name() -> None:
    """What the names stand for; the first is the model's own."""
    generator = np.random.default_rng(0)
    a, b = ({"vectors": softmax(generator.normal(size=(3, 4, 5)), axis=-1).reshape(3, 20)} for _ in range(2))
    found = head("categorical", 8).similarities()
    assert list(found) == ["cosine", "js", "l2"]
    x, y = a["vectors"], b["vectors"]
    np.testing.assert_array_equal(found["cosine"](a, b), cosine(x, y))
    np.testing.assert_array_equal(found["l2"](a, b), -np.linalg.norm((x - y).astype(np.float64), axis=1))
    np.testing.assert_array_equal(found["js"](a, b), jensen_shannon(x.reshape(3, 4, 5), y.reshape(3, 4, 5)))
    for side in (a, b):
        side["mu"], side["log_var"] = generator.normal(size=(2, 3, 4, 6))
    found = head("normal", 8).similarities()
    assert list(found) == ["l2_mixture", "l2_mean"]
    np.testing.assert_array_equal(found["l2_mean"](a, b), -np.linalg.norm((x - y).astype(np.float64), axis=1))
    expected = l2_mixture(a["mu"], a["log_var"], b["mu"], b["log_var"])
    np.testing.assert_array_equal(found["l2_mixture"](a, b), expected)
    assert list(head("point", 8).similarities()) == ["cosine"]


@pytest.mark.parametrize("kind", ["categorical", "normal"])
def test_autocast_leaves_the_mlp_in_its_precision(kind: str) -> None:
    found = head(kind, 8, 2)
    u_NH = torch.randn(10, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = found(u_NH)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(found(u_NH), expected)
        np.testing.assert_allclose(found.double()(u_NH.double()), expected, atol=1e-6)

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from scipy.special import logsumexp, softmax
from small_runs import share_of, tiny_encoder

from raysts.models.head import Dense
from raysts.models.tokens import Tokens
from raysts.objectives.latte_mix import Autoencoder, LatentObjective, LatteMix, NormalVAE
from raysts.objectives.objective import Batch
from raysts.ops.variational import gumbel, kl_to_uniform
from raysts.recipes.catalog import AutoencoderSettings, LatteMixSettings, NormalVAESettings

TEXTS = [[7, 8, 9], [11], [12, 13, 14, 15, 16, 17], [18, 19]]
KINDS: dict[type, type[LatentObjective]] = {
    LatteMixSettings: LatteMix, NormalVAESettings: NormalVAE, AutoencoderSettings: Autoencoder,
}  # fmt: skip
SETTINGS: list[AutoencoderSettings] = [
    LatteMixSettings(dims=3, classes=5, beta_warmup_fraction=0.5),
    LatteMixSettings(dims=3, classes=5, encoder_layers=2, hidden=11, free_bits=0.1, free_bits_of="per_latent"),
    LatteMixSettings(dims=4, classes=6, encoder_layers=3, layout="single", tau=0.7, reconstruction="mean"),
    NormalVAESettings(dims=5, encoder_layers=2, reconstruction="mean"),
    NormalVAESettings(dims=5, free_bits=0.15, free_bits_of="per_latent", beta_warmup_fraction=0.0),
    AutoencoderSettings(dims=5, encoder_layers=3, hidden=9),
]


def build(settings: AutoencoderSettings, seed: int = 0) -> LatentObjective:
    torch.manual_seed(seed)
    return KINDS[type(settings)](settings, tiny_encoder()).eval()


def batch_of(objective: LatentObjective, progress: float = 0.3, weight: tuple[float, ...] = (1, 1, 0, 1)) -> Batch:
    offsets = np.cumsum([0, *map(len, TEXTS)])
    rows = {"sentence": Tokens(np.concatenate(TEXTS), offsets)}
    examples = [(row,) for row in range(len(TEXTS))]
    return objective.collate(share_of(rows, examples, np.array(weight, np.float32), progress))


def test_the_divergence_of_certain_classes_is_finite_and_so_is_noise_of_its_distribution() -> None:
    extreme = torch.tensor([[0.0, 0.0], [1e4, -1e4]], dtype=torch.float64)
    np.testing.assert_allclose(kl_to_uniform(extreme), [0.0, np.log(2)], atol=1e-15)
    uniform = torch.rand(20_000, generator=torch.Generator().manual_seed(0))
    assert scipy.stats.kstest(gumbel(uniform).numpy(), "gumbel_r").pvalue > 0.01
    assert gumbel(torch.tensor([0.0, 1 - 2**-24])).isfinite().all()


def in_numpy(objective: LatentObjective, state: dict[str, np.ndarray], batch: Batch, u: list[np.ndarray]) -> float:
    """The loss from its definition, text by text and token by token, in float64."""
    settings: Any = objective.settings
    total, count = 0.0, 0.0
    if settings.inputs == "standardised":
        read = np.concatenate([row for row, weight in zip(u, batch["weight"].tolist(), strict=True) if weight])
        u = [(row - read.mean(0)) / read.std(0) for row in u]
    for row, u_TH in enumerate(u):
        generator = torch.Generator().manual_seed(int(batch["seed"][row]))
        width = {LatteMix: objective.encoder.dim, NormalVAE: settings.dims, Autoencoder: 0}[type(objective)]
        kind = torch.rand if isinstance(objective, LatteMix) else torch.randn
        noise = kind(len(u_TH), width, generator=generator).double().numpy()
        for token, x in enumerate(u_TH):
            found = layers_in_numpy(state, "encoder.heads.0.shipped.encoder", x)
            kl, code = np.zeros(1), found
            if isinstance(objective, LatteMix):
                classes = settings.classes
                logits, g = found.reshape(-1, classes), -np.log(-np.log(noise[token])).reshape(-1, classes)
                log_pi = logits - logsumexp(logits, axis=1, keepdims=True)
                kl = np.array([sum(np.exp(v) * (v + np.log(classes)) for v in variable) for variable in log_pi])
                code = softmax((log_pi + g) / settings.tau, axis=1).ravel()
            elif isinstance(objective, NormalVAE):
                mu, log_var = np.split(found, 2)
                kl = np.array([0.5 * (np.exp(v) + m * m - 1.0 - v) for m, v in zip(mu, log_var, strict=True)])
                code = mu + np.exp(0.5 * log_var) * noise[token]
            error = (layers_in_numpy(state, "decoder", code) - x) ** 2
            loss = error.sum() if settings.reconstruction == "sum" else error.mean()
            learnt = state.get("log_variance")
            variance = settings.variance if learnt is None else np.exp(learnt)
            loss = loss / (2 * variance)
            if learnt is not None:  # -log N(x; decoded, variance) of every dimension, without log 2 pi
                loss += (len(x) if settings.reconstruction == "sum" else 1) * 0.5 * np.log(variance)
            if not isinstance(objective, Autoencoder):
                least = settings.free_bits
                paid = max(kl.sum(), least) if settings.free_bits_of == "total" else sum(max(k, least) for k in kl)
                warmup, progress = settings.beta_warmup_fraction, float(batch["progress"][row])
                loss += settings.beta * (min(1.0, progress / warmup) if warmup else 1.0) * paid
            total, count = total + float(batch["weight"][row]) * loss, count + float(batch["weight"][row])
    return total / count


def layers_in_numpy(state: dict[str, np.ndarray], prefix: str, x: np.ndarray) -> np.ndarray:
    """Linear layers with a ReLU before each but the first, and none after an embedding without bias."""
    numbers = sorted({int(name.split(".")[-2]) for name in state if name.startswith(prefix + ".")})
    straight = True
    for number in numbers:
        weight, bias = state[f"{prefix}.{number}.weight"], state.get(f"{prefix}.{number}.bias")
        x = weight @ (x if straight else np.maximum(x, 0.0))
        straight = bias is None
        x = x if bias is None else x + bias
    return x


READ_OTHERWISE = [
    LatteMixSettings(dims=3, classes=5, inputs="standardised", variance=0.05, beta=0.4),
    NormalVAESettings(dims=5, variance=None),
    AutoencoderSettings(dims=5, variance=None, reconstruction="mean", inputs="standardised"),
]


@pytest.mark.parametrize("settings", [*SETTINGS, *READ_OTHERWISE], ids=lambda settings: type(settings).__name__)
def test_the_loss_and_its_gradients_by_hand(settings: AutoencoderSettings) -> None:
    """The value, and the derivative in two random directions by central differences, of a derivation in numpy."""
    objective = build(settings)
    trained = {name: p for name, p in objective.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for parameter in trained.values():
            parameter.mul_(2.0)  # so that some divergences are above their threshold and some below
    for module in (objective.latent, objective.decoder):
        module.double()
    batch = batch_of(objective)
    with torch.no_grad():
        tokens = objective.encoder.tokens(batch["sentence"], batch["sentence_length"]).double().numpy()
    u = [row[:n] for row, n in zip(tokens, batch["sentence_length"].tolist(), strict=True)]
    state = {name: p.detach().numpy().copy() for name, p in trained.items()}
    decoded: list[torch.Tensor] = []
    objective.decoder.register_forward_hook(lambda module, given, out: decoded.append(out.detach()))
    loss, scalars = objective(batch)
    if settings.inputs == "raw":
        counted = np.repeat(batch["weight"].numpy(), batch["sentence_length"].numpy()) > 0
        read = np.concatenate(u)[counted]
        error = ((decoded[0].numpy()[counted] - read) ** 2).sum(1)
        assert float(scalars["explained"]) == pytest.approx(1 - error.mean() / read.var(0).sum(), rel=1e-5)
        width = 1 if settings.reconstruction == "sum" else read.shape[1]
        assert float(scalars["reconstruction"]) == pytest.approx(error.mean() / width, rel=1e-5)
    assert float(loss.detach()) == pytest.approx(in_numpy(objective, state, batch, u), rel=1e-6, abs=1e-6)
    if not isinstance(objective, Autoencoder):
        warm = min(1.0, 0.3 / (settings.beta_warmup_fraction or 0.3))  # type: ignore[attr-defined]
        assert float(scalars["beta"]) == pytest.approx(settings.beta * warm)  # type: ignore[attr-defined]
    loss.backward()
    generator = np.random.default_rng(0)
    for _ in range(2):
        way = {name: generator.normal(size=value.shape) for name, value in state.items()}
        ahead, behind = ({n: v + step * way[n] for n, v in state.items()} for step in (1e-6, -1e-6))
        numerical = (in_numpy(objective, ahead, batch, u) - in_numpy(objective, behind, batch, u)) / 2e-6
        slope = sum(float((p.grad.numpy() * way[n]).sum()) for n, p in trained.items() if p.grad is not None)
        assert slope == pytest.approx(numerical, rel=1e-5, abs=1e-6)
    assert all(p.grad is None for n, p in objective.named_parameters() if n not in trained)
    assert {n.split(".")[0] for n in trained} - {"log_variance"} == {"encoder", "decoder"}
    assert ("log_variance" in trained) == (settings.variance is None)
    assert all(".heads." in n for n in trained if n.startswith("encoder"))


@torch.no_grad()
def test_a_text_is_represented_at_the_test_temperature() -> None:
    plain = build(LatteMixSettings(dims=3, classes=5))
    other = build(LatteMixSettings(dims=3, classes=5, tau_test=1.0))
    assert (plain.latent.tau, other.latent.tau) == (0.3, 1.0)
    assert (plain.encoder.dim, build(LatteMixSettings(dims=3, classes=5, layout="single")).encoder.dim) == (15, 5)
    batch = batch_of(plain)
    assert float(plain(batch)[0]) == float(other(batch)[0]), "training has its own"
    text = batch["sentence"], batch["sentence_length"]
    assert not torch.allclose(plain.encoder(*text), other.encoder(*text), atol=1e-3)


@pytest.mark.parametrize("settings", [*SETTINGS[:1], *READ_OTHERWISE], ids=lambda settings: type(settings).__name__)
def test_what_may_be_kept(settings: AutoencoderSettings) -> None:
    """The trained head, and the one that training began with; both read raw token vectors, whatever the loss does."""
    objective = build(settings)
    heads = [encoder.heads[-1].state_dict() for encoder in objective.candidates().values()]
    assert all(value.isfinite().all() for head in heads for value in head.values()), "before the first text too"
    batch = batch_of(objective)
    optimizer = torch.optim.SGD([p for p in objective.parameters() if p.requires_grad], 0.05)
    first = {name: value.clone() for name, value in objective.latent.state_dict().items()}
    for _ in range(2):
        loss, scalars = objective(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(scalars["explained"]) < 1
    ids, lengths = batch["sentence"], batch["sentence_length"]
    with torch.no_grad():
        u = objective.encoder.tokens(ids, lengths).double()
    read = torch.cat([row[:n] for row, n, w in zip(u, lengths.tolist(), batch["weight"].tolist(), strict=True) if w])
    mean, deviation = read.mean(0), read.std(0, correction=0)
    if settings.inputs == "raw":
        mean, deviation = torch.zeros_like(mean), torch.ones_like(mean)
    for name, encoder in objective.candidates().items():
        latent = objective.latent
        if name == "untrained":
            latent.load_state_dict(first)
        x = torch.randn(5, objective.encoder.width, dtype=torch.float64)
        expected = latent.embed(((x - mean) / deviation).float())
        torch.testing.assert_close(encoder.heads[-1].shipped.embed(x.float()), expected, atol=2e-4, rtol=1e-3)
    assert [*objective.candidates()] == ["encoder", "untrained"]


def test_a_model_with_a_head_is_refused() -> None:
    encoder = tiny_encoder(pooling="cls")
    assert LatteMix(LatteMixSettings(), encoder).encoder.pooling == "mean"
    with pytest.raises(ValueError, match="has a head behind its pooling"):
        LatteMix(LatteMixSettings(), encoder.followed_by(Dense(16, 16)))

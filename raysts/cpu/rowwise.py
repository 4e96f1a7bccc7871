"""Optimisers that update the rows of a word table that a batch has.

The result is that of an update of the whole table.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from raysts.cpu import native

LATE = 1e6
"""A step count at which 0.9^t and 0.999^t have long underflowed to 0, and Adam's bias corrections 1 - beta^t are 1."""


class ByRows(Optimizer):
    """Adam for a sparse gradient of a table.

    It updates every row as with a dense gradient, but does not read rows that no batch had yet.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._touched: dict[nn.Parameter, Tensor] = {}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        tables = [
            (g, p, p.grad) for g in self.param_groups for p in g["params"] if p.grad is not None and p.grad.is_sparse
        ]
        for _, p, _ in tables:
            p.grad = None
        _bypass_hooks(super().step)()
        for group, p, gradient in tables:
            p.grad = gradient.coalesce()
            self._step_rows(p, group)

    def _step_rows(self, p: nn.Parameter, group: dict[str, Any]) -> None:
        state = self.state[p] = self.state[p] or begun(p, 0.0)
        first, second = state["exp_avg"], state["exp_avg_sq"]
        if p not in self._touched:
            self._touched[p] = ((first != 0) | (second != 0)).any(1)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        step, lr, gradient = float(state["step"]), group["lr"], p.grad
        assert gradient is not None
        native.call(
            "adam",
            None,
            *(p.detach(), first, second, self._touched[p], gradient.indices()[0].contiguous(), gradient.values()),
            *(gradient.values().shape[0], *p.shape, 1.0 - lr * group["weight_decay"], beta1, beta2, group["eps"]),
            *(lr / (1.0 - beta1**step), (1.0 - beta2**step) ** -0.5),
        )


def begun(p: nn.Parameter, step: float) -> dict[str, Tensor]:
    """Return Adam's state after ``step`` steps of a parameter without any gradient."""
    moments = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
    return {"step": torch.full((), step, device=p.device), **moments}


def _bypass_hooks(step: Any) -> Callable[[], None]:
    """Return a parent's ``step`` without the hooks that torch puts round it.

    Torch does so for every class that has had an instance. The child's ``step`` has the hooks already.
    """
    function = step.__func__
    return partial(function.__wrapped__ if getattr(function, "hooked", False) else function, step.__self__)


class AdamW(ByRows, torch.optim.AdamW):
    """Torch's AdamW, of a table by rows."""


class Adam(ByRows, torch.optim.Adam):
    """Torch's Adam, of a table by rows without weight decay.

    Weight decay would be a gradient of every row.
    """


class UncorrectedAdamW(AdamW):
    """AdamW without bias correction (the optimiser of BERT-flow's official code).

    It counts its steps from ``LATE``.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and not self.state[p]:
                    self.state[p] = begun(p, LATE)
        _bypass_hooks(super().step)()


class RMSprop(Optimizer):
    """RMSprop without momentum: v = rho v + (1 - rho) g^2, p -= lr g / (sqrt(v) + eps).

    The update of ``torch.optim.RMSprop`` with alpha = rho, which has no fused kernel. Adam without first moment and
    without bias correction is the same update, so this calls Adam's fused kernel: beta1 = 0, beta2 = rho, and a step
    count so large that the bias correction 1 - beta2^t is 1. It reads and writes every weight once.

    With a sparse gradient it touches the rows that have one, with the same result. A row without gradient has no
    update, and its average decays by rho at every step. So averages are divided by rho^``since``, one number for all
    rows.
    """

    def __init__(self, params: list[dict], lr: float, rho: float = 0.9, eps: float = 1e-7) -> None:
        super().__init__(params, {"lr": lr, "rho": rho, "eps": eps, "weight_decay": 0.0})
        self._scratch: dict[nn.Parameter, Tensor] = {}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            assert group["weight_decay"] == 0.0, "RMSprop has no weight decay here"
            parameters = []
            for p in group["params"]:
                if p.grad is None:
                    continue
                if not self.state[p]:
                    self.state[p]["square_avg"] = torch.zeros_like(p)
                if p.grad.is_sparse:
                    self._step_rows(p, self.state[p], group)
                    continue
                parameters.append(p)
                settle(self.state[p], group["rho"])
                # The kernel's first moment: with beta1 = 0 it is overwritten at every step, so it is no state.
                if p not in self._scratch:
                    self._scratch[p] = torch.zeros_like(p)
            if parameters:
                torch._fused_adam_(
                    parameters,
                    [p.grad for p in parameters],
                    [self._scratch[p] for p in parameters],
                    [self.state[p]["square_avg"] for p in parameters],
                    [],
                    [torch.full((), LATE, device=parameters[0].device)] * len(parameters),  # filled there, not copied
                    amsgrad=False,
                    lr=group["lr"],
                    beta1=0.0,
                    beta2=group["rho"],
                    weight_decay=0.0,
                    eps=group["eps"],
                    maximize=False,
                )

    def _step_rows(self, p: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
        rho, average = group["rho"], state["square_avg"]
        since = state["since"] = state.get("since", torch.zeros(())) + 1
        decay = rho ** float(since)
        gradient = p.grad.coalesce()  # type: ignore[union-attr]
        rows_R, gradient_RH = gradient.indices()[0], gradient.values()
        average_RH = average.index_select(0, rows_R).addcmul_(gradient_RH, gradient_RH, value=(1 - rho) / decay)
        average.index_copy_(0, rows_R, average_RH)
        update_RH = gradient_RH / average_RH.mul_(decay).sqrt_().add_(group["eps"])
        p.index_add_(0, rows_R, update_RH, alpha=-group["lr"])
        if decay < SMALLEST_DECAY:
            settle(state, rho)


SMALLEST_DECAY = 1e-10
"""Below it averages are brought up to date: divided by less they might leave float32's range."""


def settle(state: dict[str, Tensor], rho: float) -> None:
    """Bring the averages up to date, in place, before a gradient that is not sparse."""
    if "since" in state:
        state["square_avg"].mul_(rho ** float(state.pop("since")))


def adam_compiles(table: nn.Embedding) -> bool:
    """Return True if Adam can update a table by rows on this machine."""
    return table.weight.dtype == torch.float32 and native.can(table.weight)


def clip(parameters: Iterable[nn.Parameter], most: float) -> None:
    """Clip gradients as ``torch.nn.utils.clip_grad_norm_`` does, sparse ones too."""
    parameters = list(parameters)
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not any(gradient.is_sparse for gradient in gradients):
        nn.utils.clip_grad_norm_(parameters, most)
        return
    for p in parameters:
        if p.grad is not None and p.grad.is_sparse:
            p.grad = p.grad.coalesce()  # whose values are no copies
    parts = [p.grad.values() if p.grad.is_sparse else p.grad for p in parameters if p.grad is not None]
    factor = (most / (nn.utils.get_total_norm(parts) + 1e-6)).clamp(max=1.0)
    for part in parts:
        part.mul_(factor)

"""Optimisers and learning-rate schedules."""

from torch import nn
from torch.optim import Optimizer

from raysts.cpu.rowwise import Adam, AdamW, RMSprop, UncorrectedAdamW, adam_compiles
from raysts.models.encoder import Encoder
from raysts.recipes.recipe import Optim

ADAM_BETAS = (0.9, 0.999)

KINDS: dict[str, type[AdamW | Adam]] = {"adamw": AdamW, "adamw-uncorrected": UncorrectedAdamW, "adam": Adam}


def build(optim: Optim, module: nn.Module) -> Optimizer:
    """Return the optimiser of the trainable parameters, without decay of biases and layer norms."""
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for parameter in module.parameters():
        if parameter.requires_grad:
            (decayed if parameter.ndim > 1 or optim.decay_all else plain).append(parameter)
    groups = [{"params": decayed, "weight_decay": optim.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]] or groups[:1]
    if optim.name == "rmsprop":
        return RMSprop(groups, lr=optim.lr, eps=optim.eps or 1e-7)
    return KINDS[optim.name](groups, lr=optim.lr, betas=ADAM_BETAS, eps=optim.eps or 1e-8, fused=True)


def learning_rate(optim: Optim, step: int, steps: int) -> float:
    """Return the learning rate of optimiser step ``step`` (0-based) of ``steps``."""
    warmup = round(optim.warmup * steps)
    rise = optim.lr - optim.floor
    if step < warmup:
        return optim.floor + rise * (step + 1) / warmup
    if optim.schedule == "linear":
        return optim.floor + rise * (steps - step) / max(1, steps - warmup)
    if optim.schedule == "steps":
        return optim.lr * optim.factors[sum(step >= milestone for milestone in optim.milestones)]
    return optim.lr


def use_sparse_gradients(objective: nn.Module, optim: Optim) -> None:
    """Make gradients of word embeddings sparse if the optimiser's result stays the same.

    They hold only the rows of a batch's words. The tables of ``objective`` are in main memory, in one process.
    """
    for encoder in objective.modules():
        if isinstance(encoder, Encoder) and (table := encoder.word_table) is not None:
            # Adam's own weight decay is a gradient of every row.
            adam = not (optim.name == "adam" and optim.weight_decay)
            # What is compiled is used throughout a run, or not at all: a run that began without it goes on so.
            table.sparse = optim.name == "rmsprop" or adam and encoder.fused and adam_compiles(table)

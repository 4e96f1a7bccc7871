"""A run whose weights, gradients and moments are spread over its processes (FSDP2), for backbones that do not fit on one.

What is on disk knows nothing of it: states are gathered when they are written, one tensor after the other, and spread when
they are read, so that a run goes on with another number of processes, or whole.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from raysts.models.encoder import Encoder
from raysts.models.precision import numbers


def shard(objective: nn.Module, device: torch.device, precision: str) -> nn.Module:
    """Spread the objective over all processes, in place: layer by layer, each moved to the device by itself.

    It may be whole in main memory before. What is not a layer, a backbone or a head is a group of its own, and there must be no
    parameter that belongs to two of them. What each process keeps is float32; a backbone whose ``precision`` is of two bytes is
    put together in it, which is half the traffic and half the memory of a layer, and its gradients are added up in float32.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    lower = numbers(precision)
    # Autocast goes on to choose what each operation computes in.
    policy = MixedPrecisionPolicy(
        None if lower == torch.float32 else lower, reduce_dtype=torch.float32, cast_forward_inputs=False
    )

    mesh = dist.device_mesh.init_device_mesh(device.type, (dist.get_world_size(),))
    for part in objective.children():
        if isinstance(part, Encoder):
            for layer in part.layer_list():
                fully_shard(layer, mesh=mesh, mp_policy=policy)
            fully_shard(part.backbone, mesh=mesh, mp_policy=policy)
            for head in part.heads:
                fully_shard(head, mesh=mesh)
                register_fsdp_forward_method(head, "represent")
        elif any(True for _ in part.parameters()):
            fully_shard(part, mesh=mesh)
    return objective


def whole(value: Tensor) -> Tensor:
    """A tensor that may be spread, in main memory; of the other processes, which must ask too, nothing is kept."""
    if not _spread(value):
        return value
    gathered: Tensor = value.full_tensor()  # type: ignore[attr-defined]
    return gathered.cpu() if dist.get_rank() == 0 else gathered.new_empty(0)


def like(value: Tensor, parameter: Any) -> Tensor:
    """A whole tensor as its parameter is spread, if it is and the tensor has its shape."""
    if not _spread(parameter) or value.shape != parameter.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(
        value.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None
    )


def own(value: Any) -> Tensor:
    """What this process has of a tensor that may be spread."""
    return value.to_local() if _spread(value) else value


def _spread(value: Tensor) -> bool:
    """Whether it is a ``DTensor``, whose module takes half a second to import: for nothing where nothing is spread."""
    return hasattr(value, "full_tensor")

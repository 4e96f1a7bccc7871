"""Runs sharded over processes (FSDP2): weights, gradients and moments, for large backbones.

Files are independent of the sharding, so a run continues with another number of processes, or with one.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from raysts.models.encoder import Encoder
from raysts.models.precision import numbers


def shard(objective: nn.Module, device: torch.device, precision: str) -> nn.Module:
    """Shard the objective over all processes, in place, and move it to the device by layers.

    Each layer, head and remaining backbone is a group, and groups must share no parameter. Each process keeps float32. A
    backbone with a two-byte ``precision`` is gathered in it, and its gradients are summed in float32.
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


def gather_tensor(value: Tensor) -> Tensor:
    """Return a gathered tensor in main memory. All ranks call this, and only rank 0 gets it."""
    if not _spread(value):
        return value
    gathered: Tensor = value.full_tensor()  # type: ignore[attr-defined]
    return gathered.cpu() if dist.get_rank() == 0 else gathered.new_empty(0)


def shard_like(value: Tensor, parameter: Any) -> Tensor:
    """Return a full tensor sharded like its parameter, if that is sharded and the shapes match."""
    if not _spread(parameter) or value.shape != parameter.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(
        value.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None
    )


def local_tensor(value: Any) -> Tensor:
    """Return this process's part of a tensor that may be sharded."""
    return value.to_local() if _spread(value) else value


def _spread(value: Tensor) -> bool:
    """Return True for a ``DTensor``, without the half second that importing its class takes."""
    return hasattr(value, "full_tensor")

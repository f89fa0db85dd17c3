"""FSDP2: weights, gradients and optimiser state of a large policy split over the ranks (`trainer.strategy: fsdp2`).

What a run writes and what it learns are those of `ddp`: checkpoints are one file with whole weights, which any strategy
and `structrl evaluate` read.
"""

from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, SingleDeviceStrategy, StrategyRegistry
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from typing_extensions import override

from structrl.policies.actor_critic import ActorCritic
from structrl.rl.config_errors import UsageError

NAME = "fsdp2"


class FSDP2(ModelParallelStrategy):
    """Lightning's `ModelParallelStrategy` over all ranks, without tensor parallelism, with checkpoints of one file."""

    def __init__(self, process_group_backend: str | None = None):
        super().__init__(save_distributed_checkpoint=False, process_group_backend=process_group_backend)

    @override
    def setup_environment(self) -> None:
        self._data_parallel_size, self._tensor_parallel_size = self.num_nodes * self.num_processes, 1
        super().setup_environment()


if NAME not in StrategyRegistry:
    StrategyRegistry.register(NAME, FSDP2, description="policy and optimiser split over the ranks")


def check_strategy(strategy: Any, model: Any) -> None:
    """Refuse what would train something else than it says, or not be able to resume.

    Raises:
        UsageError: another strategy than one device, DDP or `fsdp2`; `fsdp2` for a model that is not split.
    """
    if isinstance(strategy, FSDP2):
        if not getattr(model, "shardable", False):
            raise UsageError(f"trainer.strategy {NAME} is for RL; {type(model).__name__} trains with ddp")
    elif not isinstance(strategy, SingleDeviceStrategy | DDPStrategy):
        raise UsageError(
            f"trainer.strategy {type(strategy).__name__} is not supported: its checkpoints or its rollouts would not "
            f"be those of one device; use ddp, or {NAME} for policies that do not fit on one device"
        )


def shard(policy: ActorCritic, strategy: FSDP2) -> None:
    """Split a policy over the ranks, in place: what `VLA.shards` names by itself, the rest together.

    It must be called (`policy("act", ...)`) from then on: that gathers the weights, on all ranks together.
    """
    mesh = strategy.device_mesh["data_parallel"]
    for part in policy.vla.shards():
        fully_shard(part, mesh=mesh)
    # gathered anew for each call: weights kept from a call without gradients would outlive an optimiser step
    fully_shard(policy, mesh=mesh, reshard_after_forward=True)


def is_sharded(policy: nn.Module) -> bool:
    """Whether calls of the policy communicate."""
    return any(isinstance(parameter, DTensor) for parameter in policy.parameters())


def fill_state(optimizer: torch.optim.Optimizer) -> None:
    """Give every parameter of an AdamW its state at step 0, which the first step would.

    Checkpoints of split optimisers are put together parameter by parameter; one that has not been stepped yet (the
    actor's, while the critic warms up) would be missing.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            zeros = torch.zeros_like(parameter)
            optimizer.state[parameter] = {"step": torch.zeros(()), "exp_avg": zeros, "exp_avg_sq": zeros.clone()}


def whole(x: torch.Tensor) -> torch.Tensor:
    """A tensor that may be split over the ranks, on all of them."""
    return x.full_tensor() if isinstance(x, DTensor) else x

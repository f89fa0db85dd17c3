"""Throughput of the PPO update at two micro-batch sizes, on made-up chunks: python -m benchmarks.update

    python -m benchmarks.update [--chunks 4096] [--micro 64 1024] [--repeats 3] [--device cpu] [--precision fp32 bf16]

Prints chunks per second of forward, backward and optimiser step (medians of process CPU time on a CPU, of wall time
elsewhere), and by how much the weights after an update differ between the sizes: no more than rounding.
"""

import argparse
import copy
import statistics
import time
from types import SimpleNamespace
from typing import Any

import torch
from tensordict import TensorDict

from structrl.policies.actor_critic import ActorCritic
from structrl.policies.compact import CompactVLA
from structrl.policies.flow import FlowOptions
from structrl.policies.protocol import VLASpec
from structrl.rl.batch import ADVANTAGE, VALUE_TARGET, WEIGHT
from structrl.rl.module import PPO
from structrl.rl.options import PPOOptions
from structrl.rl.update import Update

SPEC = VLASpec({"state": (14,), "tokens": (4, 12)}, 5, (-1.0,) * 5, (1.0,) * 5, 8, 22, ("Pack the lunch.",))


class Optimiser:
    """What `Update` uses of Lightning's optimiser."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups
        self.zero_grad, self.step = optimizer.zero_grad, optimizer.step

    def toggle_model(self, sync_grad: bool) -> Any:
        """Nothing to toggle."""
        return torch.enable_grad()


class Module(SimpleNamespace):
    """What `Update` uses of a PPO module on one device."""

    def optimizers(self) -> Optimiser:
        """The one optimiser."""
        return self.optimiser

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Over one rank."""
        return x.to(self.device)

    def manual_backward(self, loss: torch.Tensor) -> None:
        """Without a strategy."""
        loss.backward()


def make_chunks(policy: ActorCritic, n: int, device: str) -> TensorDict:
    """n chunks as a rollout would have written them, in whole policy calls of 1024."""
    g = torch.Generator().manual_seed(0)
    td = TensorDict(
        {
            "observation": {k: torch.randn(n, *shape, generator=g) for k, shape in SPEC.observation.items()},
            "task": torch.zeros(n, 1, dtype=torch.int64),
            "reward_state": torch.randn(n, SPEC.reward_state_dim, generator=g),
        },
        [n],
    )
    noise = torch.randn(n, policy.flow.steps + 1, policy.vla.rows, policy.vla.dims, generator=g)
    index = torch.full((n,), -1)
    parts = [
        policy.act(td[i : i + 1024].to(device), noise[i : i + 1024].to(device), index[i : i + 1024].to(device)).cpu()
        for i in range(0, n, 1024)
    ]
    chunks = torch.cat(parts)
    chunks[ADVANTAGE], chunks[VALUE_TARGET] = torch.randn(2, n, generator=g)
    chunks[WEIGHT] = torch.ones(n)
    return chunks


def measure(policy: ActorCritic, chunks: TensorDict, micro: int, device: str) -> tuple[float, torch.Tensor]:
    """Seconds of one optimiser step over all chunks, and the weights after it."""
    policy = copy.deepcopy(policy)
    options = PPOOptions(micro_batch=micro)
    module = PPO(flow=policy.flow, ppo=options)
    module.policy = policy
    optimiser = Optimiser(module.configure_optimizers())
    strategy = SimpleNamespace(reduce=lambda x, reduce_op: x)
    trainer = SimpleNamespace(world_size=1, strategy=strategy, current_epoch=0)
    stand_in = Module(
        policy=policy, options=options, optimiser=optimiser, trainer=trainer, device=torch.device(device),
        reference=None, has_critic=True, _data=SimpleNamespace(plans=SimpleNamespace(task_names=("made up",))),
    )  # fmt: skip
    cpu = device == "cpu"
    clock = time.process_time if cpu else time.perf_counter
    start = clock()
    Update(stand_in, warming_up=False).step(chunks, torch.arange(len(chunks)))  # type: ignore[arg-type]
    if not cpu:
        torch.cuda.synchronize()
    seconds = clock() - start
    return seconds, torch.cat([p.detach().flatten().cpu() for p in policy.parameters()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=4096, help="of one optimiser step")
    parser.add_argument("--micro", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", nargs="+", default=["fp32"], choices=["fp32", "bf16"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    for precision in args.precision:
        torch.manual_seed(0)
        policy = ActorCritic(CompactVLA(SPEC), FlowOptions(precision=precision)).to(args.device)
        chunks = make_chunks(policy, args.chunks, args.device)
        reference = None
        for micro in args.micro:
            measure(policy, chunks, micro, args.device)
            runs = [measure(policy, chunks, micro, args.device) for _ in range(args.repeats)]
            rate = args.chunks / statistics.median(seconds for seconds, _ in runs)
            weights = runs[0][1]
            reference = weights if reference is None else reference
            off = (weights - reference).abs().max().item()
            print(
                f"{args.device} {precision}, micro-batch {micro:>5}: {rate:8.0f} chunks/s, weights differ by at most "
                f"{off:.1e} from those with micro-batch {args.micro[0]}"
            )


if __name__ == "__main__":
    main()

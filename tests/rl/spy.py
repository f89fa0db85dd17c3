"""A callback that keeps what ranks must agree on, and starts processes as launchers do."""

import hashlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback

from structrl import keys
from structrl.rl.sharding import whole

ROOT = Path(__file__).resolve().parents[2]
TIMES = ("time/", "charts/SPS")


def digest(tensors) -> str:
    return hashlib.sha256(b"".join(whole(t).detach().cpu().numpy().tobytes() for t in tensors)).hexdigest()


class Spy(Callback):
    """Writes `rank-R.pt` into `folder` after every iteration: episodes, calls, gradients, weights, metrics."""

    def __init__(self, folder: str):
        self.file: Any = Path(folder)
        self.seen: dict[str, list] = {k: [] for k in ("starts", "actions", "grads", "weights", "metrics", "calls")}

    def on_train_start(self, trainer, pl_module):
        self.file = self.file / f"rank-{trainer.global_rank}.pt"
        self.calls: dict[str, int] = {}
        parameters = [p for p in pl_module.policy.parameters() if p.requires_grad]

        def before(optimizer, args, kwargs):
            self.grads.append(digest(p.grad for p in parameters if p.grad is not None))

        def called(policy, args):
            self.calls[args[0]] = self.calls.get(args[0], 0) + 1

        self.grads: list[str] = []
        if os.environ.get("FAIL_ON_RANK") == str(trainer.global_rank):
            trainer.datamodule.environment.base_env.runner.run = stuck
        trainer.optimizers[0].register_step_pre_hook(before)
        pl_module.policy.register_forward_pre_hook(called)

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.seen["starts"].append(batch.table[keys.START].clone())
        self.seen["actions"].append(batch.chunks[keys.ACTION].clone())

    def on_train_batch_end(self, trainer, pl_module, *rest):
        self.seen["grads"].append(self.grads)
        self.grads = []
        self.seen["weights"].append({k: whole(v).detach().clone() for k, v in pl_module.policy.state_dict().items()})
        self.seen["metrics"].append({k: v for k, v in pl_module.metrics.items() if not k.startswith(TIMES)})
        self.seen["calls"].append(dict(self.calls))
        self.calls.clear()
        torch.save(self.seen, self.file)


def stuck(action):
    raise ZeroDivisionError("the arm is stuck")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(argv: list[str], **environment: str) -> subprocess.Popen:
    """`structrl ARGV` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "structrl.cli", *argv], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )  # fmt: skip


def start_nodes(
    argv: list[str], nodes: int = 2, strategy: str = "ddp", fail_on: int | None = None, **environment: str
) -> list[subprocess.Popen]:
    """One rank on each of `nodes` "nodes", which meet on the loopback; one may fail in its first training step."""
    port = str(free_port())
    argv = [*argv, f"--trainer.num_nodes={nodes}", "--trainer.devices=1", f"--trainer.strategy={strategy}"]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} | environment
    return [start(argv, NODE_RANK=str(n), FAIL_ON_RANK=str(fail_on), **place) for n in range(nodes)]

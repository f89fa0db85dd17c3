"""The arms of the study: what a config must say for each. Everything else is the same in all of them."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Arm:
    """One line of the study's table.

    Attributes:
        reward: options of the reward.
        critic_sees: of the compact policy.
        grpo: GRPO in place of PPO.
    """

    reward: dict[str, Any]
    critic_sees: str = "subtasks"
    grpo: bool = False


ARMS: dict[str, Arm] = {
    "sparse-blind": Arm({"preset": "sparse"}, "observation"),
    "sparse-seeing": Arm({"preset": "sparse"}),
    "structrl-blind": Arm({"preset": "structrl"}, "observation"),
    "structrl-seeing": Arm({"preset": "structrl"}),
    "fixed-ungated": Arm({"preset": "fixed_ungated"}),
    "paced-ungated": Arm({"preset": "paced_ungated"}),
    "fixed-gated": Arm({"preset": "fixed_gated"}),
    "potential": Arm({"preset": "potential"}),
    "structrl-grpo": Arm({"preset": "structrl"}, grpo=True),
    "beta-0.2": Arm({"preset": "structrl", "beta": 0.2}),
    "beta-1.0": Arm({"preset": "structrl", "beta": 1.0}),
    "beta-2.0": Arm({"preset": "structrl", "beta": 2.0}),
}
MAIN = ("sparse-blind", "sparse-seeing", "structrl-blind", "structrl-seeing")
COMPARISONS = (
    ("structrl-seeing", "sparse-seeing"),
    ("structrl-blind", "sparse-blind"),
    ("sparse-seeing", "sparse-blind"),
    ("structrl-seeing", "fixed-gated"),
    ("structrl-seeing", "paced-ungated"),
    ("structrl-seeing", "fixed-ungated"),
    ("structrl-seeing", "potential"),
    ("structrl-seeing", "structrl-grpo"),
)


@dataclass(frozen=True)
class Scale:
    """How much of everything.

    Attributes:
        demos, sft_epochs: of a block's warm start (an epoch is 100 optimiser steps).
        num_envs, episodes, evaluate: environments, episodes of an iteration, episodes of an evaluation.
        iterations, every: of an arm, and between evaluations.
        slop: of the demonstrations, m.
        shift: observed object positions are off by so much in x and y, m.
        policy: arguments of the compact policy.
        learning_rate, critic_learning_rate, noise: as tuned on discarded blocks.
    """

    demos: int = 384
    sft_epochs: int = 30
    num_envs: int = 128
    episodes: int = 128
    evaluate: int = 256
    iterations: int = 40
    every: int = 5
    slop: float = 0.007
    shift: float = 0.028
    learning_rate: float = 6e-5
    critic_learning_rate: float = 1e-3
    noise: float = 1.0
    policy: dict[str, Any] = field(default_factory=dict)


TOY = Scale(
    demos=6, sft_epochs=1, num_envs=8, episodes=8, evaluate=4, iterations=2, every=1, shift=0.0,
    policy={"width": 32, "depth": 1},
)  # fmt: skip


def env_config(task: str, scale: Scale, reward: dict[str, Any]) -> dict[str, Any]:
    """The shifted world of training and evaluation."""
    sim = {"shift": {"object_bias": [scale.shift, scale.shift]}} if scale.shift else {}
    return {"tasks": [task], "num_envs": scale.num_envs, "chunk": 8, "sim": sim, "reward": reward}


def sft_config(task: str, scale: Scale, seed: int, folder: str, demos: str) -> dict[str, Any]:
    """The warm start of a block."""
    return {
        "seed_everything": seed,
        "trainer": {
            "default_root_dir": folder, "accelerator": "cpu", "max_epochs": scale.sft_epochs, "log_every_n_steps": 10,
        },
        "model": {"class_path": "structrl.imitation.FlowMatching", "init_args": {"policy": _policy(scale, "subtasks")}},
        "data": {
            "class_path": "structrl.imitation.DemoData",
            "init_args": {"env": {"tasks": [task], "chunk": 8}, "demos": [demos]},
        },
    }  # fmt: skip


def arm_config(task: str, scale: Scale, arm: Arm, seed: int, folder: str, warm_start: str) -> dict[str, Any]:
    """One run of the study."""
    update = {"learning_rate": scale.learning_rate}
    if arm.grpo:
        options: dict[str, Any] = {
            "grpo": update | {"group_size": 8, "dynamic_sampling": "mask", "keep_if": "return_std"}
        }
    else:
        options = {"ppo": update | {"critic_learning_rate": scale.critic_learning_rate}}
    return {
        "seed_everything": seed,
        "trainer": {
            "default_root_dir": folder, "accelerator": "cpu", "max_epochs": scale.iterations,
            "check_val_every_n_epoch": scale.every,
        },
        "model": {
            "class_path": "structrl.rl.grpo.GRPO" if arm.grpo else "structrl.rl.module.PPO",
            "init_args": {
                "warm_start": warm_start,
                "policy": _policy(scale, arm.critic_sees),
                "flow": {"steps": 4, "noise": scale.noise, "mode": "early"},
                **options,
            },
        },
        "data": {
            "class_path": "structrl.rl.data.RolloutData",
            "init_args": {
                "env": env_config(task, scale, arm.reward),
                "episodes_per_iteration": scale.episodes,
                "evaluate_episodes": scale.evaluate,
            },
        },
    }  # fmt: skip


def _policy(scale: Scale, critic_sees: str) -> dict[str, Any]:
    return {
        "class_path": "structrl.policies.compact.CompactVLA",
        "init_args": {**scale.policy, "critic_sees": critic_sees},
    }

"""Draws docs/quickstart.png from a finished quickstart: an episode of the trained policy, and what training was like.

    MUJOCO_GL=egl python docs/picture.py [--run runs/quickstart] [--output docs/quickstart.png]

Needs matplotlib, which structrl itself does not.
"""

import argparse
import dataclasses
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from structrl import keys
from structrl.envs import make_env
from structrl.evaluate.run_config import config_of, read_config
from structrl.plan import stack_plans
from structrl.policies.protocol import env_spec
from structrl.rl.actors import deterministic
from structrl.rl.rollout import run_episodes
from structrl.rl.warm_start import load_actor
from structrl.seeding import Stream
from structrl.sims.base import Start
from structrl.sims.tabletop import render_frame

WIDTH, HEIGHT = 480, 360


def episode_frames(checkpoint: Path) -> list[tuple[str, np.ndarray]]:
    """The first successful evaluation episode: its start, and the state after each chunk with a credit."""
    run = read_config(config_of(checkpoint))
    env = make_env(dataclasses.replace(run.env, num_envs=1))
    policy = run.actor_critic(env_spec(env))
    load_actor(policy, str(checkpoint))
    for number in range(50):
        start = Start(0, -1, (0, int(Stream.EVALUATE), 2, number))
        frames: list[tuple[str, np.ndarray]] = []
        table = run_episodes(env, _filming(policy, start, env, frames), [start], on_chunk=_credits(env, frames)).table
        if table[keys.SUCCESS][0]:
            return frames
    raise SystemExit("no success in 50 episodes: is this a trained policy?")


def _film(env, title: str, frames: list) -> None:
    frames.append((title, render_frame(env.simulator, 0, WIDTH, HEIGHT)))


def _filming(policy, start: Start, env, frames: list):
    act = deterministic(policy, [start])

    def acting(td, chunk, episode):
        if chunk[0] == 0:
            _film(env, "start", frames)
        return act(td, chunk, episode)

    return acting


def _credits(env, frames: list):
    names = stack_plans(env.simulator.tasks).names[0]

    def credited(td, chunk, episode):
        at = td["next", keys.PLAN, "credited_at"][0]
        for i in (at > td[keys.TIME][0]).nonzero()[:, 0].tolist():
            _film(env, f"{names[i]}: step {at[i]}", frames)

    return credited


def main() -> None:
    """Draw it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, default=Path("runs/quickstart"))
    parser.add_argument("--output", type=Path, default=Path("docs/quickstart.png"))
    args = parser.parse_args()
    frames = episode_frames(args.run / "ppo/checkpoints/last.ckpt")
    events = EventAccumulator(str(args.run / "ppo/tensorboard"))
    events.Reload()
    figure = plt.figure(figsize=(3.2 * len(frames), 5.4), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=[1.0, 1.05])
    for axis, (title, frame) in zip(top.subplots(1, len(frames)), frames, strict=True):
        axis.imshow(frame)
        axis.set_title(title, fontsize=10)
        axis.axis("off")
    left, right = bottom.subplots(1, 2)
    for tag in events.Tags()["scalars"]:
        parts = tag.split("/")
        if parts[0] == "task" and parts[-1] == "rate":
            points = events.Scalars(tag)
            left.plot([p.step / 1000 for p in points], [p.value for p in points], label=parts[3])
    left.set(title="training episodes that complete each subtask", ylim=(0, 1), xlabel="1000 environment steps")
    left.legend(loc="lower right", fontsize=8)
    for tag, label in (
        ("charts/success", "training, with noise"),
        ("evaluate/charts/success", "evaluation"),
    ):
        points = events.Scalars(tag)
        right.plot([p.step / 1000 for p in points], [p.value for p in points], marker=".", label=label)
    right.set(title="success", ylim=(0, 1), xlabel="1000 environment steps")
    right.legend(loc="lower right", fontsize=8)
    for axis in (left, right):
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(args.output, dpi=100)


if __name__ == "__main__":
    main()

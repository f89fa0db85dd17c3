"""`structrl demos TASK`: demonstrations of a simulator's scripted expert, in the episode format."""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from tqdm import tqdm

from structrl import keys
from structrl.envs import EnvConfig, make_env
from structrl.envs.chunk_env import row_start
from structrl.evaluate.episodes import Episode, EpisodeWriter
from structrl.evaluate.recorder import EpisodeRecorder
from structrl.rewards import RewardOptions
from structrl.rl.rollout import ENV, run_episodes
from structrl.seeding import Stream
from structrl.sims.base import Ids, Start
from structrl.task import load_task

EXPERTS = {"tabletop": "structrl.sims.tabletop:TabletopExpert"}  # simulator -> class(simulator, slop)
HOPELESS = 200  # attempts without a single success after which recording stops


class Expert(Protocol):
    """A scripted policy on the true state of a simulator."""

    def reset(self, ids: Ids, starts: Sequence[Start]) -> None:
        """Begin episodes."""

    def act(self, ids: Ids) -> np.ndarray:
        """Actions [n, A] of one control step."""


@dataclass
class Tally:
    """Counts over the attempts up to the last demonstration kept, in the order of their starts."""

    wanted: int
    kept: int = 0
    failures: int = 0

    @property
    def attempts(self) -> int:
        """Episodes run."""
        return self.kept + self.failures


def find_expert(simulator: str) -> str:
    """The scripted expert of a simulator, `package.module:Class`.

    Raises:
        ValueError: it has none.
    """
    if simulator not in EXPERTS:
        raise ValueError(
            f"simulator '{simulator}' has no scripted expert (there is one for: {', '.join(EXPERTS)}); "
            "use demonstrations of its benchmark instead"
        )
    return EXPERTS[simulator]


def record(env: Any, expert: Expert, tally: Tally, seed: int, keep: Callable[[Episode], None], bar: tqdm) -> None:
    """Run the expert until `tally.wanted` episodes succeeded; those go to `keep`, in the order of their starts.

    Which episodes are kept does not depend on the number of environments: starts are numbered, and attempts after the
    last one wanted are neither kept nor counted.

    Args:
        env: one task, chunk 1, `record=True`.
        expert: acts on the same simulator.
        tally: updated.
        seed: starts are (seed, Stream.DEMOS, 0, attempt).
        keep: takes each success.
        bar: counts successes.

    Raises:
        RuntimeError: the first `HOPELESS` attempts all failed.
    """

    def act(td: TensorDict, chunk: Tensor, episode: Tensor) -> TensorDict:
        ids = td[ENV].numpy()
        new = np.flatnonzero(chunk.numpy() == 0)
        if len(new):
            expert.reset(ids[new], [row_start(row) for row in td[keys.START][new].tolist()])
        return td.set(keys.ACTION, torch.from_numpy(expert.act(ids))[:, None])

    def finished(episode: Episode) -> None:
        if tally.kept == tally.wanted:
            return
        if episode.succeeded:
            tally.kept += 1
            keep(episode)
            bar.update()
        else:
            tally.failures += 1
        bar.set_postfix(attempts=tally.attempts, failed=tally.failures, refresh=False)

    first = 0
    while tally.kept < tally.wanted:
        if not tally.kept and tally.failures >= HOPELESS:
            raise RuntimeError(f"the expert failed in all of {tally.failures} attempts; is the task one it can do?")
        missing = tally.wanted - tally.kept
        rate = (tally.kept + 1) / (tally.attempts + 1)
        batch = min(int(np.ceil(missing / rate)), max(4 * missing, env.batch_size[0]))
        starts = [Start(0, -1, (seed, int(Stream.DEMOS), 0, first + i)) for i in range(batch)]
        run_episodes(env, act, starts, on_chunk=EpisodeRecorder(env, finished))
        first += batch


def main(argv: list[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="structrl demos", description=__doc__)
    parser.add_argument("task", metavar="TASK", help="a .task file, or the name of one that comes with structrl")
    parser.add_argument("--episodes", type=int, required=True, metavar="N", help="successful episodes to record")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.h5", help="the file to write")
    parser.add_argument("--slop", type=float, default=0.007, help="spread of the expert's grasps, m (default: 0.007)")
    parser.add_argument("--num-envs", type=int, default=128, help="environments at once (default: 128)")
    parser.add_argument("--seed", type=int, default=0, help="of the starts and the slop (default: 0)")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    args = parser.parse_args(argv)
    if args.episodes < 1 or args.num_envs < 1 or args.seed < 0 or not 0 <= args.slop < float("inf"):
        parser.error("--episodes and --num-envs must be at least 1, --slop and --seed at least 0")
    torch.set_num_threads(1)  # simulation has the cores
    try:
        task = load_task(args.task)
        target = find_expert(task.sim or "(none)")
        # What is recorded does not depend on pay, and durations may not have been measured yet.
        config = EnvConfig(
            tasks=[args.task], num_envs=min(args.num_envs, args.episodes), chunk=1, reward=RewardOptions(pace="fixed")
        )
        meta = {"command": "demos", "task": task.name, "seed": args.seed, "slop": args.slop, "chunk": 1}
        tally = Tally(args.episodes)
        with (
            EpisodeWriter(args.out, meta, overwrite=args.overwrite) as out,
            tqdm(total=args.episodes, desc="demonstrations", unit="episode") as bar,
        ):
            env = make_env(config, record=True)
            expert = env.base_env.runner.make_expert(target, slop=args.slop)
            record(env, expert, tally, args.seed, out.append, bar)
            out.meta |= {"attempts": tally.attempts, "failures": tally.failures}
            env.close()
    except (OSError, ValueError, RuntimeError) as error:
        print(f"structrl demos: error: {error}", file=sys.stderr)
        return 1
    print(
        f"{tally.kept} demonstrations of {task.name} in {args.out}; "
        f"{tally.failures} of {tally.attempts} attempts failed and were dropped"
    )
    return 0

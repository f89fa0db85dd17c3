"""`structrl demos TASK`: demonstrations of a simulator's scripted expert, or LIBERO's own, in the episode format."""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import yaml
from tensordict import TensorDict
from torch import Tensor
from tqdm import tqdm

from structrl import keys
from structrl.envs import EnvConfig, make_env
from structrl.envs.chunk_env import row_start
from structrl.evaluate.episodes import Episode, EpisodeWriter
from structrl.evaluate.recorder import EpisodeRecorder
from structrl.imitation.libero_demos import read_libero
from structrl.rewards import RewardOptions
from structrl.rl.rollout import ENV, run_episodes
from structrl.seeding import Stream
from structrl.sims.base import Ids, Start
from structrl.sims.installed import own_python
from structrl.task import load_task

EXPERTS = {  # simulator -> class(simulator, slop)
    "libero": "structrl.sims.libero.expert:LiberoExpert",
    "tabletop": "structrl.sims.tabletop:TabletopExpert",
}
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


def _simulator_arguments(pairs: Sequence[str], parser: argparse.ArgumentParser) -> dict[str, Any]:
    """`KEY=VALUE` with YAML values."""
    arguments = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        try:
            arguments[key.strip()] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            parser.error(f"--sim {pair}: the value is no YAML ({error})")
        if not key.strip() or not equals:
            parser.error(f"--sim {pair}: write KEY=VALUE, for example --sim 'cameras=[overview, wrist]'")
    return arguments


def convert(args: argparse.Namespace, sim: dict[str, Any]) -> int:
    """LIBERO's demonstrations; those whose success does not come back are dropped and counted."""
    tally = Tally(0)
    try:
        task = load_task(args.task)
        python = args.python or own_python("libero")
        if task.sim != "libero" or python is None:
            raise ValueError(f"{task.path}: its simulator is '{task.sim}', and the demonstrations are LIBERO's")
        meta = {"command": "demos", "task": task.name, "from": args.from_libero.name, "chunk": 1, "sim": sim}
        with EpisodeWriter(args.out, meta, overwrite=args.overwrite) as out:
            for episode in tqdm(read_libero(args.from_libero, task, python, sim), unit="episode"):
                if episode.succeeded:
                    tally.kept += 1
                    out.append(episode)
                else:
                    tally.failures += 1
            if not tally.kept:
                raise ValueError(f"{args.from_libero}: none of {tally.failures} demonstrations succeeds")
            out.meta |= {"attempts": tally.attempts, "failures": tally.failures}
    except (OSError, ValueError) as error:
        print(f"structrl demos: error: {error}", file=sys.stderr)
        return 1
    print(
        f"{tally.kept} demonstrations of {task.name} in {args.out}; {tally.failures} of {tally.attempts} were dropped: "
        "their success did not come back"
    )
    return 0


def main(argv: list[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="structrl demos", description=__doc__)
    parser.add_argument("task", metavar="TASK", help="a .task file, or the name of one that comes with structrl")
    parser.add_argument("--episodes", type=int, metavar="N", help="successful episodes to record")
    parser.add_argument("--from-libero", type=Path, metavar="FILE.hdf5", help="convert LIBERO's own demonstrations")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.h5", help="the file to write")
    parser.add_argument("--slop", type=float, default=0.007, help="spread of the expert's grasps, m (default: 0.007)")
    parser.add_argument(
        "--sim",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="argument of the simulator, as env.sim in a config: --sim 'cameras=[overview, wrist]' records pictures",
    )
    parser.add_argument(
        "--observe-every",
        type=int,
        default=1,
        metavar="N",
        help="steps between recorded observations: pictures of every step are many (default: 1)",
    )
    parser.add_argument("--num-envs", type=int, default=128, help="environments at once (default: 128)")
    parser.add_argument("--workers", type=int, default=0, help="processes for them; 0: this one, if the simulator can")
    parser.add_argument("--python", metavar="PATH", help="interpreter of the workers (default: the simulator's own)")
    parser.add_argument("--seed", type=int, default=0, help="of the starts and the slop (default: 0)")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    args = parser.parse_args(argv)
    if (args.episodes is None) == (args.from_libero is None):
        parser.error("give --episodes, or --from-libero")
    if args.from_libero is not None:
        return convert(args, _simulator_arguments(args.sim, parser))
    if min(args.episodes, args.num_envs, args.observe_every) < 1 or args.seed < 0 or not 0 <= args.slop < float("inf"):
        parser.error("--episodes, --num-envs and --observe-every must be at least 1, --slop and --seed at least 0")
    sim = _simulator_arguments(args.sim, parser)
    torch.set_num_threads(1)  # simulation has the cores
    try:
        task = load_task(args.task)
        target = find_expert(task.sim or "(none)")
        # What is recorded does not depend on pay, and durations may not have been measured yet.
        config = EnvConfig(
            tasks=[args.task],
            num_envs=min(args.num_envs, args.episodes),
            chunk=1,
            sim=sim,
            reward=RewardOptions(pace="fixed"),
            workers=min(args.workers, args.episodes),
            python=args.python,
        )
        meta = {"command": "demos", "task": task.name, "seed": args.seed, "slop": args.slop, "chunk": 1, "sim": sim}
        tally = Tally(args.episodes)
        with (
            EpisodeWriter(args.out, meta, overwrite=args.overwrite) as out,
            tqdm(total=args.episodes, desc="demonstrations", unit="episode") as bar,
        ):
            env = make_env(config, record=True)
            env.base_env.observe_every = args.observe_every
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

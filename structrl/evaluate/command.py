"""`structrl evaluate`: success of a checkpoint, per task and per subtask, with 95 % Wilson intervals.

The policy acts by the ODE from seeded noise, on starts that no training or validation of any run uses, so that the same
command gives the same numbers.
"""

import argparse
import contextlib
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

import structrl
from structrl.envs import EnvConfig, make_env, make_halves
from structrl.evaluate.episodes import EpisodeWriter, versions
from structrl.evaluate.recorder import EpisodeRecorder
from structrl.evaluate.replay import film, film_config, select
from structrl.evaluate.report import FORMAT, compare_text, read_report, summarise, table_text
from structrl.evaluate.run_config import config_of, read_config
from structrl.evaluate.suites import INITS, suite_starts, suite_tasks, suite_text, summarise_suite
from structrl.evaluate.video import annotate, pictures, require_av, write_mp4
from structrl.plan import stack_plans
from structrl.policies.protocol import env_spec
from structrl.rl.actors import deterministic
from structrl.rl.rollout import Episodes, run_episodes
from structrl.rl.warm_start import load_actor
from structrl.seeding import Stream
from structrl.sims.base import Start

ITERATION = 1  # of stream EVALUATE; the validations inside a run are iteration 0


def evaluate(
    checkpoint: Path,
    episodes: int,
    seed: int,
    *,
    env_from: Path | None = None,
    suite: str | None = None,
    num_envs: int | None = None,
    save_episodes: Path | None = None,
    overwrite: bool = False,
    video: Path | None = None,
    video_episodes: int = 4,
    progress: bool = True,
) -> dict[str, Any]:
    """Run a checkpoint's evaluation episodes.

    Args:
        checkpoint: RUN/checkpoints/*.ckpt of supervised or reinforcement learning; RUN/config.yaml says the rest.
        episodes: per task; of a suite, its initial states 0 to `episodes` - 1.
        seed: of starts and initial noise.
        env_from: a config whose environment to act in, in place of the run's own.
        suite: all tasks of a benchmark's suite, `libero_10`, in place of the config's tasks.
        num_envs: environments at once, in place of the config's. Starts and noise stay the same, but floating error
            does not, and contacts can amplify that to another outcome.
        save_episodes: an HDF5 file for all of them, to be explained.
        overwrite: whether that file may be replaced.
        video: folder for videos of some episodes, failures among them.
        video_episodes: how many.
        progress: draw a bar.

    Returns:
        The report, as `--output` writes it.

    Raises:
        FileNotFoundError: no checkpoint, config or task file.
        ValueError: a config, task or checkpoint that does not fit, or videos of a simulator that makes no pictures.
        ImportError: videos, and PyAV is not installed.
    """
    own = read_config(config_of(checkpoint))
    other = own if env_from is None else read_config(env_from)
    if suite is not None:
        other = other._replace(env=dataclasses.replace(other.env, tasks=suite_tasks(suite)))
        if episodes > INITS:
            raise ValueError(f"a task of {suite} has {INITS} initial states, not {episodes}")
    tasks = len(other.env.tasks)
    config = other.env.sized(min(num_envs or other.env.num_envs, episodes * tasks))
    if video is not None:
        require_av()
        film_config(config, 1)  # complain before the episodes are run
    # recording reads an undivided batch; overlap changes episodes by no more than rounding
    env = make_halves(config) if save_episodes is None else make_env(config, record=True)
    try:
        policy = own.actor_critic(env_spec(env))
        load_actor(policy, str(checkpoint))
        policy.eval()
        starts = [Start(e % tasks, -1, (seed, int(Stream.EVALUATE), ITERATION, e)) for e in range(episodes * tasks)]
        if suite is not None:
            starts = suite_starts(tasks, episodes, seed, ITERATION)
        with contextlib.ExitStack() as stack:
            record = None
            if save_episodes is not None:
                meta = {
                    "command": "evaluate",
                    "checkpoint": str(checkpoint),
                    "seed": seed,
                    "chunk": config.chunk,
                    "reward": dataclasses.asdict(config.reward.resolved()),
                }
                writer = stack.enter_context(EpisodeWriter(save_episodes, meta, overwrite=overwrite))
                record = EpisodeRecorder(env, writer.append)
            bar = stack.enter_context(tqdm(total=len(starts), desc="evaluate", unit="episode", disable=not progress))

            def show(finished: int, steps: int) -> None:
                bar.update(finished - bar.n)

            done = run_episodes(env, deterministic(policy, starts), starts, on_chunk=record, progress=show)
        if video is not None:
            save_videos(video, config, done, video_episodes, env.simulator.control_hz)
        results = summarise(done.table, stack_plans(env.simulator.tasks))
        return {
            "format": FORMAT,
            "checkpoint": str(checkpoint),
            "config": {**own.plain, "env": other.env_as_run()},
            "seed": seed,
            "episodes": episodes,
            "commit": commit(),
            "versions": versions(),
            "dropped": done.dropped,
            "invalid_starts": env.counts["invalid_starts"],
            "suite": None if suite is None else summarise_suite(suite, results),
            "tasks": results,
        }
    finally:
        env.close()


def save_videos(folder: Path, config: EnvConfig, episodes: Episodes, count: int, fps: float) -> None:
    """Film some episodes again and write `folder/<task>-<episode>-<success|failure>.mp4`."""
    rows = select(episodes, count)
    reward = dataclasses.asdict(config.reward.resolved())
    for row, episode in zip(rows, film(config, episodes, rows), strict=True):
        end = "success" if episode.succeeded else "failure"
        frames = annotate(episode, pictures(episode), reward, config.chunk, f"episode {row}, {episode.task.name}")
        path = folder / f"{episode.task.name}-{row:04d}-{end}.mp4"
        write_mp4(path, frames, fps)
        print(f"written to {path}")


def commit() -> str | None:
    """The commit of structrl's source checkout, `-dirty` if changed since; None outside of one."""
    try:
        return subprocess.run(
            ["git", "-C", str(Path(structrl.__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None


def main(argv: list[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="structrl evaluate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="CKPT", help="RUN/checkpoints/last.ckpt")
    parser.add_argument(
        "--suite", metavar="NAME", help=f"all tasks of libero_10, ...: from each of their {INITS} initial states"
    )
    parser.add_argument(
        "--episodes", type=int, metavar="N", help=f"per task (default: 200; of a suite {INITS}: one per initial state)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of starts and initial noise (default: 0)")
    parser.add_argument("--env-from", type=Path, metavar="X.yaml", help="act in the environment of another config")
    parser.add_argument("--num-envs", type=int, help="environments at once (default: the config's)")
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="write the result")
    parser.add_argument("--compare", type=Path, metavar="FILE.json", help="show an earlier result beside this one")
    parser.add_argument("--save-episodes", type=Path, metavar="FILE.h5", help="for structrl explain --episode")
    parser.add_argument("--video", type=Path, metavar="DIR", help="film some episodes, failures among them (mp4)")
    parser.add_argument("--video-episodes", type=int, default=4, metavar="N", help="how many (default: 4)")
    parser.add_argument("--overwrite", action="store_true", help="replace the file of --save-episodes if it exists")
    args = parser.parse_args(argv)
    if args.episodes is None:
        args.episodes = 200 if args.suite is None else INITS
    if args.episodes < 1 or (args.num_envs is not None and args.num_envs < 1) or args.seed < 0:
        parser.error("--episodes and --num-envs must be at least 1, --seed at least 0")
    if args.video_episodes < 1:
        parser.error("--video-episodes must be at least 1")
    if args.output is not None and args.output.is_dir():
        parser.error(f"--output {args.output} is a folder; give the name of a file in it")
    torch.set_num_threads(1)  # small layers: more threads are many times slower
    try:
        before = None if args.compare is None else read_report(args.compare)  # complain before the episodes are run
        report = evaluate(
            args.checkpoint,
            args.episodes,
            args.seed,
            env_from=args.env_from,
            suite=args.suite,
            num_envs=args.num_envs,
            save_episodes=args.save_episodes,
            overwrite=args.overwrite,
            video=args.video,
            video_episodes=args.video_episodes,
        )
        print(table_text(report["tasks"]))
        if report["suite"] is not None:
            print(f"\n{suite_text(report['suite'], report['tasks'])}")
        if report["dropped"]:
            print(f"{report['dropped']} episodes were dropped with their workers; no rate counts them")
        if args.output is not None:
            args.output.parent.mkdir(parents=True, exist_ok=True)
            args.output.write_text(json.dumps(report, indent=1) + "\n")
            print(f"\nwritten to {args.output}")
        if before is not None:
            print(f"\n{compare_text(before, report)}")
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        print(f"structrl evaluate: error: {error}", file=sys.stderr)
        return 1
    return 0

"""From a list of task files to the environment that training, evaluation and demonstrations run."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torchrl.envs import TransformedEnv

from structrl.envs.chunk_env import ChunkEnv
from structrl.envs.halves import Halves
from structrl.lang.spec import TaskSpec
from structrl.plan import stack_plans
from structrl.rewards import RewardOptions, StructuredReward
from structrl.sims.base import Simulator
from structrl.sims.chunks import ChunkRunner
from structrl.sims.installed import own_python
from structrl.sims.pool import Pool
from structrl.sims.registry import make_simulator, simulator_class, target_of
from structrl.sims.runner import Runner
from structrl.task import load_task


@dataclass
class EnvConfig:
    """What to run: tasks of one simulator, and how they are paid.

    Attributes:
        tasks: task files, or names of shipped ones (`tabletop/pack_lunch`); the order gives the task rows.
        num_envs: E, environments stepped together.
        chunk: H, environment steps per action chunk.
        sim: further arguments of the simulator, besides those in the task files.
        reward: options of the structured reward.
        workers: W, processes that the environments are spread over; 0 simulates in this process. A simulator that
            needs a Python of its own has at least 1.
        python: interpreter of the workers; default: the one that `structrl sims install` made or `register` was told,
            and this one for simulators that have none.
        timeout: seconds that a worker may take for a start, a reset or a chunk before it is taken for dead.
        overlap: two halves of the environments take turns: one simulates while the policy acts in the other. No
            episode changes but for the rounding of a policy that is asked about half as many rows at once. It pays
            where acting and simulating take place on different hardware and cost alike.

    Raises:
        ValueError: fewer than one environment, or than one step per chunk; more workers than environments; halves of
            fewer than two environments or with fewer than two workers.
    """

    tasks: list[str]
    num_envs: int = 128
    chunk: int = 8
    sim: dict[str, Any] = field(default_factory=dict)
    reward: RewardOptions = field(default_factory=RewardOptions)
    workers: int = 0
    python: str | None = None
    timeout: float = 300.0
    overlap: bool = False

    def __post_init__(self) -> None:
        for key in ("num_envs", "chunk"):
            if getattr(self, key) < 1:
                raise ValueError(f"env.{key} must be at least 1, not {getattr(self, key)}")
        if not 0 <= self.workers <= self.num_envs:
            raise ValueError(f"env.workers must be 0 to env.num_envs ({self.num_envs}), not {self.workers}")
        if not self.timeout > 0:
            raise ValueError(f"env.timeout must be above 0 s, not {self.timeout}")
        if self.overlap and self.num_envs < 2:
            raise ValueError("env.overlap has two halves of the environments take turns: env.num_envs must be above 1")
        if self.overlap and self.workers == 1:
            raise ValueError("env.overlap gives each half of the environments its own workers: env.workers cannot be 1")

    def sized(self, num_envs: int) -> "EnvConfig":
        """The same with another number of environments, and no more workers than that allows."""
        overlap = self.overlap and num_envs > 1
        workers = min(self.workers, num_envs)
        return dataclasses.replace(self, num_envs=num_envs, workers=workers, overlap=overlap)


def make_halves(cfg: EnvConfig, seed: int = 0) -> TransformedEnv | Halves:
    """As `make_env`, in two halves if the config wants overlap.

    Raises:
        as `make_env`.
    """
    if not cfg.overlap:
        return make_env(cfg, seed)
    smaller, workers = cfg.num_envs // 2, cfg.workers // 2
    sizes = (cfg.num_envs - smaller, cfg.workers - workers), (smaller, workers)
    return Halves([make_env(dataclasses.replace(cfg, num_envs=E, workers=W, overlap=False), seed) for E, W in sizes])


def make_env(cfg: EnvConfig, seed: int = 0, record: bool = False) -> TransformedEnv:
    """The environment of a config, undivided: `ChunkEnv` with the `StructuredReward` transform.

    Args:
        cfg: the config.
        seed: of the starts that the environment draws where it is given none.
        record: keep atoms and measured values of every step (see `ChunkEnv`).

    Raises:
        ValueError: no tasks; tasks that name different simulators, contradict each other's or the config's arguments,
            or lack what running needs: every such file is named, all at once. Unknown simulators and arguments.
        FileNotFoundError: a task file that does not exist; a simulator that has to be installed first.
        structrl.sims.pool.PoolError: workers that do not start.
        structrl.lang.diagnostics.TaskError: a task file with errors (also a ValueError).
    """
    if not cfg.tasks:
        raise ValueError("`tasks` is empty: name at least one task file, such as tabletop/pack_lunch")
    specs = [load_task(task) for task in cfg.tasks]
    problems = _problems(specs, cfg.reward.resolved().pace == "dynamic", cfg.python)
    if problems:
        raise ValueError("the tasks of this config cannot be run:\n  " + "\n  ".join(problems))
    env = ChunkEnv(_runner(cfg, specs, record), cfg.chunk)
    env.set_seed(seed)
    return TransformedEnv(env, StructuredReward(stack_plans(specs), cfg.reward, cfg.chunk))


def _runner(cfg: EnvConfig, specs: Sequence[TaskSpec], record: bool) -> Runner:
    """The simulator of the config's tasks, in this process or in workers."""
    name = str(specs[0].sim)
    python = cfg.python or own_python(name)
    if python is None and not cfg.workers:
        return ChunkRunner(make_simulator(name, specs, cfg.num_envs, **cfg.sim), record)
    return Pool(
        name, target_of(name), specs, cfg.num_envs, cfg.chunk, cfg.sim,
        workers=cfg.workers or 1, python=python, record=record, timeout=cfg.timeout,
    )  # fmt: skip


def _judges_success(name: str) -> bool:
    """Whether a simulator of this process has a success check; of others `load_task` has asked the vocabulary."""
    return simulator_class(name).own_success is not Simulator.own_success


def _problems(specs: Sequence[TaskSpec], paced: bool, python: str | None) -> list[str]:
    """Everything that keeps `specs` from being run in one environment, one line each."""
    found = []
    first: dict[str, TaskSpec] = {}
    for spec in specs:
        if spec.name in first:
            found.append(f"{spec.path}: a task named '{spec.name}' is already in {first[spec.name].path}")
        first.setdefault(spec.name, spec)
        for part, example in (("sim", 'tabletop(scene="lunch")'), ("horizon", "240 steps"), ("command", '"..."')):
            if getattr(spec, part) is None:
                found.append(f"{spec.path}: add `{part}`, for example: {part} {example}")
        sim, other = spec.sim, specs[0].sim
        if sim and other and sim != other:
            found.append(f"{spec.path}: runs on '{sim}', but {specs[0].path} on '{other}'")
        elif sim and spec.success is None and not (python or own_python(sim)) and not _judges_success(sim):
            found.append(f"{spec.path}: add `success CONDITION`: '{sim}' has no success check of its own")
        missing = [s.label for s in spec.subtasks if s.duration is None]
        if paced and missing:
            found.append(
                f"{spec.path}: no duration (`@ T_d`) for {', '.join(missing)}: measure it with `structrl calibrate "
                f"{spec.path} --demos FILE.h5 --write`, or set reward.pace to fixed"
            )
    return found

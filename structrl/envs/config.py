"""From a list of task files to the environment that training, evaluation and demonstrations run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torchrl.envs import TransformedEnv

from structrl.envs.chunk_env import ChunkEnv
from structrl.lang.spec import TaskSpec
from structrl.plan import stack_plans
from structrl.rewards import RewardOptions, StructuredReward
from structrl.sims.base import Simulator
from structrl.sims.registry import known_arguments, make_simulator, simulator_class
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

    Raises:
        ValueError: fewer than one environment, or than one step per chunk.
    """

    tasks: list[str]
    num_envs: int = 128
    chunk: int = 8
    sim: dict[str, Any] = field(default_factory=dict)
    reward: RewardOptions = field(default_factory=RewardOptions)

    def __post_init__(self) -> None:
        for key in ("num_envs", "chunk"):
            if getattr(self, key) < 1:
                raise ValueError(f"env.{key} must be at least 1, not {getattr(self, key)}")


def make_env(cfg: EnvConfig, seed: int = 0, record: bool = False) -> TransformedEnv:
    """The environment of a config: `ChunkEnv` with the `StructuredReward` transform.

    Args:
        cfg: the config.
        seed: of the starts that the environment draws where it is given none.
        record: keep atoms and measured values of every step (see `ChunkEnv`).

    Raises:
        ValueError: no tasks; tasks that name different simulators, contradict each other's or the config's arguments,
            or lack what running needs: every such file is named, all at once. Unknown simulators and arguments.
        FileNotFoundError: a task file that does not exist.
        structrl.lang.diagnostics.TaskError: a task file with errors (also a ValueError).
    """
    if not cfg.tasks:
        raise ValueError("`tasks` is empty: name at least one task file, such as tabletop/pack_lunch")
    specs = [load_task(task) for task in cfg.tasks]
    problems = _problems(specs, cfg.reward.resolved().pace == "dynamic")
    if problems:
        raise ValueError("the tasks of this config cannot be run:\n  " + "\n  ".join(problems))
    name = str(specs[0].sim)
    sim = make_simulator(name, specs, cfg.num_envs, **_arguments(name, specs, cfg.sim))
    env = ChunkEnv(sim, cfg.chunk, record)
    env.set_seed(seed)
    return TransformedEnv(env, StructuredReward(stack_plans(specs), cfg.reward, cfg.chunk))


def _problems(specs: Sequence[TaskSpec], paced: bool) -> list[str]:
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
        elif sim and spec.success is None and simulator_class(sim).own_success is Simulator.own_success:
            found.append(f"{spec.path}: add `success CONDITION`: '{sim}' has no success check of its own")
        missing = [s.label for s in spec.subtasks if s.duration is None]
        if paced and missing:
            found.append(
                f"{spec.path}: no duration (`@ T_d`) for {', '.join(missing)}: measure it with `structrl calibrate "
                f"{spec.path} --demos FILE.h5 --write`, or set reward.pace to fixed"
            )
    return found


def _arguments(name: str, specs: Sequence[TaskSpec], config: dict[str, Any]) -> dict[str, Any]:
    """The constructor's arguments: those that task files give (all the same) and those of the config.

    What a task file gives and the constructor does not take (the scene of a task, say) the simulator reads from the
    task; the config may repeat it, but not change it.
    """
    known = known_arguments(name)
    merged = dict(config)
    for spec in specs:
        for key, value in spec.sim_args.items():
            if merged.setdefault(key, value) != value and (key in config or key in known):
                where = "the config's `sim`" if key in config else "another task"
                raise ValueError(
                    f"{spec.path}: {name}({key}={value!r}) contradicts {key}={merged[key]!r} of {where}; "
                    "say it in one place"
                )
    in_tasks = {key for spec in specs for key in spec.sim_args}
    return {key: value for key, value in merged.items() if key in known or key not in in_tasks}

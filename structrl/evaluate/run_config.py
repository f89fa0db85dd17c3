"""The environment and the policy of a run, rebuilt from its config.yaml."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jsonargparse
import yaml

from structrl.envs import EnvConfig
from structrl.policies.actor_critic import ActorCritic
from structrl.policies.compact import CompactVLA
from structrl.policies.flow import FlowOptions
from structrl.policies.protocol import VLA, VLASpec


class RunConfig(NamedTuple):
    """What evaluation needs of a config: the environment and how to build the policy for it."""

    env: EnvConfig
    policy: Callable[[VLASpec], VLA]
    flow: FlowOptions
    plain: dict[str, Any]  # `policy` and `flow` as they stand in the file, for reports

    def env_as_run(self) -> dict[str, Any]:
        """The environment as plain data, with every default and the reward's preset filled in."""
        return dataclasses.asdict(self.env) | {"reward": dataclasses.asdict(self.env.reward.resolved())}

    def actor_critic(self, spec: VLASpec) -> ActorCritic:
        """The policy with its first weights."""
        return ActorCritic(self.policy(spec), self.flow)


def _parts(
    env: EnvConfig,
    policy: Callable[[VLASpec], VLA] = CompactVLA,
    flow: FlowOptions = FlowOptions(),  # noqa: B008 - frozen
) -> None:
    """The part of a model's and a data module's arguments that makes an acting policy."""


def read_config(path: Path) -> RunConfig:
    """Read the config of a run, of supervised or reinforcement learning, or one to be run.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: not a config of `structrl fit`, or with a value that does not fit; names the file.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no config {path}; give the config.yaml of a run folder, or a config of structrl fit")
    try:
        data = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no YAML: {error}") from None
    try:
        model, env = data["model"].get("init_args", {}), data["data"]["init_args"]["env"]
    except (KeyError, TypeError, AttributeError):
        raise ValueError(f"{path} is no config of structrl fit: it has no data.init_args.env and model") from None
    plain = {key: model[key] for key in ("policy", "flow") if model.get(key) is not None}
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_function_arguments(_parts)
    try:
        parts = parser.instantiate(parser.parse_object({"env": env, **plain}))
    except jsonargparse.ArgumentError as error:
        raise ValueError(f"{path}: {error}") from None
    return RunConfig(parts.env, parts.policy, parts.flow, plain)


def config_of(checkpoint: Path) -> Path:
    """The config beside a checkpoint: RUN/config.yaml for RUN/checkpoints/last.ckpt.

    Raises:
        FileNotFoundError: no such checkpoint, or none of its folders holds a config.
    """
    if not checkpoint.is_file():
        folder = next((p for p in checkpoint.parents if p.is_dir()), Path())
        there = sorted(str(p) for p in folder.glob("**/*.ckpt"))[:6]
        raise FileNotFoundError(
            f"no checkpoint {checkpoint}; in {folder} there are: {', '.join(there) or 'no checkpoints'}"
        )
    for folder in list(checkpoint.resolve().parents)[:2]:
        if (folder / "config.yaml").is_file():
            return folder / "config.yaml"
    # `last.ckpt` may be a link
    for folder in list(checkpoint.absolute().parents)[:2]:
        if (folder / "config.yaml").is_file():
            return folder / "config.yaml"
    raise FileNotFoundError(f"no config.yaml beside {checkpoint} or in the folder above; evaluate needs the run folder")

"""The shipped LIBERO configs name keys, classes and tasks that exist, and pay what the task files say."""

from pathlib import Path

import pytest
import yaml
from jsonargparse import ArgumentParser

from structrl.evaluate.run_config import read_config
from structrl.evaluate.suites import suite_tasks
from structrl.rl.options import PPOOptions
from structrl.task import load_task

CONFIGS = sorted((Path(__file__).parents[2] / "configs" / "libero").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_key_is_known(path):
    config = read_config(path)  # env, policy and flow
    assert all(s.duration is not None for task in config.env.tasks for s in load_task(task).subtasks)


@pytest.mark.parametrize("name", ["compact_ppo", "long_ppo"])
def test_options_of_ppo(name):
    path = next(path for path in CONFIGS if path.stem == name)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(PPOOptions, "ppo")
    parser.parse_object({"ppo": yaml.safe_load(path.read_text())["model"]["init_args"]["ppo"]})


def test_libero_long_has_the_suites_tasks():
    path = next(path for path in CONFIGS if path.stem == "long_ppo")
    assert read_config(path).env.tasks == suite_tasks("libero_10")

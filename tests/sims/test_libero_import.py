"""All 130 problems of LIBERO through `structrl import bddl`: checked, compiled, and run."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from structrl import keys
from structrl.cli import main
from structrl.envs import EnvConfig, make_env
from structrl.plan import compile_plan
from structrl.rewards import RewardOptions
from structrl.rl.rollout import run_episodes
from structrl.sims.base import Start
from structrl.sims.installed import own_python

SUITES = {"libero_spatial": 10, "libero_object": 10, "libero_goal": 10, "libero_10": 10, "libero_90": 90}
FIND = "import importlib.util as u; print(list(u.find_spec('libero').submodule_search_locations)[0])"


@pytest.fixture(scope="module")
def python():
    try:
        return os.environ.get("LIBERO_PYTHON") or str(own_python("libero"))
    except FileNotFoundError:
        pytest.skip("no Python with LIBERO: structrl sims install libero")


@pytest.fixture(scope="module")
def problems(python):
    """suite -> its BDDL files."""
    root = Path(subprocess.run([python, "-c", FIND], capture_output=True, text=True, check=True).stdout.strip())
    found = {suite: sorted((root / "libero/bddl_files" / suite).glob("*.bddl")) for suite in SUITES}
    assert {suite: len(files) for suite, files in found.items()} == SUITES
    return found


def imported(file, folder):
    """The task file of a problem, with a horizon, which BDDL does not have."""
    path = folder / f"{file.stem}.task"
    assert main(["import", "bddl", str(file), "--output", str(path)]) == 0
    path.write_text(path.read_text().replace("\n\nplan", "\nhorizon 4 steps\n\nplan"))
    return path


@pytest.mark.parametrize("suite", SUITES)
def test_all_are_imported_checked_and_compiled(suite, problems, tmp_path, capsys):
    files = [str(imported(file, tmp_path)) for file in problems[suite]]
    assert main(["check", *files]) == 0, capsys.readouterr()
    for file in files:
        plan = compile_plan(Path(file).read_text())
        assert len(plan.names) >= 1


@pytest.mark.heavy
@pytest.mark.parametrize("suite", SUITES)
def test_all_run(suite, problems, python, tmp_path):
    """One chunk of every task, in a worker of LIBERO's Python."""
    files = [str(imported(file, tmp_path)) for file in problems[suite]]
    config = EnvConfig(
        tasks=files,
        num_envs=1,
        chunk=4,
        sim={"models": 1},
        reward=RewardOptions(pace="fixed"),
        workers=1,
        python=python,
    )
    env = make_env(config)
    try:

        def act(td, chunk, episode):
            return td.set(keys.ACTION, torch.zeros(len(td), 4, 7))

        done = run_episodes(env, act, [Start(task, 0, (0, 0, 0, task)) for task in range(len(files))])
    finally:
        env.close()
    assert done.dropped == 0 and len(done.table) == len(files)
    np.testing.assert_array_equal(done.table["length"].numpy(), 4)

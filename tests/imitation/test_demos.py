"""Recorder and demonstrations: what lies in the file is what happened, whatever the number of environments."""

import numpy as np
import pytest
import torch
from tqdm import tqdm

from structrl import keys
from structrl.envs import EnvConfig, make_env, row_start
from structrl.evaluate.episodes import EpisodeFile
from structrl.evaluate.recorder import EpisodeRecorder
from structrl.imitation import demos
from structrl.imitation.demos import Tally, find_expert, main, record
from structrl.rl.rollout import run_episodes
from structrl.seeding import generator
from structrl.sims.base import Start
from structrl.sims.conditions import ConditionTable
from tests.toy import ToySimulator, picture

from .conftest import OTHER, TASK, ToyExpert


def noisy(td, chunk, episode):
    """Actions drawn from (episode, chunk), drifting upwards."""
    draws = [generator(9, int(e), int(c)).uniform(-0.2, 1, (4, 2)) for e, c in zip(episode, chunk, strict=True)]
    return td.set(keys.ACTION, torch.tensor(np.array(draws), dtype=torch.float32))


def recorded(num_envs, chunk=4, tasks=("climb", "three"), count=7):
    env = make_env(EnvConfig(list(tasks), num_envs=num_envs, chunk=chunk, sim={"dims": 2}), record=True)
    kept = []
    starts = [Start(e % len(tasks), -1, (3, 5, 0, e)) for e in range(count)]
    run_episodes(env, noisy, starts, on_chunk=EpisodeRecorder(env, kept.append))
    return kept


def test_recorded_episodes_replay(toy):
    """Oracle: one fresh environment, driven by the recorded actions from the recorded start."""
    kept = recorded(3)
    assert [int(e.start[5]) for e in kept] == list(range(7)), "not in the order of their starts"
    assert {e.task.name for e in kept} == {"climb", "three"}
    assert {e.succeeded for e in kept} == {True, False}
    for episode in kept:
        episode.check()
        row = int(episode.start[0])
        sim, table = ToySimulator([TASK, OTHER], 1), ConditionTable([TASK, OTHER], 1)
        ids, count = np.array([0]), len(episode.task.atoms)
        sim.reset(ids, [row_start(episode.start)])
        table.reset(ids, [row])
        for t in range(episode.length + 1):
            if t:
                sim.step(ids, episode.actions[None, t - 1])
            np.testing.assert_array_equal(episode.atom_values[t], sim.atom_values(ids)[0, :count])
            np.testing.assert_array_equal(episode.atoms[t], sim.atoms(ids)[0, :count])
            verdict = table.step(ids, sim.atoms(ids))
            np.testing.assert_array_equal(episode.holds[t], verdict.holds[0, : len(episode.task.subtasks)])
            assert episode.success[t] == verdict.success[0]
            if t in episode.obs_at:
                at = list(episode.obs_at).index(t)
                np.testing.assert_array_equal(episode.observation["state"][at], sim.observe(ids)["state"][0])
        assert list(episode.obs_at) == [*range(0, episode.length, 4), episode.length]
        assert episode.succeeded or episode.length == episode.task.horizon


def test_number_of_environments_changes_nothing(toy):
    few, many = recorded(1), recorded(7)
    for a, b in zip(few, many, strict=True):
        for name in ("start", "actions", "holds", "success", "atoms", "atom_values", "obs_at"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        np.testing.assert_array_equal(a.observation["tokens"], b.observation["tokens"])


def test_pictures_of_every_third_step(toy, tmp_path):
    """Fewer observations, the same demonstrations; a picture shows the step that it is said to show."""
    every, third = tmp_path / "every.h5", tmp_path / "third.h5"
    assert main(["climb", "--episodes", "4", "--slop", "0", "--out", str(every)]) == 0
    more = ["--observe-every", "3", "--sim", "pictures=8", "--num-envs", "3"]
    assert main(["climb", "--episodes", "4", "--slop", "0", "--out", str(third), *more]) == 0
    with EpisodeFile(every) as a, EpisodeFile(third) as b:
        assert b.meta["sim"] == {"pictures": 8} and len(a) == len(b) == 4
        for full, part in zip(a, b, strict=True):
            np.testing.assert_array_equal(full.actions, part.actions)
            np.testing.assert_array_equal(full.holds, part.holds)
            assert list(part.obs_at) == [*range(0, part.length, 3), part.length]
            np.testing.assert_array_equal(part.observation["state"], full.observation["state"][part.obs_at])
            shown = picture(full.observation["state"][part.obs_at], 8)
            np.testing.assert_array_equal(part.observation["images.front"], shown)


@pytest.mark.parametrize("pair", ["pictures", "=8", "pictures=[8"])
def test_simulator_arguments_that_are_none(pair, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main(["climb", "--episodes", "1", "--out", str(tmp_path / "d.h5"), "--sim", pair])
    assert end.value.code == 2 and f"--sim {pair}" in capsys.readouterr().err


def test_recorder_needs_a_recording_environment(toy):
    with pytest.raises(ValueError, match="record=True"):
        EpisodeRecorder(make_env(EnvConfig(["climb"], num_envs=1)), print)


def demonstrations(num_envs, wanted, slop):
    env = make_env(EnvConfig(["climb"], num_envs=num_envs, chunk=1), record=True)
    tally, kept = Tally(wanted), []
    with tqdm(disable=True) as bar:
        record(env, ToyExpert(env.simulator, slop), tally, 0, kept.append, bar)
    return tally, kept


def test_failures_are_dropped_and_counted(toy):
    tally, kept = demonstrations(4, 9, 0.5)
    assert len(kept) == tally.kept == 9
    assert all(episode.succeeded for episode in kept)
    numbers = [int(episode.start[5]) for episode in kept]
    assert numbers == sorted(set(numbers))
    # attempts are numbered, so the last one kept says how many there were, and the rest failed
    assert tally.attempts == numbers[-1] + 1
    assert tally.failures == tally.attempts - 9 > 0
    lazy = [generator(0, 4, 0, e, 0, 1).random() < 0.5 for e in range(tally.attempts)]
    assert [e for e, failed in enumerate(lazy) if not failed] == numbers
    assert all(len(episode.obs_at) == episode.length + 1 for episode in kept), "an observation at every step"


def test_demonstrations_do_not_depend_on_the_number_of_environments(toy):
    (one, few), (other, many) = demonstrations(1, 6, 0.4), demonstrations(32, 6, 0.4)
    assert one == other
    for a, b in zip(few, many, strict=True):
        np.testing.assert_array_equal(a.start, b.start)
        np.testing.assert_array_equal(a.actions, b.actions)


def test_an_expert_that_never_succeeds(toy, monkeypatch):
    monkeypatch.setattr(demos, "HOPELESS", 10)
    with pytest.raises(RuntimeError, match=r"failed in all of \d+ attempts"):
        demonstrations(4, 2, 1.0)


def test_simulator_without_expert():
    with pytest.raises(ValueError, match=r"'robocasa' has no scripted expert \(there is one for: libero, tabletop"):
        find_expert("robocasa")


def test_command(toy, tmp_path, capsys):
    path = tmp_path / "d.h5"
    arguments = ["climb", "--episodes", "5", "--slop", "0.3", "--out", str(path), "--seed", "2"]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    with EpisodeFile(path) as file:
        assert len(file) == 5
        assert file.meta["seed"] == 2 and file.meta["slop"] == 0.3
        failures, attempts = file.meta["failures"], file.meta["attempts"]
        assert attempts == failures + 5
        assert file[0].task == TASK
    assert said == f"5 demonstrations of climb in {path}; {failures} of {attempts} attempts failed and were dropped\n"
    assert main(arguments) == 1
    assert "exists; choose another name or pass --overwrite" in capsys.readouterr().err
    assert main([*arguments, "--overwrite"]) == 0


@pytest.mark.parametrize("argv", [["--seed=-1"], ["--slop=nan"], ["--slop=inf"]])
def test_wrong_usage(argv, tmp_path):
    with pytest.raises(SystemExit) as stop:
        main(["climb", "--episodes", "1", "--out", str(tmp_path / "a.h5"), *argv])
    assert stop.value.code == 2

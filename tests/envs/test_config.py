"""From a config to the environment: what is paid, and what a user is told when tasks cannot be run."""

import dataclasses

import pytest
import torch
from torchrl.envs.utils import check_env_specs, step_mdp

from structrl import keys
from structrl.envs import EnvConfig, config, make_env
from structrl.rewards import RewardOptions
from structrl.sims import registry
from tests.toy import ToySimulator, toy_task


@pytest.fixture
def files(monkeypatch):
    """name -> task spec, found by `load_task` as if they were files."""
    found = {}
    monkeypatch.setitem(registry.BUILTIN, "toy", "tests.toy:ToySimulator")
    monkeypatch.setattr(config, "load_task", found.__getitem__)
    return found


def put(files, *specs):
    files.update({spec.name: spec for spec in specs})
    return [spec.name for spec in specs]


def test_the_environment_of_a_config(files):
    names = put(files, toy_task(2, name="two", horizon=10), toy_task(3, name="three", horizon=14))
    cfg = EnvConfig(names, num_envs=4, chunk=4, sim={"dims": 3, "shift": 0.25})
    env = make_env(cfg, seed=5, record=True)
    check_env_specs(env, break_when_any_done="both")
    env.set_seed(5)
    td = env.reset()
    assert torch.equal(td[keys.START], make_env(cfg, seed=5).reset()[keys.START])
    assert td[keys.START][:, 2].unique().tolist() == [5]
    assert isinstance(env.simulator, ToySimulator) and [s.name for s in env.simulator.tasks] == names
    true = torch.from_numpy(env.simulator.position).float()
    torch.testing.assert_close(td[keys.STATE], true + 0.25)
    td = env.rand_step(td)
    assert td["next", keys.REWARD].shape == (4, 1) and env.last_chunk.atoms.shape == (4, 5, 3)


def test_credits_success_and_standing_still_are_paid_by_the_transform(files):
    """Subtasks at steps 2 and 3 of one chunk, success with the second; nothing after that."""
    cfg = EnvConfig(put(files, toy_task(2)), num_envs=2, chunk=4)
    env = make_env(cfg)
    env.simulator._trace = lambda start: torch.tensor([[0, 0], [0, 0], [1, 0], [1, 1]]).bool().numpy()
    td = env.step(env.reset().set(keys.ACTION, torch.zeros(2, 4, 2)))
    paid = 0.6 / (1 + 2 / 5) + 0.6 / (1 + 1 / 5) + 2.0
    torch.testing.assert_close(td["next", keys.REWARD], torch.full((2, 1), paid))
    td = env.step(step_mdp(td).set(keys.ACTION, torch.zeros(2, 4, 2)))
    assert (td["next", keys.REWARD] == 0).all() and (td["next", keys.STEPS] == 0).all()


def test_unstable_physics_keeps_what_was_earned_and_earns_nothing_more(files):
    """Unstable at step 3, where the measured atoms would complete the plan and be a success."""
    cfg = EnvConfig(put(files, toy_task(2)), num_envs=1, chunk=8)
    env = make_env(cfg)
    env.simulator._trace = lambda start: torch.tensor([[0, 0], [0, 0], [1, 0], [1, 1]]).bool().numpy()
    env.simulator._unstable_at = lambda start: 3
    td = env.step(env.reset().set(keys.ACTION, torch.zeros(1, 8, 2)))
    torch.testing.assert_close(td["next", keys.REWARD], torch.tensor([[0.6 / (1 + 2 / 5)]]))
    assert td["next", keys.TERMINATED].all() and td["next", keys.FAILED].all()


def test_reward_state_of_a_partial_reset_is_that_of_a_fresh_episode(files):
    cfg = EnvConfig(put(files, toy_task(2, horizon=40)), num_envs=3, chunk=4)
    env = make_env(cfg)
    start = torch.tensor([[0, -1, 3, 1, 0, e] for e in range(3)])
    actions = torch.rand(8, 3, 4, 2, generator=torch.Generator().manual_seed(2)) * 1.2 - 0.2

    def reset(td, ids, rows):
        mask = torch.zeros(3, 1, dtype=torch.bool)
        mask[ids] = True
        given = td[keys.START].clone()
        given[ids] = rows
        return env.reset(td.set("_reset", mask).set(keys.START, given))

    def run(partial):
        td, rewards = reset(env.reset(), [0, 1, 2], start), []
        for i, action in enumerate(actions):
            if partial and i == 4:
                td = reset(td, [1], start[:1])
            td = env.step(td.set(keys.ACTION, action))
            rewards.append(td["next", keys.REWARD].clone())
            td = step_mdp(td)
        return torch.stack(rewards), td

    whole, _ = run(partial=False)
    split, last_split = run(partial=True)
    assert whole.abs().sum() > 0
    assert torch.equal(split[:, [0, 2]], whole[:, [0, 2]]) and torch.equal(split[:4, 1], whole[:4, 1])
    td, rewards = reset(env.reset(), [1], start[:1]), []
    for action in actions[4:]:
        td = env.step(td.set(keys.ACTION, action))
        rewards.append(td["next", keys.REWARD][1].clone())
        td = step_mdp(td)
    assert torch.equal(torch.stack(rewards), split[4:, 1])
    assert torch.equal(td[keys.REWARD_STATE][1], last_split[keys.REWARD_STATE][1])


def bare(**fields):
    return dataclasses.replace(toy_task(1, path="tasks/b.task", name="b"), **fields)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (bare(sim=None), r"tasks/b.task: add `sim`, for example: sim tabletop"),
        (bare(horizon=None), r"tasks/b.task: add `horizon`, for example: horizon 240 steps"),
        (bare(command=None), r"tasks/b.task: add `command`"),
        (bare(success=None), r"tasks/b.task: add `success CONDITION`: 'toy' has no success check"),
        (bare(sim="tabletop"), r"tasks/b.task: runs on 'tabletop', but tasks/a.task on 'toy'"),
        (bare(name="a"), r"tasks/b.task: a task named 'a' is already in tasks/a.task"),
        (
            bare(subtasks=(dataclasses.replace(toy_task(1).subtasks[0], duration=None, label="lid"),)),
            r"tasks/b.task: no duration .* for lid: .*structrl calibrate",
        ),
    ],
)
def test_what_keeps_tasks_from_running_names_the_file(files, second, message):
    files |= {"first": toy_task(1, name="a"), "second": second}
    with pytest.raises(ValueError, match=message):
        make_env(EnvConfig(["first", "second"]))


def test_all_problems_are_told_at_once(files):
    names = put(files, toy_task(1, name="a", horizon=None), toy_task(1, name="b", command=None, success=None))
    with pytest.raises(ValueError) as error:
        make_env(EnvConfig(names))
    assert [line.split(": ")[0].strip() for line in str(error.value).splitlines()[1:]] == [
        "tasks/a.task",
        "tasks/b.task",
        "tasks/b.task",
    ]


def test_durations_are_not_needed_at_fixed_pace(files):
    files["b"] = bare(subtasks=(dataclasses.replace(toy_task(1).subtasks[0], duration=None),))
    for options in (RewardOptions(pace="fixed"), RewardOptions(preset="sparse")):
        make_env(EnvConfig(["b"], num_envs=1, reward=options))


def test_arguments_of_task_files_and_config_are_merged_and_may_not_contradict(files):
    names = put(files, toy_task(1, name="a", sim_args={"dims": 3, "scene": "x"}), toy_task(1, name="b"))
    env = make_env(EnvConfig(names, num_envs=1, sim={"dims": 3, "shift": 0.1, "scene": "x"}))
    assert env.simulator.position.shape == (1, 3)
    for sim, message in [
        ({"dims": 2}, r"tasks/a.task: toy\(dims=3\) contradicts dims=2 of the config's `sim`"),
        ({"scene": "y"}, r"tasks/a.task: toy\(scene='x'\) contradicts scene='y'"),
        ({"shfit": 1}, "no argument 'shfit'; did you mean 'shift'"),
    ]:
        with pytest.raises(ValueError, match=message):
            make_env(EnvConfig(names, num_envs=1, sim=sim))
    put(files, toy_task(1, name="b", sim_args={"dims": 4}))
    with pytest.raises(ValueError, match=r"tasks/b.task: toy\(dims=4\) contradicts dims=3 of another task"):
        make_env(EnvConfig(names, num_envs=1))


def test_no_tasks_is_an_error():
    with pytest.raises(ValueError, match="`tasks` is empty"):
        make_env(EnvConfig([]))


def test_the_shipped_tabletop_task_runs_and_rereads_its_own_starts():
    cfg = EnvConfig(["tabletop/pack_lunch"], num_envs=3, chunk=8, sim={"threads": 1})
    env = make_env(cfg, seed=1)
    check_env_specs(env)
    td = env.reset()
    again = make_env(EnvConfig(cfg.tasks, num_envs=3, sim={"threads": 1})).reset(td.clone())
    assert torch.equal(td[keys.TOKENS], again[keys.TOKENS]) and torch.equal(td[keys.STATE], again[keys.STATE])


def test_a_bare_plan_is_told_what_it_lacks_to_be_run(tmp_path):
    file = tmp_path / "bare.task"
    file.write_text("group < add(apple, box); add(drink, box) > then close(box)\n")
    with pytest.raises(ValueError) as error:
        make_env(EnvConfig([str(file)]))
    told = str(error.value).splitlines()[1:]
    assert all(line.startswith(f"  {file}: ") for line in told)
    assert [line.split("`")[1].split()[0] for line in told] == ["sim", "horizon", "command", "@"]

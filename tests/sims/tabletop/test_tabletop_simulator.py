"""Starts, determinism, state, unstable physics, arguments."""

import os

import mujoco
import numpy as np
import pytest
from tabletop_helpers import EVERYTHING, PACKED, atom, play, starts, task

from structrl.sims.base import Start
from structrl.sims.tabletop import TabletopExpert, TabletopSimulator, scene
from structrl.sims.tabletop.predicates import VOCABULARY
from structrl.sims.tabletop.settings import SETTINGS


@pytest.mark.parametrize("name", SETTINGS)
def test_scene_avoids_the_sparse_solver_and_costs_no_sensors(name):
    model = scene.load_model(name)
    assert model.opt.jacobian == mujoco.mjtJacobian.mjJAC_DENSE
    assert model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_SENSOR
    assert model.opt.timestep == scene.TIMESTEP


@pytest.mark.parametrize("name", SETTINGS)
def test_constants_of_the_code_are_those_of_the_scene(name):
    here = scene.Scene(name)
    model = here.model
    for joint, start in (("hand_x", 0), ("finger_left", 4), (here.objects[0], 6)):
        assert model.joint(joint).qposadr[0] == start
    assert here.roots == list(range(model.nmocap))
    assert model.opt.timestep * scene.SUBSTEPS * VOCABULARY.control_hz == 1
    # what `View.place` assumes of fixtures: nothing is turned at rest, and buttons and handles have marks
    fixed = [b for b in range(1, model.nbody) if model.body_rootid[b] != model.body("hand").rootid[0]]
    assert np.array_equal(model.body_quat[fixed], np.tile([1, 0, 0, 0], (len(fixed), 1)))
    entities = VOCABULARY.scenes[name]
    assert {each for each in entities if "thing" in entities[each]} <= {*here.objects, *here.marks, scene.GRIPPER}
    assert tuple(each for each in entities if "object" in entities[each]) == here.objects
    assert {each for each in entities if "container" in entities[each]} == set(here.containers)
    assert {each for each in entities if {"openable", "switch", "button"} & set(entities[each])} == set(here.moving)
    assert {each for each in entities if "button" in entities[each]} == set(here.setting.buttons)
    lengths = {len(slots) for slots in here.setting.slots.values()} | {len(here.setting.grasp)}
    assert lengths == {len(here.objects)}
    joints = [model.joint(f"hand_{axis}").range for axis in ("x", "y", "z", "yaw")]
    assert np.array_equal(np.transpose(joints), scene.HAND_RANGE)
    assert model.joint("finger_left").range[1] == scene.FINGER_OPEN


def test_starts_are_settled_and_varied():
    sim = TabletopSimulator([EVERYTHING], 64, threads=1)
    ids = np.arange(64)
    sim.reset(ids, starts(64))
    before = sim.view(ids)
    assert np.abs(sim.batch.bind("qvel")[:, :18]).max() < 0.02  # m/s, rad/s; the lid still sinks on its limit
    for _ in range(20):
        sim.step(ids, np.tile(np.float32([0, 0, 0, 0, 1]), (64, 1)))
    after = sim.view(ids)
    assert np.abs(after.objects - before.objects).max() < 5e-4
    assert np.abs(after.hand - before.hand).max() < 5e-4
    gap = np.hypot(*(before.objects[:, 0, :2] - before.objects[:, 1, :2]).T)
    assert gap.min() > 0.114
    assert (
        np.ptp(before.objects[:, :, :2], axis=0).min() > 0.15
        and np.ptp(before.position("box_1")[:, :2], axis=0).min() > 0.03
    )
    names = [str(a) for a in EVERYTHING.atoms]
    always = {"open(box_1)", "on(apple_1, table_1)", "on(drink_1, table_1)", "upright(drink_1)"}
    assert {n for n, held in zip(names, sim.atoms(ids).all(0), strict=True) if held} == always


def test_same_start_same_trajectory_bit_for_bit_whatever_surrounds_it():
    small = TabletopSimulator([EVERYTHING], 3, threads=1)
    large = TabletopSimulator([PACKED, EVERYTHING], 7, threads=2)
    begin, others = starts(3), [s._replace(task=1) for s in starts(4, seed=9)]
    here, there = np.arange(3), np.array([1, 4, 6])
    place = {6: begin[0], 1: begin[1], 4: begin[2]}
    order = np.array([1, 2, 0])  # environments 1, 4, 6 of `large` run starts 1, 2, 0
    small.reset(here, begin)
    large.reset(np.array([0, 2, 3, 5]), others)
    large.reset(np.array([6]), [place[6]._replace(task=1)])
    large.reset(np.array([1, 4]), [place[1], place[4]])
    experts = TabletopExpert(small, 0.007), TabletopExpert(large, 0.007)
    experts[0].reset(here, begin)
    experts[1].reset(there, [place[i] for i in there])
    rng = np.random.default_rng(0)
    for t in range(90):
        small.step(here, experts[0].act(here))
        large.step(there, experts[1].act(there))
        if t % 3 == 0:  # neighbours move at another pace
            large.step(np.array([0, 2, 3, 5]), rng.uniform(-1, 1, (4, 5)).astype(np.float32))
        small.atoms(here)  # measuring in one of them must not matter
        assert np.array_equal(small.state(here)["physics"][order], large.state(there)["physics"]), t
    assert np.array_equal(small.observe(here)["tokens"][order], large.observe(there)["tokens"])
    assert (small.view(here).objects[:, 0, 0] > 0).any(), "nothing was carried: the trajectory proves little"


def test_reset_forgets_what_was_before():
    sim = TabletopSimulator([EVERYTHING], 2, threads=1)
    ids = np.arange(2)
    sim.reset(ids, starts(2))
    fresh = sim.state(ids)["physics"]
    rng = np.random.default_rng(1)
    for _ in range(15):
        sim.step(ids, rng.uniform(-1, 1, (2, 5)).astype(np.float32))
    sim.reset(ids, starts(2))
    assert np.array_equal(sim.state(ids)["physics"], fresh)


def test_state_resumes_bit_for_bit_in_another_environment():
    sim = TabletopSimulator([EVERYTHING, PACKED], 4, threads=1)
    source, target = np.array([0, 1]), np.array([2, 3])
    sim.reset(source, starts(2))
    sim.reset(target, [s._replace(task=1) for s in starts(2, seed=5)])
    expert = TabletopExpert(sim)
    expert.reset(source, starts(2))
    while not sim.atoms(source)[:, 4].all():  # both hold the apple: contacts matter to what follows
        sim.step(source, expert.act(source))
    sim.set_state(target, sim.state(source))
    for _ in range(30):
        assert np.array_equal(sim.atom_values(source), sim.atom_values(target), equal_nan=True)
        assert np.array_equal(sim.atoms(source), sim.atoms(target))
        for name, value in sim.observe(source).items():
            assert np.array_equal(value, sim.observe(target)[name]), name
        action = expert.act(source)
        sim.step(source, action)
        sim.step(target, action)
        assert np.array_equal(sim.state(source)["physics"], sim.state(target)["physics"])


@pytest.mark.parametrize("harm", ["qpos", "qvel", "action"])
def test_unstable_physics_is_reported_for_its_environment_only_and_in_silence(harm, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    sim, calm = (TabletopSimulator([EVERYTHING], 3, threads=1) for _ in range(2))
    ids = np.arange(3)
    sim.reset(ids, starts(3))
    calm.reset(ids, starts(3))
    action = np.zeros((3, 5), np.float32)
    harmed = action.copy()
    if harm == "qpos":
        sim.batch.bind("qpos")[1, 7] = np.nan
    elif harm == "qvel":
        sim.batch.bind("qvel")[1, 2] = 1e12
    else:
        harmed[1, 0] = np.nan
    sim.step(ids, harmed)
    calm.step(ids, action)
    assert sim.unstable(ids).tolist() == [False, True, False]
    assert np.array_equal(sim.state(ids)["physics"][[0, 2]], calm.state(ids)["physics"][[0, 2]])
    saved = sim.state(ids)
    sim.reset(np.array([1]), starts(1))
    assert not sim.unstable(ids).any()
    sim.set_state(ids, saved)
    assert sim.unstable(ids).tolist() == [False, True, False]
    assert not os.listdir(tmp_path), "MuJoCo left a log file"
    assert capfd.readouterr() == ("", "")


def test_everything_stays_finite_after_instability():
    sim = TabletopSimulator([EVERYTHING], 1, threads=1)
    ids = np.arange(1)
    sim.reset(ids, starts(1))
    sim.batch.bind("qvel")[0, 2] = 1e12
    sim.step(ids, np.zeros((1, 5), np.float32))
    assert np.isfinite(sim.atom_values(ids)).all()
    assert all(np.isfinite(value).all() for value in sim.observe(ids).values())


def test_action_moves_the_command_by_its_units_and_keeps_the_leash():
    sim = TabletopSimulator([PACKED], 1, threads=1)
    ids = np.arange(1)
    sim.reset(ids, starts(1))
    before = sim.view(ids).command[0]
    sim.step(ids, np.float32([[1, -0.5, 0, 5, -1]]))  # the 5 is clipped to 1
    after = sim.view(ids).command[0]
    assert np.allclose(after[:4] - before[:4], [0.025, -0.0125, 0, 0.15], atol=1e-12)
    assert np.allclose(after[4:], 0)
    for _ in range(60):
        hand = sim.view(ids).hand
        sim.step(ids, np.float32([[-1, 0, 1, 0, 1]]))  # away from everything
        assert (np.abs(sim.view(ids).command[:, :4] - hand) <= np.array([0.05, 0.05, 0.05, 0.3]) + 1e-12).all()
    assert np.allclose(sim.view(ids).command[0, [0, 2]], [-0.36, 0.34])


def test_nobody_home_is_no_error():
    sim = TabletopSimulator([PACKED], 2, threads=1)
    sim.reset(np.arange(2), starts(2))
    none = np.array([], np.int64)
    before = sim.state(np.arange(2))["physics"]
    sim.reset(none, [])
    sim.step(none, np.zeros((0, 5), np.float32))
    sim.set_state(none, sim.state(none))
    assert sim.atoms(none).shape == (0, 3) and sim.observe(none)["tokens"].shape == (0, 3, 15)
    assert np.array_equal(before, sim.state(np.arange(2))["physics"])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (task("inside(apple_1, box_1)"), "no predicate 'inside'"),
        (task("in(aple_1, box_1)"), "'aple_1' is no object of scene 'lunch'; these are: apple_1, drink_1"),
        (task("in(apple_1, drink_1)"), "'drink_1' is no container"),
        (task("closed(box_1, box_1)"), "takes openable"),
        (task(atom("closed(box_1)", angle=0.2)), "no threshold 'angle'"),
        (task("closed(box_1)", sim_args={"scene": "lunsh"}), "no scene 'lunsh'; tabletop has: lunch, kitchen, blocks"),
        (task("closed(box_1)", sim_args={"scene": "lunch", "seed": 1}), "no argument 'seed'"),
        (task("closed(box_1)", sim="libero"), "simulator is 'libero'"),
    ],
)
def test_misfits_are_refused_by_name_of_the_file(spec, message):
    with pytest.raises(ValueError, match="<string>") as caught:
        TabletopSimulator([spec], 1)
    assert message in str(caught.value)


@pytest.mark.parametrize("start", [Start(1, -1, (0,)), Start(0, 0, (0,)), Start(-1, -1, (0,))])
def test_bad_start_is_refused(start):
    with pytest.raises(ValueError, match="init must be -1"):
        TabletopSimulator([PACKED], 1).reset(np.arange(1), [start])


def test_unknown_argument_is_a_type_error():
    with pytest.raises(TypeError, match="thread"):
        TabletopSimulator([PACKED], 1, thread=1)


def test_one_episode_ends_packed():
    """The whole path once: success is reached with both objects inside and the lid down, on the drawn positions."""
    sim = TabletopSimulator([PACKED], 1, threads=1)
    done = play(sim, starts(1), 150)["done"]
    assert 60 < done[0] < 150
    view = sim.view(np.arange(1))
    assert (np.abs(view.objects[0, :, :2] - view.position("box_1")[0, :2]) < 0.09).all() and view.joint("box_1")[
        0
    ] < 0.1

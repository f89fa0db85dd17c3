"""The kitchen and the blocks: atoms against geometry from MuJoCo's own MjData, buttons, threads, state."""

import mujoco
import numpy as np
import pytest
from tabletop_helpers import starts, task

from structrl.sims.chunks import ChunkRunner
from structrl.sims.tabletop import TabletopExpert, TabletopSimulator, scene
from structrl.sims.tabletop.settings import SETTINGS, draw_layout
from structrl.task import load_task

TASKS = {"lunch": "pack_lunch", "kitchen": "cook_dinner", "blocks": "ring_for_two"}  # one with every skill of its scene
OBJECTS = {"kitchen": ("bread_1", "egg_1", "pot_1"), "blocks": ("red_block_1", "green_block_1", "blue_block_1")}


def simulator(name: str, num_envs: int, **arguments) -> TabletopSimulator:
    return TabletopSimulator([load_task(f"tabletop/{TASKS[name]}")], num_envs, **({"threads": 1} | arguments))


def corners(model, data, name: str) -> np.ndarray:
    """Corners of a box geom, in the world, [8, 3]; poles of a sphere."""
    geom = data.geom(name)
    if model.geom(name).type[0] == mujoco.mjtGeom.mjGEOM_SPHERE:
        return geom.xpos + model.geom(name).size[0] * np.array([[0, 0, 1], [0, 0, -1]])
    signs = np.stack(np.meshgrid([-1, 1], [-1, 1], [-1, 1]), -1).reshape(-1, 3)
    return geom.xpos + (signs * model.geom(name).size) @ geom.xmat.reshape(3, 3).T


def within(data, model, item: str, low: tuple[str, ...], high: tuple[str, ...], top: float) -> float:
    """Overshoot of an object's centre beyond the inner faces of walls (near x, right y; far x, left y), 0 and `top`."""
    p = data.body(item).xpos
    (near, right), (far, left) = ([(data.geom(g), model.geom(g).size) for g in wall] for wall in (low, high))
    faces = [(near[0].xpos[0] + near[1][0], 1, 0), (right[0].xpos[1] + right[1][1], 1, 1)]
    faces += [(far[0].xpos[0] - far[1][0], -1, 0), (left[0].xpos[1] - left[1][1], -1, 1)]
    return max(*(sign * (face - p[axis]) for face, sign, axis in faces), -p[2], p[2] - top)


def on(data, model, item: str, support: str) -> float:
    """Distance of the object's lowest point from the top of a geom's highest, or of its centre beyond its edge."""
    low, top = corners(model, data, item)[:, 2].min(), corners(model, data, support)[:, 2].max()
    apart = np.abs(data.body(item).xpos - data.geom(support).xpos)[:2]
    size = model.geom(support).size
    beyond = np.hypot(*apart) - size[:2].min() if support in OBJECTS["blocks"] else (apart - size[:2]).max()
    return max(abs(low - top), beyond)


def kitchen(model, data) -> dict[str, float]:
    out = {}
    for item in OBJECTS["kitchen"]:
        drawer = ("drawer_near", "drawer_right"), ("drawer_far", "drawer_left")
        oven = ("oven_near", "oven_right"), ("oven_far", "oven_left")
        out[f"in({item}, oven_1)"] = within(data, model, item, *oven, 0.08)
        out[f"in({item}, drawer_1)"] = within(data, model, item, *drawer, 0.064)
        out[f"lifted({item})"] = corners(model, data, item)[:, 2].min()
    opened = data.body("drawer_1").xpos[0] - data.body("drawer").xpos[0]
    slid = data.body("cover").xpos[0] - data.body("oven_1").xpos[0]
    out["open(drawer_1)"] = out["closed(drawer_1)"] = opened / 0.13
    out["open(oven_1)"] = out["closed(oven_1)"] = slid / 0.15
    lever = data.geom("lever").xpos - data.body("knob").xpos
    out["turned_on(stove_1)"] = out["turned_off(stove_1)"] = np.arctan2(-lever[1], -lever[0])
    tip = data.body("hand").xpos
    end = data.body("knob").xpos + lever / np.linalg.norm(lever) * 0.05
    out["near(gripper_1, stove_1)"] = np.linalg.norm(tip - end)
    out["near(gripper_1, timer_1)"] = np.linalg.norm(tip - data.geom("timer").xpos)
    out["near(bread_1, burner_1)"] = np.linalg.norm(data.body("bread_1").xpos - data.geom("burner").xpos)
    return out


def blocks(model, data) -> dict[str, float]:
    red, green, blue = OBJECTS["blocks"]
    pairs = ((green, red), (blue, green))
    return {f"on({a}, {b})": on(data, model, a, b) for a, b in pairs} | {
        f"on({item}, tray_1)": on(data, model, item, "tray") for item in OBJECTS["blocks"]
    }


@pytest.mark.parametrize(("name", "oracle"), [("kitchen", kitchen), ("blocks", blocks)])
def test_atoms_match_geometry_in_random_poses(name, oracle):
    """Objects anywhere, tilted anyhow, fixtures' joints anywhere: no dynamics, only geometry."""
    model = scene.load_model(name)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    names = list(oracle(model, data))
    sim = TabletopSimulator([task(*names, sim_args={"scene": name})], 80, threads=1)
    ids, rng = np.arange(80), np.random.default_rng(5)
    sim.reset(ids, starts(80))
    qpos = sim.batch.bind("qpos")
    view = sim.view(ids)
    supports = np.stack([view.position(each) for each in SETTINGS[name].tokens if "handle" not in each], 1)
    for o, columns in enumerate(sim.scene.positions):
        spot = supports[ids, rng.integers(0, supports.shape[1], 80)] + [0, 0, 0.02]
        if name == "blocks" and o:  # often on the one before
            spot = np.where(rng.random((80, 1)) < 0.7, qpos[:, sim.scene.positions[o - 1]] + [0, 0, 0.04], spot)
        qpos[:, columns] = spot + rng.normal(0, 0.02, (80, 3)) * (rng.random((80, 1)) < 0.7)
        tilt = rng.normal(size=(80, 4)) * (rng.random((80, 1)) < 0.5) + [1e-9, 0, 0, 0]
        qpos[:, sim.scene.quaternions[o]] = tilt / np.linalg.norm(tilt, axis=1, keepdims=True)
    for joint in SETTINGS[name].moving.values():
        qpos[:, model.joint(joint.joint).qposadr[0]] = rng.uniform(*model.joint(joint.joint).range, 80)
    qpos[:, :3] = supports[ids, rng.integers(0, supports.shape[1], 80)] + rng.normal(0, 0.02, (80, 3))
    values, truth = sim.atom_values(ids), sim.atoms(ids)
    for i in ids:
        data = sim.batch.get_data(int(i))
        mujoco.mj_forward(model, data)
        expected = oracle(model, data)
        for column, each in enumerate(names):
            assert values[i, column] == pytest.approx(expected[each], abs=2e-6), (each, i)
    rare = [each for each, held in zip(names, truth.mean(0), strict=True) if not 0 < held < 1]
    assert not rare, f"always or never true, so hardly tested: {rare}"


@pytest.mark.parametrize("name", SETTINGS)
def test_marks_move_with_their_fixtures(name):
    """What the code computes from positions is where MuJoCo has the sites."""
    sim = simulator(name, 10)
    ids, rng = np.arange(10), np.random.default_rng(1)
    sim.reset(ids, starts(10))
    for joint in SETTINGS[name].moving.values():
        bounds = sim.model.joint(joint.joint).range
        sim.batch.bind("qpos")[:, sim.model.joint(joint.joint).qposadr[0]] = rng.uniform(*bounds, 10)
    view = sim.view(ids)
    for i in ids:
        data = sim.batch.get_data(int(i))
        mujoco.mj_forward(sim.model, data)
        for site, mark in sim.scene.marks.items():
            assert np.allclose(view.place(mark)[i], data.site(site).xpos, atol=1e-9), site


@pytest.mark.parametrize("name", SETTINGS)
def test_starts_are_apart_settled_and_closed(name):
    sim, setting = simulator(name, 64), SETTINGS[name]
    ids = np.arange(64)
    sim.reset(ids, starts(64))
    view = sim.view(ids)
    layouts = [draw_layout(setting, start.seed) for start in starts(64)]
    drawn = np.stack([each.objects for each in layouts])
    assert np.abs(view.objects[..., :2] - drawn).max() < 2e-3, "a fresh layout should rest where it was drawn"
    gaps = np.linalg.norm(drawn[:, :, None] - drawn[:, None], axis=-1)[:, ~np.eye(drawn.shape[1], dtype=bool)]
    assert gaps.min() >= setting.gap
    assert np.abs([view.lowest(o) for o in range(drawn.shape[1])]).max() < 2e-3
    for thing, moving in setting.moving.items():
        assert np.abs(view.joint(thing) - moving.start).max() < 0.05
    assert not view.presses.any() and not sim.unstable(ids).any()
    assert np.abs(sim.batch.bind("qvel")[:, 6 : 6 + 6 * drawn.shape[1]]).max() < 0.05


def presses(sim: TabletopSimulator, button: str, heights: list[float]) -> list[list[bool]]:
    """Atoms `pressed`, `was_pressed` while closed fingers go through heights above the released cap."""
    ids = np.arange(1)
    sim.reset(ids, starts(1))
    x, y, top = sim.view(ids).position(button)[0]
    ctrl, qpos = sim.batch.bind("ctrl"), sim.batch.bind("qpos")
    qpos[0, :6] = ctrl[0] = [x, y, top + 0.05, 0, 0, 0]
    seen = []
    for height in heights:
        for _ in range(6):
            up = (top + 0.008 + height - ctrl[0, 2]) / 0.025
            sim.step(ids, np.float32([[0, 0, np.clip(up, -1, 1), 0, -1]]))
            seen.append(sim.atoms(ids)[0].tolist())
    return seen


@pytest.mark.parametrize(("name", "button"), [("kitchen", "timer_1"), ("blocks", "bell_1")])
def test_a_press_is_a_pulse_with_a_latched_twin(name, button):
    spec = task(f"pressed({button})", f"was_pressed({button})", sim_args={"scene": name})
    sim = TabletopSimulator([spec], 1, threads=1)
    # down and held, up by less than the hysteresis and down, up and down again, up
    seen = np.array(presses(sim, button, [0.02, -0.012, -0.012, -0.0085, -0.012, 0.02, -0.012, 0.02]))
    pulses = np.flatnonzero(seen[:, 0])
    assert len(pulses) == 2 and 6 <= pulses[0] < 12 and 36 <= pulses[1] < 42
    assert np.array_equal(np.flatnonzero(seen[:, 1]), np.arange(pulses[0], len(seen))), "latched from its pulse on"
    sim.reset(np.arange(1), starts(1))
    assert not sim.atoms(np.arange(1)).any()


def test_touching_a_button_is_no_press():
    sim = TabletopSimulator([task("pressed(timer_1)", sim_args={"scene": "kitchen"})], 1, threads=1)
    assert not np.any(presses(sim, "timer_1", [0.02, -0.003, 0.02]))


@pytest.mark.parametrize("name", SETTINGS)
def test_physics_is_the_same_bit_for_bit_whatever_the_number_of_threads(name):
    """Half of the environments follow the expert, half random actions that are held for a while."""
    ends = []
    for threads in (1, 2, 4):
        sim = simulator(name, 12, threads=threads)
        ids, rng = np.arange(12), np.random.default_rng(0)
        sim.reset(ids, starts(12))
        expert = TabletopExpert(sim, 0.005)
        expert.reset(ids, starts(12))
        trace = []
        for t in range(100):
            if t % 12 == 0:
                held = rng.uniform(-1, 1, (6, 5)).astype(np.float32)
            sim.step(ids, np.concatenate([expert.act(ids[:6]), held]))
            trace.append(sim.state(ids)["physics"])
        ends.append((np.stack(trace), sim.atom_values(ids), sim.observe(ids)["tokens"]))
    moved = np.abs(sim.view(ids).objects[:, :, :2] - [draw_layout(SETTINGS[name], s.seed).objects for s in starts(12)])
    assert moved.max() > 0.1, "nothing was carried: the trajectory proves little"
    for other in ends[1:]:
        for a, b in zip(ends[0], other, strict=True):
            assert np.array_equal(a, b)


@pytest.mark.parametrize("latency", [0, 3])
@pytest.mark.parametrize("name", SETTINGS)
def test_state_resumes_bit_for_bit_with_latches_and_late_actions(name, latency):
    sim = simulator(name, 4, shift={"latency": latency})
    source, target, rng = np.array([0, 1]), np.array([2, 3]), np.random.default_rng(2)
    sim.reset(source, starts(2))
    sim.reset(target, starts(2, seed=5))
    for _ in range(5):
        sim.step(source, rng.uniform(-1, 1, (2, 5)).astype(np.float32))
    sim._down[0] = sim._pressed[0] = True  # one pressed now, one pressed before
    sim._presses[source] = [[1], [2]]
    saved = sim.state(source)
    again = TabletopSimulator(sim.tasks, 2, threads=1, shift={"latency": latency})
    again.set_state(np.arange(2), saved)
    sim.set_state(target, saved)
    for _ in range(12):
        for other, ids in ((sim, target), (again, np.arange(2))):
            assert np.array_equal(sim.atom_values(source), other.atom_values(ids), equal_nan=True)
            assert sim.state(source).keys() == other.state(ids).keys()
            for key, value in sim.state(source).items():
                assert np.array_equal(value, other.state(ids)[key]), key
            for key, value in sim.observe(source).items():
                assert np.array_equal(value, other.observe(ids)[key]), key
        action = rng.uniform(-1, 1, (2, 5)).astype(np.float32)
        for other, ids in ((sim, source), (sim, target), (again, np.arange(2))):
            other.step(ids, action)


@pytest.mark.parametrize("name", ["kitchen", "blocks"])
def test_tokens_tell_layout_joints_and_lights(name):
    sim = simulator(name, 8)
    ids, rng, setting = np.arange(8), np.random.default_rng(0), SETTINGS[name]
    sim.reset(ids, starts(8))
    for moving in setting.moving.values():
        joint = sim.model.joint(moving.joint)
        sim.batch.bind("qpos")[:, joint.qposadr[0]] = rng.uniform(*joint.range, 8)
    sim._presses[::2] = 1
    view, seen = sim.view(ids), sim.observe(ids)
    hand = seen["state"][:, :3] * [0.2, 0.2, 0.1] + [0, 0, 0.15]
    positions = hand[:, None] + seen["tokens"][:, :, 3:6] * 0.1
    things = [*sim.scene.objects, *setting.tokens]
    assert seen["tokens"].shape == (8, *sim.observation["tokens"][0]) and len(things) == positions.shape[1]
    for row, thing in enumerate(things):
        token = seen["tokens"][:, row]
        assert np.allclose(positions[:, row], view.position(thing), atol=1e-6)
        assert np.allclose(token[:, 6:9], np.tanh((positions[:, row] - hand) / (0.02 if row < 3 else 0.03)), atol=1e-4)
        if thing in setting.buttons:
            assert token[:, 12].tolist() == [1, 0] * 4
        elif thing in ("drawer_1", "oven_1"):
            assert np.allclose(token[:, 13], view.share(thing), atol=1e-6)
        elif thing == "stove_1":
            assert np.allclose(np.arctan2(token[:, 14], token[:, 13]), view.joint(thing), atol=1e-5)
        elif row < 3 and thing != "egg_1":
            drawn = [draw_layout(setting, start.seed).yaw[row] for start in starts(8)]
            assert np.allclose(np.arctan2(token[:, 14], token[:, 13]), drawn, atol=0.02)


def test_things_in_a_drawer_move_with_it():
    """The kitchen's physics does what a task needs: the expert's closed drawer holds the bread."""
    spec = load_task("tabletop/store_bread")
    sim = TabletopSimulator([spec], 2, threads=1)
    runner, expert, ids = ChunkRunner(sim), TabletopExpert(sim), np.arange(2)
    runner.reset(ids, starts(2))
    expert.reset(ids, starts(2))
    while not runner.done.all():
        live = np.flatnonzero(~runner.done)
        action = np.zeros((2, 1, 5), np.float32)
        action[live, 0] = expert.act(live)
        runner.run(action)
    assert runner.success.all()
    view = sim.view(ids)
    roof = [mujoco.mj_name2id(sim.model, mujoco.mjtObj.mjOBJ_GEOM, "cabinet_top")]
    cover = view.bases[:, 0, :2] + sim.model.geom_pos[roof][:, :2]
    assert (np.abs(view.position("bread_1")[:, :2] - cover) < 0.078).all(), "under the cabinet's top"

"""What is different in a shifted world, and nothing else."""

import mujoco
import numpy as np
import pytest
from tabletop_helpers import PACKED, starts

from structrl.sims.tabletop import TabletopExpert, TabletopSimulator
from structrl.sims.tabletop.shift import read_shift
from structrl.task import load_task

IDS = np.arange(4)


def fresh(**shift) -> TabletopSimulator:
    sim = TabletopSimulator([PACKED], 4, threads=1, shift=shift)
    sim.reset(IDS, starts(4))
    return sim


def test_no_shift_is_the_default():
    assert not read_shift(None).object_bias.any() and read_shift({}).latency == 0
    plain, same = fresh(), fresh(object_size=1, friction=1.0, latency=0, camera_bias={"angle": 0})
    assert np.array_equal(plain.state(IDS)["physics"], same.state(IDS)["physics"])


def test_camera_bias_is_kept_for_the_renderer_and_moves_nothing():
    sim = fresh(camera_bias={"position": [0.01, -0.02, 0.03], "angle": 0.05})
    assert sim.shift.camera_bias.position.tolist() == [0.01, -0.02, 0.03] and sim.shift.camera_bias.angle == 0.05
    assert np.array_equal(fresh().state(IDS)["physics"], sim.state(IDS)["physics"])
    assert np.array_equal(fresh().observe(IDS)["tokens"], sim.observe(IDS)["tokens"])


@pytest.mark.parametrize("name", ["lunch", "kitchen", "blocks"])
def test_object_size_scales_the_objects_and_keeps_their_masses(name):
    task = {"lunch": "pack_lunch", "kitchen": "store_bread", "blocks": "stack_tower"}[name]
    plain, large = (
        TabletopSimulator([load_task(f"tabletop/{task}")], 4, threads=1, shift={"object_size": size})
        for size in (1, 1.2)
    )
    for sim in (plain, large):
        sim.reset(IDS, starts(4))
    a, b = plain.model, large.model
    for g in range(a.ngeom):
        scale = 1.2 if a.body(a.geom_bodyid[g]).name in plain.scene.objects else 1.0
        kind = a.geom_type[g]
        used = {mujoco.mjtGeom.mjGEOM_BOX: 3, mujoco.mjtGeom.mjGEOM_CYLINDER: 2}.get(kind, 1)
        if kind != mujoco.mjtGeom.mjGEOM_PLANE:
            assert np.allclose(b.geom_size[g, :used], scale * a.geom_size[g, :used]), a.geom(g).name
    assert np.allclose(a.body_mass, b.body_mass)
    free = [a.body(each).id for each in plain.scene.objects]
    assert np.allclose(b.body_inertia[free], 1.44 * a.body_inertia[free])
    assert np.allclose(large.scene.half_size, 1.2 * plain.scene.half_size)
    lowest = [[sim.view(IDS).lowest(o) for o in range(len(free))] for sim in (plain, large)]
    assert np.abs(lowest).max() < 2e-3, "they rest on the table, large or small"
    tokens = [sim.observe(IDS)["tokens"][:, : len(free), :3] for sim in (plain, large)]
    assert np.allclose(tokens[1], 1.2 * tokens[0])


def test_friction_scales_every_contact():
    models = fresh().model, fresh(friction=0.25).model
    assert np.allclose(models[1].geom_friction, 0.25 * models[0].geom_friction)


def test_with_little_friction_a_kick_carries_further():
    slid = []
    for scale in (1.0, 0.3):
        sim = fresh(friction=scale)
        drink = sim.model.joint("drink_1").dofadr[0]
        before = sim.view(IDS).objects[:, 1]
        sim.batch.bind("qvel")[:, drink] = -0.3
        for _ in range(20):
            sim.step(IDS, np.tile(np.float32([0, 0, 0, 0, 1]), (4, 1)))
        slid.append(np.abs(sim.view(IDS).objects[:, 1] - before)[:, 0].mean())
    assert slid[1] > 2 * slid[0]


@pytest.mark.parametrize("latency", [1, 4])
def test_latency_delays_actions_by_whole_steps(latency):
    """The late world follows exactly what the prompt one does with the same actions, after `latency` idle steps."""
    prompt, late = fresh(), fresh(latency=latency)
    rng = np.random.default_rng(0)
    given = rng.uniform(-1, 1, (12, 4, 5)).astype(np.float32)
    idle = np.tile(np.float32([0, 0, 0, 0, 1]), (4, 1))
    for t in range(12):
        late.step(IDS, given[t])
        prompt.step(IDS, given[t - latency] if t >= latency else idle)
        assert np.array_equal(prompt.state(IDS)["physics"], late.state(IDS)["physics"]), t
    late.reset(IDS, starts(4))
    prompt.reset(IDS, starts(4))
    for sim in (prompt, late):  # nothing of the last episode arrives in this one
        sim.step(IDS, idle)
    assert np.array_equal(prompt.state(IDS)["physics"], late.state(IDS)["physics"])


@pytest.mark.parametrize("shift", [{"object_size": 1.1}, {"friction": 0.8}, {"latency": 1}])
def test_shifted_worlds_are_worlds_in_which_the_expert_can_still_work(shift):
    sim = fresh(**shift)
    expert = TabletopExpert(sim)
    expert.reset(IDS, starts(4))
    packed = np.zeros(4, bool)
    for _ in range(180):
        sim.step(IDS, expert.act(IDS))
        packed |= sim.atoms(IDS).all(1)
    assert packed.sum() >= 2


@pytest.mark.parametrize(
    ("shift", "message"),
    [
        ({"object_bais": [0, 0]}, "did you mean 'object_bias'"),
        ({"lag": 3}, "known: object_bias, camera_bias, object_size, friction, latency"),
        ({"object_bias": [0, 0, 0]}, "two finite numbers"),
        ({"object_bias": [float("nan"), 0]}, "two finite numbers"),
        ({"object_bias": ["a", "b"]}, "two finite numbers"),
        ({"camera_bias": [0, 0, 0]}, "camera_bias must be {position"),
        ({"camera_bias": {"positoin": [0, 0, 0]}}, "did you mean 'position'"),
        ({"camera_bias": {"position": [0, 0]}}, "three finite numbers"),
        ({"camera_bias": {"angle": [0]}}, "a finite number"),
        ({"object_size": 0}, "scale above 0"),
        ({"object_size": 1.9}, "do not fit between the fingers"),
        ({"friction": -1}, "scale above 0"),
        ({"friction": True}, "scale above 0"),
        ({"latency": 1.5}, "whole number of steps"),
        ({"latency": -1}, "whole number of steps"),
    ],
)
def test_bad_shift_is_refused(shift, message):
    with pytest.raises(ValueError, match=message):
        TabletopSimulator([PACKED], 1, shift=shift)

"""Height maps and grasps on scenes small enough to know the answer. Needs MuJoCo, not LIBERO."""

import mujoco
import numpy as np
import pytest

from structrl.sims.libero.heights import HAND, OPENINGS, find_grasps, look_down


def scene(*boxes, alpha=1.0):
    """Free boxes (center, half sizes, yaw) above a floor at 0."""
    bodies = "".join(
        f'<body pos="{x} {y} {z}" euler="0 0 {yaw}"><freejoint/>'
        f'<geom type="box" size="{a} {b} {c}" rgba="1 0 0 {alpha}"/></body>'
        for (x, y, z), (a, b, c), yaw in boxes
    )
    xml = f'<mujoco><compiler angle="radian"/><worldbody><geom type="plane" size="1 1 1"/>{bodies}</worldbody></mujoco>'
    model = mujoco.MjModel.from_xml_string(xml)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return model, data


def grasps(model, data, body=1, step=0.003):
    seen = look_down(model, data, data.xpos[body], 0.15, step, frozenset())
    return find_grasps(seen, body, data.xpos[body][:2], 0.0, 0.0)


@pytest.mark.parametrize("alpha", [1.0, 0.0])
def test_heights_of_a_turned_box_are_its_top(alpha):
    """Transparent geoms count: most of LIBERO's colliding ones are."""
    yaw, half = 0.4, np.array([0.03, 0.05, 0.02])
    model, data = scene(((0.1, 0.2, 0.02), half, yaw), alpha=alpha)
    seen = look_down(model, data, np.array([0.1, 0.2, 0.0]), 0.1, 0.004, frozenset())
    local = (seen.points - [0.1, 0.2]) @ np.array([[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]])
    inside = (np.abs(local) < half[:2] - 1e-6).all(-1)
    outside = (np.abs(local) > half[:2] + 1e-6).any(-1)
    np.testing.assert_allclose(seen.height[inside], 0.04, atol=1e-9)
    np.testing.assert_allclose(seen.height[outside], 0.0, atol=1e-9)
    assert (seen.body[inside] == 1).all() and (seen.body[outside] == 0).all()
    assert look_down(model, data, np.array([0.1, 0.2, 0.0]), 0.1, 0.004, frozenset({1})).height.max() == 0


@pytest.mark.parametrize("yaw", [0.0, 0.5, 2.0])
def test_a_box_is_taken_across_its_narrow_side(yaw):
    model, data = scene(((0, 0, 0.03), (0.02, 0.06, 0.03), yaw))
    best = grasps(model, data)[0]
    off = (best.yaw - yaw + np.pi / 2) % np.pi - np.pi / 2
    assert abs(off) < np.pi / 8  # some turn of the wrist is saved for it
    assert np.hypot(*best.position[:2]) < 0.015
    assert best.opening in OPENINGS and best.opening > 0.04
    assert 0.03 < best.position[2] < 0.06


def test_what_is_wider_than_the_hand_has_no_grasp():
    assert grasps(*scene(((0, 0, 0.03), (0.05, 0.05, 0.03), 0.0))) == []


def test_neighbours_leave_the_sides_that_are_free():
    """With walls close on two sides, the fingers come down on the other two, or open less."""
    box = ((0, 0, 0.02), (0.015, 0.015, 0.02), 0.0)
    walls = [((x, 0, 0.02), (0.01, 0.06, 0.02), 0.0) for x in (-0.05, 0.05)]
    found = grasps(*scene(box, *walls))
    assert found
    for grasp in found:
        reach = grasp.opening / 2 * abs(np.cos(grasp.yaw))
        assert reach < 0.04, "a finger comes down on a wall"


def test_a_ceiling_over_the_palm_forbids():
    """Towers beside a flat thing, higher than the fingers are long, within the palm's reach on all sides."""
    box = ((0, 0, 0.015), (0.015, 0.015, 0.015), 0.0)
    far = HAND[0] - 0.02
    ring = [((far * np.cos(a), far * np.sin(a), 0.06), (0.025, 0.025, 0.06), a) for a in np.arange(0, 2 * np.pi, 0.5)]
    assert grasps(*scene(box)) and not grasps(*scene(box, *ring))

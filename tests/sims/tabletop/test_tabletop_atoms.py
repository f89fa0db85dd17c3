"""Atoms against geometry worked out independently, from MuJoCo's own MjData of the same state."""

import mujoco
import numpy as np
import pytest
from tabletop_helpers import EVERYTHING, PACKED, atom, starts, task

from structrl.sims.tabletop import TabletopExpert, TabletopSimulator, scene
from structrl.sims.tabletop.predicates import MEASURES, VOCABULARY

NAMES = [f"{each.predicate}({', '.join(each.args)})" for each in EVERYTHING.atoms]


def surface(model, data, name) -> np.ndarray:
    """Points all over the surface of the geom `name`, in the world, [m, 3]."""
    geom, angle = model.geom(name), np.linspace(0, 2 * np.pi, 721)
    if geom.type[0] == mujoco.mjtGeom.mjGEOM_CYLINDER:
        radius, half = geom.size[:2]
        ring = np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1)
        local = np.concatenate([np.c_[ring, np.full(len(ring), z)] for z in (-half, half)])
    else:
        assert geom.type[0] == mujoco.mjtGeom.mjGEOM_SPHERE
        polar, around = np.meshgrid(np.linspace(0, np.pi, 361), angle)
        local = geom.size[0] * np.stack(
            [np.sin(polar) * np.cos(around), np.sin(polar) * np.sin(around), np.cos(polar)], -1
        ).reshape(-1, 3)
    return data.geom(name).xpos + local @ data.geom(name).xmat.reshape(3, 3).T


def measure(model, data) -> dict[str, float]:
    """Every measure of EVERYTHING by another route: walls and lid as placed geoms, contacts, sampled surfaces."""
    wall = {side: data.geom(f"box_{side}").xpos for side in ("near", "far", "left", "right")}
    thick = model.geom("box_near").size[0]
    tip = data.body("hand").xpos
    out = {}
    for item in ("apple_1", "drink_1"):
        p = data.body(item).xpos
        out[f"in({item}, box_1)"] = max(
            (wall["near"][0] + thick) - p[0],
            p[0] - (wall["far"][0] - thick),
            (wall["right"][1] + thick) - p[1],
            p[1] - (wall["left"][1] - thick),
            -p[2],
            p[2] - 0.075,
        )
        low = surface(model, data, item)[:, 2].min()
        out[f"on({item}, table_1)"] = out[f"lifted({item})"] = low
        gaps = [
            mujoco.mj_geomDistance(model, data, model.geom(f"finger_{side}").id, model.geom(item).id, 0.05, None)
            for side in ("left", "right")
        ]
        out[f"grasped({item})"] = max(gaps)
    lid = data.geom("lid").xmat.reshape(3, 3)
    out["closed(box_1)"] = out["open(box_1)"] = np.arctan2(lid[0, 2], lid[2, 2]) / 2
    out["upright(drink_1)"] = np.arctan2(
        *[np.linalg.norm(data.body("drink_1").xmat[[2, 5]]), data.body("drink_1").xmat[8]]
    )
    out["near(gripper_1, apple_1)"] = np.linalg.norm(tip - data.body("apple_1").xpos)
    out["near(apple_1, drink_1)"] = np.linalg.norm(data.body("apple_1").xpos - data.body("drink_1").xpos)
    out["near(drink_1, box_1)"] = np.linalg.norm(data.body("drink_1").xpos - data.body("box_1").xpos)
    return out


def check(sim: TabletopSimulator, ids: np.ndarray) -> None:
    values, truth = sim.atom_values(ids), sim.atoms(ids)
    model = sim.model
    for row, i in enumerate(ids):
        data = sim.batch.get_data(int(i))
        mujoco.mj_forward(model, data)
        expected = measure(model, data)
        for column, name in enumerate(NAMES):
            assert values[row, column] == pytest.approx(expected[name], abs=2e-6), (name, i)
        for o, item in enumerate(("apple_1", "drink_1")):  # touching by MuJoCo's contacts is touching by the gap
            pairs = {frozenset((c.geom1, c.geom2)) for c in data.contact[: data.ncon]}
            sides = [
                frozenset((model.geom(f"finger_{side}").id, model.geom(item).id)) in pairs for side in ("left", "right")
            ]
            assert truth[row, 4 + o] or not all(sides)
    for column, test in enumerate(sim.atom_tests(0)):  # truth is value op threshold, nothing else
        by_value = values[:, column] < test.threshold if test.op == "<" else values[:, column] > test.threshold
        assert np.array_equal(truth[:, column], by_value), test


def test_atoms_match_geometry_along_whole_episodes():
    sim = TabletopSimulator([EVERYTHING], 4, threads=1)
    ids = np.arange(4)
    expert = TabletopExpert(sim, 0.010)
    sim.reset(ids, starts(4, seed=3))
    expert.reset(ids, starts(4, seed=3))
    seen = np.zeros((2, len(NAMES)), bool)
    for t in range(125):
        sim.step(ids, expert.act(ids))
        truth = sim.atoms(ids)
        seen |= [truth.any(0), (~truth).any(0)]
        if t % 4 == 0:
            check(sim, ids)
    never = [name for name, held, missed in zip(NAMES, *seen, strict=True) if not (held and missed)]
    assert set(never) <= {"upright(drink_1)"}, f"always or never true, so hardly tested: {never}"


def test_atoms_match_geometry_in_random_poses():
    """Objects thrown anywhere, tilted anyhow, fingers and lid anywhere: no dynamics, only geometry."""
    sim = TabletopSimulator([EVERYTHING], 60, threads=1)
    ids, rng = np.arange(60), np.random.default_rng(4)
    sim.reset(ids, starts(60))
    qpos = sim.batch.bind("qpos")
    qpos[:, scene.HAND] = rng.uniform(*scene.HAND_RANGE, (60, 4))
    qpos[:, scene.FINGERS] = rng.uniform(0, scene.FINGER_OPEN, (60, 2))
    qpos[:, sim.scene.joints[0]] = rng.uniform(0, 1.95, 60)
    for o in range(2):
        near_tip = qpos[:, :3] + rng.normal(0, 0.03, (60, 3)) + [0, 0, 0.02]
        anywhere = sim.view(ids).position("box_1") + rng.uniform(-0.15, 0.15, (60, 3)) + [0, 0, 0.1]
        qpos[:, sim.scene.positions[o]] = np.where(rng.random((60, 1)) < 0.5, near_tip, anywhere)
        tilt = rng.normal(size=(60, 4))
        qpos[:, sim.scene.quaternions[o]] = tilt / np.linalg.norm(tilt, axis=1, keepdims=True)
    check(sim, ids)
    assert np.array_equal(qpos[:, sim.scene.joints[0]], sim.view(ids).joint("box_1")), "measuring moved something"


def test_grasped_means_held_up():
    """A grasped apple follows the hand upwards: the predicate says what it means."""
    sim = TabletopSimulator([EVERYTHING], 8, threads=1)
    ids = np.arange(8)
    expert = TabletopExpert(sim)
    sim.reset(ids, starts(8))
    expert.reset(ids, starts(8))
    grasped, lifted = NAMES.index("grasped(apple_1)"), NAMES.index("lifted(apple_1)")
    held_up = 0
    for _ in range(60):
        sim.step(ids, expert.act(ids))
        truth = sim.atoms(ids)
        held_up += truth[:, lifted].sum()
        falling = truth[:, lifted] & ~truth[:, grasped] & (sim.view(ids).command[:, 4] < 0.04)
        assert not falling.any()
    assert held_up > 40


def test_thresholds_in_the_task_replace_the_vocabularys():
    tasks = [
        task(atom("near(apple_1, drink_1)", dist=d), atom("closed(box_1)", share=a), "upright(drink_1)")
        for d, a in ((10.0, 1.5), (0.01, 0.1))
    ]
    sim = TabletopSimulator(tasks, 2, threads=1)
    ids = np.arange(2)
    sim.reset(ids, [starts(1)[0], starts(1, task_row=1)[0]])
    values = sim.atom_values(ids)
    assert np.array_equal(values[0], values[1]) and 0.1 < values[0, 0] < 0.5
    assert sim.atoms(ids).tolist() == [[True, True, True], [False, False, True]]
    near, closed, _ = sim.atom_tests(1)
    assert (near.text, near.op, near.threshold, near.unit) == ("near(apple_1, drink_1, dist=0.01)", "<", 0.01, "m")
    assert (closed.threshold, closed.unit) == (0.1, "1") and "share" in closed.meaning


def test_tasks_of_different_length_are_padded():
    sim = TabletopSimulator([PACKED, task("open(box_1)")], 2, threads=1)
    ids = np.arange(2)
    sim.reset(ids, [starts(1)[0], starts(1, task_row=1)[0]])
    assert sim.atoms(ids).tolist() == [[False] * 3, [True, False, False]]
    assert np.isnan(sim.atom_values(ids)).tolist() == [[False] * 3, [False, True, True]]
    assert sim.atoms(ids[1:]).tolist() == [[True, False, False]]


def test_every_word_of_the_vocabulary_is_measured_and_has_one_threshold():
    assert set(VOCABULARY.predicates) == set(MEASURES)
    for predicate in VOCABULARY.predicates.values():
        assert predicate.op in ("<", ">") and predicate.unit in ("m", "rad", "1")
        assert [p.default for p in predicate.params.values()] in ([], [predicate.threshold])
        assert [p.unit for p in predicate.params.values()] in ([], [predicate.unit])
    kinds = {kind for entities in VOCABULARY.scenes.values() for each in entities.values() for kind in each}
    assert {kind for p in VOCABULARY.predicates.values() for arg in p.args for kind in arg.split("|")} <= kinds
    assert {name for name, p in VOCABULARY.predicates.items() if p.pulse} == {"pressed"}
    assert VOCABULARY.control_hz == TabletopSimulator([PACKED], 1).control_hz

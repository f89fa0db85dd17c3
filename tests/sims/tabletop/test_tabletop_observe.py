"""What a policy sees: shapes, the shift, and that nothing hidden leaks."""

import numpy as np
from tabletop_helpers import EVERYTHING, PACKED, starts

from structrl.sims.tabletop import TabletopExpert, TabletopSimulator

BIAS = np.array([0.008, -0.011])


def pair(num_envs: int = 6) -> tuple[TabletopSimulator, TabletopSimulator, np.ndarray]:
    plain = TabletopSimulator([PACKED], num_envs, threads=1)
    shifted = TabletopSimulator([PACKED], num_envs, threads=1, shift={"object_bias": BIAS.tolist()})
    return plain, shifted, np.arange(num_envs)


def test_observation_has_the_promised_shapes_and_about_unit_scale():
    sim = TabletopSimulator([EVERYTHING], 5, threads=1)
    ids = np.array([1, 4])
    expert = TabletopExpert(sim)
    sim.reset(ids, starts(2))
    expert.reset(ids, starts(2))
    for _ in range(110):
        sim.step(ids, expert.act(ids))
        seen = sim.observe(ids)
        assert set(seen) == set(sim.observation)
        for name, (shape, dtype) in sim.observation.items():
            assert seen[name].shape == (2, *shape) and seen[name].dtype == dtype
            assert np.abs(seen[name]).max() < 6
    assert (np.diff(sim.observe(ids)["state"], axis=0) != 0).any()


def test_shift_moves_the_observed_objects_and_nothing_else():
    plain, shifted, ids = pair()
    for sim in (plain, shifted):
        sim.reset(ids, starts(6))
    assert np.array_equal(plain.state(ids)["physics"], shifted.state(ids)["physics"])
    assert np.array_equal(plain.atom_values(ids), shifted.atom_values(ids))
    a, b = plain.observe(ids), shifted.observe(ids)
    assert np.array_equal(a["state"], b["state"])
    difference = b["tokens"] - a["tokens"]
    assert np.allclose(difference[:, :2, 3:5], BIAS / 0.1, atol=1e-6)  # relative to the hand
    assert np.allclose(difference[:, :2, 9:11], BIAS / 0.1, atol=1e-6)  # relative to the box
    fine = np.tanh((np.arctanh(np.float64(a["tokens"][:, :2, 6:8]).clip(-0.999, 0.999)) * 0.02 + BIAS) / 0.02)
    clear = np.abs(a["tokens"][:, :2, 6:8]) < 0.99
    assert np.allclose(b["tokens"][:, :2, 6:8][clear], fine[clear], atol=1e-4)
    difference[:, :2, [3, 4, 6, 7, 9, 10]] = 0
    assert not difference.any()


def test_inside_flag_is_judged_by_the_observed_position():
    plain, shifted, ids = pair(2)
    for sim in (plain, shifted):
        sim.reset(ids, starts(2))
        box = sim.view(ids).position("box_1")
        # 5 mm within the far wall, true: inside. Observed 8 mm further: outside.
        sim.batch.bind("qpos")[:, sim.scene.positions[0]] = box + np.array([0.085, 0, 0.04])
    assert plain.observe(ids)["tokens"][:, 0, 12].tolist() == [1, 1]
    assert shifted.observe(ids)["tokens"][:, 0, 12].tolist() == [0, 0]
    assert shifted.atoms(ids)[:, 0].all(), "the truth must not be shifted"


def test_tokens_tell_the_layout():
    """The true positions can be read back from an unshifted observation."""
    sim = TabletopSimulator([PACKED], 20, threads=1)
    ids = np.arange(20)
    sim.reset(ids, starts(20))
    view, seen = sim.view(ids), sim.observe(ids)
    hand = seen["state"][:, :3] * [0.2, 0.2, 0.1] + [0, 0, 0.15]
    assert np.allclose(hand, view.hand[:, :3], atol=1e-6)
    positions = hand[:, None] + seen["tokens"][:, :, 3:6] * 0.1
    assert np.allclose(positions[:, :2], view.objects, atol=1e-6) and np.allclose(
        positions[:, 2], view.position("box_1"), atol=1e-6
    )
    assert np.allclose(np.arctan2(seen["tokens"][:, 2, 14], seen["tokens"][:, 2, 13]), view.joint("box_1"), atol=1e-5)

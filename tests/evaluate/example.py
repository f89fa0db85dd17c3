"""A small hand-made episode: three subtasks, four atoms, no simulator."""

import numpy as np

from structrl.evaluate.episodes import Episode
from structrl.lang.spec import AtomSpec, SubtaskSpec, TaskSpec
from structrl.sims.base import AtomTest

ATOMS = (
    AtomSpec("in", ("apple", "box")),
    AtomSpec("in", ("drink", "box")),
    AtomSpec("grasped", ("drink",)),
    AtomSpec("closed", ("box",)),
)
TESTS = (
    AtomTest("in(apple, box)", "<", 0.0, "m", "inside the walls"),
    AtomTest("in(drink, box)", "<", 0.0, "m", "inside the walls"),
    AtomTest("grasped(drink)", ">", 0.5, "", "both fingers touch it"),
    AtomTest("closed(box)", "<", 0.1, "rad", "angle of the lid"),
)
TASK = TaskSpec(
    name="pack",
    atoms=ATOMS,
    subtasks=(
        SubtaskSpec("apple_in", "in(apple, box)", (("atom", 0),), (), 4.0),
        SubtaskSpec(
            "drink_in",
            "in(drink, box) and not grasped(drink)",
            (("atom", 1), ("atom", 2), ("not",), ("and", 2)),
            (),
            3.0,
        ),
        SubtaskSpec("close", "closed(box)", (("atom", 3),), (0, 1), 2.0),
    ),
    command="Pack the box, then close it.",
    sim="toy",
    horizon=10,
    success=(("atom", 0), ("atom", 1), ("atom", 3), ("and", 3)),
    source='task pack\ncommand "Pack the box, then close it."\n',
)


def episode(values, task=TASK, failed=False, obs_at=None):
    """An Episode from measured values [T+1, 4]; truth of atoms, conditions and success follow from the tests."""
    values = np.asarray(values, np.float64)
    op = [test.op for test in TESTS]
    limit = np.array([test.threshold for test in TESTS])
    atoms = np.where(np.array(op) == "<", values < limit, values > limit)
    holds = np.stack([atoms[:, 0], atoms[:, 1] & ~atoms[:, 2], atoms[:, 3]], 1)
    steps = len(values) - 1
    obs_at = np.arange(steps + 1) if obs_at is None else np.asarray(obs_at)
    return Episode(
        task=task,
        start=np.array([0, -1, 1, 4, 0, 7]),
        actions=np.arange(steps * 2, dtype=np.float32).reshape(steps, 2),
        holds=holds,
        success=atoms[:, 0] & atoms[:, 1] & atoms[:, 3],
        failed=failed,
        atoms=atoms,
        atom_values=values,
        atom_tests=TESTS,
        obs_at=obs_at,
        observation={
            "state": np.arange(len(obs_at) * 3, dtype=np.float32).reshape(-1, 3),
            "images.wrist": np.full((len(obs_at), 3, 4, 4), 7, np.uint8),
        },
    )

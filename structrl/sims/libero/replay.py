"""Stored simulator states of LIBERO's demonstrations, looked at again: atoms, success and observations. Torch-free.

Runs under LIBERO's Python, called by `structrl.imitation.libero_demos`: one request file in, one answer file out.
"""

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from typing import Any

import numpy as np

from structrl.lang.spec import TaskSpec
from structrl.sims.base import Start
from structrl.sims.libero.control import CLOSING_SPEED, SUBSTEPS
from structrl.sims.libero.simulator import LiberoSimulator
from structrl.sims.libero.world import Array, Saved, World


class Replay:
    """Demonstrations of one task.

    Args:
        task: the task.
        bddl: file name of the problem that they were recorded in, "" if unknown.
        arguments: of the simulator.

    Raises:
        ValueError: the demonstrations are of another task.
    """

    def __init__(self, task: TaskSpec, bddl: str, arguments: Mapping[str, Any]):
        self.sim = LiberoSimulator([task], 1, **arguments)
        self.ids = np.zeros(1, np.int64)
        self.sim.reset(self.ids, [Start(0, 0, (0,))])
        own = self.sim.world(0)[0].task.bddl.name
        if bddl and bddl != own:
            raise ValueError(f"demonstrations of {bddl}, but {task.path} is about {own}")

    def episode(self, states: Array, actions: Array, model: str) -> dict[str, np.ndarray]:
        """What a demonstration's states show.

        A file holds the state before every action and none after the last one, which is therefore executed again.

        Args:
            states: [T, 1 + nq + nv] time, qpos and qvel before each action.
            actions: [T, 7].
            model: MJCF text of the scene; it alone says where the fixtures stood.

        Returns:
            `atoms` [T+1, A], `values` [T+1, A], `success` [T+1], `observation.*` [T, ...].

        Raises:
            ValueError: states that do not fit the task's model.
        """
        world, body = self.sim.world(0)
        m = world.model
        if states.shape[1] != 1 + m.nq + m.nv:
            raise ValueError(f"states of width {states.shape[1]}, the task's model has {1 + m.nq + m.nv}")
        poses = fixture_poses(world, model)
        grip = np.zeros(2)  # the gripper's command is an integral of the actions, and in no state
        heights = np.zeros(self.sim.atoms(self.ids).shape[1])
        rows: list[dict[str, np.ndarray]] = []
        for t, state in enumerate(states):
            qpos = state[1 : 1 + m.nq]
            physics = np.concatenate([state, np.zeros(m.nv + m.nu), qpos])
            world.restore(body, Saved(physics, poses, np.concatenate([np.zeros(12), grip]), heights))
            hand = world.env.robots[0].eef_site_id
            body.goal_pos, body.goal_ori = (
                body.data.site_xpos[hand].copy(),
                body.data.site_xmat[hand].reshape(3, 3).copy(),
            )
            if t == 0:
                self.sim._at(0)[0].atoms.mark_start(body)
                heights = body.start_heights
            rows.append(self._row() | {f"observation.{k}": v[0] for k, v in self.sim.observe(self.ids).items()})
            closing = np.sign(actions[t, 6]) * np.array([-1.0, 1.0])
            grip = np.clip(grip + SUBSTEPS * CLOSING_SPEED * closing, -1.0, 1.0)
        self.sim.step(self.ids, actions[-1:].astype(np.float32))
        rows.append(self._row())
        return {key: np.stack([row[key] for row in rows if key in row]) for key in rows[0]}

    def _row(self) -> dict[str, np.ndarray]:
        ids = self.ids
        return {
            "atoms": self.sim.atoms(ids)[0],
            "values": self.sim.atom_values(ids)[0],
            "success": self.sim.own_success(ids)[0],
        }


def fixture_poses(world: World, model: str) -> Array:
    """Positions and quaternions [F, 7] of a world's fixtures in an MJCF text.

    Raises:
        ValueError: not XML, or a fixture is missing.
    """
    try:
        bodies = {body.get("name"): body for body in ElementTree.fromstring(model).iter("body")}
    except ElementTree.ParseError as error:
        raise ValueError(f"its model_file is no XML: {error}") from None
    poses = []
    for fixture in world.env.fixtures_dict.values():
        found = bodies.get(fixture.root_body)
        if found is None:
            raise ValueError(f"its model_file has no body '{fixture.root_body}'")
        numbers = f"{found.get('pos', '0 0 0')} {found.get('quat', '1 0 0 0')}".split()
        pose = np.array(numbers, float)
        pose[3:] /= np.linalg.norm(pose[3:])
        poses.append(pose)
    return np.array(poses).reshape(-1, 7)


def main(argv: list[str]) -> None:
    """Answer request file `argv[0]` (npz) with file `argv[1]`: `<i>.atoms` and so on, and `atom_tests` (JSON)."""
    with np.load(argv[0]) as request:
        head = json.loads(str(request["head"]))
        replay = Replay(TaskSpec.from_json(head["task"]), head["bddl"], head["sim"])
        answer: dict[str, Any] = {}
        for i in range(head["episodes"]):
            try:
                found = replay.episode(request[f"{i}.states"], request[f"{i}.actions"], str(request[f"{i}.model"]))
            except ValueError as error:
                raise SystemExit(f"demo_{head['names'][i]}: {error}") from None
            answer |= {f"{i}.{key}": value for key, value in found.items()}
        answer["atom_tests"] = json.dumps([vars(test) for test in replay.sim.atom_tests(0)])
    np.savez(argv[1], **answer)

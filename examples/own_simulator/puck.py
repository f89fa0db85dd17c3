"""A simulator of one's own in plain MuJoCo: a puck on a table, pushed from zone to zone."""

import mujoco
import numpy as np
from mujoco.batch import Batch

from structrl.seeding import generator
from structrl.sims.base import ActionSpec, AtomTest, Simulator

XML = """<mujoco><worldbody><body><joint name="x" type="slide" axis="1 0 0" damping="2"/>
<joint name="y" type="slide" axis="0 1 0" damping="2"/><geom type="cylinder" size="0.03 0.01" mass="0.5"/></body>
</worldbody><actuator><motor joint="x"/><motor joint="y"/></actuator></mujoco>"""
ZONES = {"red": np.array([-0.2, 0.1]), "green": np.array([0.2, 0.1]), "blue": np.array([0.0, -0.2])}


class Puck(Simulator):
    def __init__(self, tasks, num_envs, force: float = 1.0):
        self.tasks, self.num_envs, self.control_hz, self.force = tuple(tasks), num_envs, 10.0, force
        self.action = ActionSpec(("x", "y"), ("N", "N"), (-1.0, -1.0), (1.0, 1.0))
        self.observation = {"state": ((4,), np.float32), "tokens": ((3, 2), np.float32)}
        self.batch = Batch(mujoco.MjModel.from_xml_string(XML), num_envs, 1)
        self.qpos, self.qvel, self.ctrl = (self.batch.bind(name) for name in ("qpos", "qvel", "ctrl"))
        self.task = np.zeros(num_envs, int)

    def reset(self, ids, starts):
        self.batch.reset(ids)
        self.qpos[ids] = [generator(*start.seed).uniform(-0.05, 0.05, 2) for start in starts]
        self.task[ids] = [start.task for start in starts]

    def step(self, ids, action):
        self.ctrl[ids] = self.force * action
        self.batch.step(ids, nstep=50)

    def atom_values(self, ids):
        out = np.full((len(ids), max(len(task.atoms) for task in self.tasks)), np.nan)
        for row, i in zip(out, ids, strict=True):
            for k, atom in enumerate(self.tasks[self.task[i]].atoms):
                row[k] = np.linalg.norm(self.qpos[i] - ZONES[atom.args[0]])
        return out

    def atoms(self, ids):
        return self.atom_values(ids) < 0.05  # NaN is padding, and not below anything

    def atom_tests(self, task):
        return tuple(AtomTest(str(a), "<", 0.05, "m", "distance from the zone") for a in self.tasks[task].atoms)

    def observe(self, ids):
        tokens = 5 * (np.array(list(ZONES.values())) - self.qpos[ids][:, None])
        state = np.concatenate([5 * self.qpos[ids], self.qvel[ids]], 1)
        return {"state": state.astype(np.float32), "tokens": tokens.astype(np.float32)}

    def unstable(self, ids):
        return self.batch.warning[ids, :, 1].any(1)

    def state(self, ids):
        return {"physics": self.batch.state[ids].copy(), "task": self.task[ids]}

    def set_state(self, ids, state):
        self.batch.state[ids], self.task[ids] = state["physics"], state["task"]

"""One control step of LIBERO's arm: 25 substeps of MuJoCo under robosuite's operational-space controller (OSC_POSE).

`Exact` does what `robosuite.environments.base.MujocoEnv.step` of version 1.4.0 does to the physics, bit for bit, and
leaves out what it does besides: 17 to 41 observables after every substep, buffers of recent values, names looked up
again and again, and the parts of two of its three passes per substep whose results are there already. `Fast` also
leaves out the constraint solver's two extra passes, which change nothing but its warm start, and writes the
controller in fewer operations.

Both read their constants from the robot and controller objects that robosuite has built.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from structrl.sims.libero.world import Array, Body, World

SUBSTEPS = 25  # of 2 ms: 20 Hz
CLOSING_SPEED = 0.01  # robosuite's PandaGripper.speed: change of the gripper's command per substep
_FINGERS = np.array([-1.0, 1.0])  # PandaGripper.format_action: the fingers move against each other
_NULL_KP = 10.0  # robosuite's nullspace_torques


class Exact:
    """robosuite's control step, bit for bit."""

    def __init__(self, world: World):
        import mujoco
        from robosuite.utils import control_utils, transform_utils

        self.world, self.model = world, world.model
        self._mj, self._osc, self._turn = mujoco, control_utils, transform_utils
        robot = world.env.robots[0]
        arm = robot.controller
        self._site = world.env.sim.model.site_name2id(arm.eef_name)
        self._qpos, self._qvel = list(arm.qpos_index), list(arm.qvel_index)
        self._kp, self._kd = arm.kp, arm.kd
        self._null = np.array(arm.initial_joint)
        arm.scale_action(np.zeros(6))  # computes its scale on the first call
        self._scale, self._shift = arm.action_scale, (arm.action_input_transform, arm.action_output_transform)
        self._in = (arm.input_min, arm.input_max)
        self._torque_limits = robot.torque_limits
        self._arm_ctrl = list(robot._ref_joint_actuator_indexes)
        sim_model = world.env.sim.model
        self._hand_ctrl = [sim_model.actuator_name2id(name) for name in robot.gripper.actuators]
        limits = self.model.actuator_ctrlrange[self._hand_ctrl]
        self._hand_bias, self._hand_weight = 0.5 * (limits[:, 1] + limits[:, 0]), 0.5 * (limits[:, 1] - limits[:, 0])
        nv = self.model.nv
        self._jac_pos, self._jac_ori = np.zeros((3, nv)), np.zeros((3, nv))
        self._mass = np.zeros((nv, nv))

    def step(self, body: Body, action: NDArray[np.float64]) -> None:
        """Advance `body` by one control step with `action` [7] in [-1, 1]."""
        self.world.use(body)
        data = body.data
        grip = CLOSING_SPEED * _FINGERS * np.sign(action[6:])
        for substep in range(SUBSTEPS):
            self._before(data)
            if substep == 0:
                self._set_goal(body, action[:6])
            if substep == SUBSTEPS - 1:
                body.before = data.qpos.copy()
            torques = self._torques(body)
            body.grip = np.clip(body.grip + grip, -1.0, 1.0)
            data.ctrl[self._hand_ctrl] = self._hand_bias + self._hand_weight * body.grip
            data.ctrl[self._arm_ctrl] = np.clip(torques, *self._torque_limits)
            self._mj.mj_step2(self.model, data)

    def _before(self, data: Any) -> None:
        """robosuite calls mj_forward twice and then mj_step, which calls it again.

        Positions and velocities are the same in all three; the solver's result is not, because in these versions of
        MuJoCo every pass starts from the one before it. So the parts that depend on forces run three times here, too.
        """
        self._mj.mj_step1(self.model, data)
        self._mj.mj_forwardSkip(self.model, data, self._mj.mjtStage.mjSTAGE_VEL, 1)
        self._mj.mj_forwardSkip(self.model, data, self._mj.mjtStage.mjSTAGE_VEL, 1)

    def _set_goal(self, body: Body, action: Array) -> None:
        """A goal relative to where the hand is; the orientation goal stays where an action turns nothing."""
        delta = np.clip(action, *self._in)
        delta = (delta - self._shift[0]) * self._scale + self._shift[1]
        if not all(math.isclose(turn, 0.0) for turn in delta[3:]):
            turn = self._turn.quat2mat(self._turn.axisangle2quat(delta[3:]))
            body.goal_ori = np.dot(turn, body.data.site_xmat[self._site].reshape(3, 3))
        body.goal_pos = body.data.site_xpos[self._site] + delta[:3]

    def _torques(self, body: Body) -> Array:
        """The controller's torques [7]; the very operations of OperationalSpaceController.run_controller."""
        data, osc, at = body.data, self._osc, self._qvel
        self._mj.mj_jacSite(self.model, data, self._jac_pos, self._jac_ori, self._site)
        velocity, turning = np.dot(self._jac_pos, data.qvel), np.dot(self._jac_ori, data.qvel)
        jac_pos, jac_ori = np.array(self._jac_pos[:, at]), np.array(self._jac_ori[:, at])
        jac = np.array(np.vstack([jac_pos, jac_ori]))
        self._mj.mj_fullM(self.model, self._mass, data.qM)
        mass = self._mass[at, :][:, at]
        position = np.array(data.site_xpos[self._site])
        orientation = np.array(data.site_xmat[self._site].reshape(3, 3))
        force = (body.goal_pos - position) * self._kp[:3] + -velocity * self._kd[:3]
        torque = osc.orientation_error(body.goal_ori, orientation) * self._kp[3:] + -turning * self._kd[3:]
        _, inertia_pos, inertia_ori, null = osc.opspace_matrices(mass, jac, jac_pos, jac_ori)
        wrench = np.concatenate([np.dot(inertia_pos, force), np.dot(inertia_ori, torque)])
        torques = np.dot(jac.T, wrench) + data.qfrc_bias[at]
        torques += osc.nullspace_torques(mass, null, self._null, data.qpos[self._qpos], data.qvel[at])
        return torques


class Fast(Exact):
    """Without the solver's extra passes, and the controller in fewer operations; deviates (see docs/libero.md)."""

    def _before(self, data: Any) -> None:
        self._mj.mj_step1(self.model, data)

    def _torques(self, body: Body) -> Array:
        data, a = body.data, self._arm
        self._mj.mj_jacSite(self.model, data, self._jac[:3], self._jac[3:], self._site)
        jac = self._jac[:, a]
        self._mj.mj_fullM(self.model, self._mass, data.qM)
        mass = self._mass[a, a]
        joints, speeds = data.qpos[self._arm_qpos], data.qvel[a]
        orientation = data.site_xmat[self._site].reshape(3, 3)
        error = np.empty(6)
        error[:3] = body.goal_pos - data.site_xpos[self._site]
        # 1/2 sum of cross products of the axes: the antisymmetric part of goal @ orientation.T
        turn = body.goal_ori @ orientation.T
        error[3:] = turn[2, 1] - turn[1, 2], turn[0, 2] - turn[2, 0], turn[1, 0] - turn[0, 1]
        error[3:] *= 0.5
        wanted = error * self._kp - (jac @ speeds) * self._kd
        to_joints = np.linalg.solve(mass, jac.T)  # mass^-1 jac^T
        inverse = jac @ to_joints
        blocks = np.linalg.inv(np.stack([inverse[:3, :3], inverse[3:, 3:]]))
        wrench = (blocks @ wanted.reshape(2, 3, 1)).reshape(6)
        posture = mass @ (_NULL_KP * (self._null - joints) - 2 * math.sqrt(_NULL_KP) * speeds)
        # null^T posture, null = 1 - mass^-1 jac^T inertia jac
        null = posture - jac.T @ np.linalg.solve(inverse, to_joints.T @ posture)
        return jac.T @ wrench + data.qfrc_bias[a] + null

    def __init__(self, world: World):
        super().__init__(world)
        self._arm, self._arm_qpos = _consecutive(self._qvel), _consecutive(self._qpos)
        self._jac = np.zeros((6, self.model.nv))


def _consecutive(index: list[int]) -> slice:
    if index != list(range(index[0], index[0] + len(index))):
        raise RuntimeError(f"the arm's joints are not consecutive: {index}")
    return slice(index[0], index[-1] + 1)

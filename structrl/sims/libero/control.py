"""One control step of LIBERO's arm: 25 substeps of MuJoCo under robosuite's operational-space controller (OSC_POSE).

`Exact` does what `robosuite.environments.base.MujocoEnv.step` of version 1.4.0 does to the physics, bit for bit, and
leaves out what it does besides: 17 to 41 observables after every substep, buffers of recent values, names looked up
again and again, and the parts of two of its three passes per substep whose results are there already. `Fast` also
leaves out the constraint solver's two extra passes, which change nothing but its warm start, and writes the
controller in fewer operations.

Both read their constants from the robot and controller objects that robosuite has built.
"""

import math
from collections.abc import Sequence
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
        robot, names = world.env.robots[0], world.env.sim.model
        arm = robot.controller
        self._site = names.site_name2id(arm.eef_name)
        self._qpos, self._dofs = _consecutive(arm.qpos_index), _consecutive(arm.qvel_index)
        self._kp, self._kd = arm.kp, arm.kd
        self._posture = np.array(arm.initial_joint)
        arm.scale_action(np.zeros(6))  # computes its scale on the first call
        self._scale, self._shift = arm.action_scale, (arm.action_input_transform, arm.action_output_transform)
        self._in = (arm.input_min, arm.input_max)
        self._torque_limits = robot.torque_limits
        self._arm_ctrl = _consecutive(robot._ref_joint_actuator_indexes)
        self._hand_ctrl = _consecutive([names.actuator_name2id(name) for name in robot.gripper.actuators])
        limits = self.model.actuator_ctrlrange[self._hand_ctrl]
        self._hand_bias, self._hand_weight = 0.5 * (limits[:, 1] + limits[:, 0]), 0.5 * (limits[:, 1] - limits[:, 0])
        nv = self.model.nv
        self._jac, self._mass = np.zeros((6, nv)), np.zeros((nv, nv))

    def step(self, body: Body, action: NDArray[np.float64]) -> None:
        """Advance `body` by one control step with `action` [7] in [-1, 1]."""
        self.world.use(body)
        data, (low, high) = body.data, self._torque_limits
        ctrl = data.ctrl
        closing = CLOSING_SPEED * _FINGERS * np.sign(action[6:])
        for substep in range(SUBSTEPS):
            self._before(data)
            if substep == 0:
                self._set_goal(body, action[:6])
            if substep == SUBSTEPS - 1:
                body.before = data.qpos.copy()
            torques = self._torques(body)
            body.grip = np.minimum(np.maximum(body.grip + closing, -1.0), 1.0)
            ctrl[self._hand_ctrl] = self._hand_bias + self._hand_weight * body.grip
            ctrl[self._arm_ctrl] = np.minimum(np.maximum(torques, low), high)
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
        """The controller's torques [7]: the operations of OperationalSpaceController.run_controller, in its order.

        The matrices have robosuite's memory layouts, because the linear algebra rounds differently in others.
        """
        data, osc, dofs = body.data, self._osc, self._dofs
        self._mj.mj_jacSite(self.model, data, self._jac[:3], self._jac[3:], self._site)
        self._mj.mj_fullM(self.model, self._mass, data.qM)
        qvel = data.qvel
        velocity, turning = np.dot(self._jac[:3], qvel), np.dot(self._jac[3:], qvel)
        arm = self._jac[:, dofs]
        jac_pos, jac_ori, jac = arm[:3].copy("F"), arm[3:].copy("F"), arm.copy("F")
        mass = self._mass[dofs, dofs].copy("F")
        orientation = np.array(data.site_xmat[self._site].reshape(3, 3))
        force = (body.goal_pos - data.site_xpos[self._site]) * self._kp[:3] + -velocity * self._kd[:3]
        torque = osc.orientation_error(body.goal_ori, orientation) * self._kp[3:] + -turning * self._kd[3:]
        _, inertia_pos, inertia_ori, null = osc.opspace_matrices(mass, jac, jac_pos, jac_ori)
        wrench = np.concatenate([np.dot(inertia_pos, force), np.dot(inertia_ori, torque)])
        torques = np.dot(jac.T, wrench) + data.qfrc_bias[dofs]
        torques += osc.nullspace_torques(mass, null, self._posture, data.qpos[self._qpos].copy(), qvel[dofs].copy())
        return torques


class Fast(Exact):
    """Without the solver's extra passes, and the controller in fewer operations; deviates (see docs/libero.md)."""

    def __init__(self, world: World):
        from scipy.linalg.lapack import dposv

        super().__init__(world)
        self._solve = dposv  # numpy.linalg spends several times longer on checks than on matrices of this size

    def _before(self, data: Any) -> None:
        self._mj.mj_step1(self.model, data)

    def _torques(self, body: Body) -> Array:
        """The same torques: linear systems solved where robosuite forms pseudo-inverses."""
        data, dofs = body.data, self._dofs
        self._mj.mj_jacSite(self.model, data, self._jac[:3], self._jac[3:], self._site)
        self._mj.mj_fullM(self.model, self._mass, data.qM)
        jac, mass = self._jac[:, dofs], self._mass[dofs, dofs]
        speeds = data.qvel[dofs]
        error = np.empty(6)
        np.subtract(body.goal_pos, data.site_xpos[self._site], out=error[:3])
        # Half the sum of the cross products of the axes is the antisymmetric part of goal times orientation^T.
        turn = body.goal_ori @ data.site_xmat[self._site].reshape(3, 3).T
        error[3] = 0.5 * (turn[2, 1] - turn[1, 2])
        error[4] = 0.5 * (turn[0, 2] - turn[2, 0])
        error[5] = 0.5 * (turn[1, 0] - turn[0, 1])
        wanted = error * self._kp - (jac @ speeds) * self._kd
        posture = mass @ (_NULL_KP * (self._posture - data.qpos[self._qpos]) - 2 * math.sqrt(_NULL_KP) * speeds)
        _, to_joints, bad = self._solve(mass, jac.T)  # mass^-1 jac^T
        inverse = jac @ to_joints
        _, force, bad_pos = self._solve(inverse[:3, :3], wanted[:3])
        _, torque, bad_ori = self._solve(inverse[3:, 3:], wanted[3:])
        _, wasted, bad_all = self._solve(inverse, posture @ to_joints)
        if bad or bad_pos or bad_ori or bad_all:  # a singular pose of the arm: robosuite's pseudo-inverses
            return super()._torques(body)
        wrench = np.concatenate([force, torque]) - wasted  # what the hand feels of the posture's torques is taken out
        return wrench @ jac + data.qfrc_bias[dofs] + posture


def _consecutive(index: Sequence[int]) -> slice:
    found = [int(i) for i in index]
    if found != list(range(found[0], found[0] + len(found))):
        raise RuntimeError(f"robosuite's indices are not consecutive: {found}")
    return slice(found[0], found[-1] + 1)

"""What a policy sees of a LIBERO environment: proprioception, camera images, and poses of the task's entities.

Conventions, said here once:

* Images are upright, row 0 at the top, (3, size, size) uint8. MuJoCo renders them upside down and LIBERO hands them
  out like that. Policies that were trained on LIBERO's images turned by 180 degrees (OpenVLA, OpenVLA-OFT, pi0, pi0.5,
  SmolVLA and GR00T's LIBERO data: `image[::-1, ::-1]`) must mirror ours left to right: `image[..., ::-1]`. Policies
  trained on images that were only flipped (`image[::-1]`) take ours as they are.
* `state` 8d: position of the hand (m), its rotation as axis times angle (rad), the two finger joints (m): OpenVLA-OFT,
  pi0, pi0.5, LeRobot. 9d: position, quaternion (x, y, z, w), fingers: TorchRL's LiberoEnv.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from structrl.lang.spec import TaskSpec
from structrl.sims.libero.world import Array, Body, World

PROPRIOCEPTION = {"8d": 8, "9d": 9}
# Our names of the cameras; every other name is taken as LIBERO's own.
CAMERAS = {"wrist": "robot0_eye_in_hand"}
TOKEN_FEATURES = 21


def proprioception(world: World, body: Body, kind: str) -> NDArray[np.float32]:
    """`state`, [8] or [9]; the values of LIBERO's robot0_eef_pos, robot0_eef_quat and robot0_gripper_qpos."""
    from robosuite.utils.transform_utils import convert_quat, quat2axisangle

    env, robot = world.env, world.env.robots[0]
    position = body.data.site_xpos[robot.eef_site_id]
    quaternion = convert_quat(env.sim.data.get_body_xquat(robot.robot_model.eef_name), to="xyzw")
    rotation = quat2axisangle(quaternion.copy()) if kind == "8d" else quaternion
    fingers = body.data.qpos[robot._ref_gripper_joint_pos_indexes]
    return np.concatenate([position, rotation, fingers]).astype(np.float32)


def entities(task: TaskSpec) -> tuple[str, ...]:
    """What the task speaks of, in the order of its atoms: one token each."""
    return tuple(dict.fromkeys(arg for atom in task.atoms for arg in atom.args))


def tokens(world: World, body: Body, names: Sequence[str], count: int) -> NDArray[np.float32]:
    """[count, 21]: for each entity 1, its position from the hand (coarse, and fine through tanh), from the middle of
    the workspace, the first two columns of its rotation, its joint (drawer, door, knob), and the hand's first two
    columns. Padding is 0.
    """
    data = body.data
    site = world.env.robots[0].eef_site_id
    hand, hand_axes = data.site_xpos[site], data.site_xmat[site].reshape(3, 3)
    out = np.zeros((count, TOKEN_FEATURES))
    for row, name in zip(out, names, strict=False):
        position, axes, joint = _pose(world, data, name)
        offset = position - hand
        row[0] = 1.0
        row[1:4] = offset / 0.2
        row[4:7] = np.tanh(offset / 0.03)
        row[7:10] = (position - world.env.workspace_offset) / 0.3
        row[10:16] = axes[:, :2].T.reshape(6)
        row[16] = joint
        row[17:20] = hand_axes[:, 0]
        row[20] = hand_axes[2, 2]
    return out.astype(np.float32)


def _pose(world: World, data: Any, name: str) -> tuple[Array, Array, float]:
    """Position [3], axes [3, 3] and first joint (0 without one) of an object, fixture or region."""
    env, model = world.env, world.env.sim.model
    if name in env.obj_body_id:
        at = env.obj_body_id[name]
        position, axes = data.xpos[at], data.xmat[at].reshape(3, 3)
        joints = env.get_object(name).joints if name in env.fixtures_dict else ()
    else:
        at = model.site_name2id(name)
        position, axes = data.site_xpos[at], data.site_xmat[at].reshape(3, 3)
        joints = env.object_sites_dict[name].joints or ()
    return position, axes, float(data.qpos[model.get_joint_qpos_addr(joints[0])]) if joints else 0.0

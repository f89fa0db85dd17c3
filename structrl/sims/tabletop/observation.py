"""What a policy sees of a tabletop scene, without cameras: proprioception and object-state tokens, about unit scale.

`state` [n, 15]: hand pose (4), lead of the command (4), velocity (4), fingers (2), commanded opening.

`tokens` [n, rows, 15], a row for each object and then for each site of `Setting.tokens`:

    0-2    half extents
    3-5    position relative to the hand, coarse
    6-8    the same, fine: through tanh
    9-11   position relative to the scene's reference fixture
    12     objects: inside a container; buttons: has been pressed (its light is on)
    13-14  hinges: cosine and sine of the angle; drawers and covers: share of fully open, and 0; buttons: depth of the
           cap, and 0; box-shaped objects: cosine and sine of the yaw; zeros where they mean nothing

Objects' positions carry the shift, and what derives from them does too.
"""

import numpy as np

from structrl.sims.tabletop.scene import BOX, FINGER_OPEN, HAND, View
from structrl.sims.tabletop.settings import BUTTON_DOWN, Array

STATE = FEATURES = 15
COARSE, FINE_OBJECT, FINE_FIXTURE = 0.1, 0.02, 0.03  # m


def observe(view: View, velocity: Array, leash: Array, bias: Array) -> dict[str, np.ndarray]:
    """Observations of the environments of a view.

    Args:
        view: the true state.
        velocity: of the hand's four joints, [n, 4].
        leash: how far the command may run ahead, [4].
        bias: added to the objects' positions, [3] in m.
    """
    scene, setting = view.scene, view.scene.setting
    state = np.concatenate(
        [
            (view.hand - [0, 0, 0.15, 0]) / [0.2, 0.2, 0.1, 1],
            (view.command[:, HAND] - view.hand) / leash,
            velocity / [0.3, 0.3, 0.3, 1.5],
            view.fingers / (FINGER_OPEN / 2) - 1,
            view.command[:, 4:5] / (FINGER_OPEN / 2) - 1,
        ],
        axis=1,
    )
    marks = [scene.marks[site] for site in setting.tokens]
    count = len(scene.objects)
    objects = view.objects + bias
    position = np.concatenate([objects, np.stack([view.place(mark) for mark in marks], axis=1)], axis=1)
    to_hand = position - view.hand[:, None, :3]
    fine = np.array([FINE_OBJECT] * count + [FINE_FIXTURE] * len(marks))
    tokens = np.zeros((len(view.hand), len(fine), FEATURES))
    tokens[..., 0:3] = np.concatenate([scene.half_size, [mark.half for mark in marks]]) / COARSE
    tokens[..., 3:6] = to_hand / COARSE
    tokens[..., 6:9] = np.tanh(to_hand / fine[:, None])
    tokens[..., 9:12] = (position - view.position(setting.reference)[:, None]) / COARSE
    for container in scene.containers:
        tokens[:, :count, 12] += view.outside(container, objects) < 0
    for o in (o for o in range(count) if scene.shapes[o] == BOX):
        tokens[:, o, 13], tokens[:, o, 14] = np.cos(view.yaw(o)), np.sin(view.yaw(o))
    for row, site in enumerate(setting.tokens, count):
        if site not in scene.moving:
            continue
        if site in setting.buttons:
            tokens[:, row, 12] = view.presses[:, setting.buttons.index(site)] > 0
            tokens[:, row, 13] = view.joint(site) / BUTTON_DOWN
        elif scene.hinge[scene.moving.index(site)]:
            tokens[:, row, 13], tokens[:, row, 14] = np.cos(view.joint(site)), np.sin(view.joint(site))
        else:
            tokens[:, row, 13] = view.share(site)
    return {"state": state.astype(np.float32), "tokens": tokens.astype(np.float32)}

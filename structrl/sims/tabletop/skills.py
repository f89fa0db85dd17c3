"""Motions of the scripted expert that need no memory at all: pushing a handle, pressing a button.

Shapes: n environments.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from structrl.sims.tabletop.scene import View
from structrl.sims.tabletop.settings import Array

STANDOFF = 0.035  # m from a handle's middle to the hand that is about to push it
TOUCH = 0.010  # the hand is closer than STANDOFF + this: it may push; closer than this: it is on the wrong side


@dataclass(frozen=True)
class Motion:
    """Where the hand should go: `target` [n, 4] (x, y, z, yaw), a factor `speed` [n] sideways, and `grip` [n]."""

    target: Array
    speed: Array
    grip: Array

    def where(self, mask: NDArray[np.bool_], other: "Motion") -> "Motion":
        """This motion where `mask` [n], the other one elsewhere."""
        return Motion(
            np.where(mask[:, None], self.target, other.target),
            np.where(mask, self.speed, other.speed),
            np.where(mask, self.grip, other.grip),
        )


def rising(target: Array, z: Array) -> Array:
    """Speed sideways: none while the hand is far below its target height. It leaves upwards first."""
    return np.clip(1 - (target - z - 0.01) / 0.04, 0, 1)


def push(view: View, thing: str, opening: bool) -> Motion:
    """Push the handle of a drawer, cover or lever towards open (or on), or back."""
    mark = view.scene.marks[f"{thing}_handle"]
    handle, sign = view.place(mark), 1.0 if opening else -1.0
    way = np.broadcast_to(mark.axis, handle.shape)
    if mark.anchor is not None:
        way = np.cross(mark.axis, handle - view.origin(mark) - mark.anchor)
        way = way / np.linalg.norm(way, axis=1, keepdims=True)
    way = sign * way[:, :2]  # [n, 2] direction in which the handle should go
    hand, height = view.hand, handle[:, 2] - mark.half[2] / 2
    apart = hand[:, :2] - handle[:, :2]
    ahead = (apart * way).sum(1)
    aside = np.linalg.norm(apart - ahead[:, None] * way, axis=1)
    pushing = (ahead > -STANDOFF - TOUCH) & (ahead < -TOUCH) & (aside < 0.02) & (hand[:, 2] < height + 0.012)
    behind = handle[:, :2] - STANDOFF * way
    d = np.linalg.norm(behind - hand[:, :2], axis=1)
    xy = np.where(pushing[:, None], handle[:, :2] + 0.012 * way, behind)
    z = height + np.where(pushing, 0.0, np.clip(8 * (d - 0.01), 0, view.scene.setting.travel))
    target = np.c_[xy, z, np.zeros(len(z))]
    return Motion(target, rising(z, hand[:, 2]), np.full(len(z), -1.0))


def press(view: View, button: str) -> Motion:
    """Press a button from above, with closed fingers."""
    mark = view.scene.marks[button]
    place, hand = view.place(mark), view.hand
    d = np.linalg.norm(place[:, :2] - hand[:, :2], axis=1)
    over = np.clip(8 * (d - 0.008), 0, view.scene.setting.travel)
    z = place[:, 2] + mark.half[2] + np.where(d < 0.012, -0.03, 0.004 + over)
    target = np.c_[place[:, :2], z, np.zeros(len(z))]
    return Motion(target, rising(z, hand[:, 2]), np.full(len(z), -1.0))

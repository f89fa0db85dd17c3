"""What a scene's XML does not say: where things are at reset, what moves with which joint, what a policy sees of it.

Metres and radians, world frame (z up, table at z = 0). A further scene is an XML file, an entry here, and its entities
in `vocabulary.json`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from structrl.seeding import generator

Array = NDArray[np.float64]
Range = tuple[tuple[float, float], tuple[float, float]]  # lowest and highest (x, y)

HAND_START = np.array([[-0.15, -0.10, 0.17, -0.3], [0.0, 0.10, 0.25, 0.3]])  # x, y, z, yaw
BUTTON_DOWN, BUTTON_UP = -0.008, -0.004  # a press is counted at the first, the next one only after the second


@dataclass(frozen=True)
class Moving:
    """An entity's joint: its name in the XML, its position at reset, and what counts as fully open (m or rad)."""

    joint: str
    start: float = 0.0
    full: float = 1.0


@dataclass(frozen=True)
class Setting:
    """One scene.

    Attributes:
        fixtures: where the base of each mocap body may be.
        objects: where objects' centres may be, at least `gap` from each other, turned by at most `yaw`.
        moving: the joint of each entity that has one. A button's is a slide that is pressed downwards.
        buttons: which of these entities are buttons.
        tokens: sites that policies see besides the objects, and the one whose base all positions are relative to, too.
        drop: height of the fingertips at which an expert lets go over each container: above its rim.
        travel: how far above a grasp the hand travels, clear of everything.
        slots: where in or on a receptacle the expert puts each object (x, y from its centre), in the objects' order.
        grasp: height of the fingertips above the table at which each object is taken.
    """

    fixtures: Mapping[str, Range]
    objects: Range
    gap: float
    moving: Mapping[str, Moving]
    tokens: tuple[str, ...]
    reference: str
    grasp: tuple[float, ...]
    slots: Mapping[str, tuple[tuple[float, float], ...]]
    travel: float = 0.11
    drop: Mapping[str, float] = field(default_factory=dict)
    buttons: tuple[str, ...] = ()
    yaw: float = 0.0


SETTINGS = {
    "lunch": Setting(
        fixtures={"box_1": ((0.13, -0.06), (0.18, 0.04))},
        objects=((-0.27, -0.22), (-0.04, 0.16)),
        gap=0.115,  # the open fingers reach 57 mm sideways; closer neighbours would be knocked over by a grasp
        moving={"box_1": Moving("lid", 1.94, 2.0)},  # rests on the joint limit just past upright
        tokens=("box_1",),
        reference="box_1",
        grasp=(0.012, 0.018),
        slots={"box_1": ((-0.042, -0.040), (-0.042, 0.040))},
        drop={"box_1": 0.08},
    ),
    "kitchen": Setting(
        fixtures={
            "drawer_1": ((0.255, -0.185), (0.28, -0.155)),
            "oven_1": ((0.145, 0.155), (0.175, 0.185)),
            "stove_1": ((0.10, -0.015), (0.125, 0.015)),
            "timer_1": ((0.30, -0.015), (0.33, 0.015)),
        },
        objects=((-0.28, -0.20), (-0.10, 0.20)),
        gap=0.115,
        yaw=0.3,
        moving={
            "drawer_1": Moving("drawer", 0.0, 0.13),
            "oven_1": Moving("cover", 0.0, 0.15),
            "stove_1": Moving("knob"),
            "timer_1": Moving("timer"),
        },
        buttons=("timer_1",),
        tokens=("drawer_1", "drawer_1_handle", "oven_1", "oven_1_handle", "burner_1", "stove_1", "timer_1"),
        reference="oven_1",
        grasp=(0.012, 0.012, 0.014),
        slots={
            "drawer_1": ((0.02, -0.03), (-0.03, 0.0), (0.02, 0.03)),
            "oven_1": ((-0.033, 0.0), (0.025, 0.0), (0.0, 0.0)),
            "burner_1": ((0.0, 0.0),) * 3,
        },
        drop={"drawer_1": 0.058, "oven_1": 0.092},
        travel=0.14,
    ),
    "blocks": Setting(
        fixtures={"tray_1": ((0.13, -0.06), (0.18, 0.04)), "bell_1": ((0.05, 0.21), (0.15, 0.25))},
        objects=((-0.27, -0.22), (-0.05, 0.16)),
        gap=0.115,
        yaw=0.3,
        moving={"bell_1": Moving("bell")},
        buttons=("bell_1",),
        tokens=("tray_1", "bell_1"),
        reference="tray_1",
        grasp=(0.012,) * 3,
        slots={"tray_1": ((-0.06, 0.0), (0.0, 0.0), (0.06, 0.0))},
        travel=0.15,
    ),
}


@dataclass(frozen=True)
class Layout:
    """A random start: xy of the fixtures' bases [M, 2] and of the objects [O, 2], objects' yaw [O], hand pose [4]."""

    fixtures: Array
    hand: Array
    objects: Array
    yaw: Array


def draw_layout(setting: Setting, seed: tuple[int, ...]) -> Layout:
    """The layout of a start, a pure function of its seed counters."""
    rng = generator(*seed)
    fixtures = np.array([rng.uniform(*area) for area in setting.fixtures.values()])
    hand = rng.uniform(*HAND_START)
    count = len(setting.grasp)
    while True:
        objects = rng.uniform(*setting.objects, (count, 2))
        apart = np.hypot(*(objects[:, None] - objects[None]).T)
        if (apart[~np.eye(count, dtype=bool)] >= setting.gap).all():
            break
    yaw = rng.uniform(-setting.yaw, setting.yaw, count) if setting.yaw else np.zeros(count)
    return Layout(fixtures, hand, objects, yaw)

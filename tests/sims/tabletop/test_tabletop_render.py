"""The picture for people, in a process of its own because the GL backend is chosen when mujoco is imported."""

import ctypes.util
import os
import subprocess
import sys

import pytest

SCRIPT = """
import numpy as np
from tabletop_helpers import PACKED, starts
from structrl.sims.tabletop import TabletopSimulator, render_frame
sim = TabletopSimulator([PACKED], 2, threads=1)
sim.reset(np.arange(2), starts(2))
a, b = (render_frame(sim, i, 160, 120).astype(int) for i in range(2))
assert a.shape == (120, 160, 3) and (a != b).any()
red, green, blue = np.moveaxis(a, -1, 0)
print((red > 2 * green + 40).sum(), (blue > 2 * red + 30).sum(), (red > 2 * blue + 60).sum(), (green > red + 40).sum())
"""


@pytest.mark.heavy
@pytest.mark.skipif(not ctypes.util.find_library("EGL"), reason="no EGL library on this machine")
def test_picture_shows_apple_drink_box_and_lid():
    here = os.path.dirname(__file__)
    env = os.environ | {"MUJOCO_GL": "egl", "PYTHONPATH": os.pathsep.join([here, os.getcwd()])}
    run = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    apple, drink, box, lid = map(int, run.stdout.split())
    assert apple > 15 and drink > 15 and box > 200 and lid > 200

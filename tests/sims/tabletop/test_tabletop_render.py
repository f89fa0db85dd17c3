"""Cameras: in processes of their own, because the GL backend is chosen when mujoco is imported."""

import ctypes.util
import os
import subprocess
import sys

import numpy as np
import pytest
from tabletop_helpers import PACKED, starts

from structrl.sims.tabletop import TabletopSimulator
from structrl.sims.tabletop.render import Cameras

needs_egl = pytest.mark.skipif(not ctypes.util.find_library("EGL"), reason="no EGL library on this machine")


def run(script: str, gl: str = "egl") -> subprocess.CompletedProcess:
    here = os.path.dirname(__file__)
    env = os.environ | {"MUJOCO_GL": gl, "PYTHONPATH": os.pathsep.join([here, os.getcwd()])}
    return subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=120)


PICTURE = """
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
@needs_egl
def test_picture_shows_apple_drink_box_and_lid():
    done = run(PICTURE)
    assert done.returncode == 0, done.stderr
    apple, drink, box, lid = map(int, done.stdout.split())
    assert apple > 15 and drink > 15 and box > 200 and lid > 200


OBSERVE = """
import numpy as np
from tabletop_helpers import PACKED, starts
from structrl.sims.tabletop import TabletopSimulator
from structrl.sims.tabletop.render import Cameras

def make(bias=None, envs=3):
    shift = {} if bias is None else {"camera_bias": {"position": bias}}
    sim = TabletopSimulator([PACKED], envs, threads=1, cameras=["overview", "wrist"], camera_size=32, shift=shift)
    sim.reset(np.arange(envs), starts(envs))
    return sim

sim, ids = make(), np.arange(3)
seen = sim.observe(ids)
assert set(seen) == set(sim.observation) == {"state", "images.overview", "images.wrist"}
for name, (shape, dtype) in sim.observation.items():
    assert seen[name].shape == (3, *shape) and seen[name].dtype == dtype, name

# the same state gives the same picture, whichever environments are asked for, and after others were rendered
for name, value in sim.observe(np.array([2])).items():
    assert np.array_equal(value[0], seen[name][2]), name
other = make(envs=1)
other.set_state(np.arange(1), sim.state(np.array([1])))
for name, value in other.observe(np.arange(1)).items():
    assert np.array_equal(value[0], seen[name][1]), name

# upright: the apple (red) moved away from the viewer goes up; moved to the right goes right
def apple(sim):
    red, green, _ = sim.observe(np.array([0]))["images.overview"][0].astype(int)
    return np.argwhere(red > 2 * green + 40).mean(0)

y, x = apple(sim)
sim._qpos[0, 7] += 0.06
y_far, x_far = apple(sim)
sim._qpos[0, 7] -= 0.06
sim._qpos[0, 6] += 0.06
y_right, x_right = apple(sim)
assert y_far < y - 1 and abs(x_far - x) < 1.5, (y, x, y_far, x_far)
assert x_right > x + 1 and abs(y_right - y) < 1.5, (y, x, y_right, x_right)

# a camera that stands 2 cm to the right sees the world 2 cm to the left, and physics does not notice
biased = make([0.02, 0, 0])
assert np.array_equal(biased.batch.state, make().batch.state)
assert apple(biased)[1] < apple(make())[1] - 0.4
for each in (sim, biased, other):
    each.close()
    each.close()
"""


@needs_egl
def test_cameras():
    done = run(OBSERVE)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cameras": ["front"]}, "overview, wrist"),
        ({"cameras": ["wrist", "wrist"]}, "different names"),
        ({"cameras": "wrist"}, "must be a list"),
        ({"cameras": ["wrist"], "camera_size": 0}, "16 to 512"),
    ],
)
def test_bad_cameras_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        TabletopSimulator([PACKED], 1, **arguments)


def test_without_opengl_the_message_says_what_to_install():
    script = """
import numpy as np
from tabletop_helpers import PACKED, starts
from structrl.sims.tabletop import TabletopSimulator
sim = TabletopSimulator([PACKED], 1, cameras=["wrist"])
sim.reset(np.arange(1), starts(1))
try:
    sim.observe(np.arange(1))
except RuntimeError as error:
    print(error)
"""
    done = run(script, gl="disabled")
    assert done.returncode == 0, done.stderr
    assert "OpenGL" in done.stdout and (sys.platform != "linux" or "apt install" in done.stdout)


def test_object_states_need_no_opengl():
    sim = TabletopSimulator([PACKED], 1)
    sim.reset(np.arange(1), starts(1))
    assert sim.cameras is None and set(sim.observe(np.arange(1))) == {"state", "tokens"}


def test_a_turned_camera_stays_where_it_is():
    model = TabletopSimulator([PACKED], 1).model
    turned = Cameras(model, ["overview"], 32, angle=0.1).model
    assert np.array_equal(turned.cam_pos, model.cam_pos)
    cosine = np.abs((turned.cam_quat * model.cam_quat).sum(1))  # of half the angle
    assert np.allclose(2 * np.arccos(cosine), 0.1)

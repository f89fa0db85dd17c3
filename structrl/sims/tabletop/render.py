"""Pictures of a batch of MuJoCo environments: camera observations for policies, frames for people.

Nothing here knows a scene. OpenGL is touched when the first picture is made, not before: training from object states
runs on machines without it. Shapes: n environments asked for, h x w pixels.
"""

import copy
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
from mujoco.batch import Batch
from numpy.typing import NDArray

from structrl.sims.base import Ids

if TYPE_CHECKING:
    from structrl.sims.tabletop.simulator import TabletopSimulator

SIZES = range(16, 513)  # pixels


class Cameras:
    """Camera observations: small pictures of many environments, the same for the same state.

    Pictures of policies are drawn without shadows, multisampling and reflections and with coarser spheres and
    cylinders: at 64 x 64 pixels on a software renderer that is 0.7 instead of 25 ms of CPU (benchmarks/rendering.py).

    Args:
        model: of the scene; a copy is changed.
        names: of cameras in the model.
        size: h = w, pixels.
        position: [3] m; by how much every camera stands off, along the axes of the body that carries it.
        angle: rad; by how much it is turned about that body's z axis, where it stands.

    Raises:
        ValueError: a camera that the model does not have or that is named twice, or a size out of range.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        names: Sequence[str],
        size: int,
        position: Sequence[float] | NDArray[np.float64] = (0.0, 0.0, 0.0),
        angle: float = 0.0,
    ):
        known = [model.camera(i).name for i in range(model.ncam)]
        if isinstance(names, str) or len(set(names)) != len(names) or set(names) - set(known):
            raise ValueError(f"cameras must be a list of different names out of {', '.join(known)}, not {names!r}")
        if isinstance(size, bool) or size not in SIZES:
            raise ValueError(f"camera_size must be {SIZES[0]} to {SIZES[-1]} pixels, not {size!r}")
        self.names, self.size = tuple(names), size
        self.model = copy.copy(model)
        quality = self.model.vis.quality
        quality.shadowsize = quality.offsamples = 0
        quality.numslices, quality.numstacks, quality.numquads = 12, 8, 1
        self.model.cam_pos[:] += position
        self.model.cam_pos0[:] += position
        turn, turned = np.array([np.cos(angle / 2), 0, 0, np.sin(angle / 2)]), np.zeros(4)
        for i in range(model.ncam):
            mujoco.mju_mulQuat(turned, turn, model.cam_quat[i])
            self.model.cam_quat[i] = turned
        self._data: mujoco.MjData | None = None
        self._renderer: mujoco.Renderer | None = None

    @property
    def observation(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        """Entries of `Simulator.observation`."""
        return {f"images.{name}": ((3, self.size, self.size), np.uint8) for name in self.names}

    def observe(self, batch: Batch, ids: Ids) -> dict[str, NDArray[np.uint8]]:
        """`images.<camera>` uint8 [n, 3, h, w] of environments `ids`, row 0 at the top.

        Raises:
            RuntimeError: no OpenGL; the message names what to install.
        """
        if self._renderer is None:
            self._renderer, self._data = open_renderer(self.model, self.size, self.size), mujoco.MjData(self.model)
            self._renderer.scene.flags[:] = 0  # no shadow, reflection, skybox, haze
        renderer, data = self._renderer, self._data
        pixels = np.empty((self.size, self.size, 3), np.uint8)
        images = {f"images.{name}": np.empty((len(ids), 3, self.size, self.size), np.uint8) for name in self.names}
        for row, i in enumerate(ids.tolist()):
            batch.get_data(i, data)
            # The batch's positions of bodies are those before its last substep; cameras are this model's.
            mujoco.mj_kinematics(self.model, data)
            mujoco.mj_camlight(self.model, data)
            for name in self.names:
                renderer.update_scene(data, name)
                renderer.render(out=pixels)
                images[f"images.{name}"][row] = pixels.transpose(2, 0, 1)
        return images

    def close(self) -> None:
        """Free the OpenGL context."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None


def open_renderer(model: mujoco.MjModel, height: int, width: int) -> mujoco.Renderer:
    """A renderer with its own OpenGL context, to be used and closed by the thread that calls this.

    Raises:
        RuntimeError: no OpenGL; the message names what to install.
    """
    # llvmpipe's rasteriser threads cost more than they bring to small pictures; read when the first context is made
    os.environ.setdefault("LP_NUM_THREADS", "0")
    try:
        return mujoco.Renderer(model, height, width)
    except Exception as error:  # of the GL library in use: each raises its own
        backend = os.environ.get("MUJOCO_GL") or "not set"
        advice = ""
        if sys.platform == "linux":
            advice = (
                "\n  set MUJOCO_GL=egl before Python starts (a software driver: apt install libegl1 libgl1 "
                "libgl1-mesa-dri), or MUJOCO_GL=osmesa (apt install libosmesa6)"
            )
        what = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RuntimeError(
            f"cameras need OpenGL, which cannot be opened here (MUJOCO_GL {backend}): {what}{advice}"
        ) from None


def render_frame(sim: "TabletopSimulator", env_id: int, width: int, height: int) -> NDArray[np.uint8]:
    """The `overview` camera's picture of environment `env_id` for people, uint8 [height, width, 3], at most 1280 x 960.

    Raises:
        RuntimeError: no OpenGL; the message names what to install.
    """
    data = sim.batch.get_data(env_id)
    mujoco.mj_forward(sim.model, data)
    renderer = open_renderer(sim.model, height, width)
    try:
        renderer.update_scene(data, "overview")
        return renderer.render()
    finally:
        renderer.close()

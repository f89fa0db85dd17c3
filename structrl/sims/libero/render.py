"""Camera images of LIBERO worlds, made only when a policy looks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from structrl.sims.libero.observe import CAMERAS
from structrl.sims.libero.world import Body, World

_BUFFER = (640, 480)  # robosuite's off-screen buffer, px


class Renderer:
    """Draws one world's environments: one scene for all cameras, as robosuite's own context would draw each of them.

    Raises:
        ValueError: the scene has no such camera.
    """

    def __init__(self, world: World, cameras: Sequence[str], size: int, gl: Any):
        import mujoco

        self._mj, self._world, self._size, self._gl = mujoco, world, size, gl
        sim = world.env.sim
        self._ids = []
        for name in cameras:
            own = CAMERAS.get(name, name)
            if own not in sim.model.camera_names:
                known = [*CAMERAS, *(each for each in sim.model.camera_names if each not in CAMERAS.values())]
                raise ValueError(f"{world.task.name}: no camera '{name}'; there are {', '.join(known)}")
            self._ids.append(sim.model.camera_name2id(own))
        self._scene = mujoco.MjvScene(world.model, maxgeom=1000)
        self._options = mujoco.MjvOption()
        self._options.geomgroup[0] = 0  # robosuite: the shapes that collide are hidden, those that are seen shown
        self._options.geomgroup[1] = 1
        self._still = mujoco.MjvPerturb()
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        gl.make_current()
        self._context = mujoco.MjrContext(world.model, mujoco.mjtFontScale.mjFONTSCALE_150)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)

    def draw(self, body: Body) -> list[NDArray[np.uint8]]:
        """One upright image (3, size, size) per camera."""
        mj, size = self._mj, self._size
        env = self._world.use(body)
        env._post_process()  # a lit stove glows
        self._gl.make_current()
        view = mj.MjrRect(0, 0, size, size)
        images = []
        for camera in self._ids:
            self._camera.fixedcamid = camera
            mj.mjv_updateScene(
                self._world.model,
                body.data,
                self._options,
                self._still,
                self._camera,
                mj.mjtCatBit.mjCAT_ALL,
                self._scene,
            )
            mj.mjr_render(view, self._scene, self._context)
            pixels = np.empty((size, size, 3), np.uint8)
            mj.mjr_readPixels(pixels, None, view, self._context)
            images.append(np.ascontiguousarray(pixels[::-1].transpose(2, 0, 1)))
        return images

    def close(self) -> None:
        """Free what the graphics library holds."""
        self._gl.make_current()
        self._context.free()


def new_context() -> Any:
    """A graphics context, one per process.

    Raises:
        RuntimeError: no library that renders off screen; the message says what to install.
    """
    import mujoco

    try:
        context = mujoco.GLContext(*_BUFFER)
        context.make_current()
    except Exception as error:  # whatever the graphics stack of this machine raises
        raise RuntimeError(
            f"cameras need off-screen rendering, which fails here ({type(error).__name__}: {error}); on Debian and "
            "Ubuntu: apt-get install libegl1 libgl1 libgl1-mesa-dri"
        ) from error
    return context

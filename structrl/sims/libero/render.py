"""Camera images of LIBERO worlds, made only when a policy looks.

Software rendering costs mostly per triangle, whether or not it ends up in the image, and MuJoCo draws all of a scene
(400 000 of them). So what a camera cannot see is hidden from it first. That changes no pixel; tests compare.
"""

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from structrl.sims.libero.observe import CAMERAS
from structrl.sims.libero.world import Array, Body, World

_BUFFER = (640, 480)  # robosuite's off-screen buffer, px
_SHOWN, _HIDDEN = 1, 5  # groups of shapes: robosuite shows those made to be seen; the last one nobody shows


class Renderer:
    """Draws one world's environments as robosuite's own context would draw each camera.

    Args:
        world: the task's model.
        cameras: `wrist`, or LIBERO's own names.
        size: px; images are square.
        gl: of `new_context`.
        cull: hide what is out of view before drawing; False is there for the test that compares.

    Raises:
        ValueError: the scene has no such camera.
    """

    def __init__(self, world: World, cameras: Sequence[str], size: int, gl: Any, cull: bool = True):
        import mujoco

        self._mj, self._world, self._size, self._gl, self._cull = mujoco, world, size, gl, cull
        names, model = world.env.sim.model, world.model
        self._ids = []
        for name in cameras:
            own = CAMERAS.get(name, name)
            if own not in names.camera_names:
                known = [*CAMERAS, *(each for each in names.camera_names if each not in CAMERAS.values())]
                raise ValueError(f"{world.task.name}: no camera '{name}'; there are {', '.join(known)}")
            self._ids.append(names.camera_name2id(own))
        self._groups = model.geom_group.copy()
        # No bounding sphere (a plane): never out of view.
        self._radius = np.where(model.geom_rbound > 0, model.geom_rbound, np.inf)
        self._mirrors = [g for g in range(model.ngeom) if self._groups[g] == _SHOWN and _is_mirror(mujoco, model, g)]
        self._scene = mujoco.MjvScene(model, maxgeom=1000)
        self._options = mujoco.MjvOption()
        self._options.geomgroup[0] = 0  # robosuite: shapes that collide are not shown
        self._options.geomgroup[_SHOWN] = 1
        self._still = mujoco.MjvPerturb()
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        gl.make_current()
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150)

    def draw(self, body: Body) -> list[NDArray[np.uint8]]:
        """One upright image (3, size, size) per camera."""
        mj, size, model = self._mj, self._size, self._world.model
        env = self._world.use(body)
        env._post_process()  # a lit stove glows
        self._gl.make_current()
        mj.mjr_setBuffer(mj.mjtFramebuffer.mjFB_OFFSCREEN, self._context)  # another world's may be bound
        window = mj.MjrRect(0, 0, size, size)
        images = []
        for camera in self._ids:
            self._camera.fixedcamid = camera
            if self._cull:
                model.geom_group[:] = np.where(self._seen(camera, body.data), self._groups, _HIDDEN)
            everything = mj.mjtCatBit.mjCAT_ALL
            mj.mjv_updateScene(model, body.data, self._options, self._still, self._camera, everything, self._scene)
            model.geom_group[:] = self._groups
            mj.mjr_render(window, self._scene, self._context)
            pixels = np.empty((size, size, 3), np.uint8)
            mj.mjr_readPixels(pixels, None, window, self._context)
            images.append(np.ascontiguousarray(pixels[::-1].transpose(2, 0, 1)))
        return images

    def _seen(self, camera: int, data: Any) -> NDArray[np.bool_]:
        """[ngeom] whose bounding spheres reach into the camera's view, directly or mirrored in a shape that does."""
        axes, tangent = data.cam_xmat[camera].reshape(3, 3), np.tan(np.deg2rad(self._world.model.cam_fovy[camera]) / 2)
        # Inward normals of the view's four sides and of its front; the camera looks along its -z.
        normals = np.array([[1, 0, -tangent], [-1, 0, -tangent], [0, 1, -tangent], [0, -1, -tangent], [0, 0, -1]])
        normals = normals / np.linalg.norm(normals, axis=1, keepdims=True) @ axes.T

        def inside(centres: Array) -> NDArray[np.bool_]:
            depth: Array = (centres - data.cam_xpos[camera]) @ normals.T
            return np.asarray((depth > -self._radius[:, None]).all(1))

        seen = inside(data.geom_xpos)
        for mirror in self._mirrors:
            if seen[mirror]:
                up = data.geom_xmat[mirror].reshape(3, 3)[:, 2]
                is_box = self._world.model.geom_type[mirror] == self._mj.mjtGeom.mjGEOM_BOX
                top = data.geom_xpos[mirror] + up * (self._world.model.geom_size[mirror, 2] if is_box else 0.0)
                seen |= inside(data.geom_xpos - 2 * ((data.geom_xpos - top) @ up)[:, None] * up)
        return seen

    def close(self) -> None:
        """Free what the graphics library holds."""
        self._gl.make_current()
        self._context.free()


def _is_mirror(mujoco: Any, model: Any, geom: int) -> bool:
    """MuJoCo mirrors the scene in planes, and in the upper faces of boxes."""
    flat = (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_BOX)
    material = model.geom_matid[geom]
    return model.geom_type[geom] in flat and material >= 0 and model.mat_reflectance[material] > 0


def new_context() -> Any:
    """A graphics context, one per process.

    Raises:
        RuntimeError: no library that renders off screen; the message says what to install.
    """
    try:
        # Not mujoco.GLContext, which was settled when MuJoCo was imported, perhaps by someone else.
        context = import_module(f"mujoco.{os.environ['MUJOCO_GL'].lower()}").GLContext(*_BUFFER)
        context.make_current()
    except Exception as error:  # whatever the graphics stack of this machine raises
        raise RuntimeError(
            f"cameras need off-screen rendering, which fails here ({type(error).__name__}: {error}); on Debian and "
            "Ubuntu: apt-get install libegl1 libgl1 libgl1-mesa-dri"
        ) from error
    return context

"""A picture of one environment, for people. (Images as observations are not offered by this scene yet.)"""

import mujoco
import numpy as np
from numpy.typing import NDArray

from structrl.sims.tabletop.simulator import TabletopSimulator


def render_frame(sim: TabletopSimulator, env_id: int, width: int, height: int) -> NDArray[np.uint8]:
    """The `overview` camera's picture of environment `env_id`, uint8 [height, width, 3], at most 1280 x 960.

    Needs an OpenGL context; on a machine without a display set MUJOCO_GL=egl before Python starts.
    """
    data = sim.batch.get_data(env_id)
    mujoco.mj_forward(sim.model, data)
    with mujoco.Renderer(sim.model, height, width) as renderer:
        renderer.update_scene(data, "overview")
        return renderer.render()

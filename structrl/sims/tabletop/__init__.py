"""The embedded simulator: tabletop scenes on `mujoco.batch`. Names are imported on first use (mujoco is not light)."""

from importlib import import_module
from typing import Any

_HOME = {
    "TabletopSimulator": "structrl.sims.tabletop.simulator",
    "TabletopExpert": "structrl.sims.tabletop.expert",
    "render_frame": "structrl.sims.tabletop.render",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'structrl.sims.tabletop' has no attribute '{name}'")

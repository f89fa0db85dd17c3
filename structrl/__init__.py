"""structrl: verified subtask completions, paid in dependency order and by pace, for VLA reinforcement learning.

Names are imported on first use, so that `structrl check` starts without torch.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "load_task": "structrl.task",
    "parse_task": "structrl.task",
    "TaskSpec": "structrl.lang.spec",
    "Plan": "structrl.plan",
    "compile_plan": "structrl.plan",
    "stack_plans": "structrl.plan",
    "score_episode": "structrl.rewards",
}
__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'structrl' has no attribute '{name}'")

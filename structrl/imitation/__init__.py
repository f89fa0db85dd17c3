"""Demonstrations, durations, and supervised flow matching (the warm start)."""

from importlib import import_module
from typing import Any

_HOME = {"DemoData": "structrl.imitation.data", "FlowMatching": "structrl.imitation.flow_matching"}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'structrl.imitation' has no attribute '{name}'")

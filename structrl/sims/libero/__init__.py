"""LIBERO: the words of its tasks (vocabulary.json), the entities of its scenes (manifest.json), and its simulator.

Only constructing the simulator needs LIBERO, which lives in a Python of its own: `structrl sims install libero`.
"""

from structrl.sims.libero.simulator import LiberoSimulator

__all__ = ["LiberoSimulator"]

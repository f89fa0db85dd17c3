"""The chunk environment: one simulator batch as a TorchRL `EnvBase`."""

from structrl.envs.chunk_env import ChunkEnv, row_start, start_row
from structrl.envs.config import EnvConfig, make_env, make_halves
from structrl.envs.halves import Halves

__all__ = ["ChunkEnv", "EnvConfig", "Halves", "make_env", "make_halves", "row_start", "start_row"]

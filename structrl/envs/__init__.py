"""The chunk environment: one simulator batch as a TorchRL `EnvBase`."""

from structrl.envs.chunk_env import ChunkEnv, row_start, start_row
from structrl.envs.config import EnvConfig, make_env

__all__ = ["ChunkEnv", "EnvConfig", "make_env", "row_start", "start_row"]

"""The chunk environment: one simulator batch as a TorchRL `EnvBase`."""

from structrl.envs.chunk_env import ChunkEnv, row_start, start_row

__all__ = ["ChunkEnv", "row_start", "start_row"]

"""`Halves`: the environments of a rank in two parts that take turns, one simulating while the policy acts in the other.

Shapes: E environments.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torchrl.envs import EnvBase

from structrl.sims.base import Ids


class Halves:
    """Two batches of environments of one config, each stepped by a thread of its own.

    Simulators and the waits for workers leave Python's lock, so that a policy acts meanwhile. `run_episodes` runs it;
    what an episode does is a function of its start and actions alone, so it is that of one undivided batch.

    Args:
        parts: the two; their environments are numbered on.

    Attributes:
        parts: the two.
        firsts: number of each part's first environment.
        batch_size: [E].
    """

    def __init__(self, parts: Sequence[EnvBase]):
        if len(parts) != 2:
            raise ValueError(f"two halves, not {len(parts)}")
        self.parts = list(parts)
        self.firsts = [0, parts[0].batch_size[0]]
        self.batch_size = torch.Size([sum(part.batch_size[0] for part in parts)])
        # threads do not inherit torch's number of threads
        self._threads = ThreadPoolExecutor(
            2, "simulate", initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),)
        )

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """Begin `work` in a thread, under this thread's settings of autograd."""
        inference, grad = torch.is_inference_mode_enabled(), torch.is_grad_enabled()

        def run() -> Any:
            with torch.inference_mode(inference), torch.set_grad_enabled(grad):
                return work()

        return self._threads.submit(run)

    # -- what is asked of a ChunkEnv -----------------------------------------------------------------------------------

    @property
    def simulator(self) -> Any:
        """The first part's: tasks, actions and observations are those of both, `num_envs` is its own."""
        return self.parts[0].simulator

    @property
    def observation_spec(self) -> Any:
        """The first part's."""
        return self.parts[0].observation_spec

    @property
    def chunk(self) -> int:
        """H, environment steps per chunk."""
        return self.parts[0].chunk

    @property
    def counts(self) -> dict[str, int]:
        """Sums over the parts, see `ChunkEnv.counts`."""
        return {name: sum(part.counts[name] for part in self.parts) for name in self.parts[0].counts}

    @property
    def lost(self) -> np.ndarray:
        """bool [E], see `ChunkEnv.lost`."""
        return np.concatenate([part.base_env.lost for part in self.parts])

    def state(self, ids: Ids) -> dict[str, np.ndarray]:
        """As `ChunkEnv.state`; `ids` may lie in both parts."""
        ids = np.asarray(ids, np.int64)
        found = []
        for part, first in zip(self.parts, self.firsts, strict=True):
            at = np.flatnonzero((first <= ids) & (ids < first + part.batch_size[0]))
            if len(at):
                found.append((at, part.base_env.state(ids[at] - first)))
        out = {k: np.empty((len(ids), *v.shape[1:]), v.dtype) for k, v in found[0][1].items()}
        for at, state in found:
            for name, value in state.items():
                out[name][at] = value
        return out

    def close(self) -> None:
        """Wait for the threads, then close both parts."""
        self._threads.shutdown(cancel_futures=True)
        for part in self.parts:
            part.close()

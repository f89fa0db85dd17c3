"""A scripted environment: replays given traces of conditions through the keys of the chunk environment."""

import torch
from tensordict import TensorDict
from torchrl.data import Binary, Composite, Unbounded
from torchrl.envs import EnvBase

from structrl import keys


class ToyEnv(EnvBase):
    """Environment e plays `script(e, k)` as its k-th episode: (task row, holds [T+1, N], success [T+1]).

    An episode ends at its first success (terminated) or at the end of its trace (truncated).
    """

    def __init__(self, num_envs, chunk, width, script):
        super().__init__(batch_size=[num_envs])
        self.chunk, self.width, self.script = chunk, width, script
        self.episode = [-1] * num_envs
        self.at = [0] * num_envs
        shape = (num_envs, 1)
        done = {name: Binary(shape=shape, dtype=torch.bool) for name in (keys.DONE, keys.TERMINATED, keys.TRUNCATED)}
        flags = {name: Binary(shape=shape, dtype=torch.bool) for name in (keys.SUCCESS, keys.FAILED)}
        counters = {name: Unbounded(shape, dtype=torch.int64) for name in (keys.TASK, keys.TIME, keys.STEPS)}
        holds = Binary(shape=(num_envs, chunk + 1, width), dtype=torch.bool)
        self.observation_spec = Composite({keys.HOLDS: holds, **flags, **counters}, shape=(num_envs,))
        self.action_spec = Unbounded((num_envs, chunk, 2))
        self.reward_spec = Composite(shape=(num_envs,))
        self.done_spec = Composite(done, shape=(num_envs,))

    def _play(self, e, steps):
        """The row of environment e after `steps` more steps at most."""
        task, holds, success = self.script(e, self.episode[e])
        start, last = self.at[e], len(holds) - 1
        end = next((t for t in range(start + 1, min(start + steps, last) + 1) if success[t]), min(start + steps, last))
        if steps and start > 0 and success[start]:
            end = start  # over: executes nothing until it is reset
        rows = [holds[min(t, end)] for t in range(start, start + self.chunk + 1)]
        self.at[e] = end
        won = end > 0 and success[end]
        lost = end == last and not won
        return {
            keys.HOLDS: [[*row, *[False] * (self.width - len(row))] for row in rows],
            keys.SUCCESS: [won],
            keys.FAILED: [False],
            keys.TERMINATED: [won],
            keys.TRUNCATED: [lost],
            keys.DONE: [won or lost],
            keys.TASK: [task],
            keys.TIME: [end],
            keys.STEPS: [end - start],
        }

    def _batch(self, rows):
        return TensorDict({name: torch.tensor([row[name] for row in rows]) for name in rows[0]}, self.batch_size)

    def _reset(self, tensordict=None, **kwargs):
        mask = None if tensordict is None else tensordict.get("_reset", None)
        for e in range(self.batch_size[0]):
            if mask is None or mask[e].any():
                self.episode[e] += 1
                self.at[e] = 0
        return self._batch([self._play(e, 0) for e in range(self.batch_size[0])])

    def _step(self, tensordict):
        return self._batch([self._play(e, self.chunk) for e in range(self.batch_size[0])])

    def _set_seed(self, seed):
        pass

"""A batch of environments whose every number says where it comes from, so that any shuffling shows.

An episode started at seed (s, stream, iteration, episode) lasts 1 + (7 * episode + task) % 5 chunks of H steps, the
last one cut to `episode % H + 1` steps; it succeeds if the episode number is even and is truncated otherwise.
"""

from types import SimpleNamespace

import torch
from tensordict import TensorDict
from torchrl.data import Binary, Bounded, Composite, Unbounded
from torchrl.envs import EnvBase

from structrl import keys

H, A = 4, 2


def length(task, episode):
    """(chunks, environment steps) of an episode."""
    chunks = 1 + (7 * episode + task) % 5
    return chunks, (chunks - 1) * H + episode % H + 1


def code(task, episode, chunk):
    return float(10_000 * task + 100 * episode + chunk)


class FakeEnv(EnvBase):
    def __init__(self, num_envs, tasks=2):
        super().__init__(batch_size=[num_envs])
        self.simulator = SimpleNamespace(tasks=[SimpleNamespace(name=f"task_{i}") for i in range(tasks)])
        E = num_envs

        def integer(n):
            return Unbounded((E, n), dtype=torch.int64)

        self.observation_spec = Composite(
            {
                keys.OBSERVATION: Composite({"state": Unbounded((E, 3))}, shape=[E]),
                keys.TASK: integer(1),
                keys.TIME: integer(1),
                keys.STEPS: integer(1),
                keys.SUCCESS: Binary(shape=(E, 1), dtype=torch.bool),
                keys.FAILED: Binary(shape=(E, 1), dtype=torch.bool),
                keys.START: integer(6),
                keys.REWARD_PARTS: Composite({"subtask": Unbounded((E, 1)), "terminal": Unbounded((E, 1))}, shape=[E]),
            },
            shape=[E],
        )
        self.state_spec = Composite({keys.START: integer(6)}, shape=[E])
        self.action_spec = Bounded(-1e6, 1e6, shape=(E, H, A))
        self.reward_spec = Unbounded((E, 1))
        flag = Binary(shape=(E, 1), dtype=torch.bool)
        self.done_spec = Composite({"done": flag, "terminated": flag.clone(), "truncated": flag.clone()}, shape=[E])
        self.task = torch.zeros(E, dtype=torch.int64)
        self.episode = torch.zeros(E, dtype=torch.int64)
        self.chunk = torch.zeros(E, dtype=torch.int64)
        self.over = torch.ones(E, dtype=torch.bool)
        self.start = torch.zeros(E, 6, dtype=torch.int64)
        self.poison = None  # ("state" | "reward", task, episode, chunk)

    def _set_seed(self, seed):
        pass

    def _observe(self, steps):
        state = torch.stack([self.task, self.episode, self.chunk], 1).float()
        if self.poison is not None and self.poison[0] == "state":
            state[self._poisoned()] = torch.nan
        over = self.over[:, None]
        even = (self.episode % 2 == 0)[:, None]
        return TensorDict(
            {
                keys.OBSERVATION: {"state": state},
                keys.TASK: self.task[:, None].clone(),
                keys.TIME: (self.chunk * H)[:, None].clone(),
                keys.STEPS: steps[:, None],
                keys.SUCCESS: over & even,
                keys.FAILED: torch.zeros_like(over),
                keys.START: self.start.clone(),
                "done": over.clone(),
                "terminated": over & even,
                "truncated": over & ~even,
            },
            self.batch_size,
        )

    def _poisoned(self):
        _, task, episode, chunk = self.poison
        return (self.task == task) & (self.episode == episode) & (self.chunk == chunk)

    def _parts(self, reward):
        return {"subtask": reward[:, None] * 0.25, "terminal": reward[:, None] * 0.75}

    def _reset(self, tensordict=None, **kwargs):
        mask = tensordict["_reset"].squeeze(-1)
        start = tensordict[keys.START][mask]
        self.start[mask], self.task[mask], self.episode[mask] = start, start[:, 0], start[:, 5]
        self.chunk[mask] = 0
        self.over[mask] = False
        zero = torch.zeros(self.batch_size[0])
        return self._observe(zero.long()).set(keys.REWARD_PARTS, self._parts(zero))

    def _step(self, tensordict):
        live = ~self.over
        action = tensordict[keys.ACTION]
        expected = torch.tensor([code(*row) for row in zip(*map(torch.Tensor.tolist, self._where()), strict=True)])
        assert torch.equal(action[live], expected[live, None, None].expand(-1, H, A)), "somebody else's action"
        assert (action[~live] == 0).all()
        reward = torch.where(live, expected, 0.0)
        if self.poison is not None and self.poison[0] == "reward":
            reward[self._poisoned() & live] = torch.inf
        self.chunk[live] += 1
        lengths = [length(t, e) for t, e in zip(self.task.tolist(), self.episode.tolist(), strict=True)]
        chunks, total = torch.tensor(lengths).T
        last = live & (self.chunk == chunks)
        steps = torch.where(last, total - (chunks - 1) * H, H) * live
        self.over |= last
        out = self._observe(steps).set(keys.REWARD, reward[:, None])
        return out.set(keys.REWARD_PARTS, self._parts(reward))

    def _where(self):
        return self.task, self.episode, self.chunk

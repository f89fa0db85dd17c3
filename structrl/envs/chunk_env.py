"""`ChunkEnv`: a simulator batch as a TorchRL environment whose step is one action chunk.

Shapes: E environments, H chunk length, A action dims, N padded subtasks. Keys are those of `structrl.keys`.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Composite, Unbounded
from torchrl.envs import EnvBase

from structrl import keys
from structrl.seeding import Stream
from structrl.sims.base import Ids, Simulator, Start
from structrl.sims.chunks import ChunkRunner
from structrl.sims.runner import ChunkResult, Runner, SimulatorInfo


def start_row(start: Start) -> tuple[int, int, int, int, int, int]:
    """The row of key START: (task, init, seed, stream, iteration, episode).

    Raises:
        ValueError: the start's seed does not have the four counters (seed, stream, iteration, episode).
    """
    if len(start.seed) != 4:
        raise ValueError(f"a start's seed is (seed, stream, iteration, episode), got {start.seed}")
    seed, stream, iteration, episode = start.seed
    return (start.task, start.init, seed, stream, iteration, episode)


def row_start(row: Sequence[int]) -> Start:
    """Inverse of `start_row`."""
    task, init, *seed = (int(x) for x in row)
    return Start(task, init, tuple(seed))


class ChunkEnv(EnvBase):
    """One simulator batch; a step executes one action chunk, and the observation is built once, after it.

    It writes no reward (`full_reward_spec` is empty): the StructuredReward transform adds it. An environment that is
    done stands still (`steps` 0, everything else as it was) until it is reset.

    `reset(td)` resets the environments of `td["_reset"]` (all without it). Each begins at its row of `td["start"]`
    (int64 [E, 6], see `start_row`); without that key, at the environment's own next start: tasks in turn, seed from
    `set_seed`, episodes numbered from 0. The start of every running episode is echoed under `start`, so a
    TensorDict that comes back with the start of a finished episode repeats it (`step_and_maybe_reset` hides the key).

    An episode that was lost with its worker (see `structrl.sims.pool`) is `dropped`: done and truncated, with 0 steps
    in the chunk that reports it, and not to be learned from. A reset never reports one; the next step does.

    Args:
        simulator: the batch, run in this process, or a runner of one; closed by `close`.
        chunk: H, environment steps per chunk.
        record: keep atoms and measured values of every step in `last_chunk`; a runner knows that itself.

    Attributes:
        simulator: the batch, or what is known of one in workers.
        runner: a ChunkRunner or Pool.
        last_chunk: the ChunkResult of the last step or, after a reset, None.
        observe_every: environment steps between observations, for recording: in between, the latest one is repeated.
            A multiple of `chunk`; 0 observes after every chunk.
        observe_seconds: wall time spent in observing since construction.
    """

    last_chunk: ChunkResult | None

    def __init__(self, simulator: Simulator | Runner, chunk: int, record: bool = False):
        if chunk < 1:
            raise ValueError(f"chunk must be at least 1 step, got {chunk}")
        self.runner: Runner = ChunkRunner(simulator, record) if isinstance(simulator, Simulator) else simulator
        info = self.runner.sim
        E = info.num_envs
        super().__init__(device=torch.device("cpu"), batch_size=[E])
        self.simulator: SimulatorInfo = info
        self.chunk = chunk
        self.last_chunk = None
        self.observe_every, self.observe_seconds = 0, 0.0
        self._seed, self._episode = 0, 0
        self._start = np.zeros((E, 6), np.int64)
        self._steps = np.zeros(E, np.int64)
        self._holds = np.zeros((E, chunk + 1, self.runner.holds.shape[1]), bool)
        self._seen = {name: np.zeros((E, *shape), dtype) for name, (shape, dtype) in info.observation.items()}
        self._make_specs()
        self._open, self.is_closed = True, False

    def _make_specs(self) -> None:
        E, action = self.simulator.num_envs, self.simulator.action

        def integer(*shape: int) -> Unbounded:
            return Unbounded((E, *shape), dtype=torch.int64)

        def flag(*shape: int) -> Binary:
            return Binary(shape=(E, *shape), dtype=torch.bool)

        observation = Composite(shape=[E])
        for name, array in self._seen.items():
            dtype = torch.from_numpy(array[:0]).dtype
            observation[_nested(name)] = Unbounded(array.shape, dtype=dtype)
        self.observation_spec = Composite(
            {
                keys.OBSERVATION: observation,
                keys.TASK: integer(1),
                keys.TIME: integer(1),
                keys.STEPS: integer(1),
                keys.HOLDS: flag(*self._holds.shape[1:]),
                keys.SUCCESS: flag(1),
                keys.FAILED: flag(1),
                keys.DROPPED: flag(1),
            },
            shape=[E],
        )
        # `start` is an input of reset: TransformedEnv hands on only what the state spec names
        self.state_spec = Composite({keys.START: integer(6)}, shape=[E])
        low, high = (torch.tensor(b, dtype=torch.float32).expand(E, self.chunk, -1) for b in (action.low, action.high))
        self.action_spec = Bounded(low, high, dtype=torch.float32)
        self.full_reward_spec = Composite(shape=[E])  # said explicitly: left out, TorchRL adds a key "reward"
        self.done_spec = Composite({k: flag(1) for k in (keys.DONE, keys.TERMINATED, keys.TRUNCATED)}, shape=[E])

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDict:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        ids = np.arange(self.simulator.num_envs) if mask is None else np.flatnonzero(mask.cpu().numpy().reshape(-1))
        given = None if tensordict is None else tensordict.get(keys.START, None)
        if len(ids):
            rows = self._own_starts(len(ids)) if given is None else given.cpu().numpy()[ids]
            self.runner.reset(ids, [row_start(row) for row in rows])
            self._start[ids] = rows
            self._steps[ids] = 0
            self._holds[ids] = self.runner.holds[ids, None]
            self._observe(ids)
        self.last_chunk = None
        return self._tensordict()

    def _own_starts(self, n: int) -> np.ndarray:
        episode = self._episode + np.arange(n)
        self._episode += n
        rows = np.zeros((n, 6), np.int64)
        rows[:, 0] = episode % len(self.simulator.tasks)
        rows[:, 1:5] = (-1, self._seed, Stream.START, 0)
        rows[:, 5] = episode
        return rows

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        action = tensordict.get(keys.ACTION).detach().to("cpu", torch.float32).numpy()
        result = self.runner.run(action)
        self._steps[:], self._holds[:] = result.steps, result.holds
        fresh = result.steps > 0
        if self.observe_every:
            fresh &= (self.runner.t % self.observe_every == 0) | self.runner.done
        ids = np.flatnonzero(fresh)
        if len(ids):
            self._observe(ids)
        self.last_chunk = result
        return self._tensordict()

    def _observe(self, ids: Ids) -> None:
        clock = time.perf_counter()
        for name, value in self.runner.observe(ids).items():
            self._seen[name][ids] = value
        self.observe_seconds += time.perf_counter() - clock

    def _tensordict(self) -> TensorDict:
        """The state of all environments in fresh tensors: they outlive the next step."""

        def column(array: np.ndarray) -> Tensor:
            return torch.tensor(array).unsqueeze(-1)

        run, E = self.runner, self.simulator.num_envs
        terminated = run.success | run.failed
        observation = TensorDict({}, [E], device=self.device)
        for name, array in self._seen.items():
            observation[_nested(name)] = torch.tensor(array)
        return TensorDict(
            {
                keys.OBSERVATION: observation,
                keys.TASK: column(run.task),
                keys.START: torch.tensor(self._start),
                keys.TIME: column(run.t),
                keys.STEPS: column(self._steps),
                keys.HOLDS: torch.tensor(self._holds),
                keys.SUCCESS: column(run.success),
                keys.FAILED: column(run.failed),
                keys.DROPPED: column(run.dropped),
                keys.TERMINATED: column(terminated),
                keys.TRUNCATED: column(run.truncated | run.dropped),
                keys.DONE: column(run.done),
            },
            [E],
            device=self.device,
        )

    def _set_seed(self, seed: int | None) -> None:
        if seed is None:
            raise ValueError("set_seed needs an integer: starts are a function of it")
        self._seed, self._episode = seed, 0

    @property
    def counts(self) -> dict[str, int]:
        """What the runner counts: invalid starts, failures, unstable physics, clipped steps, lost episodes."""
        return self.runner.counts

    @property
    def lost(self) -> np.ndarray:
        """bool [E], environments whose episode went with its worker, reported by a step or not yet."""
        return self.runner.lost

    def state(self, ids: Ids) -> dict[str, np.ndarray]:
        """Everything to continue the episodes of `ids` bit for bit, each [n, ...]; see `set_state`.

        Raises:
            EpisodeLostError: one of them is lost, or gets lost now.
        """
        return self.runner.state(ids) | {"start": self._start[ids].copy()}

    def set_state(self, ids: Ids, state: dict[str, np.ndarray]) -> None:
        """Restore what `state` returned, in the same or other environments.

        The reward state is the caller's: it lives in the TensorDict.
        """
        self.runner.set_state(ids, {k: v for k, v in state.items() if k != "start"})
        self._start[ids] = state["start"]
        self._steps[ids], self._holds[ids] = 0, self.runner.holds[ids, None]
        self._observe(ids)

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the simulator."""
        if self._open:  # `is_closed` is no guard: TransformedEnv sets it before it calls this
            self._open = False
            self.runner.close()
        super().close(raise_if_closed=raise_if_closed)


def _nested(name: str) -> tuple[str, ...]:
    """Observation `images.front` of a simulator is key `("images", "front")`."""
    return tuple(name.split("."))

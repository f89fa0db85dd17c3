"""Runs a list of whole episodes on a batch of environments: the one rollout of fit, evaluate and demos.

Shapes: E environments, B <= E of them that are running an episode, n chunks and P episodes of the result, H chunk
length, A action dims, N padded subtasks.

An environment that finishes takes the next episode of the list; when the list is empty it stands still. Results come in
the order of the list, so that neither the number of environments nor who ran what can be seen in them.

An episode that is lost with a worker is dropped: nothing of it is in the result, which is that much smaller. It is not
run again: a start that crashes its simulator would do so for ever, and one that does not would be no random draw.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import cast

import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.envs import EnvBase
from torchrl.envs.utils import step_mdp

from structrl import keys
from structrl.envs.halves import Halves
from structrl.sims.base import Start

ENV = "env"  # int64 [B], environment number of each row that `act` and `on_chunk` get
EPISODE, CHUNK = "episode", "chunk"  # int64 [n], position of a chunk: row in the list of starts, number within it

# (td [B] with observations, chunk number [B], episode as row of the starts [B]) -> td [B] with at least ACTION
Act = Callable[[TensorDict, Tensor, Tensor], TensorDict]
# as `act`, after the step: td also holds ("next", ...)
OnChunk = Callable[[TensorDict, Tensor, Tensor], None]
# (episodes finished so far, environment steps so far), after every chunk
Progress = Callable[[int, int], None]

# What a chunk remembers of its outcome; everything else in `next` is the following chunk's root.
_OUTCOME = (keys.REWARD, keys.REWARD_PARTS, keys.STEPS, keys.DONE, keys.TERMINATED, keys.TRUNCATED)
_NOT_STORED = (*_OUTCOME, keys.HOLDS, keys.SUCCESS, keys.FAILED, keys.PLAN, "next", "_reset", ENV)
_PLAN = ("complete", "unpaid", "credited_at", "interval", "undone", "out_of_order", "at_reset")


class NonFiniteError(RuntimeError):
    """An observation, action or reward is NaN or infinite."""


@dataclass
class Episodes:
    """Whole episodes, in the order of their starts.

    Attributes:
        chunks: [n], the executed chunks of all episodes, first by episode, then by number: what the policy saw and
            wrote, EPISODE, CHUNK, and under "next" the outcome (reward, reward_parts, steps, done, terminated,
            truncated).
        table: [P], one row per episode: task, success, failed, truncated, return, length (environment steps), chunks,
            start (as executed), reward_parts (summed) and, where the environment has a plan, complete, unpaid, undone,
            out_of_order, at_reset [P, N] bool, credited_at, interval [P, N] and bunched [P].
        final: [P], observation, task and reward_state after the last chunk.
        seconds: wall time of the whole (`collect`), and of it in `simulate`, `observe` (rendering, with cameras;
            workers' belongs to `simulate`) and `infer`; with halves these overlap, and `idle` is how long the policy
            waited for one that simulates.
        kept: int64 [P], the row of each episode in the list of starts; `arange(P)` where none was dropped.
        asked: length of that list.
    """

    chunks: TensorDict
    table: TensorDict
    final: TensorDict
    seconds: dict[str, float]
    kept: Tensor
    asked: int

    def __len__(self) -> int:
        return len(self.table)

    @property
    def dropped(self) -> int:
        """Episodes that were lost."""
        return self.asked - len(self)

    def by_start(self, x: Tensor) -> Tensor:
        """`x` [P, ...] with a row for every start, [asked, ...]: zeros for dropped episodes."""
        out = x.new_zeros(self.asked, *x.shape[1:])
        out[self.kept.to(x.device)] = x
        return out


def run_episodes(
    env: EnvBase | Halves,
    act: Act,
    starts: Sequence[Start],
    *,
    on_chunk: OnChunk | None = None,
    progress: Progress | None = None,
) -> Episodes:
    """Run every episode of `starts`, each from its start to its end.

    Args:
        env: a batch of E chunk environments (structrl.envs), left standing still; of halves, one simulates while `act`
            is asked for the actions of the other.
        act: writes ACTION, and whatever else of the policy is to be stored. It sees only running environments.
        starts: the episodes; at least one.
        on_chunk: called after every step with the same rows; `next` of a dropped episode's last one says so.
        progress: called after every step.

    Raises:
        NonFiniteError: names the quantity, task, episode and chunk.
        ValueError: no starts.
        RuntimeError: every episode was dropped.
    """
    if not starts:
        raise ValueError("no episodes to run: the list of starts is empty")
    began = time.perf_counter()
    lanes = [_Lane(env, 0)] if isinstance(env, EnvBase) else [*map(_Lane, env.parts, env.firsts)]
    check = _FiniteCheck(lanes[0].env, starts)
    rows_of_starts = torch.tensor([[s.task, s.init, *s.seed] for s in starts], dtype=torch.int64)
    next_episode = finished = steps = 0
    infer = idle = 0.0
    chunks: list[TensorDict] = []
    ends: list[TensorDict] = []
    lost: list[int] = []  # episodes that were dropped

    turn = 0
    while any(lane.running for lane in lanes) or next_episode < len(starts):
        lane = lanes[turn % len(lanes)]
        turn += 1
        if lane.running:
            idle += lane.wait()
            rows, acted, stepped = lane.rows, lane.acted, lane.stepped
            episode, chunk = lane.episode[rows], lane.chunk[rows]
            outcome = stepped.get("next")[rows]
            check("reward", outcome.get(keys.REWARD), episode, chunk)
            record = acted.exclude(*_NOT_STORED).set("next", outcome.select(*_OUTCOME))
            record.set(EPISODE, episode).set(CHUNK, chunk)
            chunks.append(record)
            done = outcome.get(keys.DONE).squeeze(-1)
            if done.any():
                ends.append(outcome[done].set(EPISODE, episode[done]))
            if on_chunk is not None:
                on_chunk(acted.set("next", outcome), chunk, episode)
            dropped = outcome.get(keys.DROPPED, torch.zeros(len(rows), 1, dtype=torch.bool)).squeeze(-1)
            lost += episode[dropped].tolist()
            lane.advance(done)
            finished += int(done.sum())
            steps += int(outcome.get(keys.STEPS).sum())
            if progress is not None:
                progress(finished, steps)
        next_episode += lane.begin(next_episode, rows_of_starts)
        rows = lane.rows
        if not len(rows):
            continue
        seen = lane.td[rows].set(ENV, rows + lane.first)
        check("observation", seen.get(keys.OBSERVATION), lane.episode[rows], lane.chunk[rows])
        clock = time.perf_counter()
        acted = act(seen, lane.chunk[rows], lane.episode[rows])
        infer += time.perf_counter() - clock
        check("action", acted.get(keys.ACTION), lane.episode[rows], lane.chunk[rows])
        lane.step(acted, None if isinstance(env, EnvBase) else env)
    seconds = {
        "collect": time.perf_counter() - began,
        "simulate": sum(lane.simulate for lane in lanes),
        "observe": sum(lane.observe for lane in lanes),
        "infer": infer,
        "idle": idle,
    }
    seconds["simulate"] -= seconds["observe"]
    return _collect(chunks, ends, lost, rows_of_starts, seconds)


class _Lane:
    """Environments that step together: all of them, or a half.

    Attributes:
        env, first: the batch, and the number of its first environment.
        td: what the environments say, [E].
        episode, chunk: int64 [E], the episode that each runs (-1: none), and how many chunks of it are over.
        rows: int64 [B], environments that run one.
        running: whether a step has been begun whose outcome nobody has taken.
        acted, stepped: of this step: what the policy wrote [B], and, after `wait`, the environments' answer [E].
        simulate: seconds in resets and steps, observing included.
    """

    acted: TensorDict
    stepped: TensorDict

    def __init__(self, env: EnvBase, first: int):
        self.env, self.first = env, first
        E = env.batch_size[0]
        self.td = _standing_still(env)
        self.episode, self.chunk = torch.full((E,), -1), torch.zeros(E, dtype=torch.int64)
        self.rows = torch.zeros(0, dtype=torch.int64)
        self.running, self.simulate, self._observed = False, 0.0, self._observe_seconds()
        self._begun: Future[None] | None = None

    def _observe_seconds(self) -> float:
        return getattr(getattr(self.env, "base_env", self.env), "observe_seconds", 0.0)

    @property
    def observe(self) -> float:
        """Seconds in observing, since construction."""
        return self._observe_seconds() - self._observed

    def begin(self, next_episode: int, starts: Tensor) -> int:
        """Every environment without an episode takes the next one, lowest first; how many there were to take."""
        clock = time.perf_counter()
        taken = (self.episode < 0).nonzero().squeeze(-1)[: len(starts) - next_episode]
        if len(taken):
            self.episode[taken] = torch.arange(next_episode, next_episode + len(taken))
            self.chunk[taken] = 0
            self.td = _reset(self.env, self.td, taken, starts[self.episode[taken]])
        self.rows = (self.episode >= 0).nonzero().squeeze(-1)
        self.simulate += time.perf_counter() - clock
        return len(taken)

    def step(self, acted: TensorDict, halves: Halves | None) -> None:
        """Execute the action chunks of `acted`; in a thread, where there are halves."""
        action = torch.zeros(*self.env.batch_size, *acted.get(keys.ACTION).shape[1:])
        action[self.rows] = acted.get(keys.ACTION).to(action)
        self.acted, self.running = acted, True
        self.td.set(keys.ACTION, action)
        if halves is None:
            self._step()
        else:
            self._begun = halves.submit(self._step)

    def _step(self) -> None:
        clock = time.perf_counter()
        self.stepped = cast(TensorDict, self.env.step(self.td))
        self.simulate += time.perf_counter() - clock

    def wait(self) -> float:
        """Until the step is over; seconds waited."""
        clock = time.perf_counter()
        if self._begun is not None:
            self._begun.result()
        self.running = False
        return time.perf_counter() - clock

    def advance(self, done: Tensor) -> None:
        """Go on to the next chunk; `done` [B] are the environments of `rows` whose episode is over."""
        self.chunk[self.rows] += 1
        self.episode[self.rows[done]] = -1
        self.td = step_mdp(self.stepped)


def _standing_still(env: EnvBase) -> TensorDict:
    """A td of E environments that have no episode: zeros, done. A first reset may then be a partial one."""
    td = env.fake_tensordict().exclude("next", keys.ACTION).apply(torch.zeros_like)
    for key in env.done_keys:
        td.set(key, torch.ones_like(td.get(key)))
    return td


def _reset(env: EnvBase, td: TensorDict, ids: Tensor, starts: Tensor) -> TensorDict:
    """Reset environments `ids` to `starts` [len(ids), 6]; the others keep what they have."""
    mask = torch.zeros(*env.batch_size, 1, dtype=torch.bool)
    mask[ids] = True
    start = td.get(keys.START).clone()
    start[ids] = starts
    return env.reset(td.set("_reset", mask).set(keys.START, start))


def _cat(parts: list[TensorDict]) -> TensorDict:
    return cast(TensorDict, torch.cat(parts))  # torch's stubs know only tensors


def _collect(
    chunks: list[TensorDict], ends: list[TensorDict], lost: list[int], starts: Tensor, seconds: dict[str, float]
) -> Episodes:
    """Bring the records of all steps into the order of the starts, without lost episodes, and sum up each episode."""
    asked = len(starts)
    kept = torch.tensor(sorted({*range(asked)} - {*lost}), dtype=torch.int64)
    if not len(kept):
        raise RuntimeError(f"all of {asked} episodes were dropped: their workers failed, see the warnings above")
    position = torch.full((asked,), -1)
    position[kept] = torch.arange(len(kept))
    starts = starts[kept]
    flat, last = (_renumbered(_cat(parts), position) for parts in (chunks, ends))
    episode, chunk = flat.get(EPISODE), flat.get(CHUNK)
    flat = flat[torch.argsort(episode * (chunk.max() + 1) + chunk)]
    episode = flat.get(EPISODE)
    last = last[torch.argsort(last.get(EPISODE))]
    P = len(starts)
    if len(last) != P or not torch.equal(last.get(EPISODE), torch.arange(P)):  # an invariant, not a user's mistake
        raise AssertionError(f"{P} starts, but episodes {last.get(EPISODE).tolist()} ended")

    def total(x: Tensor) -> Tensor:  # [n, 1] -> [P]
        return x.new_zeros(P).index_add_(0, episode, x.squeeze(-1))

    outcome = flat.get("next")
    table = TensorDict(
        {
            keys.TASK: last.get(keys.TASK, starts[:, :1]).squeeze(-1),
            keys.START: last.get(keys.START, starts),
            **{k: last.get(k).squeeze(-1) for k in (keys.SUCCESS, keys.FAILED, keys.TRUNCATED)},
            "return": total(outcome.get(keys.REWARD)),
            "length": total(outcome.get(keys.STEPS)),
            "chunks": torch.bincount(episode, minlength=P),
            keys.REWARD_PARTS: {k: total(v) for k, v in outcome.get(keys.REWARD_PARTS, {}).items()},
        },
        [P],
    )
    plan = last.get(keys.PLAN, None)
    if plan is not None:
        table.update(plan.select(*_PLAN)).set("bunched", plan.get("bunched").squeeze(-1))
    final = last.select(keys.OBSERVATION, keys.TASK, keys.TIME, keys.REWARD_STATE, strict=False)
    return Episodes(flat, table, final, seconds, kept, asked)


def _renumbered(records: TensorDict, position: Tensor) -> TensorDict:
    """Records of the episodes that have a position, with it as their number."""
    number = position[records.get(EPISODE)]
    return records.set(EPISODE, number)[number >= 0]


class _FiniteCheck:
    """Raises on the first NaN or infinity, saying whose it is."""

    def __init__(self, env: EnvBase, starts: Sequence[Start]):
        self.starts = starts
        self.tasks = [spec.name for spec in env.simulator.tasks]

    def __call__(self, quantity: str, data: Tensor | TensorDict, episode: Tensor, chunk: Tensor) -> None:
        leaves = data.items(True, True) if isinstance(data, TensorDict) else [(None, data)]
        for name, x in leaves:
            if x.is_floating_point() and not (fine := torch.isfinite(x).flatten(1).all(1)).all():
                row = int((~fine).nonzero()[0])
                start = self.starts[int(episode[row])]
                what = quantity if name is None else f"{quantity} '{name if isinstance(name, str) else '.'.join(name)}'"
                raise NonFiniteError(
                    f"{what} is not finite in task '{self.tasks[start.task]}', episode {int(episode[row])} "
                    f"(start seed {start.seed}), chunk {int(chunk[row])}: {x[row].flatten()[:8].tolist()}"
                )

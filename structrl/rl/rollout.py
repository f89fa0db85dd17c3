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
from dataclasses import dataclass
from typing import cast

import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.envs import EnvBase
from torchrl.envs.utils import step_mdp

from structrl import keys
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
        seconds: wall time spent in `simulate` and `infer`.
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
    env: EnvBase,
    act: Act,
    starts: Sequence[Start],
    *,
    on_chunk: OnChunk | None = None,
    progress: Progress | None = None,
) -> Episodes:
    """Run every episode of `starts`, each from its start to its end.

    Args:
        env: a batch of E chunk environments (structrl.envs), left standing still.
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
    E = env.batch_size[0]
    check = _FiniteCheck(env, starts)
    rows_of_starts = torch.tensor([[s.task, s.init, *s.seed] for s in starts], dtype=torch.int64)
    episode = torch.full((E,), -1)
    chunk = torch.zeros(E, dtype=torch.int64)
    next_episode = finished = steps = 0
    seconds = {"simulate": 0.0, "infer": 0.0}
    chunks: list[TensorDict] = []
    ends: list[TensorDict] = []
    lost: list[int] = []  # episodes that were dropped

    td = _standing_still(env)
    free = torch.arange(E)
    while True:
        # every free environment takes the next episode, lowest environment first
        clock = time.perf_counter()
        taken = free[: len(starts) - next_episode]
        if len(taken):
            episode[taken] = torch.arange(next_episode, next_episode + len(taken))
            chunk[taken] = 0
            next_episode += len(taken)
            td = _reset(env, td, taken, rows_of_starts[episode[taken]])
        episode[free[len(taken) :]] = -1
        rows = (episode >= 0).nonzero().squeeze(-1)
        if not len(rows):
            break
        seconds["simulate"] += time.perf_counter() - clock

        seen = td[rows].set(ENV, rows)
        check("observation", seen.get(keys.OBSERVATION), episode[rows], chunk[rows])
        clock = time.perf_counter()
        acted = act(seen, chunk[rows], episode[rows])
        seconds["infer"] += time.perf_counter() - clock
        check("action", acted.get(keys.ACTION), episode[rows], chunk[rows])

        clock = time.perf_counter()
        action = torch.zeros(E, *acted.get(keys.ACTION).shape[1:])
        action[rows] = acted.get(keys.ACTION).to(action)
        stepped = env.step(td.set(keys.ACTION, action))
        seconds["simulate"] += time.perf_counter() - clock
        outcome = stepped.get("next")[rows]
        check("reward", outcome.get(keys.REWARD), episode[rows], chunk[rows])

        record = acted.exclude(*_NOT_STORED).set("next", outcome.select(*_OUTCOME))
        record.set(EPISODE, episode[rows]).set(CHUNK, chunk[rows])
        chunks.append(record)
        done = outcome.get(keys.DONE).squeeze(-1)
        if done.any():
            ends.append(outcome[done].set(EPISODE, episode[rows][done]))
        if on_chunk is not None:
            on_chunk(acted.set("next", outcome), chunk[rows], episode[rows])
        lost += episode[rows][
            outcome.get(keys.DROPPED, torch.zeros(len(rows), 1, dtype=torch.bool)).squeeze(-1)
        ].tolist()
        chunk[rows] += 1
        td = step_mdp(stepped)
        free = torch.cat([(episode < 0).nonzero().squeeze(-1), rows[done]]).sort().values
        finished += int(done.sum())
        steps += int(outcome.get(keys.STEPS).sum())
        if progress is not None:
            progress(finished, steps)
    return _collect(chunks, ends, lost, rows_of_starts, seconds)


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

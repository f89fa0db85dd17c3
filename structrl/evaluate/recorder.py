"""Turns what `run_episodes` reports into episodes for a file, in the order of their starts."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
from tensordict import TensorDict
from torch import Tensor

from structrl import keys
from structrl.evaluate.episodes import Episode
from structrl.rl.rollout import ENV


class EpisodeRecorder:
    """An `on_chunk` of `run_episodes` that hands over whole episodes.

    Args:
        env: the environment, made with `record=True`.
        keep: called once per finished episode, in the order of the list of starts; never for one that was dropped.

    Raises:
        ValueError: the environment does not record.
    """

    def __init__(self, env: Any, keep: Callable[[Episode], None]) -> None:
        self.base = getattr(env, "base_env", env)
        if not self.base.runner.record:
            raise ValueError("an EpisodeRecorder needs an environment made with record=True")
        self.keep = keep
        self.tests = [self.base.simulator.atom_tests(row) for row in range(len(self.base.simulator.tasks))]
        self._running: dict[int, dict[str, list[np.ndarray]]] = {}
        self._finished: dict[int, Episode | None] = {}  # None: dropped
        self._next = 0

    def __call__(self, td: TensorDict, chunk: Tensor, episode: Tensor) -> None:
        """Take one chunk of the running environments; see `structrl.rl.rollout.OnChunk`."""
        result, after = self.base.last_chunk, td["next"]
        env, row, done = td[ENV].tolist(), episode.tolist(), after[keys.DONE].flatten().tolist()
        before, action, time = _arrays(td[keys.OBSERVATION]), td[keys.ACTION].cpu().numpy(), td[keys.TIME].tolist()
        last = _arrays(after[keys.OBSERVATION]) if any(done) else {}
        dropped = after[keys.DROPPED].flatten().tolist()
        for i, (e, number) in enumerate(zip(env, row, strict=True)):
            if dropped[i]:
                self._running.pop(number, None)
                self._hand_over(number, None)
                continue
            steps = int(result.steps[e])
            if number not in self._running:
                # row 0 of the first chunk is the state at reset
                self._running[number] = defaultdict(list, {n: [getattr(result, n)[e, :1].copy()] for n in _STEPWISE})
            parts = self._running[number]
            for name in _STEPWISE:
                parts[name].append(getattr(result, name)[e, 1 : steps + 1].copy())
            parts["action"].append(action[i, :steps].astype(np.float32))
            parts["at"].append(np.array(time[i], np.int64))
            for name, value in before.items():
                parts["obs." + name].append(value[i, None].copy())
            if done[i]:
                parts["at"].append(result.t[e, None].astype(np.int64))
                for name, value in last.items():
                    parts["obs." + name].append(value[i, None].copy())
                self._finish(
                    number,
                    int(td[keys.TASK][i]),
                    td[keys.START][i].numpy(),
                    bool(result.success[e]),
                    bool(result.failed[e]),
                )

    def _finish(self, number: int, task: int, start: np.ndarray, success: bool, failed: bool) -> None:
        whole = {name: np.concatenate(parts) for name, parts in self._running.pop(number).items()}
        spec = self.base.simulator.tasks[task]
        succeeded = np.zeros(len(whole["holds"]), bool)
        succeeded[-1] = success  # an episode ends at its first success
        episode = Episode(
            task=spec,
            start=start.astype(np.int64),
            actions=whole["action"],
            holds=whole["holds"][:, : len(spec.subtasks)],  # without the padding of shorter plans
            success=succeeded,
            failed=failed,
            atoms=whole["atoms"][:, : len(spec.atoms)],
            atom_values=whole["values"][:, : len(spec.atoms)],
            atom_tests=self.tests[task],
            obs_at=whole["at"],
            observation={n.removeprefix("obs."): v for n, v in whole.items() if n.startswith("obs.")},
        )
        self._hand_over(number, episode)

    def _hand_over(self, number: int, episode: Episode | None) -> None:
        self._finished[number] = episode
        while self._next in self._finished:
            ready = self._finished.pop(self._next)
            self._next += 1
            if ready is not None:
                self.keep(ready)


_STEPWISE = ("holds", "atoms", "values")


def _arrays(observation: TensorDict) -> dict[str, np.ndarray]:
    """Observations by the simulator's names (`images.wrist`)."""
    flat = observation.flatten_keys(".")
    return {name: value.cpu().numpy() for name, value in flat.items()}

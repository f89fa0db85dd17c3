"""StructuredReward: the reward functions as a TorchRL transform. All state lives in the TensorDict.

Shapes: E environments, H action-chunk length, N padded subtasks, R reward-state width.
"""

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Composite, Unbounded
from torchrl.envs import Transform

from structrl import keys
from structrl.plan.plan import StackedPlans
from structrl.rewards import functional
from structrl.rewards.options import RewardOptions
from structrl.rewards.score import require_durations


class StructuredReward(Transform):
    """Pays verified subtask completions, chunk by chunk.

    Reads `holds` [E, H+1, N], `success`, `steps`, `t` and `task` [E, 1] of the environment. Writes `plan.*` (see
    `functional.RewardState`) and `reward_state` [E, R] (see `functional.reward_state`) at reset and step, `reward` and
    `reward_parts.{subtask, terminal}` [E, 1] at step. A partial reset needs the whole TensorDict, `plan` included, as
    TorchRL asks of every environment.

    Args:
        plans: the plans of the environment's tasks, in its order of task rows.
        options: how pay is computed.
        chunk: H, environment steps per action chunk.

    Raises:
        ValueError: unknown or contradicting options; `pace: dynamic` and a task without durations; a task without
            horizon; on attaching, an environment whose `holds` has other sizes.
    """

    def __init__(self, plans: StackedPlans, options: RewardOptions, chunk: int) -> None:
        super().__init__(in_keys=[keys.HOLDS], out_keys=[keys.PLAN, keys.REWARD_STATE])
        if chunk < 1:
            raise ValueError(f"chunk is {chunk}; expected at least 1 environment step")
        self.options, self.chunk, self.plans = options.resolved(), chunk, plans
        for task, path in enumerate(plans.paths):
            require_durations(self.options, path, plans.names[task], plans.durations[task])
            if plans.horizon[task] < 1:
                raise ValueError(f"{path}: the task has no horizon; add `horizon N steps`")

    @property
    def reward_state_dim(self) -> int:
        """R, width of `reward_state`."""
        return functional.reward_state_dim(self.plans.valid.shape[1])

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        """The state at t = 0 of every environment; on a partial reset TorchRL keeps the other environments' own."""
        plan = self._on(tensordict_reset).rows(tensordict_reset.get(keys.TASK)[:, 0])
        state = functional.reset(plan, tensordict_reset.get(keys.HOLDS)[:, 0], self.options)
        return self._write(tensordict_reset, plan, state)

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        before = tensordict.get(keys.PLAN, None)
        if before is None:
            raise KeyError("no `plan` in the TensorDict: reset the environment first and carry its output along")
        plan = self._on(next_tensordict).rows(next_tensordict.get(keys.TASK)[:, 0])
        steps_E1 = next_tensordict.get(keys.STEPS)
        state, pay_EN, terminal_E1 = functional.advance(
            plan,
            functional.RewardState(*(before.get(name) for name in functional.RewardState._fields)),
            next_tensordict.get(keys.HOLDS)[:, 1:],
            steps_E1,
            next_tensordict.get(keys.SUCCESS),
            next_tensordict.get(keys.TIME) - steps_E1,
            self.options,
            self.chunk,
            next_tensordict.get(keys.TERMINATED) | next_tensordict.get(keys.TRUNCATED),
        )
        subtask_E1 = pay_EN.sum(-1, keepdim=True)
        next_tensordict.set(keys.REWARD, (subtask_E1 + terminal_E1).float())
        for part, value in (("subtask", subtask_E1), ("terminal", terminal_E1)):
            next_tensordict.set((keys.REWARD_PARTS, part), value.float())
        return self._write(next_tensordict, plan, state)

    def _write(
        self, tensordict: TensorDictBase, plan: functional.PlanRows, state: functional.RewardState
    ) -> TensorDictBase:
        horizon_E1 = self.plans.horizon[tensordict.get(keys.TASK)]
        seen_ER = functional.reward_state(plan, state, tensordict.get(keys.TIME), horizon_E1, self.options, self.chunk)
        tensordict.set(keys.PLAN, TensorDict(state._asdict(), tensordict.batch_size))
        return tensordict.set(keys.REWARD_STATE, seen_ER)

    def _on(self, tensordict: TensorDictBase) -> StackedPlans:
        """The plans, on the device of the data."""
        device = tensordict.get(keys.HOLDS).device
        if device != self.plans.valid.device:
            self.plans = self.plans.to(device)
        return self.plans

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Adds `plan` and `reward_state`."""
        num_envs, num_subtasks = observation_spec.shape[0], self.plans.valid.shape[1]
        holds = observation_spec[keys.HOLDS].shape
        if holds[1:] != (self.chunk + 1, num_subtasks):
            raise ValueError(
                f"the environment's holds has shape {list(holds)}; chunk {self.chunk} and the plans ask for "
                f"[{num_envs}, {self.chunk + 1}, {num_subtasks}]"
            )
        device = observation_spec.device
        # The state of any episode has the shapes and dtypes of the plan's own.
        task = torch.zeros(num_envs, dtype=torch.int64, device=self.plans.valid.device)
        plan = self.plans.rows(task)
        state = functional.reset(plan, torch.zeros_like(plan.valid), self.options)
        observation_spec[keys.PLAN] = Composite(
            {name: _spec(x, device) for name, x in state._asdict().items()}, shape=observation_spec.shape, device=device
        )
        observation_spec[keys.REWARD_STATE] = Unbounded((num_envs, self.reward_state_dim), device=device)
        return observation_spec

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """Adds `reward` and its parts."""
        shape, device = (reward_spec.shape[0], 1), reward_spec.device
        reward_spec[keys.REWARD] = Unbounded(shape, device=device)
        for part in ("subtask", "terminal"):
            reward_spec[keys.REWARD_PARTS, part] = Unbounded(shape, device=device)
        return reward_spec


def _spec(example: Tensor, device: torch.device | None) -> Unbounded:
    return Unbounded(example.shape, dtype=example.dtype, device=device)

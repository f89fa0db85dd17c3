"""What an iteration's episodes say: success, return, every subtask's rate, step and pace.

Shapes: P episodes (of all ranks), N padded subtasks.
"""

import math
from typing import TYPE_CHECKING

from tensordict import TensorDict
from torch import Tensor

from structrl import keys

if TYPE_CHECKING:
    from structrl.plan import StackedPlans

Metrics = dict[str, float]


def episode_metrics(table: TensorDict, plans: "StackedPlans", tick: int = 1) -> Metrics:
    """Metrics of the table of `run_episodes`.

    `tick`: environment steps per tick of the reward's clock, that is H with `clock: chunk`.

    Of each task: `task/<name>/success`, `return`, `length`, `failed`, and of each subtask
    `task/<name>/subtask/<label>/...`:

        rate    share of episodes that completed it
        step    mean environment step of its credit
        pace    mean T / T_d of its credit: below 1 is faster than the demonstrations (needs T_d)
        undone  share of credits that were no longer true at the end
        unpaid  share of episodes in which it completed unpaid
        out_of_order  share of episodes in which its condition turned true while a prerequisite was incomplete

    Over all tasks: `charts/episodic_return`, `charts/episodic_length`, `charts/success`, and per episode
    `reward/<part>`, `reward/bunched`, `reward/unpaid`, `reward/undone`. What did not happen (the step of a subtask
    that nobody completed) is left out, not 0.

    The reward's audit adds signs of a wrong task file, or of a policy that exploits one:

        reward/audit/out_of_order           subtasks per episode that turned true before their turn
        reward/audit/at_reset               subtasks per episode that were complete from the start
        reward/audit/success_without_all    share of episodes that succeeded with a subtask incomplete
        reward/audit/all_without_success    share of episodes that completed every subtask and did not succeed

    and the last two of each task: `task/<name>/success_without_all`, `task/<name>/all_without_success`.
    """
    metrics = {
        "charts/episodic_return": _mean(table["return"]),
        "charts/episodic_length": _mean(table["length"]),
        "charts/success": _mean(table[keys.SUCCESS]),
    }
    for part, value in table[keys.REWARD_PARTS].items():
        metrics[f"reward/{part}"] = _mean(value)
    for key in ("bunched", "unpaid", "undone"):
        metrics[f"reward/{key}"] = _mean(table[key].flatten(1).sum(1) if table[key].ndim > 1 else table[key])
    complete = (table["complete"] | ~plans.valid[table[keys.TASK]]).all(1)
    audit = {
        "success_without_all": table[keys.SUCCESS] & ~complete,
        "all_without_success": complete & ~table[keys.SUCCESS],
    }
    for key in ("out_of_order", "at_reset"):
        metrics[f"reward/audit/{key}"] = _mean(table[key].sum(1))
    metrics |= {f"reward/audit/{key}": _mean(value) for key, value in audit.items()}
    for row, name in enumerate(plans.task_names):
        mine = table[table[keys.TASK] == row]
        if not len(mine):
            continue
        for key in (keys.SUCCESS, "return", "length", keys.FAILED):
            metrics[f"task/{name}/{key}"] = _mean(mine[key])
        metrics |= {f"task/{name}/{key}": _mean(value[table[keys.TASK] == row]) for key, value in audit.items()}
        for i, label in enumerate(plans.names[row]):
            credited = mine["credited_at"][:, i] >= 0
            duration = plans.durations[row, i].item()
            prefix = f"task/{name}/subtask/{label}"
            metrics[f"{prefix}/rate"] = _mean(mine["complete"][:, i])
            metrics[f"{prefix}/unpaid"] = _mean(mine["unpaid"][:, i])
            metrics[f"{prefix}/out_of_order"] = _mean(mine["out_of_order"][:, i])
            if credited.any():
                metrics[f"{prefix}/step"] = _mean(mine["credited_at"][:, i][credited])
                metrics[f"{prefix}/undone"] = _mean(mine["undone"][:, i][credited])
                if not math.isnan(duration):
                    metrics[f"{prefix}/pace"] = _mean(mine["interval"][:, i][credited]) * tick / duration
    return metrics


def layout(plans: "StackedPlans") -> dict[str, dict[str, list]]:
    """TensorBoard's custom-scalars layout: what to look at, together."""

    def chart(*tags: str) -> list:
        return ["Multiline", [f"^{tag}$" for tag in tags]]

    tasks = {
        "success": chart(*(f"task/{name}/success" for name in plans.task_names)),
        "success, evaluation": chart(*(f"evaluate/task/{name}/success" for name in plans.task_names)),
    }
    for row, name in enumerate(plans.task_names):
        for what in ("rate", "step", "pace"):
            tasks[f"{name}: {what}"] = chart(*(f"task/{name}/subtask/{label}/{what}" for label in plans.names[row]))
    return {
        "Tasks": tasks,
        "Reward": {
            "parts": chart("reward/subtask", "reward/terminal"),
            "audit, per episode": chart(
                "reward/bunched",
                "reward/unpaid",
                "reward/undone",
                "reward/audit/out_of_order",
                "reward/audit/at_reset",
            ),
            "audit, success and subtasks": chart(
                "reward/audit/success_without_all", "reward/audit/all_without_success"
            ),
        },
        "PPO": {
            "KL": chart("losses/approx_kl", "losses/old_approx_kl"),
            "clipped": chart("losses/clipfrac", "losses/dual_clipfrac"),
            "explained variance": chart("losses/explained_variance"),
            "losses": chart("losses/policy_loss", "losses/value_loss"),
            "ratio error before the update": chart("ppo/first_ratio_err"),
            "change of the ODE action": chart("policy/ode_shift"),
            "KL by denoising step": ["Multiline", ["^policy/kl_step_[0-9]+$"]],
        },
        "Throughput": {
            "environment steps per second": chart("charts/SPS"),
            "seconds": chart("time/simulate", "time/infer", "time/update", "time/evaluate"),
        },
    }


def _mean(x: Tensor) -> float:
    return x.double().mean().item()

"""The components of the reward between rollout and advantages: named, weighted, and open to a hook.

Shapes: n chunks and P episodes of this rank.
"""

from collections.abc import Callable, Mapping

from torch import Tensor

from structrl import keys
from structrl.rl.metrics import Metrics
from structrl.rl.rollout import EPISODE, Episodes

Components = dict[str, Tensor]  # name -> f32 [n, 1]
RewardHook = Callable[[Episodes], Components]
"""Takes whole episodes and returns all components: those of `chunks["next", "reward_parts"]`, changed or not, and any
of its own. What it leaves out counts no more."""


def reweigh(episodes: Episodes, weights: Mapping[str, float], hook: RewardHook | None) -> Metrics:
    """Replace the chunks' reward by the weighted sum of its components; what was paid stays in the table.

    Args:
        episodes: their ("next", "reward") is written, unless there are neither weights nor hook.
        weights: by component; 1 where a component is not named.
        hook: see `RewardHook`.

    Returns:
        `reward/used/<component>`, weighted, per episode; empty where nothing was changed.

    Raises:
        ValueError: weights of unknown components; a hook's component of another shape.
    """
    if not weights and hook is None:
        return {}
    outcome = episodes.chunks["next"]
    parts = dict(outcome[keys.REWARD_PARTS].items()) if hook is None else hook(episodes)
    shape = outcome[keys.REWARD].shape
    if wrong := [name for name, x in parts.items() if x.shape != shape]:
        raise ValueError(f"the reward hook's {', '.join(wrong)} must have shape {list(shape)}, one row per chunk")
    if unknown := sorted(set(weights) - set(parts)):
        raise ValueError(
            f"reward_weights names {', '.join(unknown)}; the components are {', '.join(parts) or '(none)'}"
        )
    weighted = {name: weights.get(name, 1.0) * x.float() for name, x in parts.items()}
    outcome[keys.REWARD] = sum(weighted.values(), start=outcome[keys.REWARD].new_zeros(shape))
    return {f"reward/used/{name}": float(x.sum()) / len(episodes) for name, x in weighted.items()}


def returns(episodes: Episodes) -> Tensor:
    """Undiscounted return of each episode from the reward that advantages are computed from, [P]."""
    reward = episodes.chunks["next", keys.REWARD].squeeze(-1)
    return reward.new_zeros(len(episodes)).index_add_(0, episodes.chunks[EPISODE], reward)

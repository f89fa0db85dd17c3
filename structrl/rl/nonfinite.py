"""NaN and infinity in an update: which quantity it is, and of which task and episode.

Shapes: B chunks.
"""

from collections.abc import Mapping, Sequence

import torch
from tensordict import TensorDict
from torch import Tensor

from structrl import keys
from structrl.rl.rollout import CHUNK, EPISODE


def first_not_finite(
    quantities_B: Mapping[str, Tensor], chunks: TensorDict, valid_B: Tensor, task_names: Sequence[str]
) -> str | None:
    """The first quantity that is not finite in a valid row, in words; None if all are.

    Args:
        quantities_B: name -> [B] or [B, 1], those that others derive from first.
        chunks: the rows: TASK, EPISODE and CHUNK.
        valid_B: the rows that count.
        task_names: by task row.
    """
    for name, values in quantities_B.items():
        bad_B = ~torch.isfinite(values.detach()).flatten(1).all(1) if values.ndim > 1 else ~torch.isfinite(values)
        bad_B = bad_B & valid_B
        if bad_B.any():
            row = int(bad_B.nonzero()[0])
            task, episode, chunk = (int(chunks[key][row]) for key in (keys.TASK, EPISODE, CHUNK))
            return (
                f"the {name} is {float(values.detach()[row].flatten()[0])} in task '{task_names[task]}', episode "
                f"{episode} of this rank, chunk {chunk} (and in {int(bad_B.sum())} of {int(valid_B.sum())} chunks)"
            )
    return None

"""Weights of an earlier run as a beginning: everything but the critic, strictly."""

import pickle
from pathlib import Path

import torch

from structrl.policies.actor_critic import ActorCritic


def load_actor(policy: ActorCritic, path: str) -> None:
    """Load the actor of checkpoint `path` into `policy`; its critic stays as initialised.

    Names with "critic" in them belong to the critic. A head for learned noise may be missing in the checkpoint (that of
    a supervised run, say): it then stays as initialised.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: not a checkpoint, or cut off; weights are missing, left over or of another shape; the message names
            the first few.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"warm start '{path}' does not exist; train it first (structrl fit --config ...) or set model.warm_start"
        )
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    except (RuntimeError, EOFError, pickle.UnpicklingError, KeyError, TypeError) as error:
        what = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"'{path}' is no checkpoint of structrl, or was cut off ({what})") from None
    saved = {k.removeprefix("policy."): v for k, v in saved.items() if k.startswith("policy.")}
    own = policy.state_dict()
    actor, theirs = ({k: v for k, v in d.items() if "critic" not in k} for d in (own, saved))
    if not any(k.startswith("noise_head.") for k in theirs):
        actor = {k: v for k, v in actor.items() if not k.startswith("noise_head.")}
    wrong = [
        *(f"{k} is missing" for k in actor.keys() - theirs.keys()),
        *(f"{k} is not in this policy" for k in theirs.keys() - actor.keys()),
        *(
            f"{k} is {tuple(theirs[k].shape)} there and {tuple(actor[k].shape)} here"
            for k in actor.keys() & theirs.keys()
            if theirs[k].shape != actor[k].shape
        ),
    ]
    if wrong:
        shown = "\n  ".join(sorted(wrong)[:6] + ["..."] * (len(wrong) > 6))
        raise ValueError(
            f"warm start '{path}' holds another policy (compare model.policy, tasks and chunk of the two configs):"
            f"\n  {shown}"
        )
    policy.load_state_dict(own | theirs)

"""The options of the reward, and the named presets of the paper's ablations (torch-free)."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

Gate = Literal["latched", "held", "none"]
Pace = Literal["dynamic", "fixed", "potential"]
Since = Literal["credit", "eligible"]
Clock = Literal["step", "chunk"]
Preset = Literal["sparse", "fixed_ungated", "paced_ungated", "fixed_gated", "structrl", "potential"]

PRESETS: dict[str, dict[str, Any]] = {
    "sparse": {"beta": 0.0, "pace": "fixed"},  # terminal bonus only; subtasks are followed, unpaid
    "fixed_ungated": {"gate": "none", "pace": "fixed"},
    "paced_ungated": {"gate": "none", "pace": "dynamic"},
    "fixed_gated": {"gate": "latched", "pace": "fixed"},
    "structrl": {"gate": "latched", "pace": "dynamic"},
    "potential": {"gate": "latched", "pace": "potential"},
}
DEFAULTS: dict[str, Any] = {
    "beta": 0.6,
    "terminal": 2.0,
    "gate": "latched",
    "pace": "dynamic",
    "since": "credit",
    "clock": "step",
    "gamma": None,
}


@dataclass(frozen=True)
class RewardOptions:
    """How plan and conditions become pay. Resolved without a preset, these are the paper's reward with the step clock.

    None means not given: the preset's value, or the default in brackets. So a value that contradicts the preset is
    noticed even where it is the default.

    Attributes:
        beta: [0.6] upper bound of one credit's pay (times the subtask's worth); demonstration pace pays beta / 2.
        terminal: [2.0] paid once, at the first success.
        gate: [latched] a subtask is open once its prerequisites are complete (`latched`), complete and still true,
            pulses aside (`held`), or always (`none`, ablation).
        pace: [dynamic] pay falls with the time taken (`dynamic`, needs T_d of every subtask), is beta / 2 (`fixed`), or
            is a potential of which the discounted sum over an episode is 0 (`potential`, see `functional.shaping`).
        since: [credit] time counts from the last earlier credit (`credit`, the paper) or from the last earlier credit
            of one of the subtask's own prerequisites (`eligible`, indifferent to bunching inside groups).
        clock: [step] time in environment steps (`step`) or in action chunks (`chunk`, the paper's wording).
        gamma: [0.99] discount per chunk, read by `pace: potential` only; must be that of learning.
        budget: upper bound of what the subtasks of an episode can earn together: beta counts as at most
            budget / (sum of worth). The budget B of the paper's release is 3/4 of this one.
        preset: sets gate, pace and, for `sparse`, beta. Another value given for one of these beside it is an error.
    """

    beta: float | None = None
    terminal: float | None = None
    gate: Gate | None = None
    pace: Pace | None = None
    since: Since | None = None
    clock: Clock | None = None
    gamma: float | None = None
    budget: float | None = None
    preset: Preset | None = None

    def resolved(self) -> "ResolvedReward":
        """These options with preset and defaults applied.

        Raises:
            ValueError: an unknown choice, a negative amount, or an option that contradicts the preset.
        """
        given = {name: getattr(self, name) for name in DEFAULTS if getattr(self, name) is not None}
        for name, choices in (("gate", Gate), ("pace", Pace), ("since", Since), ("clock", Clock)):
            if name in given and given[name] not in get_args(choices):
                raise ValueError(f"reward.{name} is '{given[name]}'; choose one of {_listed(choices)}")
        for name in ("beta", "terminal"):
            if name in given and not 0 <= given[name] < float("inf"):
                raise ValueError(f"reward.{name} is {given[name]}; it must be finite and not negative")
        if "gamma" in given and not 0 < given["gamma"] <= 1:
            raise ValueError(f"reward.gamma is {given['gamma']}; it must be above 0 and at most 1")
        if self.budget is not None and not 0 < self.budget < float("inf"):
            raise ValueError(f"reward.budget is {self.budget}; it must be finite and above 0")
        preset: dict[str, Any] = {}
        if self.preset is not None:
            if self.preset not in PRESETS:
                raise ValueError(f"reward.preset is '{self.preset}'; choose one of {_listed(Preset)}")
            preset = PRESETS[self.preset]
        for name, value in preset.items():
            if given.get(name, value) != value:
                raise ValueError(
                    f"reward.preset '{self.preset}' sets {name} to {value}, but reward.{name} is {given[name]};"
                    " remove one of them"
                )
        chosen = DEFAULTS | given | preset
        if chosen["pace"] == "potential":
            chosen["gamma"] = given.get("gamma", 0.99)
        elif "gamma" in given:
            raise ValueError("reward.gamma has no effect without `preset: potential`; remove it")
        return ResolvedReward(**chosen, budget=self.budget)


@dataclass(frozen=True)
class ResolvedReward:
    """`RewardOptions` with nothing left open."""

    beta: float
    terminal: float
    gate: Gate
    pace: Pace
    since: Since
    clock: Clock
    gamma: float | None  # of `pace: potential` only
    budget: float | None


def _listed(choices: Any) -> str:
    return ", ".join(get_args(choices))

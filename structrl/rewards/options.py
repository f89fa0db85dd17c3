"""The options of the reward, and the named presets of the paper's ablations (torch-free)."""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

Gate = Literal["latched", "held", "none"]
Pace = Literal["dynamic", "fixed"]
Since = Literal["credit", "eligible"]
Clock = Literal["step", "chunk"]
Preset = Literal["sparse", "fixed_ungated", "paced_ungated", "fixed_gated", "structrl"]

PRESETS: dict[str, dict[str, Any]] = {
    "sparse": {"beta": 0.0, "pace": "fixed"},  # terminal bonus only; subtasks are followed, unpaid
    "fixed_ungated": {"gate": "none", "pace": "fixed"},
    "paced_ungated": {"gate": "none", "pace": "dynamic"},
    "fixed_gated": {"gate": "latched", "pace": "fixed"},
    "structrl": {"gate": "latched", "pace": "dynamic"},
}


@dataclass(frozen=True)
class RewardOptions:
    """How plan and conditions become pay. The defaults are the paper's reward with the step clock.

    Attributes:
        beta: upper bound of one credit's pay (times the subtask's worth); demonstration pace pays beta / 2.
        terminal: paid once, at the first success.
        gate: a subtask is open once its prerequisites are complete (`latched`), complete and still true, pulses aside
            (`held`), or always (`none`, ablation).
        pace: pay falls with the time taken (`dynamic`, needs T_d of every subtask) or is beta / 2 (`fixed`).
        since: time counts from the last earlier credit (`credit`, the paper) or from the last earlier credit of one of
            the subtask's own prerequisites (`eligible`, indifferent to bunching inside groups).
        clock: time in environment steps (`step`) or in action chunks (`chunk`, the paper's wording).
        preset: sets gate, pace and, for `sparse`, beta. Another value given for one of these beside it is an error.
    """

    beta: float = 0.6
    terminal: float = 2.0
    gate: Gate = "latched"
    pace: Pace = "dynamic"
    since: Since = "credit"
    clock: Clock = "step"
    preset: Preset | None = None

    def resolved(self) -> "RewardOptions":
        """These options with the preset applied (and `preset` None).

        Raises:
            ValueError: an unknown choice, a negative amount, or an option that contradicts the preset.
        """
        for name, choices in (("gate", Gate), ("pace", Pace), ("since", Since), ("clock", Clock)):
            if getattr(self, name) not in get_args(choices):
                raise ValueError(f"reward.{name} is '{getattr(self, name)}'; choose one of {_listed(choices)}")
        for name in ("beta", "terminal"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"reward.{name} is {getattr(self, name)}; it must be finite and not negative")
        if self.preset is None:
            return self
        if self.preset not in PRESETS:
            raise ValueError(f"reward.preset is '{self.preset}'; choose one of {_listed(Preset)}")
        default = {f.name: f.default for f in fields(self)}
        for name, value in PRESETS[self.preset].items():
            if getattr(self, name) not in (default[name], value):
                raise ValueError(
                    f"reward.preset '{self.preset}' sets {name} to {value}, but reward.{name} is {getattr(self, name)};"
                    " remove one of them"
                )
        return replace(self, preset=None, **PRESETS[self.preset])


def _listed(choices: Any) -> str:
    return ", ".join(get_args(choices))

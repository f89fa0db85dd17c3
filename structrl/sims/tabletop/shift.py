"""What a shifted world gets wrong: `env.sim.shift` of a config, one value of each kind for the whole simulator."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class CameraBias:
    """How far off the fixed cameras stand: `position` [3] in m (world frame), `angle` in rad about the vertical."""

    position: NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))
    angle: float = 0.0


@dataclass(frozen=True)
class Shift:
    """A shifted world.

    Attributes:
        object_bias: [dx, dy] in m, added to the *observed* positions of objects (not of fixtures); a badly calibrated
            camera. Held as [3] with dz = 0.
        camera_bias: `{position: [x, y, z], angle: rad}`, where cameras really stand; only images show it.
        object_size: scale of the objects, above 0. Their masses stay.
        friction: scale of every friction coefficient, above 0.
        latency: whole steps by which an action takes effect later than it was given.
    """

    object_bias: NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))
    camera_bias: CameraBias = CameraBias()
    object_size: float = 1.0
    friction: float = 1.0
    latency: int = 0


def read_shift(given: Mapping[str, Any] | None) -> Shift:
    """The shift of a config's mapping.

    Raises:
        ValueError: an unknown key (with the nearest one), or a value of the wrong shape, sign or kind.
    """
    given = given or {}
    _known(given, (each.name for each in fields(Shift)), "shift")
    camera = given.get("camera_bias", {})
    if not isinstance(camera, Mapping):
        raise ValueError(f"shift: camera_bias must be {{position: [x, y, z], angle: rad}}, not {camera!r}")
    _known(camera, ("position", "angle"), "shift: camera_bias")
    latency = given.get("latency", 0)
    if isinstance(latency, bool) or not isinstance(latency, int) or latency < 0:
        raise ValueError(f"shift: latency must be a whole number of steps >= 0, not {latency!r}")
    return Shift(
        object_bias=np.append(_numbers(given, "object_bias", "[dx, dy] in m", 2), 0.0),
        camera_bias=CameraBias(
            _numbers(camera, "position", "[x, y, z] in m", 3), float(_numbers(camera, "angle", "rad", 0))
        ),
        object_size=_scale(given, "object_size"),
        friction=_scale(given, "friction"),
        latency=latency,
    )


def _known(given: Mapping[str, Any], keys: Iterable[str], where: str) -> None:
    keys = list(keys)
    for key in given:
        if key not in keys:
            close = difflib.get_close_matches(key, keys, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(keys)}"
            raise ValueError(f"{where}: unknown key '{key}'; {hint}")


def _numbers(given: Mapping[str, Any], key: str, meaning: str, count: int) -> NDArray[np.float64]:
    shape = (count,) if count else ()
    value = given.get(key, np.zeros(shape))
    many = {0: "a finite number", 2: "two finite numbers", 3: "three finite numbers"}[count]
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        array = np.array(np.nan)
    if array.shape != shape or not np.isfinite(array).all():
        raise ValueError(f"shift: {key} must be {many}, {meaning}, not {value!r}")
    return array


def _scale(given: Mapping[str, Any], key: str) -> float:
    value = given.get(key, 1.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"shift: {key} must be a scale above 0 (1 changes nothing), not {value!r}")
    return float(value)

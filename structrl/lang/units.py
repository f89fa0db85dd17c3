"""Numbers with units, in SI (m, rad, s; a percentage is a fraction) or in environment steps."""

import math
from decimal import Decimal

from structrl.lang.tree import Quantity

# unit -> (SI unit, factor). Decimal, so that 7cm and 0.07m are the same number.
_SI = {
    "m": ("m", Decimal(1)),
    "cm": ("m", Decimal("0.01")),
    "mm": ("m", Decimal("0.001")),
    "rad": ("rad", Decimal(1)),
    "deg": ("rad", None),
    "s": ("s", Decimal(1)),
    "steps": ("steps", Decimal(1)),
    "%": ("1", Decimal("0.01")),
    None: ("1", Decimal(1)),
}
UNITS = tuple(unit for unit in _SI if unit)


def si_unit(unit: str | None) -> str | None:
    """The SI unit of `unit` ("1" for % and for none), None if the unit is unknown."""
    return _SI[unit][0] if unit in _SI else None


def to_si(quantity: Quantity) -> float:
    """The value in the SI unit of its unit.

    Raises:
        KeyError: for an unknown unit.
    """
    factor = _SI[quantity.unit][1]
    if factor is None:
        return math.radians(quantity.value)
    return float(Decimal(repr(quantity.value)) * factor)

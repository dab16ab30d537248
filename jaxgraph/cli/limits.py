"""Limits of options, stated on the fields that hold them, and checked before any work."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from jaxgraph.partition.choices import checked_choice

__all__ = ["Number", "OneOf", "check_limits", "option_name"]


@dataclass(frozen=True)
class OneOf:
    """The option is one of some names.

    Args:
        names: The allowed names.
    """

    names: Sequence[str]

    def check(self, option: str, value: str) -> None:
        """Raises ValueError, with the nearest name, where the value is none of them."""
        checked_choice(option, value, self.names)


@dataclass(frozen=True, kw_only=True)
class Number:
    """The option is a finite number in a range.

    Args:
        least: The smallest allowed value, or None.
        above: The exclusive lower bound, or None.
        below: The exclusive upper bound, or None.
    """

    least: float | None = None
    above: float | None = None
    below: float | None = None

    def check(self, option: str, value: float) -> None:
        """Raises ValueError where the value is outside of the range, NaN or infinite."""
        inside = (
            math.isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )
        if not inside:
            kind = "an integer" if isinstance(value, int) else "a finite number"
            bounds = {"at least": self.least, "above": self.above, "below": self.below}
            given = [f"{word} {bound}" for word, bound in bounds.items() if bound is not None]
            raise ValueError(f"{option}: got {value}; expected {kind} {' and '.join(given)}.")


def check_limits(options: Any) -> None:
    """Checks every field of a dataclass by the limits in its annotation; None is always allowed.

    Args:
        options: A dataclass whose fields are annotated with `OneOf` and `Number`.

    Raises:
        ValueError: A value is outside of its limits; the message names the option.
    """
    hints = get_type_hints(type(options), include_extras=True)
    for field in fields(options):
        value = getattr(options, field.name)
        for limit in getattr(hints[field.name], "__metadata__", ()):
            if isinstance(limit, OneOf | Number) and value is not None:
                limit.check(option_name(field.name), value)


def option_name(field: str) -> str:
    """Names the option of a field, as typer does.

    Args:
        field: The field of a dataclass of options.

    Returns:
        Its option.

    >>> option_name("data_dir")
    '--data-dir'
    """
    return f"--{field.replace('_', '-')}"

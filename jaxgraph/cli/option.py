"""Options are fields of frozen dataclasses: this module makes, checks and names them."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from jaxgraph.partition.choices import checked_choice

__all__ = ["REQUIRED", "Options", "count", "default_of", "option", "option_name"]

REQUIRED = MISSING
"""The default of an option that must be given."""


def option(
    panel: str | None,
    help: str,
    default: Any = None,
    *,
    names: Sequence[str] = (),
    metavar: str | None = None,
    parser: Callable[[str], Any] | None = None,
    hidden: bool = False,
    choices: Sequence[str] | None = None,
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> Any:
    """Makes the field of an option. None is always allowed as its value.

    Args:
        panel: The title under which the help shows it.
        help: Its help.
        default: Its value where it is not given.
        names: Its names on the command line, where they do not follow from the field's.
        metavar: Of an argument without a name: what the help calls it.
        parser: Reads its text.
        hidden: Whether the help leaves it out.
        choices: All values; the help lists them.
        least, above, below: The limits of a finite number.
    """
    if choices is not None:
        help = f"{help}: {', '.join(choices)}."
    shown = {"help": help, "rich_help_panel": panel, "parser": parser, "hidden": hidden}
    limits = {"at least": least, "above": above, "below": below}
    limits = {words: limit for words, limit in limits.items() if limit is not None}
    metadata = {"shown": shown, "names": names, "metavar": metavar}
    metadata |= {"choices": choices, "limits": limits}
    if isinstance(default, list):
        return field(default_factory=list, metadata=metadata)
    return field(default=default, metadata=metadata)


def option_name(name: str) -> str:
    """Names the option of a field.

    >>> option_name("data_dir")
    '--data-dir'
    """
    return f"--{name.replace('_', '-')}"


def count(text: str) -> int:
    """Reads a whole number, which may be written as 111e6."""
    number = float(text)
    if not number.is_integer():
        raise ValueError(f"{text} is no whole number")
    return int(number)


def default_of(option: Any) -> Any:
    """The value of a field where the option is not given."""
    return option.default if option.default_factory is MISSING else option.default_factory()


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a command, each checked alone."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is None:
                continue
            if each.metadata["choices"] is not None:
                checked_choice(option_name(each.name), value, each.metadata["choices"])
            if each.metadata["limits"]:
                _check_number(option_name(each.name), value, each.metadata["limits"])

    def given(self, names: Iterable[str]) -> list[str]:
        """Those of the names whose options have other values than their defaults."""
        known = {each.name: default_of(each) for each in fields(self)}
        return [name for name in names if getattr(self, name) != known[name]]

    def refuse(self, names: Iterable[str], reason: str) -> None:
        """Raises ValueError, with a reason, where one of the options is given."""
        given = self.given(names)
        if given:
            raise ValueError(f"{', '.join(map(option_name, given))}: {reason}")


def _check_number(name: str, value: float, limits: dict[str, float]) -> None:
    is_inside = {
        "at least": lambda limit: value >= limit,
        "above": lambda limit: value > limit,
        "below": lambda limit: value < limit,
    }
    if not math.isfinite(value) or not all(is_inside[word](x) for word, x in limits.items()):
        kind = "an integer" if isinstance(value, int) else "a finite number"
        expected = " and ".join(f"{word} {limit}" for word, limit in limits.items())
        raise ValueError(f"{name}: got {value}; expected {kind} {expected}.")

"""Commands whose options are the fields of a dataclass, and whose errors are one line."""

import math
import re
import signal
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import partial
from inspect import Parameter, Signature
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from jaxgraph.cli.display import drop_output, tolerate_other_encodings
from jaxgraph.launch.signals import say
from jaxgraph.partition.choices import checked_choice

# Mistakes that the caller can mend: a wrong value, a missing file, a learning rate that makes the
# loss infinite, kernels that cannot be used here.
_CALLERS_MISTAKES = (ValueError, OSError, FloatingPointError, NotImplementedError)
OptionsType = TypeVar("OptionsType", bound="Options")
REQUIRED = MISSING
"""The default of an option that must be given."""


def option(
    help: str,
    default: Any = None,
    *,
    names: Sequence[str] = (),
    choices: Sequence[str] | None = None,
    least: float = -math.inf,
    most: float = sys.float_info.max,
    **shown: Any,
) -> Any:
    """Makes the field of an option. None is always allowed as its value."""
    if choices is not None:
        help = f"{help}: {', '.join(choices)}."
    shown |= {"help": help, "hidden": not help}
    metadata = {"shown": shown, "names": names, "choices": choices, "limits": (least, most)}
    return field(default=default, metadata=metadata)


of_batches = partial(option, rich_help_panel="Mini-batches")
of_device = partial(option, rich_help_panel="Devices")
of_generator = partial(option, rich_help_panel="Generated graphs")
of_graph = partial(option, rich_help_panel="Graph")
of_model = partial(option, rich_help_panel="Model")
of_process = partial(option, rich_help_panel="Processes")
of_training = partial(option, rich_help_panel="Training")


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


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a command, each checked alone."""

    traceback: bool = option("Show where in the code an error came from.", False)

    def __post_init__(self) -> None:
        for each in fields(self):
            name, value = option_name(each.name), getattr(self, each.name)
            choices, (least, most) = each.metadata["choices"], each.metadata["limits"]
            if choices is not None and value is not None:
                checked_choice(name, value, choices)
            if isinstance(value, int | float) and not least <= value <= most:
                limit = f"at least {least}" if value < least else f"a number of at most {most}"
                raise ValueError(f"{name}: got {value}; expected {limit}.")

    def named(self, *names: str) -> dict[str, Any]:
        """The values of some options by name."""
        return {name: getattr(self, name) for name in names}

    def given(self, names: Iterable[str]) -> list[str]:
        """Those of the names whose options have other values than their defaults."""
        known = {each.name: each.default for each in fields(self)}
        return [name for name in names if getattr(self, name) != known[name]]

    def refuse(self, names: Iterable[str], reason: str) -> None:
        """Raises ValueError, with a reason, where one of the options is given."""
        given = self.given(names)
        if given:
            raise ValueError(f"{', '.join(map(option_name, given))}: {reason}")


def command_of(
    options_type: type[OptionsType], run: Callable[[OptionsType], None]
) -> Callable[..., None]:
    """Makes the function that typer registers: one option for each field of a dataclass."""
    hints = get_type_hints(options_type)
    parameters = [_parameter(each, hints[each.name]) for each in fields(options_type)]

    def command(**values: Any) -> None:
        tolerate_other_encodings()
        with _clean_errors(values["traceback"], values):
            run(options_type(**values))

    command.__signature__ = Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__doc__ = run.__doc__
    return command


def _parameter(option: Field[Any], kind: Any) -> Parameter:
    """The parameter that typer makes an option, or an argument, of."""
    shown, names = option.metadata["shown"], option.metadata["names"]
    if kind is bool:  # Without a name typer adds --no-NAME.
        names = [option_name(option.name)]
    made = typer.Argument(**shown) if "metavar" in shown else typer.Option(*names, **shown)
    return Parameter(
        option.name,
        Parameter.KEYWORD_ONLY,
        default=Parameter.empty if option.default is REQUIRED else option.default,
        annotation=Annotated[kind, made],
    )


@contextmanager
def _clean_errors(show_traceback: bool, names: Container[str]) -> Iterator[None]:
    """Turns a mistake of the caller, and a signal, into one line on standard error and a status."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError as error:
        drop_output()
        raise typer.Exit(0) from error
    except _CALLERS_MISTAKES as error:
        if show_traceback:
            raise
        say(f"Error: {_message(error, names)}")
        raise typer.Exit(2) from error
    except KeyboardInterrupt as error:
        say(str(error) or "Interrupted.")
        raise typer.Exit(128 + getattr(error, "number", signal.SIGINT)) from error


def _message(error: BaseException, names: Container[str]) -> str:
    # An error of the operating system reads "[Errno 2] No such file or directory: 'x'".
    text = re.sub(r"^\[Errno \d+\] ", "", " ".join(str(error).split()))
    first = re.match(r"(\w+)(?=:| is | = )", text)
    if first is not None and first[1] in names:
        text = option_name(first[1]) + text.removeprefix(first[1])
    return text or type(error).__name__

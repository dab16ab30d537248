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
from rich.console import Console
from rich.text import Text

from jaxgraph.cli.display import drop_output, tolerate_other_encodings
from jaxgraph.partition.choices import checked_choice

__all__ = [
    "REQUIRED",
    "Options",
    "command_of",
    "count",
    "of_device",
    "of_generator",
    "of_graph",
    "of_model",
    "of_process",
    "of_training",
    "option",
    "option_name",
]

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
    panel: str | None = None,
    names: Sequence[str] = (),
    metavar: str | None = None,
    parser: Callable[[str], Any] | None = None,
    choices: Sequence[str] | None = None,
    least: float = -math.inf,
    most: float = sys.float_info.max,
) -> Any:
    """Makes the field of an option. None is always allowed as its value.

    Args:
        help: Its help; "" hides it.
        default: Its value where it is not given.
        panel: The title under which the help shows it.
        names: Its names on the command line, where they do not follow from the field's.
        metavar: Of an argument without a name: what the help calls it.
        parser: Reads its text.
        choices: All values; the help lists them.
        least, most: The limits of a number, which is finite.
    """
    if choices is not None:
        help = f"{help}: {', '.join(choices)}."
    shown = {"help": help, "rich_help_panel": panel, "parser": parser, "hidden": not help}
    metadata = {"shown": shown, "names": names, "metavar": metavar, "choices": choices}
    metadata["limits"] = (least, most)
    if isinstance(default, list):
        return field(default_factory=list, metadata=metadata)
    return field(default=default, metadata=metadata)


of_device = partial(option, panel="Devices")
of_generator = partial(option, panel="Generated graphs")
of_graph = partial(option, panel="Graph")
of_model = partial(option, panel="Model")
of_process = partial(option, panel="Processes")
of_training = partial(option, panel="Training")


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


def _default_of(option: Any) -> Any:
    """The value of a field where the option is not given."""
    return option.default if option.default_factory is MISSING else option.default_factory()


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

    def given(self, names: Iterable[str]) -> list[str]:
        """Those of the names whose options have other values than their defaults."""
        known = {each.name: _default_of(each) for each in fields(self)}
        return [name for name in names if getattr(self, name) != known[name]]

    def refuse(self, names: Iterable[str], reason: str) -> None:
        """Raises ValueError, with a reason, where one of the options is given."""
        given = self.given(names)
        if given:
            raise ValueError(f"{', '.join(map(option_name, given))}: {reason}")


def command_of(
    options_type: type[OptionsType], run: Callable[[OptionsType], None]
) -> Callable[..., None]:
    """Makes the function that typer registers: one option for each field of a dataclass.

    Args:
        options_type: A subclass of `Options`.
        run: The function of the command; its docstring is the help of the command.

    Returns:
        A function with one keyword argument for each field.
    """
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
    if option.metadata["metavar"] is not None:
        made = typer.Argument(metavar=option.metadata["metavar"], help=shown["help"])
    else:
        # Without a name typer adds --no-NAME.
        made = typer.Option(
            *(names or ([option_name(option.name)] if kind is bool else [])), **shown
        )
    default = _default_of(option)
    return Parameter(
        option.name,
        Parameter.KEYWORD_ONLY,
        default=Parameter.empty if default is REQUIRED else default,
        annotation=Annotated[kind, made],
    )


@contextmanager
def _clean_errors(show_traceback: bool, names: Container[str]) -> Iterator[None]:
    """Turns a mistake of the caller, and a signal, into one line on standard error and a status.

    Args:
        show_traceback: Raise the exception instead.
        names: Arguments of the library that are options, if a message begins with them.

    Raises:
        typer.Exit: With 2 for a mistake, 128 + N for signal N, 0 where nobody reads the output.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError as error:
        drop_output()
        raise typer.Exit(0) from error
    except (*_CALLERS_MISTAKES, KeyboardInterrupt) as error:
        if show_traceback:
            raise
        if isinstance(error, KeyboardInterrupt):
            line, status = (
                str(error) or "Interrupted.",
                128 + getattr(error, "number", signal.SIGINT),
            )
        else:
            line, status = f"Error: {_message(error, names)}", 2
        Console(stderr=True).print(Text(line, style="bold"), soft_wrap=True)
        raise typer.Exit(status) from error


def _message(error: BaseException, names: Container[str]) -> str:
    # An error of the operating system reads "[Errno 2] No such file or directory: 'x'".
    text = re.sub(r"^\[Errno \d+\] ", "", " ".join(str(error).split()))
    first = re.match(r"(\w+)(?=:| is | = )", text)
    if first is not None and first[1] in names:
        text = option_name(first[1]) + text.removeprefix(first[1])
    return text or type(error).__name__

"""Commands whose options are the fields of a dataclass, and whose errors are one line."""

import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import Field, fields
from inspect import Parameter, Signature
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from rich.console import Console
from rich.text import Text

from jaxgraph.cli.option import REQUIRED, default_of, option_name
from jaxgraph.cli.output import drop_output, tolerate_other_encodings

__all__ = ["command_of"]

# Mistakes that the caller can mend: a wrong value, a missing file, a learning rate that makes the
# loss infinite, kernels that cannot be used here.
_CALLERS_MISTAKES = (ValueError, OSError, FloatingPointError, NotImplementedError)
_TRACEBACK = Parameter(
    "traceback",
    Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool, typer.Option("--traceback", help="Show where in the code an error came from.")
    ],
)

OptionsType = TypeVar("OptionsType")


def command_of(
    options_type: type[OptionsType], run: Callable[[OptionsType], None]
) -> Callable[..., None]:
    """Makes the function that typer registers: one option for each field of a dataclass.

    Args:
        options_type: A subclass of `Options`.
        run: The function of the command; its docstring is the help of the command.

    Returns:
        A function with one keyword argument for each field, and `traceback`.
    """
    hints = get_type_hints(options_type)
    options: Any = options_type
    parameters = [_parameter(each, hints[each.name]) for each in fields(options)]

    def command(traceback: bool, **values: Any) -> None:
        tolerate_other_encodings()
        with _clean_errors(traceback, {each.name for each in parameters}):
            run(options_type(**values))

    signature: Any = Signature([*parameters, _TRACEBACK])
    command.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    command.__annotations__ = {each.name: each.annotation for each in [*parameters, _TRACEBACK]}
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
    default = default_of(option)
    return Parameter(
        option.name,
        Parameter.KEYWORD_ONLY,
        default=Parameter.empty if default is REQUIRED else default,
        annotation=Annotated[kind, made],
    )


@contextmanager
def _clean_errors(show_traceback: bool, names: set[str]) -> Iterator[None]:
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


def _message(error: BaseException, names: set[str]) -> str:
    # An error of the operating system reads "[Errno 2] No such file or directory: 'x'".
    text = re.sub(r"^\[Errno \d+\] ", "", " ".join(str(error).split()))
    first = re.match(r"(\w+)(?=:| is | = )", text)
    if first is not None and first[1] in names:
        text = option_name(first[1]) + text.removeprefix(first[1])
    return text or type(error).__name__

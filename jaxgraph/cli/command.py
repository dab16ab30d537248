"""Commands whose options are the fields of a frozen dataclass, and whose errors are one line."""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields
from types import MappingProxyType
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from rich.console import Console
from rich.text import Text

from jaxgraph.cli.interruption import Interrupted, raised
from jaxgraph.cli.limits import option_name
from jaxgraph.cli.output import drop_output, tolerate_other_encodings

__all__ = ["command_of", "in_option_terms"]

# Mistakes that the caller can mend: a wrong value, a missing file, a learning rate that makes the
# loss infinite, kernels that cannot be used here.
_CALLERS_MISTAKES = (ValueError, OSError, FloatingPointError, NotImplementedError)

Options = TypeVar("Options")
ShowTraceback = Annotated[
    bool, typer.Option("--traceback", help="Show where in the code an error came from.")
]


@contextmanager
def _clean_errors(show_traceback: bool, names: Mapping[str, str]) -> Iterator[None]:
    """Turns a mistake of the caller, and Ctrl-C, into one line on standard error and an exit code.

    Args:
        show_traceback: Raise the exception instead.
        names: Options by the names of the library's parameters.

    Raises:
        typer.Exit: With code 2 for an error; 130 for Ctrl-C; 0 where nobody reads the output.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError as error:
        drop_output()
        raise typer.Exit(0) from error
    except _CALLERS_MISTAKES as error:
        if show_traceback:
            raise
        message = in_option_terms(_message(error), names)
        _say(f"Error: {message}", "bold red")
        raise typer.Exit(2) from error
    except KeyboardInterrupt as error:
        if show_traceback:
            raise
        stopped = error if isinstance(error, Interrupted) else Interrupted()
        _say(str(stopped), "bold")
        raise typer.Exit(stopped.status) from error


def _say(line: str, style: str) -> None:
    Console(stderr=True).print(Text(line, style=style), soft_wrap=True)


def _message(error: BaseException) -> str:
    # An error of the operating system reads "[Errno 2] No such file or directory: 'x'".
    text = re.sub(r"^\[Errno \d+\] ", "", str(error))
    return " ".join(text.split()) or type(error).__name__


def in_option_terms(message: str, names: Mapping[str, str]) -> str:
    """Rewrites an error of the library in the words of the command line.

    Replaces `num_parts=4` by `--parts 4`, `order=None` by "leaving out --order", a name that the
    message starts with, and any name with an underscore. Paths, shapes and code are unchanged.

    Args:
        message: The library's message.
        names: Options by the names of the library's parameters.

    Returns:
        The message with options.

    >>> in_option_terms("num_parts: got 9; use num_parts=4", {"num_parts": "--parts"})
    '--parts: got 9; use --parts 4'
    """
    for name, option in names.items():
        alone = rf"(?<![\w./-]){name}(?!\w|[./-]\w)"
        message = re.sub(rf"{alone}=None\b", f"leaving out {option}", message)
        message = re.sub(rf"{alone}=(['\"]?)([\w.+-]+)\1", rf"{option} \2", message)
        message = re.sub(rf"^{alone}(?=:| is | = )", option, message)
        if "_" in name:
            message = re.sub(rf"(?<![\[(]){alone}", option, message)
    return message


def command_of(
    options_type: type[Options],
    run: Callable[[Options], None],
    parameters: Mapping[str, str] = MappingProxyType({}),
) -> Callable[..., None]:
    """Makes the function that typer registers: one option for each field of a dataclass.

    Args:
        options_type: A frozen dataclass, its fields annotated with `typer.Option`.
        run: The function of the command; its docstring is the help of the command.
        parameters: The names of the library's parameters, by field, where they differ.

    Returns:
        A function with one keyword argument for each field, and `traceback`.
    """

    field_names = [field.name for field in fields(options_type)]  # pyright: ignore[reportArgumentType]
    names = {parameters.get(name, name): option_name(name) for name in field_names}

    def command(traceback: bool, **values: Any) -> None:
        tolerate_other_encodings()
        with _clean_errors(traceback, names), raised():
            run(options_type(**values))

    hints = get_type_hints(options_type, include_extras=True)
    signature = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_default(field),
            annotation=hints[field.name],
        )
        for field in fields(options_type)  # pyright: ignore[reportArgumentType]
    ]
    signature.append(
        inspect.Parameter(
            "traceback", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=ShowTraceback
        )
    )
    command.__signature__ = inspect.Signature(signature)  # pyright: ignore[reportFunctionMemberAccess]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in signature}
    command.__doc__ = run.__doc__
    return command


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is MISSING else field.default

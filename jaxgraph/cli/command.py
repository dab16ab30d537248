"""Commands whose options are the fields of a frozen dataclass, and whose errors are one line."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from rich.console import Console
from rich.text import Text

__all__ = ["command_of"]

# What is the caller's to mend: a wrong value, a file that is not there, a learning rate that makes
# the loss infinite, kernels that cannot be used here.
_CALLERS_MISTAKES = (ValueError, OSError, FloatingPointError, NotImplementedError)

Options = TypeVar("Options")
ShowTraceback = Annotated[
    bool, typer.Option("--traceback", help="Show where in the code an error came from.")
]


@contextmanager
def _clean_errors(show_traceback: bool) -> Iterator[None]:
    """Turns a mistake of the caller into one red line on standard error and exit code 2.

    Args:
        show_traceback: Let the exception through instead.

    Raises:
        typer.Exit: With code 2, in place of the error that was shown.
    """
    try:
        yield
    except _CALLERS_MISTAKES as error:
        if show_traceback:
            raise
        message = " ".join(str(error).split()) or type(error).__name__
        Console(stderr=True).print(Text(f"Error: {message}", style="bold red"), soft_wrap=True)
        raise typer.Exit(2) from error


def command_of(options_type: type[Options], run: Callable[[Options], None]) -> Callable[..., None]:
    """Makes the function that typer registers: one option for each field of a dataclass.

    Args:
        options_type: A frozen dataclass, its fields annotated with `typer.Option`.
        run: What the command does with the options; its docstring is the help of the command.

    Returns:
        A function with one keyword argument for each field, and `traceback`.
    """

    def command(traceback: bool, **values: Any) -> None:
        with _clean_errors(traceback):
            run(options_type(**values))

    hints = get_type_hints(options_type, include_extras=True)
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_default(field),
            annotation=hints[field.name],
        )
        for field in fields(options_type)  # pyright: ignore[reportArgumentType]
    ]
    parameters.append(
        inspect.Parameter(
            "traceback", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=ShowTraceback
        )
    )
    command.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = run.__doc__
    return command


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is MISSING else field.default

"""The `jaxgraph` program. It imports little before it can be interrupted without a traceback."""

from jaxgraph.cli.interruption import end_quietly

__all__ = ["main"]


def main() -> None:
    """Runs the command line."""
    end_quietly()
    from jaxgraph.cli.main import app
    from jaxgraph.cli.process_group import leaving_at_once

    with leaving_at_once():
        app()

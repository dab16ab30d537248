"""The `jaxgraph` program. It imports little before it can be interrupted without a traceback."""

from jaxgraph.launch.signals import Signals, end_at_once


def main() -> None:
    """Runs the command line."""
    with Signals(end_at_once):
        from jaxgraph.cli.main import app
        from jaxgraph.cli.process_group import leaving_at_once

        with leaving_at_once():
            app()

"""`python -m jaxgraph` is the `jaxgraph` program."""

from jaxgraph.cli.entry import main

if __name__ == "__main__":
    main()

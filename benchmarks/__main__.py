"""Lists the benchmark programs, each with the command that runs it: `python -m benchmarks`."""

import ast
from pathlib import Path

from rich.console import Console
from rich.table import Table


def programs(folder: Path) -> dict[str, str]:
    """First docstring line of every program in the folder, by module name; nothing is imported.

    A program is a module or a package that can be run.
    """
    found = {}
    modules = {path.stem: path for path in folder.glob("*.py")}
    packages = {path.parent.name: path for path in folder.glob("*/__main__.py")}
    for name, path in sorted((modules | packages).items()):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if name.startswith("_") or not _has_main(tree):
            continue
        found[name] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def _has_main(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
        for node in tree.body
    )


def main() -> None:
    """Prints the table of programs."""
    table = Table("command", "what it shows", title="Benchmarks")
    for name, summary in programs(Path(__file__).parent).items():
        table.add_row(f"python -m benchmarks.{name}", summary)
    Console().print(table)


if __name__ == "__main__":
    main()

"""Lists the benchmark programs, each with the command that runs it: `python -m benchmarks`."""

import ast
from pathlib import Path

from rich.console import Console
from rich.table import Table


def programs(folder: Path) -> dict[str, str]:
    """First docstring line of every program in the folder, by module name; nothing is imported."""
    found = {}
    for path in sorted(folder.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if path.stem.startswith("_") or not _has_main(tree):
            continue
        found[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
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

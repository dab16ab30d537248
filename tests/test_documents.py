"""Every Python block of the documents runs; no docstring opens with a question word."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
DOCUMENTED = ("jaxgraph", "pallas_kernels", "benchmarks", "examples")
QUESTION_WORD = re.compile(r"(What|Which|Whether|How|Of (how|what|which))\b")


def blocks() -> list:
    """Every block with the document and the line that it starts at."""
    found = []
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = document.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 2
            code = "\n" * (line - 1) + match[1]
            found.append(pytest.param(document, code, id=f"{document.name}:{line}"))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("document", "code"), blocks())
def test_a_block_runs(document, code):
    exec(compile(code, document, "exec"), {"__name__": "__main__"})


@pytest.mark.slow
def test_docstrings_do_not_open_with_a_question_word():
    """They say "The rows that...", not "Which rows...", and "True where...", not "Whether..."."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = []
    for path in sorted(each for folder in DOCUMENTED for each in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, documented):
                continue
            text = ast.get_docstring(node) or ""
            if QUESTION_WORD.match(text):
                opening = text.splitlines()[0]
                found.append(f"{path.relative_to(ROOT)}:{node.body[0].lineno}: {opening}")
    assert not found, "\n".join(["these docstrings open with a question word:", *found])

"""Every Python block of the documents runs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


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


@pytest.mark.parametrize(("document", "code"), blocks())
def test_a_block_runs(document, code):
    exec(compile(code, document, "exec"), {"__name__": "__main__"})

from pathlib import Path

from benchmarks.__main__ import programs


def test_programs_are_listed_with_their_first_line(tmp_path: Path):
    (tmp_path / "memory.py").write_text(
        '"""Memory per device.\n\nMore of it."""\nif __name__ == "__main__":\n    print()\n'
    )
    (tmp_path / "workloads.py").write_text('"""Imported by the others."""\n')
    (tmp_path / "_private.py").write_text('if __name__ == "__main__":\n    raise SystemExit\n')
    assert programs(tmp_path) == {"memory": "Memory per device."}

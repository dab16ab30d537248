from pathlib import Path

import benchmarks
from benchmarks.__main__ import programs


def test_programs_are_listed_with_their_first_line(tmp_path: Path):
    (tmp_path / "memory.py").write_text(
        '"""Memory per device.\n\nMore of it."""\nif __name__ == "__main__":\n    print()\n'
    )
    (tmp_path / "workloads.py").write_text('"""Imported by the others."""\n')
    (tmp_path / "_private.py").write_text('if __name__ == "__main__":\n    raise SystemExit\n')
    assert programs(tmp_path) == {"memory": "Memory per device."}


def test_a_package_that_runs_is_a_program(tmp_path: Path):
    for name, main in (("cpu", 'if __name__ == "__main__":\n    print()\n'), ("parts", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__main__.py").write_text(f'"""Times.\n\nMore."""\n{main}')
        (tmp_path / name / "table.py").write_text('"""Not a program."""\n')
    assert programs(tmp_path) == {"cpu": "Times."}


def test_the_comparison_on_cpu_is_listed():
    folder = Path(benchmarks.__file__).parent
    assert {"cpu", "memory"} <= programs(folder).keys()

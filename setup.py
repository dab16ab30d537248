"""Builds the CPU kernels beside the package, where a C++17 compiler is found.

The kernels are plain C symbols that know nothing of Python's ABI, so one build serves every Python.
They are compiled against the headers of the oldest jaxlib that is supported: XLA loads a kernel
that was built for an older interface than its own, not one built for a newer.
"""

from __future__ import annotations

import os
import platform
import runpy
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version as installed_version
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

LIBRARY = "jaxgraph.ops.cpu.kernels"
SOURCE = Path("jaxgraph/ops/cpu/source")
RECORD = runpy.run_path("jaxgraph/ops/cpu/build_record.py")
PLAIN_SOURCES = ("levels.cc", "handlers.cc", "attention_handlers.cc", "sampler.cc")
LEVEL_SOURCE = "level.cc"
BASELINE = {"baseline": []}
X86_LEVELS = {
    "avx2": ["-march=x86-64-v3"],
    "avx512": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
}
FLAGS = ["-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-Wno-psabi", "-pthread", "-g0"]
NEWEST_INTERFACE = (0, 3)


def header_folder() -> str:
    """The folder of XLA's headers.

    Raises:
      RuntimeError: no jaxlib is there, or it is newer than the oldest one that is supported.
    """
    try:
        import jaxlib
    except ImportError as error:
        raise RuntimeError("jaxlib, whose headers are needed, is not installed") from error
    folder = Path(jaxlib.__file__).parent / "include"
    text = (folder / "xla/ffi/api/c_api.h").read_text(encoding="utf-8")
    version = tuple(
        int(text.split(f"#define XLA_FFI_API_{part} ", 1)[1].split(maxsplit=1)[0])
        for part in ("MAJOR", "MINOR")
    )
    if version > NEWEST_INTERFACE:
        raise RuntimeError(
            f"jaxlib {installed_version('jaxlib')} has headers of interface {version}, newer than "
            f"{NEWEST_INTERFACE}: build with jaxlib 0.10.2"
        )
    return str(folder)


def levels() -> dict[str, list[str]]:
    """The instruction sets to compile for, with the flags of each."""
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return BASELINE | X86_LEVELS if is_x86 else BASELINE


class BuildKernels(build_ext):
    """Compiles every instruction set on its own and links all into one library."""

    def get_ext_filename(self, fullname: str) -> str:
        """A name without the version of Python."""
        return str(Path(*fullname.split("."))) + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """None: the library is no Python module."""
        return []

    def build_extension(self, ext: Extension) -> None:
        """Compiles and links; a failure leaves the package without the kernels."""
        target = Path(self.get_ext_fullpath(ext.name))
        sources = [path for path in SOURCE.iterdir() if path.suffix in (".h", ".cc")]
        newest = max(path.stat().st_mtime for path in [*sources, Path(__file__)])
        is_known = target.exists() and not RECORD["mismatch"](target, SOURCE)
        if not self.force and is_known and target.stat().st_mtime > newest:
            return
        # Whatever happens from here on, the package does not get an older build.
        for old in (target, RECORD["record_path"](target)):
            old.unlink(missing_ok=True)
        folder = header_folder()
        jobs = [(name, name, ["-isystem", folder]) for name in PLAIN_SOURCES]
        jobs += [
            (LEVEL_SOURCE, level, [*flags, f"-DJAXGRAPH_LEVEL={level}"])
            for level, flags in levels().items()
        ]

        def compile_one(job: tuple[str, str, list[str]]) -> str:
            source, name, flags = job
            folder = str(Path(self.build_temp) / name)
            (compiled,) = self.compiler.compile(
                [str(SOURCE / source)], output_dir=folder, extra_postargs=[*FLAGS, *flags]
            )
            return compiled

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compile_one, jobs))
        target.parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(
            objects, str(target), extra_postargs=["-pthread"], target_lang="c++"
        )
        RECORD["write_record"](target, SOURCE)

    def copy_extensions_to_source(self) -> None:
        """Copies the record as well."""
        super().copy_extensions_to_source()
        library = self.get_ext_filename(LIBRARY)
        built, inplace = (RECORD["record_path"](Path(at, library)) for at in (self.build_lib, "."))
        if built.exists():
            shutil.copyfile(built, inplace)

    def run(self) -> None:
        """Builds, or says in one line why not: every op has another implementation."""
        try:
            super().run()
        except Exception as error:
            print(f"jaxgraph: the CPU kernels were not built: {error}", file=sys.stderr)


class Wheel(bdist_wheel):
    """A wheel for every Python of one platform."""

    def get_tag(self) -> tuple[str, str, str]:
        """Python 3, no ABI, this platform."""
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[Extension(LIBRARY, [], optional=True)],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": Wheel},
)

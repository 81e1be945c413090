"""Programs in C and C++, compiled against the installed headers and library in a folder of their own."""

import ctypes
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import support
import tensorops as tp

support.require_native()

LIBRARY = pathlib.Path(tp.get_library())
ROOT = pathlib.Path(__file__).parents[3]
COMPILERS = {"c": ["cc", "-std=c11"], "cpp": ["c++", "-std=c++17"]}
STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic"]

if not all(shutil.which(command[0]) for command in COMPILERS.values()):
    pytest.skip("there is no compiler of C and C++", allow_module_level=True)


def compiled(source, language, folder, linked=(str(LIBRARY),)):
    file, program = folder / f"program.{language}", folder / "program"
    file.write_text(source, encoding="utf-8")
    where = ["-I", tp.get_include(), *linked, f"-Wl,-rpath,{LIBRARY.parent}", "-lm", "-pthread"]
    subprocess.run([*COMPILERS[language], *STRICT, str(file), *where, "-o", str(program)], check=True)
    return program


def run(program):
    return subprocess.run([program], capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.mark.parametrize("language", COMPILERS)
def test_a_program(language, tmp_path):
    source = ROOT / "native" / "tests" / f"interface.{language}"
    if not source.exists():
        pytest.skip("no C++ sources here")
    assert run(compiled(source.read_text(encoding="utf-8"), language, tmp_path)) == ""


PAGE = ROOT / "docs" / "c.md"


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


with_page = pytest.mark.skipif(not PAGE.exists(), reason="no documentation here")
with_cmake = pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no CMake")


@with_page
def test_the_programs_of_the_page(tmp_path):
    first, every_operator, mine = blocks("c")
    (second,) = blocks("cpp")
    assert run(compiled(first, "c", tmp_path)) == "0.365 2.426\n"
    assert run(compiled(second, "cpp", tmp_path)) == "0.6652\nsoftmax: axis names no axes of x\n"
    listed = run(compiled(every_operator, "c", tmp_path)).splitlines()
    line = "rms_norm: x, weight=None, eps=1e-06, *, axis=-1, weight_offset=0.0 -> y"
    assert line in listed
    assert f"`{line}`" in PAGE.read_text(encoding="utf-8")
    for right, wrong in {'"eps"': '"epsilon"', "length[] = {4}": "length[] = {3}"}.items():
        program = compiled(first.replace(right, wrong), "c", tmp_path)
        said = subprocess.run([program], capture_output=True, text=True).stderr.strip()
        assert f"`{said}`" in PAGE.read_text(encoding="utf-8")
    main = "int main(void) { return register_mine() || tensorops_backend_count() != 2; }"
    assert run(compiled(f"#include <tensorops/backends.h>\n{mine}\n{main}\n", "c", tmp_path)) == ""


@with_page
@with_cmake
def test_the_commands_of_the_page(tmp_path):
    """Run in a folder with the files of the page alone, they print what the page says."""
    (tmp_path / "program.c").write_text(blocks("c")[0])
    (tmp_path / "program.cpp").write_text(blocks("cpp")[0])
    (tmp_path / "CMakeLists.txt").write_text(blocks("cmake")[0])
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    of_a_clone, *commands = blocks("console")
    assert "-S native" in of_a_clone
    assert len(commands) == 2
    for block in commands:
        script = "".join(re.findall(r"^\$ (.*\n)", block, re.M))
        shown = re.sub(r"^\$ .*\n", "", block, flags=re.M)
        done = subprocess.run(
            ["bash", "-ec", script], cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert shown
        assert done.stdout.endswith(shown)


def test_the_name_of_the_library_has_the_version_of_the_interface():
    header = pathlib.Path(tp.get_include(), "tensorops", "backends.h").read_text(encoding="utf-8")
    (version,) = re.findall(r"define TENSOROPS_INTERFACE_VERSION (\d+)", header)
    assert version in LIBRARY.name.split(".")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ELF's libraries")
def test_programs_name_the_version_that_they_need(tmp_path):
    """Also if they are linked by -ltensorops, for which a wheel has a text, as it cannot have a symbolic link."""
    main = "#include <tensorops/backends.h>\nint main(void) { return tensorops_interface_version() != 1; }\n"
    program = compiled(main, "c", tmp_path, ["-L", str(LIBRARY.parent), "-ltensorops"])
    run(program)
    needed = subprocess.run(["readelf", "--dynamic", program], capture_output=True, text=True, check=True).stdout
    assert f"[{LIBRARY.name}]" in needed


@with_cmake
@pytest.mark.parametrize("language", ["C", "CXX"])
def test_projects_find_the_package_of_their_version(language, tmp_path):
    major, minor = map(int, re.findall(r"\d+", tp.__version__)[:2])
    asked = [f"{major}.{minor}", f"{major}.{minor}.0", f"{major}.{minor + 1}", f"{major}.{minor}.99", f"{major + 1}.0"]
    asks = [
        f'find_package(tensorops {version} QUIET)\nmessage(STATUS "{version}: ${{tensorops_FOUND}}")\n'
        for version in [*asked, f"{major}.{minor - 1}"]
    ]
    text = f"cmake_minimum_required(VERSION 3.22)\nproject(user {language})\n{''.join(asks)}"
    (tmp_path / "CMakeLists.txt").write_text(text)
    root = f"-Dtensorops_ROOT={pathlib.Path(tp.get_include()).parent}"
    command = ["cmake", "-S", str(tmp_path), "-B", str(tmp_path / "build"), root]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"-- [\d.]+: (\d)", said) == ["1", "1", "0", "0", "0", "0"], said


def test_the_library_knows_the_operators_of_the_module():
    library = ctypes.CDLL(tp.get_library())
    library.tensorops_operator_at.restype = library.tensorops_signature.restype = ctypes.c_char_p
    names = [library.tensorops_operator_at(i).decode() for i in range(library.tensorops_operator_count())]
    from tensorops.kernels.cpu import _native

    assert {*names, "linear_tuned", "packed_linear"} == set(_native.operators())
    assert library.tensorops_signature(b"silu") == b"x -> y"

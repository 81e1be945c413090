"""Programs in C and C++, compiled against the installed headers and library in a folder of their own."""

import ctypes
import pathlib
import re
import shutil
import subprocess

import pytest

import support
import tensorops as tp

support.require_native()

ROOT = pathlib.Path(__file__).parents[3]
COMPILERS = {"c": ["cc", "-std=c11"], "cpp": ["c++", "-std=c++17"]}
STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic"]

if not all(shutil.which(command[0]) for command in COMPILERS.values()):
    pytest.skip("there is no compiler of C and C++", allow_module_level=True)


def compiled(source, language, folder):
    file, program = folder / f"program.{language}", folder / "program"
    file.write_text(source, encoding="utf-8")
    library = pathlib.Path(tp.get_library())
    where = ["-I", tp.get_include(), str(library), f"-Wl,-rpath,{library.parent}", "-lm", "-pthread"]
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


@pytest.mark.skipif(not PAGE.exists(), reason="no documentation here")
def test_the_programs_of_the_page(tmp_path):
    text = PAGE.read_text(encoding="utf-8")
    first, mine = re.findall(r"```c\n(.*?)```", text, re.DOTALL)
    (second,) = re.findall(r"```cpp\n(.*?)```", text, re.DOTALL)
    assert run(compiled(first, "c", tmp_path)) == "0.365 2.426\n"
    assert run(compiled(second, "cpp", tmp_path)) == "0.6652\nsoftmax: axis is not the last of x\n"
    main = "int main(void) { return register_mine() || tensorops_backend_count() != 2; }"
    assert run(compiled(f"#include <tensorops/backends.h>\n{mine}\n{main}\n", "c", tmp_path)) == ""


@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no CMake")
def test_a_project_finds_the_package(tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\nproject(user CXX)\nfind_package(tensorops REQUIRED)\n"
        "add_executable(user user.cpp)\ntarget_link_libraries(user PRIVATE tensorops::tensorops)\n"
    )
    (tmp_path / "user.cpp").write_text(
        "#include <tensorops/backends.hpp>\nint main() {\n"
        '    return tensorops::BackendRegistry::instance().get_default_backend().get_name() == "cpu" ? 0 : 1;\n}\n'
    )
    prefix = pathlib.Path(tp.get_include()).parent
    build = tmp_path / "build"
    configure = ["cmake", "-S", str(tmp_path), "-B", str(build), f"-DCMAKE_PREFIX_PATH={prefix}"]
    for command in (configure, ["cmake", "--build", str(build)]):
        subprocess.run(command, check=True, capture_output=True)
    run(build / "user")


def test_the_library_knows_the_operators_of_the_module():
    library = ctypes.CDLL(tp.get_library())
    library.tensorops_operator_at.restype = library.tensorops_signature.restype = ctypes.c_char_p
    names = [library.tensorops_operator_at(i).decode() for i in range(library.tensorops_operator_count())]
    from tensorops.kernels.cpu import _native

    assert {*names, "linear_tuned", "packed_linear"} == set(_native.operators())
    assert library.tensorops_signature(b"silu") == b"x -> y"

#!/usr/bin/env bash
# All checks and tests, in the order of what fails fastest; the first failure ends it.
#
# Usage: scripts/test.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

headline() { printf '\n== %s ==\n' "$*"; }

# native_tests DIRECTORY CMAKE_ARGUMENTS...: configures, builds and runs the native unit tests; those that
# need a GPU are scripts/gpu_check.sh's.
native_tests() {
  cmake -B "$1" -DFLEXLEGION_TESTS=ON "${@:2}"
  cmake --build "$1" --target tests
  ctest --test-dir "$1" --output-on-failure --no-tests=error --exclude-regex cuda_tests -j 2
}

headline "setup"
scripts/setup.sh dev
# Of the virtual environment, so that CMake finds its Python, and cmake may come from it, too.
export VIRTUAL_ENV=$PWD/.venv PATH=$PWD/.venv/bin:$PATH
unset PYTHONDONTWRITEBYTECODE # hundreds of processes import the package

headline "ruff"
ruff check .
ruff format --check .

headline "imports between rooms"
lint-imports

headline "mypy"
mypy --strict flexlegion scripts

headline "clang-format"
find native tests/native tests/fuzz tests/soft_gpu -name '*.h' -o -name '*.cc' -o -name '*.cu' |
  sort | xargs -r clang-format --dry-run -Werror

headline "native unit tests"
# Where the installed libraries were built, of whose objects they consist.
native_tests "$(echo build/cp"$(python -c 'import sys; print("%d%d" % sys.version_info[:2])')"-*)"

headline "native unit tests, with sanitizers"
# Without the runtime, which is tested on Legion, from Python.
native_tests build/sanitize -S . -G Ninja -DFLEXLEGION_SANITIZE=ON -DFLEXLEGION_RUNTIME=OFF \
  -DFLEXLEGION_CUDA=OFF

headline "GPU kernels, compiled"
# For one architecture: it is only to be seen that they compile. And once more for a GPU in software,
# with which they are tested on Legion.
cmake -S . -B build/cuda -G Ninja -DFLEXLEGION_RUNTIME=OFF -DFLEXLEGION_TESTS=ON \
  -DCMAKE_CUDA_ARCHITECTURES=90
if grep -q '^CMAKE_CUDA_COMPILER:.*/' build/cuda/CMakeCache.txt; then
  cmake --build build/cuda --target flexlegion_cuda_ops soft_gpu
else
  echo "there is no CUDA compiler here, so they are not compiled"
fi

headline "tests without Legion"
# Two files at a time: most tests keep one core busy, and what a file's tests share is made once.
two_at_a_time=(-n 2 --dist loadfile)
python -m pytest tests -m "not legion" --durations=10 "${two_at_a_time[@]}"

headline "tests on Legion"
python -m pytest tests -m legion --durations=30 "${two_at_a_time[@]}"

#!/usr/bin/env bash
# Checks and tests, in the order of what fails fastest; the first part that fails ends it.
#
# Usage: scripts/test.sh [quick | PART...]
#   (nothing)   everything but core, which python contains
#   quick       lint, types, native and core: what to run before each commit
#
# The parts:
#   lint        the hooks of .pre-commit-config.yaml; they mend what is only badly formatted
#   types       mypy
#   native      native unit tests
#   sanitizers  the same with sanitizers, and the GPU kernels compiled for the host
#   gpu-build   the GPU kernels compiled, by nvcc and for the GPU in software
#   core        tests of the plan, the simulator and the search
#   python      all tests that do not start Legion
#   legion      all tests that do; those of the GPU in software need gpu-build
#
# CONTRIBUTING.md says how long each takes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

everything=(lint types native sanitizers gpu-build python legion)
quick=(lint types native core)
core_tests=(tests/plan tests/sim tests/search tests/cost tests/topology)

fail() {
  printf 'test: %s\n' "$*" >&2
  exit 2
}

# --- the parts ---

part_lint() { SKIP=mypy pre-commit run --all-files --show-diff-on-failure; }

part_types() { pre-commit run --all-files mypy; }

# native_tests DIRECTORY CMAKE_ARGUMENTS...: configures, builds and runs the native unit tests; those that
# need a GPU are scripts/gpu_check.sh's.
native_tests() {
  cmake -B "$1" -DFLEXLEGION_TESTS=ON "${@:2}"
  cmake --build "$1" --target tests
  ctest --test-dir "$1" --output-on-failure --no-tests=error --exclude-regex cuda_tests -j 2
}

# Where the installed libraries were built, of whose objects the tests consist.
part_native() { native_tests "$(installed_build)"; }

# Without the runtime, which is tested on Legion, from Python.
part_sanitizers() {
  native_tests build/sanitize -S . -G Ninja -DFLEXLEGION_SANITIZE=ON -DFLEXLEGION_RUNTIME=OFF \
    -DFLEXLEGION_CUDA=OFF
}

# For one architecture: it is only to be seen that they compile. And once more for a GPU in software,
# with which they are tested on Legion.
part_gpu_build() {
  cmake -S . -B build/cuda -G Ninja -DFLEXLEGION_RUNTIME=OFF -DFLEXLEGION_TESTS=ON \
    -DCMAKE_CUDA_ARCHITECTURES=90
  if grep -q '^CMAKE_CUDA_COMPILER:.*/' build/cuda/CMakeCache.txt; then
    cmake --build build/cuda --target flexlegion_cuda_ops soft_gpu
  else
    echo "there is no CUDA compiler here, so they are not compiled"
  fi
}

# Two files at a time: most tests keep one core busy, and what a file's tests share is made once.
pytest_two_at_a_time() { python -m pytest --durations=10 -n 2 --dist loadfile "$@"; }

part_core() { pytest_two_at_a_time -m "not legion" "${core_tests[@]}"; }

part_python() { pytest_two_at_a_time -m "not legion" tests; }

part_legion() { pytest_two_at_a_time -m legion tests; }

# --- which of them, and what they need ---

installed_build() {
  echo build/cp"$(python -c 'import sys; print("%d%d" % sys.version_info[:2])')"-*
}

set_up() {
  scripts/setup.sh dev
  # Of the virtual environment, so that CMake finds its Python, and cmake may come from it, too.
  export VIRTUAL_ENV=$PWD/.venv PATH=$PWD/.venv/bin:$PATH
  unset PYTHONDONTWRITEBYTECODE # hundreds of processes import the package
  if [[ ! -d $(installed_build) ]]; then # removed since
    rm -f .venv/flexlegion-build
    scripts/setup.sh dev
  fi
}

main() {
  local parts=("$@") part started=0
  [[ $# -gt 0 ]] || parts=("${everything[@]}")
  [[ $* != quick ]] || parts=("${quick[@]}")
  for part in "${parts[@]}"; do
    [[ " ${everything[*]} core " == *" $part "* ]] ||
      fail "there is no part '$part'; the parts are ${everything[*]} and core, and quick stands alone."
  done

  printf '== setup ==\n'
  set_up
  for part in "${parts[@]}"; do
    printf '\n== %s ==\n' "$part"
    started=$SECONDS
    "part_${part//-/_}"
    printf '%s: passed in %d s\n' "$part" $((SECONDS - started))
  done
}

main "$@"

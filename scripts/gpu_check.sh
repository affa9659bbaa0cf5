#!/usr/bin/env bash
# Checks everything that needs a GPU, in under ten minutes and without a network: kernels, operators
# in every precision, mixed strategies, training, tuning, and a short benchmark beside PyTorch.
# Prints a table; exits with 1 if a step failed, and with 2 if there is nothing to check with.
#
# Usage: scripts/gpu_check.sh [--python PYTHON] [--json FILE] [--only STEP,...] [--seconds N]
#                             [--at-once N] [--fbmem MIB] [--built]
#
# The Python (also FLEXLEGION_PYTHON; otherwise that of .venv, or python3) needs legate, cffi, h5py,
# numpy, pillow, rich and, for references and the benchmark, PyTorch; oneDNN, CUDA, cuBLAS and cuDNN
# may be the system's. The native libraries are built into build/gpu.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() {
  printf 'gpu_check: %s\n' "$*" >&2
  exit 2
}

python=${FLEXLEGION_PYTHON:-}
arguments=()
while (($#)); do
  case $1 in
    --python)
      (($# > 1)) || fail "--python needs the path of an interpreter."
      python=$2
      shift
      ;;
    --python=*) python=${1#*=} ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
if [[ -z $python ]]; then
  python=python3
  [[ -x $root/.venv/bin/python ]] && python=$root/.venv/bin/python
fi
python=$(command -v "$python") || fail "there is no Python interpreter of that name; name one with --python."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "$python is older than Python 3.11; name another one with --python."
case " ${arguments[*]-} " in *" --help "* | *" -h "*) exec "$python" "$root/scripts/bench/gpu_check.py" --help ;; esac
# The driver's library makes /dev/nvidiactl also where there is no GPU.
compgen -G '/dev/nvidia[0-9]*' >/dev/null || fail "there is no NVIDIA GPU on this machine."
exec "$python" "$root/scripts/bench/gpu_check.py" ${arguments[@]+"${arguments[@]}"}

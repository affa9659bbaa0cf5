#!/usr/bin/env bash
# From a fresh checkout to a trained network: sets up what is needed, then trains LeNet on the
# handwritten digits that come with flexlegion, data-parallel on up to two CPU processors.
#
# Usage: scripts/quickstart.sh [ARGUMENTS OF scripts/train.py]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/setup.sh run

# legate starts the first python on the path.
export VIRTUAL_ENV=$PWD/.venv PATH=$PWD/.venv/bin:$PATH
cores=$(nproc)
exec legate --cpus "$((cores < 2 ? cores : 2))" --gpus 0 \
  scripts/train.py --model lenet --data digits --strategy data --epochs 15 "$@"

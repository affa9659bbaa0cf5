#!/usr/bin/env bash
# Builds a wheel of flexlegion, and checks that it works where nothing of this checkout is.
#
# Usage: scripts/wheel.sh [--unchecked] [FOLDER]
#
# The wheel is written into FOLDER (dist). Unless --unchecked is given, it is then installed, with
# what it depends on, into a new virtual environment in a folder of its own, where networks are
# listed, a strategy is searched for, and LeNet trains with it for an epoch on the digits that come
# along. That takes some minutes, and 3 GB of disk, which are given back. pip obeys all its usual
# variables.
#
# scripts/setup.sh has to have run: the wheel is built against the legate and oneDNN of .venv, and
# is for that version of Python.
set -euo pipefail

checked=yes
if [[ ${1:-} == --unchecked ]]; then
  checked=no
  shift
fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=$(mkdir -p "${1:-$root/dist}" && cd "${1:-$root/dist}" && pwd)
python=$root/.venv/bin/python

say() { printf 'wheel: %s\n' "$*"; }

[[ -x $python ]] || {
  printf 'wheel: there is no .venv; run scripts/setup.sh first.\n' >&2
  exit 1
}

there=$(mktemp -d)
trap 'rm -rf "$there"' EXIT

say "building"
# The build asks legate for its search paths, which starts it.
PATH=$root/.venv/bin:$PATH LEGATE_CONFIG="--cpus 1 --gpus 0 --sysmem 64" \
  "$python" -m pip wheel "$root" --quiet --no-deps --no-build-isolation --wheel-dir "$there/wheel" \
  --config-settings=cmake.define.FLEXLEGION_CUDA=OFF --config-settings=build-dir="$there/build"
wheel=$(echo "$there"/wheel/flexlegion-*.whl)
cp "$wheel" "$folder/"
say "$folder/$(basename "$wheel"), $(stat -c %s "$wheel") bytes"

[[ $checked == yes ]] || exit 0

say "installing it into a new environment"
"$python" -m venv "$there/env"
"$there/env/bin/python" -m pip install --quiet --upgrade 'pip>=24'
"$there/env/bin/python" -m pip install --quiet "$wheel"

say "using it there"
cd "$there"
unset PYTHONPATH VIRTUAL_ENV
export PATH=$there/env/bin:$PATH FLEXLEGION_PROFILE_DB=$there/profile.db
flexlegion models >models.txt
grep -q '^lenet' models.txt
flexlegion machine show p100x4 >/dev/null
flexlegion search --model nmt --machine p100x4 --budget 2s --out nmt.json >/dev/null
flexlegion explain nmt.json --top 2
flexlegion train --model lenet --data digits --cpus 1 --epochs 1
flexlegion train --model rnnlm --data sample --cpus 1 --epochs 1 >/dev/null
say "works"

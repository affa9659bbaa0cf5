#!/usr/bin/env bash
# Takes what scripts/gpu_check.sh needs to a machine without a network, in one archive.
#
# Usage: scripts/offline.sh pack ARCHIVE [PYTHON [LEGATE]]
#          Here, with a network: ARCHIVE is a .tar.xz of Python packages and oneDNN for Python
#          PYTHON (3.12) and the legate of version LEGATE (26.6.1), and of doctest if it is
#          installed here. Of files that wheels repeat, one is kept.
#        scripts/offline.sh unpack ARCHIVE FOLDER [PYTHON]
#          There: FOLDER becomes a virtual environment of the interpreter PYTHON (python3), which
#          goes on to see its own packages (PyTorch). Then scripts/gpu_check.sh --python
#          FOLDER/bin/python. CUDA, cuBLAS, cuDNN, cmake, ninja and a compiler are the machine's.
set -euo pipefail

fail() {
  printf 'offline: %s\n' "$*" >&2
  exit 2
}

usage() { fail "usage: scripts/offline.sh pack ARCHIVE [PYTHON [LEGATE]] | unpack ARCHIVE FOLDER [PYTHON]"; }

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
packages=(cffi "h5py<3.16" jinja2 markdown-it-py markupsafe mdurl "numpy<2.5" pillow pycparser
  pygments rich safetensors shtab xxhash onednn-devel-cpu-gomp==2023.2.0 onednn-cpu-gomp==2023.2.0
  nvidia-cudnn-frontend)
# Newest first; legate's wheels need the first, oneDNN's is of the last.
platforms=(manylinux_2_28_x86_64 manylinux_2_27_x86_64 manylinux_2_17_x86_64 manylinux2014_x86_64
  manylinux1_x86_64)
dir=
trap '[[ -z $dir ]] || rm -rf "$dir"' EXIT

# Unpacks a wheel as pip would, into the environment's folder; what can be run stays so.
unpack_wheel() {
  local site=$2 data part
  "$here" - "$1" "$site" <<'END'
import os, stat, sys, zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    for entry in wheel.infolist():
        file = wheel.extract(entry, sys.argv[2])
        if not entry.is_dir() and entry.external_attr >> 16 & stat.S_IXUSR:
            os.chmod(file, 0o755)
END
  for data in "$site"/*.data; do
    [[ -d $data ]] || continue
    for part in data purelib platlib; do
      [[ -d $data/$part ]] || continue
      if [[ $part == data ]]; then cp -a "$data/$part/." "$3"; else cp -a "$data/$part/." "$site"; fi
    done
    rm -r "$data"
  done
}

# Wheels cannot hold links, so they repeat libraries under all of their names.
link_repeated() {
  local sum file last='' kept=''
  while read -r sum file; do
    if [[ $sum == "$last" ]]; then
      ln -sfr "$kept" "$file"
    else
      last=$sum kept=$file
    fi
  done < <(find "$1" -name '*.so*' -type f -size +64k -exec sha256sum {} + | sort)
}

pack() {
  local archive=$1 version=${2:-3.12} legate=${3:-26.6.1} env site options
  [[ $archive == *.tar.xz ]] || fail "$archive: the archive's name has to end in .tar.xz."
  [[ -d $(dirname "$archive") ]] || fail "$archive: its folder does not exist."
  here=$root/.venv/bin/python
  [[ -x $here ]] || fail "there is no .venv; run scripts/setup.sh first."
  dir=$(mktemp -d)
  env=$dir/env site=$dir/env/lib/python$version/site-packages
  mkdir -p "$dir/wheels" "$site"
  options=(--quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version "$version")
  for platform in "${platforms[@]}"; do options+=(--platform "$platform"); done
  "$here" -m pip download "${options[@]}" -d "$dir/wheels" "legate==$legate" "${packages[@]}" ||
    fail "pip could not download the packages for Python $version and legate $legate."
  for wheel in "$dir"/wheels/*.whl; do unpack_wheel "$wheel" "$site" "$env"; done
  rm -r "$site"/cudnn "$site"/nvidia_cudnn_frontend-* # its headers are all that is wanted of it
  link_repeated "$env"
  find "$env" -type d \( -name tests -o -name __pycache__ \) -prune -exec rm -r {} +
  if [[ -e /usr/include/doctest/doctest.h && -d /usr/lib/cmake/doctest ]]; then
    mkdir -p "$env/include" "$env/lib/cmake"
    cp -a /usr/include/doctest "$env/include"
    cp -a /usr/lib/cmake/doctest "$env/lib/cmake"
  else
    printf 'offline: without doctest, which is not installed here, kernels are not tested there.\n' >&2
  fi
  tar -C "$env" -cf - . | xz -6 -T0 >"$archive"
  printf 'offline: %s, %s bytes\n' "$archive" "$(stat -c %s "$archive")"
}

unpack() {
  local archive=$1 folder=$2 python=${3:-python3} version
  [[ -r $archive ]] || fail "$archive: there is no such archive."
  [[ ! -e $folder ]] || fail "$folder is there already; name a new folder."
  version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])') ||
    fail "$python cannot be run; name another interpreter."
  tar -tf "$archive" "./lib/$version/site-packages/" >/dev/null 2>&1 ||
    fail "$archive was not packed for $version, which $python is."
  "$python" -m venv --system-site-packages --without-pip "$folder" ||
    fail "$python could not make a virtual environment in $folder."
  tar -C "$folder" -xf "$archive"
  # The packages of a virtual environment's interpreter are not the system's.
  "$python" -c 'import sysconfig; print(f"import site; site.addsitedir({sysconfig.get_path("purelib")!r})")' \
    >"$folder/lib/$version/site-packages/of_interpreter.pth"
  printf 'offline: ready; run scripts/gpu_check.sh --python %s/bin/python\n' "$folder"
}

(($# >= 2)) || usage
case $1 in
  pack) (($# <= 4)) || usage ;;
  unpack) (($# == 3 || $# == 4)) || usage ;;
  *) usage ;;
esac
"$@"

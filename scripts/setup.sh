#!/usr/bin/env bash
# Sets up what flexlegion needs on a Debian or Ubuntu machine: system packages, a virtual
# environment in .venv, and the native libraries. What is there already is left alone, so that
# running it again takes seconds.
#
# Usage: scripts/setup.sh [run|dev] [EXTRA...]
#   run    what training and searching need (the default)
#   dev    what the tests need, too
#   EXTRA  what few need, as pyproject.toml names it: torch, jax, onnx, parquet, ...
#
# The Python packages are stated in pyproject.toml. PyTorch is large; for its CPU build set
# PIP_EXTRA_INDEX_URL to PyTorch's CPU index first. pip obeys all its usual
# variables. FLEXLEGION_PYTHON names the interpreter to use, if it is not the first that fits.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
python=$venv/bin/python
log=$root/build/setup.log
no_network='Temporary failure|Could not resolve|Network is unreachable|NewConnectionError'
profile=run
if [[ ${1:-} == run || ${1:-} == dev ]]; then
  profile=$1
  shift
fi
extras=("$@")

# The versions of Python that the legate wheels are built for.
oldest_minor=11
newest_minor=13
versions="3.$oldest_minor to 3.$newest_minor"

cuda_13_driver=580 # the oldest that runs what CUDA 13 compiles

# Of the virtual environment for cmake and ninja from PyPI, of sbin for ldconfig, which is not on
# every user's path.
export VIRTUAL_ENV=$venv PATH=$venv/bin:$PATH:/usr/sbin:/sbin
export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf 'setup: %s\n' "$*"; }

fail() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

# quietly SENTENCE COMMAND...: runs the command into the log; if it fails, shows the end of what it
# said, and fails with the sentence.
quietly() {
  local sentence=$1 start
  shift
  printf '\n$ %s\n' "$*" >>"$log"
  start=$(wc -l <"$log")
  if ! "$@" >>"$log" 2>&1 </dev/null; then
    tail -n "+$((start + 1))" "$log" | tail -n 25 >&2
    if tail -n "+$((start + 1))" "$log" |
      grep -E "$no_network" >/dev/null; then
      sentence="$sentence, because the network cannot be reached"
    fi
    fail "$sentence (all its output is in build/setup.log)."
  fi
}

# --- system packages ---

as_root() {
  if ((EUID == 0)); then "$@"; else sudo env DEBIAN_FRONTEND=noninteractive "$@"; fi
}

distribution() {
  (
    ID='' ID_LIKE=''
    # shellcheck source=/dev/null
    [[ -r /etc/os-release ]] && . /etc/os-release
    case " $ID $ID_LIKE " in
      *' ubuntu '*) echo ubuntu ;;
      *' debian '*) echo debian ;;
      *) echo "${ID:-unknown}" ;;
    esac
  )
}

# Fails unless apt can be used to install what the first argument names.
need_apt() {
  local system
  system=$(distribution)
  if [[ $system != debian && $system != ubuntu ]]; then
    fail "this system is neither Debian nor Ubuntu, so install by hand: $1."
  fi
  command -v apt-get >/dev/null || fail "there is no apt-get here, so install by hand: $1."
  if ((EUID != 0)) && ! command -v sudo >/dev/null; then
    fail "installing system packages needs root, and there is no sudo; as root, install $1."
  fi
}

apt_updated=no
apt_update() {
  [[ $apt_updated == yes ]] && return
  say "reading the package lists"
  quietly "apt-get could not read the package lists" as_root apt-get update -q
  apt_updated=yes
}

has_candidate() { apt-cache policy "$1" 2>/dev/null | grep 'Candidate: [0-9]' >/dev/null; }

apt_install() {
  say "installing the system packages $*"
  quietly "apt-get could not install $*" \
    as_root apt-get install -q -y --no-install-recommends "$@"
}

# By what a package gives, not by its name: it may have come another way.
present() {
  case $1 in
    ninja-build) command -v ninja ;;
    openmpi-bin) command -v mpirun ;;
    # Legate loads libmpi.so by that very name, which only the package for developers gives.
    libopenmpi-dev) ldconfig -p | grep 'libmpi\.so ' ;;
    chromium-driver) command -v chromedriver ;;
    doctest-dev) ls /usr/include/doctest/doctest.h || ls /usr/local/include/doctest/doctest.h ;;
    *) command -v "$1" ;;
  esac >/dev/null 2>&1
}

python_fits() {
  "$1" - "$oldest_minor" "$newest_minor" >/dev/null 2>&1 <<'EOF'
import sys

sys.exit(not (3, int(sys.argv[1])) <= sys.version_info[:2] <= (3, int(sys.argv[2])))
EOF
}

# Sets base_python to the first interpreter that fits, or to nothing.
base_python=
find_python() {
  local candidate
  if [[ -n ${FLEXLEGION_PYTHON:-} ]]; then
    python_fits "$FLEXLEGION_PYTHON" ||
      fail "FLEXLEGION_PYTHON is $FLEXLEGION_PYTHON, which is no Python $versions."
    base_python=$FLEXLEGION_PYTHON
    return
  fi
  for candidate in "$python" python3 python3.13 python3.12 python3.11 /usr/bin/python3; do
    if python_fits "$candidate"; then
      base_python=$candidate
      return
    fi
  done
}

# The Debian packages that the interpreter lacks to make virtual environments and to compile with.
python_packages() {
  "$1" - <<'EOF'
import importlib.util
import os
import sys
import sysconfig

package = f"python3.{sys.version_info.minor}"
if importlib.util.find_spec("ensurepip") is None:
    print(f"{package}-venv")
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    print(f"{package}-dev")
EOF
}

# Without any Python that fits: the packages of one that the distribution has.
choose_python_packages() {
  local minor
  need_apt "Python $versions with its venv module and headers${missing[*]:+ and ${missing[*]}}"
  apt_update
  for ((minor = newest_minor; minor >= oldest_minor; minor--)); do
    if has_candidate "python3.$minor-venv"; then
      missing+=("python3.$minor" "python3.$minor-venv" "python3.$minor-dev")
      return
    fi
  done
  fail "Python $versions is needed (legate has no wheels for others), and this distribution has" \
    "none; install one and name it in FLEXLEGION_PYTHON."
}

install_system_packages() {
  local package wanted=(g++ cmake ninja-build openmpi-bin libopenmpi-dev)
  [[ $profile == dev ]] && wanted+=(doctest-dev ccache shellcheck chromium chromium-driver)
  missing=()
  for package in "${wanted[@]}"; do
    present "$package" || missing+=("$package")
  done
  find_python
  if [[ -z $base_python ]]; then
    choose_python_packages
  else
    while read -r package; do missing+=("$package"); done < <(python_packages "$base_python")
  fi
  if ((${#missing[@]})); then
    need_apt "${missing[*]}"
    apt_update
    apt_install "${missing[@]}"
    find_python
    [[ -n $base_python ]] || fail "Python $versions is still missing after it was installed."
  fi
}

# --- the NVIDIA driver's library, which legate loads even where it uses no GPU ---

libcuda_present() { ldconfig -p | grep 'libcuda\.so\.1 ' >/dev/null; }

install_libcuda() {
  libcuda_present && return
  local package
  need_apt "the NVIDIA driver's library libcuda.so.1"
  apt_update
  if [[ $(distribution) == debian ]]; then
    package=libcuda1
    has_candidate "$package" || enable_non_free
  else
    package=$(newest_libnvidia_compute)
  fi
  if [[ -z $package ]] || ! has_candidate "$package"; then
    fail "no package with libcuda.so.1 was found; enable the component non-free (Debian) or" \
      "restricted (Ubuntu) in apt's sources."
  fi
  apt_install "$package"
  libcuda_present || fail "libcuda.so.1 is still missing after $package was installed."
}

# Ubuntu's newest driver library. The very newest package can be one that only stands for its
# successor, which another release has: so the newest that could be installed.
newest_libnvidia_compute() {
  local package
  while read -r package _; do
    if apt-get install -s --no-install-recommends "$package" >/dev/null 2>&1; then
      echo "$package"
      return
    fi
  done < <(apt-cache search --names-only '^libnvidia-compute-[0-9]+$' | sort -rV)
}

# Adds Debian's components contrib and non-free in a file of our own, from the same place as main:
# apt refuses two sources for one place that are signed by different keys.
enable_non_free() {
  local own=/etc/apt/sources.list.d/flexlegion-non-free.sources entry uri suite signed=''
  # shellcheck disable=SC2016 # apt fills these in
  while IFS='|' read -r entry uri suite; do
    [[ $suite =~ -(updates|security|backports|proposed) ]] || break
    suite=
  done < <(apt-get indextargets --format '$(SOURCESENTRY)|$(REPO_URI)|$(RELEASE)' \
    'Created-By: Packages' 'Component: main' 'Origin: Debian')
  [[ -n ${suite:-} ]] ||
    fail "apt has no source of Debian's component main, so enable contrib and non-free by hand."
  signed=$(signed_by "${entry%:*}" "${entry##*:}")
  say "enabling Debian's components contrib and non-free in $own"
  printf '%s\n' "Types: deb" "URIs: $uri" "Suites: $suite" "Components: contrib non-free" \
    ${signed:+"$signed"} | as_root tee "$own" >/dev/null
  apt_updated=no
  apt_update
}

# signed_by FILE ENTRY: the field Signed-By of an apt source, the ENTRYth paragraph of a .sources
# file or the ENTRYth line of a .list file; nothing if it has none.
signed_by() {
  if [[ $1 == *.sources ]]; then
    awk -v RS= -v entry="$2" 'NR == entry' "$1" |
      awk '/^[^ \t#]/ { on = tolower($1) == "signed-by:" } on'
  else
    sed -n "$2"'s/.*signed-by=\([^] ]*\).*/Signed-By: \1/p' "$1"
  fi
}

# --- the virtual environment ---

# Hash of the names and contents of files and of all files below directories.
hash_of() {
  local path
  for path in "$@"; do
    if [[ -e $path ]]; then find "$path" -type f -print0; fi
  done | sort -z | xargs -0 -r sha256sum | sha256sum | cut -c 1-32
}

# The packages that pyproject.toml asks for: to build, to run, as dev to test, and for the extras.
requirements() {
  "$python" - "$root/pyproject.toml" "$profile" "${extras[@]}" <<'EOF'
import sys
import tomllib

with open(sys.argv[1], "rb") as file:
    stated = tomllib.load(file)
project = stated["project"]
lines = [*stated["build-system"]["requires"], *project["dependencies"]]
for extra in [*(("dev", "doc") if sys.argv[2] == "dev" else ()), *sys.argv[3:]]:
    lines += project["optional-dependencies"][extra]
print("\n".join(lines))
EOF
}

# Fails unless pyproject.toml has these extras. By its lines, as there may be no Python yet.
check_extras() {
  local extra known
  known=$(sed -n '/^\[project.optional-dependencies\]/,/^\[project.scripts\]/s/^\([a-z]*\) = .*/\1/p' \
    "$root/pyproject.toml" | paste -s -d ' ')
  for extra in "${extras[@]}"; do
    if [[ " $known " != *" $extra "* ]]; then
      printf "setup: there is no extra '%s'; the extras are %s.\n" "$extra" "${known// /, }" >&2
      exit 2
    fi
  done
}

cmake_fits() {
  local version
  version=$(cmake --version 2>/dev/null | sed -n '1s/[^0-9]*//p') || return 1
  [[ -n $version && $(printf '%s\n' 3.24 "$version" | sort -V | head -n 1) == 3.24 ]]
}

make_venv() {
  if ! python_fits "$python"; then
    say "making the virtual environment .venv with $("$base_python" --version)"
    quietly "$base_python could not make a virtual environment" \
      "$base_python" -m venv --clear "$venv"
  fi
}

pip_install() {
  quietly "pip could not install $1" "$python" -m pip install --progress-bar off "${@:2}"
}

install_python_packages() {
  local stamp=$venv/flexlegion-packages key list=$root/build/requirements.txt part missing=()
  key=$(hash_of "$root/pyproject.toml" "$root/scripts/setup.sh")
  # A line for each part that is there. The packages of dev include those of run.
  for part in "$profile" "${extras[@]}"; do
    if [[ ! -e $stamp ]] || ! grep -E "^$key ($part|${part/%run/dev})\$" "$stamp" >/dev/null; then
      missing+=("$part")
    fi
  done
  if ((${#missing[@]})); then
    say "installing the Python packages (${missing[*]}; the first time half a GB or more)"
    requirements >"$list" 2>>"$log" ||
      fail "pyproject.toml does not state the build, run and dev requirements as it should."
    # Older versions than 24 do not resolve nvidia-cupynumeric, which asks for "legate==26.01.*".
    pip_install "a newer pip" --upgrade 'pip>=24'
    pip_install "the Python packages" -r "$list"
    # Of other keys, what was there may have changed.
    { grep "^$key " "$stamp" 2>/dev/null || true; } >"$stamp.new"
    printf "$key %s\n" "${missing[@]}" >>"$stamp.new"
    mv "$stamp.new" "$stamp"
  fi
  if ! cmake_fits; then
    say "installing cmake from PyPI, because 3.24 or newer is needed"
    pip_install "cmake" 'cmake>=3.24'
  fi
}

# Not by /dev/nvidiactl, which the driver's library makes on machines without a GPU, too.
has_gpu() { compgen -G '/dev/nvidia[0-9]*' >/dev/null; }

# The major version of the GPU's driver, or nothing.
driver_version() {
  sed -nE '1s/.* ([0-9]+)\.[0-9]+(\.[0-9]+)? .*/\1/p' /proc/driver/nvidia/version 2>/dev/null || true
}

# What GPU kernels are compiled with: to run them, or, as dev where there is nvcc, to see that they
# compile. Without nvcc, PyPI's, which there is of CUDA 13 alone.
install_cuda_packages() {
  local major=13 driver package packages=(nvidia-cublas nvidia-cudnn-cu13)
  local headers=nvidia-cudnn-frontend
  has_gpu || [[ $profile == dev ]] || return 0
  if command -v nvcc >/dev/null; then
    major=$(nvcc --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
    [[ $major == 12 ]] && packages=(nvidia-cublas-cu12 nvidia-cudnn-cu12)
  elif has_gpu; then
    driver=$(driver_version)
    if [[ -n $driver ]] && ((driver < cuda_13_driver)); then
      say "leaving out GPU kernels: there is no nvcc, and PyPI's is CUDA 13's, which needs a driver" \
        "of version $cuda_13_driver or newer (this one is $driver); install the CUDA 12 toolkit"
      return 0
    fi
    packages+=(nvidia-cuda-nvcc nvidia-cuda-cccl)
  else
    return 0
  fi
  for package in "${packages[@]}"; do
    "$python" -m pip show -q "$package" 2>/dev/null && continue
    say "installing ${packages[*]} (about 1 GB)"
    pip_install "${packages[*]}" "${packages[@]}"
    break
  done
  # Its headers are all that is wanted of it; what its Python code needs (CUTLASS) is left out.
  "$python" -m pip show -q "$headers" 2>/dev/null ||
    pip_install "$headers" --no-deps "$headers"
}

# legate looks for CUDA's runtime library beside its own libraries, not where its wheel puts it.
cure_links() {
  local site library=nvidia/cuda_runtime/lib/libcudart.so.12
  site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  if [[ -d $site/legate/lib64 && -e $site/$library ]] &&
    [[ ! -e $site/legate/lib64/libcudart.so.12 ]]; then
    say "linking CUDA's runtime library into legate"
    ln -sf "../../$library" "$site/legate/lib64/libcudart.so.12"
  fi
}

# --- flexlegion itself ---

build() {
  local stamp=$venv/flexlegion-build key cuda=OFF
  has_gpu && cuda=ON # compiling GPU kernels takes minutes
  key=$(hash_of "$root/pyproject.toml" "$root/CMakeLists.txt" "$root/cmake" "$root/native")
  if [[ ! -e $stamp || $(<"$stamp") != "$key" ]]; then
    say "building the native libraries"
    # Without isolation, since the build links against the legate that is installed here; its
    # requirements are there, and asking pip again would cost seconds at each build.
    # To ask legate (and cupynumeric) for CMake search paths, scikit-build-core imports them, which
    # starts a Legate runtime: the smallest one, or it fails on machines without a GPU.
    LEGATE_CONFIG="--cpus 1 --gpus 0 --sysmem 64" \
      quietly "the native libraries could not be built" \
      "$python" -m pip install --progress-bar off --no-build-isolation --no-deps \
      -C "cmake.define.FLEXLEGION_CUDA=$cuda" -e "$root"
    echo "$key" >"$stamp"
  fi
}

check() {
  # -P: the installed package, not a directory that happens to be the current one.
  quietly "flexlegion was installed but cannot be imported" "$python" -P -c 'import flexlegion'
}

main() {
  [[ -e $root/pyproject.toml ]] || fail "there is no pyproject.toml beside scripts/."
  check_extras
  mkdir -p "$root/build"
  : >"$log"
  install_system_packages
  install_libcuda
  make_venv
  install_python_packages
  install_cuda_packages
  cure_links
  build
  check
  say "ready ($profile${extras[*]:+ ${extras[*]}})"
}

main

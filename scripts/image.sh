#!/usr/bin/env bash
# Installs flexlegion into an image of Debian 12, as root inside of it: scripts/Dockerfile and
# scripts/flexlegion.def run it.
#
# Usage: image.sh FOLDER      of the wheel that scripts/wheel.sh has written
set -euo pipefail

wheels=$1

export DEBIAN_FRONTEND=noninteractive
# Images of Debian have the first of these files, systems that debootstrap makes the second.
for file in /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list; do
  [[ ! -s $file ]] ||
    sed -i -E 's/^(Components: main|deb .* main)$/& contrib non-free/' "$file"
done
apt-get update -q
# libcuda1, which needs packages of contrib: legate loads the driver's library also where it uses no
# GPU. g++ is for kernels of one's own.
apt-get install -q -y --no-install-recommends \
  python3 python3-venv g++ openmpi-bin libopenmpi-dev libcuda1 openssh-client
python3 -m venv /opt/flexlegion
/opt/flexlegion/bin/pip install --no-cache-dir --upgrade 'pip>=24'
/opt/flexlegion/bin/pip install --no-cache-dir "$wheels"/flexlegion-*.whl
# For the legate command itself, which looks for CUDA's runtime library beside its own.
site=$(/opt/flexlegion/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
ln -sf ../../nvidia/cuda_runtime/lib/libcudart.so.12 "$site/legate/lib64/libcudart.so.12"
rm -rf /var/lib/apt/lists/*

#!/usr/bin/env bash
# The CPU kernels compiled for aarch64 and run by QEMU, byte by byte. Debian's cross compiler and emulator
# are installed where they are missing and this user may; usage: scripts/test_processors.sh PYTHON
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:?usage: scripts/test_processors.sh PYTHON}

if ! command -v aarch64-linux-gnu-g++ >/dev/null || ! command -v qemu-aarch64-static >/dev/null; then
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "test_processors: needs g++-aarch64-linux-gnu and qemu-user-static (Debian's names)" >&2
    exit 1
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq g++-aarch64-linux-gnu qemu-user-static >/dev/null
fi
MXFP8_TEST_PROCESSORS=1 "$python" -m pytest -q tests/test_cpu_other_processors.py

#!/usr/bin/env bash
# The CPU kernels compiled for aarch64 and run by QEMU, byte by byte. Debian's cross compiler and emulator
# are installed where they are missing and this user may; usage: scripts/test_processors.sh PYTHON
# Exit code 77: they could not be had, nothing was run.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:?usage: scripts/test_processors.sh PYTHON}

has_tools() { command -v aarch64-linux-gnu-g++ && command -v qemu-aarch64-static; } >/dev/null
install_tools() {
  timeout 300 apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
    timeout 600 apt-get install -y -qq g++-aarch64-linux-gnu qemu-user-static
} >/dev/null
if ! has_tools && ! { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && install_tools && has_tools; }; then
  echo "test_processors: NOT RUN: it needs g++-aarch64-linux-gnu and qemu-user-static (Debian's names)" >&2
  exit 77
fi
MXFP8_TEST_PROCESSORS=1 "$python" -m pytest -q tests/test_cpu_other_processors.py

#!/usr/bin/env bash
# Compiles the Triton kernels to SPIR-V for Intel's pvc, bmg and lnl GPUs, with no GPU.
# Usage: PYTHON=.venv/bin/python scripts/test_xpu_triton.sh [ARCHITECTURE ...]    PYTHON has torch.
# Slow, and not part of the tests: the environment of its own (this Triton has the package name of the
# usual one) takes 1.5 GB.
# Needs g++ and Level Zero's headers: apt-get install g++ libze-dev libze1
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=${MXFP8_TRITON_XPU_VENV:-$PWD/.venv-xpu-triton}
python=${PYTHON:-.venv/bin/python}

if [ ! -e "$prefix/.installed" ]; then
  "$python" -m venv "$prefix"
  "$prefix/bin/pip" install -q --disable-pip-version-check triton-xpu==3.3.0b1 intel-sycl-rt==2026.0.0
  # This Triton imports torch to compile its helper; the other packages there come after its own.
  "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    > "$(echo "$prefix"/lib/python*/site-packages)/torch.pth"
  touch "$prefix/.installed"
fi
# With gcc as CC its helper library does not load: it is C++.
export CC=g++ ZE_PATH=/usr TRITON_CACHE_DIR="$prefix/cache"
exec "$prefix/bin/python" scripts/compile_triton_xpu.py "$@"

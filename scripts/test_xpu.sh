#!/usr/bin/env bash
# Runs the SYCL kernels on Intel's OpenCL CPU device, with no Intel GPU and no oneAPI.
# Usage: scripts/test_xpu.sh [PYTHON]    PYTHON has torch and pytest; default: .venv/bin/python
# Downloads about 480 MB from PyPI into .venv-xpu on first use (1.5 GB on disk). Needs g++.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-.venv/bin/python}
prefix=${MXFP8_SYCL_VENV:-$PWD/.venv-xpu}

# The versions that torch 2.13 for Intel GPUs brings.
if [ ! -e "$prefix/.installed" ]; then
  "$python" -m venv "$prefix"
  "$prefix/bin/pip" install -q --disable-pip-version-check \
    intel-sycl-rt==2026.0.0 intel-opencl-rt==2026.0.0
  touch "$prefix/.installed"
fi

# The driver is named here because the installed .icd file holds a placeholder for its path.
# LD_LIBRARY_PATH counts from the start of a process only: the driver loads more of its libraries.
export MXFP8_TEST_SYCL="$prefix" CMPLR_ROOT="$prefix"
export OCL_ICD_FILENAMES="$prefix/lib/libintelocl.so" OCL_ICD_VENDORS=/nonexistent
export LD_LIBRARY_PATH="$prefix/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" -m pytest -q --durations=5 tests/test_xpu_sycl.py

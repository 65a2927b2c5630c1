#!/bin/sh
# Memory and race checks of the native CUDA kernels under compute-sanitizer (CUDA toolkit).
# Usage: scripts/sanitize_cuda.sh [memcheck] [racecheck] [initcheck] ...    PYTHON=python3 selects the interpreter.
set -eu
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD" PYTORCH_NO_CUDA_MEMORY_CACHING=1
[ $# -gt 0 ] || set -- memcheck racecheck initcheck
for tool in "$@"; do
  echo "== $tool"
  # Only our kernels: torch's own are not what is checked here.
  compute-sanitizer --tool "$tool" --kernel-regex kns=mxfp8 --error-exitcode 1 "${PYTHON:-python3}" scripts/sanitize_cuda.py
done

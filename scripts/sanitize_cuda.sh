#!/bin/sh
# Memory and race checks of the native CUDA kernels under compute-sanitizer (CUDA toolkit).
# Usage: scripts/sanitize_cuda.sh [memcheck] [racecheck] [initcheck] ...    PYTHON=python3 selects the interpreter.
set -eu
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD" PYTORCH_NO_CUDA_MEMORY_CACHING=1
[ $# -gt 0 ] || set -- memcheck racecheck initcheck
# Only our kernels, but for initcheck: it has to see who wrote their input.
only() {
  [ "$1" = initcheck ] || echo "--kernel-name kernel_substring=mxfp8"
}
for tool in "$@"; do
  echo "== $tool"
  compute-sanitizer --tool "$tool" $(only "$tool") --error-exitcode 1 "${PYTHON:-python3}" scripts/sanitize_cuda.py
done

#!/bin/sh
# The whole GPU check on your own card: native libraries, every backend against the reference, GPU tests,
# benchmark.
# Usage: scripts/check_gpu.sh [arguments of benchmarks/gpu.py]      PYTHON=python3 selects the interpreter.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH
"$PYTHON" setup.py build_ext --inplace
"$PYTHON" -m mxfp8_ops verify
"$PYTHON" -m pytest -q -m gpu tests
"$PYTHON" benchmarks/gpu.py "$@"

#!/usr/bin/env bash
# Tests the cute_dsl backend against the real flashinfer-python, on a machine without a GPU.
#
#   scripts/test_flashinfer.sh [flashinfer version]
#
# The default is the oldest version that the backend accepts: it is also the smallest (14 MB). Versions 0.6.14
# to 0.7.0 cannot be imported where torch has no CUDA. Packages are named one by one, without their
# dependencies, because those bring several GB of which neither the import nor the compiler uses anything.
#
# PYTHON  interpreter for the environment (python3)      VENV   where it is made (.venv-flashinfer)
# TORCH   torch requirement (torch==2.13.0)              TORCH_INDEX  its index (pip's own)
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION=${1:-0.6.13}
PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv-flashinfer}
CUTLASS=4.8.1

started=$SECONDS
"$PYTHON" -m venv "$VENV"
pip() { "$VENV/bin/python" -m pip install -q --disable-pip-version-check "$@"; }
pip ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "${TORCH:-torch==2.13.0}"
pip setuptools wheel numpy pytest hypothesis requests tqdm packaging typing-extensions
pip --no-deps "flashinfer-python==$VERSION" apache-tvm-ffi==0.1.15.post2 nvidia-ml-py \
    "nvidia-cutlass-dsl==$CUTLASS" "nvidia-cutlass-dsl-libs-base==$CUTLASS" \
    "nvidia-cutlass-dsl-libs-core==$CUTLASS" "nvidia-cutlass-dsl-libs-cu13==$CUTLASS" \
    cuda-bindings==13.4.4 cuda-pathfinder==1.9.1
echo "test_flashinfer: installed in $((SECONDS - started)) s, $(du -sh "$VENV" | cut -f1)"

# FlashInfer writes a log when imported, and fails where it cannot.
workspace=$(mktemp -d)
trap 'rm -rf "$workspace"' EXIT
started=$SECONDS
MXFP8_OPS_REQUIRE_FLASHINFER=1 FLASHINFER_WORKSPACE_BASE=$workspace PYTHONPATH=$PWD \
    "$VENV/bin/python" -m pytest -q -p no:cacheprovider tests/test_flashinfer_real.py
echo "test_flashinfer: tested in $((SECONDS - started)) s"

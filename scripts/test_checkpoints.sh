#!/usr/bin/env bash
# Converted checkpoints read by the real compressed-tensors and by transformers.
#
#   scripts/test_checkpoints.sh [PYTHON]      a Python with torch, transformers and the test packages
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${1:-python3}
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
# Without dependencies: torch and transformers are those of PYTHON.
"$PYTHON" -m pip install -q --disable-pip-version-check --no-deps --target "$site" \
    compressed-tensors==0.20.1 loguru==0.7.3
"$PYTHON" -m pip install -q --disable-pip-version-check --target "$site" psutil 'pydantic>=2.11'
MXFP8_OPS_REQUIRE_COMPRESSED_TENSORS=1 PYTHONPATH="$PWD:$site" \
    "$PYTHON" -m pytest -q -p no:cacheprovider tests/test_checkpoint_readers.py

#!/usr/bin/env bash
# vLLM's own readers and reference kernels, from its wheel, against ours; 340 MB of downloads, not part of CI.
#
#   scripts/test_checkpoint_engines.sh [PYTHON]      a Python with torch and transformers
#
# Only the Python files of the wheel are unpacked: its kernels need CUDA and are not called.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${1:-python3}
VLLM=0.33.0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pip() { "$PYTHON" -m pip "$@" -q --disable-pip-version-check --no-deps; }
pip download -d "$work" "vllm==$VLLM"
"$PYTHON" - "$work" <<'PY'
import pathlib, sys, zipfile
work = pathlib.Path(sys.argv[1])
with zipfile.ZipFile(next(work.glob("vllm-*.whl"))) as wheel:
    wheel.extractall(work / "site", [n for n in wheel.namelist() if n.endswith((".py", "METADATA"))])
PY
# What importing vLLM's quantization configurations needs, without torch's own dependencies.
pip install --target "$work/site" compressed-tensors==0.20.1 loguru psutil pydantic pydantic-core annotated-types \
    typing-inspection pyzmq cbor2 aiohttp aiohappyeyeballs aiosignal frozenlist multidict yarl propcache attrs \
    cloudpickle msgspec cachetools uvloop py-cpuinfo pybase64 fastapi starlette openai openai-harmony sniffio \
    apache-tvm-ffi prometheus-client xgrammar opentelemetry-api opentelemetry-sdk \
    opentelemetry-semantic-conventions partial-json-parser llguidance einops
VLLM_TARGET_DEVICE=cpu PYTHONPATH="$PWD:$work/site" "$PYTHON" scripts/checkpoint_engines.py

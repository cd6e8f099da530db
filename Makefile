# make demo        attach to a running job, and check that it was left unharmed
# make test        what CI runs: lint, types, import contracts, tests
# make test-long   the tests that are too long for CI; about twenty minutes
# make test-gpu    the tests that need an NVIDIA GPU; see CONTRIBUTING.md
# make docs        regenerate docs/reference/ from the code
#
# Everything is installed into $(VENV), and not compiled, because few of torch's 2,000 files are used.
# Variables, from the environment or the command line:
#   PYTHON=python3.12     the interpreter to use; by default the first of python3, python3.13 … python3.10 that fits
#   TORCH_INDEX=URL       set to the CPU wheel index of your choice; by default pip decides, and on Linux its usual
#                         index offers CUDA builds of several gigabytes
#   JOBS=3                test files at a time; on two cores the third one saves two of twelve minutes
#   TORCH='torch==2.13.0' the torch that the demo and the tests use

VENV ?= .venv
JOBS ?= 3
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
FITS := import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.10; do \
	$$p -c '$(FITS)' 2>/dev/null && echo $$p && break; done)

# With this set, every process that imports torch compiles its 800 modules again: 4 s of CPU time instead of 2.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
TORCH_FROM := $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))

.PHONY: demo test test-long test-gpu gpu-wheels gpu-site lint types arrows docs
.SILENT:

demo: $(VENV)/.demo
	$(BIN)/python docs/demo/demo.py

# Files are taken in the order of the tree: long ones come first, and the short ones in tests/unit fill the end.
# A test runs a second time, at once and alone, only if it is marked busy_machine and nothing else has failed: exit code 10.
# Types are checked beside the first tests, and what is wrong with them is shown behind the tests.
test: lint arrows
	echo "mypy --strict, beside the tests"; $(BIN)/mypy > $(VENV)/mypy.log & typed=$$!; \
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder; code=$$?; \
	wait $$typed || { cat $(VENV)/mypy.log; exit 1; }; [ $$code -eq 10 ] || exit $$code; \
	echo "a second time, alone:"; $(BIN)/python -m pytest --last-failed

test-long: $(VENV)/.test
	$(BIN)/python -m pytest -m long

# Installs nothing: torch with CUDA is there already, in the environment of the project or in the system's Python.
# The dependencies are in that environment as well, or in $(GPU_SITE).
GPU_PYTHON ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,python3)
GPU_WHEELS ?= .gpu/wheels
GPU_SITE ?= .gpu/site

test-gpu:
	PYTHONPATH=$(abspath $(GPU_SITE)):$$PYTHONPATH $(GPU_PYTHON) -m pytest tests/gpu -rs --durations=10 --session-timeout=900

# For a machine with a GPU and no network: fetch the wheels here, take them there with the project, and unpack them.
gpu-wheels:
	$(GPU_PYTHON) -m pip download --quiet --dest $(GPU_WHEELS) --no-deps --only-binary=:all: --implementation cp \
		--python-version 3.12 $(foreach glibc,2_17 2_27 2_28,--platform manylinux_$(glibc)_x86_64) \
		--platform manylinux2014_x86_64 --platform manylinux1_x86_64 --requirement tests/gpu/requirements.txt
	du -sh $(GPU_WHEELS)

gpu-site:
	$(GPU_PYTHON) -m pip install --quiet --no-index --no-deps --find-links $(GPU_WHEELS) --target $(GPU_SITE) \
		--requirement tests/gpu/requirements.txt

lint: $(VENV)/.test
	echo "ruff" && $(BIN)/ruff check

types: $(VENV)/.test
	echo "mypy --strict" && $(BIN)/mypy

arrows: $(VENV)/.test
	echo "import contracts" && $(BIN)/lint-imports --no-cache

docs: $(VENV)/.test
	$(BIN)/python docs/generate.py

$(VENV)/.python:
	test -n "$(PYTHON)" || { echo "no Python 3.10 to 3.13 found; name one: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { echo "no venv: on Debian and Ubuntu, apt install python3-venv" >&2; exit 1; }
	touch $@

$(VENV)/.torch: $(VENV)/.python
	echo "installing $(TORCH) into $(VENV)"
	-$(PIP) install --dry-run --no-deps --quiet --report - $(TORCH_FROM) "$(TORCH)" 2>/dev/null \
		| $(BIN)/python docs/demo/warn_of_cuda.py
	$(PIP) install --quiet --no-compile $(TORCH_FROM) "$(TORCH)"
	touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	echo "installing Probe into $(VENV)"
	$(PIP) install --quiet --no-compile --editable .
	touch $@

$(VENV)/.test: $(VENV)/.demo
	echo "installing the test requirements into $(VENV)"
	$(PIP) install --quiet --no-compile --editable ".[dev]"
	touch $@

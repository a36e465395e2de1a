# What there is to do here: `make` alone lists it.
#
# Everything is made on first use: a virtual environment in .venv, the compiled modules in
# kafkalite/_ext.  All that a machine must have is Python 3.11 or newer, a C compiler and make.

PYTHON ?= $(shell for v in 3.19 3.18 3.17 3.16 3.15 3.14 3.13 3.12 3.11 3; do \
	python$$v -c "" 2>/dev/null && command -v python$$v && exit; done)
CC ?= cc
ARGS ?=
ISOLATION ?=
COPYING ?=
PERTURBING ?=
STREAMING ?=
SHARING ?=
# Tests wait as much as they compute: more processes than cores keep two cores busy.
JOBS ?= 4
# How much `make fuzz` does.
CONNECTS ?= 5e4
FRAMES ?= 1e6
RUNS ?= 1e8

# The tests start thousands of processes: each would compile what it imports, if the environment
# kept the first from leaving it compiled.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
SOURCES := setup.py $(wildcard ext/*/*.pyx ext/*/*.pxd ext/*/*.pxi ext/*/*.h)

.DEFAULT_GOAL := help
.PHONY: help start demo build check quick test test-spark clients bench oracle faults disks fuzz
.PHONY: docs reference model wheel pythons clean

help:
	@echo "make start      run the broker in the foreground (ARGS='--listen 127.0.0.1:0 …')"
	@echo "make demo       stream real flights through a broker and check that all arrive"
	@echo "make test       the checks and the tests"
	@echo "make quick      the fast tests: units, twins and architecture, in a minute on two cores"
	@echo "make check      ruff, mypy, cython-lint and the architecture tests"
	@echo "make build      the compiled modules"
	@echo "make test-spark  the Spark connector's tests, its long ones among them, in one process"
	@echo "make clients    every scenario through every client, in both shapes of a broker; some replicated"
	@echo "make bench      the benchmarks, beside Apache Kafka"
	@echo "make oracle     the same requests to Apache Kafka and to us"
	@echo "make faults     processes killed, stopped and moved under load: a quarter of an hour; then"
	@echo "                a healthy client beside hostile ones over 5,000 partitions: 10 minutes;"
	@echo "                then exactly-once copies and counts under kills"
	@echo "make model      the TLA+ model of replication, by TLC: five minutes (ARGS=--long: larger)"
	@echo "make disks      full disks, torn writes, failing system calls"
	@echo "make fuzz       random bytes into decoders and sockets: hours (RUNS, FRAMES, CONNECTS)"
	@echo "make pythons    the tests on CPython 3.13 and 3.14, from Debian's packages (as root)"
	@echo "make docs       the site of the documentation, in build/site"
	@echo "make reference  update the generated pages, and the types of the clients' keywords"
	@echo "make wheel      a source distribution and a manylinux wheel, in dist, tested in empty environments"
	@echo "make clean      remove all that was made"

start: build
	@$(BIN)/kafkalite start $(ARGS)

demo: build .venv/demo
	@$(BIN)/kafkalite demo $(ARGS)

build: .venv/built

check: build .venv/developer
	$(BIN)/ruff check .
	$(BIN)/mypy
	PATH="$(CURDIR)/$(BIN):$$PATH" cython-lint ext
	$(BIN)/python -m pytest -q tests/test_architecture.py

# Chosen by measured time; hypothesis tries fewer examples than in `make test`.
quick: build .venv/developer
	$(BIN)/python -m pytest -q -n 2 --hypothesis-profile=quick $(addprefix tests/, \
		test_architecture.py test_twins.py test_errors.py test_clock.py test_package.py config \
		records protocol coordination storage) $(ARGS)

test: check
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal --ignore=tests/test_architecture.py $(ARGS)

test-spark: build .venv/developer
	$(BIN)/python -m pytest -q -m "spark or not spark" tests/spark \
		tests/test_examples.py::test_spark_report \
		tests/test_docs_python.py::test_spark_examples_run_as_one_job \
		"benchmarks/test_tiny.py::test_benchmark_writes_its_figures[spark]" $(ARGS)

clients: build .venv/developer
	CONFORMANCE_WHOLE=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal \
		tests/conformance $(ARGS)

bench: build .venv/developer
	$(BIN)/python -m benchmarks $(ARGS)

oracle: build .venv/developer
	$(BIN)/python -m pytest -q -m oracle tests $(ARGS)

faults: build .venv/developer
	$(BIN)/python -m tests.faults all --minutes 15 $(ARGS)
	$(BIN)/python -m tests.faults.isolation $(ISOLATION)
	$(BIN)/python -m tests.faults.copying $(COPYING)
	$(BIN)/python -m tests.faults.perturbing $(PERTURBING)
	$(BIN)/python -m tests.faults.streaming $(STREAMING)
	$(BIN)/python -m tests.faults.sharing $(SHARING)

model: build .venv/developer
	$(BIN)/python -m tests.model $(ARGS)

disks: build .venv/developer
	$(BIN)/python -m pytest -q -m faults -n $(JOBS) tests $(ARGS)

fuzz: build .venv/developer
	$(BIN)/python -m tests.fuzz.connects --connects $(CONNECTS)
	$(BIN)/python -m tests.fuzz.sockets --frames $(FRAMES)
	$(BIN)/python -m tests.fuzz.decoders --runs $(RUNS)
	$(BIN)/python -m pytest -q -m fuzz tests $(ARGS)
	$(BIN)/python -m pytest -q --hypothesis-profile=deep tests/test_twins.py tests/records \
		tests/storage/test_segment_walk.py $(ARGS)

pythons:
	@RELEASES="$(RELEASES)" JOBS=$(JOBS) sh tools/pythons.sh $(ARGS)

docs: build .venv/docs
	PATH="$(CURDIR)/$(BIN):$$PATH" NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q --strict $(ARGS)
	@echo "the site: build/site/index.html"

# The wheel is built from the source distribution, which so proves to be complete.
wheel: build .venv/developer .venv/release
	rm -rf dist build/dist && mkdir -p dist
	$(BIN)/python -m build --no-isolation --outdir build/dist .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --strip --wheel-dir dist build/dist/*.whl
	cp build/dist/*.tar.gz dist
	KAFKALITE_WHEEL="$$(ls dist/*.whl)" $(BIN)/python -m pytest -q -m "spark or not spark" \
		tests/test_installation.py $(ARGS)
	@ls -l dist

reference: build .venv/developer
	$(BIN)/python -m tools.gen_reference
	$(BIN)/python -m tools.gen_keywords

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	rm -f kafkalite/_ext/*.so ext/*/*.c
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What was made, each with a file that says so.

.venv/made:
	@sh tools/machine_ready.sh "$(PYTHON)" "$(CC)"
	@echo "making .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv
	@$(PIP) install --upgrade pip "setuptools>=77" "cython>=3.1"
	@touch $@

.venv/installed: .venv/made pyproject.toml
	@echo "installing kafkalite into .venv, and building its compiled modules"
	@$(PIP) install --no-build-isolation -e .
	@# Spark looks for its sources on sys.path, where an editable install puts nothing.
	@$(BIN)/python -c "import pathlib, sysconfig; pathlib.Path( \
		sysconfig.get_path('purelib'), 'pyspark_kafkalite.pth').write_text('$(CURDIR)/spark\n')"
	@touch $@

.venv/demo: .venv/installed
	@$(PIP) install --no-build-isolation -e '.[demo]'
	@touch $@

.venv/docs: .venv/installed
	@echo "installing what the site of the documentation needs"
	@$(PIP) install --no-build-isolation -e '.[docs]'
	@touch $@

.venv/release: .venv/installed
	@echo "installing what a release needs"
	@$(PIP) install --no-build-isolation -e '.[release]'
	@touch $@

.venv/developer: .venv/installed
	@echo "installing what the tests need"
	@$(PIP) install --no-build-isolation -e '.[dev]'
	@touch $@ .venv/demo

# A stamp without its modules proves nothing.
ifneq ($(words $(wildcard kafkalite/_ext/*.so)),$(words $(wildcard ext/*/*.pyx)))
.PHONY: .venv/built
endif
.venv/built: .venv/installed $(SOURCES)
	@$(BIN)/python setup.py -q build_ext --inplace
	@touch $@

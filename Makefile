# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0

# Needs only python3 (3.11 or newer) with pip and venv. Every target sets itself up in .venv.
# All paths are relative, so the checkout may lie in a folder with spaces in its name.

PYTHON ?= python3
PY := .venv/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet install
CODE := sidecar trainer tests benchmarks alerts dashboards manifests release docs_site setup.py
PURE := $(notdir $(wildcard $(addprefix sidecar/mwatch/,model parse state detect decide checks classifier manifests plan flight_recorder)))
# A new package or a new version changes what the installation must know.
INSTALLED := pyproject.toml $(wildcard sidecar/*/__init__.py trainer/*/__init__.py)

# `make COV=1 test` also measures the coverage of the pure packages.
COVERAGE := $(if $(COV),$(foreach p,$(PURE),--cov=mwatch.$(p)) --cov-report=term-missing)

# Most tests wait for processes, so there are two workers for each core; more than eight only load
# the same modules once more. `make WORKERS=0 test` runs all in one process.
CORES := $(shell nproc 2>/dev/null || echo 2)
WORKERS ?= $(shell test $(CORES) -lt 4 && echo $$((2 * $(CORES))) || echo 8)

# Goals run one after the other even under -j: `make -j clean test` has one meaning.
.NOTPARALLEL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo test test-long test-cluster test-healthy check bench bench-cluster scorecard judge classifier pictures docs pyz dist lock audit clean FORCE

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)$$/\1	\2/p' Makefile | expand -t 15

demo: .venv/demo ## train a real small GPT, break it in five ways, see it come back (QUICK=1: two)
	@.venv/bin/mwatch demo --real $(if $(QUICK),--quick)

# Whole trainings with torch, real launchers, runs in trouble, all public logs, a browser, Prometheus
# and a built release.
LONG := tests/browser tests/cli/test_demo_command.py tests/cli/test_run_launchers.py \
	tests/cli/test_run_disks.py tests/cli/test_run_extremes.py tests/cli/test_run_trouble.py tests/gpt \
	tests/kills tests/monitoring tests/public/test_all_cases.py tests/release \
	tests/run/test_unattended.py \
	tests/trainer/wrapper/test_hanging_disk.py
PYTEST := $(PY) -m pytest -q -n $(WORKERS) --dist loadfile

# Each worker and each process that a test starts would compile our modules anew.
test test-long: export PYTHONDONTWRITEBYTECODE :=
test: .venv/dev .venv/demo .venv/launchers ## run the tests but those of test-long and check (COV=1: with coverage)
	@PYTHONPATH=tests $(PY) -m cluster.binaries
	$(PYTEST) $(addprefix --ignore=,$(LONG) tests/contract) $(COVERAGE)

test-long: .venv/dev .venv/demo .venv/launchers ## real trainings, launchers, browser, Prometheus, release (5 minutes)
	$(PYTEST) $(LONG)

test-cluster: .venv/dev .venv/demo ## the tests that need a Kubernetes: made here (root, Go), or MWATCH_TEST_KUBECONFIG
	@PYTHONPATH=tests $(PY) -m cluster

test-healthy: .venv/dev ## odd but healthy runs under `mwatch run --act`, none of which may be restarted (3 minutes)
	MWATCH_HEALTHY_TESTS=1 $(PY) -m pytest -q tests/healthy

check: .venv/dev ## lint, formatting, types, layers of imports, contract tests
	$(PY) -m ruff check $(CODE)
	$(PY) -m ruff format --check $(CODE)
	$(PY) -m mypy --strict $(CODE)
	.venv/bin/lint-imports
	$(PY) -m pytest -q tests/contract

bench: .venv/dev .venv/demo ## run the benchmarks
	PYTHONPATH=tests $(PY) -m benchmarks

bench-cluster: .venv/dev ## the controller on 64, 512 and 2,048 simulated pods (root, Go; QUICK=1: 64)
	PYTHONPATH=tests $(PY) -m benchmarks.cluster $(if $(QUICK),--pods 64 --rest 20)

# One run again, with its story: PYTHONPATH=tests .venv/bin/python -m sim --seed N --verbose
RUNS ?= 10000
SEED ?= 1
JOBS ?= 2

scorecard: .venv/dev ## judge mwatch on simulated jobs (RUNS=10000 SEED=1 JOBS=2): SCORECARD.md
	PYTHONPATH=tests $(PY) -m sim --runs $(RUNS) --seed $(SEED) --jobs $(JOBS) --out SCORECARD.md

judge: .venv/dev ## judge mwatch on public failure logs (CASES="words": only those)
	@PYTHONPATH=tests $(PY) -m public $(CASES)

classifier: .venv/dev .venv/classifier ## train the models that read saved logs on the public ones (3 minutes)
	@PYTHONPATH=tests $(PY) -m public.train

pictures: .venv/dev .venv/demo ## take the pictures of the pages in docs/ from a real run, in Chromium (4 minutes)
	@PYTHONPATH=tests $(PY) -m browser docs

# A warning is an error: a broken link, a page in no menu. No page may ask another host for anything.
docs: export NO_MKDOCS_2_WARNING := 1
docs: .venv/docs ## build the documentation as a site: site/index.html
	@$(PY) -m mkdocs --quiet build --strict --site-dir site
	@$(PY) -m docs_site.offline site

pyz: .venv/core ## the wrapper for training images as one file: dist/mwatch-run.pyz
	@mkdir -p dist && $(PY) -m mwatch_trainer.zipapp_build dist/mwatch-run.pyz

dist: .venv/dev ## all files of a release: wheel, sdist, wrapper, charts, image, krew, SBOM, checksums (IMAGE=0: no image)
	@$(PY) -m release.build dist $(if $(filter 0,$(IMAGE)),--without-image)

# The packages of the image, with hashes, for every Python and machine that it may have.
DOCKER := manifests/docker
COMPILE := .venv/tools/bin/uv pip compile --quiet --no-header --universal --python-version 3.11 --generate-hashes --upgrade
SPDX := '\# SPDX-FileCopyrightText: The mwatch authors\n\# SPDX-License-Identifier: Apache-2.0\n\# Written by `make lock`.\n'

lock: .venv/core .venv/tools/done ## write the lock files of the image anew, with the newest versions: manifests/docker/*.lock
	@printf $(SPDX) > $(DOCKER)/requirements.lock
	@$(COMPILE) --extra data --extra notify --extra otlp pyproject.toml >> $(DOCKER)/requirements.lock
	@printf $(SPDX) > $(DOCKER)/build.lock
	@$(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"])' \
	    | $(COMPILE) - >> $(DOCKER)/build.lock

audit: .venv/dev .venv/tools/done ## known vulnerabilities of the packages in the image (pip-audit)
	@$(PY) -m release.audit .venv/tools/bin/pip-audit

clean: ## remove .venv, caches and build leftovers
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage .coverage.*
	rm -rf htmlcov build dist site *.egg-info
	find $(CODE) -type d \( -name __pycache__ -o -name '*.egg-info' \) -prune -exec rm -rf {} +

# .venv/core holds the path of the checkout it was made in. A copied or moved .venv still points
# at its old checkout, so it is made again.
ifneq ($(shell cat .venv/core 2>/dev/null),$(CURDIR))
.venv/core: FORCE
endif

.venv/core: $(INSTALLED)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo 'mwatch needs Python 3.11 or newer: install it, or name it with make PYTHON=...' >&2; \
	    exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo 'mwatch needs the Python module venv: install it (Debian: python3-venv)' >&2; exit 1; }
	@echo 'mwatch: setting up .venv (under a minute)' >&2
	@test -e $@ && test "$$(cat $@)" = "$$(pwd -P)" && $(PY) -c '' || $(PYTHON) -m venv --clear .venv
	@$(PIP) --editable .
	@pwd -P > $@

.venv/dev: .venv/core
	@echo 'mwatch: adding the tools for development to .venv (under a minute)' >&2
	@$(PIP) --editable '.[dev]'
	@touch $@

.venv/demo: .venv/core
	@echo 'mwatch: adding torch and megatron-core to .venv (4.7 GB, some two minutes)' >&2
	@$(PIP) --editable '.[demo]'
	@touch $@

.venv/classifier: .venv/core
	@echo 'mwatch: adding scikit-learn to .venv (60 MB, under a minute)' >&2
	@$(PIP) --editable '.[classifier]'
	@touch $@

.venv/docs: .venv/core
	@echo 'mwatch: adding mkdocs-material to .venv (50 MB, under a minute)' >&2
	@$(PIP) --editable '.[docs]'
	@touch $@

# Apart from the rest: their dependencies are not ours.
.venv/tools/done: .venv/core
	@echo 'mwatch: setting up uv and pip-audit (under a minute)' >&2
	@$(PYTHON) -m venv --clear .venv/tools
	@.venv/tools/bin/python -m pip --disable-pip-version-check --quiet install 'pip-audit>=2.9,<3' 'uv>=0.8,<1'
	@touch $@

.venv/launchers: .venv/demo
	@echo 'mwatch: adding accelerate, deepspeed and ray for tests to .venv (100 MB, a minute)' >&2
	@$(PIP) --editable '.[demo,launchers]'
	@touch $@

FORCE:

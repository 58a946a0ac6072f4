# Two commands on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SEED ?= 0
DEMO := runs/demo-seed$(SEED)

.PHONY: demo test test-slow lint clean

demo: $(STAMP)
	$(BIN)/dvrl train mountain-hike --agent dvrl --preset quick --sigma 3 --seed $(SEED) --device cpu --out $(DEMO)
	$(BIN)/dvrl show $(DEMO)
	@echo "Open $(DEMO)/report.html"

test: lint
	$(BIN)/python -m pytest -n 2

# 20 kill points for each agent.
test-slow: $(STAMP)
	DVRL_KILLS=20 $(BIN)/python -m pytest -n 2 tests/runs/test_resume.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/basedpyright

# torch first: its pinned version decides what else is pulled in.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV)

# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
SEED ?= 0
# Further options of `tracegrad bench`, as in `make bench BENCH="--calls 100000"`.
BENCH ?=
# How many processes run the tests side by side: more than two cores, as many tests wait for processes that they start.
TEST_PROCESSES ?= 3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALLED := $(VENV)/.installed

.PHONY: install demo bench test lint format clean

install: $(INSTALLED)

$(INSTALLED): constraints/torch.txt constraints/cpu.txt pyproject.toml otel-config/agent/pyproject.toml
	@echo "== installing pinned versions into $(VENV): about 4 GB, a few minutes =="
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -r constraints/torch.txt
	$(PIP) install --no-deps -r constraints/cpu.txt
	$(PIP) install --no-deps --no-build-isolation -e otel-config/agent -e .
	@touch $@

demo: $(INSTALLED)
	$(BIN)/tracegrad demo --seed $(SEED)

bench: $(INSTALLED)
	$(BIN)/tracegrad bench all --report bench-report $(BENCH)

test: $(INSTALLED)
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadscope --no-loadscope-reorder

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .tracegrad demo-report bench-report

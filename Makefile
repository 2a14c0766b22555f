# The chores. Each one is a command that a person or continuous integration runs as it is.
# Needs only python3 (3.11 or later) and make; everything else goes into .venv inside this checkout.

PYTHON ?= python3
BIN    := .venv/bin

TORCH  ?= 2.13.0
CAPTURE_TESTS := transformers "pytest>=9.0" "pytest-xdist>=3.6" "hypothesis>=6.112" "sybil>=8.0"

# What Weft keeps between runs stays inside the checkout, too.
export WEFT_CACHE := $(CURDIR)/.venv/cache

.PHONY: help demo test test-capture test-matrix check slow lint docs engine validate figures questions gallery vega golden bench mutants wheel clean

help:
	@echo "make demo      run the T3 study and write its report to out/t3/report.html"
	@echo "make test      run the checks for every change: style, types, imports, documentation, tests"
	@echo "make check     the same, and what takes longer: whole studies, published figures, measurements"
	@echo "make test-capture  run the tests of captured PyTorch models in an environment of their own"
	@echo "make test-matrix  run golden runs and commands on Python 3.11 to 3.13, and with the lowest dependencies"
	@echo "make lint      run the checks of style, types and imports only"
	@echo "make docs      build the documentation into out/docs"
	@echo "make validate  set the models beside public measurements, and write the page of today's errors"
	@echo "make slow      only what make check runs beyond make test"
	@echo "make golden    write the figures of the small golden runs anew"
	@echo "make figures   repeat all studies, and write their figures: docs/figures/*.csv, docs/deviations.md"
	@echo "make gallery   draw the pictures of docs/gallery.md anew"
	@echo "make vega      write the Vega of the pages, src/weft/view/vega.js, anew"
	@echo "make bench     measure the simulator's speed, beside its peers"
	@echo "make mutants   plant errors one at a time, and name the tests that see them"
	@echo "make wheel     build a wheel that brings the engine's machine code for processors like this one"
	@echo "make clean     remove .venv, out and all caches"

demo: .venv/ready-to-use
	@echo "== one sub-layer: T-NLG's FC-2 over 8 GPUs, in sequence, under T3 and under T3-MCA"
	@$(BIN)/weft simulate sublayer --model t-nlg --sublayer fc2 --tp 8 --overlap t3 --compare sequential,t3-mca --out out/first | sed -n 1p
	@echo "== its page is out/first/report.html"
	@echo "== study: T3"
	@$(BIN)/weft study t3 --out out/t3
	@echo "== the report is out/t3/report.html, its figures are in out/t3/t3.json"

# Two cores are enough for the checks, the documentation and the engine's compilation side by side.
test: .venv/ready-to-develop
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint docs engine
	@echo "== tests"
	@$(BIN)/pytest -q -n 2 -m "not slow and not study"

check: test slow

slow: .venv/ready-to-develop
	@echo "== slow tests and whole studies"
	@$(BIN)/pytest -q -n 2 -m "slow or study"
	@echo "== laws, on more examples"
	@$(BIN)/pytest -q -n 2 --hypothesis-profile=thorough tests/property

# PyTorch for the CPU has an environment of its own: it is larger than all others together.
test-capture: .venv-capture/ready
	@echo "== captured models"
	@.venv-capture/bin/pytest -q -n 2 tests/capture

# Each Python on the PATH that pyproject.toml names, in environments of their own: figures are the same everywhere.
test-matrix:
	@$(PYTHON) tests/matrix/run.py

# Whether the tests see planted errors; not among the checks, as it takes half an hour.
mutants: .venv/ready-to-develop
	@echo "== planted errors"
	@$(BIN)/python benchmarks/mutants.py

lint: .venv/ready-to-develop
	@echo "== style"
	@$(BIN)/ruff check --quiet
	@echo "== format"
	@$(BIN)/ruff format --quiet --check
	@echo "== types"
	@$(BIN)/mypy --no-error-summary
	@echo "== imports"
	@$(BIN)/lint-imports --no-logo

docs: .venv/ready-to-develop
	@echo "== documentation"
	@$(BIN)/sphinx-build -q -W --keep-going -d out/docs-cache docs out/docs

# The measurements are no part of the project: WEFT_DATA names their folder (docs/howto/validate.md).
validate: .venv/ready-to-develop
	@echo "== validation"
	@$(BIN)/weft validate --bar --out out/validate
	@$(BIN)/python docs/errors.py out/validate
	@echo "== the page is out/validate/report.html; docs/explanation/errors.md, its rows and pictures were written anew"

# The engine is compiled once, and its small runs take what they took.
engine: .venv/ready-to-develop
	@echo "== engine"
	@$(BIN)/pytest -q tests/golden

# Published figures beside Weft's, and what is missed in docs/deviations.md; what has been simulated before is not simulated again.
figures: .venv/ready-to-develop
	@echo "== published figures"
	@for study in $$($(BIN)/python -c "from weft.papers import STUDIES; print(*STUDIES)"); do $(BIN)/weft study $$study --json out/figures/$$study.json > /dev/null || exit; done
	@$(BIN)/python docs/figures.py out/figures
	@echo "== docs/figures/*.csv and docs/deviations.md were written anew"

questions: .venv/ready-to-develop
	@$(BIN)/python docs/questions.py

gallery: .venv/ready-to-develop
	@echo "== gallery"
	@$(BIN)/python docs/gallery.py

golden: .venv/ready-to-develop
	@echo "== golden runs"
	@$(BIN)/python tests/golden/runs.py

# Vega as every page holds it, written anew from the version that pyproject.toml pins.
vega: .venv/ready-to-develop
	@$(BIN)/python -c "import vl_convert; print(vl_convert.javascript_bundle().replace('</script', '<\\/script'), end='')" > src/weft/view/vega.js

bench: .venv/ready-to-develop
	@echo "== speed"
	@$(BIN)/python benchmarks/run.py $(if $(AGAINST),--against $(AGAINST))

# Beside the sources, the wheel holds machine code for processors like this one; on others, the engine is compiled.
wheel: .venv/ready-to-develop
	@echo "== wheel"
	@rm -rf src/weft/engine/machine_code
	@WEFT_CACHE=src/weft/engine/machine_code $(BIN)/python -c "from weft.sweep.code import compile_here; compile_here()"
	@$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist . ; status=$$?; rm -rf src/weft/engine/machine_code; exit $$status

clean:
	rm -rf .venv .venv-capture .venv-matrix out build dist docs/reference/api docs/reference/catalogue.md .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find src tests docs -name __pycache__ -type d -prune -exec rm -rf {} +

# The environments. A stamp older than pyproject.toml means that the dependencies may have changed.

.venv/ready-to-use: .venv/made pyproject.toml
	@echo "== setting up .venv to use Weft"
	@$(BIN)/python -m pip install --quiet --no-compile --editable .
	@touch $@

.venv/ready-to-develop: .venv/made pyproject.toml measure/pyproject.toml
	@echo "== setting up .venv to develop Weft"
	@$(BIN)/python -m pip install --quiet --no-compile --editable ".[dev]" --editable ./measure
	@touch .venv/ready-to-use $@

.venv-capture/ready: pyproject.toml
	@echo "== setting up .venv-capture to capture PyTorch models"
	@$(PYTHON) -m venv .venv-capture
	@.venv-capture/bin/python -m pip install --quiet --no-compile "torch==$(TORCH)"
	@.venv-capture/bin/python -m pip install --quiet --no-compile --editable ".[capture]" $(CAPTURE_TESTS)
	@touch $@

.venv/made:
	@command -v $(PYTHON) >/dev/null || { echo "Weft needs $(PYTHON) on the PATH: install Python 3.11 or later."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Weft needs Python 3.11 or later and found $$($(PYTHON) --version); try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv .venv || { \
	  echo "$(PYTHON) cannot make a virtual environment: install its venv package (Debian and Ubuntu: python3-venv)."; exit 1; }
	@touch $@

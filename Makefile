# The commands of the course. On Windows, or without make, README.md gives the same steps.
#   make learn LEARN=--no-browser PORT=8890 TORCH_INDEX=https://download.pytorch.org/whl/cpu
#   make gpu-check PYTHON=python3.12 GPU_CHECK="--only 01_bit_layouts"

PYTHON ?= python3
LEARN ?=
PORT ?=
TORCH_INDEX ?=
TORCH ?=
PYTEST_ARGS ?=
GPU_CHECK ?=

PREPARE = $(PYTHON) tools/learn.py --prepare dev $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX)) $(if $(TORCH),--torch $(TORCH))
RUN = .venv/bin/python
# One thread and a fixed hash seed, so that outputs are the same everywhere; progress goes to a file that nobody keeps.
CLEAN_ENV = env -u AMPEDU_DEVICE -u AMPEDU_STRICT -u NBGRADER_EXECUTION OMP_NUM_THREADS=1 PYTHONHASHSEED=0
NBVAL = --nbval-lax --nbval-current-env --nbval-sanitize-with tests/sanitize.cfg --nbval-cell-timeout 120

.DEFAULT_GOAL := help
.PHONY: help learn test test-slow gpu-check grade-demo build check lint clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

learn: ## install, copy the notebooks to work/, open JupyterLab
	@$(PYTHON) tools/learn.py $(if $(PORT),--port $(PORT)) $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX)) $(if $(TORCH),--torch $(TORCH)) $(LEARN)

test: ## prove everything: package, exercises, notebooks, solutions
	@$(PREPARE)
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && \
	$(CLEAN_ENV) AMPEDU_PROGRESS="$$scratch/progress.json" $(RUN) -m pytest tests notebooks solutions $(NBVAL) $(PYTEST_ARGS)

test-slow: ## what takes long and `make test` leaves out
	@$(PREPARE)
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && \
	$(CLEAN_ENV) AMPEDU_PROGRESS="$$scratch/progress.json" $(RUN) -m pytest tests -m slow $(PYTEST_ARGS)

gpu-check: ## every lesson and solution on a GPU, without Jupyter or a network; GPU_CHECK=options
	@$(PYTHON) tools/gpu_check.py $(GPU_CHECK)

grade-demo: ## ten made-up submissions, right, wrong and hostile, graded into build/grade-demo/
	@$(PREPARE)
	@$(CLEAN_ENV) $(RUN) -m tools.grade_demo

build: ## make notebooks/, labs/, solutions/ and their data from sources/
	@$(PREPARE)
	@$(CLEAN_ENV) $(RUN) -m tools.build

check: ## compare the generated files with their sources, without running them
	@$(PREPARE)
	@$(CLEAN_ENV) $(RUN) -m tools.build --check

lint: ## ruff, and the format of the notebooks
	@$(PREPARE)
	@$(RUN) -m ruff check .
	@$(RUN) -m tools.lint

clean: ## remove the environment and caches; work/ and your progress stay
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	find ampedu tools tests sources benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

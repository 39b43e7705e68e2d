# `make` alone lists the targets. Everything runs from the lock in .venv; nothing is installed outside it.
STUDY ?= micro
CORES ?= 2
GPUS ?= 0
PROFILE ?= local
PYTHON ?= python3
PIP_FLAGS ?=

VENV := .venv
BIN := $(VENV)/bin
# The stamp's name holds the lock's checksum, so a changed lock installs again and an unchanged one costs nothing.
STAMP := $(VENV)/.lad-$(shell cat requirements/cpu.txt pyproject.toml 2>/dev/null | cksum | cut -d' ' -f1)
INSTALLING := $(VENV)/.lad-installing
# Tests run the smoke study in a place of its own, made anew when code, notebooks or parameters changed.
TEST := outputs/.test
CODE := $(shell cat lad_utils/*.py params/smoke.yaml notebooks/*.ipynb Snakefile 2>/dev/null | cksum | cut -d' ' -f1)
SANITIZE := $(patsubst %,--nbval-sanitize-with %,$(wildcard tests/nbval-sanitize.cfg))
# A worker a core, a file of tests on one of them, so that what a file's tests share is made once.
PARALLEL := -n $(CORES) --dist loadfile
JUPYTER := JUPYTER_PREFER_ENV_PATH=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help env study test test-slow test-slurm lab lint reference clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  Settings: STUDY=$(STUDY) CORES=$(CORES) GPUS=$(GPUS) PROFILE=$(PROFILE) PYTHON=$(PYTHON) PIP_FLAGS=$(PIP_FLAGS)"

env: $(STAMP) ## install the locked CPU environment into .venv (Python 3.11 or newer)
	@echo "environment ready: .venv"

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "make env: Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version 2>&1 | head -1). Try: make env PYTHON=python3.11" >&2; \
	  exit 1; }
	@# An install that was cut off leaves packages half there, which pip takes for whole: start over.
	@if [ -e $(INSTALLING) ] || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  rm -rf $(VENV) && $(PYTHON) -m venv $(VENV); fi
	@rm -f $(VENV)/.lad-* && touch $(INSTALLING)
	@echo "installing into .venv (2-3 minutes)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-input $(PIP_FLAGS) -r requirements/cpu.txt
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-input --no-deps --no-build-isolation -e .
	@mv $(INSTALLING) $@
	@echo "installed: $$($(BIN)/python --version) with $$($(BIN)/python -c 'from importlib.metadata import version as v; print("torch", v("torch"))')"

study: $(STAMP) ## run a study's notebooks, or what is left of it (STUDY=micro CORES=2 GPUS=0 PROFILE=local)
	@$(BIN)/python -m lad_utils.runner $(STUDY) --cores $(CORES) --gpus $(GPUS) --profile $(PROFILE)

test: $(STAMP) ## fast tests, the smoke study, then every notebook under nbval
	@$(BIN)/python -m pytest -q -m "not slow" $(PARALLEL)
	@[ "$$(cat $(TEST)/code 2>/dev/null)" = "$(CODE)" ] || rm -rf $(TEST)
	@mkdir -p $(TEST) && echo "$(CODE)" > $(TEST)/code
	@# What it says is kept: the slow tests read it, and need no second undisturbed run.
	@{ LAD_OUTPUTS="$(CURDIR)/$(TEST)/study" $(BIN)/python -m lad_utils.runner smoke --cores $(CORES); echo $$? > $(TEST)/status; } 2>&1 \
	  | tee -a $(TEST)/log; exit "$$(cat $(TEST)/status)"
	@# nbval runs the notebooks again, over a copy: the study's own files keep their times, so the next run reuses them.
	@rm -rf $(TEST)/nbval && cp -Rp $(TEST)/study $(TEST)/nbval
	@$(JUPYTER) LAD_OUTPUTS="$(CURDIR)/$(TEST)/nbval" $(BIN)/python -m pytest -q -p no:cacheprovider \
	  --nbval-lax --nbval-current-env --nbval-cell-timeout 600 $(SANITIZE) notebooks

test-slow: $(STAMP) ## the tests that train, kill and restart things
	@$(BIN)/python -m pytest -q -m slow

test-slurm: $(STAMP) ## a study through a real Slurm, started for it on this machine (root and slurm-wlm needed)
	@$(BIN)/python -m pytest -q -rs tests/test_slurm.py

lab: $(STAMP) ## open the notebooks in JupyterLab, on the smoke study's files (made first, five to six minutes)
	@$(BIN)/python -m lad_utils.runner smoke --cores $(CORES)
	@$(JUPYTER) $(BIN)/python -m jupyterlab --notebook-dir=. notebooks

lint: $(STAMP) ## ruff on code and notebooks; outputs only in the cells that nbval checks
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python tests/notebook_outputs.py notebooks/*.ipynb
	@$(BIN)/nbstripout --verify --keep-count --keep-id notebooks/*.ipynb

reference: $(STAMP) ## run the published studies and export them to outputs/reference
	@for study in micro-reference micro-gaps; do \
	  $(BIN)/python -m lad_utils.runner $$study --cores $(CORES) && $(BIN)/python -m lad_utils.report export $$study || exit 1; \
	done

clean: ## delete one study's outputs, so that it runs from the start (make clean STUDY=smoke)
	@case "$(origin STUDY)" in "command line"|environment*) ;; *) echo "make clean: name the study, e.g. make clean STUDY=smoke" >&2; exit 1;; esac
	@case "$(STUDY)" in ""|.*|*/*|reference) echo "make clean: $(STUDY) is no study" >&2; exit 1;; esac
	@rm -rf "$${LAD_OUTPUTS:-outputs}/$(STUDY)"
	@echo "deleted outputs/$(STUDY)"

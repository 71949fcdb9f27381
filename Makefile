# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Paths are relative to this folder, whose own path may hold spaces.
SHELL := /bin/sh
BIN := .venv/bin
# What `source .venv/bin/activate` sets; `guild check` says where Guild keeps its runs.
export VIRTUAL_ENV := $(CURDIR)/.venv
export PATH := $(CURDIR)/$(BIN):$(PATH)
export MLFLOW_DISABLE_TELEMETRY := true
TRACKING_URI := $(or $(MLFLOW_TRACKING_URI),sqlite:///$(CURDIR)/mlflow.db)
PORT ?= 5000

.PHONY: help setup demo test lint format ui server catalog bench lock clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile

.venv/.set-up: requirements.lock pyproject.toml
	@tools/setup

setup: ## create or update .venv with the pinned packages; TORCH=cuda and PYTHON=/path choose (the other targets do this by themselves)
	@tools/setup

demo: .venv/.set-up ## train a hypernetwork PPO until the door opens, record it, show its catalog row
	@tools/demo

test: .venv/.set-up ## run all tests, the longest files first, or those of TESTS=tests/door; the slowest ten files are shown at the end
	@tools/setup-browser
	@$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder $(TESTS)

lint: .venv/.set-up ## ruff, the types, the import contracts, the append-only records, the declared dependencies
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --cache-dir .cache/import-linter
	@$(BIN)/catalog check --records
	@$(BIN)/deptry src tests tests/helpers tools benchmarks
	@$(BIN)/deptry src/runcatalog --optional-dependencies-dev-groups studies,cluster,server,bench,test

format: .venv/.set-up ## let ruff format and fix
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

ui: .venv/.set-up ## open the MLflow UI on http://127.0.0.1:$(PORT), its pages arranged
	@$(BIN)/catalog ui --serve $(PORT) --tracking-uri "$(TRACKING_URI)"

server: .venv/.set-up ## start the group's MLflow server, on PostgreSQL and with passwords (docs/server.md)
	@$(BIN)/catalog server start

catalog: .venv/.set-up ## fill MLflow from experiments/records, add this machine's runs, render the pages
	@$(BIN)/catalog import
	@$(BIN)/catalog sync
	@$(BIN)/python src/cartpole/bc_redraw.py
	@$(BIN)/python src/door/series_redraw.py
	@$(BIN)/python src/darkroom/ad_redraw.py
	@$(BIN)/python src/skills/redraw.py
	@$(BIN)/catalog render

bench: .venv/.set-up ## run the benchmarks (minutes each), render benchmarks/README.md, kill senders and servers 100 times, train 0.5 billion weights
	@for script in benchmarks/[a-z]*.py; do \
	  case $$script in benchmarks/render.py) ;; *) echo "== $$script"; $(BIN)/python $$script || exit 1;; esac; done
	@$(BIN)/python benchmarks/render.py
	@echo "== 100 kills"; $(BIN)/python tests/faults/inject.py --kills 100
	@echo "== 20 kills of workers"; $(BIN)/python tests/faults/workers.py
	@echo "== workers in Slurm"; $(BIN)/python tests/runcatalog/cluster/slurm_jobs.py
	@echo "== a language model of 0.5 billion weights"; $(BIN)/python tests/textgames/half_billion.py

lock: ## write requirements.lock from pyproject.toml, with uv; LOCK=--upgrade takes newer versions
	@tools/lock $(LOCK)

clean: ## remove the set-up and caches; the runs in .venv/.guild stay
	if [ -d .venv ]; then find .venv -mindepth 1 -maxdepth 1 ! -name .guild -exec rm -rf {} +; fi
	rm -rf .cache .pytest_cache .ruff_cache .hypothesis

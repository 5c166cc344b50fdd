# Every target sets up by itself. Python 3.11 or newer: PYTHON=python3.12 make quickstart
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: quickstart test slow lock clean reproduce-all

# A new clone to a small table of real results.
quickstart: $(READY)
	$(BIN)/python train.py -m attention=softmax,bn,sh,bn_sh task=uea/japanese_vowels scale=quick
	$(BIN)/python scripts/report.py table=primal_dual/table1 scale=quick

# Everything that must hold before a change lands.
test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/pytest -n 3 --dist worksteal

# A paper's table: make reproduce-table2 (primal-dual) or reproduce-<paper>-table2, with any of
# SCALE SEEDS ROWS COLUMNS LAUNCHER PROTOCOL DATA WORKERS PLAN: SCALE=quick SEEDS=3 ROWS=softmax,bn PLAN=true
# Only from make's own command line: shells export COLUMNS, the width of the terminal.
given = $(if $(filter command,$(origin $(1))),$(2)=$($(1)))
KEYS = $(call given,SCALE,scale) $(call given,SEEDS,seeds) $(call given,ROWS,rows) $(call given,COLUMNS,columns) \
	$(call given,LAUNCHER,launcher) $(call given,PROTOCOL,protocol) $(call given,DATA,data) \
	$(call given,WORKERS,workers) $(call given,PLAN,plan)

reproduce-%: $(READY)
	$(BIN)/python scripts/reproduce.py table=$(if $(findstring -,$*),$(subst -,/,$*),primal_dual/$*) $(strip $(KEYS))

# One after the other; a table with failed runs does not keep the next from its turn.
reproduce-all: $(READY)
	$(BIN)/python scripts/reproduce.py table=all $(strip $(KEYS))

# Whole runs killed and taken up again, several processes.
slow: $(READY)
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/pytest -m slow

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("reattend needs Python 3.11 or newer, this is " + sys.version) if sys.version_info < (3, 11) else None'
	@echo "Setting up $(VENV): some gigabytes, a few minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(READY)

# Exact versions with hashes; torch 2.14 is the last release with builds for the V100.
lock:
	$(BIN)/pip install --quiet uv
	printf 'torch<2.15\ntorchvision<0.29.2\n' > $(VENV)/constraints.txt
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		--no-annotate --extra dev --extra search --constraint $(VENV)/constraints.txt pyproject.toml -o requirements.lock

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

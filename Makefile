# Everything a checkout needs is made here: the targets set up their own virtual environment.
# Needed on the machine: Python >= 3.11 (with venv), git, make.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip -qq

# The newest Python that we support and that really starts (a name on the PATH may be an empty shim).
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3 python; do \
	"$$p" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)

.PHONY: demo test simulate check bench constraints clean help

help: ## Show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-12s %s\n", $$1, $$2}'

demo: $(STAMP) ## Three workers, one killed, one joining, and a verdict (DEMO=sql: on one SQLite file; DEMO_ARGS="--broker URL")
	@$(BIN)/celery sticky demo $(if $(DEMO),--server $(patsubst sql,sqlite,$(DEMO))) $(DEMO_ARGS)

test: $(STAMP) ## All tests (TEST_ARGS="-k name"); those of real workers under faults come last
	@status=0; \
	$(BIN)/python -m pytest -q -n 3 -m "unit or contract or docs" $(TEST_ARGS) || status=$$?; [ $$status -eq 5 ] && status=0; \
	$(BIN)/python -m pytest -q -n 3 --dist loadscope -m worker $(TEST_ARGS) || { last=$$?; [ $$last -eq 5 ] || status=$$last; }; \
	$(BIN)/python -m pytest -q -n 2 --dist loadscope -m system $(TEST_ARGS) || { last=$$?; [ $$last -eq 5 ] || status=$$last; }; \
	exit $$status

simulate: $(STAMP) ## Workers, store and broker under random faults and virtual time (SEEDS=2000, SIMULATE_ARGS="--jobs" or "--seed 7")
	@PYTHONPATH=tests $(BIN)/python -m simulator --seeds $(or $(SEEDS),2000) $(SIMULATE_ARGS)

check: $(STAMP) ## Style, words, sizes, types, import contracts, and that the wheel works alone
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet || { $(BIN)/ruff format --diff; exit 1; }
	@$(BIN)/codespell
	@$(BIN)/python .ci/check_words.py
	@$(BIN)/python .ci/check_sizes.py
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python .ci/check_wheel.py

bench: $(STAMP) ## Side by side with stock Celery (BENCH_ARGS=...)
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

constraints: $(STAMP) ## Take the newest versions of the tools and write them down
	@$(PIP) install --upgrade --upgrade-strategy eager -e '.[demo]' --group dev
	@{ echo "# Versions that CI uses. Written by 'make constraints'."; \
	$(BIN)/python -m pip -qq freeze --exclude-editable; } > requirements/constraints.txt
	@touch $(STAMP)

clean: ## Remove everything that was made
	rm -rf $(VENV) .tools build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

$(STAMP): pyproject.toml requirements/constraints.txt
	@[ -n "$(PYTHON)" ] || { echo "No Python >= 3.11 with venv found (on Debian: apt install python3-venv)." >&2; exit 1; }
	@echo "Setting up $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(PIP) install 'pip>=25.1'
	@$(PIP) install -c requirements/constraints.txt -e '.[demo]' --group dev
	@touch $(STAMP)

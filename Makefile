# The two commands of the README: `make train` and `make test`. Both set up .venv first, once.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.installed
# Two test processes; a file's tests stay in one, for what they share (a trained model) is made once a file.
SHARED := -n 2 --dist loadfile
OUT    ?= runs/$(shell date +%Y%m%d-%H%M%S)

.PHONY: help train test test-slow lint install bench-peers clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

train: $(READY) ## train on the built-in data with good defaults; ARGS="..." adds options, OUT=... names the run folder
	$(BIN)/tfdpbc train --out $(OUT) $(ARGS)

test: $(READY) ## the whole suite without the tests marked slow; ARGS="..." goes to pytest
	$(BIN)/python -m pytest -m "not slow" $(SHARED) $(ARGS)

test-slow: $(READY) ## the tests marked slow (minutes each)
	$(BIN)/python -m pytest -m slow $(SHARED) $(ARGS)

lint: $(READY) ## ruff: mistakes, then format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

install: $(READY) ## .venv with the package and its test tools, nothing else

# The stamp is written last, so an installation that was cut short is done again.
$(READY): setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	-@TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python -m tfdpbc.native.build 2>/dev/null
	@touch $@

# A virtual environment per peer (their dependencies exclude each other), made again when its list of packages changes. A
# peer that cannot be installed here is a row "not installed", so its failure does not end the target.
PEERS        := opacus jax_privacy tf_privacy
PEERS_READY  := $(PEERS:%=.venv-peers/%/.installed)
PEERS_PYTHON ?= $(shell command -v python3.11 || echo $(PYTHON))

.venv-peers/%/.installed: benchmarks/peers/%.txt
	@rm -rf $(@D)
	$(PEERS_PYTHON) -m venv $(@D) && $(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r $< && touch $@ \
		|| rm -rf $(@D)

bench-peers: $(READY) $(PEERS_READY) ## step time against Opacus, JAX-Privacy, TF-Privacy; needs python3.11; ARGS="--models mlp --repeats 5"
	$(BIN)/python benchmarks/peers.py $(ARGS)

clean: ## remove what was built; run folders and .venv stay
	rm -rf build dist *.egg-info .pytest_cache .hypothesis .ruff_cache
	find tfdpbc tests scripts -name __pycache__ -prune -exec rm -rf {} +

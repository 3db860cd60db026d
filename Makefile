# make run     answer PROMPT with MODEL; sets everything up first
# make test    the default test suite; sets everything up first
# make help    the other targets

# The first of these that is new enough makes .venv; `make PYTHON=/path/to/python3` names another.
PYTHONS := python3 python3.14 python3.13 python3.12 python3.11
PIP     := -m pip install -qq --disable-pip-version-check
BIN     := .venv/bin
STAMP   := .venv/.installed

MODEL  ?= smollm2
PROMPT ?= Why is the sky blue?
# More for the command that a target runs: `make run ARGS="--max-tokens 64"`, `make test ARGS="-k trace -x"`.
ARGS   ?=

# The engines that bench-peers sets up, each in an environment of its own.
PEERS  ?= llama_cpp openvino transformers
# The analysers of traces that bench-trace sets up, likewise.
TRACE_PEERS := hta msprof
WAIT_llama_cpp := ; it is compiled, which takes 5 to 15 minutes

# A prompt may hold quotes, dollars and backquotes: neither make nor the shell may read it, so it goes through
# the environment, unexpanded.
unexport PROMPT
export PROMPT_TEXT = $(value PROMPT)

# A .venv whose Python is gone is no .venv.
ifneq ($(wildcard $(STAMP)),)
$(shell test -x $(BIN)/python || rm -f $(STAMP))
endif

.PHONY: run test check bench bench-peers bench-trace clean help
.DEFAULT_GOAL := help

run: $(STAMP)
	@$(BIN)/slipstream models get "$(MODEL)"
	@$(BIN)/slipstream run "$(MODEL)" --prompt "$$PROMPT_TEXT" $(ARGS)

test: $(STAMP)
	@$(BIN)/pytest $(ARGS)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	@$(BIN)/slipstream models get "$(MODEL)"
	@$(BIN)/slipstream bench decode "$(MODEL)" $(ARGS)

# A peer that cannot be installed is left out; the others are measured.
bench-peers: $(STAMP) $(PEERS:%=.venv-peers/%/.installed)
	@$(BIN)/python bench/peers.py $(ARGS)

bench-trace: $(STAMP) $(TRACE_PEERS:%=.venv-peers/%/.installed)
	@$(BIN)/python bench/trace.py $(ARGS)

clean:
	rm -rf .venv .venv-peers build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -prune -exec rm -rf {} +

help:
	@echo 'make run [MODEL=smollm2] [PROMPT="..."] [ARGS=...]   answer a prompt'
	@echo 'make test [ARGS=...]                                 the default test suite'
	@echo 'make check                                           lint, format, types and direction of imports'
	@echo 'make bench [ARGS=...]                                the named workloads'
	@echo 'make bench-peers [ARGS=...]                          the same work on PEERS (llama_cpp openvino transformers; vllm too)'
	@echo 'make bench-trace [ARGS=...]                          the timeline against HTA and msprof-analyze'
	@echo 'make clean                                           remove what make made here, not the models'

# The stamp is the last thing written, so an interrupted install is begun again.
$(STAMP): pyproject.toml constraints.txt hatch_build.py $(wildcard src/slipstream/native/*.c src/slipstream/native/*.h)
	@rm -f $@
	$(call make_venv,.venv)
	@echo 'Installing Slipstream and its tools into .venv; the first time takes some minutes.'
	@$(BIN)/python $(PIP) -c constraints.txt -e '.[dev]'
	@touch $@

# No failure of pip ends make: peers.py and trace.py say of each that is missing how to install it.
.venv-peers/%/.installed: bench/requirements-%.txt
	@rm -f $@; mkdir -p .venv-peers
	$(call make_venv,.venv-peers/$*)
	@echo 'Installing $* into .venv-peers/$*, to compare with$(WAIT_$*).'
	@if (CMAKE_ARGS=-DGGML_NATIVE=ON .venv-peers/$*/bin/python $(PIP) -r $< && \
	for alone in $(wildcard bench/requirements-$*-alone.txt); do \
	.venv-peers/$*/bin/python $(PIP) --no-deps -r $$alone || exit 1; done) >.venv-peers/$*.log 2>&1; \
	then touch $@; else echo 'error: $* cannot be installed, see .venv-peers/$*.log; it is left out' >&2; fi

# $(call make_venv,DIR): a virtual environment with a working pip, made anew unless DIR holds one.
define make_venv
@$(1)/bin/python -m pip --version >/dev/null 2>&1 && exit; \
found=; \
for python in $(or $(PYTHON),$(PYTHONS)); do \
    version=$$("$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue; \
    found="$$found $$python ($$version)"; \
    "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || continue; \
    "$$python" -c 'import ensurepip, venv' 2>/dev/null || { \
        echo "error: $$python ($$version) cannot make virtual environments: install its venv module (on Debian" \
            "and Ubuntu: apt install python$$version-venv), or name another Python 3.11+ with make PYTHON=..." >&2; \
        exit 1; }; \
    exec "$$python" -m venv --clear $(1); \
done; \
echo "error: Slipstream needs Python 3.11 or newer, and here is$${found:- none}: install one (on Debian and Ubuntu:" \
    "apt install python3 python3-venv), or name one with make PYTHON=/path/to/python3" >&2; \
exit 1
endef

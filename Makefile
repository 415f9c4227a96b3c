# The book and the lab. Needs Python 3.11 or newer and make; everything else goes into .venv.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready
SPELLED := src tests tools book benchmarks $(wildcard *.md)
STRICT := -W --keep-going -n
PORT ?= 8000

.DEFAULT_GOAL := help
.PHONY: help setup book serve page lint test verify faults check site site-archive clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv with the pinned requirements and the package itself

$(READY): requirements.txt constraints-lock.txt pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, got " + sys.version.split()[0] + "; say which with make PYTHON=...")'
	@test -x $(BIN)/python || "$(PYTHON)" -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

book: $(READY) ## build the book into _build/html/index.html, never with outputs of older code
	$(BIN)/python tools/fresh_outputs.py
	$(BIN)/jupyter-book build $(STRICT) .
	$(BIN)/python tools/pages_built.py _build/html

serve: ## show the built book on http://127.0.0.1:8000 (PORT=...)
	@test -f _build/html/index.html || { echo "there is no _build/html/index.html; run 'make book' first"; exit 1; }
	@echo "http://127.0.0.1:$(PORT)/  (stop with Ctrl-C)"
	@"$(PYTHON)" -m http.server --bind 127.0.0.1 --directory _build/html $(PORT)

page: $(READY) ## build one page in seconds: make page P=book/deltanet
	@test -f "$(P:.md=).md" || { echo "say which page, as in: make page P=book/deltanet"; exit 1; }
	@$(BIN)/python tools/fresh_outputs.py
	KDA_PAGE=$(P:.md=) $(BIN)/sphinx-build -b html -n -q -d _build/.doctrees-page . _build/page $(P:.md=).md
	@echo "_build/page/$(P:.md=).html"

lint: $(READY) ## layout, common mistakes and spelling of all files, in seconds
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell $(SPELLED)

test: $(READY) ## run all tests: library, doctests of library and chapters, exercises, toolchain
	$(BIN)/python -m pytest -n auto --dist loadfile

verify: $(READY) ## prove and check every equation, and reject every mutant
	$(BIN)/kda-lab verify

check: ## everything that CI runs: lint, tests, recordings, both strict builds
	bash .ci/run

faults: $(READY) ## which case of the conformance suite catches which planted fault (minutes)
	$(BIN)/python tools/fault_matrix.py

site: ## look at the built book with a browser (needs Chromium and Node.js), screenshots in _build/shots
	@node tools/site_check.mjs _build/html _build/shots

site-archive: ## pack the built book into dist/: unpack it anywhere and open index.html, no network needed
	@test -f _build/html/index.html || { echo "there is no _build/html/index.html; run 'make book' first"; exit 1; }
	@mkdir -p dist
	@version=$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' src/kda_lab/__init__.py); \
	tar -czf dist/kda-lab-site-$$version.tar.gz --transform "s,^html,kda-lab-$$version," -C _build html; \
	echo "dist/kda-lab-site-$$version.tar.gz"

clean: ## remove what the builds made; .venv stays
	rm -rf _build

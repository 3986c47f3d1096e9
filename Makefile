# Every target sets up .venv by itself; a second call skips the set-up unless the requirements changed.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.PHONY: setup demo test slow faults lint check bench pages docs clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[figures,parquet,excel,dicom,h5,dask,flower,encoders,onnx,privacy,secure]" --group dev
	@touch $(READY)

demo: $(READY)
	$(BIN)/fedwinnow demo

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal

# The larger batteries, which `make test` leaves out. Writes tests/SLOW.md.
slow: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow --slow-report tests/SLOW.md

# Seeded faults: each is put into a copy, and a test must fail. Writes tools/FAULTS.md.
faults: $(READY)
	$(BIN)/python tools/seed_faults.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint test

bench: $(READY)
	$(BIN)/python -m benchmarks

# The pages and tables that are written from the source text; tests say when one is out of date.
pages: $(READY)
	$(BIN)/python tools/write_method_tables.py
	$(BIN)/python tools/write_reference.py
	$(BIN)/python tools/draw_rooms.py

docs: $(READY) .venv/docs-ready
	$(BIN)/mkdocs build --strict

.venv/docs-ready: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group docs
	@touch .venv/docs-ready

clean:
	rm -rf .venv site build dist

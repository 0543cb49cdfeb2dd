# The front door. Every target sets up what it needs by itself.
PYTHON ?= python3
PORT   ?= 8080
DATA   ?= ./data
SHIFT  ?=
FSYNC_MS ?=
VENV   := .venv
BIN    := $(VENV)/bin
KAFKA  := .cache/services/kafka-4.3.1
CASSANDRA := .cache/services/cassandra-5.0.9
HADOOP := .cache/services/hadoop-3.4.2
NAKADI := .cache/services/fahrschein-0.24.0
S3     := .cache/services/versitygw-1.8.0
WRK    := .cache/services/wrk
CHROMIUM := .cache/services/chromium
RUN    := PYTHONPATH=tests $(BIN)/python -m
PIP    := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: setup up test check bench docs chaos clean

# Two stamps: running the platform needs less than developing it.
$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Strandline needs Python 3.11 or newer; set PYTHON=…")'
	@test -x $(BIN)/pip || { echo "creating $(VENV) …"; $(PYTHON) -m venv $(VENV); }
	@echo "installing Strandline with Spark: about 500 MB, which takes a few minutes …"
	@$(PIP) install -c constraints.txt -e '.[server,spark]'
	@touch $@

$(VENV)/.dev: $(VENV)/.ready
	@echo "installing the development tools …"
	@$(PIP) --quiet install -c constraints.txt -e '.[server,kafka,postgres,cassandra,redis,spark,zookeeper,hdfs,s3,dev]'
	@touch $@

# A folder appears only when it is complete; what is in it never changes.
$(KAFKA): | $(VENV)/.dev
	@$(RUN) services.jars kafka

$(CASSANDRA): | $(VENV)/.dev
	@$(RUN) services.jars cassandra

$(HADOOP): | $(VENV)/.dev
	@$(RUN) services.jars hadoop

$(NAKADI): | $(VENV)/.dev
	@$(RUN) services.jars fahrschein

# Where there is no go, this installs a mock instead and makes no folder.
$(S3): | $(VENV)/.dev
	@$(RUN) services.s3

# Where there are no Debian packages and wrk is not installed, this only says so: its rows are reported as failed.
$(WRK): | $(VENV)/.dev
	@$(RUN) services.wrk

# The same for Chromium: the tests in a browser are skipped.
$(CHROMIUM): | $(VENV)/.dev
	@$(RUN) services.chromium

setup: $(VENV)/.dev

up: $(VENV)/.ready
	@exec $(BIN)/strandline up --port $(PORT) --data $(DATA) $(if $(SHIFT),--shift $(SHIFT))

check: $(VENV)/.dev
	@$(BIN)/ruff format --no-cache --check src tests bench docs
	@$(BIN)/ruff check --no-cache src tests bench docs
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

test: check $(KAFKA) $(CASSANDRA) $(HADOOP) $(NAKADI) $(S3) $(CHROMIUM)
	@$(BIN)/python tests/lanes.py

bench: $(VENV)/.dev $(KAFKA) $(CASSANDRA) $(WRK)
	@$(RUN) bench $(if $(FSYNC_MS),--fsync-ms $(FSYNC_MS))

chaos: $(VENV)/.dev $(KAFKA) $(CASSANDRA)
	@$(BIN)/python -m pytest -m slow tests -s

docs: $(VENV)/.dev
	@$(BIN)/python -m docs.build

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist

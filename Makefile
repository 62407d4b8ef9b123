# Everything a developer runs. Each target prepares what it needs: an environment in .venv, the compiled
# parts, Debian's packages. `make` alone lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Most of a command's start would be compiling its modules: programs may keep what Python compiles.
export PYTHONDONTWRITEBYTECODE :=

UV := $(or $(shell command -v uv 2>/dev/null),build/uv/bin/uv)
BIN := .venv/bin
SANITIZE :=
CMAKE := $(BIN)/cmake
C_FILES := find native tests bench -name '*.[ch]' -not -path '*/build/*'

# command:package, as Debian names them. The first list builds, the second is for the tests.
BUILD_TOOLS := cc:gcc python3:python3
TEST_TOOLS := clang:clang aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu \
	qemu-aarch64-static:qemu-user-static musl-gcc:musl-tools chromium:chromium

# What the nodes of a cluster run on; Kubernetes itself is built, and a newer containerd and runc
# (tests/cluster/programs.py).
CLUSTER_TOOLS := containerd:containerd runc:runc /usr/lib/cni/ptp:containernetworking-plugins \
	pkg-config:pkg-config /usr/include/seccomp.h:libseccomp-dev \
	busybox:busybox-static iptables:iptables conntrack:conntrack ip:iproute2 openssl:openssl
CLUSTER = PYTHONPATH=tests UV=$(UV) $(BIN)/python -m cluster
CHART = PYTHONPATH=tests UV=$(UV) $(BIN)/python -m kubernetes.chart

# What the examples import.
EXAMPLES_NEED := torch numpy transformers accelerate

# What `make test` left out and why, and the tests that failed, one line each, printed at its end.
LEFT_OUT := build/left-out.txt
FAILED := build/failed.txt

.PHONY: help setup build install demo tour test lint format test-python test-native test-shares test-storm test-gpu fuzz bench clean
.PHONY: test-neighbours test-cluster kubernetes manifest cluster cluster-gpu cluster-down
.PHONY: web screenshots
.PHONY: soak packages test-packages proto reference cluster-packages test-examples test-remote

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

setup: packages build ## create .venv with the command aliquot
	@echo "aliquot is ready: .venv/bin/aliquot --help"

build: $(UV) ## rebuild what changed (Python files need no build)
	@$(UV) sync --locked --quiet
	@$(BIN)/python -m compileall -q src

install: setup ## one arbiter and one pool for all users of this machine: sudo make install
	@$(BIN)/aliquot install

demo: setup ## two acts on one GPU: memory limits, then shares of compute time
	@$(BIN)/python demo/demo.py

tour: setup ## a day on one GPU, with its output: writes docs/tour.md
	@$(BIN)/python demo/tour.py > build/tour.md; status=$$?; cat build/tour.md; \
	[ $$status -eq 0 ] && cp build/tour.md docs/tour.md

# A phase that fails does not keep the next ones from running.
PHASES = lint test-native test-python $(if $(MADE_EXAMPLES),test-examples test-remote) test-shares test-storm test-cluster \
	test-gpu
test: setup test-packages ## everything: lint and all tests
	@mkdir -p build && : > $(LEFT_OUT) && : > $(FAILED)
	@[ -n "$$($(CLUSTER).obstacles)" ] || $(MAKE) kubernetes
	@[ -n "$(MADE_EXAMPLES)" ] || \
		{ echo "tests of the examples with PyTorch: make test-examples makes their environment"; \
		echo "tests of remote GPUs with PyTorch: make test-remote makes their environment"; } >> $(LEFT_OUT)
	@for phase in $(PHASES); do echo "--- make $$phase"; begun=$$SECONDS; \
		ALIQUOT_FAILED=$(CURDIR)/$(FAILED) $(MAKE) -k $$phase || echo "make $$phase" >> $(FAILED); \
		echo "--- make $$phase: $$((SECONDS - begun)) s"; done
	@if [ -s $(LEFT_OUT) ]; then echo "Left out:"; sed 's/^/  /' $(LEFT_OUT); \
	else echo "Nothing was left out."; fi
	@if [ -s $(FAILED) ]; then echo "Failed:"; sed 's/^/  /' $(FAILED); exit 1; fi

lint: ## style, types, layers and vocabulary
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q -n 0 tests/repository
	$(C_FILES) -print0 | xargs -0r $(BIN)/clang-format --dry-run -Werror

format: ## format all sources
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format --quiet .
	$(C_FILES) -print0 | xargs -0r $(BIN)/clang-format -i

# A test waits for programs that it has started about a third of its time: one more than processors.
WORKERS = $(shell expr $$(nproc) + 1)
test-python: ## the tests that need no GPU and no cluster
	$(BIN)/pytest -n $(WORKERS) --durations=15 -m "not gpu and not shares and not cluster"
	@[ -n "$${ALIQUOT_TRACES:-}" ] || echo "tests on openb's lists: ALIQUOT_TRACES names no folder" >> $(LEFT_OUT)
	@$(CHART) find >/dev/null 2>&1 || echo "tests of the chart: there is no Helm (make kubernetes)" >> $(LEFT_OUT)
	@for shell in zsh fish; do command -v $$shell >/dev/null \
		|| echo "tests of completion in $$shell: it is not installed" >> $(LEFT_OUT); done
	@command -v podman >/dev/null \
		|| echo "tests of plain containers with Podman: it is not installed" >> $(LEFT_OUT)
	@command -v systemd-analyze >/dev/null \
		|| echo "the check of the services' units: there is no systemd-analyze" >> $(LEFT_OUT)
	@command -v chromium >/dev/null || echo "tests of the console's pages: there is no chromium" >> $(LEFT_OUT)
	@[ "$$(id -u)" = 0 ] || echo "tests that need another user or a small disk: not root" >> $(LEFT_OUT)

# PyTorch for CPUs where its own index can be reached, else as PyPI has it.
EXAMPLES := build/examples
MADE_EXAMPLES = $(wildcard $(EXAMPLES)/bin/torchrun)
test-examples: build $(EXAMPLES)/bin/torchrun ## the examples with PyTorch and a Trainer, on simulated GPUs
	ALIQUOT_EXAMPLES_PYTHON=$(CURDIR)/$(EXAMPLES)/bin/python $(BIN)/pytest -n 0 tests/examples

# The programs import torch for ten seconds each: as many at a time as the machine has CPUs.
test-remote: build $(EXAMPLES)/bin/torchrun ## remote GPUs with PyTorch programs, on simulated GPUs
	@$(UV) pip install --quiet --python $(EXAMPLES)/bin/python expecttest  # PyTorch's samples import it
	ALIQUOT_EXAMPLES_PYTHON=$(CURDIR)/$(EXAMPLES)/bin/python $(BIN)/pytest tests/remote

$(EXAMPLES)/bin/torchrun:
	@$(UV) venv --quiet --clear $(EXAMPLES)
	@$(UV) pip install --quiet --python $(EXAMPLES)/bin/python --torch-backend cpu $(EXAMPLES_NEED) \
		|| $(UV) pip install --quiet --python $(EXAMPLES)/bin/python $(EXAMPLES_NEED)

# The C code in one build tree each: plain, under each sanitizer, and for arm64 under emulation.
TREES := plain address thread arm64
test-native: $(addprefix test-native-,$(TREES)) fuzz ## the C tests: plain, sanitized, arm64, fuzzed
test-native-%: build/native-%
	$(BIN)/ctest --test-dir $< --output-on-failure --no-tests=error -j 2 || \
		{ $(call failed,$$(sed "s|^[0-9]*:|$<: |" $</Testing/Temporary/LastTestsFailed.log)); exit 1; }

build/native-address: OPTIONS := -DALIQUOT_SANITIZE=address,undefined
build/native-thread: OPTIONS := -DALIQUOT_SANITIZE=thread
build/native-arm64: OPTIONS := -DCMAKE_TOOLCHAIN_FILE=$(CURDIR)/cmake/aarch64.cmake
build/native-%: FORCE
	@$(call configure,$@,$(OPTIONS))
	@$(CMAKE) --build $@ -- --quiet
FORCE:

# The parsers of untrusted bytes, under clang's fuzzer; FUZZ_SECONDS=600 make fuzz for longer.
FUZZ_SECONDS ?= 5
FUZZERS := $(patsubst tests/native/fuzz/%.c,%,$(wildcard tests/native/fuzz/fuzz_*.c))
fuzz: ## the fuzzers, FUZZ_SECONDS each
	@$(call configure,build/fuzz,-DCMAKE_C_COMPILER=clang -DALIQUOT_FUZZ=ON)
	@$(CMAKE) --build build/fuzz --target $(addsuffix _libfuzzer,$(FUZZERS)) -- --quiet
	@mkdir -p $(addprefix build/fuzz/found/,$(FUZZERS))
	@printf '%s\n' $(FUZZERS) | xargs -P 2 -I{} $(SHELL) -c 'echo "fuzzing: {} for $(FUZZ_SECONDS) s"; \
		build/fuzz/tests/native/fuzz/{}_libfuzzer -max_total_time=$(FUZZ_SECONDS) \
			-artifact_prefix=build/fuzz/ build/fuzz/found/{} tests/native/fuzz/corpus/{} \
			2>build/fuzz/{}.log || { cat build/fuzz/{}.log; $(call failed,{}); exit 1; }'

bench: build/native-plain ## measure what Aliquot costs a program (docs/measured.md)
	$(BIN)/python bench/native/cost.py --build build/native-plain

# The built pages are in the repository, so that neither users nor CI need Node.js.
web: ## build the console's pages into src/aliquot/console/static; needs Node.js 20
	@cd web && npm install --no-save --silent --no-audit --no-fund && npm run --silent build

screenshots: build test-packages ## the pictures of docs/console.md, made by its tests
	@ALIQUOT_SCREENSHOTS=$(CURDIR)/docs/images $(BIN)/pytest -q -n 0 tests/console/test_pages.py tests/console/test_cluster_pages.py -k accessible

reference: build ## write docs/commands.md and native/README.md from the sources
	@PYTHONPATH=tests $(BIN)/python -m repository.reference

proto: build ## regenerate the kubelet's messages from their .proto files
	$(BIN)/python -m grpc_tools.protoc -Isrc --python_out=src --pyi_out=src \
		src/aliquot/kubernetes/kubelet/*.proto

# Programs that keep simulated GPUs or a pool busy need the machine for themselves, and so do limits in
# seconds.
test-shares: build ## compute shares, and answers under load: one test at a time
	$(BIN)/pytest -q -n 0 -m shares tests/arbiter tests/credit tests/demo tests/storm tests/outages \
		tests/pool tests/standin

# The race of tests/storm once more, shorter, with everything under a sanitizer.
test-storm: build/native-address build/native-thread ## the long race, under each sanitizer
	@failed=; for name in address thread; do echo "the storm, with the $$name sanitizer"; \
		ALIQUOT_TEST_NATIVE=$(CURDIR)/build/native-$$name/_native \
		ALIQUOT_STORM_SECONDS=8 ALIQUOT_STORM_KILLS=150 $(BIN)/pytest -q -n 0 \
			tests/storm/test_storm.py tests/standin/test_gated_storm.py || failed=1; done; [ -z "$$failed" ]

# What takes longer than `make test` may: the storm, the siege and the restarts of agents and kubelets in
# full, half an hour with a node that comes and goes, and half an hour of each fuzzer.
soak: build/native-plain ## the long runs: about five hours
	$(BIN)/pytest -q -n 0 tests/storm/test_storm.py
	ALIQUOT_SIEGE_TENANTS=100 ALIQUOT_SIEGE_DEATHS=1000 ALIQUOT_SIEGE_DOUBLE_DEATHS=100 \
		$(BIN)/pytest -q -n 0 tests/storm/test_siege.py
	@[ -n "$$($(CLUSTER).obstacles)" ] || $(MAKE) kubernetes
	ALIQUOT_CRASH_SECONDS=600 ALIQUOT_KUBELET_RESTARTS=20 ALIQUOT_KUBELET_PODS=100 \
		$(BIN)/pytest -q -n 0 -m cluster tests/cluster/test_restarts.py
	$(MAKE) fuzz FUZZ_SECONDS=1800
	ALIQUOT_FLAP_SECONDS=1800 $(BIN)/pytest -q -n 0 -m cluster tests/cluster/test_lifecycle.py

test-gpu: ## the tests on this machine's own GPU, if it has one
	@mkdir -p build
	@if $(BIN)/aliquot gpus >/dev/null 2>&1; then $(BIN)/pytest -m gpu -n 0; \
	else echo "tests marked gpu: this machine has no GPU" >> $(LEFT_OUT); fi

# ALIQUOT_REQUIRE_CLUSTER=1: a machine that cannot run one fails. Most tests wait for pods and run in two
# clusters side by side, all tests of a file in one of them; those that load the machine run alone.
test-cluster: build ## the tests on a real Kubernetes, two clusters at a time
	@mkdir -p build
	@why="$$($(CLUSTER).obstacles)"; \
	if [ -z "$$why" ]; then $(MAKE) kubernetes; failed=; \
		ALIQUOT_CLUSTERS=1 $(BIN)/pytest -n 2 --dist loadfile -m "cluster and not shares" tests/cluster \
			|| failed=1; \
		$(BIN)/pytest -n 0 -m "cluster and shares" tests/cluster || failed=1; [ -z "$$failed" ]; \
	elif [ -n "$${ALIQUOT_REQUIRE_CLUSTER:-}" ]; then echo "a real Kubernetes $$why" >&2; exit 1; \
	else echo "tests on a real Kubernetes: it $$why" >> $(LEFT_OUT); fi

# CI does not run these: what they need takes longer to build than Kubernetes.
test-neighbours: kubernetes ## the tests beside Kueue and Karpenter, and on Kubernetes 1.34 (builds them, once)
	@PYTHONPATH=tests UV=$(UV) $(BIN)/python -m neighbours.programs
	$(BIN)/pytest -n 0 -m cluster tests/neighbours

kubernetes: build cluster-packages ## build Kubernetes, containerd and Helm for the tests, once: 14 minutes
	@$(CLUSTER).programs
	@$(CHART) build

manifest: kubernetes ## regenerate deploy/aliquot.yaml from the chart
	@$(CHART) write

cluster: kubernetes ## leave a real Kubernetes running to try things
	@$(CLUSTER).play up

cluster-gpu: kubernetes ## make cluster, with the GPUs of this machine
	@$(CLUSTER).play up-gpu

cluster-down: ## stop the cluster of `make cluster`
	@$(CLUSTER).play down

clean: ## remove everything that was built
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- what the machine must have -------------------------------------------------------------------

packages:
	@$(call need,$(BUILD_TOOLS))

test-packages:
	@$(call need,$(TEST_TOOLS))
	@set --; \
	echo 'int LLVMFuzzerTestOneInput(const char *d, long n) { return !d && n; }' \
		| clang -x c -fsanitize=fuzzer - -o /dev/null 2>/dev/null || set -- "$$@" libclang-rt-dev; \
	echo '#include <stdlib.h>' | aarch64-linux-gnu-gcc -E - >/dev/null 2>&1 \
		|| set -- "$$@" libc6-dev-arm64-cross; \
	$(install)

cluster-packages:
	@$(call need,$(CLUSTER_TOOLS))

build/uv/bin/uv:
	@echo "uv is not installed: installing it in build/uv"
	@python3 -m venv build/uv && build/uv/bin/pip install --quiet uv

# $(call failed,NAMES): add names to the list that `make test` prints at its end.
define failed
[ -z "$${ALIQUOT_FAILED:-}" ] || echo "$(1)" >> "$$ALIQUOT_FAILED"
endef

# $(call configure,TREE,OPTIONS): a build tree of the C code with its tests.
define configure
$(CMAKE) -S . -B $(1) -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DALIQUOT_TESTS=ON \
	-DPython3_EXECUTABLE=$(CURDIR)/$(BIN)/python $(2) >/dev/null
endef

# Install the packages in $@, or say which to install. Their services are not started.
define install
if [ $$# -gt 0 ]; then \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		policy=/usr/sbin/policy-rc.d; [ -e $$policy ] || { trap "rm -f $$policy" EXIT; \
			printf '#!/bin/sh\nexit 101\n' > $$policy; chmod 755 $$policy; }; \
		echo "installing: $$*"; apt-get update -qq; \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$$@" >/dev/null; \
	else \
		echo "These packages are missing. As root: apt-get install $$*" >&2; exit 1; \
	fi; \
fi
endef

# $(call need,LIST): install the packages whose command is missing, or say which to install.
define need
set -- ; for pair in $(1); do \
	command -v $${pair%%:*} >/dev/null || [ -e $${pair%%:*} ] || set -- "$$@" $${pair##*:}; done; \
if command -v cc >/dev/null && ! echo '#include <stdlib.h>' | cc -E - >/dev/null 2>&1; then \
	set -- "$$@" libc6-dev; fi; \
if ! command -v uv >/dev/null && ! python3 -c 'import ensurepip' 2>/dev/null; then \
	set -- "$$@" python3-venv; fi; \
$(install)
endef

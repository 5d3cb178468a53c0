# `make` builds bin/sietch, `make demo` shows it, `make test` proves it.
# `make help` lists the rest.

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS   += --no-builtin-rules
.DELETE_ON_ERROR:
.DEFAULT_GOAL := build

GO   ?= go
# Where demo and test keep images, sandboxes and commits. Never in git.
DATA ?= $(CURDIR)/.data
# Where cloud-hypervisor is installed, in bin.
PREFIX ?= /usr/local

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w

GUEST_SRC := $(shell find guestinit -name '*.go' -not -name '*_test.go' -not -path 'guestinit/embedded/*')
GUEST_ZST := guestinit/embedded/dist/guestinit.zst

# Go's ./... leaves out folders that begin with a dot.
CI_PACKAGES := ./.ci/lanes ./.ci/cloudhypervisor

# Static everywhere: the guest program has no libc to meet, and bin/sietch is
# copied to hosts whose libc is older.
export CGO_ENABLED := 0

.PHONY: build
build: $(GUEST_ZST) ## bin/sietch, with the guest init inside
	@mkdir -p bin
	$(GO) build -ldflags '$(LDFLAGS) -X main.version=$(VERSION)' -o bin/sietch ./cmd/sietch

$(GUEST_ZST): $(GUEST_SRC) go.mod go.sum guestinit/embedded/pack/main.go
	@mkdir -p bin $(@D)
	GOOS=linux GOARCH=amd64 $(GO) build -ldflags '$(LDFLAGS)' -o bin/guestinit ./guestinit
	$(GO) run ./guestinit/embedded/pack bin/guestinit $@

.PHONY: deps
deps: ## install what the host lacks (Debian and Ubuntu, as root)
	@.ci/deps

.PHONY: cloud-hypervisor
cloud-hypervisor: ## install the VMM that is faster than QEMU where KVM works (PREFIX=/usr/local)
	@PREFIX=$(PREFIX) .ci/cloudhypervisor/install

.PHONY: demo
demo: deps build ## from nothing to a machine forked four ways, with times
	@SIETCH=$(CURDIR)/bin/sietch SIETCH_DATA_DIR=$(DATA)/demo examples/demo/demo.sh

# Unit tests and the lanes of every package first, two packages at a time; then
# the acceptance tests alone, because they judge times and what is left behind.
# Those of them that do not come last, as many at a time as there are CPUs.
.PHONY: test
test: deps build ## every test this host can run; skips are printed with their reasons
	@mkdir -p $(DATA)
	@echo "== packages"
	@$(GO) test -json -count=1 -p 2 -timeout 30m $$($(GO) list ./... | grep -v -e /examples/ -e /sdk) $(CI_PACKAGES) | $(GO) run ./.ci/lanes
	@echo "== acceptance"
	@SIETCH_BIN=$(CURDIR)/bin/sietch SIETCH_TEST_DIR=$(DATA) \
		$(GO) test -json -count=1 -timeout 45m ./examples/... | $(GO) run ./.ci/lanes
	@echo "== clients"
	@SIETCH_BIN=$(CURDIR)/bin/sietch SIETCH_TEST_DIR=$(DATA) \
		$(GO) test -json -count=1 -timeout 30m ./sdk/... | $(GO) run ./.ci/lanes

.PHONY: test-kvm
test-kvm: deps build ## the end-to-end tests under KVM; without one, in an emulated machine (long)
	@SIETCH=$(CURDIR)/bin/sietch DATA=$(DATA) examples/kvmhost/test.sh

.PHONY: bench-kvm
bench-kvm: deps build ## compare the VMMs under KVM; without one, in an emulated machine (long)
	@SIETCH=$(CURDIR)/bin/sietch DATA=$(DATA) SIETCH_TEST_BENCH=$${SIETCH_TEST_BENCH:-7} examples/kvmhost/test.sh

.PHONY: check
check: build ## vet, staticcheck, format, import arrows, documents
	$(GO) vet ./... $(CI_PACKAGES)
	$(GO) tool -modfile=.ci/tools/go.mod staticcheck ./... $(CI_PACKAGES)
	@out=$$(gofmt -l $$(git ls-files --cached --others --exclude-standard '*.go')); \
		if [ -n "$$out" ]; then printf 'gofmt would change:\n%s\n' "$$out" >&2; exit 1; fi
	$(GO) test -count=1 -run '^TestImportArrows' ./cmd/sietch
	$(GO) generate ./runtime/api
	@git diff --exit-code --stat -- 'runtime/api/*.gen.go' || { echo 'generated code is not that of runtime/api/openapi.yaml: commit what make generate writes' >&2; exit 1; }
	SIETCH_BIN=$(CURDIR)/bin/sietch $(GO) test -count=1 ./docs

.PHONY: generate
generate: ## write server and client of the API from runtime/api/openapi.yaml
	$(GO) generate ./runtime/api

.PHONY: docs
docs: build ## write the help texts of bin/sietch into docs/cli.md
	SIETCH_BIN=$(CURDIR)/bin/sietch $(GO) test -count=1 ./docs -run '^TestCommandReference$$' -update

.PHONY: bench
bench: deps build ## measure, beside a full stop-and-save and a cold boot; prints a Markdown table
	@SIETCH_DATA_DIR=$(DATA)/bench $(GO) run ./examples/bench -sietch $(CURDIR)/bin/sietch

.PHONY: clean
clean: ## remove what was built (DATA stays: it may hold your commits)
	rm -rf bin $(GUEST_ZST)

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

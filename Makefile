# Bulkhead. Two commands need to be known: `sudo make demo` and `sudo make test`.
#
# Go: the one in PATH when there is one, else Debian's package (on Debian 12
# from backports), which then fetches the toolchain that go.mod asks for.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
MAKEFLAGS   += --no-builtin-rules

PROGRAMS := bulkhead bulkhead-warden bulkhead-serve bulkhead-net bulkhead-shim bulkhead-probe bulkhead-image
PACKAGES ?= ./...
PREFIX   ?= /usr/local
DESTDIR  ?=
# make build GOARCH=arm64 builds for another machine, beside what runs here.
OUT      ?= $(if $(GOARCH),dist/$(GOARCH),bin)
VERSION  ?= 0.1.0~dev+$(BUILD)
DEBS     ?= amd64 arm64

# The build id names the programs' folder on a host, so that a running agent
# keeps its build. It is a digest of the source: same source, same id.
BUILD := $(shell find cmd internal go.mod go.sum -type f \( -name '*.go' -o -name 'go.*' -o -path '*/embed/*' \) ! -name '*_test.go' -print0 2>/dev/null | sort -z | xargs -0 sha256sum | sha256sum | cut -c1-16)

export PATH := $(PATH):/usr/local/go/bin:/usr/lib/go/bin
export CGO_ENABLED = 0
export GOTOOLCHAIN ?= auto
# The source may belong to another user than root, which git then refuses to describe.
export GOFLAGS := $(GOFLAGS) -buildvcs=false
LDFLAGS := -s -w -X main.build=$(BUILD)

.PHONY: build
build: go ## build the seven static programs into bin/, or for GOARCH= into dist/
	@for p in $(PROGRAMS); do [ ! -d cmd/$$p ] || programs+=" ./cmd/$$p"; done
	mkdir -p $(OUT)
	go build -trimpath -ldflags '$(LDFLAGS)' -o $(OUT)/ $$programs

.PHONY: go
go:
	@if ! command -v go > /dev/null; then .ci/get-go; fi

.PHONY: test
test: build ## run every test; needs root, changes nothing on the machine
	@[ "$$(id -u)" = 0 ] || { echo "make test needs root for its throwaway hosts: run sudo make test" >&2; exit 1; }
	go vet ./...
	go test -timeout 40m $(TESTFLAGS) $(PACKAGES)

# The build tag keeps these out of "make test": a virtual host without KVM takes
# minutes, and two cores. .ci/run has them as a step of their own.
.PHONY: vm
.PHONY: test-vm
test-vm: vm

vm: go ## the same on real Debian hosts under QEMU (systemd, cgroup v2); needs root
	@[ "$$(id -u)" = 0 ] || { echo "make vm needs root to make disk images: run sudo make vm" >&2; exit 1; }
	go vet -tags vm ./test/vm/...
	go test -tags vm -count=1 -timeout 30m $(TESTFLAGS) ./test/vm

.PHONY: demo
demo: build ## two agents, then six that talk, in throwaway hosts; HOST=here uses this machine
	@[ "$$(id -u)" = 0 ] || { echo "make demo needs root: run sudo make demo" >&2; exit 1; }
	examples/pair/demo.sh
	examples/seven/demo.sh

.PHONY: bench
bench: build ## measure; writes docs/benchmarks.md and prints the rest
	@[ "$$(id -u)" = 0 ] || { echo "make bench needs root: run sudo make bench" >&2; exit 1; }
	bench/run
	export BULKHEAD_BENCH=1
	go test -count=1 -v -run . ./bench/
	go test -count=1 -run '^$$' -bench Records ./internal/store
	go test -count=1 -run '^$$' -bench Write -benchtime 300x ./internal/primitive/fs
	go test -count=1 -v -run TestCodeIsRunForTheAgent ./internal/primitive/proc
	for m in redis postgres; do go -C bench/$$m test -count=1 -v .; done

.PHONY: lint
lint: go ## formatting and linters, at pinned versions
	.ci/lint

.PHONY: model
model: ## check the formal model of message delivery; needs Debian's package spin
	docs/model/run

.PHONY: fuzz
fuzz: go ## every fuzz target for FUZZTIME (default 30s)
	grep -rl --include='*_test.go' '^func Fuzz' cmd internal test 2>/dev/null | sort | while read -r file; do
	  sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$$file" | while read -r target; do
	    echo "$$target in $$(dirname "$$file")"
	    go test "./$$(dirname "$$file")" -run '^$$' -fuzz "^$$target\$$" -fuzztime $${FUZZTIME:-30s} -fuzzminimizetime 10x
	  done
	done

.PHONY: install
install: build ## install below PREFIX (default /usr/local), with the systemd unit
	deploy/install '$(DESTDIR)' '$(PREFIX)' $(OUT) $(PROGRAMS)

.PHONY: uninstall
uninstall: ## remove what make install put there; teams and their data stay
	deploy/uninstall '$(DESTDIR)' '$(PREFIX)' $(PROGRAMS)

.PHONY: deb
deb: go ## Debian packages for amd64 and arm64 into dist/
	tools=$$(.ci/get-tools nfpm)
	for arch in $(DEBS); do
	  $(MAKE) --no-print-directory build GOARCH=$$arch
	  rm -rf dist/root-$$arch
	  deploy/install "dist/root-$$arch" /usr "dist/$$arch" $(PROGRAMS)
	  sed -e "s|@ARCH@|$$arch|" -e 's|@VERSION@|$(VERSION)|' -e "s|@ROOT@|dist/root-$$arch|" deploy/nfpm.yaml > dist/nfpm-$$arch.yaml
	  "$$tools/nfpm" package --packager deb --config dist/nfpm-$$arch.yaml --target dist/bulkhead_$$arch.deb
	done

.PHONY: clean
clean: ## remove what was built
	rm -rf bin dist

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

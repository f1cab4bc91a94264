SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

FUZZTIME ?= 10s
PKG ?= ./...
SLICE ?= 10
SEED ?= 1
SCHEDULES ?= 200
BOUND ?= 2000
N ?= 200
REPLAY ?=

# Everything is compiled with the flags of recast itself (like talosctl, without
# gRPC's pages for net/trace), so that tests, vet and staticcheck share one build of
# the dependencies. The race detector needs cgo.
export CGO_ENABLED := 0
export GOFLAGS := $(strip $(shell go env GOFLAGS) -trimpath -tags=grpcnotrace)
test race: export CGO_ENABLED := 1

# The packages with tests that make test skips.
LONG = $(shell grep -rl --include='*_test.go' 'testing[.]Short()' cmd cluster images internal pipeline schematics | xargs -n1 dirname | sort -u | sed 's|^|./|')

# The tools are a separate module: their versions are pinned, and their
# dependencies are not recast's.
TOOLS := bin/tools/gofumpt bin/tools/staticcheck bin/tools/testsummary bin/tools/sbom

.PHONY: compiler help build demo test stories check contract crash kill schedules mutants e2e e2e-talosctl e2e-k8s e2e-report e2e-deps release release-snapshot schema bench fuzz docs clean

help: ## list the targets
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/\1 \2/p' Makefile | while read -r name what; do printf '  make %-8s  %s\n' "$$name" "$$what"; done

build: ## build bin/recast
	@go build -o bin/recast ./cmd/recast

demo: build ## run the demo in the embedded lab: patch, lock, build, publish, roll, disks intact
	@bin/recast lab demo

test: bin/tools/testsummary compiler ## all tests except the long stories, with the race detector (PKG=./cluster/ for one package)
	@GORACE=atexit_sleep_ms=50 go test -race -short -json $(PKG) | bin/tools/testsummary -name test

stories: bin/tools/testsummary ## all tests that make test skips: whole clusters in the lab, command sessions, an upload of 4 GiB
	@go test -json -timeout 60m $(LONG) | bin/tools/testsummary -name stories

race: bin/tools/testsummary compiler ## repeat every tenth of the long stories with the race detector, which makes them ten times slower (SEED=n for others; SLICE=all for all)
	@go test -race -json -timeout 60m ./internal/sim/simtest -skip 'TestRoll(NearTheCriticalPath|BesidesTheSerialSum)/.*100' -stories.slice=$(if $(filter all,$(SLICE)),1,10) -stories.seed=$(SEED) | bin/tools/testsummary -name race

check: $(TOOLS) ## all static checks: format, vet, staticcheck, tidy, import table, generated docs
	@tools/check

contract: bin/tools/testsummary ## test what recast relies on in Proxmox VE, on the simulator or on a real server (PVE_ENDPOINT=https://… and more: see docs/notes/contract.md)
	@go test -json -count=1 -timeout 90m ./internal/contract | bin/tools/testsummary -name contract -tests

crash: bin/tools/testsummary ## kill a roll of 3 + 2 nodes at SLICE points of each combination, resume it, compare the results; a recover at every point; every fault at every call of an exchange, and SCHEDULES random ones; changes by others during a roll (SEED=n for others; SLICE=all for all)
	@GOGC=400 go test -json -timeout 3h -run 'TestCrash|TestUndoByHand|TestAHostThatRebootsAtEveryPoint|TestForeignHands$$|TestRecoverKilledAnywhere|TestUpgradeKubernetesIsKilled|TestSlowServers|TestMatrix' ./internal/sim/simtest $(if $(filter all,$(SLICE)),-crash.all,-crash.slice=$(SLICE)) -crash.seed=$(SEED) -foreign.cells=40 -matrix.all -matrix.schedules=$(SCHEDULES) -matrix.seed=$(SEED) | bin/tools/testsummary -name crash

kill: bin/tools/testsummary ## kill -9 ten rolls of real processes at random moments, run the same command again, check every disk
	@go test -json -timeout 30m -run TestKill ./cmd/recast -kill.times 10 | bin/tools/testsummary -name kill

mutants: ## remove safety checks from recast, one at a time, and run schedules until a test fails (SEED=n for others; MUTANT=name for one; BOUND=node-rolls)
	@go test -count=1 -timeout 0 -v -run 'TestMutants$$' ./internal/sim/schedules -mutants -mutants.seed=$(SEED) -mutants.only='$(MUTANT)' -mutants.bound=$(BOUND) | grep -v '^=== '

e2e: build bin/tools/testsummary ## recast against the real Image Factory and the real Talos imager: lock, build, verify, mirror, publish, roll
	@tools/e2e

e2e-talosctl: build bin/tools/testsummary ## Sidero's own talosctl against the lab's machines: every command with its result
	@tools/e2e-talosctl

e2e-k8s: build bin/tools/testsummary ## recast against a real etcd, kube-apiserver, controllers and scheduler: rolls, and every fault with its message
	@tools/e2e-k8s

e2e-report: bin/tools/testsummary ## recast's reports in a real browser: phone, desktop, dark mode, print (UPDATE=1 updates the screenshot of the docs)
	@tools/e2e-report

e2e-deps: ## install the Debian packages that make e2e and make e2e-report need
	@tools/e2e deps
	@tools/e2e-report deps

release-snapshot: bin/tools/testsummary bin/tools/sbom bin/tools/goreleaser ## build a release in dist without publishing it, and check it (docs/notes/release.md)
	@tools/release-snapshot

release: bin/tools/sbom bin/tools/goreleaser ## publish the checked out tag as a draft
	@PATH=$(CURDIR)/bin/tools:$$PATH bin/tools/goreleaser release --clean

schedules: bin/tools/testsummary ## N random clusters, each rolled through random faults until its state is correct (SEED=n for others; REPLAY='cp=1 …' for one)
	@go test -json -timeout 0 -run '$(if $(REPLAY),TestReplay,TestSchedules)$$' ./internal/sim/schedules -schedules.n=$(N) -schedules.seed=$(SEED) -schedules.replay='$(REPLAY)' | bin/tools/testsummary -name schedules -story -figures schedules,node-rolls,faults,violations

schema: bin/tools/testsummary ## check every request that the tests send to Proxmox against its API schema (APIDOC=file)
	@tools/schema '$(APIDOC)'

bench: ## run every benchmark
	@tools/bench

fuzz: ## run every fuzz target for FUZZTIME (10s)
	@tools/fuzz $(FUZZTIME)

docs: ## regenerate the generated documentation
	@go run ./cmd/recast docs --dir docs/reference
	@go test ./internal/config -run Schema -update
	@go test ./internal/ui -run SchemasAreUpToDate -update
	@go test ./internal/live -run Screenshot -update

clean: ## remove build output
	@rm -rf bin dist

# Linking Go's race detector needs a C compiler.
compiler:
	@cc=$$(go env CC); command -v "$${cc%% *}" >/dev/null || { echo "make test needs a C compiler for Go's race detector, and $$cc is not here: install gcc or clang (Debian: apt-get install gcc libc6-dev)" >&2; exit 1; }

# A separate module: goreleaser has more dependencies than all other tools together.
bin/tools/goreleaser: tools/release/go.mod tools/release/go.sum
	@mkdir -p bin/tools
	@go build -C tools/release -trimpath -o ../../bin/tools/ tool
	@touch $@

bin/tools/%: tools/go.mod tools/go.sum $(wildcard tools/cmd/*/*.go)
	@mkdir -p bin/tools
	@go build -C tools -o ../bin/tools/ tool ./cmd/...
	@touch $(TOOLS)

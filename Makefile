SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

FUZZTIME ?= 10s
PKG ?= ./...
SLICE ?=
SEED ?=
KILLS ?= 10
MATRIX ?=
SCHEDULES ?= 200
BOUND ?= 2000
N ?= 200
REPLAY ?=

# Everything is compiled with the flags of recast itself (like talosctl, without
# gRPC's pages for net/trace), so that tests, vet and staticcheck share one build of
# the dependencies. What debuggers read is left out: a fifth of the compiler's time goes
# into it. The race detector needs cgo.
export CGO_ENABLED := 0
export GOFLAGS := $(strip $(shell go env GOFLAGS) -trimpath -tags=grpcnotrace -gcflags=all=-dwarf=false)
# Tests are linked without symbols, which nothing reads here, and by Go's own linker where it was seen to link the race
# detector: it takes half the time of the C compiler's.
test race: export CGO_ENABLED := 1
test race: export GOFLAGS := $(GOFLAGS) '-ldflags=-s$(if $(filter linux/amd64,$(shell go env GOOS)/$(shell go env GOARCH)), -linkmode=internal)'

# The tools are a module of their own, so that their versions are pinned and
# their dependencies are not ours.
TOOLS := bin/tools/testsummary bin/tools/longtests bin/tools/sbom bin/tools/chart bin/tools/gatemutants bin/tools/figures
LINTERS := bin/tools/gofumpt bin/tools/staticcheck bin/tools/controller-gen bin/tools/actionlint

.PHONY: compiler figures generate help ci-full build build-operator demo test stories check contract crash kill race same schedules mutants test-mutants gate-mutants limits e2e e2e-talosctl e2e-k8s e2e-operator e2e-report e2e-helm e2e-deps release release-snapshot schema bench fuzz docs clean

help: ## list the targets
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/\1 \2/p' Makefile | while read -r name what; do printf '  make %-8s  %s\n' "$$name" "$$what"; done

build: ## build bin/recast
	@echo "build: compiles recast, which takes minutes where Go's build cache has none of it"
	@go build -o bin/recast ./cmd/recast

build-operator: build ## build bin/recast and bin/recast-operator
	@go build -o bin/recast-operator ./cmd/recast-operator

ci-full: ## all of .ci/run, and of every stage all: what it runs a part of each day
	@.ci/run full

demo: build ## the whole story in the embedded lab: patch, lock, build, publish, roll, disks intact
	@bin/recast lab demo

# Where APIDOC is given, what these send to Proxmox is held against the schema of its API.
test contract stories: export TEST_APIDOC := $(if $(APIDOC),$(abspath $(APIDOC)))

# make check vets, all at once. The package that takes longest begins first, beside those that wait for real clocks.
test: bin/tools/testsummary bin/tools/longtests compiler ## all tests but the long stories and those of make contract, with the race detector, and those of internal/tools (PKG=./cluster/ for some)
	@echo "test: compiles recast and its tests first, which takes minutes where Go's build cache has none of it; then a line for each package"
	@later=$$(GOFLAGS="$$GOFLAGS -race" bin/tools/longtests -names $(PKG)); export GORACE=atexit_sleep_ms=50; { code=0; go test -vet=off -race -short -timeout 20m -json $(if $(filter ./...,$(PKG)),./internal/sim/simtest $$(go list ./... | grep -v /internal/contract$$),$(PKG)) || code=$$?; $(if $(filter ./...,$(PKG)),(cd internal/tools && go test -vet=off -json ./...) || code=$$?;) exit $$code; } | bin/tools/testsummary -name test -later "$$later"

stories: bin/tools/testsummary bin/tools/longtests ## all that make test leaves out: whole clusters in the lab, what a person types, an upload of 4 GiB (SLICE=n for every n-th story in the lab, SEED=n for others)
	@internal/tools/stories '$(or $(SLICE),all)' '$(or $(SEED),1)' | bin/tools/testsummary -name stories

race: bin/tools/testsummary bin/tools/longtests compiler ## the contract and every tenth of the long stories in the lab again, with the race detector, which makes them ten times slower (SEED=n for others; SLICE=n for every n-th, without 500 nodes and the grids of foreign hands and drain faults; SLICE=all for all)
	@long=$$(GOFLAGS="$$GOFLAGS -race" bin/tools/longtests ./internal/sim/simtest); { code=0; go test -vet=off -race -json ./internal/contract || code=$$?; go test -vet=off -race -json -timeout 60m $$long -skip 'TestRoll(NearTheCriticalPath|BesidesTheSerialSum)/.*100$(if $(filter-out all,$(SLICE)),|TestForeignHands$$|TestDrainFaults$$|TestOneLook/500$$)' -stories.slice=$(if $(filter all,$(SLICE)),1,$(or $(SLICE),10)) -stories.seed=$(or $(SEED),1) || code=$$?; exit $$code; } | bin/tools/testsummary -name race

check: $(LINTERS) ## everything static: format, vet, staticcheck, tidy, import table, generated docs, words of the others
	@internal/tools/check

contract: bin/tools/testsummary ## what recast relies on in Proxmox VE: on the simulator, or on a real server (PVE_ENDPOINT=https://… and more: see docs/notes/contract.md)
	@go test -vet=off -json -count=1 -timeout 90m ./internal/contract | bin/tools/testsummary -name contract -tests

crash: bin/tools/testsummary ## kill a roll of 3 + 2 nodes at SLICE points of each combination, resume it, compare the worlds; so many kills of each undo --cancel, undo --previous, upgrade in place and roll without its journal; the same with each stage in the life of a cluster, from an empty datacentre on; every fault at every call of an exchange (MATRIX=n: n faults of some exchanges), and SCHEDULES random ones; what others do meanwhile (SEED=n for others; SLICE=all for all)
	@GOGC=400 go test -vet=off -json -timeout 3h -run 'TestCrash|TestUndoByHand|TestAHostThatRebootsAtEveryPoint|TestForeignHands$$|TestRecover$$|TestResumeWithoutTheJournal|TestUpgradeKubernetesIsKilled|Test(Life|Bootstrap|Create|Remove|Migration|Rebuild|Recover|Rollback|InPlace|Surge|Prepared|Proofs)Killed|TestSlowServers|TestMatrix' ./internal/sim/simtest $(if $(filter all,$(SLICE)),-crash.all,-crash.slice=$(or $(SLICE),10)) -crash.seed=$(or $(SEED),1) -foreign.cells=$(if $(MATRIX),12,40) $(if $(MATRIX),-matrix.slice=$(MATRIX),-matrix.all) -matrix.schedules=$(SCHEDULES) -matrix.seed=$(or $(SEED),1) | bin/tools/testsummary -name crash

kill: bin/tools/testsummary ## kill -9 KILLS rolls of real processes at random moments, type the same again, look at every disk
	@go test -vet=off -json -timeout 30m -parallel 3 -run TestKill ./cmd/recast -kill.times $(KILLS) -kill.seed $(or $(SEED),0) | bin/tools/testsummary -name kill

mutants: ## take guards of recast out, one after the other, and run the test that a mutant names, or play schedules until each is missed (SEED=n for others; MUTANT=name for one; BOUND=node-rolls)
	@go test -count=1 -timeout 0 -v -run 'TestMutants$$' ./internal/sim/schedules -mutants -mutants.seed=$(or $(SEED),1) -mutants.only='$(MUTANT)' -mutants.bound=$(BOUND) | grep -v '^=== '

test-mutants: bin/tools/testsummary ## of those, the ones that name a test of make test, which must fail (SLICE=n for every n-th, SEED=n for others)
	@go test -vet=off -json -count=1 -timeout 60m -run 'TestMutants$$' ./internal/sim/schedules -mutants -mutants.named -mutants.slice=$(if $(filter all,$(SLICE)),1,$(or $(SLICE),1)) -mutants.seed=$(or $(SEED),1) -mutants.only='$(MUTANT)' | bin/tools/testsummary -name test-mutants -story -figures mutants

same: ## what users see differently since REVISION: both versions of recast look at nine labs (SHAPES="one five" for some)
	@internal/tools/same '$(REVISION)' $(SHAPES)

gate-mutants: bin/tools/gatemutants ## take each condition of a gate out, and see which test of make test fails (SLICE=n for every n-th, SEED=n for others; ONLY=text for those lines of the table)
	@bin/tools/gatemutants -slice=$(if $(filter all,$(SLICE)),1,$(or $(SLICE),1)) -seed=$(or $(SEED),1) -only='$(ONLY)'

e2e: build bin/tools/testsummary bin/tools/staticcheck ## recast against the real Image Factory and the real Talos imager: lock, build, verify, mirror, publish, roll
	@internal/tools/e2e

e2e-talosctl: build bin/tools/testsummary bin/tools/staticcheck ## Sidero's own talosctl against the lab's machines: every command with what became of it
	@internal/tools/e2e-talosctl

e2e-k8s: build bin/tools/testsummary ## recast against a real etcd, kube-apiserver, controllers and scheduler: rolls, and every fault with its message; kubectl in a lab
	@internal/tools/e2e-k8s

e2e-operator: build-operator bin/tools/testsummary ## recast-operator as it is installed, in a real Kubernetes with real kubelets: stories of a version bump, kills, windows, a fleet of 100 clusters (THOUSAND=1: of 1,000; ACCESS=1: writes docs/reference/operator-access.md)
	@THOUSAND=$(THOUSAND) ACCESS=$(ACCESS) internal/tools/e2e-operator

e2e-report: bin/tools/testsummary ## recast's reports, recast ui and the operator's pages in a real browser: phone, desktop, dark mode, keyboard, print (UPDATE=1 updates the screenshots of the docs)
	@internal/tools/e2e-report

e2e-helm: bin/tools/testsummary bin/tools/chart ## the operator's manifests by Helm, Kustomize and recast itself, compared; its alerts evaluated as Prometheus does
	@internal/tools/e2e-helm

e2e-deps: ## install the Debian packages that make e2e and make e2e-report need
	@internal/tools/e2e deps
	@internal/tools/e2e-report deps

release-snapshot: bin/tools/testsummary bin/tools/sbom bin/tools/chart bin/tools/goreleaser ## build a release in dist without publishing it, and check it (docs/notes/release.md)
	@internal/tools/release-snapshot

release: bin/tools/testsummary bin/tools/sbom bin/tools/chart bin/tools/goreleaser ## build the checked out tag in dist and check it: all that .github/workflows/release.yaml signs and publishes
	@internal/tools/release-snapshot tag

schedules: bin/tools/testsummary ## N random clusters, each rolled through random troubles until it is as it should be, and where N > 1 the cases that failed in the past (SEED=n for others; REPLAY='cp=1 …' for one)
	@go test -json -timeout 0 -run '($(if $(REPLAY),TestReplay,TestSchedules$(if $(filter 1,$(N)),,|TestCorpus)))$$' ./internal/sim/schedules -schedules.n=$(N) -schedules.seed=$(or $(SEED),1) -schedules.replay='$(REPLAY)' | bin/tools/testsummary -name schedules -story -figures schedules,node-rolls,faults,violations

schema: bin/tools/testsummary ## check every request that the tests send to Proxmox against its API schema (APIDOC=file)
	@internal/tools/schema '$(APIDOC)'

limits: ## run the benchmarks whose allocations docs/performance.md limits
	@internal/tools/bench limits

bench: ## run every benchmark
	@internal/tools/bench

fuzz: ## run every fuzz target for FUZZTIME (10s)
	@internal/tools/fuzz $(FUZZTIME)

docs: ## regenerate the generated documentation
	@go run ./cmd/recast docs --dir docs/reference
	@go test ./internal/config -run Schema -update
	@go test ./internal/ui -run SchemasAreUpToDate -update
	@go test ./internal/live -run Screenshot -update
	@go test -vet=off ./cmd/recast -run TestTranscript -transcript.update

generate: bin/tools/controller-gen ## regenerate what api/ is the source of: deep copies, CRDs
	@bin/tools/controller-gen object crd paths=./api/... output:crd:dir=deploy/crds

figures: bin/tools/figures ## how large the house is: lines, functions, files, rooms, comparisons of strategies, types that are none
	@bin/tools/figures

clean: ## remove build output
	@rm -rf bin dist

# Linking Go's race detector needs a C compiler.
compiler:
	@cc=$$(go env CC); command -v "$${cc%% *}" >/dev/null || { echo "make test needs a C compiler for Go's race detector, and $$cc is not here: install gcc or clang (Debian: apt-get install gcc libc6-dev)" >&2; exit 1; }

# A separate module: goreleaser has more dependencies than all other tools together.
bin/tools/goreleaser: internal/tools/release/go.mod internal/tools/release/go.sum
	@internal/tools/build internal/tools/release
	@touch $@

$(LINTERS): internal/tools/go.mod internal/tools/go.sum
	@internal/tools/build linters
	@touch $(LINTERS)

$(TOOLS): internal/tools/go.mod internal/tools/go.sum $(wildcard internal/tools/cmd/*/*.go)
	@internal/tools/build internal/tools
	@touch $(TOOLS)

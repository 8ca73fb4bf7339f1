# Redrive. `make` alone lists what there is.
# Nothing but Go, make and, on Debian as root, apt-get is taken for granted.

SHELL := /bin/sh
.DEFAULT_GOAL := help

GO       ?= go
BIN      := bin
FUZZTIME ?= 20s

# The linter is built from source at this version, once a machine and Go release (about 90 s on 2 cores).
LINT_VERSION := v2.15.0
TOOLS        ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/redrive-tools
LINT_DIR      = $(TOOLS)/golangci-lint-$(LINT_VERSION)-$(shell $(GO) env GOVERSION)
LINT          = $(LINT_DIR)/golangci-lint

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build the binaries into ./bin
	@CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN)/ ./cmd/...

.PHONY: run
run: ## Start a broker with a private database and demo traffic; PORT=9000 make run moves it
	@scripts/need database
	@CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN)/redrive ./cmd/redrive
	@exec $(BIN)/redrive dev

.PHONY: test
test: ## Run all tests on a real database under the race detector; REDRIVE_TEST_DSN names one to use
	@scripts/need database compiler
	$(GO) test -race -timeout 15m ./...

.PHONY: check
check: format vet lint tidy generated length ## Run every check that needs no database

.PHONY: format
format: ## Fail where gofmt would change a file
	@out=$$(find . -name '*.go' -not -path './.*' -exec gofmt -s -d {} +); \
	  if [ -n "$$out" ]; then printf '%s\n' "$$out"; echo 'run: gofmt -s -w .' >&2; exit 1; fi

.PHONY: vet
vet: ## Run go vet
	$(GO) vet ./...

.PHONY: lint
lint: $(LINT) ## Run golangci-lint as .golangci.yml says
	$(LINT) run ./...

$(LINT):
	@echo "building golangci-lint $(LINT_VERSION), once"
	@GOBIN='$(LINT_DIR)' GOFLAGS= $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)

.PHONY: fix
fix: $(LINT) ## Format, and mend what the linters can mend by themselves
	gofmt -s -w $$(find . -name '*.go' -not -path './.*')
	$(LINT) run --fix ./...

.PHONY: tidy
tidy: ## Fail where go mod tidy would change go.mod or go.sum
	$(GO) mod tidy -diff

.PHONY: generated
generated: ## Fail where go generate would change a file
	@scripts/generated-diff

.PHONY: length
length: ## Fail on a hand-written Go file past 700 lines, tests apart
	@find . -name '*.go' -not -name '*_test.go' -not -name '*.gen.go' -not -path './.*' -exec wc -l {} + | \
	  awk '$$2 != "total" && $$1 > 700 { print $$2 ": " $$1 " lines, 700 are the most"; bad = 1 } END { exit bad }'

.PHONY: bench
bench: ## Measure the broker; BENCH_FLAGS="--size small" and the like
	@scripts/need database
	@CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN)/ ./cmd/redrive ./cmd/redrive-bench
	$(BIN)/redrive-bench --redrive $(BIN)/redrive $(BENCH_FLAGS)

.PHONY: chaos
chaos: ## Kill brokers and databases under traffic, then check every count; CHAOS_FLAGS="--duration 20s"
	@scripts/need database
	@CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN)/ ./cmd/redrive ./cmd/redrive-chaos
	$(BIN)/redrive-chaos --redrive $(BIN)/redrive $(CHAOS_FLAGS)

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME (20s)
	@scripts/fuzz $(FUZZTIME)

.PHONY: cover
cover: ## Run the tests and print what they cover; the profile is coverage.out
	@scripts/need database
	$(GO) test -timeout 15m -coverpkg=./... -coverprofile=coverage.out ./...
	@$(GO) tool cover -func=coverage.out | tail -1

.PHONY: clean
clean: ## Remove what was built; the private database in .redrive stays
	rm -rf $(BIN) coverage.out

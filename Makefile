# nodedns: `make` lists what there is. Everything goes to _out/ and bin/; nothing else is written.
SHELL := /bin/bash
GO ?= go
OUT := _out
GOLANGCI_VERSION := v2.15.0
GOLANGCI := $(OUT)/tools/golangci-lint-$(GOLANGCI_VERSION)
FUZZTIME ?= 5m
export CGO_ENABLED ?= 0

.DEFAULT_GOAL := help
.PHONY: help build demo test unit bench fuzz e2e-node e2e-node-full e2e-webhook e2e-cluster images verify generate tidy fmt lint clean

help: ## this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  \033[1m%-14s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## both binaries into bin/
	$(GO) build -trimpath -ldflags '-s -w' -o bin/nodedns-cache ./cache
	$(GO) build -trimpath -ldflags '-s -w' -o bin/nodedns-webhook ./webhook

demo: ## a real IPVS cluster on this machine, injection, resolution, three SIGKILLs (root, Debian 12)
	$(GO) run ./e2e/demo

test: ## every tier: unit with race, fuzz, kernel tiers, real API server, whole cluster (root, Debian 12)
	$(GO) run ./e2e/tiers

unit: ## the tests that need neither root nor a kernel of their own
	CGO_ENABLED=1 $(GO) test -race -shuffle=on ./cache/... ./webhook/... ./certs/... ./e2e/house/...

bench: ## nodedns beside the floor, CoreDNS, unbound, dnsmasq and dnsdist (root, Debian 12)
	$(GO) run ./e2e/bench

fuzz: ## each fuzz target for FUZZTIME (default 5m)
	$(GO) run ./e2e/tiers -only fuzz -fuzztime $(FUZZTIME)

e2e-node: ## node tiers: iptables and nftables on this kernel, IPVS in User-Mode Linux
	$(GO) run ./e2e/tiers -only netns,uml

e2e-node-full: ## every proxy mode, fault and client as a table, and in _out/failover.json
	$(GO) run ./e2e/failover

e2e-webhook: ## the webhook on a real kube-apiserver
	$(GO) run ./e2e/tiers -only webhook

e2e-cluster: ## the whole cluster
	$(GO) run ./e2e/tiers -only cluster

images: build ## OCI archives of both binaries into _out/images, without docker
	$(GO) run ./e2e/images

verify: generate tidy fmt lint ## generated files, go.mod, formatting and lint are as committed
	git diff --exit-code

generate:
	$(GO) generate ./...

tidy:
	$(GO) mod tidy

fmt: $(GOLANGCI)
	$(GOLANGCI) fmt ./...

lint: $(GOLANGCI)
	$(GOLANGCI) run ./...

$(GOLANGCI):
	@echo "building golangci-lint $(GOLANGCI_VERSION) (some minutes the first time)"
	@mkdir -p $(@D)
	GOBIN=$(CURDIR)/$(@D) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	mv $(@D)/golangci-lint $@

clean: ## remove bin/ and _out/
	rm -rf bin $(OUT)

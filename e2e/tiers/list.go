package main

import (
	"context"
	"time"

	"github.com/nodedns/nodedns/e2e/archive"
	"github.com/nodedns/nodedns/e2e/bed"
	"github.com/nodedns/nodedns/e2e/console"
	"github.com/nodedns/nodedns/e2e/host"
	"github.com/nodedns/nodedns/e2e/parts"
)

// A tier is a part of the tests with needs of its own.
type tier struct {
	name string
	what string
	// args follow "go test".
	args []string
	// race runs it with the race detector, which needs a C compiler.
	race bool
	// fuzz runs each fuzz target below the folders in args for a while instead of the tests.
	fuzz bool
	// live prints what passing tests say while they run: those that take minutes tell what they do.
	live bool
	// needs are checked before; what is missing makes the tier skip.
	needs    host.Needs
	packages []host.Package
	// prepare builds what the tests would otherwise build in silence.
	prepare func(context.Context, *console.Console) error
	// usual is how long it takes when everything is built.
	usual time.Duration
}

// kernelTests are those of the node room that run in namespaces of the host's kernel, and once more in User-Mode Linux.
const kernelTests = "^Test(Kernel|N[0-9])"

const nodeRoom = "./cache/internal/node"

func tiers() []tier {
	kubeProxy := func(ctx context.Context, con *console.Console) error {
		_, err := parts.Build(ctx, con, parts.Proxy())
		return err
	}
	clients := []host.Package{
		{Name: "bind9-dnsutils", Why: "dig"}, {Name: "knot-dnsutils", Why: "kdig"}, {Name: "ldnsutils", Why: "drill"},
	}
	return []tier{
		{
			name: "unit", what: "logic, with the race detector", race: true, packages: bed.TestPackages(), usual: 3 * time.Minute,
			args: []string{
				// Many of these wait more than they work: more packages at a time than there are cores.
				"-p=4", "-shuffle=on", "-timeout=10m", "-skip=" + kernelTests + "|^TestUML$",
				"./cache/...", "./webhook/...", "./certs/...", "./e2e/house/...", "./e2e/agent", "./e2e/archive",
				"./e2e/failover", "./e2e/host", "./e2e/load", "./e2e/parts", "./e2e/pki", "./e2e/resolver", "./e2e/tiers",
			},
		},
		{
			name: "fuzz", what: "fuzz targets, a while each", fuzz: true, usual: 2 * time.Minute,
			args: []string{"cache", "webhook", "certs"},
		},
		{
			name: "netns", what: "node, in network namespaces of this kernel", needs: host.Needs{Root: true},
			packages: bed.TestPackages(), prepare: kubeProxy, usual: time.Minute,
			// These tests wait more than they work, so there are more of them at a time than processors.
			args: []string{"-timeout=10m", "-parallel=8", "-run=" + kernelTests, nodeRoom},
		},
		{
			name: "clients", what: "dig, kdig, drill, glibc, musl and Go ask the cache", needs: host.Needs{Root: true},
			packages: append(bed.TestPackages(), clients...), usual: 30 * time.Second, args: []string{"-timeout=10m", "./e2e/clients"},
		},
		{
			name: "uml", what: "node, in User-Mode Linux: IPVS", needs: host.Needs{Root: true, UML: true, Memory: 1500},
			packages: append(bed.Packages(), bed.TestPackages()...),
			prepare:  kubeProxy, usual: 4 * time.Minute,
			args: []string{"-timeout=20m", "-parallel=1", "-run=^(TestUML|TestRunGivesOutputAndExitCode|TestRunEndsWithItsContext|TestKernelEndsWithItsOwner|TestValidate)$", nodeRoom, "./e2e/uml"},
		},
		{
			name: "webhook", what: "the webhook, on a real kube-apiserver", needs: host.Needs{Root: true, Memory: 2500}, live: true,
			prepare: func(ctx context.Context, con *console.Console) error {
				_, err := parts.Build(ctx, con, parts.ControlPlane(), parts.Product())
				return err
			},
			// One package after the other: API servers side by side would slow each other into time-outs on two cores.
			usual: 2 * time.Minute, args: []string{"-p=1", "-timeout=15m", "./e2e/bed", "./e2e/webhook"},
		},
		{
			name: "cluster", what: "a whole cluster, kube-proxy in IPVS mode", packages: bed.Packages(), live: true,
			needs: host.Needs{Root: true, UML: true, Memory: 3500},
			prepare: func(ctx context.Context, con *console.Console) error {
				if _, err := parts.Build(ctx, con, parts.ControlPlane(), parts.Node()); err != nil {
					return err
				}
				_, err := archive.BuildBed(ctx, con)
				return err
			},
			usual: 3 * time.Minute, args: []string{"-timeout=20m", "./e2e/cluster"},
		},
	}
}

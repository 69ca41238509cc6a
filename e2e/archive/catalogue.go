package archive

import (
	"context"
	"embed"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nodedns/nodedns/e2e/console"
	"github.com/nodedns/nodedns/e2e/host"
)

// Names of the images.
const (
	CacheImage   = "docker.io/nodedns/cache:dev"
	WebhookImage = "docker.io/nodedns/webhook:dev"
	DNSImage     = "docker.io/nodedns-bed/coredns:1"
	ClientImage  = "docker.io/nodedns-bed/client:1"
	PauseImage   = "docker.io/nodedns-bed/pause:1"
)

// lookupSource is the program that asks the C library's resolver; the client image has it for glibc and for musl.
//
//go:embed lookup/lookup.c
var lookupSource embed.FS

const busybox = "/usr/bin/busybox"

// Cache is the image of nodedns-cache. It carries iptables of both flavours, since the rules must go where the node's
// kube-proxy keeps its own.
func Cache(bin string) (Image, error) {
	files := map[string]string{"nodedns-cache": filepath.Join(bin, "nodedns-cache")}
	extensions, err := filepath.Glob("/usr/lib/*-linux-gnu*/xtables/lib*.so")
	if err != nil || len(extensions) == 0 {
		return Image{}, fmt.Errorf("no iptables extensions below /usr/lib (Debian package iptables): %w", err)
	}
	programs := []string{"/usr/sbin/xtables-nft-multi", "/usr/sbin/xtables-legacy-multi"}
	if err := addDynamic(files, slices.Concat(programs, extensions)...); err != nil {
		return Image{}, fmt.Errorf("collecting iptables: %w", err)
	}
	maps.DeleteFunc(files, func(to, _ string) bool {
		return strings.Contains(to, "/xtables/libebt_") || strings.Contains(to, "/xtables/libarpt_")
	})
	links := usrMerged()
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, verb := range []string{"", "-save", "-restore"} {
			links["usr/sbin/"+family+verb] = "xtables-nft-multi"
			links["usr/sbin/"+family+"-nft"+verb] = "xtables-nft-multi"
			links["usr/sbin/"+family+"-legacy"+verb] = "xtables-legacy-multi"
		}
	}
	return Image{Name: CacheImage, Entrypoint: []string{"/nodedns-cache"}, Files: flatten(files), Links: links}, nil
}

// Webhook is the image of nodedns-webhook.
func Webhook(bin string) Image {
	return Image{
		Name: WebhookImage, Entrypoint: []string{"/nodedns-webhook"},
		Files: map[string]string{"nodedns-webhook": filepath.Join(bin, "nodedns-webhook")},
	}
}

// DNS is the image of the test cluster's DNS server.
func DNS(bin string) Image {
	return Image{
		Name: DNSImage, Entrypoint: []string{"/coredns"},
		Files: map[string]string{"coredns": filepath.Join(bin, "coredns")},
	}
}

// Pause is the image of the process that holds a Pod's namespaces open: it sleeps.
func Pause() Image {
	return Image{
		Name: PauseImage, Entrypoint: []string{"/busybox", "sleep", "2147483647"},
		Files: map[string]string{"busybox": busybox},
	}
}

// Client is the image of the Pods that ask: a shell, the load client (which is also a client by Go's resolver), and
// clients by the resolvers of glibc and musl.
func Client(ctx context.Context, con *console.Console, bin string) (Image, error) {
	glibc, musl, err := buildLookups(ctx, con, bin)
	if err != nil {
		return Image{}, err
	}
	files := map[string]string{
		"usr/bin/busybox": busybox, "usr/bin/bed-client": filepath.Join(bin, "bed-client"), "usr/bin/lookup-musl": musl,
	}
	needed := make(map[string]string)
	if err := addDynamic(needed, glibc); err != nil {
		return Image{}, err
	}
	// glibc loads these by name while it runs.
	for _, l := range []string{"libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2"} {
		found, err := library(l)
		if err != nil {
			return Image{}, err
		}
		if err := addDynamic(needed, found); err != nil {
			return Image{}, err
		}
	}
	delete(needed, strings.TrimPrefix(glibc, "/"))
	maps.Copy(files, flatten(needed))
	files["usr/bin/lookup-glibc"] = glibc
	links := usrMerged()
	applets, err := exec.CommandContext(ctx, busybox, "--list").Output()
	if err != nil {
		return Image{}, fmt.Errorf("listing busybox's programs: %w", err)
	}
	for a := range strings.FieldsSeq(string(applets)) {
		if a != "busybox" {
			links["usr/bin/"+a] = "busybox"
		}
	}
	return Image{
		Name: ClientImage, Entrypoint: []string{"/usr/bin/busybox", "sleep", "2147483647"}, Files: files, Links: links,
		Texts: map[string]string{
			"etc/passwd":        "root:x:0:0:root:/root:/bin/sh\n",
			"etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
		},
	}, nil
}

// buildLookups compiles the resolver clients, unless that has been done from the same source.
func buildLookups(ctx context.Context, con *console.Console, bin string) (glibc, musl string, err error) {
	source, err := lookupSource.ReadFile("lookup/lookup.c")
	if err != nil {
		return "", "", err
	}
	glibc, musl = filepath.Join(bin, "lookup-glibc"), filepath.Join(bin, "lookup-musl")
	file := filepath.Join(bin, "lookup.c")
	old, err := os.ReadFile(file)
	if err == nil && string(old) == string(source) && fileExists(glibc) && fileExists(musl) {
		return glibc, musl, nil
	}
	err = host.Install(ctx, con,
		host.Package{Name: "gcc", Why: "compiles the glibc client"}, host.Package{Name: "libc6-dev", Why: "compiles the glibc client"},
		host.Package{Name: "musl-tools", Why: "compiles the musl client"})
	if err != nil {
		return "", "", err
	}
	// Out of the way first: whatever stops this half-way, the source in place means that both programs are made of it.
	if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
		return "", "", fmt.Errorf("replacing the resolver clients: %w", err)
	}
	for _, args := range [][]string{{"gcc", "-O1", "-o", glibc}, {"musl-gcc", "-O1", "-static", "-o", musl}} {
		cmd := exec.CommandContext(ctx, args[0], append(args[1:], "-x", "c", "-")...)
		cmd.Stdin = strings.NewReader(string(source))
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", "", fmt.Errorf("compiling a resolver client: %w: %s", err, out)
		}
	}
	if err := os.WriteFile(file, source, 0o644); err != nil {
		return "", "", fmt.Errorf("keeping the source of the resolver clients: %w", err)
	}
	return glibc, musl, nil
}

// usrMerged are Debian's links from the old top folders.
func usrMerged() map[string]string {
	return map[string]string{"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
}

// flatten moves files from the old top folders below usr, where their links point.
func flatten(files map[string]string) map[string]string {
	out := make(map[string]string, len(files))
	for to, from := range files {
		for _, top := range []string{"lib/", "lib64/", "bin/", "sbin/"} {
			if strings.HasPrefix(to, top) {
				to = "usr/" + to
				break
			}
		}
		out[to] = from
	}
	return out
}

// Package parts builds the programs the test bed consists of, from Go modules, into _out/bin of the repository.
//
// It owns the list of parts, their versions (in the nested modules under e2e/components, which keep them out of the main
// go.mod) and the cache: a part whose sources, flags and Go version did not change is not built again, a build that was
// interrupted goes on where it stopped, and programs that run at the same time build each part once.
//
//	bin, err := parts.Build(ctx, con, parts.ControlPlane...)
//	exec.Command(filepath.Join(bin, "etcd"))
package parts

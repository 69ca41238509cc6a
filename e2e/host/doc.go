// Package host is what the test bed needs of the machine it runs on: Debian packages, a check of the machine before
// work starts, run folders, network namespaces and child processes.
//
// It owns the promise that nothing stays behind. Children die with the process that started them (the kernel sends the
// signal, so a SIGKILL of the parent counts too), network namespaces have no name and die with their last member, and a
// run folder is locked by its owner, so that a later run can tell a dead owner's folder and remove it. It knows nothing
// of Kubernetes or DNS.
//
//	ws, err := host.NewWorkspace(con, "demo")
//	ns, err := host.NewNamespace()
//	p, err := host.Start(host.Command{Name: "etcd", Path: "/…/etcd", Log: ws.Path("etcd.log"), Namespace: ns})
//	defer p.Stop(5 * time.Second)
package host

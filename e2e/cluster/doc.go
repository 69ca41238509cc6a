// Package cluster is the whole story on real parts: a cluster with CoreDNS as cluster DNS on one node, the project
// installed into it as its README says, a Pod on the other node, and a cache that is killed while the Pod asks.
//
// It owns the steps and what they measure. The demonstration (e2e/demo) tells them to a person, the tests in this
// package check them. The machinery below is package bed.
//
//	env, err := cluster.Start(ctx, con, []string{"ipvs", "ipvs"})
//	defer env.Stop()
//	err = env.Install(ctx)
//	pod, err := env.CreatePod(ctx, cluster.PodSpec{Namespace: "demo", Name: "client", Node: "node2"})
//	out, err := pod.Exec(ctx, nil, "cat", "/etc/resolv.conf")
package cluster

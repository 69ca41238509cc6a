// Package ops owns the web servers an operator and the kubelet look at: health, readiness, metrics and profiles, and the
// figures about the process itself. It decides nothing about DNS; what to answer comes from the functions it is given.
//
//	servers := ops.NewServers(log, ops.NewMetrics(reg, build))
//	servers.Set([]ops.Endpoint{{Kind: ops.Health, Addr: "169.254.25.10:8080", Handler: ops.HealthHandler(alive)}})
//	err := servers.Run(ctx) // until ctx ends
//
// Set may be called at any time. A server whose address does not change is kept, with its connections; one whose address is
// taken is tried again until it is free. Neither ever stops DNS.
package ops

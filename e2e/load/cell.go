package load

// CellPrefix begins a line on which a test prints a Cell as JSON.
const CellPrefix = "CELL "

// A Cell is what one client lost by one fault, in the matrix of failover.
type Cell struct {
	// Mode is kube-proxy's, Guard the level in force.
	Mode  string `json:"mode"`
	Guard string `json:"guard"`
	Fault string `json:"fault"`
	// Client is the resolver (raw, glibc, musl, go), From where it runs (pod, host).
	Client    string `json:"client"`
	Transport string `json:"transport"`
	From      string `json:"from"`
	Queries   int    `json:"queries"`
	Failed    int    `json:"failed"`
	// BaselineFailed is what the same load on the plain ClusterIP lost meanwhile.
	BaselineFailed int `json:"baseline_failed"`
	// OutageMS is the longest time in which every question failed.
	OutageMS   float64        `json:"outage_ms"`
	AnsweredBy map[string]int `json:"answered_by"`
}

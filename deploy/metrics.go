package deploy

// Metric is a metric of the operator that an alert or the dashboard uses.
type Metric struct {
	Name   string
	Labels []string // its own, besides those of the scrape
	Help   string   // "": one of controller-runtime, client-go or the Go runtime
}

// Metrics are all of them. Tests hold the alerts, the dashboard and the documentation
// against this list.
var Metrics = []Metric{
	{"recast_cluster_condition", []string{"namespace", "cluster", "type", "status"}, "1 for the status that a condition of a TalosCluster has"},
	{"recast_cluster_nodes", []string{"namespace", "cluster", "state"}, "nodes of a TalosCluster: total, in-sync, stale, unread"},
	{"recast_cluster_check_timestamp_seconds", []string{"namespace", "cluster"}, "when the newest check of a TalosCluster ended"},
	{"recast_cluster_check_due_timestamp_seconds", []string{"namespace", "cluster"}, "when the check after the newest one of a TalosCluster is due; none if it is suspended or has no schedule"},
	{"recast_imageroll_phase", []string{"namespace", "roll", "cluster", "phase"}, "1 for the phase of an ImageRoll that is not finished, or is the newest of its cluster"},
	{"recast_fleetroll_members", []string{"namespace", "fleet", "phase"}, "clusters of a FleetRoll"},
	{"controller_runtime_reconcile_total", []string{"controller", "result"}, ""},
	{"workqueue_depth", []string{"name", "controller", "priority"}, ""},
	{"rest_client_requests_total", []string{"code", "host", "method"}, ""},
	{"leader_election_master_status", []string{"name"}, ""},
	{"process_resident_memory_bytes", nil, ""},
}

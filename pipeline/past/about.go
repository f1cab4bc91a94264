package past

import (
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/schematics"
)

// Origin is where a run comes from.
type Origin struct {
	Recast string `json:"recast,omitempty"` // its version
	Who    string `json:"who,omitempty"`    // the user, or who started the pipeline
	Commit string `json:"commit,omitempty"` // of the directory with recast.yaml
}

// About describes a run. It is kept in the run's journal for history and reports.
type About struct {
	Command string       `json:"command"` // "roll", "undo --previous", "undo --cancel"
	Cluster string       `json:"cluster"` // its name
	By      claim.Holder `json:"by"`      // the process that started it
	// Elsewhere says that another machine started it, which has the details, and By only finished it.
	Elsewhere bool `json:"elsewhere,omitempty"`
	// GoneOn are the processes that continued it.
	GoneOn []claim.Holder `json:"goneOn,omitempty"`
	Origin
	Talos string `json:"talos"` // of the lock that it was started with
	Lock  string `json:"lock"`  // hash of that lock
	// Before is the previous lock, if known, and Changes are the differences.
	Before  string              `json:"before,omitempty"`
	Was     string              `json:"was,omitempty"` // its version of Talos
	Changes []schematics.Change `json:"changes,omitempty"`
	// Kubernetes is the version in the configuration.
	Kubernetes string `json:"kubernetes,omitempty"`
}

// Keys of a run's journal for history and reports.
const (
	AboutKey = "about"
	FatesKey = "fates"

	PlanKey      = "plan"       // the current or last plan
	FirstPlanKey = "plan/first" // the original plan, once another process continues the run

	UpgradeKey = "upgrade-k8s" // the plan of an upgrade of Kubernetes
	RestoreKey = "restore"     // that etcd is restored
)

// Last is the process that works or last worked on the run.
func (a About) Last() claim.Holder {
	if n := len(a.GoneOn); n > 0 {
		return a.GoneOn[n-1]
	}
	return a.By
}

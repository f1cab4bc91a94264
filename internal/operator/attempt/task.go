// Package attempt is what runs in the pod of a Job: it puts the files of a cluster together, runs
// recast on them, and writes what becomes of that into the status of the TalosCluster or the ImageRoll.
// Nobody has to be there to listen: the operator may be down meanwhile.
package attempt

import (
	"encoding/json"
	"fmt"

	"github.com/recast-sh/recast/api/v1alpha1"
)

// Kind is what a Job does.
type Kind string

// The kinds of Jobs.
const (
	Check      Kind = "check"      // recast drift, for a TalosCluster
	Plan       Kind = "plan"       // recast plan, for an ImageRoll
	Roll       Kind = "roll"       // recast roll --plan, for an ImageRoll
	Kubernetes Kind = "kubernetes" // recast upgrade-k8s, for an ImageRoll
)

// Task is what a Job has to do, as the operator wants it. It is the Job's environment variable
// RECAST_TASK, so that whoever reads the Job sees all of it.
type Task struct {
	Kind      Kind   `json:"kind"`
	Namespace string `json:"namespace"`
	Cluster   string `json:"cluster"`        // name of the TalosCluster
	Roll      string `json:"roll,omitempty"` // name of the ImageRoll
	Job       string `json:"job"`            // name of the Job
	// Results is the ConfigMap that is filled with what recast printed. It exists.
	Results string `json:"results"`

	Source            v1alpha1.Source       `json:"source,omitzero"`
	TalosVersion      string                `json:"talosVersion,omitempty"`
	KubernetesVersion string                `json:"kubernetesVersion,omitempty"`
	Lock              v1alpha1.LockPolicy   `json:"lock,omitempty"`
	Secrets           []Mounted             `json:"secrets,omitempty"`
	Files             []v1alpha1.SecretFile `json:"files,omitempty"` // copied beside recast.yaml

	For string `json:"for,omitempty"` // v1alpha1.Check.For
	// Finished are the nodes that earlier attempts have done.
	Finished []string `json:"finished,omitempty"`
	// Continue: an earlier attempt has begun the plan.
	Continue bool `json:"continue,omitempty"`
	// PlanHash is that of the plan that was approved.
	PlanHash string `json:"planHash,omitempty"`
	// KubernetesRoll: the plan is one of recast upgrade-k8s.
	KubernetesRoll bool     `json:"kubernetesRoll,omitempty"`
	Only           []string `json:"only,omitempty"`
	AcceptOutage   bool     `json:"acceptOutage,omitempty"`
}

// Mounted is a key of a Secret that must be there for recast to run.
type Mounted struct {
	Path      string `json:"path"`                // in the container
	Secret    string `json:"secret"`              // its name
	ConfigMap bool   `json:"configMap,omitempty"` // it is a ConfigMap
	Key       string `json:"key,omitempty"`       // "": any, and path is a directory
	Field     string `json:"field"`               // of the TalosCluster: "spec.secrets.proxmoxToken"
}

// ReadTask reads a task from the text of its environment variable.
func ReadTask(text string) (Task, error) {
	var t Task
	if text == "" {
		return t, fmt.Errorf("%s is not set: this command is for the Jobs that the operator makes", TaskVariable)
	}
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return t, fmt.Errorf("%s: %w", TaskVariable, err)
	}
	return t, nil
}

// String is the text that ReadTask reads.
func (t Task) String() string {
	b, err := json.Marshal(t)
	if err != nil {
		return "" // impossible for plain data
	}
	return string(b)
}

// TaskVariable is the environment variable of a task.
const TaskVariable = "RECAST_TASK"

// Directories in the container.
const (
	WorkDir    = "/work"              // recast.yaml and all beside it; in memory, since journals have secrets
	ScratchDir = "/tmp"               // images while they are unpacked and uploaded
	BackupDir  = "/backups"           // etcd snapshots
	SourceDir  = "/run/recast/source" // the ConfigMap of a source
	PlanDir    = "/run/recast/plan"   // the ConfigMap of a plan
	LockDir    = "/run/recast/lock"   // the ConfigMap with the lock that the operator keeps
	TrustDir   = "/run/recast/trust"  // ca.crt
	SecretsDir = "/run/recast/secrets"

	ProxmoxToken = SecretsDir + "/proxmox/token"
	Talosconfig  = SecretsDir + "/talos/talosconfig"
	Kubeconfig   = SecretsDir + "/kubernetes/kubeconfig"
	AgeKey       = SecretsDir + "/age/age.agekey"
	GitDir       = SecretsDir + "/git"
	RegistryDir  = SecretsDir + "/registry" // config.json
	EnvDir       = SecretsDir + "/env"      // spec.secrets.envFrom, to see whether it is there
	FilesDir     = SecretsDir + "/files"    // 0, 1, …: spec.secrets.files
)

// Keys of the ConfigMaps with results.
const (
	KeyDrift  = "drift.json"
	KeyDoctor = "doctor.json"
	KeyLock   = "recast.lock"
	KeyPlan   = "plan.json"
	KeyFiles  = "files.tar.gz" // the files that a plan is of
	KeyReport = "report.json"
	KeyHTML   = "report.html"
)

package observe

import (
	"fmt"
	"slices"

	"github.com/recast-sh/recast/cluster"
)

// kubernetesFit is how wanted and present versions of Talos and of Kubernetes go
// together on one node; "" where the one supports the other.
type kubernetesFit struct {
	runs, wanted string // versions of Kubernetes
	present      string // why the Talos that runs does not support the wanted Kubernetes
	coming       string // why the wanted Talos does not support the Kubernetes that runs
	both         string // why neither of the wanted versions supports the other
}

// fitOf is nil where Kubernetes is as wanted, or none in particular is wanted.
func fitOf(talos cluster.Compatibility, w cluster.Wanted, m cluster.Machine, kubelet string) *kubernetesFit {
	if w.Kubernetes == "" || kubelet == "" || kubelet == w.Kubernetes || w.Build.TalosVersion == "" {
		return nil
	}
	return &kubernetesFit{
		runs: kubelet, wanted: w.Kubernetes, present: talos.UnsupportedKubernetes(m.TalosVersion, w.Kubernetes),
		coming: talos.UnsupportedKubernetes(w.Build.TalosVersion, kubelet), both: talos.UnsupportedKubernetes(w.Build.TalosVersion, w.Kubernetes),
	}
}

// order says which goes first: the roll, or the upgrade of Kubernetes.
func (k kubernetesFit) order() string {
	upgrade := fmt.Sprintf("recast upgrade-k8s --to %s", k.wanted)
	change := fmt.Sprintf("Kubernetes %s → %s: ", k.runs, k.wanted)
	switch {
	case k.both != "":
		return change + "talos.version and kubernetes.version do not go together: " + k.both
	case k.coming != "" && k.present != "":
		return change + "the wanted Talos does not support what runs, and the Talos that runs not the wanted Kubernetes: go by a version of Kubernetes in between that both support, with recast upgrade-k8s, then roll, then on"
	case k.coming != "":
		return change + "first " + upgrade + ", then the roll: " + k.coming
	case k.present != "":
		return change + "first the roll, then " + upgrade + ": " + k.present
	}
	return change + "the roll leaves it; " + upgrade + " brings it there, best after the roll"
}

// KubernetesOrder is what the plan says of Kubernetes, each thing once.
func (o Observation) KubernetesOrder() (out []string) {
	for _, f := range o.Found {
		if f.fit == nil {
			continue
		}
		if text := f.fit.order(); !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return out
}

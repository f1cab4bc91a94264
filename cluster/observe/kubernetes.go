package observe

import (
	"fmt"
	"slices"

	"github.com/recast-sh/recast/cluster"
)

// kubernetesFit says why wanted and present versions of Talos and Kubernetes do not support each
// other on one node; "" if they do.
type kubernetesFit struct {
	runs, wanted string // versions of Kubernetes
	present      string // why the Talos that runs does not support the wanted Kubernetes
	coming       string // why the wanted Talos does not support the Kubernetes that runs
	both         string // why neither of the wanted versions supports the other
}

// fitOf is nil if the node has the wanted Kubernetes, or no version is wanted.
func fitOf(talos cluster.Compatibility, w cluster.Wanted, m cluster.Machine, kubelet string) *kubernetesFit {
	if w.Kubernetes == "" || kubelet == "" || kubelet == w.Kubernetes || w.Build.TalosVersion == "" {
		return nil
	}
	return &kubernetesFit{
		runs: kubelet, wanted: w.Kubernetes, present: talos.UnsupportedKubernetes(m.TalosVersion, w.Kubernetes),
		coming: talos.UnsupportedKubernetes(w.Build.TalosVersion, kubelet), both: talos.UnsupportedKubernetes(w.Build.TalosVersion, w.Kubernetes),
	}
}

// order says which comes first: the roll, or the upgrade of Kubernetes.
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

// KubernetesOrder lists what the plan says about Kubernetes, without repetitions.
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

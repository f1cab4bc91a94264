package observe

import (
	"strings"
	"testing"
)

func TestKubernetesOrder(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fit  kubernetesFit
		want string
	}{
		"either":           {kubernetesFit{}, "the roll leaves it; recast upgrade-k8s --to v1.37.0 brings it there, best after the roll"},
		"Talos first":      {kubernetesFit{present: "too old"}, "first the roll, then recast upgrade-k8s --to v1.37.0: too old"},
		"Kubernetes first": {kubernetesFit{coming: "too new"}, "first recast upgrade-k8s --to v1.37.0, then the roll: too new"},
		"in between":       {kubernetesFit{present: "a", coming: "b"}, "the wanted Talos does not support what runs"},
		"never":            {kubernetesFit{present: "a", both: "no"}, "talos.version and kubernetes.version do not go together: no"},
	} {
		tc.fit.runs, tc.fit.wanted = "v1.36.0", "v1.37.0"
		if got := tc.fit.order(); !strings.HasPrefix(got, "Kubernetes v1.36.0 → v1.37.0: "+tc.want) {
			t.Errorf("%s: %s", name, got)
		}
	}
}

package observe

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
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

// TestSigned: signed and unsigned builds can have the same lock hash.
func TestSigned(t *testing.T) {
	t.Parallel()
	const hash = "sha256-a"
	signed := cluster.Build{TalosVersion: "v1.13.9", LockHash: hash, SecureBoot: true}
	plain := cluster.Build{TalosVersion: "v1.13.9", LockHash: hash}
	older := cluster.Build{TalosVersion: "v1.13.8", LockHash: hash}
	for name, tc := range map[string]struct {
		wanted cluster.Build
		past   map[string]cluster.Build
		want   bool
	}{
		"signed in a past lock":        {cluster.Build{}, map[string]cluster.Build{"s": signed, "o": older}, true},
		"signed in the present one":    {signed, nil, true},
		"in both forms":                {signed, map[string]cluster.Build{"p": plain}, false},
		"the other way round":          {plain, map[string]cluster.Build{"s": signed}, false},
		"not signed":                   {cluster.Build{}, map[string]cluster.Build{"p": plain}, false},
		"in no lock that is here":      {cluster.Build{}, map[string]cluster.Build{"o": older}, false},
		"another version is no excuse": {cluster.Build{}, map[string]cluster.Build{"o": {TalosVersion: "v1.13.8", LockHash: hash, SecureBoot: true}}, false},
	} {
		if got := (Observation{PastBuilds: tc.past}).Signed(cluster.Wanted{Build: tc.wanted}, parking.KeptDisk{Build: hash, Talos: "v1.13.9"}); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

package observe

import (
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
)

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

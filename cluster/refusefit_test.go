package cluster

import (
	"testing"
)

// TestSigned: a lock hash is that of signed and of unsigned builds alike.
func TestSigned(t *testing.T) {
	t.Parallel()
	const hash = "sha256-a"
	signed := Build{TalosVersion: "v1.13.9", LockHash: hash, SecureBoot: true}
	plain := Build{TalosVersion: "v1.13.9", LockHash: hash}
	older := Build{TalosVersion: "v1.13.8", LockHash: hash}
	for name, tc := range map[string]struct {
		wanted Build
		past   map[string]Build
		want   bool
	}{
		"signed in a past lock":        {Build{}, map[string]Build{"s": signed, "o": older}, true},
		"signed in the present one":    {signed, nil, true},
		"in both forms":                {signed, map[string]Build{"p": plain}, false},
		"the other way round":          {plain, map[string]Build{"s": signed}, false},
		"not signed":                   {Build{}, map[string]Build{"p": plain}, false},
		"in no lock that is here":      {Build{}, map[string]Build{"o": older}, false},
		"another version is no excuse": {Build{}, map[string]Build{"o": {TalosVersion: "v1.13.8", LockHash: hash, SecureBoot: true}}, false},
	} {
		if got := (Observation{PastBuilds: tc.past}).Signed(Wanted{Build: tc.wanted}, KeptDisk{Build: hash, Talos: "v1.13.9"}); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

package parking

import (
	"testing"

	"github.com/recast-sh/recast/cluster"
)

func TestLostMetadata(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		remembered, now string
		want            bool
	}{
		"the same Node":      {"u1", "u1", false},
		"another Node":       {"u1", "u2", true},
		"none is remembered": {"", "u2", true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := (Memory{NodeUID: c.remembered}).LostMetadata(cluster.KubeNode{UID: c.now}); got != c.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

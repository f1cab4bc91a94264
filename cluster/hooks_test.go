package cluster

import (
	"testing"

	"github.com/recast-sh/recast/internal/sim/must"
)

func TestGateNames(t *testing.T) {
	t.Parallel()
	objects := func(g ObjectGate) UserGate { return UserGate{Objects: &g} }
	cases := map[string]UserGate{
		"v1 Node":                         objects(ObjectGate{APIVersion: "v1", Kind: "Node"}),
		"v1 Pod kube-system":              objects(ObjectGate{APIVersion: "v1", Kind: "Pod", Namespace: "kube-system"}),
		"v1 Node wk1":                     objects(ObjectGate{APIVersion: "v1", Kind: "Node", Name: "wk1"}),
		"v1 Pod a/b":                      objects(ObjectGate{APIVersion: "v1", Kind: "Pod", Namespace: "a", Name: "b"}),
		"v1 Pod a with tier=x":            objects(ObjectGate{APIVersion: "v1", Kind: "Pod", Namespace: "a", Labels: "tier=x"}),
		"./check.sh --all":                {Command: &CommandGate{Args: []string{"./check.sh", "--all"}}},
		"sh -c set -e; ask | tail -1 now": {Command: &CommandGate{Args: []string{"sh", "-c", "set -e\n\n  ask | tail -1\n", "now"}}},
		"Ceph is whole":                   {Description: "Ceph is whole", Objects: &ObjectGate{}},
	}
	for want, g := range cases {
		must.Equal(t, "gate", want, g.String())
	}
}

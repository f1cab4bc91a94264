package simtest

import (
	"testing"

	"github.com/recast-sh/recast/cluster/planning"
)

// TestAnotherAddressIsRefused: a node that exists keeps what cloud-init gives it, whatever else is rolled.
func TestAnotherAddressIsRefused(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		const has, other = "ip=127.42.7.31/24,gw=127.42.7.1", "ip=127.42.7.99/24,gw=127.42.7.1"
		lab.EditVM(lab.node("wk1").VMID, "ipconfig0", has)
		lab.shape("wk1", "ipconfig: ['gw=127.42.7.1,ip=127.42.7.31/24']")
		requireInSync(t, lab)
		lab.Replace("recast.yaml", "gw=127.42.7.1,ip=127.42.7.31/24", other)
		from := len(lab.Recorder.Calls())
		requireRefused(t, lab.Client().roll(onlyWorker)(t.Context()), "etcd, Kubernetes and the talosconfig would not find it")
		lab.Patch(everywhere)
		for _, strategy := range []string{"recreate", "reimage", "in-place"} {
			lab.Replace("recast.yaml", "{name: wk1,", "{name: wk1, strategy: "+strategy+",")
			requireRefused(t, lab.Client().roll(planning.Policy{Only: []string{"wk1"}})(t.Context()), "etcd, Kubernetes and the talosconfig would not find it")
			lab.Replace("recast.yaml", " strategy: "+strategy+",", "")
		}
		lab.requireLeftAlone(from, "wk1")
		if now := lab.vmOf("wk1").Config["ipconfig0"]; now != has {
			t.Errorf("it has %q", now)
		}
	})
}

package simtest

import (
	"context"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// faultsOfNames: another machine takes the node's name, or the node another name, at every
// moment before recast uses the name.
func faultsOfNames() map[string]*talosFault {
	const (
		another = "Kubernetes has UUID 5ec0ffee-0000-4000-8000-000000009032 for node wk1, whose VM 9031 has 5ec0ffee-0000-4000-8000-000000009031: two machines have its name"
		whose   = `it is the machine of VM 9032 "wk2" on pve1`
		remedy  = "give every machine a hostname of its own"
	)
	var (
		taken    = renamed("wk2", "wk2", "wk1")
		given    = renamed("wk2", "wk1", "wk2")
		twoAndWk = sim.Options{ControlPlanes: 3, Workers: 2}
	)
	rows := map[string]*talosFault{
		"two nodes have its hostname": {
			begins: taken,
			says:   []string{`node wk1: its UUID 5ec0ffee-0000-4000-8000-000000009032 belongs to VM 9032 "wk2" on pve1, not to VM 9031`, "has that VM's machine been given the hostname of wk1?"}, stands: untouched,
		},
		"two nodes have its hostname when it is to be drained":           {short: true, at: "take-down/drain", begins: taken, says: []string{another, whose, remedy}, stands: untouched},
		"two nodes have its hostname when it is to be configured":        {at: "bring-up/start", begins: taken, mends: inTurn(given, forgotten("wk1")), says: []string{another, whose, remedy}, stands: isOut},
		"two nodes have its hostname when it is to take pods":            {at: "finish/uncordon", begins: taken, says: []string{another, whose, remedy}, stands: isOut},
		"two nodes have its hostname when it is to be drained, in place": {strategy: cluster.InPlace, at: "upgrade/drain", begins: taken, says: []string{another, whose, remedy}, stands: untouched},
		"two nodes have its hostname when it is to take pods, in place":  {strategy: cluster.InPlace, at: "finish/uncordon", begins: taken, says: []string{another, whose, remedy}, stands: "on, cordoned"},
		"it is given another hostname when it is to be drained":          {at: "take-down/drain", begins: renamed("wk1", "wk1", "wk9"), mends: inTurn(renamed("wk1", "wk9", "wk1"), forgotten("wk9")), says: []string{"the machine of wk1 is node wk9 now", "see who has changed its hostname"}, stands: untouched},
		"another machine takes its hostname before it leaves etcd":       {o: twoAndWk, rolls: "cp2", at: "take-down/leave-etcd", begins: usurped, mends: restored, says: []string{"for node cp2, whose VM 9002 has", "is named cp2, but runs on 127.42.7.32", whose, remedy}, stands: untouched},
		"another machine takes its hostname when it is to be configured": {o: twoAndWk, rolls: "cp2", at: "bring-up/start", begins: usurped, mends: inTurn(restored, forgotten("cp2")), says: []string{"for node cp2, whose VM 9002 has", whose, remedy}, stands: isOut},
		"another machine takes its member of etcd, but has no kubelet":   {o: twoAndWk, rolls: "cp2", at: "bring-up/start", begins: inTurn(usurped, unnoticed), mends: restored, says: []string{"is named cp2, but runs on 127.42.7.32, which has UUID 5ec0ffee-0000-4000-8000-000000009032: another machine has its name", whose, remedy}, stands: "on, its old disk parked"},
	}
	for _, f := range rows {
		f.kind = fault.Refused
		if f.o.ControlPlanes == 0 {
			f.o = twoWorkers
		}
		if f.mends == nil {
			f.mends = given
		}
	}
	return rows
}

// usurped is a worker with cp2's configuration and so its name, in Kubernetes and etcd.
func usurped(s *talosScene) {
	s.was = s.configOf("wk2")
	impostor(s.t, s.Lab, "cp2", "wk2")
}

// unnoticed deletes the usurper's Node.
func unnoticed(s *talosScene) {
	s.Lab.Kube.NodeDown(s.Lab.node("wk2").UUID)
	forgotten("cp2")(s)
}

// forgotten is a Node that a person deletes.
func forgotten(node string) func(*talosScene) { return dropped(store.Nodes(), "", node) }

// restored gives that worker its own configuration back, and removes it as cp2 from etcd.
func restored(s *talosScene) {
	s.apply("wk2", s.was)
	for _, m := range s.EtcdMembers() {
		if m.Name == "cp2" {
			s.talosctl("cp1", func(ctx context.Context, c *client.Client) error {
				return c.EtcdRemoveMemberByID(ctx, &machineapi.EtcdRemoveMemberByIDRequest{MemberId: parseMember(m.ID)})
			})
		}
	}
}

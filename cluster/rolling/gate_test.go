package rolling_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/cluster/rolling/rollingtest"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

type scene = rollingtest.Scene

type kv = rollingtest.KV

type row = rollingtest.Row

// The changes that rows are made of.
var (
	is       = rollingtest.Is
	all      = rollingtest.All
	resumed  = rollingtest.Resumed
	swapped  = rollingtest.Swapped
	on       = rollingtest.On
	previous = rollingtest.Previous
	waiting  = rollingtest.Waiting
	joined   = rollingtest.Joined
	onNode   = rollingtest.OnNode
	silent   = rollingtest.Silent
	paused   = rollingtest.Paused
	noQuorum = rollingtest.NoQuorum
	noISO    = rollingtest.NoISO
	stays    = rollingtest.Stays
	fails    = rollingtest.Fails
	asCP     = rollingtest.AsCP
	begun    = rollingtest.Begun
	addr     = rollingtest.Addr
)

// marked is a node that an earlier run has drained in this boot.
func marked(boot string) func(*scene) {
	return func(s *scene) {
		s.Plan.Found.Node = &cluster.KubeNode{Name: s.Plan.Node, UUID: "u", Mark: &cluster.Mark{Run: "r0", Strategy: cluster.InPlace, BootID: boot}}
	}
}

func TestGateCalls(t *testing.T) {
	t.Parallel()
	rollingtest.CheckCalls(t, rollingtest.NewScene, gateCalls)
}

func TestGateRows(t *testing.T) {
	t.Parallel()
	rollingtest.CheckRows(t, rollingtest.NewScene, gateCalls, slices.Concat(lookRows(), bootRows(), cephRows(), newRows(), etcdRows(), identityRows(), lossRows(), lateRows()), "read the room on", "read storage", "no control plane says", "check that there is no cluster yet")
}

// A VM that has moved is no other problem: what else is wrong was looked at where it was.
func TestAMoveIsSaidAlone(t *testing.T) {
	t.Parallel()
	s := rollingtest.NewScene()
	ready := s.Begin(func() {})
	fails("OwnedVolumes", cluster.ErrNotNow)(s)
	s.PX.Change(101, func(vm *cluster.VM) { vm.Host = "pve2" })
	ready()
	err := check(s, t.Context())
	must.Hold(t, len(rolling.OnlyMoved(err)) == 1 && rolling.OnlyMoved(errors.Join(err, cluster.ErrNotNow)) == nil && rolling.OnlyMoved(nil) == nil, "%v", err)
}

// gateCalls are the calls by the name that rows use.
var gateCalls = map[string]rollingtest.Call{
	"recreate":         {Do: check, Deaf: []string{"Identity"}},
	"reimage":          {Do: check, Ready: is(cluster.Reimage), Deaf: []string{"Identity"}},
	"rollback":         {Do: check, Ready: is(cluster.Rollback), Deaf: []string{"Identity"}},
	"cp":               {Do: check, Ready: asCP, Deaf: []string{"Identity", "EtcdMembers", "EtcdStatus"}},
	"resume":           {Do: check, Ready: all(begun, resumed), Deaf: []string{"Booted", "Machine", "LocalData", "Node", "Get", "VM"}},
	"resume cp":        {Do: check, Ready: all(asCP, begun, resumed), Deaf: []string{"Booted", "Machine", "LocalData", "Node", "Get", "VM", "EtcdMembers", "EtcdStatus"}},
	"put back":         {Do: check, Ready: all(is(cluster.PutBack), begun, resumed, swapped), Deaf: []string{"Machine", "Node"}},
	"put back cp":      {Do: check, Ready: all(is(cluster.PutBack), asCP, begun, resumed, swapped), Deaf: []string{"Machine", "Node", "EtcdMembers", "EtcdStatus"}},
	"in place":         {Do: check, Ready: all(is(cluster.InPlace), previous), Deaf: []string{"Identity", "Machine"}},
	"in place again":   {Do: check, Ready: all(is(cluster.InPlace), resumed, waiting), Deaf: []string{"Booted", "Get"}},
	"in place cp":      {Do: check, Ready: all(asCP, is(cluster.InPlace), resumed), Deaf: []string{"Booted", "Get", "EtcdMembers", "EtcdStatus"}},
	"install-reset":    {Do: check, Ready: all(is(cluster.InstallReset), resumed), Deaf: []string{"Node"}},
	"apply-config":     {Do: check, Ready: is(cluster.ApplyConfig), Deaf: []string{"Identity"}},
	"install-reset cp": {Do: check, Ready: all(asCP, is(cluster.InstallReset), resumed), Deaf: []string{"Node", "EtcdMembers"}},
	"create":           {Do: check, Ready: unmade, Deaf: []string{"Identity", "MaintenanceMachine"}},
	"create cp":        {Do: check, Ready: all(asCP, unmade), Deaf: []string{"Identity", "MaintenanceMachine", "EtcdMembers", "EtcdStatus"}},
	"bootstrap":        {Do: check, Ready: all(asCP, unmade, first), Deaf: []string{"Identity", "MaintenanceMachine"}},
	"take away":        {Do: check, Ready: all(asCP, broken), Deaf: []string{"EtcdStatus"}},
	"create again":     {Do: check, Ready: all(unmade, resumed), Deaf: []string{"Node"}},
	"asks":             {Do: func(s *scene, ctx context.Context) error { return s.RequireNoLossOff(ctx) }, Ready: begun, Deaf: []string{"Machine", "Node", "LocalData", "VM", "Get"}},
	"late cp": {Do: func(s *scene, ctx context.Context) error {
		err := rolling.AwaitLate(s.Node, ctx)
		if err == nil && !s.Late.None() {
			return errors.New("the next one looks at every record again")
		}
		return err
	}, Ready: asCP},
	"asks cp": {Do: func(s *scene, ctx context.Context) error { return s.RequireNoLossOff(ctx) }, Ready: all(asCP, begun), Deaf: []string{"Machine", "Node", "LocalData", "VM", "Get"}},
	"losses":  {Do: func(s *scene, ctx context.Context) error { return s.RequireNoLoss(ctx) }, Ready: begun, Deaf: []string{"Machine"}},
}

func check(s *scene, ctx context.Context) error { return s.CheckGate(ctx) }

// unmade is a node that is nowhere yet.
func unmade(s *scene) {
	s.Plan.Strategy, s.UUIDs[s.Plan.Addr] = cluster.Create, ""
	s.Blank, s.Plan.Found.VM, s.Plan.Found.Machine = cluster.BlankMachine{}, nil, nil
	delete(s.PX.Guests, 101)
	delete(s.Nodes, s.Plan.Node)
	for i, e := range s.Plan.ControlPlanes {
		if e.Node == s.Plan.Node {
			s.Plan.ControlPlanes, s.Members = slices.Delete(s.Plan.ControlPlanes, i, i+1), slices.Delete(s.Members, i, i+1)
			return
		}
	}
}

// first is the node with which a cluster begins, that has no Kubernetes yet.
func first(s *scene) {
	s.Plan.Bootstraps = true
	fails("Nodes", cluster.ErrNotNow)(s)
}

// broken is a control plane that a rebuild takes away: neither Kubernetes nor its etcd answers.
func broken(s *scene) {
	s.Plan.Strategy, s.Plan.Rebuild = cluster.Remove, "sum"
	s.Status[s.Plan.Addr] = cluster.EtcdStatus{MemberID: 1}
	fails("Nodes", cluster.ErrNotNow)(s)
}

// newRows test the final check before a node is made.
func newRows() []row {
	guest := func(vm cluster.VM) func(*scene) { return func(s *scene) { s.PX.Guests[vm.ID] = vm } }
	stranger := guest(cluster.VM{ID: 101, Name: "other", Host: "pve2"})
	namesake := guest(cluster.VM{ID: 700, Name: "wk1", Host: "pve2"})
	known := func(s *scene) { s.Nodes["wk1"] = cluster.KubeNode{Name: "wk1", UUID: "else"} }
	answers := func(s *scene) { s.UUIDs[s.Plan.Addr] = "else" }
	blank := func(s *scene) { s.Blank.Stage = "maintenance" }
	cut := func(s *scene) { s.Cancel() }
	answering := func(s *scene) { s.PX.Fail = nil }
	deaf := func(s *scene) { delete(s.Status, s.Plan.Addr) }
	dead := func(s *scene) { delete(s.Status, addr(12)) }
	member := func(id uint64) func(*scene) {
		return func(s *scene) {
			s.Members = append(s.Members, cluster.EtcdMember{ID: id, Name: "cp1", Peers: []string{"https://10.0.0.97:2380"}})
			s.Status[addr(97)] = cluster.EtcdStatus{MemberID: id, Leader: 1, Version: "3.6.4"}
		}
	}
	return []row{
		{Do: "create", Change: noQuorum, Err: "has no quorum"},
		{Do: "create", Change: noISO, Err: "boot ISO new.iso is on none of isos"},
		{Do: "create", Change: full, Err: "no room for the new system disk"},
		{Do: "create", Change: stranger, Err: `there is VM 101 "other" on pve2, and VM 101 "wk1" was to be made`},
		{Do: "create", Change: namesake, Err: `there is VM 700 "wk1" on pve2, and VM 101 "wk1" was to be made`},
		{Do: "create", Change: known, Err: "Kubernetes has a node wk1 already"},
		{Do: "create", Change: answers, Err: "machine wk1 (UUID else) answers at 10.0.0.21"},
		{Do: "create", Change: blank, Err: "a machine in maintenance mode answers at 10.0.0.21"},
		{Do: "create", Change: cut, Err: "context canceled"},
		{Do: "create", Change: dead},
		{Do: "bootstrap", Change: answering, Err: "the cluster's Kubernetes API answers: there is one already, and it was to begin with cp1"},
		{Do: "bootstrap", Change: fails("Nodes", errors.New("wrong certificate")), Err: "check that there is no cluster yet: wrong certificate"},
		{Do: "bootstrap", Change: all(dead, member(0xa9))},
		{Do: "take away", Change: answering, Err: "the cluster's Kubernetes API answers"},
		{Do: "take away", Change: func(s *scene) { s.Status[s.Plan.Addr] = cluster.EtcdStatus{Leader: 1} }, Err: "etcd on cp1 has a leader: the cluster is not broken"},
		{Do: "take away", Change: deaf, Err: "VM 101 of cp1 runs, and its etcd does not say whether it has a leader", Took: time.Minute},
		{Do: "take away", Change: all(deaf, func(s *scene) { s.PX.Change(101, func(vm *cluster.VM) { vm.Running = false }) })},
		{Do: "take away", Change: noQuorum, Err: "has no quorum"},
		{Do: "take away", Change: func(s *scene) { s.Plan.Digest = "other" }, Err: "is no longer as it was when the plan was made"},
		{Do: "create again", Change: known, Err: "UUID else"},
		{Do: "create again", Change: all(stranger, noISO)},
		{Do: "create cp", Change: dead, Err: "etcd must be healthy for cp1 to join it: cp2 does not answer", Took: time.Minute},
		{Do: "create cp", Change: member(0xa9), Err: "etcd has a member named cp1 (a9)"},
		{Do: "create cp", Change: all(member(0xa9), member(0xaa)), Err: "etcd has two members named cp1"},
		{Do: "create cp", Change: fails("EtcdMembers", cluster.ErrNotNow), Err: "no control plane says who the members of etcd are"},
	}
}

func digest(change func(*scene)) func(*scene) {
	return func(s *scene) {
		s.Plan.Digest = s.PX.Guests[101].Digest
		s.Plan.Found.VM.Digest = s.Plan.Digest
		change(s)
	}
}

func tidies(s *scene) { s.Plan.Drift.Reasons = []cluster.Reason{{Code: "cordoned"}} }

// full leaves no room for the new system disk.
func full(s *scene) {
	s.Plan.Space = &observe.NewDisk{Node: "wk1", Host: "pve1", Storage: cluster.Storage{Name: "fast"}, Bytes: 1 << 40}
	s.PX.Space.Storages = []cluster.StorageRoom{{Name: "fast", Active: true, Total: 1 << 30, Free: 1 << 20}}
}

// lookRows test the final check before a node is taken out.
func lookRows() []row {
	const dropped, lost = "which a delete would drop", "would be lost"
	tied := func(s *scene) { s.PX.Tied.Dropped = []string{"a firewall"} }
	busy := func(s *scene) { s.PX.Tied.Snapshots = []string{"daily"} }
	return []row{
		{Do: "recreate", Change: onNode("wk1", paused), Err: "was paused since the plan was made: mine"},
		{Do: "resume", Change: onNode("wk1", paused)},
		{Do: "install-reset", Change: onNode("wk1", paused)},
		{Do: "recreate", Change: onNode("wk1", rollingtest.Controlled), Err: "node wk1 is of Cluster API (cluster.x-k8s.io/machine: wk-7)"},
		{Do: "resume", Change: onNode("wk1", rollingtest.Controlled)},
		{Do: "recreate", Change: noQuorum, Err: "has no quorum"},
		{Do: "put back", Change: noQuorum, Err: "has no quorum"},
		{Do: "in place", Change: noQuorum},
		{Do: "install-reset", Change: noQuorum},
		{Do: "apply-config", Change: noQuorum},
		{Do: "apply-config", Change: onNode("wk1", paused), Err: "was paused since the plan was made: mine"},
		{Do: "apply-config", Change: all(tidies, noQuorum)},
		{Do: "in place", Change: waiting, Err: "cp3"},
		{Do: "in place again"},
		{Do: "in place", Change: all(waiting, tidies), Err: ""},
		{Do: "resume", Change: noISO, Err: "boot ISO new.iso is on none of isos"},
		{Do: "recreate", Change: noISO, Err: "boot ISO new.iso is on none of isos"},
		{Do: "rollback", Change: noISO},
		{Do: "recreate", Change: full, Err: "no room for the new system disk"},
		{Do: "resume", Change: full},
		{Do: "recreate", Change: all(full, fails("Room", cluster.ErrNotNow)), Err: "read the room on pve1"},
		{Do: "recreate", Change: all(full, fails("Room", cluster.ErrNotFound)), Err: "no room for the new system disk"},
		{Do: "recreate", Change: tied, Err: dropped},
		{Do: "reimage", Change: tied},
		{Do: "reimage", Change: busy, Err: "has snapshots (daily)"},
		{Do: "in place", Change: busy},
		{Do: "recreate", Change: stays, Err: lost},
		{Do: "rollback", Change: stays, Err: lost},
		{Do: "resume", Change: stays, Err: lost},
		{Do: "resume", Change: silent},
		{Do: "in place", Change: stays, Err: "could not be reimaged"},
		{Do: "in place", Change: all(stays, func(s *scene) { s.Plan.Previous = nil })},
		{Do: "in place", Change: noISO, Err: "boot ISO old.iso is on none of isos"},
		{Do: "recreate", Change: func(s *scene) { s.Plan.Found.VM.Config = kv{"scsi0": ","} }, Err: "no volume in"},
		{Do: "recreate", Change: digest(on(101, kv{"memory": "1"})), Err: "is no longer as it was when the plan was made"},
		{Do: "recreate", Change: all(digest(on(101, kv{"scsi7": "fast:vm-9999-pvc-1"})), func(s *scene) { s.Pods = []string{"lab/pve1/fast/vm-9999-pvc-1"} })},
		{Do: "recreate", Change: digest(all(on(101, kv{"scsi7": "fast:vm-9999-pvc-1"}), fails("PodVolumes", cluster.ErrNotNow))), Err: "no answer just now"},
		{Do: "recreate", Change: fails("OwnedVolumes", cluster.ErrNotNow), Err: "read storage fast, on which scsi0 of VM 101 is"},
		{Do: "recreate", Change: func(s *scene) { s.PX.Guests[101].Config["smbios1"] = "uuid=v" }, Err: "is no longer as it was when the plan was made"},
		{Do: "recreate", Change: func(s *scene) { s.PX.Change(101, func(vm *cluster.VM) { vm.Host = "pve2" }) }, Err: "was on pve1 when the plan was made"},
		{Do: "recreate", Change: func(s *scene) { s.Plan.Host = "pve2" }},
		{Do: "recreate", Change: func(s *scene) { s.Plan.Host = "pve2"; s.PX.Change(101, func(vm *cluster.VM) { vm.Host = "pve2" }) }},
		{Do: "recreate", Change: func(s *scene) { s.Plan.Host = "pve2"; s.PX.Change(101, func(vm *cluster.VM) { vm.Host = "pve3" }) }, Err: "was on pve1 when the plan was made"},
		{Do: "recreate", Change: func(s *scene) { s.Owners = []string{"tuppr"} }, Err: "is managed by tuppr"},
		{Do: "recreate", Change: func(s *scene) { s.Plan.Found.Machine.ConfigArgs = []string{"siderolink.api=x"} }, Err: "Omni (siderolink.api=x)"},
		{Do: "in place", Change: ofOmni("customization: {}"), Err: "Omni (siderolink.api=x)"},
		{Do: "in place", Change: ofOmni("customization: {extraKernelArgs: ['siderolink.api=x']}")}, // the image takes it away
		{Do: "in place", Change: func(s *scene) { s.Plan.Found.Machine.Configs.Active = cluster.Secret("kind: SideroLinkConfig") }, Err: "Omni (SideroLinkConfig)"},
		{Do: "rollback", Change: ofOmni("customization: {extraKernelArgs: ['siderolink.api=x']}")}, // another system takes the place of the one that is joined
		{Do: "rollback", Change: func(s *scene) { s.Plan.Found.Machine.Configs.Active = cluster.Secret("kind: SideroLinkConfig") }},
		{Do: "put back", Change: ofOmni("customization: {extraKernelArgs: ['siderolink.api=x']}")},
		{Do: "recreate", Change: waiting, Err: "cp3"},
		{Do: "recreate", Change: all(waiting, func(s *scene) { s.Out.Add("cp3") })},
		{Do: "resume cp", Change: func(s *scene) { delete(s.Status, addr(12)) }, Err: "etcd would not survive losing cp1"},
		{Do: "resume cp", Change: all(func(s *scene) { delete(s.Status, addr(12)); s.Mem.BootID = "b0" })},
		{Do: "in place cp", Change: func(s *scene) { delete(s.Status, addr(12)) }, Err: "etcd would not survive losing cp1"},
		{Do: "in place cp", Change: func(s *scene) { delete(s.Status, addr(12)); s.Mem.BootID = "b0" }},
		{Do: "in place cp", Change: all(marked("b1"), func(s *scene) { delete(s.Status, addr(12)); s.Mem.BootID = "b0" }), Err: "etcd would not survive losing cp1"},
		{Do: "in place cp", Change: all(marked("b0"), func(s *scene) { delete(s.Status, addr(12)); s.Mem.BootID = "b0" })},
	}
}

// identityRows test that a node's name belongs to its machine.
func identityRows() []row {
	other := onNode("wk1", func(k *cluster.KubeNode) { k.UUID = "v" })
	otherCP := onNode("cp1", func(k *cluster.KubeNode) { k.UUID = "v" })
	twins := func(s *scene) { s.Members[0].Name, s.Members[1].Name = "cp1", "cp1" }
	elsewhere := func(s *scene) { s.Members[0].Peers = []string{"https://10.0.0.98:2380"}; s.UUIDs[addr(98)] = "other" }
	return []row{
		{Do: "recreate", Change: func(s *scene) { s.UUIDs[addr(21)] = "v" }, Err: "10.0.0.21 answers with UUID v, not u"},
		{Do: "recreate", Change: func(s *scene) { s.Machine.Nodename = "wk9" }, Err: "is node wk9 now"},
		{Do: "recreate", Change: other, Err: "Kubernetes has UUID v for node wk1"},
		{Do: "install-reset", Change: other, Err: "Kubernetes has UUID v for node wk1"},
		{Do: "install-reset", Change: elsewhere},
		{Do: "install-reset cp", Change: otherCP, Err: "Kubernetes has UUID v for node cp1"},
		{Do: "install-reset cp", Change: elsewhere, Err: "etcd member 1 is named cp1, but runs on 10.0.0.98"},
		{Do: "install-reset cp", Change: twins, Err: "etcd has two members named cp1"},
	}
}

// lossRows test data that would be lost with a system disk.
func lossRows() []row {
	const lost = "would be lost"
	lonely := func(s *scene) { s.Plan.ControlPlanes = s.Plan.ControlPlanes[:1] }
	unread := fails("LocalData", cluster.ErrNotNow)
	return []row{
		{Do: "losses", Change: stays, Err: lost},
		{Do: "losses", Change: all(stays, swapped)},
		{Do: "asks", Change: stays, Err: lost},
		{Do: "asks cp", Change: all(stays, lonely), Err: lost},
		{Do: "asks cp", Change: all(unread, lonely)},
		{Do: "asks cp", Change: unread, Err: "gave up after 1m0s", Took: time.Minute},
		{Do: "asks", Change: all(unread, lonely), Err: "gave up after 1m0s", Took: time.Minute},
		{Do: "put back", Change: all(stays, onNode("wk1", func(k *cluster.KubeNode) { k.BootID = "b2" })), Err: lost},
		{Do: "put back", Change: all(stays, on(101, kv{"scsi0": "fast:vm-101-disk-0"}))},
		{Do: "losses", Change: all(stays, on(101, kv{"scsi0": ""}))},
		{Do: "losses", Change: func(s *scene) { delete(s.PX.Guests, 101) }},
		{Do: "losses", Change: func(s *scene) { s.Machine.Volumes = []cluster.Volume{{Device: "sda7", Disk: "sda", Label: "u-x"}} }, Err: lost},
		{Do: "losses", Change: func(s *scene) {
			s.Machine.Volumes = []cluster.Volume{{Device: "sda7", Disk: "sda", Label: "u-x"}}
			s.UUIDs[addr(21)] = "v"
		}},
		{Do: "losses", Change: func(s *scene) { s.Rec.Run = "r0"; silent(s); s.PX.Fail = map[string]error{"Get": cluster.ErrNotNow} }, Err: "no answer"},
		{Do: "losses", Change: func(s *scene) { s.Rec.Memory = "?" }, Err: "can't be read"},
		{Do: "losses", Change: func(s *scene) { delete(s.Nodes, "wk1") }},
		{Do: "losses", Change: fails("LocalData", cluster.ErrNotNow), Err: "no answer just now"},
		{Do: "losses", Change: all(resumed, fails("LocalData", cluster.ErrNotNow), func(s *scene) { s.Plan.Found.Node = nil })},
		{Do: "losses", Change: all(fails("LocalData", cluster.ErrNotNow), func(s *scene) { s.Plan.Found.Node = nil }), Err: "no answer just now"},
		{Do: "asks", Change: fails("LocalData", cluster.ErrNotNow), Err: "gave up after 1m0s", Took: time.Minute},
		{Do: "asks", Change: func(s *scene) {
			s.PX.FailAt = 4 // the first read of the Node
			stays(s)
		}, Err: lost},
	}
}

// lateRows test requests that Proxmox may still carry out.
func lateRows() []row {
	sent := func(what string) func(*scene) {
		return func(s *scene) { begun(s); s.Rec.Open = false; s.Rec.Sent = parking.Sent{what: 100} }
	}
	others := func(change func(*parking.Record)) func(*scene) {
		return func(s *scene) {
			rec := parking.Record{Cluster: "c1", Node: "cp2", Run: "r0", VMID: 102, ControlPlane: true, Sent: parking.Sent{cluster.SentShutdown: 100}}
			change(&rec)
			description, _ := rec.Description()
			s.PX.Guests[9901] = cluster.VM{ID: 9901, Name: "recast-parking-cp2", Host: "pve1", Config: kv{"description": description}}
		}
	}
	const cleared = "set 9905 map[description:record protection:1] delete []"
	elsewhere := func(s *scene) {
		s.Plan.Found.Elsewhere = []parking.Parking{{VM: cluster.VM{ID: 9905}, Record: parking.Record{Sent: parking.Sent{cluster.SentAddHA: 100}}}}
	}
	const hundred, forgotten = 100 * time.Second, "set 9901 map[description:record protection:1] delete []"
	same := func(*parking.Record) {}
	cut := func(s *scene) { s.Cancel() }
	return []row{
		{Do: "recreate", Change: sent("start"), Took: hundred},
		{Do: "recreate", Change: sent("delete"), Took: hundred},
		{Do: "recreate", Change: all(sent("start"), cut), Err: "context canceled"},
		{Do: "recreate", Change: all(sent("delete"), cut), Err: "context canceled"},
		{Do: "cp", Change: all(others(same), cut), Err: "context canceled"},
		{Do: "late cp"},
		{Do: "recreate", Change: sent(cluster.SentAddHA), Took: hundred},
		{Do: "recreate", Change: elsewhere, Took: hundred, Done: cleared},
		{Do: "recreate", Change: all(begun, func(s *scene) { s.Rec.Open = false }, elsewhere), Took: hundred, Done: cleared},
		{Do: "resume", Change: func(s *scene) { s.Rec.Sent = parking.Sent{"start": 100} }},
		{Do: "resume", Change: func(s *scene) { s.Rec.Sent = parking.Sent{"delete": 100} }},
		{Do: "resume", Change: func(s *scene) { s.Rec.Sent = parking.Sent{cluster.SentAddHA: 100} }, Took: hundred},
		{Do: "put back", Change: func(s *scene) { s.Rec.Sent = parking.Sent{"start": 100} }, Took: hundred},
		{Do: "put back", Change: func(s *scene) { s.Rec.Sent = parking.Sent{"delete": 100} }},
		{Do: "in place", Change: sent("start")},
		{Do: "recreate", Change: others(same)},
		{Do: "cp", Change: others(same), Took: hundred, Done: forgotten},
		{Do: "cp", Change: others(func(rec *parking.Record) { rec.ControlPlane = false })},
		{Do: "cp", Change: func(s *scene) {
			s.PX.Guests[9901] = cluster.VM{ID: 9901, Config: kv{"description": "recast-record: {"}}
		}, Err: "can't be read"},
	}
}

// onCeph is a node with a disk on the Ceph of the hosts; blocked is what that lets wait.
func onCeph(blocked string) func(*scene) {
	return func(s *scene) {
		s.Plan.OnCeph = []string{"ceph"}
		s.PX.Space.Storages = append(s.PX.Space.Storages, cluster.StorageRoom{Name: "ceph", Active: true, Total: 1 << 40, Free: 1 << 40, Blocked: blocked})
	}
}

// cephRows test the last look at the hosts' own Ceph.
func cephRows() []row {
	return []row{
		{Do: "recreate", Change: onCeph("its Ceph cannot read or write some data"), Err: "has disks on storage ceph: its Ceph cannot read or write some data"},
		{Do: "recreate", Change: onCeph("")},
		{Do: "recreate", Change: all(onCeph(""), fails("Room", errors.New("no storage answers"))), Err: "read the room on"},
		{Do: "recreate", Change: all(onCeph("another Ceph is full"), func(s *scene) { s.Plan.OnCeph = nil })},
	}
}

// prepared is a node whose new system disk is made from a disk image, which only some hosts' storages have.
func prepared(there bool) func(*scene) {
	return func(s *scene) {
		s.Plan.Prepared = "new.qcow2"
		s.Want.Build.DiskName, s.Want.DiskStorages = "new.qcow2", []string{"images"}
		if there {
			s.PX.Volumes = append(s.PX.Volumes, "images:import/new.qcow2")
		}
	}
}

// bootRows test that a new machine finds something to boot.
func bootRows() []row {
	return []row{
		{Do: "recreate", Change: prepared(false), Err: "disk image new.qcow2 is on none of images"},
		{Do: "recreate", Change: prepared(true)},
		{Do: "resume", Change: prepared(false)}, // it was prepared before
	}
}

// ofOmni has a machine join Omni by a kernel argument, with that schematic in its image.
func ofOmni(schematic string) func(*scene) {
	return func(s *scene) {
		s.Plan.Found.Machine.ConfigArgs, s.Plan.Found.Machine.Schematic.YAML = []string{"siderolink.api=x"}, schematic
	}
}

var calls = map[string]rollingtest.Call{
	"parking": {Do: func(s *scene, ctx context.Context) error { _, err := s.Parking(ctx); return err }, Ready: begun},
}

// TestGateOfParking: only the VM that has the node's record is accepted as its parking VM.
func TestGateOfParking(t *testing.T) {
	t.Parallel()
	record := func(change func(*parking.Record)) func(*scene) { return func(s *scene) { change(s.Rec) } }
	text := func(text string) func(*scene) {
		return func(s *scene) {
			s.Ready()
			s.PX.Set(9900, kv{"description": text})
		}
	}
	rollingtest.CheckCalls(t, rollingtest.NewScene, calls)
	rollingtest.CheckRows(t, rollingtest.NewScene, calls, []row{
		{Do: "parking", Change: text("recast-record: {"), Err: "can't be read"},
		{Do: "parking", Change: func(s *scene) { s.Rec = nil }, Err: "parking VM of wk1: not found"},
		{Do: "parking", Change: text("mine"), Err: "no longer says so"},
		{Do: "parking", Change: record(func(rec *parking.Record) { rec.Node = "wk2" }), Err: "no longer says so"},
		{Do: "parking", Change: record(func(rec *parking.Record) { rec.Cluster = "c2" }), Err: "no longer says so"},
		{Do: "parking", Change: all(record(func(rec *parking.Record) { rec.Node = "wk2" }), (*scene).Ready, func(s *scene) { s.Number, s.Plan.Found.Parking = 9900, nil }), Err: "parking VM of wk1: not found"},
	}, "not found")
}

// etcdRows test the membership of a control plane in etcd.
func etcdRows() []row {
	without, dead, mute, twins, runs := rollingtest.Without, rollingtest.Dead, rollingtest.Mute, rollingtest.Twins, rollingtest.Runs
	alone := func(s *scene) {
		s.Plan.ControlPlanes, s.Members, s.Plan.EtcdKept = s.Plan.ControlPlanes[:1], s.Members[:1], true
	}
	two := all(without("cp3"), func(s *scene) { s.Plan.ControlPlanes = s.Plan.ControlPlanes[:2]; delete(s.Nodes, "cp3") })
	elsewhere := func(s *scene) { s.Members[0].Peers = []string{"https://10.0.0.98:2380"}; s.UUIDs[addr(98)] = "other" }
	silentMembers := fails("EtcdMembers", cluster.ErrNotNow)
	kept := func(s *scene) { s.Plan.EtcdKept = true }
	left := all(without("cp1"), mute)
	typeInit := func(s *scene) {
		m := *s.Plan.Found.Machine
		m.TypeInit = true
		s.Plan.Found.Machine = &m
	}
	had := func(text string) func(*scene) {
		return all(joined, func(s *scene) { s.Rec.Left, s.Config["journal"] = true, cluster.Secret(text) })
	}
	return []row{
		{Do: "recreate", Change: dead},
		{Do: "cp", Change: func(s *scene) { s.Plan.ControlPlanes[1].Node = "cp1.example" }, Err: "cp1 and cp1.example have the same hostname"},
		{Do: "cp", Change: dead, Err: "etcd would not survive losing cp1: cp2 does not answer"},
		{Do: "cp", Change: silentMembers, Err: "can't be determined"},
		{Do: "cp", Change: twins, Err: "etcd has two members named cp1"},
		{Do: "cp", Change: all(alone, func(s *scene) {
			s.Status[addr(11)] = cluster.EtcdStatus{MemberID: 1, Leader: 1, Version: "3.6.4", Errors: []string{"NOSPACE"}}
		}), Err: "NOSPACE"},
		{Do: "cp", Change: alone},
		{Do: "cp", Change: left},
		{Do: "cp", Change: all(left, kept), Err: "is not a member of etcd"},
		{Do: "cp", Change: two, Err: "etcd has two members"},
		{Do: "cp", Change: without("cp3"), Err: "the cluster has 3 control planes, but etcd without cp1 only these members: cp2"},
		{Do: "cp", Change: all(without("cp1"), runs(2)), Err: "which is named cp2"},
		{Do: "cp", Change: all(without("cp1"), runs(7)), Err: "which the others (cp2, cp3) do not know"},
		{Do: "cp", Change: runs(7), Err: "but is not what runs on 10.0.0.11"},
		{Do: "cp", Change: func(s *scene) {
			statuses := 0
			s.PX.At = func() {
				if s.PX.Made != nil && s.PX.Made[len(s.PX.Made)-1] == "EtcdStatus" {
					if statuses++; statuses == 3 {
						delete(s.Status, addr(11))
					}
				}
			}
		}, Err: "but is not what runs on 10.0.0.11"},
		{Do: "cp", Change: mute},
		{Do: "cp", Change: all(mute, elsewhere), Err: "etcd member 1 is named cp1, but runs on 10.0.0.98"},
		{Do: "cp", Change: typeInit, Err: "its machine.type is init"},
		{Do: "cp", Change: all(left, typeInit), Err: "its machine.type is init"},
		{Do: "cp", Change: all(typeInit, kept)},
		{Do: "put back cp", Change: had("machine: {type: init}"), Err: "is of machine.type init, and its etcd directory is empty"},
		{Do: "put back cp", Change: all(had("machine: {type: init}"), func(s *scene) { s.Mem.EtcdKept = true })},
		{Do: "put back cp", Change: all(had("machine: {type: init}"), func(s *scene) { s.Mem.EtcdMembers = 1 }), Err: "is of machine.type init"},
		{Do: "put back cp", Change: all(had("machine: {type: controlplane}"), fails("Secret", cluster.ErrNotNow)), Err: "journal: no answer just now"},
		{Do: "put back cp", Change: had("machine: {type: controlplane}")},
		{Do: "put back cp", Change: joined, Err: "which is not a member any more"},
		{Do: "put back cp", Change: without("cp1"), Err: "which is not a member any more"},
		{Do: "put back cp", Change: twins, Err: "etcd has two members named cp1"},
		{Do: "put back cp", Change: silentMembers, Err: "no answer just now"},
		{Do: "put back cp", Change: all(joined, func(s *scene) { s.Rec.Left = true })},
	}
}

// volumes are the files that a host sees.
type volumes struct {
	cluster.StorageReader
	has []string
	err error
}

func (v volumes) VolumeChanged(_ context.Context, host, volid string) (time.Time, bool, error) {
	return time.Unix(7, 0), slices.Contains(v.has, host+" "+volid), v.err
}

// TestImages: the boot ISO is on the first storage that has it; without one the node is refused.
func TestImages(t *testing.T) {
	t.Parallel()
	w := cluster.Wanted{Build: cluster.Build{ISOName: "new.iso", DiskName: "new.qcow2"}, ISOStorages: []string{"a", "b"}, DiskStorages: []string{"c"}}
	images := func(v volumes, host string) rolling.Published {
		return rolling.Published{Proxmox: v, Wanted: w, Host: host}
	}
	for host, want := range map[string]string{"pve1": "b:iso/new.iso", "pve2": "a:iso/new.iso"} {
		i := images(volumes{has: []string{"pve1 b:iso/new.iso", "pve2 a:iso/new.iso", "pve2 b:iso/new.iso"}}, host)
		must.Equal(t, host, want, must.Get(i.ISO(t.Context()))(t))
	}
	must.FailAs(t, must.Err(images(volumes{has: []string{"pve2 a:iso/new.iso", "pve1 a:iso/old.iso"}}, "pve1").ISO(t.Context())), fault.Refused)
	silent := errors.New("no answer")
	must.FailIs(t, must.Err(images(volumes{has: []string{"pve1 a:iso/new.iso"}, err: silent}, "pve1").ISO(t.Context())), silent)
	own := images(volumes{has: []string{"pve1 a:iso/new.iso", "pve1 b:iso/new.iso", "pve1 b:iso/new-1f.iso"}}, "pve1")
	own.Wanted.ISOStorages = []string{"b"}
	own.Wanted.Build.Uploads = []cluster.Upload{{Of: "new.iso", Name: "new-2e.iso", Storage: "b", Host: "pve2"}, {Of: "new.iso", Name: "new-1f.iso", Storage: "b", Host: "pve1", Changed: time.Unix(7, 0).UTC()}}
	must.Equal(t, "an upload", "b:iso/new-1f.iso", must.Get(own.ISO(t.Context()))(t))
	own.Wanted.ISOStorages = []string{"a", "b"}
	must.Equal(t, "an upload beside a file that nobody has uploaded", "b:iso/new-1f.iso", must.Get(own.ISO(t.Context()))(t))
	own.Wanted.Build.Uploads[1].Changed = time.Unix(6, 0)
	_, err := own.ISO(t.Context())
	must.FailAs(t, err, fault.Refused)
	must.Hold(t, strings.Contains(must.Text(err), "boot ISO b:iso/new-1f.iso was changed at "), "%v", err)
	must.Equal(t, "disk image", "c:import/new.qcow2", must.Get(images(volumes{has: []string{"pve1 c:import/new.qcow2"}}, "pve1").Disk(t.Context()))(t))
}

package roll

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
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
	is      = rollingtest.Is
	all     = rollingtest.All
	swapped = rollingtest.Swapped
	on      = rollingtest.On
	off     = rollingtest.Off
	joined  = rollingtest.Joined
	onNode  = rollingtest.OnNode
	silent  = rollingtest.Silent
	saved   = rollingtest.Saved
	filed   = rollingtest.Filed
	paused  = rollingtest.Paused
	stays   = rollingtest.Stays
	fails   = rollingtest.Fails
	asCP    = rollingtest.AsCP
	begun   = rollingtest.Begun
	addr    = rollingtest.Addr
)

func TestGateCalls(t *testing.T) {
	t.Parallel()
	rollingtest.CheckCalls(t, rollingtest.NewScene, gateCalls)
}

func TestGateRows(t *testing.T) {
	t.Parallel()
	rollingtest.CheckRows(t, rollingtest.NewScene, gateCalls, slices.Concat(etcdRows(), identityRows(), lossRows(), configRows(), otherRows()), "apply the configuration", "is off", "it is not asked to boot", "etcd waits for its vote", "look at the console", "ask wk1 about the configuration")
}

// recorded is that something is written into the record.
const recorded = "set 9900 map[description:record protection:1] delete []"

// gateCalls are the calls by the name that rows use.
var gateCalls = map[string]rollingtest.Call{
	"may leave": {Do: func(s *scene, ctx context.Context) error { _, _, err := nodeOf(s).etcd.mayLeave(ctx); return err }, Ready: asCP, Deaf: []string{"Identity", "EtcdMembers", "EtcdStatus"}},
	"record": {Do: func(s *scene, ctx context.Context) error {
		r, err := nodeOf(s).record.read(ctx)
		if err == nil {
			err = r.Asks(ctx)
		}
		return err
	}, Ready: begun, Deaf: []string{"Machine", "Node", "LocalData", "VM", "Get"}},
	"configured": {Do: func(s *scene, ctx context.Context) error { return nodeOf(s).configureBlank(ctx) }, Ready: all(begun, swapped, silent, saved), Done: recorded + "\napply", Deaf: []string{"Standing", "MaintenanceMachine", "Node"}},
	"again":      {Do: func(s *scene, ctx context.Context) error { return nodeOf(s).configureReset(ctx) }, Ready: all(is(cluster.InstallReset), silent, filed), Done: "apply", Deaf: []string{"Standing", "Node"}},
	"config":     {Do: func(s *scene, ctx context.Context) error { _, err := nodeOf(s).config.read(ctx); return err }, Ready: all(begun, saved)},
	"file": {Do: func(s *scene, ctx context.Context) error {
		_, _, err := nodeOf(s).config.userConfig(ctx)
		return err
	}, Ready: filed},
	"shown": {Do: func(s *scene, ctx context.Context) error { _, err := newApplyConfig(nodeOf(s)).shown(ctx); return err }, Ready: all(asCP, is(cluster.ApplyConfig), filed)},
	"give back": {Do: func(s *scene, ctx context.Context) error {
		return newApplyConfig(nodeOf(s)).giveBack(ctx, errors.New("timed out"))
	}, Ready: all(asCP, is(cluster.ApplyConfig), saved, fails("stage", cluster.ErrNotFound)), Err: "and it does not serve with its old one either", Deaf: []string{"Booted", "EtcdStatus", "EtcdMembers", "Identity"}},
	"upgraded": {Do: func(s *scene, ctx context.Context) error { return (&inPlace{node: nodeOf(s)}).keepWayBack(ctx) }, Ready: all(asCP, is(cluster.InPlace), filed, func(s *scene) { s.Plan.WithConfig = true })},
	"checked": {Do: func(s *scene, ctx context.Context) error {
		return newApplyConfig(nodeOf(s)).check(ctx, s.Config["file"])
	}, Ready: all(is(cluster.ApplyConfig), filed)},
	"start": {Do: func(s *scene, ctx context.Context) error { return nodeOf(s).start(ctx) }, Ready: all(is(cluster.PutBack), begun, off), Done: started, Deaf: []string{"Node"}},
	"start new": {
		Do: func(s *scene, ctx context.Context) error { return nodeOf(s).start(ctx) }, Ready: all(begun, off, on(101, kv{"description": "recast: run=r1 build=b"})),
		Done: strings.Replace(started, "start", "set 101 map[smbios1:proof] delete []\nstart", 1),
	},
	"out": {Do: func(s *scene, ctx context.Context) error {
		return replaced(s, ctx, func(ctx context.Context, n *node, r *exchange.Replace) error {
			return n.leaveAsReplacement(ctx, r)
		})
	}, Ready: all(asCP, begun, swapped, joined), Done: "forfeit\nleave", Deaf: []string{"Identity", "EtcdMembers", "EtcdStatus"}},
	"is out": {Do: func(s *scene, ctx context.Context) error {
		return replaced(s, ctx, func(ctx context.Context, n *node, r *exchange.Replace) error {
			return reasonAsError(n.replacementOut(ctx, r))
		})
	}, Ready: all(asCP, begun, swapped, joined), Deaf: []string{"EtcdMembers", "EtcdStatus"}},
	"back out":    {Do: func(s *scene, ctx context.Context) error { return nodeOf(s).backOut(ctx) }, Ready: begun, Done: "uncordon\nset 9900 map[description:record protection:1] delete []"},
	"drain":       {Do: func(s *scene, ctx context.Context) error { return nodeOf(s).drain(ctx) }, Ready: begun, Done: "cordon\ndrain", Deaf: []string{"Identity", "VM", "Machine", "AttachedVolumes"}},
	"uncordon":    {Do: func(s *scene, ctx context.Context) error { return nodeOf(s).uncordon(ctx) }, Ready: begun, Done: "uncordon"},
	"delete node": {Do: func(s *scene, ctx context.Context) error { return nodeOf(s).deleteNodeStep().Do(ctx) }, Ready: all(is(cluster.Remove), begun), Done: "delete node"},
	"down":        {Do: func(s *scene, ctx context.Context) error { return reasonAsError(nodeOf(s).takenDown(ctx)) }, Ready: begun},
	"hooks":       {Do: func(s *scene, ctx context.Context) error { return nodeOf(s).hooksBefore()[0].Do(ctx) }},
	"remember":    {Do: func(s *scene, ctx context.Context) error { return nodeOf(s).remember(ctx) }, Ready: all(saved, leased), Err: "no VMID is free for the parking VM of wk1", Deaf: []string{"Get"}},
	"reboot":      {Do: func(s *scene, ctx context.Context) error { return nodeOf(s).etcd.requireToReboot(ctx) }, Ready: asCP, Deaf: []string{"EtcdStatus", "EtcdMembers", "Identity"}},
	"boot failed": {Do: func(s *scene, ctx context.Context) error {
		return (&inPlace{node: nodeOf(s)}).bootFailed(ctx, errors.New("timed out"))
	}, Ready: all(asCP, silent, func(s *scene) { delete(s.Status, addr(12)) }), Err: "cp1 did not come back from its upgrade: timed out", Deaf: []string{"Booted", "EtcdStatus", "EtcdMembers", "Identity"}},
}

// nodeOf returns the scene's node with one hook, and with its configuration file if it has one.
func nodeOf(s *scene) *node {
	r := &Roller{Roll: s.Roll, Files: sceneFiles{}, Commands: sceneCommands{px: s.PX}}
	if s.Plan.ConfigFile != nil || s.Config["file"] != nil {
		r.MachineConfig = func(context.Context, string) (cluster.Secret, bool, error) {
			text, found := s.Config["file"]
			return text, found, s.PX.Call("file")
		}
	}
	n := r.node(*s.Node)
	n.hooks.BeforeNode = []cluster.Hook{{Command: cluster.CommandGate{Args: []string{"true"}}, TimeoutSeconds: 1}}
	return n
}

type sceneCommands struct {
	cluster.CommandRunner
	px *clustertest.Proxmox
}

func (k sceneCommands) RunHook(context.Context, cluster.CommandGate, []string, func(string)) (cluster.HookEnd, error) {
	return cluster.HookEnd{}, k.px.Call("RunHook")
}

type sceneFiles struct{}

func (sceneFiles) Files(context.Context, netip.Addr, string, func(context.Context, cluster.MachineFiles) error) error {
	return nil
}

// leased has the node's address from DHCP.
func leased(s *scene) {
	const mac = "BC:24:11:00:00:21"
	s.PX.Set(101, kv{"net0": "virtio=" + mac})
	s.Machine.Addresses = []cluster.MachineAddress{{Prefix: netip.PrefixFrom(s.Plan.Addr, 24), Link: "eth0", MAC: mac, Layer: cluster.LayerOperator, Lease: cluster.AddressLease{Operator: "dhcp4"}}}
}

const started = "set 9900 map[description:record protection:1] delete []\nstart 101\nset 9900 map[description:record protection:1] delete []"

func reasonAsError(why string, err error) error {
	if err == nil && why != "" {
		return errors.New("said " + why)
	}
	return err
}

func replaced(s *scene, ctx context.Context, do func(context.Context, *node, *exchange.Replace) error) error {
	n := nodeOf(s)
	r, err := n.record.read(ctx)
	if err != nil {
		return err
	}
	return do(ctx, n, r)
}

// etcdRows test the membership of a control plane in etcd.
func etcdRows() []row {
	without, dead, mute, twins, runs := rollingtest.Without, rollingtest.Dead, rollingtest.Mute, rollingtest.Twins, rollingtest.Runs
	silentMembers := fails("EtcdMembers", cluster.ErrNotNow)
	left := all(without("cp1"), mute)
	return []row{
		{Do: "may leave", Change: dead, Err: "etcd must be healthy for cp1 to leave it"},
		{Do: "may leave", Change: all(left, dead)},
		{Do: "may leave", Change: silentMembers, Err: "no answer just now"},
		{Do: "may leave", Change: twins, Err: "etcd has two members named cp1"},
		{Do: "may leave", Change: runs(7), Err: "but is not what runs on 10.0.0.11"},
		{Do: "may leave", Change: func(s *scene) { s.UUIDs[addr(11)] = "other" }, Err: "answers with UUID other"},
		{Do: "out", Change: silent, Done: " "},
		{Do: "out", Change: without("cp1"), Done: " "},
		{Do: "is out", Change: without("cp1"), Err: "said the replacement is not a member of etcd"},
		{Do: "is out", Change: twins, Err: "etcd has two members named cp1"},
		{Do: "is out", Change: silentMembers, Err: "no answer just now"},
		{Do: "is out", Change: all(off, silentMembers), Err: "if it was a member, etcd waits for its vote"},
		{Do: "is out", Change: off, Err: "said the replacement is off"},
		{Do: "is out", Change: all(off, dead)},
		{Do: "is out", Change: on(101, kv{"scsi0": ""}), Err: "said VM 101 does not have the new system disk"},
		{Do: "is out", Change: func(s *scene) { s.Mem.EtcdKept = true }, Err: "said etcd continues with what the disks hold"},
		{Do: "reboot", Change: dead, Err: "etcd would not survive losing cp1"},
		{Do: "reboot", Change: all(dead, mute)},
		{Do: "reboot", Change: func(s *scene) { dead(s); s.Plan.Role = cluster.Worker }},
		{Do: "give back", Change: dead, Err: "and its old one is not restored"},
		{Do: "boot failed", Err: "and it is not asked to boot its previous system"},
	}
}

// identityRows test that a node's name belongs to its machine.
func identityRows() []row {
	other := onNode("wk1", func(k *cluster.KubeNode) { k.UUID = "v" })
	return []row{
		{Do: "delete node", Change: other, Err: "Kubernetes has UUID v for node wk1"},
		{Do: "uncordon", Change: other, Err: "Kubernetes has UUID v for node wk1"},
		{Do: "drain", Change: other, Err: "Kubernetes has UUID v for node wk1", Done: "uncordon\nset 9900 map[description:record protection:1] delete []"},
		{Do: "start", Change: other, Err: "Kubernetes has UUID v for node wk1"},
		{Do: "configured", Change: other, Err: "Kubernetes has UUID v for node wk1"},
		{Do: "again", Change: other, Err: "Kubernetes has UUID v for node wk1"},
	}
}

// lossRows test data that would be lost with a system disk.
func lossRows() []row {
	const lost = "would be lost"
	return []row{
		{Do: "record", Change: stays, Err: lost},
		{Do: "drain", Change: stays, Err: lost, Done: "cordon\ndrain\nuncordon\nset 9900 map[description:record protection:1] delete []"},
	}
}

// configRows test the machine that gets a configuration, and the configuration.
func configRows() []row {
	ofInit := rollingtest.SavedAs("machine: {type: init}")
	labelled := func(devices ...string) func(*scene) {
		return func(s *scene) {
			for _, d := range devices {
				s.Blank.Volumes = append(s.Blank.Volumes, cluster.Volume{Device: d, Disk: "sdb", Label: "STATE"})
			}
		}
	}
	const stopped = recorded + "\nstop 101\n" + recorded
	damaged := func(s *scene) { s.Rec.Config = "x" }
	unsummed := func(s *scene) { s.Rec.Config = "" }
	sum := func(s *scene) { s.Rec.Config = cluster.ConfigSum(s.Config["file"]) }
	edited := func(s *scene) { s.Config["file"] = cluster.Secret("version: v1alpha1\nmachine: {type: worker}\n") }
	unsaved := func(s *scene) { delete(s.Config, "journal") }
	unplanned := func(s *scene) { s.Plan.ConfigFile = nil }
	unfiled := func(s *scene) { delete(s.Config, "file") }
	moved := func(s *scene) { s.Config["runs"] = cluster.Secret("version: v1alpha1\n") }
	reboots := func(s *scene) { s.Config["file"] = cluster.Secret("reboots: true") }
	return []row{
		{Do: "shown", Change: moved, Err: "the configuration that it keeps was changed since the plan was made"},
		{Do: "shown", Change: all(moved, is(cluster.InPlace))},
		{Do: "checked", Change: reboots, Err: "says that it has to reboot for its configuration"},
		{Do: "checked", Change: all(reboots, func(s *scene) { s.Plan.ConfigFile.Reboot = []string{"machine.udev"} })},
		{Do: "checked", Change: fails("CheckConfig", cluster.ErrNotFound), Err: "ask wk1 about the configuration"},
		{Do: "configured", Change: func(s *scene) { s.Blank.UUID = "v" }, Err: "answers with UUID v, not u", Done: stopped},
		{Do: "configured", Change: func(s *scene) { s.Blank.SKU = "" }, Err: "not the SKU number that recast wrote into the VM's SMBIOS"},
		{Do: "configured", Change: func(s *scene) { s.Blank.SKU = "mine" }, Err: "not the SKU number that recast wrote into the VM's SMBIOS"},
		{Do: "configured", Change: on(101, kv{"smbios1": "uuid=u,sku=mine"}), Err: "a certificate with the fingerprint shown, which nobody has confirmed"},
		{Do: "configured", Change: on(101, kv{"smbios1": "uuid=u"}), Err: "a certificate with the fingerprint shown, which nobody has confirmed"},
		{Do: "configured", Change: func(s *scene) { s.Blank.Disks[0].Serial = "other" }, Err: "0 disks of the machine are the blank system disk", Done: stopped},
		{Do: "configured", Change: func(s *scene) { s.Blank.Disks[0].Blank = false }, Err: "the new system disk sda is not blank", Done: stopped},
		{Do: "configured", Change: func(s *scene) { s.Mem.Volumes = []cluster.Volume{{Label: "u-data", PartitionUUID: "p", Format: "xfs"}} }, Err: "is missing", Done: stopped},
		{Do: "configured", Change: labelled("sdb1", "sdb2"), Err: "the label STATE is on sdb1 and on sdb2", Done: stopped},
		{Do: "configured", Change: labelled("sdb1")},
		{Do: "configured", Change: func(s *scene) { s.Blank.TalosVersion = "v1.0.0" }, Err: "it booted v1.0.0", Done: stopped},
		{Do: "configured", Change: func(s *scene) { s.Blank.Stage = "installing" }, Err: "look at the console of VM 101: if Talos says", Took: time.Minute},
		{Do: "configured", Change: func(s *scene) { s.UUIDs[addr(21)] = "u" }, Err: "", Done: " "},
		{Do: "configured", Change: all(off, func(s *scene) { s.Applied = "" }), Err: "is off", Done: recorded + "\napply"},
		{Do: "again", Change: all(off, func(s *scene) { s.Applied = "" }), Err: "is off", Done: "apply"},
		{Do: "configured", Change: fails("apply", cluster.ErrNotFound), Err: "apply the configuration", Done: recorded},
		{Do: "configured", Change: ofInit, Err: "is of machine.type init, and its etcd directory is empty", Done: recorded},
		{Do: "configured", Change: all(ofInit, func(s *scene) { s.Mem.EtcdKept = true })},
		{Do: "again", Change: func(s *scene) { s.Blank.UUID = "v" }, Err: "it is not as it was when the plan was made"},
		{Do: "again", Change: func(s *scene) { s.Blank.Stage = "booting" }, Err: "it is not as it was when the plan was made"},
		{Do: "again", Change: func(s *scene) { s.Blank.FromISO = true }, Err: "it is not as it was when the plan was made"},
		{Do: "again", Change: all(unfiled, unplanned), Err: "is not in talos.machineConfigs"},
		{Do: "again", Change: fails("apply", cluster.ErrNotFound), Err: "apply the configuration"},
		{Do: "config", Change: damaged, Err: "its SHA-256 is"},
		{Do: "config", Change: unsaved, Err: "is neither in the journal nor in talos.machineConfigs"},
		{Do: "config", Change: unsummed, Err: "the record of run r1 says none"},
		{Do: "config", Change: all(unsaved, filed, unsummed), Err: "is not the machine configuration that run r1 remembered"},
		{Do: "config", Change: all(unsaved, unsummed, func(s *scene) { s.Rec.Open = false }), Err: "is neither in the journal nor in talos.machineConfigs"},
		{Do: "config", Change: all(unsaved, filed), Err: "is not the machine configuration that run r1 remembered"},
		{Do: "config", Change: all(unsaved, filed, sum, edited), Err: "is not the machine configuration that run r1 remembered"},
		{Do: "config", Change: all(unsaved, filed, edited, sum)},
		{Do: "config", Change: all(unsaved, filed, unfiled), Err: "is neither in the journal nor in talos.machineConfigs"},
		{Do: "config", Change: all(filed, damaged), Err: "its SHA-256 is"},
		{Do: "config", Change: all(unsaved, filed, fails("file", cluster.ErrNotNow)), Err: "no answer just now"},
		{Do: "file", Change: unfiled, Err: "its file in talos.machineConfigs is gone"},
		{Do: "shown", Change: fails("APIServer", cluster.ErrNotFound), Err: "does not serve at its own address"},
		{Do: "upgraded", Change: fails("APIServer", cluster.ErrNotFound), Err: "does not serve at its own address"},
		{Do: "shown", Change: all(fails("APIServer", cluster.ErrNotFound), func(s *scene) { s.Plan.Role = cluster.Worker })},
		{Do: "file", Change: unplanned, Err: "it has a file in talos.machineConfigs now"},
		{Do: "file", Change: all(unfiled, unplanned)},
		{Do: "file", Change: edited, Err: "its file in talos.machineConfigs was changed"},
		{Do: "file", Change: func(s *scene) { s.Config["file"] = cluster.Secret("{") }, Err: "not a machine configuration"},
		{Do: "file", Change: func(s *scene) { s.Config["runs"] = nil }, Err: "the configuration that it runs was changed"},
		{Do: "file", Change: func(s *scene) { s.Plan.ConfigFile.Runs = ""; s.Config["runs"] = nil }},
	}
}

// otherRows test the VM, its record and the hooks.
func otherRows() []row {
	record := func(change func(*parking.Record)) func(*scene) { return func(s *scene) { change(s.Rec) } }
	return []row{
		{Do: "hooks", Change: onNode("wk1", paused), Err: "was paused since"},
		{Do: "start", Change: on(101, kv{"smbios1": "uuid=v"}), Err: "is not the one that run r1 created"},
		{Do: "start", Change: is(cluster.Recreate), Err: "is not the one that run r1 created"},
		{Do: "start", Change: all(is(cluster.Recreate), on(101, kv{"description": "recast: run=r1 build=b"})), Done: strings.Replace(started, "start", "set 101 map[smbios1:proof] delete []\nstart", 1)},
		{Do: "start", Change: func(s *scene) { s.PX.Change(101, func(vm *cluster.VM) { vm.Running = true }) }, Err: "is on, but its emulator says"},
		{Do: "start", Change: on(101, kv{"scsi9": "fast:vm-200-disk-0"}), Err: "whose that is, does not exist"},
		{Do: "start", Change: on(101, kv{"scsi9": ","}), Err: "no volume in"},
		{Do: "back out", Change: func(s *scene) { s.Ready(); s.PX.Set(9900, kv{"scsi30": "fast:vm-9900-disk-0,backup=0"}) }, Err: "has disks of wk1 already (scsi0)"},
		{Do: "down", Change: record(func(rec *parking.Record) { rec.Open = false })},
		{Do: "down", Change: record(func(rec *parking.Record) { rec.Run = "r0" })},
		{Do: "down", Change: func(s *scene) { s.Rec = nil }},
		{Do: "down", Change: swapped, Err: "said VM 101 was renewed by this run"},
		{Do: "record", Change: record(func(rec *parking.Record) { rec.Open = false }), Err: "another run was here"},
		{Do: "record", Change: record(func(rec *parking.Record) { rec.Run = "r0" }), Err: "another run was here"},
		{Do: "remember", Change: on(101, kv{"hookscript": "x"}), Err: "has hookscript"},
	}
}

// TestAwaitGate: before a node goes, an error that only a new configuration can fix is reported at
// once. After the node is back, the API may not be complete yet.
func TestAwaitGate(t *testing.T) {
	t.Parallel()
	refused := fault.Refusedf("the API has no such kind")
	type testCase struct {
		look       func(after time.Duration) (cluster.Judged, error)
		before     string
		beforeTook time.Duration
		after      string
		afterTook  time.Duration
	}
	must.Bubbles(t, map[string]testCase{
		"holds": {look: func(time.Duration) (cluster.Judged, error) { return failing(), nil }},
		"holds later, after an API that flaps": {
			look: func(d time.Duration) (cluster.Judged, error) {
				switch {
				case d < 10*time.Second:
					return failing("a"), nil
				case d < 20*time.Second:
					return cluster.Judged{}, errors.New("no answer")
				}
				return failing(), nil
			},
			beforeTook: 20 * time.Second, afterTook: 20 * time.Second,
		},
		"never": {
			look:       func(time.Duration) (cluster.Judged, error) { return failing("a"), nil },
			before:     `gate "v1 Node": gave up after 1m0s; last seen: 1 of 12: a: status.ok=false: context deadline exceeded`,
			beforeTook: time.Minute,
			after:      `wk1 is done and takes pods, but no other node is to follow: gate "v1 Node": gave up after 1m0s; last seen: 1 of 12: a: status.ok=false: context deadline exceeded`,
			afterTook:  time.Minute,
		},
		"refused": {
			look:      func(time.Duration) (cluster.Judged, error) { return cluster.Judged{}, refused },
			before:    `gate "v1 Node": the API has no such kind`,
			after:     `wk1 is done and takes pods, but no other node is to follow: gate "v1 Node": gave up after 1m0s; last seen: the API has no such kind: context deadline exceeded`,
			afterTook: time.Minute,
		},
		"credentials that are wrong": {
			look:   func(time.Duration) (cluster.Judged, error) { return cluster.Judged{}, fault.Configf("read kubeconfig") },
			before: `gate "v1 Node": read kubeconfig`,
			after:  `wk1 is done and takes pods, but no other node is to follow: gate "v1 Node": read kubeconfig`,
		},
	}, func(t *testing.T, c testCase) {
		for _, ask := range []struct {
			when, want string
			took       time.Duration
		}{{"before", c.before, c.beforeTook}, {"after", c.after, c.afterTook}} {
			start := time.Now()
			n := gatedNode(func() (cluster.Judged, error) { return c.look(time.Since(start)) }, nil, someObjects)
			steps := n.userGates.Before()
			if ask.when == "after" {
				steps = n.userGates.After()
			}
			err := steps[0].Do(t.Context())
			must.Hold(t, clustertest.Message(err) == ask.want && time.Since(start) == ask.took,
				"%s: after %s: %v", ask.when, time.Since(start), err)
			must.Hold(t, ask.when != "before" || !strings.Contains(ask.want, "gave up") || fault.KindOf(err) == fault.Refused,
				"before: kind %d", fault.KindOf(err))
		}
	})
}

func TestCommandGateKnowsWhatItIsAskedFor(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		var got []string
		n := gatedNode(nil, func(env []string) (int, string, error) {
			got = append(got, strings.Join(env, " "))
			return max(0, 2-len(got)), "not yet", nil
		}, cluster.UserGate{TimeoutSeconds: 60, Command: &cluster.CommandGate{Args: []string{"check"}}})
		must.Do(t, errors.Join(n.userGates.Before()[0].Do(t.Context()), n.userGates.After()[0].Do(t.Context())))
		const env = "RECAST_CLUSTER=lab RECAST_RUN=r1 RECAST_NODE=wk1 RECAST_STRATEGY=recreate RECAST_WHEN="
		must.Equal(t, "got", []string{env + "before", env + "before", env + "after"}, got)
	})
}

// TestStepsOfGates: for which nodes the gates are asked, and when.
func TestStepsOfGates(t *testing.T) {
	t.Parallel()
	both, before := someObjects, someObjects
	before.BeforeOnly = true
	stale := observe.Drift{Reasons: []cluster.Reason{{Code: "extension-digest"}}}
	cordoned, media := observe.Drift{Reasons: []cluster.Reason{{Code: "cordoned"}}}, observe.Drift{Reasons: []cluster.Reason{{Code: "boot-media"}}}
	type testCase struct {
		gates []cluster.UserGate
		plan  planning.NodePlan
		want  string
	}
	must.Each(t, map[string]testCase{
		"none":                             {nil, planning.NodePlan{Strategy: cluster.Recreate, Drift: stale}, ""},
		"recreate":                         {[]cluster.UserGate{both}, planning.NodePlan{Strategy: cluster.Recreate, Drift: stale}, "ask-gates ask-gates-again"},
		"in place":                         {[]cluster.UserGate{both}, planning.NodePlan{Strategy: cluster.InPlace, Drift: stale}, "ask-gates ask-gates-again"},
		"before only":                      {[]cluster.UserGate{before}, planning.NodePlan{Strategy: cluster.Reimage, Drift: stale}, "ask-gates"},
		"rollback":                         {[]cluster.UserGate{both}, planning.NodePlan{Strategy: cluster.Rollback, Drift: stale}, "ask-gates ask-gates-again"},
		"already out":                      {[]cluster.UserGate{both}, planning.NodePlan{Strategy: cluster.Recreate, Resume: true, Drift: stale}, "ask-gates-again"},
		"reset":                            {[]cluster.UserGate{both}, planning.NodePlan{Strategy: cluster.InstallReset, Resume: true, Drift: stale}, "ask-gates-again"},
		"a cancelled replacement":          {[]cluster.UserGate{both}, planning.NodePlan{Strategy: cluster.PutBack, Resume: true, Drift: stale}, ""},
		"was out, and is to be uncordoned": {[]cluster.UserGate{both}, planning.NodePlan{Strategy: cluster.InPlace, Drift: cordoned}, "ask-gates-again"},
		"never out":                        {[]cluster.UserGate{both}, planning.NodePlan{Strategy: cluster.InPlace, Drift: media}, ""},
	}, func(t *testing.T, c testCase) {
		n := gatedNode(nil, nil, c.gates...)
		n.Plan = c.plan
		var got []string
		for _, s := range append(n.userGates.Before(), n.userGates.After()...) {
			got = append(got, s.ID)
			must.Hold(t, s.Yields, "%s does not yield", s.ID)
		}
		must.Equal(t, "asked", c.want, strings.Join(got, " "))
	})
}

// commandFunc gets the environment of the command.
type commandFunc func(env []string) (int, string, error)

func (f commandFunc) RunGate(_ context.Context, _ cluster.CommandGate, env []string) (int, string, error) {
	return f(env)
}

func (f commandFunc) RunHook(_ context.Context, _ cluster.CommandGate, env []string, line func(string)) (cluster.HookEnd, error) {
	exit, said, err := f(env)
	line(said)
	return cluster.HookEnd{Exit: exit, Said: said, Output: said + "\n"}, err
}

func failing(names ...string) cluster.Judged {
	j := cluster.Judged{Objects: 12}
	for _, name := range names {
		j.Failing = append(j.Failing, cluster.FailingObject{Name: name, Why: "status.ok=false"})
	}
	return j
}

func gatedNode(objects judgeFunc, commands commandFunc, gates ...cluster.UserGate) *node {
	r := &Roller{Roll: &rolling.Roll{Cluster: "lab", Run: "r1", Timing: cluster.Timing{Poll: time.Second}, Say: func(string, string) {}}, Objects: objects, Commands: commands}
	n := r.node(rolling.Node{Plan: planning.NodePlan{Node: "wk1", Strategy: cluster.Recreate}})
	n.userGates.Gates = gates
	return n
}

// judgeFunc is a cluster.ObjectJudge.
type judgeFunc func() (cluster.Judged, error)

func (f judgeFunc) Judge(context.Context, cluster.ObjectGate) (cluster.Judged, error) { return f() }

var someObjects = cluster.UserGate{TimeoutSeconds: 60, Objects: &cluster.ObjectGate{APIVersion: "v1", Kind: "Node"}}

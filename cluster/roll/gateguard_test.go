package roll

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/internal/fault"
)

// gateCall is something that a gate comes before, of a node that is that far.
type gateCall struct {
	do    func(*scene, context.Context) error
	ready func(*scene)
	done  string   // by it, where nothing is in the way
	last  string   // the call after which none matters; "": each does
	deaf  []string // calls that may fail, for what they tell is no reason to refuse, or they are made again
}

func check(s *scene, ctx context.Context) error { return s.gate.Check(ctx) }

func told(why string, err error) error {
	if err == nil && why != "" {
		return errors.New("said " + why)
	}
	return err
}

// gateCalls are by the name that rows have for them.
var gateCalls = map[string]gateCall{
	"recreate":       {check, nil, "", "", []string{"Identity"}},
	"reimage":        {check, is(cluster.Reimage), "", "", []string{"Identity"}},
	"rollback":       {check, is(cluster.Rollback), "", "", []string{"Identity"}},
	"cp":             {check, asCP, "", "", []string{"Identity", "EtcdMembers", "EtcdStatus"}},
	"resume":         {check, all(begun, resumed), "", "", []string{"Booted", "Machine", "LocalData", "Node", "Get", "VM"}},
	"resume cp":      {check, all(asCP, begun, resumed), "", "", []string{"Booted", "Machine", "LocalData", "Node", "Get", "VM", "EtcdMembers", "EtcdStatus"}},
	"put back":       {check, all(is(cluster.PutBack), begun, resumed, swapped), "", "", []string{"Machine", "Node"}},
	"put back cp":    {check, all(is(cluster.PutBack), asCP, begun, resumed, swapped), "", "", []string{"Machine", "Node", "EtcdMembers", "EtcdStatus"}},
	"in place":       {check, all(is(cluster.InPlace), previous), "", "", []string{"Identity", "Machine"}},
	"in place again": {check, all(is(cluster.InPlace), resumed, waiting), "", "", nil},
	"configure":      {check, all(is(cluster.Configure)), "", "", []string{"Node"}},
	"configure cp":   {check, all(asCP, is(cluster.Configure)), "", "", []string{"Node", "EtcdMembers"}},
	"may leave":      {func(s *scene, ctx context.Context) error { _, _, err := s.etcd.mayLeave(ctx); return err }, asCP, "", "", []string{"Identity", "EtcdMembers", "EtcdStatus"}},
	"asks":           {func(s *scene, ctx context.Context) error { return s.gate.Losses.RequireOff(ctx) }, begun, "", "", []string{"Machine", "Node", "LocalData", "VM", "Get"}},
	"late cp": {func(s *scene, ctx context.Context) error {
		err := s.gate.Earlier.AwaitLate(ctx)
		if err == nil && !s.Late.None() {
			return errors.New("the next one looks at every record again")
		}
		return err
	}, asCP, "", "", nil},
	"asks cp": {func(s *scene, ctx context.Context) error { return s.gate.Losses.RequireOff(ctx) }, all(asCP, begun), "", "", []string{"Machine", "Node", "LocalData", "VM", "Get"}},
	"losses":  {func(s *scene, ctx context.Context) error { return s.gate.Losses.Require(ctx) }, begun, "", "", []string{"Machine"}},
	"record": {func(s *scene, ctx context.Context) error {
		r, err := s.record.read(ctx)
		if err == nil {
			err = r.Asks(ctx)
		}
		return err
	}, begun, "", "", []string{"Machine", "Node", "LocalData", "VM", "Get"}},
	"configured": {func(s *scene, ctx context.Context) error { return s.bringUp.configure(ctx) }, all(begun, swapped, silent, saved), "apply", "", []string{"Standing", "MaintenanceMachine", "Node"}},
	"again":      {func(s *scene, ctx context.Context) error { return s.reconfigure.again(ctx) }, all(is(cluster.Configure), silent, filed), "apply", "", []string{"Standing", "Node"}},
	"config":     {func(s *scene, ctx context.Context) error { _, err := s.savedConfig.read(ctx); return err }, all(begun, saved), "", "", nil},
	"file":       {func(s *scene, ctx context.Context) error { _, _, err := s.savedConfig.userConfig(ctx); return err }, filed, "", "", nil},
	"start":      {func(s *scene, ctx context.Context) error { return s.power.start(ctx) }, all(is(cluster.PutBack), begun, off), started, "", []string{"Node"}},
	"out":        {func(s *scene, ctx context.Context) error { return replaced(s, ctx, s.putBack.leaveAsReplacement) }, all(asCP, begun, swapped, joined), "forfeit\nleave", "", []string{"Identity", "EtcdMembers", "EtcdStatus"}},
	"is out": {func(s *scene, ctx context.Context) error {
		return replaced(s, ctx, func(ctx context.Context, r *exchange.Replace) error { return told(s.putBack.replacementOut(ctx, r)) })
	}, all(asCP, begun, swapped, joined), "", "", []string{"EtcdMembers", "EtcdStatus"}},
	"back out":    {func(s *scene, ctx context.Context) error { return s.eviction.backOut(ctx) }, begun, "uncordon\nset 9900 map[description:record protection:1] delete []", "", nil},
	"drain":       {func(s *scene, ctx context.Context) error { return s.eviction.drain(ctx) }, begun, "cordon\ndrain", "", []string{"Identity", "VM", "Machine", "AttachedVolumes"}},
	"uncordon":    {func(s *scene, ctx context.Context) error { return s.finish.uncordon(ctx) }, begun, "uncordon", "", nil},
	"down":        {func(s *scene, ctx context.Context) error { return told(s.takeDown.done(ctx)) }, begun, "", "", nil},
	"parking":     {func(s *scene, ctx context.Context) error { _, err := s.Parking(ctx); return err }, begun, "", "", nil},
	"hooks":       {func(s *scene, ctx context.Context) error { return s.hookPoints.before()[0].Do(ctx) }, hooked, "", "", nil},
	"prove":       {func(s *scene, ctx context.Context) error { return s.recall.proveReplace(ctx, s.mem, *s.rec) }, begun, "", "", nil},
	"reboot":      {func(s *scene, ctx context.Context) error { return s.newBoot.requireToReboot(ctx) }, asCP, "", "", []string{"EtcdStatus", "EtcdMembers", "Identity"}},
	"boot failed": {func(s *scene, ctx context.Context) error { return s.newBoot.bootFailed(ctx, errors.New("in vain")) }, all(asCP, silent, func(s *scene) { delete(s.status, addr(12)) }), "", "", []string{"Booted", "EtcdStatus", "EtcdMembers", "Identity"}},
}

func is(s cluster.Strategy) func(*scene) { return func(c *scene) { c.Plan.Strategy = s } }

func all(changes ...func(*scene)) func(*scene) {
	return func(s *scene) {
		for _, change := range changes {
			change(s)
		}
	}
}

func resumed(s *scene) { s.Plan.Resume = true }

// swapped has the new system disk on the VM, and the old one parked.
func swapped(s *scene) {
	s.px.Guests[9900] = cluster.VM{ID: 9900, Host: "pve1", Config: kv{"scsi30": "fast:vm-9900-disk-0,backup=0"}}
	on(101, kv{"scsi0": "fast:vm-101-disk-5,serial=blank", "description": "recast: run=r1 build=b"})(s)
}

func on(id cluster.VMID, config kv) func(*scene) { return func(s *scene) { s.px.Set(id, config) } }

func off(s *scene) { s.px.Change(101, func(vm *cluster.VM) { vm.Running = false }) }

// previous has a build to fall back to.
func previous(s *scene) {
	b := s.Want.Build
	b.ISOName = "old.iso"
	s.Plan.Previous = &b
}

// waiting has another node down.
func waiting(s *scene) { onNode("cp3", func(k *cluster.KubeNode) { k.Ready = false })(s) }

// joined has the new system a member of etcd.
func joined(s *scene) { s.mem.EtcdID = 9 }

func onNode(name string, change func(*cluster.KubeNode)) func(*scene) {
	return func(s *scene) {
		k := s.nodes[name]
		change(&k)
		s.nodes[name] = k
	}
}

// silent has the machine not answer with the cluster's certificates.
func silent(s *scene) { s.uuids[s.Plan.Addr] = "" }

func saved(s *scene) { s.config["journal"] = cluster.Secret("machine: {}") }

// filed has the node's configuration in a file that the plan has shown.
func filed(s *scene) {
	text := cluster.Secret("version: v1alpha1\nmachine: {}\n")
	s.config["file"], s.config["runs"] = text, text
	s.Plan.ConfigFile = &cluster.ConfigFile{Hash: hashOf(text), Runs: cluster.ConfigSum(text), Applied: true}
	s.roller.MachineConfig = func(string) (cluster.Secret, bool, error) {
		text, found := s.config["file"]
		return text, found, s.px.Call("file")
	}
	s.blank.SystemDisk, s.blank.FromISO = "sda", false
}

const started = "set 9900 map[description:record protection:1] delete []\nstart 101\nset 9900 map[description:record protection:1] delete []"

func replaced(s *scene, ctx context.Context, do func(context.Context, *exchange.Replace) error) error {
	r, err := s.record.read(ctx)
	if err != nil {
		return err
	}
	return do(ctx, r)
}

func hooked(s *scene) {
	s.hooks.BeforeNode = []cluster.Hook{{Command: cluster.CommandGate{Args: []string{"true"}}, TimeoutSeconds: 1}}
}

// TestGateCalls: with nothing in the way each goes ahead, and stops where a call fails.
func TestGateCalls(t *testing.T) {
	t.Parallel()
	for name, c := range gateCalls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _, err := play(t, 0, c.do, c.ready)
			if got := strings.Join(s.px.Done, "\n"); err != nil && name != "boot failed" || got != c.done {
				t.Fatalf("%v, done:\n%s\nwant:\n%s", err, got, c.done)
			}
			for at, call := range s.px.Made {
				if slices.Contains(c.deaf, call) {
					continue
				}
				if _, _, err := play(t, at+1, c.do, c.ready); !errors.Is(err, clustertest.ErrBroken) {
					t.Errorf("call %d, %s, failed: %v", at+1, call, err)
				}
				if call == c.last {
					break
				}
			}
		})
	}
}

// gateRow is a call that is refused, or not, once something has changed.
type gateRow struct {
	do     string
	change func(*scene)
	err    string // "": it is not refused
	done   string // "": all of it, unless it is refused
	took   time.Duration
}

// TestGateRows: every condition of a gate refuses something that no other one does.
func TestGateRows(t *testing.T) {
	t.Parallel()
	for _, row := range slices.Concat(lookRows(), etcdRows(), identityRows(), lossRows(), lateRows(), configRows(), otherRows()) {
		t.Run(row.do+": "+cmp.Or(row.err, "not refused"), func(t *testing.T) {
			t.Parallel()
			c := gateCalls[row.do]
			s, took, err := play(t, 0, c.do, c.ready, row.change)
			if row.err == "" && row.done == "" {
				row.done = c.done
			}
			if got := strings.Join(s.px.Done, "\n"); got != strings.TrimSpace(row.done) || took.Round(2*time.Second) != row.took {
				t.Errorf("done after %s:\n%s\nwant after %s:\n%s", took, got, row.took, row.done)
			}
			if (err == nil) != (row.err == "") || err != nil && !strings.Contains(err.Error()+"\n"+strings.Join(fault.Hints(err), "\n"), row.err) {
				t.Errorf("err = %v, want %q", err, row.err)
			}
		})
	}
}

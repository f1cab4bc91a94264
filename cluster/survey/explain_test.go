package survey

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/observe/observetest"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

func explain(t *testing.T, node string, change func([]cluster.Wanted, *observe.Observation)) Explanation {
	t.Helper()
	wanted, o := observetest.World()
	if change != nil {
		change(wanted, &o)
	}
	plan := must.Get(planning.New("c1", wanted, o, clustertest.Past, planning.Policy{}))(t)
	e, err := Explain(t.Context(), plan, node, o, clustertest.Past, cluster.Timing{Drain: 10 * time.Minute, Stop: 5 * time.Minute, Boot: 10 * time.Minute, Join: 10 * time.Minute})
	must.Do(t, err)
	return e
}

func paths(e Explanation) string {
	var out []string
	for _, s := range e.Steps {
		out = append(out, s.Path)
	}
	return strings.Join(out, " ")
}

func fateIn(e Explanation, key string) Fate {
	for _, d := range e.Disks {
		if d.Key == key {
			return d.Fate
		}
	}
	return ""
}

func TestExplainRecreate(t *testing.T) {
	t.Parallel()
	e := explain(t, "wk1", func(_ []cluster.Wanted, o *observe.Observation) {
		o.Found[1].VM.Config["ide2"] = "none,media=cdrom"
		o.Found[1].VM.Config["scsi2"], o.Found[1].VM.Pods = "fast:vm-9002-pvc-1,size=1G", []string{"fast:vm-9002-pvc-1"}
		o.Took = []cluster.Took{{Node: "wk1", Role: cluster.Worker, Strategy: cluster.Recreate, OutageSeconds: 100, Steps: map[string]int{"take-down/drain": 30}}}
	})
	if e.Turn != 1 || e.Of != 1 || e.Batch == nil || e.Batch.Phase != planning.Workers {
		t.Errorf("turn %d of %d in %+v", e.Turn, e.Of, e.Batch)
	}
	want := "pull gate take-down/remember take-down/drain take-down/stop take-down/unprotect " +
		"take-down/park/settle take-down/park/scsi0 take-down/park/scsi1 take-down/delete-vm " +
		"bring-up/create-vm bring-up/renew-disk bring-up/attach/settle bring-up/attach/scsi1 bring-up/attach/compare-disks bring-up/start bring-up/configure bring-up/wait-healthy " +
		"bring-up/finish/eject bring-up/finish/restore-settings bring-up/finish/restore-ha bring-up/finish/restore-node bring-up/finish/note-entry bring-up/finish/uncordon bring-up/finish/keep"
	must.Equal(t, "steps", strings.Fields(want), strings.Fields(paths(e)))
	drain := e.Steps[3]
	drains := fmt.Sprint(drain.Seconds, " ", drain.SecondsFrom, " ", drain.TimeoutSeconds, " ", drain.Risk)
	must.Equal(t, "drain", "30 an earlier roll of it 600 disruptive", drains)
	must.Equal(t, "title", "park scsi0 as scsi30 of its parking VM", e.Steps[7].Title)
	for key, want := range map[string]Fate{"scsi0": FateReplaced, "scsi1": FateCarried, "scsi2": FatePods, "ide2": FateMedium} {
		must.Equal(t, key, want, fateIn(e, key))
	}
	if len(e.Strategies) != 3 || !e.Strategies[0].Taken || len(e.Strategies[0].Against) > 0 || e.Strategies[1].Taken {
		t.Errorf("%+v", e.Strategies)
	}
	i := slices.IndexFunc(e.Compared, func(c Comparison) bool { return strings.HasPrefix(c.What, "extension ") && !c.Same })
	if i < 0 || e.Compared[i].Found == "" || e.Compared[i].Wanted == "" {
		t.Errorf("%+v", e.Compared)
	}
}

// TestExplainAnOverlay: another digest of the same overlay, and a rebuild, have rows of their own.
func TestExplainAnOverlay(t *testing.T) {
	t.Parallel()
	wanted, o := observetest.World()
	wanted[1].Build.Overlay, wanted[1].Build.Rebuild = cluster.LockedOverlay{Name: "rpi", Digest: "sha256:bbbbbbbbbbbbbbbb"}, 2
	past := func(hash string) (cluster.LockedContent, bool) {
		old, known := clustertest.Past(hash)
		old.Overlay, old.Rebuild = cluster.LockedOverlay{Name: "rpi", Digest: "sha256:aaaaaaaaaaaaaaaa"}, 1
		return old, known
	}
	plan := must.Get(planning.New("c1", wanted, o, past, planning.Policy{}))(t)
	e := must.Get(Explain(t.Context(), plan, "wk1", o, past, cluster.Timing{}))(t)
	for _, want := range []Comparison{
		{What: "image of the overlay", Found: "sha256:aaaaaaaaaaaa", Wanted: "sha256:bbbbbbbbbbbb"},
		{What: "rebuilds of the same content", Found: "1", Wanted: "2"},
	} {
		if !slices.Contains(e.Compared, want) {
			t.Errorf("no %+v in %+v", want, e.Compared)
		}
	}
}

// TestExplainAFirewall: a new VM gets its rules again; a VM that stays keeps them.
func TestExplainAFirewall(t *testing.T) {
	t.Parallel()
	for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
		e := explain(t, "wk1", func(wanted []cluster.Wanted, o *observe.Observation) {
			wanted[1].Strategy = s
			o.Found[1].Ties.Firewall = cluster.FirewallConfig{Options: cluster.FirewallEntry{"enable": "1"}}
		})
		must.Equal(t, string(s), s == cluster.Recreate, strings.Contains(paths(e), "bring-up/attach/firewall"))
	}
}

// The obstacles of every strategy are listed, whichever is taken.
func TestExplainWhatIsImpossible(t *testing.T) {
	t.Parallel()
	e := explain(t, "wk1", func(_ []cluster.Wanted, o *observe.Observation) {
		o.Found[1].Ties.Dropped = []string{"an ACL entry at /vms/9002"}
		o.Found[1].Node = &cluster.KubeNode{FailedBuild: clustertest.WantedBuild().ID}
	})
	if e.Plan.Strategy != cluster.Reimage || len(e.Strategies[0].Against) != 1 || !e.Strategies[1].Taken || len(e.Strategies[2].Against) != 1 {
		t.Errorf("%s: %+v", e.Plan.Strategy, e.Strategies)
	}
	if fateIn(e, "scsi1") != FateStays || strings.Contains(paths(e), "delete-vm") || !strings.Contains(paths(e), "bring-up/blank-disk") {
		t.Errorf("%+v, %s", e.Disks, paths(e))
	}
	single := explain(t, "cp1", func(_ []cluster.Wanted, o *observe.Observation) {
		o.Found[0].Machine.TalosVersion = "v1.13.0"
		o.Found[0].Machine.Volumes = []cluster.Volume{{Device: "sda4", Disk: "sda", Label: "EPHEMERAL"}}
		o.Nodes = []cluster.KubeNode{{Name: "cp1", ControlPlane: true, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}}
		o.Found[0].Node = &o.Nodes[0]
	})
	if single.Plan.Strategy != cluster.InPlace || !strings.Contains(strings.Join(single.Strategies[0].Against, " "), "the only etcd member") {
		t.Errorf("%s: %+v", single.Plan.Strategy, single.Strategies)
	}
	must.Contain(t, "steps", paths(single), "upgrade/install upgrade/reboot wait-healthy finish/eject")
	must.Equal(t, "a fallback", false, strings.Contains(paths(single), "fallback"))
}

func TestExplainHolder(t *testing.T) {
	t.Parallel()
	e := explain(t, "wk1", func(wanted []cluster.Wanted, o *observe.Observation) {
		wanted[1].Holder = 9201
		o.Found[1].VM.Config["scsi1"] = "fast:vm-9201-disk-0,size=20G,serial=data-wk1"
		o.VMs = append(o.VMs, cluster.VM{ID: 9201, Name: "data", Host: "pve1", Config: map[string]string{"scsi0": "fast:vm-9201-disk-0,size=20G"}})
	})
	must.Equal(t, "strategy", []any{cluster.Recreate, FateDetached}, []any{e.Plan.Strategy, fateIn(e, "scsi1")})
	if !slices.ContainsFunc(e.Steps, func(s StepOutline) bool { return s.Title == "detach scsi1, which stays with VM 9201" }) {
		t.Errorf("%+v", e.Steps)
	}
}

// A node that is up to date is explained by what would be possible; one that is not in the plan is an error.
func TestExplainTheRest(t *testing.T) {
	t.Parallel()
	e := explain(t, "wk2", nil)
	if e.Turn != 0 || len(e.Steps) > 0 || len(e.Strategies) != 3 || fateIn(e, "scsi0") != FateStays {
		t.Errorf("%+v", e)
	}
	for _, c := range e.Compared {
		if !c.Same {
			t.Errorf("%+v", c)
		}
	}
	wanted, o := observetest.World()
	plan, err := planning.New("c1", wanted, o, clustertest.Past, planning.Policy{Only: []string{"wk1"}})
	must.Do(t, err)
	must.FailAs(t, must.Err(Explain(t.Context(), plan, "wk2", o, clustertest.Past, cluster.Timing{})), fault.Config)
}

// An unfinished replacement is explained as it will be finished: according to its record.
func TestExplainWhatWasBegun(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config       bool
		strategy     cluster.Strategy
		scsi0, scsi1 Fate
		step         string
	}{
		"finished": {true, cluster.Recreate, FateReplaced, FateBack, "bring-up/attach/scsi1"},
		"put back": {false, cluster.PutBack, FateBack, FateBack, "put-back/attach/scsi0"},
	} {
		e := explain(t, "wk1", func(_ []cluster.Wanted, o *observe.Observation) {
			packed := must.Get(parking.Memory{VM: *o.Found[1].VM, SystemKey: "scsi0"}.Pack())(t)
			o.Found[1].VM, o.Found[1].Machine, o.Found[1].ConfigKnown = nil, nil, c.config
			o.Found[1].Parking = &parking.Parking{VM: cluster.VM{ID: 9090, Host: "pve1"}, Record: parking.Record{
				Run: "r1", Open: true, Build: "b1", Strategy: cluster.Recreate, VMID: 9002, UUID: "u-wk1", Memory: packed, Disks: []parking.ParkedDisk{
					{Key: "scsi0", ParkKey: "scsi30", Volid: clustertest.Volid(9002, 0), Options: "size=10G", System: true},
					{Key: "scsi1", ParkKey: "scsi1", Volid: clustertest.Volid(9002, 1), Options: "size=20G"},
				},
			}}
		})
		if e.Plan.Strategy != c.strategy || e.Turn != 1 || len(e.Strategies) > 0 || len(e.Compared) > 0 {
			t.Errorf("%s: %s, %+v", name, e.Plan.Strategy, e)
		}
		must.Equal(t, name, []any{c.scsi0, c.scsi1}, []any{fateIn(e, "scsi0"), fateIn(e, "scsi1")})
		if !slices.Contains(strings.Fields(paths(e)), c.step) {
			t.Errorf("%s: no %s in %s", name, c.step, paths(e))
		}
	}
}

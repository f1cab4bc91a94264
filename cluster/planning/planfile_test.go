package planning

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

// sealed is a sealed plan for stale wk1 and wk2 of the paused world.
func sealed(t *testing.T, edit func([]cluster.Wanted, *observe.Observation), p Policy) Plan {
	t.Helper()
	wanted, o := paused(nil)
	if edit != nil {
		edit(wanted, &o)
	}
	p.Only = []string{"wk1", "wk2"}
	plan := planned(t, wanted, o, p)
	plan.Gates = []cluster.UserGate{{TimeoutSeconds: 60, Command: &cluster.CommandGate{Args: []string{"true"}, Dir: "/somewhere"}}}
	plan.Seal("sha256-lock", "sha256-config")
	return plan
}

func asJSON(t *testing.T, p Plan) []byte {
	t.Helper()
	return must.Get(json.MarshalIndent(p, "", "  "))(t)
}

func TestPlanReadsBack(t *testing.T) {
	t.Parallel()
	plan := sealed(t, nil, Policy{})
	b := asJSON(t, plan)
	got := must.Get(Read(b))(t)
	must.Equal(t, "got", string(b), string(asJSON(t, got)))
	if len(plan.ID) != 16 || got.ID != plan.ID || sealed(t, nil, Policy{}).ID != plan.ID {
		t.Errorf("ID %q, read %q", plan.ID, got.ID)
	}
}

func TestPlanIsReadStrictly(t *testing.T) {
	t.Parallel()
	whole := string(asJSON(t, sealed(t, nil, Policy{})))
	resumed := sealed(t, nil, Policy{})
	resumed.Nodes[0].Resume = true
	resumed.Seal(resumed.Lock, resumed.Config)
	for name, tc := range map[string]struct {
		text, want string
		kind       fault.Kind
	}{
		"no JSON":            {"plan: x", "it is no plan: ", fault.Config},
		"another format":     {strings.Replace(whole, `"version": 1`, `"version": 2`, 1), "it is a plan of format 2; this recast reads format 1", fault.Config},
		"an unknown field":   {strings.Replace(whole, `"cluster"`, `"x": 1, "cluster"`, 1), `it is no plan: json: unknown field "x"`, fault.Config},
		"two":                {whole + whole, "", fault.Config},
		"edited":             {strings.Replace(whole, `"recreate"`, `"in-place"`, 1), "it was changed after it was made: ", fault.Refused},
		"begins with a rest": {string(asJSON(t, resumed)), "it begins with " + resumed.Nodes[0].Node + ", which was left unfinished then", fault.Refused},
	} {
		_, err := Read([]byte(tc.text))
		if err == nil || fault.KindOf(err) != tc.kind || !strings.HasPrefix(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFollow(t *testing.T) {
	t.Parallel()
	saved := must.Get(Read(asJSON(t, sealed(t, nil, Policy{}))))(t)
	inSyncNow := func(name string) func([]cluster.Wanted, *observe.Observation) {
		return func(_ []cluster.Wanted, o *observe.Observation) {
			for i := range o.Found {
				if m := clustertest.InSync(); o.Found[i].Name == name {
					m.UUID, m.SystemDisk, m.Disks = o.Found[i].Machine.UUID, o.Found[i].Machine.SystemDisk, o.Found[i].Machine.Disks
					o.Found[i].Machine = &m
				}
			}
		}
	}
	type row struct {
		edit  func([]cluster.Wanted, *observe.Observation)
		begun bool
		mine  bool // wk1's VM was made by a run of the plan
		left  bool // such a run has cordoned wk2
		back  bool // such a run had begun to replace wk1, and put its old system disk back
		want  string
	}
	must.Each(t, map[string]row{
		"nothing moved": {},
		"estimates differ": {edit: func(_ []cluster.Wanted, o *observe.Observation) {
			o.Took = []cluster.Took{{Node: "wk1", Role: cluster.Worker, Strategy: cluster.Recreate, OutageSeconds: 9}}
		}},
		"done by a run of it":         {edit: inSyncNow("wk1"), begun: true},
		"done outside the plan":       {edit: inSyncNow("wk1"), want: "wk1: what is done: recreate → none"},
		"done elsewhere by a run":     {edit: inSyncNow("wk1"), mine: true},
		"done elsewhere, in place":    {edit: inSyncNow("wk1"), left: true},
		"the VM was changed":          {edit: func(_ []cluster.Wanted, o *observe.Observation) { o.VMs[1].Digest = "other" }, want: "wk1: digest of the VM's configuration: dwk1 → other"},
		"changed, though a run began": {edit: func(_ []cluster.Wanted, o *observe.Observation) { o.VMs[1].Digest = "other" }, begun: true, want: "wk1: digest of the VM's configuration: dwk1 → other"},
		"put back by a run of it":     {edit: func(_ []cluster.Wanted, o *observe.Observation) { o.VMs[1].Digest = "other" }, back: true},
		"put back, on another host":   {edit: func(_ []cluster.Wanted, o *observe.Observation) { o.VMs[1].Digest, o.VMs[1].Host = "other", "pve2" }, back: true, want: "wk1: refused because: none → nobody asked pve2 for its room; wk1: Proxmox host: pve1 → pve2; wk1: slots: host/pve1 → host/pve2"},
		"moved to another host":       {edit: func(_ []cluster.Wanted, o *observe.Observation) { o.VMs[2].Host = "pve2" }, want: `wk2: refused because: none → nobody asked pve2 for its room; wk2: Proxmox host: pve1 → pve2; wk2: slots: host/pve1 → host/pve2`},
		"another strategy":            {edit: func(w []cluster.Wanted, _ *observe.Observation) { w[1].Strategy = cluster.Reimage }, want: "wk1: what is done: recreate → reimage"},
		"another build":               {edit: func(w []cluster.Wanted, _ *observe.Observation) { w[1].Build.ID = "b2" }, want: "wk1: build: " + clustertest.WantedBuild().ID + " → b2"},
		"paused since":                {edit: func(_ []cluster.Wanted, o *observe.Observation) { o.Found[1].Node.Pause = "x" }, begun: true, want: "wk1: what is done: recreate → none; wk1: paused: none → x"},
		"in use by now":               {edit: func(_ []cluster.Wanted, o *observe.Observation) { o.Found[1].Ties.Snapshots = []string{"before"} }, want: "wk1: what is done: recreate → in-place"},
	}, func(t *testing.T, tc row) {
		now := sealed(t, func(w []cluster.Wanted, o *observe.Observation) {
			if tc.edit != nil {
				tc.edit(w, o)
			}
			if tc.mine {
				o.VMs[1].Config["description"] = cluster.RunMark + "20000101-0000-feed" + saved.RunSuffix() + " build=x"
			}
			if tc.back {
				o.Found[1].Parking = &parking.Parking{VM: cluster.VM{ID: 9900}, Record: parking.Record{Run: "20000101-0000-feed" + saved.RunSuffix(), Kept: []parking.KeptDisk{{Key: "scsi30", Run: "20000101-0000-feed" + saved.RunSuffix(), GivenUp: true}}}}
			}
			if tc.left {
				o.Found[2].Node.Mark = &cluster.Mark{Run: "20000101-0000-feed" + saved.RunSuffix(), Strategy: cluster.Recreate, BootID: "b"}
			}
		}, Policy{})
		got, err := now.Follow(saved, tc.begun)
		var moved string
		if err != nil {
			_, lines, _ := strings.Cut(err.Error(), ":\n  ")
			moved = strings.ReplaceAll(lines, "\n  ", "; ")
		}
		if moved != tc.want || (err != nil) != (fault.KindOf(err) == fault.Refused) {
			t.Errorf("%q, want %q; %v", moved, tc.want, err)
		}
		if err == nil && got.ID != saved.ID {
			t.Errorf("it is plan %s, not %s", got.ID, saved.ID)
		}
	})
}

// TestFollowKeepsTheOrder although a new plan would choose another one.
func TestFollowKeepsTheOrder(t *testing.T) {
	t.Parallel()
	saved := sealed(t, nil, Policy{Canary: true, CanaryNode: "wk2"})
	now := must.Get(sealed(t, nil, Policy{}).Follow(saved, false))(t)
	must.Equal(t, "got", saved.Batches, now.Batches)
	if now.Work()[0].Found.VM == nil {
		t.Error("what was found is not in the plan any more")
	}
}

func TestFollowWhatItWasMadeFrom(t *testing.T) {
	t.Parallel()
	saved := sealed(t, nil, Policy{})
	for want, edit := range map[string]func(*Plan){
		"the cluster: c1 → c2":                                      func(p *Plan) { p.Cluster = "c2" },
		"recast.lock: sha256-lock → sha256-x":                       func(p *Plan) { p.Lock = "sha256-x" },
		"recast.yaml: sha256-config → sha256-x":                     func(p *Plan) { p.Config = "sha256-x" },
		"workers at a time: 1 → 2":                                  func(p *Plan) { p.MaxUnavailable = 2 },
		"wk1: left unfinished by run r1, which is not of this plan": func(p *Plan) { p.Run, p.Nodes[0].Resume, p.Nodes[0].Run = "r1", true, "r1" },
	} {
		now := sealed(t, nil, Policy{})
		edit(&now)
		if _, err := now.Follow(saved, true); err == nil || !strings.HasSuffix(err.Error(), ":\n  "+want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	own := sealed(t, nil, Policy{})
	own.Run = "20000101-0000-feed" + saved.RunSuffix()
	own.Nodes[0].Resume, own.Nodes[0].Run = true, own.Run
	must.Pass(t, must.Err(own.Follow(saved, true)))
}

// TestFollowWithOtherPastLocks: a plan is the same on a machine that has other past locks.
func TestFollowWithOtherPastLocks(t *testing.T) {
	t.Parallel()
	talos := cluster.Reason{Code: "talos-version", Text: "Talos v1 → v2"}
	unknown := cluster.Reason{Code: "lock", Text: "extensions of another lock: a → b"}
	known := cluster.Reason{Code: "extension-digest", Text: "extension x v1: c → d"}
	other := cluster.Reason{Code: "extension-digest", Text: "extension x v1: e → d"}
	gone := cluster.Reason{Code: "extension-extra", Text: "extension y v1 is not in the schematic"}
	for name, tc := range map[string]struct {
		was, is []cluster.Reason
		moved   bool
	}{
		"known since":       {[]cluster.Reason{talos, unknown}, []cluster.Reason{talos, known, other}, false},
		"an overlay":        {[]cluster.Reason{talos, unknown}, []cluster.Reason{talos, {Code: "overlay-digest", Text: "overlay rpi: c → d"}}, false},
		"one that went":     {[]cluster.Reason{unknown, gone}, []cluster.Reason{gone}, false},
		"known no more":     {[]cluster.Reason{talos, known}, []cluster.Reason{talos, unknown}, false},
		"another reason":    {[]cluster.Reason{talos, known}, []cluster.Reason{unknown}, true},
		"another digest":    {[]cluster.Reason{known}, []cluster.Reason{other}, true},
		"no such reason":    {[]cluster.Reason{talos, unknown}, []cluster.Reason{talos}, true},
		"one that was none": {[]cluster.Reason{talos}, []cluster.Reason{talos, known}, true},
	} {
		saved, now := sealed(t, nil, Policy{}), sealed(t, nil, Policy{})
		saved.Nodes[1].Drift.Reasons, now.Nodes[1].Drift.Reasons = tc.was, tc.is
		must.Equal(t, name+": moved", tc.moved, must.Err(now.Follow(saved, false)) != nil)
	}
}

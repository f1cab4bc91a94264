package roll

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/step"
)

// facts is a journal in memory.
type facts map[string][]byte

func (f facts) Put(key string, v any) (err error) { f[key], err = json.Marshal(v); return err }

func (f facts) Get(key string, v any) (bool, error) {
	b, found := f[key]
	if !found {
		return false, nil
	}
	return true, json.Unmarshal(b, v)
}

// proofsOf are the paths of the steps that a plan of these nodes has before any of them goes.
func proofsOf(t *testing.T, r *Rehearser, nodes ...planning.NodePlan) (paths []string) {
	t.Helper()
	var walk func(path string, steps []step.Step)
	walk = func(path string, steps []step.Step) {
		for _, s := range steps {
			if s.Steps == nil {
				paths = append(paths, path+s.ID)
				continue
			}
			below := must.Get(s.Steps(t.Context()))(t)
			walk(path+s.ID+"/", below)
		}
	}
	walk("", r.Steps(planning.Plan{Nodes: nodes}))
	return paths
}

func plannedTrial(name string, s cluster.Strategy, change func(*planning.NodePlan)) planning.NodePlan {
	vm := newTrialScene().Model.Found.VM
	vm.Config["tags"], vm.Config["scsi1"] = "talos", "bulk:vm-101-disk-1"
	n := planning.NodePlan{Node: name, Host: "pve1", Strategy: s, Found: observe.Found{Name: name, VM: vm}, System: &planning.DiskPlan{Key: "scsi0"}}
	n.Drift.Stale = true
	if change != nil {
		change(&n)
	}
	return n
}

func TestProofs(t *testing.T) {
	t.Parallel()
	const create = "prove/pve1/create-wk1"
	more := func(n *planning.NodePlan) { n.Found.VM.Config["cores"] = "4" }
	unfinished := func(n *planning.NodePlan) { n.Resume, n.Run = true, "r0" }
	type testCase struct {
		nodes []planning.NodePlan
		known bool
		want  []string
	}
	must.Each(t, map[string]testCase{
		"recreate":                       {[]planning.NodePlan{plannedTrial("wk1", cluster.Recreate, nil)}, false, []string{create, "prove/pve1/hand-over-fast", "prove/pve1/hand-over-bulk"}},
		"two alike":                      {[]planning.NodePlan{plannedTrial("wk1", cluster.Recreate, nil), plannedTrial("wk2", cluster.Recreate, nil)}, false, []string{create, "prove/pve1/hand-over-fast", "prove/pve1/hand-over-bulk"}},
		"another one":                    {[]planning.NodePlan{plannedTrial("wk1", cluster.Recreate, nil), plannedTrial("wk2", cluster.Recreate, more)}, false, []string{create, "prove/pve1/hand-over-fast", "prove/pve1/hand-over-bulk", "prove/pve1/create-wk2"}},
		"on two hosts":                   {[]planning.NodePlan{plannedTrial("wk1", cluster.Recreate, nil), plannedTrial("wk2", cluster.Recreate, func(n *planning.NodePlan) { n.Host = "pve2" })}, false, []string{create, "prove/pve1/hand-over-fast", "prove/pve1/hand-over-bulk", "prove/pve2/create-wk2", "prove/pve2/hand-over-fast", "prove/pve2/hand-over-bulk"}},
		"reimage":                        {[]planning.NodePlan{plannedTrial("wk1", cluster.Reimage, nil)}, false, []string{"prove/pve1/hand-over-fast"}},
		"rollback":                       {[]planning.NodePlan{plannedTrial("wk1", cluster.Rollback, nil)}, false, []string{"prove/pve1/hand-over-fast"}},
		"put-back":                       {[]planning.NodePlan{plannedTrial("wk1", cluster.PutBack, nil)}, false, nil},
		"remove":                         {[]planning.NodePlan{plannedTrial("wk1", cluster.Remove, nil)}, false, []string{"prove/pve1/hand-over-fast", "prove/pve1/hand-over-bulk"}},
		"remove, to rebuild it":          {[]planning.NodePlan{plannedTrial("cp1", cluster.Remove, func(n *planning.NodePlan) { n.Rebuild = "sum" })}, false, []string{"prove/pve1/create-cp1", "prove/pve1/hand-over-fast", "prove/pve1/hand-over-bulk"}},
		"in-place":                       {[]planning.NodePlan{plannedTrial("wk1", cluster.InPlace, func(n *planning.NodePlan) { n.System = nil })}, false, nil},
		"in-place, or else a reimage":    {[]planning.NodePlan{plannedTrial("wk1", cluster.InPlace, nil)}, false, []string{"prove/pve1/hand-over-fast"}},
		"reshape":                        {[]planning.NodePlan{plannedTrial("wk1", cluster.Reshape, nil)}, false, nil},
		"create":                         {[]planning.NodePlan{plannedTrial("wk1", cluster.Create, func(n *planning.NodePlan) { n.Found.VM = nil })}, false, nil},
		"refused":                        {[]planning.NodePlan{plannedTrial("wk1", cluster.Recreate, func(n *planning.NodePlan) { n.Refused = []string{"no"} })}, false, nil},
		"left unfinished by another run": {[]planning.NodePlan{plannedTrial("wk1", cluster.Recreate, unfinished)}, false, []string{create, "prove/pve1/hand-over-fast", "prove/pve1/hand-over-bulk"}},
		"its VM was deleted by that run": {[]planning.NodePlan{plannedTrial("wk1", cluster.Recreate, func(n *planning.NodePlan) { unfinished(n); n.Found.VM = nil })}, false, nil},
		"and created again by that run": {[]planning.NodePlan{plannedTrial("wk1", cluster.Recreate, func(n *planning.NodePlan) {
			unfinished(n)
			n.Found.VM.Config["description"] = parking.MarkDescription("", "r0", "b")
		})}, false, nil},
	}, func(t *testing.T, c testCase) {
		must.Equal(t, "steps", c.want, proofsOf(t, newTrialScene().Rehearser, c.nodes...))
	})
}

// TestDryCreate: the scratch VM has the node's settings, and nothing that must be unique or is a disk.
func TestDryCreate(t *testing.T) {
	t.Parallel()
	s := newTrialScene()
	s.Rehearser.Journal = facts{}
	n := plannedTrial("wk1", cluster.Recreate, nil)
	d := &dryCreate{Rehearser: s.Rehearser, host: "pve1", nodes: []planning.NodePlan{n}, model: *n.Found.VM}
	want := map[string]string{
		"name": "recast-rehearse-9800", "memory": "2048", "cores": "2", "net0": "virtio,bridge=vmbr0", "onboot": "0", "protection": "1", "smbios1": "uuid=u", "ide2": "none,media=cdrom",
	}
	got := d.config(9800, "u")
	description := got["description"]
	delete(got, "description")
	must.Equal(t, "config", want, got)
	must.Contain(t, "the description", description, planning.ScratchMark("r1", "c1", "u"))
	run := d.step()
	must.Equal(t, "before", "", must.Get(run.Skip(t.Context()))(t))
	must.Do(t, run.Do(t.Context()))
	must.Equal(t, "done", "create 9800\nset 9800 map[protection:0] delete []\ndelete 9800", strings.Join(s.px.Done, "\n"))
	if done, err := run.Skip(t.Context()); done == "" || err != nil {
		t.Errorf("after: %q, %v", done, err)
	}
}

// allocating gives new disks a name, as a storage does.
type allocating struct {
	cluster.Proxmox
	px *clustertest.Proxmox
}

func (a allocating) CreateVM(ctx context.Context, host string, id cluster.VMID, config map[string]string) error {
	err := a.Proxmox.CreateVM(ctx, host, id, config)
	if disk := config[scratchKey]; err == nil && disk != "" {
		a.px.Set(id, map[string]string{scratchKey: strings.Replace(disk, ":0.00390625", fmt.Sprintf(":vm-%d-disk-0", id), 1)})
	}
	return err
}

// TestScratchHandOver: each failing call refuses, and an earlier run's proof suffices.
func TestScratchHandOver(t *testing.T) {
	t.Parallel()
	for at, sound := 0, false; !sound; at++ {
		s := newTrialScene()
		s.VMIDs, s.Rehearser.Journal = []cluster.VMID{9800, 9801}, facts{}
		s.Rehearser.Proxmox = allocating{s.Rehearser.Proxmox, s.px}
		s.px.FailAt = at
		h := &scratchHandOver{Rehearser: s.Rehearser, host: "pve1", disk: cluster.Disk{Key: "scsi0", Volid: "fast:vm-101-disk-0", Owner: 101}, nodes: []planning.NodePlan{{Node: "wk1"}}}
		err := h.step().Do(t.Context())
		switch sound = at > 0 && len(s.px.Made) < at; {
		case at == 0 || sound:
			want := "create 9801\ncreate 9800\nmove scsi0 of 9801 to scsi0 of 9800\nmove scsi0 of 9800 to scsi0 of 9801\ndelete 9801\ndelete 9800"
			if done := strings.Join(s.px.Done, "\n"); err != nil || done != want {
				t.Errorf("err = %v, done:\n%s", err, done)
			}
			h.HandedOver = func(f cluster.HandsOver) (bool, error) {
				return f == cluster.HandsOver{Host: "pve1", Storage: "fast"}, nil
			}
			if done, err := h.skip(t.Context()); done == "" || err != nil {
				t.Errorf("%q, %v", done, err)
			}
		case err == nil && !strings.HasPrefix(s.px.Done[len(s.px.Done)-1], "delete"): // what follows a delete only looks
			t.Errorf("call %d, %s, failed, and nothing was refused", at, s.px.Made[at-1])
		}
	}
}

// TestUnprovedHints: what is advised depends on what the node's VM is, and on what else can be done.
func TestUnprovedHints(t *testing.T) {
	t.Parallel()
	type testCase struct {
		node planning.NodePlan
		want string
	}
	must.Each(t, map[string]testCase{
		"recreate": {plannedTrial("wk1", cluster.Recreate, nil), "no node was touched; reimage keeps the VM"},
		"rebuild":  {plannedTrial("cp1", cluster.Remove, nil), "no node was touched"},
		"left unfinished": {
			plannedTrial("wk1", cluster.Recreate, func(n *planning.NodePlan) { n.Resume, n.VMID = true, 101 }),
			"no VM was deleted: recast undo wk1 gives VM 101 its disks back",
		},
	}, func(t *testing.T, c testCase) {
		err := unproved(t.Context(), fault.Refusedf("no"), errSilent, []planning.NodePlan{c.node}, "reimage keeps the VM")
		if got := strings.Join(fault.Hints(err), "\n"); got != c.want || err.Error() != "no" {
			t.Errorf("%v: %s, want %s", err, got, c.want)
		}
	})
}

// TestAScratchVMThatStays: recast prune, which looks, is advised, and no command that deletes what somebody may have
// made of it.
func TestAScratchVMThatStays(t *testing.T) {
	t.Parallel()
	s := newTrialScene()
	left(s)
	s.px.Set(9800, map[string]string{"scsi5": "fast:vm-9800-disk-7"})
	err := s.pruner().delete(t.Context(), 9800, "s")
	hint := strings.Join(fault.Hints(err), "\n")
	if err == nil || strings.Contains(hint, "destroy") || !strings.Contains(hint, "recast prune deletes it, once it is as recast made it") {
		t.Errorf("%v: %s", err, hint)
	}
}

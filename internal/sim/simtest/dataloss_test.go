package simtest

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

// boundVolume is a Kubernetes volume on the system disk of wk1.
func boundVolume() edit { return volume("pvc-1", local("/var/local-path/pvc-1")) }

const (
	pvLost    = "PersistentVolume pvc-1 (claim default/db-0) on the system disk will be lost"
	pvRefused = "PersistentVolume pvc-1 (claim default/db-0) is on the system disk and would be lost: move it to a disk of its own, or name pv/pvc-1 in nodes[].acceptLoss"
)

// door is a way in which a system disk with data leaves its node.
type door struct {
	at     moment                  // of the roll, at which it is killed; none: it finishes
	then   func(*testing.T, *Lab)  // after that, before the volume is bound
	early  bool                    // the volume exists before the roll, which accepts its loss, and not afterwards
	leave  func(*Client) leaveFunc // the way in which the disk would leave
	plan   cluster.Strategy        // strategy of the plan that lets it leave; "": no plan
	unread bool                    // the machine does not answer either
}

type leaveFunc func(context.Context) (pipeline.Report, error)

func byRecover(c *Client) leaveFunc {
	return func(ctx context.Context) (pipeline.Report, error) { return c.Recover(ctx, "wk1") }
}

func byRollback(c *Client) leaveFunc {
	return func(ctx context.Context) (pipeline.Report, error) {
		return c.Rollback(ctx, planning.Policy{Only: []string{"wk1"}})
	}
}

func byRoll(c *Client) leaveFunc {
	return func(ctx context.Context) (pipeline.Report, error) {
		return c.Roll(ctx, planning.Policy{Only: []string{"wk1"}})
	}
}

// turnedOff continues on another machine, with the node powered off.
func turnedOff(t *testing.T, l *Lab) {
	t.Helper()
	l.loseJournal()
	must(t, l.World.PowerOff(wk1))
}

// TestNoDiskIsLostWithoutConsent: in whichever way a system disk leaves a node, volumes on it are
// refused with the remedy, and listed once acceptLoss names them.
func TestNoDiskIsLostWithoutConsent(t *testing.T) {
	long(t)
	eachInLab(t, oneWorker(), map[string]door{
		"rollback":                       {leave: byRollback, plan: cluster.Rollback},
		"recover of a node that serves":  {at: before("finish/keep"), leave: byRecover, plan: cluster.PutBack},
		"put-back of a roll, node off":   {at: before("finish/keep"), then: turnedOff, leave: byRoll, plan: cluster.PutBack, unread: true},
		"resume before the disk is away": {at: after("take-down/stop"), leave: byRoll, plan: cluster.Recreate},
		"recover of one that never ran":  {at: before("bring-up/start"), early: true, leave: byRecover},
		"recover of one that is blank":   {at: before("bring-up/configure"), early: true, leave: byRecover},
		"recover with the old disk":      {at: after("take-down/drain"), leave: byRecover},
	}, func(t *testing.T, lab *Lab, d door) { d.try(t, lab) })
}

func (d door) try(t *testing.T, lab *Lab) {
	lab.Patch(everywhere)
	if d.early {
		boundVolume()(lab)
		acceptLoss("pv/pvc-1")(lab)
	}
	first := lab.as(firstRun)
	roll := first.roll(planning.Policy{Only: []string{"wk1"}})
	if d.at == (moment{}) {
		must(t, roll(t.Context()))
	} else {
		first.killedAt(t, d.at, roll)
	}
	if d.then != nil {
		d.then(t, lab)
	}
	if d.early {
		configuration(" acceptLoss: ['pv/pvc-1'],", "")(lab)
	} else {
		boundVolume()(lab)
	}
	before := lab.machinesDump()
	rep, err := d.leave(lab.as(secondRun))(t.Context())
	if d.plan == "" {
		if err != nil || len(rep.Plan.Nodes[0].WillLose) > 0 {
			t.Errorf("it asks for what is not on that disk: %v", err)
		}
		return
	}
	d.requireRefused(t, rep, err)
	if after := lab.machinesDump(); after != before {
		t.Errorf("something was changed:\n%s", after)
	}
	accept := []string{"pv/pvc-1"}
	if d.unread {
		accept = append(accept, "unread/"+firstRun)
	}
	acceptLoss(accept...)(lab)
	var shown []string
	c := lab.as(thirdRun)
	c.Confirm = func(p planning.Plan) (bool, error) {
		if n := p.Nodes[0]; shown == nil && n.Strategy == d.plan {
			shown = n.WillLose
		}
		return true, nil
	}
	must(t, errOf(d.leave(c)(t.Context())))
	if !slices.Contains(shown, pvLost) {
		t.Errorf("shown as lost: %q", shown)
	}
	lab.RequireIntact()
}

func (d door) requireRefused(t *testing.T, rep pipeline.Report, err error) {
	t.Helper()
	i := slices.IndexFunc(rep.Plan.Nodes, func(n planning.NodePlan) bool { return n.Node == "wk1" })
	if fault.KindOf(err) != fault.Refused || i < 0 {
		t.Fatalf("err = %v, plan %+v", err, rep.Plan)
	}
	n := rep.Plan.Nodes[i]
	all := strings.Join(n.Refused, "\n")
	if n.Strategy != d.plan || !strings.Contains(all, pvRefused) {
		t.Errorf("%s: refused for %q", n.Strategy, all)
	}
	if unread := strings.Contains(all, "unread/"+firstRun); unread != d.unread {
		t.Errorf("that the machine does not answer is refused: %t, want %t: %q", unread, d.unread, all)
	}
}

// TestBoundMeanwhile: a volume that is bound between the plan and the exchange is
// detected, and then nothing is changed.
func TestBoundMeanwhile(t *testing.T) {
	long(t)
	for name, c := range map[string]struct {
		finished bool   // the earlier roll finished; else it is killed once the node serves
		at       moment // of the following
		leave    func(*Client) leaveFunc
		off      bool // the VM is off by then
	}{
		"recreate, at the gate":        {leave: byRoll},
		"recreate, in the drain":       {at: before("take-down/drain"), leave: byRoll},
		"recreate, once it is off":     {at: after("take-down/stop"), leave: byRoll, off: true},
		"rollback, at the gate":        {finished: true, leave: byRollback},
		"rollback, in the drain":       {finished: true, at: before("take-down/drain"), leave: byRollback},
		"rollback, once it is off":     {finished: true, at: after("take-down/stop"), leave: byRollback, off: true},
		"recover, at the gate":         {at: moment{}, leave: byRecover},
		"recover, once the new is off": {at: after("put-back/stop"), leave: byRecover, off: true},
	} {
		t.Run(name, func(t *testing.T) {
			inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
				lab.Patch(everywhere)
				first := lab.as(firstRun)
				roll := first.roll(planning.Policy{Only: []string{"wk1"}})
				switch {
				case c.finished:
					must(t, roll(t.Context()))
				case strings.HasPrefix(name, "recover"):
					first.killedAt(t, before("finish/keep"), roll)
				}
				before := lab.machinesDump()
				second := lab.as(secondRun)
				bound := false
				bind := func() {
					if !bound {
						bound = true
						boundVolume()(lab)
					}
				}
				if c.at == (moment{}) {
					second.Confirm = func(planning.Plan) (bool, error) { bind(); return true, nil }
				} else {
					second.Emit = func(e step.Event) {
						if c.at.is(e) {
							bind()
						}
					}
				}
				_, err := c.leave(second)(t.Context())
				if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), pvRefused) {
					t.Fatalf("err = %v", err)
				}
				lab.RequireIntact()
				if !c.off && before != lab.machinesDump() {
					t.Errorf("it is not as it was:\n%s", lab.machinesDump())
				}
				if c.off {
					if text := lab.systemDisks(); !strings.Contains(text, "9031 scsi0") {
						t.Errorf("the system disk has left its VM: %s", text)
					}
				}
				// The volume is not needed after all: the same command continues.
				without(store.Volumes(), "", "pvc-1")(lab)
				if _, err := c.leave(lab.as(thirdRun))(t.Context()); err != nil && c.leave != nil && !strings.Contains(err.Error(), "is not finished") {
					t.Errorf("the same command again: %v", err)
				}
			})
		})
	}
}

// systemDisks are the drives of wk1's VM and of parking VMs.
func (l *Lab) systemDisks() string {
	var out []string
	for _, vm := range l.World.VMs() {
		for key, value := range vm.Config {
			if cluster.IsDiskKey(key) && (vm.ID == wk1 || strings.Contains(vm.Config["name"], "parking")) {
				volid, _, _ := strings.Cut(value, ",")
				out = append(out, strings.Join([]string{strconv.Itoa(vm.ID), key, volid}, " "))
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// TestGivenUpDiskIsKept: the system disk of a cancelled replacement is parked with a name.
// No rollback boots it; recast prune frees it, and so does the end of the node's next
// roll.
func TestGivenUpDiskIsKept(t *testing.T) {
	long(t)
	eachInLab(t, oneWorker(), map[string]func(t *testing.T, lab *Lab){
		"prune": func(t *testing.T, lab *Lab) {
			rep, err := lab.Client().pruneDisks(t.Context(), 1, nil)
			if err != nil || len(rep.Disks) != 1 || !rep.Disks[0].GivenUp || !rep.Disks[0].Removed {
				t.Errorf("pruned %+v, %v", rep.Disks, err)
			}
		},
		"the next roll": func(t *testing.T, lab *Lab) {
			p := lab.planOf(lab.Client(), "wk1", planning.Policy{})
			if len(p.Frees) != 1 || !p.Frees[0].GivenUp || !strings.Contains(p.Frees[0].String(), "run "+firstRun+" had made and which was given up") {
				t.Errorf("frees %+v", p.Frees)
			}
			must(t, lab.as(thirdRun).roll(planning.Policy{Only: []string{"wk1"}})(t.Context()))
			lab.requireKept(1)
		},
	}, func(t *testing.T, lab *Lab, next func(t *testing.T, lab *Lab)) {
		lab.Patch(everywhere)
		c := lab.as(firstRun)
		c.killedAt(t, before("finish/keep"), c.roll(planning.Policy{Only: []string{"wk1"}}))
		media := lab.media(volidOf(lab, wk1, "scsi0"))
		must(t, lab.as(secondRun).giveUp("wk1")(t.Context()))
		res, err := lab.Client().Status(t.Context())
		if err != nil || len(res.Kept) != 1 || !res.Kept[0].GivenUp || res.Kept[0].Run != firstRun {
			t.Fatalf("kept %+v, %v", res.Kept, err)
		}
		if lab.media(res.Kept[0].Volid) != media {
			t.Error("another disk is kept")
		}
		if err := lab.as(secondRun).goBack("wk1")(t.Context()); fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), "no earlier system disk of it is parked") {
			t.Errorf("rollback: %v", err)
		}
		next(t, lab)
		res, err = lab.Client().Status(t.Context())
		if err != nil || slices.ContainsFunc(res.Kept, func(k pipeline.Kept) bool { return k.GivenUp }) {
			t.Errorf("kept after all: %+v, %v", res.Kept, err)
		}
		lab.RequireIntact()
	})
}

// TestPlanNamesDisksAsTheyAreNow: for an unfinished replacement the plan has each disk's
// present name and place, not the earlier ones.
func TestPlanNamesDisksAsTheyAreNow(t *testing.T) {
	long(t)
	type story struct {
		at  moment
		cut bool // the first hand-over is interrupted inside Proxmox
	}
	eachInLab(t, oneWorker(), map[string]story{
		"on the parking VM":       {at: after("delete-vm")},
		"some on either":          {at: after("park/scsi0")},
		"given back":              {at: before("bring-up/configure")},
		"a name without a volume": {at: onServer("/move_disk POST"), cut: true},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(everywhere)
		first := lab.as(firstRun)
		if c.cut {
			lab.World.StopNextMove(world.AfterRename, false)
		}
		first.killedAt(t, c.at, first.roll(planning.Policy{Only: []string{"wk1"}}))
		n := lab.planOf(lab.Client(), "wk1", planning.Policy{})
		unnamed := 0
		for _, d := range append(n.Carried, *n.System) {
			switch {
			case d.Volid == "" && strings.Contains(d.Where, "without a name, on the way from"):
				unnamed++
			case !strings.Contains(lab.systemDisks(), strings.NewReplacer(" of parking VM", "", " of VM", "").Replace(reversed(d.Where))+" "+d.Volid):
				t.Errorf("%s is said to be %s, %s; there is\n%s", d.Key, d.Volid, d.Where, lab.systemDisks())
			}
		}
		if unnamed != map[bool]int{true: 1}[c.cut] {
			t.Errorf("%d disks without a name: %+v", unnamed, n)
		}
	})
}

// reversed turns "scsi1 of parking VM 9000" into "9000 scsi1".
func reversed(where string) string {
	fields := strings.Fields(where)
	if len(fields) == 0 {
		return "nowhere"
	}
	return fields[len(fields)-1] + " " + fields[0]
}

package simtest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"

	"github.com/recast-sh/recast/internal/sim"
)

// TestRemovedMember: a person removes a control plane's member while it keeps its data
// (facts: "the member has been permanently removed from the cluster"). doctor reports it.
// If the data is on the system disk, a roll repairs it; else the roll is refused before it
// touches anything, and the remedy works.
func TestRemovedMember(t *testing.T) {
	long(t)
	options := func(onData bool) sim.Options { return sim.Options{ControlPlanes: 3, Workers: 1, EtcdOnData: onData} }
	eachIn(t, options, map[string]bool{"on the system disk": false, "on a disk of its own": true}, func(t *testing.T, lab *Lab, onData bool) {
		lab.Patch(everywhere)
		removed := lab.memberIDs()["cp2"]
		lab.removeMember(removed)
		time.Sleep(time.Minute)

		res := diagnosis(t, lab.Client())
		const says = "Talos: etcd: cp2 is no member of etcd (cp1, cp3 are), but has data of one: it was removed, and its etcd restarts for ever"
		if !slices.ContainsFunc(problems(res), func(p string) bool { return strings.HasPrefix(p, says) }) || res.Err() == nil {
			t.Errorf("doctor says\n%s", strings.Join(problems(res), "\n"))
		}
		plan := lab.planOf(lab.Client(), "cp2", policyFor("cp2"))
		if !slices.ContainsFunc(plan.Drift.Notes, func(n string) bool {
			return strings.Contains(n, "its machine is not well: ") && strings.Contains(n, "etcd")
		}) {
			t.Errorf("the plan's notes: %q", plan.Drift.Notes)
		}

		from := len(lab.Recorder.Calls())
		if _, err := lab.Client().Roll(t.Context(), policyFor("cp2")); onData {
			requireRefused(t, err, "cp2 is no member of etcd (cp1, cp3 are), and with the data that it has it can never join again")
			lab.requireLeftAlone(from, "cp2")
			lab.reset("cp2", "EPHEMERAL") // as the hint says
			lab.mustRoll(secondRun, policyFor("cp2"))
		} else if err != nil {
			t.Fatal(err)
		}
		requireMembers(t, lab, "", false)
		if lab.memberIDs()["cp2"] == removed {
			t.Error("cp2 is the removed member")
		}
		if err := diagnosis(t, lab.Client()).Err(); err != nil {
			t.Errorf("afterwards: %v", err)
		}
		requireDrift(t, lab, "cp1", "cp3", "wk1")
		if !onData { // else it was wiped on purpose
			lab.RequireIntact()
		}
	})
}

// removeMember removes a member from etcd as a person does, through cp1.
func (l *Lab) removeMember(id string) {
	l.t.Helper()
	l.talosctl("cp1", func(ctx context.Context, c *client.Client) error {
		return c.EtcdRemoveMemberByID(ctx, &machineapi.EtcdRemoveMemberByIDRequest{MemberId: parseMember(id)})
	})
}

// reset is ResetNode and a wait for it.
func (l *Lab) reset(node string, labels ...string) {
	l.t.Helper()
	must(l.t, l.ResetNode(l.t.Context(), node, labels...))
	time.Sleep(2 * time.Minute)
}

// TestDoctorOfTwoEtcds: if a control plane has formed its own etcd, doctor's result must
// not depend on who is asked first, and must not advise to wipe anything.
func TestDoctorOfTwoEtcds(t *testing.T) {
	long(t)
	inLab(t, threePlanes, func(t *testing.T, lab *Lab) {
		splitBrain(lab)
		time.Sleep(time.Minute)
		var said []string
		for _, c := range diagnosis(t, lab.Client()).Checks {
			if c.What == "etcd" {
				said = append(said, c.Seen+": "+strings.Join(c.Remedy, "; "))
			}
		}
		all := strings.Join(said, "\n")
		if !strings.Contains(all, "cp3 is no member of etcd (cp1, cp2 are), but runs etcd member ") || !strings.Contains(all, "there are two etcds") || strings.Contains(all, "talosctl reset") {
			t.Errorf("doctor says\n%s", all)
		}
	})
}

package simtest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/pipeline/checkup"
)

// TestOneVolumeInTwoSlots: a VM whose system disk and data disk stand in a second slot each (as
// proxmox-csi-plugin#363 did it) is rebooted by nothing, for one reason, until its one command has run.
func TestOneVolumeInTwoSlots(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		const want = "the volume of scsi0 is also scsi5, the volume of scsi1 is also scsi6: qm set 9031 --delete scsi5,scsi6 keeps the volume"
		change("scsi5="+wk1System+",backup=0,iothread=1", "scsi6="+wk1Data+",backup=0,iothread=1")(lab)
		refused := func(what string, c *Client, strategy cluster.Strategy) {
			t.Helper()
			n := lab.planOf(c, "wk1", planning.Policy{})
			if len(n.Refused) != 1 || !strings.HasSuffix(n.Refused[0], want) || n.Strategy != strategy {
				t.Errorf("%s: planned as %q, refused %q", what, n.Strategy, n.Refused)
			}
		}
		files := lab.keptConfigs()
		files.set(t, "wk1", noReboot)
		if n := lab.planOf(files.user(lab, firstRun), "wk1", planning.Policy{}); n.Strategy != cluster.ApplyConfig || len(n.Refused) > 0 {
			t.Errorf("a configuration without a reboot: planned as %q, refused %q", n.Strategy, n.Refused)
		}
		files = lab.keptConfigs()
		files.set(t, "wk1", needsReboot)
		refused("a configuration with a reboot", files.user(lab, firstRun), cluster.ApplyConfig)
		lab.Patch(sim.PatchedExtension)
		refused("auto", lab.Client(), cluster.Auto)
		lab.inPlace()
		refused("in-place", lab.Client(), cluster.InPlace)
		boots := lab.boots()
		if err := lab.Client().roll(planning.Policy{Only: []string{"wk1"}})(t.Context()); err == nil || !slices.Equal(boots, lab.boots()) {
			t.Errorf("rolled: %v", err)
		}
		res := diagnosis(t, lab.Client())
		if !slices.ContainsFunc(res.Checks, func(c checkup.Check) bool {
			return c.State == checkup.Problem && c.What == "wk1" && strings.HasSuffix(c.Seen, want)
		}) {
			t.Errorf("doctor sees %q", problems(res))
		}
		lab.typed(t, "qm set 9031 --delete scsi5,scsi6")
		if n := planOf(t, lab, "wk1"); len(n.Refused) > 0 {
			t.Errorf("afterwards: %q", n.Refused)
		}
		lab.RequireIntact()
	})
}

// TestAVolumeInTheSlotsOfTwoVMs: what the printed commands do leaves the volume with the node.
func TestAVolumeInTheSlotsOfTwoVMs(t *testing.T) {
	for name, s := range map[string]struct {
		bring edit
		want  string
	}{
		"another VM, off":        {func(l *Lab) { l.DefineVM(9050, map[string]string{"name": "copy", "scsi0": wk1Data}) }, "the volume of scsi1 is also scsi0 of VM 9050: qm set 9050 --delete scsi0"},
		"the other slot is used": {whileOff(change("sata3=" + wk1Data)), "the volume of sata3 is also scsi1: qm set 9031 --delete scsi1"}, // the kernel names sata3 first, so Talos uses that
		"by its path": {
			change("scsi5=/mnt/pve/fast/images/" + strings.TrimPrefix(wk1Data, "fast:")),
			"the volume of scsi1 is also scsi5: qm set 9031 --delete scsi5",
		},
		"detached": {func(l *Lab) { l.World.WriteByHand(wk1, "unused3", wk1Data) }, "the volume of scsi1 is also unused3: qm disk rescan --vmid 9031"},
	} {
		t.Run(name, func(t *testing.T) {
			inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
				lab.Patch(sim.PatchedExtension)
				s.bring(lab)
				n := planOf(t, lab, "wk1")
				if len(n.Refused) != 1 || !strings.HasSuffix(n.Refused[0], s.want+" keeps the volume") {
					t.Fatalf("refused %q", n.Refused)
				}
				_, command, _ := strings.Cut(s.want, ": ")
				lab.typed(t, command)
				if n := planOf(t, lab, "wk1"); n.Strategy != cluster.Recreate || len(n.Refused) > 0 {
					t.Errorf("afterwards %s is planned, %q refused", n.Strategy, n.Refused)
				}
				lab.RequireIntact()
			})
		})
	}
}

// typed runs commands on the Proxmox host, and gives machines that they restart the time to be back.
func (l *Lab) typed(t *testing.T, commands string) {
	t.Helper()
	for command := range strings.SplitSeq(commands, " && ") {
		if out, err := l.Shell("pve1").Run(strings.Fields(command)); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	l.World.Delay(3 * time.Minute)
}

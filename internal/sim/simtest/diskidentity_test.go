package simtest

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim"
)

// TestRecreateOnEveryBus: whatever Talos shows of a disk on that bus, a recreated
// node has installed itself on its new disk, and the disk that recast made for it
// is told from the others the next time.
func TestRecreateOnEveryBus(t *testing.T) {
	const lsi = "scsihw=lsi"
	for name, tc := range map[string]struct {
		bus    string
		bring  edit
		system string // its drive afterwards
	}{
		"virtio-scsi-single": {bus: "scsi", system: "scsi0"},
		"virtio-scsi-pci":    {bus: "scsi", system: "scsi0", bring: whileOff(change("scsihw=virtio-scsi-pci"))},
		"two disks of one size, no system serial": {bus: "scsi", system: "scsi0", bring: whileOff(change(
			"scsi0="+wk1System, "scsi2=fast:20,serial=other"))},
		"LSI, told by WWN": {bus: "scsi", system: "scsi0", bring: whileOff(change(lsi, "scsi0="+wk1SystemDrive+",wwn=0x5000000000000001",
			"scsi1="+wk1Data+",serial=data-wk1,wwn=0x5000000000000002", "scsi2=fast:20,serial=other,wwn=0x5000000000000003"))},
		"virtio-blk": {bus: "virtio", system: "virtio0"},
		"SATA":       {bus: "sata", system: "sata0"},
		"IDE":        {bus: "ide", system: "ide0"},
	} {
		t.Run(name, func(t *testing.T) {
			long(t)
			inLab(t, sim.Options{ControlPlanes: 1, Workers: 1, DiskBus: tc.bus}, func(t *testing.T, lab *Lab) {
				if tc.bring != nil {
					tc.bring(lab)
				}
				for _, run := range []string{"20000101-0000-0001", "20000101-0000-0002"} {
					lab.Patch(sim.PatchedExtension)
					c := lab.Client()
					c.Run = run
					rep, err := c.Roll(t.Context(), cluster.Policy{Only: []string{"wk1"}})
					if err != nil || rep.Outcome != "done" {
						t.Fatalf("%s: %s, %v", run, rep.Outcome, err)
					}
					drive := lab.vm(wk1).Config[tc.system]
					if !strings.Contains(drive, "serial=recast-") || strings.Contains(drive, ",wwn=0x3") != (tc.bus != "virtio") {
						t.Errorf("its system disk is %s", drive)
					}
				}
				lab.RequireIntact()
			})
		})
	}
}

package simtest

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/world"
)

// TestRecreateOnEveryBus: whatever Talos shows of a disk on that bus, a recreated node is
// installed on its new disk, and the next roll recognizes that disk.
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
					c := lab.as(run)
					rep, err := c.Roll(t.Context(), planning.Policy{Only: []string{"wk1"}})
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

// TestDrivesWrittenByHand: Proxmox keeps a drive as written by hand until it writes it
// itself, in its normal form: that is the same drive.
func TestDrivesWrittenByHand(t *testing.T) {
	for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
		t.Run(string(s), func(t *testing.T) {
			long(t)
			inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
				lab.Replace("recast.yaml", "roll:\n", "roll:\n  strategy: "+string(s)+"\n")
				lab.World.WriteByHand(wk1, "scsi0", "iothread=on,discard=on,ssd=yes,file="+wk1System+",serial=sys-wk1,backup=no,size=10G")
				lab.World.WriteByHand(wk1, "scsi1", "volume="+wk1Data+",iothread=on,discard=on,ssd=TRUE,serial=data-wk1,backup=on,size=20480M")
				lab.Patch(sim.PatchedExtension)
				rep, err := lab.Client().Roll(t.Context(), planning.Policy{Only: []string{"wk1"}})
				if err != nil || rep.Outcome != "done" {
					t.Fatalf("%s, %v", rep.Outcome, err)
				}
				lab.RequireIntact()
			})
		})
	}
}

// TestReimageLeavesADeviceOfTheHost: a token can't attach one, and needs not if the VM stays.
func TestReimageLeavesADeviceOfTheHost(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.World.AddDevice("pve1", rawDisk, 1<<30, world.NewMedia(nil))
		change("scsi2=" + rawDisk + ",serial=nvme-1")(lab)
		lab.Patch(sim.PatchedExtension)
		n := planOf(t, lab, "wk1")
		rep, err := lab.Client().Roll(t.Context(), planning.Policy{Only: []string{"wk1"}})
		if err != nil || rep.Outcome != "done" || n.Strategy != cluster.Reimage {
			t.Fatalf("%s: %s, %v", n.Strategy, rep.Outcome, err)
		}
		if drive := lab.vm(wk1).Config["scsi2"]; drive != rawDisk+",serial=nvme-1" && !strings.HasPrefix(drive, rawDisk+",serial=nvme-1,size=") {
			t.Errorf("scsi2 is %s", drive)
		}
		lab.RequireIntact()
	})
}

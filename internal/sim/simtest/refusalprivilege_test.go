package simtest

import (
	"slices"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/world"
)

// TestPrivileges removes single privileges from the token: a strategy that needs them is
// refused before anything is touched.
func TestPrivileges(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		lab.World.AddMapping("pci", "gpu", "pve1")
		lab.World.AddMapping("usb", "dongle", "pve1")
		whileOff(change(
			"startup=order=1", "hostpci0=mapping=gpu", "usb0=mapping=dongle", "rng0=source=/dev/hwrng", "virtiofs0=dirid=share",
		))(lab)
		lab.World.AddHA(world.HAResource{SID: "vm:9031", State: "started"})
		const (
			ofHA      = "Sys.Console on /"
			ofVM      = "Sys.Console, Sys.Modify on /; Mapping.Use on /mapping/dir/share; Mapping.Use on /mapping/hwrng; Mapping.Use on /mapping/pci/gpu; Mapping.Use on /mapping/usb/dongle"
			onVMs     = " on /vms"
			onStorage = "Datastore.AllocateSpace on /storage/fast"
		)
		config := lab.Read("recast.yaml")
		for _, tc := range []struct {
			strategy cluster.Strategy
			without  []string // of the lab's role
			lacks    string
		}{
			{cluster.Recreate, nil, ofVM},
			{cluster.Recreate, []string{"VM.Config.Network", "VM.Config.CPU"}, ofVM + "; VM.Config.CPU, VM.Config.Network" + onVMs},
			{cluster.Recreate, []string{"SDN.Use"}, ofVM + "; SDN.Use on /sdn/zones/localnetwork/vmbr0"},
			{cluster.Recreate, []string{"Datastore.AllocateSpace"}, ofVM + "; " + onStorage},
			{cluster.Recreate, []string{"Datastore.AllocateTemplate"}, ofVM + "; Datastore.AllocateTemplate on /storage/isos"},
			{cluster.Reimage, nil, ofHA},
			{cluster.Reimage, []string{"VM.Config.Network", "VM.Config.CPU", "VM.Config.HWType", "SDN.Use"}, ofHA},
			{cluster.Reimage, []string{"VM.Config.Disk", "VM.Config.CDROM"}, ofHA + "; VM.Config.CDROM, VM.Config.Disk" + onVMs},
			{cluster.Reimage, []string{"Datastore.AllocateSpace"}, ofHA + "; " + onStorage},
		} {
			strategy(tc.strategy)(lab)
			lab.World.AddRole("Recast", slices.DeleteFunc(sim.Privileges(), func(p string) bool { return slices.Contains(tc.without, p) })...)
			requireRollRefused(t, lab, "the Proxmox token lacks privileges: "+tc.lacks, "pveum acl modify")
			lab.Write("recast.yaml", config)
		}
	})
}

// TestFewPrivilegesSuffice rolls with the minimum privileges of a strategy.
func TestFewPrivilegesSuffice(t *testing.T) {
	long(t)
	t.Parallel()
	claim := []string{"Sys.Audit", "VM.Audit", "VM.Allocate", "VM.Config.Memory", "VM.Config.Options", "Datastore.Audit", "Datastore.AllocateTemplate"}
	reimage := append(slices.Clone(claim), "VM.Config.Disk", "VM.Config.CDROM", "VM.PowerMgmt", "Datastore.AllocateSpace")
	recreate := append(slices.Clone(reimage), "VM.Config.CPU", "VM.Config.HWType", "VM.Config.Network", "SDN.Use")
	for name, s := range map[string]struct {
		strategy   cluster.Strategy
		privileges []string
		rehearsed  int // scratch VMs that boot a disk
	}{
		"in-place":                            {cluster.InPlace, claim, 0},
		"reimage":                             {cluster.Reimage, reimage, 0},
		"recreate":                            {cluster.Recreate, recreate, 0},
		"recreate by disk, after a rehearsal": {cluster.Recreate, recreate, 1},
	} {
		t.Run(name, func(t *testing.T) {
			inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
				if s.rehearsed > 0 {
					lab.BootsDisks("disk")
					lab.setRoll("rehearse: {enabled: true, addresses: [127.42.7.251/24]}")
				}
				lab.Patch(sim.PatchedExtension)
				strategy(s.strategy)(lab)
				lab.World.AddRole("Recast", s.privileges...)
				rep, err := lab.Client().Roll(t.Context(), planning.Policy{})
				if must(t, err); len(rep.Rehearsed) != s.rehearsed {
					t.Errorf("rehearsed %v", rep.Rehearsed)
				}
				requireInSync(t, lab)
			})
		})
	}
}

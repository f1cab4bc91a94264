package cluster

import (
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/words"
)

// planFallback decides, while the node still runs, whether its system disk may
// be replaced should it not come back from an in-place upgrade: Talos' own
// rollback can't be relied upon, another system disk can. It would get the build
// that it runs now.
func planFallback(n *NodePlan, o Observation, p Policy, system Disk, systemErr error) {
	if p.BootFailure != ReimageOnBootFailure || n.Strategy != InPlace || len(n.Refused) > 0 {
		return
	}
	n.IsWayBack = true
	w := n.Wanted
	w.Strategy = Reimage
	against := append(Decide(w, n.Found, o, system, systemErr).Refused, o.Hidden(*n.Found.VM)...)
	if n.Role == ControlPlane {
		onSystem, err := EtcdOnSystemDisk(*n.Found.Machine)
		refused, _ := EtcdRules(len(o.ControlPlanes()), onSystem, Reimage, p.AcceptOutage)
		if err != nil {
			refused = append(refused, err.Error())
		}
		n.FallbackKept = !onSystem
		against = append(against, refused...)
	} else {
		n.FallbackKept = true
	}
	// The schematic tells more than the lock's hash, which schematics with the same extensions share; what an image is for it does not tell.
	m := *n.Found.Machine
	for _, b := range o.PastBuilds {
		if m.Schematic.LockHash() != "" && b.SchematicID == m.Schematic.ID && b.TalosVersion == m.TalosVersion && len(DiffTarget(b, m)) == 0 && b.Installer != "" {
			n.Previous = &b
		}
	}
	if n.Previous != nil {
		_, o := BlankAddress(n.Found.Addr, *n.Found.VM, m, *n.Previous)
		if o.Text != "" && !slices.Contains(against, o.Text) {
			against = append(against, o.Text)
		}
	}
	if n.Previous == nil {
		against = append(against, "the build that it runs is in no past lock that is here")
	}
	if d := o.NewDisk(n.Wanted, n.Found.VM.Host, system); d != nil {
		for _, use := range SpaceUses([]NewDisk{*d}, o.Rooms) {
			against = append(against, slices.DeleteFunc(use.Lacks(1), func(lack string) bool { return lack == "" })...)
		}
	}
	if len(against) > 0 {
		n.Previous = nil
		n.Notes = append(n.Notes, "should it not come back, a reimage is not possible: "+strings.Join(against, "; "))
		return
	}
	n.Notes = append(n.Notes, fmt.Sprintf("should it not come back within the boot deadline, its system disk is parked and build %s, which it runs now, is installed on a blank one", words.Short(n.Previous.ID)))
	n.Add(system, true)
}

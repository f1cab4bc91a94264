package planning

import "github.com/recast-sh/recast/cluster"

// chooseReboots says which upgrades in place boot through the firmware. With canary, that is the first one of each
// image, alone and before all others: an image that boots by kexec only (talos#14146) would come back from
// every roll, and from no power failure. One that an earlier run began may have been rebooted in either way,
// so it goes through the firmware and still does not count as the first.
func (p *Plan) chooseReboots(how cluster.Reboot, named string) {
	first, of := map[string]*NodePlan{}, map[string]int{}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		switch {
		case !n.Strategy.Upgrades(), n.OnlyTidies() && !n.Resume:
		case how == cluster.ByFirmware:
			n.Reboot = cluster.ByFirmware
			n.Notes = append(n.Notes, "it boots through the firmware (roll.reboot: powercycle)")
		case how != cluster.FirmwareOnce:
		case n.Phase == Unfinished:
			n.Reboot = cluster.ByFirmware
			n.Notes = append(n.Notes, "it boots through the firmware: how its earlier run rebooted it is not known")
		default:
			image := n.Build()
			of[image]++
			if first[image] == nil || n.goesBefore(*first[image], named) {
				first[image] = n
			}
		}
	}
	for image, n := range first {
		n.Reboot = cluster.ByFirmware
		n.Notes = append(n.Notes, "it boots through the firmware, as the first of its image (roll.reboot: canary), which takes about half a minute longer than kexec")
		if of[image] > 1 {
			n.Phase = Canary
		}
	}
}

// goesBefore says whether a node is the better one to try something out on: the canary, the one that was
// named, a worker, and rather one that recast does not run on.
func (n NodePlan) goesBefore(other NodePlan, named string) bool {
	for _, better := range []func(NodePlan) bool{
		func(n NodePlan) bool { return n.Phase == Canary },
		func(n NodePlan) bool { return n.Node == named },
		func(n NodePlan) bool { return n.Role == cluster.Worker },
		func(n NodePlan) bool { return !n.OwnPod },
	} {
		if better(n) != better(other) {
			return better(n)
		}
	}
	return false
}

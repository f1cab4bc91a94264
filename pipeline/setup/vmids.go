package setup

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
)

// vmids chooses the range for recast's own VMs. Two recast.yaml of one cluster need the
// same range, or each refuses what the other has left: so if recast has run before, there
// is no safe default.
func (in *initial) vmids(ctx context.Context) (err error) {
	if in.containers, err = in.src.Proxmox.Containers(ctx); err != nil {
		return fmt.Errorf("list the containers: %w", err)
	}
	own := in.found.Own(in.draft.Cluster)
	read := func(answer string) (r config.VMIDRange, err error) {
		if err := r.UnmarshalText([]byte(answer)); err != nil {
			return r, fault.As(fault.Config, err)
		}
		return r, in.claimable(r, own)
	}
	answer := in.VMIDs
	if answer == "" {
		q := Question{Flag: "--vmids", Check: func(answer string) error { _, err := read(answer); return err }}
		if q.Text = in.rolled(own); q.Text == "" {
			q.Text, q.Default = "Which VMIDs may recast use for its own VMs (the claim, parked disks)?", in.freeRange().String()
		}
		if answer, err = in.src.Ask(ctx, q); err != nil {
			return err
		}
	}
	if in.draft.VMIDs, err = read(answer); err != nil {
		return err
	}
	if in.rolled(own) != "" && !slices.ContainsFunc(own, survey.IsClaim) {
		in.warn("recast has run on these nodes before, and no active run shows where its claim is: proxmox.vmids of the other recast.yaml must start with %d too, or each refuses what the other has left", in.draft.VMIDs.First)
	}
	if others := in.othersIn(in.draft.VMIDs, own); len(others) > 0 {
		in.warn("the VMIDs %s should be only for recast's own VMs, but others use some of them: %s", in.draft.VMIDs, strings.Join(others, ", "))
	}
	return nil
}

// rolled asks for the range of another recast.yaml; "" if there is no sign of one.
func (in *initial) rolled(own []cluster.VM) string {
	var why string
	made := in.names(func(n survey.Discovered) bool { return n.VM.MadeBy() != "" })
	switch {
	case len(own) > 0:
		var ids []string
		for _, vm := range own {
			ids = append(ids, fmt.Sprintf("VM %d", vm.ID))
		}
		why = "its own: " + strings.Join(ids, ", ")
	case len(made) > 0:
		why = "it has created the VM of " + strings.Join(made, ", ")
	default:
		return ""
	}
	return fmt.Sprintf("recast has run on these nodes before (%s). Two recast.yaml of one cluster need the same proxmox.vmids: which range does the other one use?", why)
}

// claimable refuses a range that can't be that of earlier runs, or whose first number,
// the claim's, is in use.
func (in *initial) claimable(r config.VMIDRange, own []cluster.VM) error {
	for _, vm := range own {
		claim := survey.IsClaim(vm)
		switch {
		case !r.Contains(int(vm.ID)), claim && int(vm.ID) != r.First:
			what := "is recast's own"
			if claim {
				what = "is the claim of a run, with the first number of its range"
			}
			return fault.WithHint(fault.Refusedf("%s %s: it belongs to a recast.yaml with other proxmox.vmids than %s, and each of the two would refuse what the other has left", vm, what, r),
				"--vmids: the range of the recast.yaml that has rolled them. If its proxmox.vmids have changed since, copy that recast.yaml: an older or a wider range may start elsewhere, and its claim with it. "+
					"If it belongs to another Talos cluster, use --cluster to give this one another name than %s", in.draft.Cluster)
		case !claim && int(vm.ID) == r.First:
			return fault.WithHint(fault.Refusedf("%s is recast's own, and not its claim: its range starts before %s", vm, r),
				"--vmids: the range of the recast.yaml that has rolled them")
		}
	}
	if taken := in.othersIn(config.VMIDRange{First: r.First, Last: r.First}, own); len(taken) > 0 {
		return fault.WithHint(fault.Refusedf("%s has the first number of %s, which is the claim's", taken[0], r), "--vmids: a range that starts with an unused number")
	}
	for _, n := range in.found.Nodes {
		if int(n.VM.ID) == r.First || int(n.Holder) == r.First {
			return fault.WithHint(fault.Refusedf("VM %d, which is or has disks of node %s, has the first number of %s, which is the claim's", r.First, n.Name, r),
				"--vmids: a range that starts with an unused number")
		}
	}
	return nil
}

// othersIn returns the VMs and containers in a range that are neither nodes, nor own disks
// of nodes, nor are recast's own.
func (in *initial) othersIn(r config.VMIDRange, own []cluster.VM) []string {
	var out []string
	for _, vm := range in.found.VMs {
		node := slices.ContainsFunc(in.found.Nodes, func(n survey.Discovered) bool { return n.VM.ID == vm.ID || n.Holder == vm.ID })
		mine := slices.ContainsFunc(own, func(o cluster.VM) bool { return o.ID == vm.ID })
		if r.Contains(int(vm.ID)) && !node && !mine {
			out = append(out, vm.String())
		}
	}
	for _, c := range in.containers {
		if r.Contains(int(c.ID)) {
			out = append(out, c.String())
		}
	}
	return out
}

// freeRange is the first hundred unused VMIDs from 9000 on, or more of them for more
// nodes.
func (in *initial) freeRange() config.VMIDRange {
	size := 100
	for size < len(in.found.Nodes)+2 {
		size += 100
	}
	r := config.VMIDRange{First: 9000, Last: 9000 + size - 1}
	for slices.ContainsFunc(in.found.VMs, func(vm cluster.VM) bool { return r.Contains(int(vm.ID)) }) ||
		slices.ContainsFunc(in.containers, func(c cluster.Container) bool { return r.Contains(int(c.ID)) }) {
		r.First, r.Last = r.First+100, r.Last+100
	}
	return r
}

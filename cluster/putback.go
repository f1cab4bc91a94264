package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

// putBackStep gives an unfinished replacement up: every disk goes back to where
// it was, the old system disk too, and the node runs its old system again.
// Nothing secret is needed for that, so it can be done from anywhere.
func (n *nodeRoll) putBackStep() step.Step {
	return step.Step{
		ID: "put-back", Code: fault.ParkedHalf, Title: "put the old system disk of " + n.plan.Node + " back", Risk: step.Destructive,
		Steps: func(ctx context.Context) ([]step.Step, error) {
			r, err := n.replace(ctx)
			if err != nil {
				return nil, err
			}
			r.Strategy = PutBack
			steps := append([]step.Step{
				{ID: "give-up", Title: "note that the replacement is given up", Do: r.giveUp},
				{ID: "leave-etcd", Title: "take the replacement out of etcd", Do: func(ctx context.Context) error { return n.leaveAsReplacement(ctx, r) }},
				{ID: "stop", Title: fmt.Sprintf("stop VM %d", n.plan.VMID), Risk: step.Disruptive, Skip: func(ctx context.Context) (string, error) { return n.standsStill(ctx, r) }, Do: func(ctx context.Context) error { return n.stopNew(ctx, r) }},
			}, r.putBack()...)
			return append(
				steps,
				step.Step{ID: "start", Code: fault.NoBoot, Title: fmt.Sprintf("start VM %d", n.plan.VMID), Skip: n.started, Do: n.start},
				n.bootEntryStep(func(mem memory) string { return mem.Old.Entry }),
				step.Step{ID: "wait-healthy", Code: fault.NoJoin, Title: "wait until " + n.plan.Node + " is healthy", Skip: n.healthy, Do: n.waitHealthy},
				branch("finish", "put back what was taken away for the roll", append(
					r.restoreSteps(),
					step.Step{ID: "restore-node", Title: "restore labels and taints", Do: n.restoreMetadata},
					step.Step{ID: "uncordon", Title: "uncordon " + n.plan.Node, Skip: n.uncordoned, Do: n.uncordon},
					step.Step{ID: "close", Title: "close the record", Do: n.thenForget(r.closeRecord)},
				)),
			), nil
		},
	}
}

// putBack gives a VM that is off every disk back, the old system disk too.
func (r *Replace) putBack() []step.Step {
	attach := r.firewallSteps()
	for _, d := range r.Disks {
		attach = append(attach, r.attachStep(d))
	}
	attach = append(attach, step.Step{ID: "compare-disks", Code: fault.ParkedHalf, Title: "compare the drives with the remembered ones", Do: r.compareDisks})
	return []step.Step{
		r.settleStep(),
		{ID: "park-new", Code: fault.ParkedHalf, Title: "park the new system disk, which this replacement made", Risk: step.Disruptive, Skip: r.newParked, Do: r.parkNew},
		{ID: "create-vm", Code: fault.ParkedHalf, Title: "create the VM as it was", Risk: step.Disruptive, Skip: r.exists, Do: r.createOld},
		{ID: "protect", Code: fault.ParkedHalf, Title: "protect it until its node runs", Risk: step.Disruptive, Skip: r.isProtected, Do: r.protect},
		{ID: "attach", Code: fault.ParkedHalf, Title: "give every disk back", Risk: step.Disruptive, Steps: func(context.Context) ([]step.Step, error) { return attach, nil }},
		{ID: "set-up", Code: fault.ParkedHalf, Title: "restore boot order, drives and description", Skip: r.isAsBefore, Do: r.setAsBefore},
	}
}

// PlanRecover plans to give the unfinished replacement of one node up.
func PlanRecover(cluster string, wanted []Wanted, o Observation, node string) (Plan, error) {
	plan := Plan{Cluster: cluster, MaxUnavailable: 1, PerHost: 1, controlPlanes: o.controlPlanes()}
	if err := (Policy{Only: []string{node}}).check(wanted); err != nil {
		return Plan{}, err
	}
	for i, w := range wanted {
		f := o.Found[i]
		if w.Name != node {
			continue
		}
		if f.away {
			return Plan{}, fault.As(fault.Refused, fmt.Errorf("node %s: %w", node, errors.Join(f.Errs...)))
		}
		if !f.Open() {
			return Plan{}, nothingToRecover(node, f)
		}
		if f.Parking.Record.Strategy == Rollback {
			return Plan{}, fault.WithHint(fault.ParkedHalf.Refusedf("node %s: a rollback of it is unfinished", node), "recast roll finishes that; recast rollback %s then goes the other way", node)
		}
		n := planNode(w, f, o, func(string) ([]LockedExtension, bool) { return nil, false }, Policy{})
		if n.Strategy != PutBack {
			n.putBack("recast recover asked for it")
		}
		n.askLosses()
		plan.Run, plan.Nodes = n.run, []NodePlan{n}
	}
	plan.order(Policy{})
	plan.arrange()
	return plan, nil
}

func nothingToRecover(node string, f Found) error {
	if f.Unfinished() {
		return fault.WithHint(fault.ParkedHalf.Refusedf("node %s: an upgrade in place of it is unfinished; its system disk was not replaced, so there is none to put back", node),
			"recast roll finishes the upgrade")
	}
	err := fault.NoWayBack.Refusedf("node %s: no replacement of it is unfinished, so there is nothing to recover from", node)
	if _, _, kept := f.lastKept(); kept {
		return fault.WithHint(err, "recast rollback %s boots the system disk that it had before its last roll", node)
	}
	return fault.WithHint(err, "recast status says what is unfinished")
}

// requireOldEtcd refuses to boot an old system disk whose etcd data belongs to a
// member that is gone: etcd would crash-loop on it for ever ("the member has
// been permanently removed from the cluster").
func (n *nodeRoll) requireOldEtcd(ctx context.Context) error {
	mem, err := n.memory(ctx)
	if err != nil {
		return err
	}
	rec := n.plan.found.Parking.Record
	if !mem.ControlPlane || mem.EtcdKept || rec.Left || mem.EtcdMembers < 2 {
		return nil
	}
	v, err := ViewEtcd(ctx, n.Talos, n.askEtcd(), n.plan.Node)
	if err != nil {
		return err
	}
	m, found, err := v.member(n.plan.Node)
	if err == nil && (!found || m.ID != mem.EtcdID) {
		err = fault.WithHint(fault.NoWayBack.Refusedf("the old system disk of %s holds the data of etcd member %x, which is no member any more: it would never join again", n.plan.Node, mem.EtcdID),
			"let recast roll finish the replacement instead; that needs its machine configuration (talos.machineConfigs)")
	}
	return err
}

// replacementOut is the goal of taking the replacement out of etcd: it is no member, or it is off
// and the others go on without it; the old system displaces that member by its name when it joins.
// A member of another ID on the old disk is the old system's own, which has joined anew.
func (n *nodeRoll) replacementOut(ctx context.Context, r *Replace) (string, error) {
	mem, err := n.memory(ctx)
	if err != nil {
		return "", err
	}
	if !mem.ControlPlane || mem.EtcdKept || mem.EtcdMembers < 2 {
		return "etcd goes on with what the disks hold", nil
	}
	vm, found, err := r.powered(ctx)
	if err != nil {
		return "", err
	}
	if !found || !r.isBlank(vm) {
		return fmt.Sprintf("VM %d does not have the new system disk", r.VM.ID), nil
	}
	v, err := ViewEtcd(ctx, n.Talos, n.askEtcd(), n.plan.Node)
	if err != nil && !vm.Running {
		err = fault.WithHint(err, "if it was a member, etcd waits for its vote: start %s in Proxmox and wait until etcd is healthy, then run the same command again", vm)
	}
	if err != nil {
		return "", err
	}
	m, found, err := v.member(n.plan.Node)
	switch {
	case err != nil:
		return "", err
	case !found || m.ID == mem.EtcdID:
		return "the replacement is no member of etcd", nil
	case !vm.Running && len(v.Unhealthy(n.plan.Node)) == 0:
		return "the replacement is off, and etcd goes on without it", nil
	}
	return "", nil
}

// leaveAsReplacement makes a replacement that has joined etcd leave it again.
// One that does not answer is displaced by its name when the old system joins.
func (n *nodeRoll) leaveAsReplacement(ctx context.Context, r *Replace) error {
	if out, err := n.replacementOut(ctx, r); err != nil || out != "" {
		return err
	}
	if _, err := n.Talos.Identity(ctx, n.plan.Addr); err != nil {
		n.say("put-back/leave-etcd", "the replacement does not answer; its member goes when the old system joins")
		return nil
	}
	return repeatable(errors.Join(
		fault.Prefix("make the replacement hand etcd's leadership over", n.Talos.EtcdForfeit(ctx, n.plan.Addr, n.plan.UUID)),
		fault.Prefix("make the replacement leave etcd", n.Talos.EtcdLeave(ctx, n.plan.Addr, n.plan.UUID)),
	))
}

// standsStill says whether the VM may be left as it is. One that runs its old
// system still, but has left etcd, has to be started anew: machined does not
// start etcd again within the same boot (Talos' EtcdLeaveCluster stops the service).
func (n *nodeRoll) standsStill(ctx context.Context, r *Replace) (string, error) {
	reason, err := r.standsStill(ctx)
	if err != nil || reason == "" {
		return "", err
	}
	if out, err := n.replacementOut(ctx, r); err != nil || out == "" {
		return "", err
	}
	park, err := n.parking(ctx)
	if err != nil || !park.Record.Left {
		return reason, err
	}
	if m, err := n.Talos.Booted(ctx, n.plan.Addr); err == nil && n.isOldBoot(ctx, m) {
		return "", nil
	}
	return reason, nil // off, or in a later boot
}

// standsStill says whether disks may be moved: the VM is off, or has them all.
func (r *Replace) standsStill(ctx context.Context) (string, error) {
	vm, found, err := r.powered(ctx)
	switch {
	case err != nil:
		return "", err
	case !found:
		return fmt.Sprintf("VM %d is deleted", r.VM.ID), nil
	case vm.UUID() != r.VM.UUID():
		return "", r.stranger(vm)
	case !vm.Running && !vm.HA:
		return vm.String() + " is off", nil
	}
	for _, d := range r.Disks {
		if vm.Config[d.Key] == "" || d.System && r.isBlank(vm) {
			return "", nil
		}
	}
	return vm.String() + " has every disk", nil
}

func (n *nodeRoll) stopNew(ctx context.Context, r *Replace) error {
	vm, found, err := r.powered(ctx)
	if err != nil || !found {
		return err
	}
	if vm.HA {
		if err := r.sending(ctx, sentRemoveHA, LateQueue, func(ctx context.Context) error { return n.Proxmox.RemoveHA(ctx, vm.ID) }); err != nil {
			return fmt.Errorf("take %s out of Proxmox HA: %w", vm, err)
		}
		if vm, found, err = r.powered(ctx); err != nil || !found { // what carries a shutdown out is another task now
			return err
		}
	}
	const id = "put-back/stop" // it may have been reset since it left etcd, and have joined again
	if vm.Running {
		if err := n.powerOff(ctx, r, id, vm, func(ctx context.Context) error { return n.leaveAsReplacement(ctx, r) }); err != nil {
			return err
		}
	}
	return n.staysOut(ctx, vm, id, func(ctx context.Context) (string, error) { return n.replacementOut(ctx, r) })
}

func (r *Replace) exists(ctx context.Context) (string, error) {
	vm, found, err := r.current(ctx)
	if err != nil || !found {
		return "", err
	}
	return vm.String() + " is there", nil
}

func (r *Replace) createOld(ctx context.Context) error {
	config, err := r.oldConfig()
	if err != nil {
		return err
	}
	return r.create(ctx, config)
}

// isProtected is so for a VM that no delete can meet: one that runs, or is protected.
func (r *Replace) isProtected(ctx context.Context) (string, error) {
	vm, found, err := r.powered(ctx)
	switch {
	case err != nil || !found:
		return "", err
	case vm.Config["protection"] == "1":
		return vm.String() + " is protected", nil
	case vm.Running:
		return vm.String() + " runs", nil
	}
	return "", nil
}

// protect has Proxmox refuse a delete of the VM that was meant for it when it
// owned nothing, and comes late. Its own setting comes back when its node runs.
func (r *Replace) protect(ctx context.Context) error {
	return r.set(ctx, map[string]string{"protection": "1"})
}

// asBefore are the settings that a replacement changes on a VM that stays.
func (r *Replace) asBefore(vm VM) (map[string]string, error) {
	disks, err := r.VM.Disks()
	if err != nil {
		return nil, err
	}
	want := map[string]string{"boot": r.VM.Config["boot"], "description": r.VM.Config["description"]}
	if disk := r.VM.Config["bootdisk"]; disk != "" {
		want["bootdisk"] = disk // Proxmox drops it once there is a boot order (API2/Qemu.pm, update_vm_api)
	}
	for _, d := range disks {
		if d.CDROM && !d.CloudInit() {
			want[d.Key] = d.Value()
		}
	}
	now, err := vm.Disks()
	if err != nil {
		return nil, err
	}
	for _, d := range now {
		if _, iso := bootISO(d); iso && want[d.Key] == "" {
			want[d.Key] = "none,media=cdrom"
		}
	}
	for key, value := range want {
		if strings.TrimRight(vm.Config[key], "\n") == strings.TrimRight(value, "\n") {
			delete(want, key)
		}
	}
	return want, nil
}

func (r *Replace) isAsBefore(ctx context.Context) (string, error) {
	vm, found, err := r.current(ctx)
	if err != nil || !found {
		return "", err
	}
	want, err := r.asBefore(vm)
	if err != nil || len(want) > 0 {
		return "", err
	}
	return "its settings are as before", nil
}

func (r *Replace) setAsBefore(ctx context.Context) error {
	vm, _, err := r.current(ctx)
	if err != nil {
		return err
	}
	want, err := r.asBefore(vm)
	if err != nil {
		return err
	}
	var del []string
	for key, value := range want {
		if value == "" {
			del = append(del, key)
			delete(want, key)
		}
	}
	slices.Sort(del)
	if err := r.Proxmox.SetConfig(ctx, vm, want, del); err != nil {
		return fmt.Errorf("set up %s as before: %w", vm, err)
	}
	return nil
}

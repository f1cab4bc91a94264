package claim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

// rivals returns the claims, by number, that exclude ours, anywhere in the Proxmox cluster: of a cluster with our
// name, or with one of our nodes among its own. A claim at our own number is not a rival.
func (c *Claim) rivals(vms []cluster.VM) (rivals []State, err error) {
	for _, vm := range vms {
		s, ok, err := Read(vm)
		switch {
		case vm.ID == c.VMID:
		case err != nil:
			return nil, err // whose claim it is can't be determined
		case ok && (s.Cluster == c.Cluster || len(s.shared(c.Nodes)) > 0):
			rivals = append(rivals, s)
		}
	}
	return rivals, nil
}

// shared returns the given nodes' VMs that the claim also names.
func (s State) shared(nodes []cluster.VMID) []cluster.VMID {
	return slices.DeleteFunc(slices.Clone(nodes), func(id cluster.VMID) bool { return !slices.Contains(s.Nodes, id) })
}

// errYield says that a run with a lower number began at the same moment, so that our run has to yield.
var errYield = errors.New("another run has begun at the same moment")

// surroundings looks for everything in the whole Proxmox cluster that excludes a claim.
//
// Creating a VM is atomic for one number only, so two recast.yaml with different proxmox.vmids may both create their
// claim. Each run creates its own, waits for the end of that task, and then lists all VMs. It continues only once a
// list that shows its own claim shows no rival. Of two runs at least one does not continue: if each claim were missing
// from the other run's list, each would have been created after that list.
//
// The list is current enough for that: Proxmox makes it for each request from the register of guests in the cluster
// file system (pve-manager, PVE/API2/Cluster.pm, resources; pve-cluster, PVE/Cluster.pm, cfs_update), whose changes
// every node applies in one order (pve-cluster, pmxcfs/dcdb.c, dcdb_deliver); only the usage figures in it are about
// 10 s old. A VM that is still being created is no rival yet: its run lists after its creation, and then sees ours.
//
// Of two runs that began at the same moment, the one with the higher number deletes its claim and watches the other.
// The lower one waits until the higher claim is deleted, or until its counter proves that its run continues: the two
// never both continue, and if both yield, the higher one tries again.
type surroundings struct {
	*Claim
	ours bool // our own claim is a VM, and exists

	met      func(State) error // the error that any rival means; nil: the rival is watched
	watching bool              // a rival is watched
	seen     State
	since    time.Time // when seen was first read

	away map[string]time.Time // since when hosts are in their state, by AwayHost.key
}

// lookAround waits until nothing excludes our claim. A live rival is an error of kind fault.Claimed; what a dead
// rival left is a refusal, because its own recast.yaml has to finish that. errYield, if our claim exists, says to
// yield. If met is not nil, a rival is not watched, but means the error of met.
func (c *Claim) lookAround(ctx context.Context, ours bool, met func(State) error) error {
	s := &surroundings{Claim: c, ours: ours, met: met, away: map[string]time.Time{}}
	return wait.Until(ctx, c.waiting("look for other claims", 4*c.watch()), s.look)
}

func (s *surroundings) look(ctx context.Context) (done bool, seen string, err error) {
	asked := time.Now()
	vms, away, err := s.list(ctx)
	if err != nil {
		if s.watching {
			return false, "", err // a counter with the same value after the error is still unchanged
		}
		return false, "", wait.Stop(err)
	}
	rivals, err := s.rivals(vms)
	switch {
	case err != nil:
		return false, "", wait.Stop(err)
	case s.ours && !slices.ContainsFunc(vms, s.isOurs):
		return false, fmt.Sprintf("Proxmox does not list VM %d yet, which is ours", s.VMID), nil
	case len(rivals) > 0 && s.met != nil:
		return false, "", wait.Stop(s.met(rivals[0]))
	case len(rivals) > 0:
		return s.watchRival(rivals[0], asked)
	}
	s.watching = false
	if err := Strays(vms, s.Cluster, s.VMIDs, s.Nodes); err != nil && !s.Parked {
		return false, "", wait.Stop(err)
	}
	if seen, err = s.hostsAway(away, asked); err != nil || seen != "" {
		return false, seen, wait.Stop(err)
	}
	return true, "", nil
}

// list reads every VM except those on hosts that do not answer.
func (c *Claim) list(ctx context.Context) ([]cluster.VM, *cluster.HostsAway, error) {
	vms, err := c.Proxmox.VMs(ctx)
	away, lacking := errors.AsType[*cluster.HostsAway](err)
	if err != nil && !lacking {
		return nil, nil, fmt.Errorf("read Proxmox: %w", err)
	}
	return vms, away, nil
}

func (c *Claim) isOurs(vm cluster.VM) bool {
	s, ok, err := Read(vm)
	return vm.ID == c.VMID && ok && err == nil && s.heldBy(c.Run, c.Holder)
}

// watchRival judges a rival as acquisition.look judges the claim at our number, but never takes it over.
func (s *surroundings) watchRival(r State, asked time.Time) (done bool, seen string, err error) {
	long := asked.Sub(s.since) >= s.watch()
	standsBack := s.ours && s.VMID < r.VM.ID && !long // it may yield; its counter moves until its claim is deleted
	switch {
	case s.Dead != nil && s.Dead(r.Holder):
		return false, "", wait.Stop(s.leftBy(r, "has ended without giving it back"))
	case !s.watching || r.VM.ID != s.seen.VM.ID || !r.heldBy(s.seen.Run, s.seen.Holder):
		s.watching, s.seen, s.since = true, r, time.Now()
	case r.Beat != s.seen.Beat && !standsBack:
		return false, "", wait.Stop(s.rivalAlive(r))
	case r.Beat == s.seen.Beat && long:
		return false, "", wait.Stop(s.leftBy(r, fmt.Sprintf("has given no sign of life for %s%s", s.watch(), s.suspended(r, fmt.Sprintf(", and is suspended (%s)", r.Holder.GoesOn())))))
	}
	if s.ours && r.VM.ID < s.VMID {
		return false, "", wait.Stop(errYield)
	}
	return false, fmt.Sprintf("%s is held by %s", r.VM, s.watched(r, s.since)), nil
}

func (c *Claim) rivalAlive(r State) error {
	err := fault.As(fault.Claimed, fmt.Errorf("held by %s, which is alive (%s): %s", r, r.where(), c.differs(r)))
	return fault.WithHint(fault.ClaimHeld.Of(err), "wait until that run has ended; recast status shows how far it is. Then %s", c.agree(r))
}

func (c *Claim) leftBy(r State, how string) error {
	return fault.WithHint(fault.ClaimHeld.Refusedf("%s is the claim of %s, which %s: %s", r.VM, r, how, c.differs(r)),
		"if that run has ended, recast roll with its own recast.yaml takes the claim over, finishes what it left and deletes the claim; recast status shows what that is, recast runbook claim-held what to do without that file. Then %s", c.agree(r))
}

func (c *Claim) differs(r State) string {
	text := fmt.Sprintf("it was made with proxmox.vmids %s, and this recast.yaml has %s", r.VMIDs, c.VMIDs)
	if r.Cluster != c.Cluster {
		text = fmt.Sprintf("%s: cluster %s there has %s among its nodes, as cluster %s here has", text, r.Cluster, ofNumbers(r.shared(c.Nodes)), c.Cluster)
	}
	return text
}

// OfOtherRange returns an error if a claim was made with other proxmox.vmids than ours; nil if it was not, or if
// there is no claim. ours is the first number of our vmids.
func (s State) OfOtherRange(ours cluster.VMID, vmids cluster.VMIDRange) error {
	if s.VM.ID == 0 || s.VM.ID == ours {
		return nil
	}
	c := Claim{Cluster: s.Cluster, VMIDs: vmids}
	return fault.WithHint(fault.ClaimHeld.Refusedf("%s is a claim of this cluster: %s", s.VM, c.differs(s)), "%s", c.agree(s))
}

func (c *Claim) agree(r State) string {
	if r.Cluster != c.Cluster {
		return "give the Talos cluster one name, and the same proxmox.vmids, in every recast.yaml"
	}
	return "use the same proxmox.vmids in every recast.yaml of the cluster; another Talos cluster on this Proxmox cluster needs another name (cluster)"
}

func ofNumbers(ids []cluster.VMID) string {
	return cluster.Numbers(cluster.Each(ids, func(id cluster.VMID) cluster.VM { return cluster.VM{ID: id} }))
}

// hostsAway says what is waited for while hosts do not answer; "" for nothing. Proxmox returns the configuration of
// a VM only through the VM's own host, so a rival may be there.
//
// Nothing can be written on a host that the quorate cluster has lost: a run whose claim is there can't prove it,
// changes nothing after half of Watch without a heartbeat, and looks for rivals before it continues (Held.Check).
// So once the host has been offline for all of Watch, our claim is valid. A host that is online, and perhaps
// answers others, may serve a rival: that is a refusal.
func (s *surroundings) hostsAway(away *cluster.HostsAway, asked time.Time) (seen string, err error) {
	if away == nil || !s.ours && !s.InLease {
		return "", nil // before our claim exists the look proves nothing anyway
	}
	unknown := away.Without(s.Nodes)
	for host := range s.away {
		if !slices.ContainsFunc(unknown.Hosts, func(h cluster.AwayHost) bool { return h.Key() == host }) {
			delete(s.away, host)
		}
	}
	over, reachable := true, false
	for _, h := range unknown.Hosts {
		key := h.Key()
		if _, known := s.away[key]; !known {
			s.away[key] = time.Now()
		}
		over = over && asked.Sub(s.away[key]) >= s.watch()
		reachable = reachable || h.Why != cluster.IsOffline
	}
	switch {
	case len(unknown.Hosts) == 0:
		return "", nil
	case !over:
		return fmt.Sprintf("%s: one of them may be another run's claim; watching for %s whether that stays so", unknown, s.watch()), nil
	case reachable:
		return "", fault.As(fault.Refused, fmt.Errorf("whether another run is at work can't be determined: %w", unknown.Hinted()))
	}
	s.say("claim of cluster %s: %s; no run can hold a claim there meanwhile", s.Cluster, unknown)
	return "", nil
}

// Strays returns the refusal of parking VMs that were made with another recast.yaml of the same Talos cluster; nil
// if there are none. Parking VMs of a cluster with that name must be within vmids. A parking VM of another cluster
// name counts while its record is open and names one of the nodes' VMs.
func Strays(vms []cluster.VM, name string, vmids cluster.VMIDRange, nodes []cluster.VMID) error {
	var found []string
	first, last, renamed := vmids.First, vmids.Last, false
	for _, vm := range vms {
		rec, ok, err := parking.ReadRecord(vm)
		switch {
		case !ok, err != nil && rec.Cluster == "": // the code that reads the records reports it
		case rec.Cluster == name && !vmids.Contains(vm.ID):
			found = append(found, fmt.Sprintf("%s %s node %s for run %s, with proxmox.vmids %s", vm, holds(rec), rec.Node, rec.Run, rec.VMIDs))
			first, last = min(first, vm.ID), max(last, vm.ID)
		case rec.Cluster != name && rec.Open && slices.Contains(nodes, rec.VMID):
			found = append(found, fmt.Sprintf("%s %s node %s (VM %d) of cluster %s for run %s, with proxmox.vmids %s", vm, holds(rec), rec.Node, rec.VMID, rec.Cluster, rec.Run, rec.VMIDs))
			renamed = true
		}
	}
	if len(found) == 0 {
		return nil
	}
	err := fault.ClaimHeld.Refusedf("another recast.yaml was at work on cluster %s; this one has proxmox.vmids %s:\n  %s", name, vmids, strings.Join(found, "\n  "))
	if renamed {
		err = fault.WithHint(err, "finish the replacement with the recast.yaml that began it (recast roll), then give the Talos cluster one name in every recast.yaml")
	}
	if first != vmids.First || last != vmids.Last {
		err = fault.WithHint(err, "use the same proxmox.vmids in every recast.yaml of the cluster: %s holds them all, if the other numbers in it are free; recast prune deletes those that nothing needs any more. "+
			"Another Talos cluster on this Proxmox cluster needs another name (cluster)", cluster.VMIDRange{First: first, Last: last})
	}
	return err
}

func holds(r parking.Record) string {
	if r.Open {
		return "holds, in an unfinished replacement, the disks of"
	}
	return r.Keeps()
}

// exclude makes sure that no run holds the claim in the other of its two places. Each run
// writes its own place before it reads the other: of two runs, at least one sees the other.
//
// A Lease can't be read while the Kubernetes API is unavailable, and the API may be what this run has to repair. The
// run then continues: a run that holds the Lease can't prove it either, and changes nothing. Once the API is back,
// this run checks again before its next change, and it is the one that yields.
func (h *Held) exclude(ctx context.Context) error {
	if h.others == nil {
		return nil
	}
	clear := acquisition{Claim: &h.claim, place: h.others, clearing: true}
	err := clear.until(ctx)
	if clear.muted && !h.unseen {
		h.claim.say("claim of cluster %s: whether someone holds it as a Lease can't be determined: Kubernetes does not answer; looking again later", h.claim.Cluster)
	}
	h.unseen = clear.muted
	return err
}

// stillAlone checks the other place again, if a claim may have been created there.
func (h *Held) stillAlone(ctx context.Context) error {
	select {
	case h.excluding <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-h.excluding }()
	if h.claim.InLease {
		return h.awaitNoVM(ctx)
	}
	if !h.unseen {
		return nil
	}
	err := h.exclude(ctx)
	if fault.KindOf(err) == fault.Claimed { // the other run waits until our claim is deleted
		return errors.Join(h.giveBack(ctx), h.lose(err))
	}
	return err
}

// awaitNoVM waits until there is no claim in Proxmox: a run that made such a claim after ours either sees the Lease
// and yields, or only prunes, which does not use Kubernetes.
func (h *Held) awaitNoVM(ctx context.Context) error {
	alone := h.claim.waiting("nobody else holds the claim", h.claim.watch())
	return wait.Until(ctx, alone, func(ctx context.Context) (bool, string, error) {
		s, err := h.others.read(ctx)
		switch f, forming := errors.AsType[*formingError](err); {
		case errors.Is(err, cluster.ErrNotFound):
			return true, "", nil
		case forming:
			return false, f.Error(), nil
		case err != nil:
			return false, "", err
		}
		return false, fmt.Sprintf("%s holds it too (%s)", s, s.where()), nil
	})
}

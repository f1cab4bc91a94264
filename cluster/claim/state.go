package claim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/format"
)

// Holder is the process that holds a claim.
type Holder struct {
	Host string `json:"host"`
	Boot string `json:"boot"` // kernel boot ID of the host; "": unknown, so that the holder never counts as dead
	PID  int    `json:"pid"`
	// Namespace is the PID namespace that PID belongs to; "": unknown.
	Namespace string `json:"pidNamespace,omitempty"`
	Start     string `json:"start"` // when the process started, so that its PID is not mistaken for another's
}

func (h Holder) String() string { return foreign.Line(fmt.Sprintf("pid %d on %s", h.PID, h.Host)) }

// GoesOn says how to continue a suspended holder.
func (h Holder) GoesOn() string {
	return fmt.Sprintf("fg in its terminal, or kill -CONT %d, lets it go on", h.PID)
}

// State is what a claim's VM or Lease says about it.
type State struct {
	VM      cluster.VM    `json:"-"`
	Lease   cluster.Lease `json:"-"` // if there is no VM
	Cluster string        `json:"cluster"`
	Run     string        `json:"run"`
	Holder  Holder        `json:"holder"`
	Since   time.Time     `json:"since"`
	Beat    int           `json:"beat"` // rises for as long as the holder lives
	// VMIDs is proxmox.vmids of the holder's recast.yaml, and Nodes are the VMs of its nodes, as far as known.
	VMIDs string         `json:"vmids,omitempty"`
	Nodes []cluster.VMID `json:"nodes,omitempty"`
}

func (s State) String() string {
	return fmt.Sprintf("run %s (%s) since %s", s.Run, s.Holder, s.Since.Format(time.RFC3339))
}

func (s State) where() string {
	if s.VM.ID == 0 {
		return "Lease " + s.Lease.Name
	}
	return s.VM.String()
}

func (s State) heldBy(run string, by Holder) bool { return s.Run == run && s.Holder == by }

const (
	VMName    = "recast-claim"
	claimMark = "recast-claim: "

	// claimVersion rises if a recast that does not know the change would misread a claim.
	claimVersion = 1
)

type versioned struct {
	format.Version
	State
}

func (s State) encode() ([]byte, error) {
	b, err := json.Marshal(versioned{format.Version{Version: claimVersion}, s})
	if err != nil {
		return nil, fmt.Errorf("claim of cluster %s: %w", s.Cluster, err)
	}
	return b, nil
}

// decode reads a claim. If a newer recast wrote it, s only tells whose it is.
func decode(b string) (s State, err error) {
	var v versioned
	err = format.DecodeUpTo(claimVersion, []byte(b), &v)
	return v.State, err
}

// deletion says how to delete the VM of a claim that nobody holds any more, if nothing is lost with it.
func deletion(vm cluster.VM) string {
	if !vm.Bare() {
		return fmt.Sprintf("look at VM %d on %s (qm config %[1]d): it runs, or has drives, which no claim does; see whose it is, and take the line of the claim out of its Notes", vm.ID, vm.Host)
	}
	return fmt.Sprintf("delete that VM, on %s: qm set %[2]d --protection 0 && qm destroy %[2]d. It has no disk: nothing is lost with it", vm.Host, vm.ID)
}

// unreadable refuses a claim that can't be read; remove is how to delete it.
func unreadable(what string, err error, remove string) error {
	hint := fmt.Sprintf("if a newer recast has worked here, use that one. Else wait %s, within which a run that held it has noticed and stopped; then %s", Watch, remove)
	if _, newer := errors.AsType[*format.NewerError](err); newer {
		hint = "use the recast that wrote it, or a newer one"
	}
	return fault.WithHint(fault.ClaimHeld.Refusedf("%s: %w", what, err), "%s", hint)
}

// Description renders the claim for people and, on its last line, for recast.
func (s State) Description() (string, error) {
	b, err := s.encode()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("Claim of recast: Talos cluster %s is being worked on by %s. Never start this VM; recast deletes it when the run ends.\n\n%s%s",
		s.Cluster, s, claimMark, b), nil
}

// Read reads the claim in a VM's description; ok is false for any other VM.
func Read(vm cluster.VM) (s State, ok bool, err error) {
	for line := range strings.Lines(vm.Config["description"]) {
		b, found := strings.CutPrefix(strings.TrimSpace(line), claimMark)
		if !found {
			continue
		}
		s, err := decode(b)
		if err != nil {
			return s, true, unreadable(vm.String()+": the claim in its description can't be read", err, deletion(vm))
		}
		s.VM = vm
		return s, true, nil
	}
	return State{}, false, nil
}

// ofVM reads a cluster's claim from the VM with the claim's VMID, and refuses any other VM there.
func ofVM(vm cluster.VM, cluster string) (State, error) {
	s, ok, err := Read(vm)
	switch {
	case err != nil:
		return State{}, err
	case !ok && edited(vm):
		return State{}, fault.WithHint(fault.ClaimHeld.Refusedf("%s is a claim of recast, and someone has edited its Notes: which run holds it can't be read", vm),
			"%s; the next run makes a new one. "+
				"That is safe %s after the edit: a run that held the claim has lost it, and has stopped by then", deletion(vm), Watch)
	case !ok:
		return State{}, fault.WithHint(fault.ClaimHeld.Refusedf("%s has the number that recast needs for its claim, and is none", vm),
			"give recast numbers that nobody else uses: proxmox.vmids")
	case s.Cluster != cluster:
		return State{}, fault.WithHint(fault.ClaimHeld.Refusedf("%s is the claim of cluster %s, not of %s", vm, s.Cluster, cluster),
			"give each cluster proxmox.vmids of its own")
	}
	return s, nil
}

// edited recognises a claim's VM that has lost its last line by what vmPlace.create gives it: neither a drive nor a
// network card. A person may have edited one more setting.
func edited(vm cluster.VM) bool {
	for key := range vm.Config {
		if cluster.IsDiskKey(key) || cluster.NumberedBus(key) == "net" {
			return false
		}
	}
	has := 0
	for _, is := range []bool{vm.Name == VMName, vm.Config["protection"] == "1", vm.Config["memory"] == "16" || vm.Config["memory"] == "current=16"} {
		if is {
			has++
		}
	}
	return has >= 2 && !vm.Template
}

// Peek returns the claim of a cluster, whatever its number; found is false if there is none yet. A VM that has the
// number of our claim but is no claim is an error.
func Peek(vms []cluster.VM, name string, id cluster.VMID) (s State, found bool, err error) {
	for _, vm := range vms {
		if vm.ID == id && !cluster.Forming(vm) {
			s, err = ofVM(vm, name)
			return s, err == nil, err
		}
	}
	for _, vm := range vms {
		if s, ok, err := Read(vm); ok && s.Cluster == name {
			return s, err == nil, err
		}
	}
	return State{}, false, nil
}

// place is where a claim is kept, one for the whole cluster. The first run creates the claim, and every run changes
// it by compare-and-swap. The errors of a place are those of an Editor: ErrNotFound, ErrExists, ErrChanged,
// ErrLostAnswer.
type place interface {
	String() string
	// read reads the claim afresh: a *formingError while a run creates it, a *strangeError if
	// something other than a claim of this cluster is there.
	read(ctx context.Context) (State, error)
	create(ctx context.Context, s State) error
	// write changes the claim if it is unchanged since from was read.
	write(ctx context.Context, from, to State) error
	// remove deletes the claim if it is unchanged since s was read.
	remove(ctx context.Context, s State) error
}

// formingError says that a claim is still being created; nothing more is known about it.
type formingError struct{ vm cluster.VM }

func (e *formingError) Error() string { return fmt.Sprintf("%s is being created by someone", e.vm) }

// strangeError says what occupies a claim's place without being a claim of this cluster.
type strangeError struct{ error }

func (e *strangeError) Unwrap() error { return e.error }

type vmPlace struct{ claim *Claim }

func (p vmPlace) String() string { return fmt.Sprintf("VM %d", p.claim.VMID) }

func (p vmPlace) read(ctx context.Context) (State, error) {
	vm, err := p.claim.Proxmox.VMConfig(ctx, p.claim.VMID)
	switch {
	case err != nil:
		return State{}, fmt.Errorf("look up %s: %w", p, err)
	case cluster.Forming(vm):
		return State{}, &formingError{vm}
	}
	s, err := ofVM(vm, p.claim.Cluster)
	if err != nil {
		return State{}, &strangeError{err}
	}
	return s, nil
}

func (p vmPlace) create(ctx context.Context, s State) error {
	description, err := s.Description()
	if err != nil {
		return err
	}
	return fault.Prefix(fmt.Sprintf("create the claim, %s on %s", p, p.claim.Host), p.claim.Proxmox.CreateVM(ctx, p.claim.Host, p.claim.VMID, map[string]string{
		"name": VMName, "memory": "16", "onboot": "0", "protection": "1", "description": description,
	}))
}

func (p vmPlace) write(ctx context.Context, from, to State) error {
	description, err := to.Description()
	if err != nil {
		return err
	}
	// A claim whose delete failed is not protected.
	set := map[string]string{"description": description, "protection": "1"}
	if from.VM.Name != VMName { // someone renamed the VM
		set["name"] = VMName
	}
	return fault.Prefix(fmt.Sprintf("write the claim into %s", from.VM), p.claim.Proxmox.SetConfig(ctx, from.VM, set, nil))
}

func (p vmPlace) remove(ctx context.Context, s State) error {
	px := p.claim.Proxmox
	vm, err := px.VM(ctx, p.claim.VMID)
	switch {
	case err != nil:
		return fmt.Errorf("look up %s: %w", p, err)
	case vm.Digest != s.VM.Digest || vm.Host != s.VM.Host:
		return fmt.Errorf("%s is no longer as it was read: %w", vm, cluster.ErrChanged)
	}
	disks, err := vm.Disks()
	switch {
	case err != nil:
		return err
	case vm.Running || vm.Template || len(disks) > 0:
		return fault.WithHint(fault.ClaimHeld.Refusedf("%s is not as recast made it: it must be stopped and have no drive", vm),
			"stop VM %d, and give its drives to the VM that they belong to (qm disk move); the next run then takes the claim over and deletes it", vm.ID)
	}
	if err := cluster.RequireQuorum(ctx, px); err != nil {
		return err
	}
	// Incrementing the counter makes every run that watches the claim start its watch again, so no run can take the
	// claim over before the delete, which is not conditional. Proxmox may execute a delete after its sender has
	// died, when the number is another run's claim: so a claim is protected until right before its own delete.
	next := s
	next.Beat++
	description, err := next.Description()
	if err != nil {
		return err
	}
	lift := map[string]string{"description": description, "protection": "0"}
	if err := px.SetConfig(ctx, s.VM, lift, nil); err != nil {
		return fmt.Errorf("write the claim into %s: %w", s.VM, err)
	}
	if err := cluster.RequireQuorum(ctx, px); err != nil { // quorum may have been lost since
		return err
	}
	return fault.Prefix(fmt.Sprintf("delete %s", s.VM), px.DeleteVM(ctx, s.VM))
}

type leasePlace struct{ claim *Claim }

func (p leasePlace) String() string { return "the Lease" }

func (p leasePlace) read(ctx context.Context) (State, error) {
	l, err := p.claim.Leases.Lease(ctx)
	if err != nil {
		return State{}, fmt.Errorf("look up the Lease: %w", err)
	}
	s, err := ofLease(l, p.claim.Cluster)
	if err != nil {
		return State{}, &strangeError{err}
	}
	return s, nil
}

func ofLease(l cluster.Lease, cluster string) (State, error) {
	s, err := decode(l.Claim)
	if err == nil && s.Run == "" {
		err = errors.New("it names no run")
	}
	if err != nil {
		return State{}, unreadable(fmt.Sprintf("Lease %s: the claim in it can't be read", l.Name), err, "delete that Lease")
	}
	if s.Cluster != cluster {
		return State{}, fault.WithHint(fault.ClaimHeld.Refusedf("Lease %s is the claim of cluster %s, not of %s", l.Name, s.Cluster, cluster),
			"one Kubernetes cluster has one name in every recast.yaml: cluster")
	}
	s.Lease = l
	return s, nil
}

func (p leasePlace) lease(s State) (cluster.Lease, error) {
	b, err := s.encode()
	if err != nil {
		return cluster.Lease{}, err
	}
	return cluster.Lease{
		UID: s.Lease.UID, Revision: s.Lease.Revision, Holder: fmt.Sprintf("recast run %s, %s", s.Run, s.Holder), Duration: p.claim.watch(),
		Acquired: s.Since, Renewed: time.Now(), Claim: string(b),
	}, nil
}

func (p leasePlace) create(ctx context.Context, s State) error {
	l, err := p.lease(s)
	if err != nil {
		return err
	}
	return fault.Prefix("create the claim, a Lease", p.claim.Leases.CreateLease(ctx, l))
}

func (p leasePlace) write(ctx context.Context, from, to State) error {
	to.Lease = from.Lease
	l, err := p.lease(to)
	if err != nil {
		return err
	}
	return fault.Prefix("write the claim into Lease "+from.Lease.Name, p.claim.Leases.UpdateLease(ctx, l))
}

func (p leasePlace) remove(ctx context.Context, s State) error {
	return fault.Prefix("delete Lease "+s.Lease.Name, p.claim.Leases.DeleteLease(ctx, s.Lease))
}

// Exists says whether there is a claim of the cluster, in Proxmox or as a Lease, held or left over.
func Exists(ctx context.Context, vms []cluster.VM, read func(context.Context) (cluster.Lease, error), name string, id cluster.VMID) (bool, error) {
	_, found, err := Peek(vms, name, id)
	if err == nil && !found {
		_, found, err = PeekLease(ctx, read, name)
	}
	return found, err
}

// PeekLease returns the claim of a cluster that is kept as a Lease, read by read; found is false if there is none.
func PeekLease(ctx context.Context, read func(context.Context) (cluster.Lease, error), name string) (s State, found bool, err error) {
	l, err := read(ctx)
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return State{}, false, nil
	case err != nil:
		return State{}, false, fmt.Errorf("look up the Lease: %w", err)
	}
	s, err = ofLease(l, name)
	return s, err == nil, err
}

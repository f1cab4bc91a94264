// Package claim keeps a cluster for one run at a time. [Claim] takes the mark, a VM that is never started or a
// Lease; [Held] is the mark once taken, which beats, and whose guards let no change through once it is lost.
package claim

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/format"
	"github.com/recast-sh/recast/internal/wait"
)

// Claim is the cluster-wide mark that a run holds, so that there is one run per cluster: a VM that never starts, with
// a fixed VMID. Its creation is atomic in the whole Proxmox cluster, and its description is changed by
// compare-and-swap. A token that may not create VMs uses a Kubernetes Lease instead; a run that takes one of the two
// checks the other first, so that they exclude each other. A recast.yaml with other proxmox.vmids gives the claim
// another VMID: a run that takes a claim looks for all others in the whole Proxmox cluster (see surroundings).
type Claim struct {
	Proxmox interface {
		cluster.Inventory
		cluster.Editor
	}
	Cluster string
	VMID    cluster.VMID
	VMIDs   cluster.VMIDRange // of the recast.yaml; VMID is the first of them
	Nodes   []cluster.VMID    // the VMs of the cluster's nodes, as far as known
	Parked  bool              // disks that another recast.yaml has parked are no reason to refuse
	Host    string            // the Proxmox node on which the claim is created
	Leases  cluster.Leases    // nil: no Lease is looked for
	InLease bool              // the claim is kept as a Lease, not as a VM
	Holder  Holder
	Run     string

	// Dead says whether a holder is a process of this machine that has ended; nil: never known.
	Dead func(Holder) bool
	// Suspended says whether a holder is a process of this machine that is stopped (Ctrl-Z, SIGSTOP); nil: never known.
	Suspended func(Holder) bool
	// Say receives what the claim waits for, and, from another goroutine, what fails while the claim is held; may be nil.
	Say func(string)

	Heartbeat time.Duration // 0: Heartbeat
	Watch     time.Duration // how long a claim must be unchanged before it is taken over; 0: Watch
}

const (
	// Heartbeat is how often a live run renews its claim.
	Heartbeat = 15 * time.Second
	// Watch is how long a claim must be unchanged before another run takes it over.
	Watch = 90 * time.Second
)

func (c *Claim) heartbeat() time.Duration { return cmp.Or(c.Heartbeat, Heartbeat) }
func (c *Claim) watch() time.Duration     { return cmp.Or(c.Watch, Watch) }

func (c *Claim) say(format string, args ...any) {
	if c.Say != nil {
		c.Say(fmt.Sprintf(format, args...))
	}
}

func (c *Claim) waiting(what string, atMost time.Duration) wait.For {
	return wait.For{
		Name: what + " of cluster " + c.Cluster, Every: c.heartbeat() / 3, Timeout: atMost,
		Seen: func(seen string) { c.say("claim of cluster %s: %s", c.Cluster, seen) },
	}
}

// places returns where our claim is kept and where another run's may be; nil: nowhere.
func (c *Claim) places() (ours, others place) {
	switch {
	case c.Leases == nil:
		return vmPlace{c}, nil
	case c.InLease:
		return leasePlace{c}, vmPlace{c}
	}
	return vmPlace{c}, leasePlace{c}
}

// Acquire takes the claim, or fails with fault.Claimed and names its holder. It takes over a claim that is
// unchanged for Watch, and at once one whose holder is dead. The claim is kept alive until Release, or until ctx ends.
func (c *Claim) Acquire(ctx context.Context) (*Held, error) {
	for {
		if err := c.lookAround(ctx, false, nil); err != nil {
			return nil, err
		}
		ours, _ := c.places()
		a := acquisition{Claim: c, place: ours}
		if err := a.until(ctx); err != nil {
			return nil, err
		}
		held := hold(ctx, *c, a.sent)
		err := held.exclude(ctx)
		if err == nil {
			err = c.lookAround(ctx, !c.InLease, nil)
		}
		if err == nil {
			return held, nil
		}
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		errRelease := held.Release(release)
		cancel()
		if !errors.Is(err, errYield) || errRelease != nil {
			return nil, errors.Join(err, errRelease)
		}
		c.say("claim of cluster %s: %v, with a lower number for its claim; ours is deleted again", c.Cluster, errYield)
	}
}

type acquisition struct {
	*Claim
	place    place
	clearing bool      // place is the other place, where our claim is not kept
	muted    bool      // place could not be read
	sent     time.Time // when the change that made the claim ours was sent

	watching bool // the claim is another run's
	seen     State
	since    time.Time // when seen was first read

	formingSince time.Time // when the claim was first seen as still being created; zero: it is complete
}

func (a *acquisition) until(ctx context.Context) error {
	return wait.Until(ctx, a.waiting("take the claim", 4*a.watch()), a.look)
}

func (a *acquisition) look(ctx context.Context) (done bool, seen string, err error) {
	asked := time.Now()
	found, err := a.place.read(ctx)
	if f, forming := errors.AsType[*formingError](err); forming {
		if a.formingSince.IsZero() {
			a.formingSince = asked
		}
		if asked.Sub(a.formingSince) >= a.watch() {
			return false, "", wait.Stop(cluster.HalfMade(f.vm))
		}
		return false, f.Error(), nil
	}
	_, strange := errors.AsType[*strangeError](err)
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return a.create(ctx)
	case strange:
		return false, "", wait.Stop(err)
	case err != nil && a.watching:
		return false, "", err // a counter with the same value after the error is still unchanged
	case err != nil && a.clearing && errors.Is(err, cluster.ErrNoAnswer):
		a.muted = true
		return true, "", nil
	case err != nil:
		return false, "", wait.Stop(err)
	}
	a.formingSince = time.Time{}
	switch {
	case found.heldBy(a.Run, a.Holder):
		return a.take(ctx, found)
	case a.Dead != nil && a.Dead(found.Holder):
		a.say("claim of cluster %s: %s has ended without giving it back; taking it over", a.Cluster, found)
		return a.take(ctx, found)
	case !a.watching || !found.heldBy(a.seen.Run, a.seen.Holder):
		a.watching, a.seen, a.since = true, found, time.Now()
	case found.Beat != a.seen.Beat:
		return false, "", wait.Stop(found.alive("", ""))
	case asked.Sub(a.since) >= a.watch():
		a.say("claim of cluster %s: its heartbeat has stood still for %s; taking it over from %s%s", a.Cluster, a.watch(), found, a.suspended(found, ", which is suspended, and ends when it continues"))
		return a.take(ctx, found)
	}
	return false, "held by " + a.watched(found, a.since), nil
}

// watched says who holds a claim that is watched since then and, from time to time, for how long the claim has not
// changed.
func (c *Claim) watched(s State, since time.Time) string {
	text := fmt.Sprintf("%s; watching for up to %s whether that run is alive", s, c.watch())
	if c.suspended(s, " ") != "" {
		text = fmt.Sprintf("%s, which is suspended: %s; watching for up to %s whether it does", s, s.Holder.GoesOn(), c.watch())
	}
	if still := time.Since(since).Truncate(c.heartbeat()); still > c.heartbeat() {
		text += fmt.Sprintf("; its heartbeat has stood still for %s", still)
	}
	return text
}

// suspended returns text if the holder is a stopped process of this machine, else "".
func (c *Claim) suspended(s State, text string) string {
	if c.Suspended == nil || !c.Suspended(s.Holder) {
		return ""
	}
	return text
}

// alive is the refusal for a claim whose holder lives. more is what to know of it, and then what to do afterwards.
func (s State) alive(more, then string) error {
	err := fault.As(fault.Claimed, fmt.Errorf("held by %s, which is alive (%s)%s", s, s.where(), more))
	return fault.WithHint(fault.ClaimHeld.Of(err), "wait until that run has ended; recast status shows how far it is%s", then)
}

func (a *acquisition) create(ctx context.Context) (done bool, seen string, err error) {
	a.watching = false
	if a.clearing {
		return true, "", nil
	}
	sent := time.Now()
	err = a.place.create(ctx, a.mine(0))
	return a.took(sent, err)
}

func (a *acquisition) take(ctx context.Context, from State) (done bool, seen string, err error) {
	a.watching = false
	sent := time.Now()
	switch {
	case !a.clearing:
		err = a.place.write(ctx, from, a.mine(from.Beat+1))
	case a.InLease:
		return false, "", wait.Stop(fault.WithHint(
			fault.ClaimHeld.Refusedf("%s is the claim of %s, which has ended, and this token may not change VMs", from.VM, from),
			"run recast with the token that made it, or, since that run has ended, %s", deletion(from.VM)))
	default:
		err = a.place.remove(ctx, from)
	}
	return a.took(sent, err)
}

// took reports the result of a change. If another run was faster, or no answer came, the place is read again.
func (a *acquisition) took(sent time.Time, err error) (done bool, seen string, _ error) {
	switch {
	case err == nil:
		a.sent = sent
		return true, "", nil
	case errors.Is(err, cluster.ErrExists), errors.Is(err, cluster.ErrChanged), errors.Is(err, cluster.ErrNotFound), errors.Is(err, cluster.ErrLostAnswer):
		return false, "looking again: " + err.Error(), nil
	}
	return false, "", wait.Stop(err)
}

func (c *Claim) mine(beat int) State {
	return State{
		Cluster: c.Cluster, Run: c.Run, Holder: c.Holder, Since: time.Now().UTC().Truncate(time.Second), Beat: beat,
		VMIDs: c.VMIDs.String(), Nodes: c.Nodes,
	}
}

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
	return fmt.Sprintf("fg in its terminal, or kill -CONT %d, resumes it", h.PID)
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
	return b, fault.Prefix("claim of cluster "+s.Cluster, err)
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
		return fmt.Sprintf("see whose VM %d on %s is (qm config %[1]d): it runs, or has drives, which a claim never does; then remove the claim's line from its Notes", vm.ID, vm.Host)
	}
	return fmt.Sprintf("delete that VM, on %s: qm set %[2]d --protection 0 && qm destroy %[2]d. It has no disk: nothing is lost with it", vm.Host, vm.ID)
}

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
		return State{}, fault.WithHint(fault.ClaimHeld.Refusedf("%s has the number that recast needs for its claim, and is not a claim", vm),
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

// place is where a claim is kept, one for the whole cluster. The first run creates the claim, and every run changes it
// by compare-and-swap. The errors of a place are those of an Editor: ErrNotFound, ErrExists, ErrChanged, ErrLostAnswer.
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

type formingError struct{ vm cluster.VM }

func (e *formingError) Error() string { return fmt.Sprintf("%s is being created by someone", e.vm) }

type strangeError struct{ error }

func (e *strangeError) Unwrap() error { return e.error }

func orStrange(s State, err error) (State, error) {
	if err != nil {
		err = &strangeError{err}
	}
	return s, err
}

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
	return orStrange(ofVM(vm, p.claim.Cluster))
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
	return orStrange(ofLease(l, p.claim.Cluster))
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
		return false, "", wait.Stop(r.alive(": "+s.differs(r), ". Then "+s.agree(r)))
	case r.Beat == s.seen.Beat && long:
		return false, "", wait.Stop(s.leftBy(r, fmt.Sprintf("has given no sign of life for %s%s", s.watch(), s.suspended(r, fmt.Sprintf(", and is suspended (%s)", r.Holder.GoesOn())))))
	}
	if s.ours && r.VM.ID < s.VMID {
		return false, "", wait.Stop(errYield)
	}
	return false, fmt.Sprintf("%s is held by %s", r.VM, s.watched(r, s.since)), nil
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

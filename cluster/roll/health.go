package roll

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
	"github.com/recast-sh/recast/internal/words"
)

func (n *node) healthy(ctx context.Context) (string, error) {
	mem, err := n.Memory(ctx)
	if err != nil {
		return "", err
	}
	return n.settled(ctx, func(ctx context.Context) (string, error) { return n.lacksAfterExchange(ctx, mem) })
}

func (n *node) inVain(ctx context.Context, err error) error {
	if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil || !n.Plan.Strategy.Installs() {
		return n.withUndoHint(err)
	}
	again := "recast roll waits for it again"
	if m, errNow := cluster.ReadMachine(ctx, n.Talos, n.Plan.Addr); errNow == nil && m.FromISO && m.SystemDisk != "" {
		again = "it can't boot from its new disk, on which an installation broke off"
	}
	if n.Plan.KubeSpan {
		err = fault.WithHint(err, "talosctl get affiliates, and kubespanpeerspecs on another node, show whether KubeSpan still has its old peer")
	}
	return fault.WithHint(fault.NoJoin.Of(err), "the console of VM %d and talosctl -n %s dmesg say more; %s; %s",
		n.Plan.VMID, n.Plan.Addr, again, n.wayBack())
}

func (n *node) wayBack() string {
	if n.Plan.Strategy.From() == cluster.Nowhere {
		return "recast undo " + n.Plan.Node + " says how to cancel it"
	}
	return "recast undo " + n.Plan.Node + " cancels the replacement and boots the old system disk"
}

func (n *node) isHealthy() string {
	return fmt.Sprintf("runs %s build %s and is Ready", n.Want.Build.TalosVersion, words.Short(n.Want.Build.ID))
}

func (n *node) lacksAfterExchange(ctx context.Context, mem parking.Memory) (string, error) {
	m, err := cluster.ReadArrivedWhole(ctx, n.Talos, n.Plan.Addr)
	if err != nil {
		return "", err
	}
	if lacks := n.LacksMachine(m.MachineStanding); lacks != "" {
		return lacks, nil
	}
	if m.BootID == mem.BootID && n.Plan.Strategy.From() != cluster.Halfway {
		return "still the boot from before the replacement", nil
	}
	lacks := cmp.Or(n.lacksSystem(m, mem), mem.LacksVolume(m, n.Want.AcceptLoss), stuck(m, mem.Stuck))
	if lacks = cmp.Or(lacks, mem.LacksPlace(m, n.vmToBe(mem))); lacks != "" {
		return lacks, nil
	}
	if lacks, err := n.etcd.lacks(ctx, mem); err != nil || lacks != "" {
		return lacks, err
	}
	return cluster.LacksNode(ctx, n.Kube, n.Plan.Node, m.UUID, m.BootID)
}

// stuck names the volumes that Talos can't make or find and that were not stuck before: with one of them, the
// configuration has not arrived.
func stuck(m cluster.Machine, before []cluster.VolumeStatus) string {
	return strings.Join(m.StuckVolumes(before), "; ")
}

func (n *node) lacksSystem(m cluster.Machine, mem parking.Memory) string {
	if !n.Plan.Strategy.Installs() {
		if n.Plan.Strategy.System() == cluster.SystemKept && m.Schematic.LockHash() != n.Plan.Restore.Build {
			return "runs the image of lock " + words.OrNone(words.Short(m.Schematic.LockHash()))
		}
		return n.runsFrom(m, mem, "its old system disk")
	}
	if reasons := cluster.DiffImage(n.Want.Build, m.RunningSystem, n.roller.History); len(reasons) > 0 {
		return "runs the wrong image: " + reasons[0].Text
	}
	if m.FromISO { // even if healthy: a disk on which the installer failed is reported as the system disk too
		return "it runs from its boot ISO still, not from its new disk"
	}
	return n.runsFrom(m, mem, "the new system disk")
}

func (n *node) runsFrom(m cluster.Machine, mem parking.Memory, its string) string {
	vm := n.vmToBe(mem)
	if drives, err := vm.Bootable(); err == nil {
		if disks := m.MachineDisks(vm, drives, mem.SystemKey); len(disks) == 1 && disks[0].Device == m.SystemDisk {
			return ""
		}
	}
	return fmt.Sprintf("it runs from %s, not from %s", words.OrNone(m.SystemDisk), its)
}

// sentBack ends the wait for a machine that is in maintenance mode again. If an installation fails, machined exits, and
// the machine boots its ISO again without a configuration (main.go in machined).
func (n *node) sentBack(ctx context.Context, silent error) error {
	if silent == nil || !n.Plan.Strategy.Installs() || ctx.Err() != nil {
		return silent
	}
	m, err := n.Maintenance.MaintenanceMachine(ctx, n.Plan.Addr)
	if err != nil || m.Stage != "maintenance" || m.UUID != n.Plan.UUID {
		return silent
	}
	return wait.Stop(fault.WithHint(fault.NoJoin.Of(
		fmt.Errorf("%s is in maintenance mode again: it could not install Talos from %s, and nothing is on its new disk", n.Plan.Node, n.Want.Build.Installer)),
		"check that it can fetch the installer, and read the console of VM %d; run the same command again to apply the configuration again; %s",
		n.Plan.VMID, n.wayBack()))
}

// settle waits until the node has lacked nothing for the settling time. A node that came back as
// its old system ends the wait.
func (n *node) settle(ctx context.Context, id string, within time.Duration, lacks func(context.Context) (string, error)) error {
	var since time.Time // zero while it is not healthy
	watched := true     // a watch reports when what it lacks changes
	node := func(ctx context.Context, tell func(bool)) error { return n.Kube.WatchNode(ctx, n.Plan.Node, tell) }
	w := wait.For{
		Name: fmt.Sprintf("%s healthy for %s", n.Plan.Node, n.Timing.Settle), Timeout: within + n.Timing.Settle,
		Watches: []wait.Watch{n.WatchMachine, node},
		Due: func() time.Duration {
			switch {
			case since.IsZero() && watched:
				return 0
			case since.IsZero():
				return n.Timing.Poll
			}
			return max(time.Nanosecond, n.Timing.Settle-time.Since(since))
		},
	}
	err := n.Watch(ctx, id, w, func(ctx context.Context) (bool, string, error) {
		what, err := lacks(ctx)
		watched = err != nil || cluster.IsWatched(what)
		switch {
		case errors.Is(err, errRolledBack):
			return false, "", wait.Stop(err)
		case err != nil || what != "":
			since = time.Time{}
			if n.Plan.KubeSpan && what != "" && !strings.HasPrefix(what, cluster.StandsIn) {
				what += "; " + planning.OldPeer
			}
			return false, what, n.stillOn(ctx, n.sentBack(ctx, err))
		case since.IsZero():
			since = time.Now()
		}
		return time.Since(since) >= n.Timing.Settle, cluster.Settling, nil
	})
	n.settledAt = time.Time{}
	if err == nil {
		n.settledAt = time.Now()
	}
	return n.etcd.blame(ctx, err)
}

// settled is the goal of settle: this process has seen the node settle, and has seen nothing missing since. That the
// node looks healthy now is not enough. A failed read does not revoke the result.
func (n *node) settled(ctx context.Context, lacks func(context.Context) (string, error)) (string, error) {
	switch {
	case n.settledAt.IsZero():
		return "", nil // not yet: settle waits and says why
	case wait.Elapsed(n.settledAt) < rolling.JustNow:
		return n.isHealthy(), nil
	}
	if what, err := lacks(ctx); what != "" || errors.Is(err, errRolledBack) || errors.Is(err, errOtherSystem) {
		return "", nil //nolint:nilerr // settle reports what is missing
	}
	return n.isHealthy(), nil
}

func (n *node) vmToBe(mem parking.Memory) cluster.VM {
	switch n.Plan.Strategy.System() {
	case cluster.SystemNew:
		return mem.BlankVM()
	case cluster.SystemKept:
		return mem.VMWith(cluster.SplitOptions(n.Plan.Restore.Options))
	}
	return mem.VM
}

func (n *node) waitHealthy(ctx context.Context) error {
	mem, err := n.Memory(ctx)
	if err != nil {
		return err
	}
	within := n.Timing.Join
	if n.Plan.KubeSpan {
		within += planning.PeerLasts
	}
	err = n.inVain(ctx, n.settle(ctx, "bring-up/wait-healthy", within, func(ctx context.Context) (string, error) { return n.lacksAfterExchange(ctx, mem) }))
	if err == nil {
		n.served.Tell(ctx, "bring-up/wait-healthy")
	}
	return err
}

func (n *node) waitStep(code fault.Code, healthy goal, wait func(context.Context) error) step.Step {
	title := "wait until " + n.Plan.Node + " is healthy"
	return step.Step{ID: "wait-healthy", Code: code, Title: title, Skip: healthy, Do: wait}
}

func (n *node) withUndoHint(err error) error {
	if !n.Plan.Strategy.Reshapes() {
		return err
	}
	return fault.WithHint(err, "recast undo %s gives VM %d its old settings back; or correct recast.yaml, and recast roll continues with that", n.Plan.Node, n.Plan.VMID)
}

// leaving are the nodes of a roll that were let go, until their volumes are whole again. Nodes are let
// go one after the other, so that no two go that each has the other copy of a volume.
type leaving struct {
	mu    sync.Mutex
	names []string
}

type healing struct {
	*rolling.Node
	leaving  *leaving
	LeftOpen func(error) error // adds to the error of a node that is done what else was not done
}

const (
	beforeID  = "await-storage"
	afterID   = "await-storage-again"
	ailingKey = "ailing" // key of the volumes that were not whole before the node went
)

func (n healing) applies() bool {
	return n.Plan.Strategy.From() == cluster.Serving && len(n.Plan.Stored) > 0 && n.Plan.Rebuild == "" && !n.StaysIn()
}

func (n healing) Before() []step.Step {
	if !n.applies() || n.Plan.Resume {
		return nil
	}
	return []step.Step{{ID: beforeID, Code: fault.GateClosed, Title: "check that no volume depends on " + n.Plan.Node, Yields: true, Do: n.awaitBefore}}
}

func (n healing) After() []step.Step {
	if !n.applies() || n.Plan.Strategy.VM() == cluster.VMGone {
		return nil
	}
	return []step.Step{{ID: afterID, Code: fault.GateClosed, Title: "wait until the volumes are whole with " + n.Plan.Node + " back", Yields: true, Do: n.awaitAfter}}
}

func (n healing) awaitBefore(ctx context.Context) error {
	err := n.Watch(ctx, beforeID, n.await("no volume depends on "+n.Plan.Node), func(ctx context.Context) (bool, string, error) {
		n.leaving.mu.Lock()
		defer n.leaving.mu.Unlock()
		systems, err := n.Kube.Replicas(ctx)
		if err != nil {
			return false, "", stopped(err)
		}
		if against := n.against(systems); against != "" {
			return false, against, nil
		}
		if err := n.Journal.Put(n.Key(ailingKey), replica.Ailing(systems)); err != nil {
			return false, "", wait.Stop(fmt.Errorf("journal: %w", err))
		}
		if err := n.hold(ctx, systems); err != nil {
			return false, "", wait.Stop(err)
		}
		n.leaving.names = append(n.leaving.names, n.Plan.Node)
		return true, "", nil
	})
	if err != nil && ctx.Err() == nil && fault.KindOf(err) != fault.Config {
		err = fault.WithHint(fault.As(fault.Refused, err), "%s was not touched; once its volumes have healthy copies on other nodes, run the same command again; roll.storage says at which storage systems a roll looks", n.Plan.Node)
	}
	return err
}

// against says which volumes depend on the node; "" if none does. A copy on a node that this roll has
// out, or has let go, does not count.
func (n healing) against(systems []replica.System) string {
	exposed := replica.Exposed(systems, n.Plan.Node, func(node string) bool { return n.Out.Has(node) || slices.Contains(n.leaving.names, node) })
	removes := n.Plan.Strategy.VM() == cluster.VMGone
	exposed = cluster.Where(exposed, func(e replica.Exposure) bool { return e.Refuses(removes) })
	return words.First(cluster.Each(exposed, replica.Exposure.String))
}

func (n healing) awaitAfter(ctx context.Context) error {
	var ailing []string
	if _, err := n.Journal.Get(n.Key(ailingKey), &ailing); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	checked := map[string]string{}
	err := n.Watch(ctx, afterID, n.await("volumes whole with "+n.Plan.Node), func(ctx context.Context) (bool, string, error) {
		systems, err := n.Kube.Replicas(ctx)
		if err != nil {
			return false, "", stopped(err)
		}
		lacks := replica.Unhealed(systems, n.Plan.Node, ailing)
		if lacks == "" {
			lacks = replica.Unchecked(systems, n.Plan.Node, checked)
		}
		return lacks == "", lacks, nil
	})
	if err != nil {
		err = fault.WithHint(fmt.Errorf("%s is done and takes pods, but no other node is to follow: %w", n.Plan.Node, err),
			"once the volumes are whole, recast roll continues with the next node; where that takes longer, raise roll.timeouts.storage")
	}
	if ctx.Err() == nil {
		err = errors.Join(err, n.giveBack(ctx)) // volumes that are not whole by now need other replicas
	}
	if err != nil {
		return n.LeftOpen(err)
	}
	n.leaving.mu.Lock()
	defer n.leaving.mu.Unlock()
	n.leaving.names = slices.DeleteFunc(n.leaving.names, func(name string) bool { return name == n.Plan.Node })
	return nil
}

func (n healing) await(name string) wait.For {
	w := wait.For{Name: name, Timeout: n.Timing.Heal}
	for _, system := range n.Plan.Stored {
		w.Watches = append(w.Watches, func(ctx context.Context, tell func(bool)) error { return n.Kube.WatchReplicas(ctx, system, tell) })
	}
	return w
}

// stopped ends the wait at once if only more rights help.
func stopped(err error) error {
	if fault.KindOf(err) == fault.Refused || errors.Is(err, context.Canceled) {
		return wait.Stop(err)
	}
	return err
}

// hold has the storage systems wait for the node that goes, where they would wait less than it is expected
// to be away. A node that is removed does not come back.
func (n healing) hold(ctx context.Context, systems []replica.System) error {
	if n.Plan.Strategy.VM() == cluster.VMGone {
		return nil
	}
	for _, s := range systems {
		need := s.Holding(n.Plan.Node, planning.Outage(n.Plan))
		if need == 0 {
			continue
		}
		said, err := n.Kube.HoldRebuild(ctx, s.Name, n.Plan.Node, n.Run, need)
		if err != nil {
			return err
		}
		if said != "" {
			n.Tell(beforeID, said)
		}
	}
	return nil
}

func (n healing) giveBack(ctx context.Context) error {
	holds, err := holdsOf(ctx, n.Kube)
	errs := []error{notGivenBack(err)}
	for _, h := range holds {
		if !slices.Contains(h.For(), n.Plan.Node) {
			continue
		}
		said, err := n.Kube.GiveBack(ctx, h.System, n.Plan.Node)
		if err != nil {
			errs = append(errs, notGivenBack(err))
			continue
		}
		n.Tell(afterID, said)
	}
	return errors.Join(errs...)
}

// Leftover gives back, at the end of a run, what it or an earlier one holds for nodes that are no longer
// out: a run that is killed leaves it.
type Leftover struct{ sought bool }

// Found says whether anything is held. It is not an error if that can't be read now: then GiveBack tries again.
func (l *Leftover) Found(ctx context.Context, kube replica.HoldReader) bool {
	holds, err := kube.Holds(ctx)
	l.sought = len(holds) > 0 || err != nil && fault.KindOf(err) != fault.Refused
	return len(holds) > 0
}

// GiveBack does so if Found may have found something, or there are storage systems in the plan. What is
// held for a node with our mark stays: it is out, and whichever run finishes it gives that back.
func (l *Leftover) GiveBack(ctx context.Context, kube cluster.Kube, systems bool, say func(path, text string)) error {
	if !l.sought && !systems {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, giveBackTimeout)
	defer cancel()
	holds, err := holdsOf(ctx, kube)
	errs := []error{notGivenBack(err)}
	if len(holds) == 0 {
		return errors.Join(errs...)
	}
	nodes, err := kube.Nodes(ctx)
	if err != nil {
		return notGivenBack(err)
	}
	out := func(name string) bool {
		return slices.ContainsFunc(nodes, func(k cluster.KubeNode) bool { return k.Name == name && k.Mark != nil })
	}
	for _, h := range holds {
		back := slices.DeleteFunc(h.For(), out)
		if len(back) == 0 {
			continue
		}
		said, err := kube.GiveBack(ctx, h.System, back...)
		if err != nil {
			errs = append(errs, fault.WithHint(notGivenBack(err), "by hand: %s", h.Undo))
			continue
		}
		say("roll", said)
	}
	return errors.Join(errs...)
}

// holdsOf reads what is held, of the systems that answer. The controller of one may be starting on another node.
func holdsOf(ctx context.Context, kube replica.HoldReader) (holds []replica.Hold, err error) {
	w := wait.For{Name: "read what storage systems were told", Every: 2 * time.Second, Timeout: readTimeout}
	err = wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		now, err := kube.Holds(ctx)
		if err == nil || len(now) > 0 { // the last try may have been cut off
			holds = now
		}
		return err == nil, "", stopped(err)
	})
	return holds, err
}

const (
	// giveBackTimeout limits giving back at the end of a run: a user who pressed Ctrl-C is waiting. It is longer
	// than a request waits for its answer.
	giveBackTimeout = 40 * time.Second
	readTimeout     = giveBackTimeout / 2 // leaves time to give something back
)

func notGivenBack(err error) error {
	return fault.WithHint(fault.Prefix("give back what storage systems were told", err),
		"the next recast roll or recast undo does; recast doctor says what is left")
}

// served waits for pods with volumes on iSCSI or NVMe-oF: a node with another system disk has other names, which servers
// of such volumes may not let in.
type served struct {
	*rolling.Node
	Files    cluster.FileReader
	LeftOpen func(error) error // as healing.LeftOpen
}

const (
	servedBeforeID = "await-served"
	servedAfterID  = "await-served-again"
	servedJournal  = "unscheduled" // key of the pods that no node had before the node went
)

func (n served) Before() []step.Step {
	if len(n.Plan.Initiators) == 0 || n.Plan.Resume {
		return nil
	}
	title := "check that pods have their volumes on " + strings.Join(n.Plan.Initiators, " and ")
	return []step.Step{{ID: servedBeforeID, Code: fault.GateClosed, Title: title, Yields: true, Do: n.awaitBefore}}
}

func (n served) After() []step.Step {
	if len(n.Plan.Initiators) == 0 {
		return nil
	}
	title := fmt.Sprintf("wait until pods have their volumes on %s with %s back", strings.Join(n.Plan.Initiators, " and "), n.Plan.Node)
	return []step.Step{{ID: servedAfterID, Code: fault.GateClosed, Title: title, Yields: true, Do: n.awaitAfter}}
}

func (n served) awaitBefore(ctx context.Context) error {
	err := n.await(ctx, servedBeforeID, func(users []cluster.ServedUser) (string, error) {
		var unscheduled []string
		for _, u := range users {
			switch {
			case u.Runs:
			case u.Node != "":
				return n.waits(ctx, u), nil
			default:
				unscheduled = append(unscheduled, u.Pod)
			}
		}
		return "", n.Journal.Put(n.Key(servedJournal), unscheduled)
	})
	if err != nil && ctx.Err() == nil {
		return fault.WithHint(fault.As(fault.Refused, err), "%s was not touched; once these pods run, or are deleted, run the same command again", n.Plan.Node)
	}
	return err
}

func (n served) awaitAfter(ctx context.Context) error {
	var before []string
	if _, err := n.Journal.Get(n.Key(servedJournal), &before); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	err := n.await(ctx, servedAfterID, func(users []cluster.ServedUser) (string, error) {
		for _, u := range users {
			if !u.Runs && (u.Node != "" || !slices.Contains(before, u.Pod)) {
				return n.waits(ctx, u), nil
			}
		}
		return "", nil
	})
	if err != nil && ctx.Err() == nil {
		err = fault.WithHint(fmt.Errorf("%s is done and takes pods, but no other node is to follow: %w", n.Plan.Node, err),
			"let the new name in at the server of the volumes (its list of hosts or initiators), and remove the old one; once these pods run, recast roll continues with the next node; where that takes longer, raise roll.timeouts.storage")
		return n.LeftOpen(err)
	}
	return err
}

func (n served) await(ctx context.Context, id string, lacks func([]cluster.ServedUser) (string, error)) error {
	name := "pods with volumes on " + strings.Join(n.Plan.Initiators, " and ") + " run"
	poll := n.Timing.Poll // of all pods: a person at the server of the volumes may take as long as Heal
	w := wait.For{Name: name, Timeout: n.Timing.Heal, First: poll, Every: 10 * poll}
	return n.Watch(ctx, id, w, func(ctx context.Context) (bool, string, error) {
		users, err := n.Kube.ServedUsers(ctx)
		if err != nil {
			return false, "", stopped(err)
		}
		what, err := lacks(users)
		if err != nil {
			return false, "", wait.Stop(fmt.Errorf("journal: %w", err))
		}
		return what == "", what, nil
	})
}

func (n served) waits(ctx context.Context, u cluster.ServedUser) string {
	text := fmt.Sprintf("pod %s does not run yet, with %s on %s", u.Pod, u.Volume, u.Access)
	if u.Node == "" {
		return text + ", and is on no node"
	}
	k, err := n.Kube.Node(ctx, u.Node)
	if err != nil {
		return text + ", on " + u.Node
	}
	text += fmt.Sprintf(", on %s, whose name is %s", u.Node, cmp.Or(cluster.InitiatorName(u.Access, k.MachineID), "unknown"))
	if was := n.Plan.Found.Node; u.Node == n.Plan.Node && was != nil && was.MachineID != k.MachineID {
		text += " (before: " + cmp.Or(cluster.InitiatorName(u.Access, was.MachineID), "unknown") + ")"
	}
	if u.Trouble != "" {
		text += "; it " + u.Trouble
	}
	return text
}

// Tell shows the names by which servers of volumes know the node now: those in its files, else those that follow from
// its machine-id.
func (n served) Tell(ctx context.Context, id string) {
	if len(n.Plan.Initiators) == 0 {
		return
	}
	k, _ := n.Kube.Node(ctx, n.Plan.Node) // without it the name is unknown, which is shown
	for _, protocol := range n.Plan.Initiators {
		name := cmp.Or(n.named(ctx, protocol), cluster.InitiatorName(protocol, k.MachineID), "unknown: see talosctl -n "+n.Plan.Addr.String()+" read "+cluster.InitiatorFile(protocol))
		n.Node.Tell(id, "its name for "+protocol+" is now "+name)
	}
}

// named reads a name from the machine; "" if that is impossible, for example with the role os:reader.
func (n served) named(ctx context.Context, protocol string) (name string) {
	if n.Files == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	at := cluster.InitiatorFile(protocol)
	_ = n.Files.Files(ctx, n.Plan.Addr, n.Plan.UUID, func(ctx context.Context, files cluster.MachineFiles) error { // the name is then derived
		return readName(ctx, files, at, &name)
	})
	return name
}

func readName(ctx context.Context, files cluster.MachineFiles, at string, name *string) error {
	var size int64
	dir := path.Dir(at)
	err := files.List(ctx, dir, false, func(f cluster.MachineFile) error {
		if f.Path == at {
			size = f.SizeBytes
		}
		return nil
	})
	if err != nil || size == 0 || size > 4<<10 { // no file of a name is larger
		return err
	}
	var text strings.Builder
	if err := files.Read(ctx, at, size, &text); err != nil {
		return err
	}
	for line := range strings.Lines(text.String()) {
		line = strings.TrimSpace(strings.TrimPrefix(line, "InitiatorName="))
		if strings.HasPrefix(line, "iqn.") || strings.HasPrefix(line, "nqn.") {
			*name = line
		}
	}
	return nil
}

type serving struct {
	*rolling.Node
}

func (n serving) Steps() []step.Step {
	var steps []step.Step
	changes := len(n.Plan.VM.At(shape.Live))
	if to := n.Plan.VM.Moves(shape.Live); to != "" {
		steps, changes = append(steps, n.migrate(to)), changes-1
	}
	if changes > 0 {
		steps = append(steps, n.Reshape())
	}
	return steps
}

func (n serving) Reshape() step.Step {
	const id = "reshape-live"
	return step.Step{
		ID: id, Title: "change of the VM what needs no stop", Risk: step.Disruptive,
		Skip: func(ctx context.Context) (string, error) {
			if lacks, err := n.Running().Lacks(ctx); err != nil || lacks != "" {
				return "", err
			}
			return "the VM is as wanted, and the node sees its disks", nil
		},
		Do: func(ctx context.Context) error {
			if err := n.Running().Apply(ctx, func(text string) { n.Tell(id, text) }); err != nil {
				return err
			}
			err := n.Wait(ctx, id, n.Plan.Node+" sees its VM as it is now", n.Timing.Try, func(ctx context.Context) (bool, string, error) {
				lacks, err := n.Running().Lacks(ctx)
				return err == nil && lacks == "", lacks, err
			})
			return fault.WithHint(err, "what was changed of VM %d stays; talosctl -n %s get disks shows what the node sees", n.Plan.VMID, n.Plan.Addr)
		},
	}
}

func (n serving) Running() shape.Running {
	return shape.Running{
		Proxmox: n.Proxmox, VMID: n.Plan.VMID, Shape: n.Want.Shape,
		Machine: func(ctx context.Context) (cluster.Machine, error) {
			return cluster.ReadMachine(ctx, n.Talos, n.Plan.Addr)
		},
	}
}

// Finished says whether nothing of the plan is left to change; what recast does not change does not count.
func (n serving) Finished(ctx context.Context) (bool, error) {
	vm, ds, err := n.Running().Now(ctx)
	for _, w := range []shape.When{shape.Live, shape.Off} {
		if to := n.Plan.VM.Moves(w); to != "" && vm.Host != to {
			return false, err
		}
	}
	return err == nil && len(ds) == len(ds.At(shape.Never)), err
}

const migrateStep = "migrate"

// migrate moves the VM to another host while it runs. A request that Proxmox carries out late needs no
// record: it copies no disk, and every step of an exchange sees that the VM is on another host.
func (n serving) migrate(to string) step.Step {
	return step.Step{
		ID: migrateStep, Title: fmt.Sprintf("migrate VM %d to %s while it runs", n.Plan.VMID, to), Risk: step.Disruptive,
		Skip: func(ctx context.Context) (string, error) {
			vm, err := n.Proxmox.VM(ctx, n.Plan.VMID)
			if err != nil || vm.Host != to || vm.Lock != "" {
				return "", fault.Prefix(fmt.Sprintf("look up VM %d", n.Plan.VMID), err)
			}
			if lacks, err := n.lacks(ctx, vm, ""); err != nil || lacks != "" {
				return "", nil //nolint:nilerr // the step waits, and says for what
			}
			return fmt.Sprintf("VM %d runs on %s", vm.ID, to), nil
		},
		Do: func(ctx context.Context) error { return n.moveTo(ctx, to) },
	}
}

func (n serving) moveTo(ctx context.Context, to string) error {
	m, err := cluster.ReadBooted(ctx, n.Talos, n.Plan.Addr)
	if err != nil {
		return fmt.Errorf("read machine %s: %w", n.Plan.Addr, err)
	}
	vm, err := n.migratable(ctx, to)
	if err != nil {
		return err
	}
	if vm.Host != to {
		n.Tell(migrateStep, fmt.Sprintf("Proxmox migrates it from %s to %s", vm.Host, to))
		if err := n.Proxmox.Migrate(ctx, vm, to); err != nil {
			return fault.WithHint(fmt.Errorf("migrate %s to %s: %w", vm, to, err),
				"nothing else was done to %s; without nodes[].host it stays where it is", n.Plan.Node)
		}
	}
	return n.Wait(ctx, migrateStep, fmt.Sprintf("%s serves from %s", n.Plan.Node, to), n.Timing.Join, func(ctx context.Context) (bool, string, error) {
		vm, err := n.Proxmox.VM(ctx, n.Plan.VMID)
		if err != nil || vm.Host != to || vm.Lock != "" {
			return false, strings.TrimSuffix(fmt.Sprintf("%s, locked (%s)", vm, vm.Lock), ", locked ()"), err
		}
		lacks, err := n.lacks(ctx, vm, m.BootID)
		return err == nil && lacks == "", lacks, err
	})
}

func (n serving) migratable(ctx context.Context, to string) (cluster.VM, error) {
	if err := n.RequireUnchanged(ctx); err != nil {
		return cluster.VM{}, err
	}
	vm, err := n.Proxmox.VM(ctx, n.Plan.VMID)
	if err != nil || vm.Host == to {
		return vm, fault.Prefix(fmt.Sprintf("look up VM %d", n.Plan.VMID), err)
	}
	if vm.Lock != "" {
		return vm, fault.VMLocked.Refusedf("%s is locked (%s)", vm, vm.Lock)
	}
	if err := cluster.RequireQuorum(ctx, n.Proxmox); err != nil {
		return vm, err
	}
	return vm, shape.RequireMigratable(ctx, n.Proxmox, vm, to, shape.Live)
}

// lacks says why the node does not serve from where its VM is; boot is the one that it must still be in,
// "" if any will do.
func (n serving) lacks(ctx context.Context, vm cluster.VM, boot string) (string, error) {
	switch {
	case vm.UUID() != n.Plan.UUID:
		return "", wait.Stop(fault.UUIDMismatch.Refusedf("%s has UUID %s: it is not the VM that was planned (UUID %s)", vm, vm.UUID(), n.Plan.UUID))
	case !vm.Running || vm.QMP != "running":
		return vm.String() + " does not run", nil
	}
	m, lacks, err := n.Arrived(ctx)
	switch {
	case err != nil || lacks != "":
		return lacks, err
	case boot != "" && m.BootID != boot:
		return "", wait.Stop(fmt.Errorf("%s was restarted while it was migrated", n.Plan.Node))
	}
	return cluster.LacksNode(ctx, n.Kube, n.Plan.Node, n.Plan.UUID, m.BootID)
}

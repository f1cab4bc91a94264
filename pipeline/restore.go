package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline/past"
)

// RestoreOptions are the options of Restore.
type RestoreOptions struct {
	File, Node string
	Copied     bool // File was copied from a member's data directory and has no checksum
	Confirm    func(RestoreReport) (bool, error)
	Claim      RollOptions // as for a roll: RunID, JournalSync, Holder, Dead
}

// RestoreReport is what a restore will do, or did.
type RestoreReport struct {
	Run string `json:"run,omitempty"` // "" if nothing was started
	etcd.Target
	VM       string        `json:"vm"`
	File     string        `json:"file"`
	Snapshot etcd.Snapshot `json:"snapshot"`
	Warnings []string      `json:"warnings,omitempty"`
	Resumes  bool          `json:"resumes"` // an earlier run has started it
	// Bootstrapped is when an earlier run made Talos bootstrap: then this run only waits for the rest.
	Bootstrapped time.Time `json:"bootstrapped,omitzero"`
	Started      time.Time `json:"started"`
	Ended        time.Time `json:"ended"`
	Outcome      string    `json:"outcome,omitempty"`
	Afterwards   []string  `json:"afterwards,omitempty"` // what a person still has to do
}

// begunRestore identifies a restore that was started.
type begunRestore struct {
	UUID, SHA256 string
	Bootstrapped time.Time // right before the request to Talos: etcd data is from then; zero: not yet
}

// Restore restores etcd of the only control plane from a snapshot:
// verify → find the machine → claim → confirm → upload → bootstrap → wait.
// It never touches an etcd that has data, unless an unfinished restore of the
// same snapshot put it there.
func Restore(ctx context.Context, p Project, m Machines, run *step.Runner, o RestoreOptions) (rep RestoreReport, err error) {
	if !slices.Contains(nodeNames(p.Config), o.Node) {
		return rep, fault.WithHint(fault.Configf("no node %q", o.Node), "the nodes are: %s", strings.Join(nodeNames(p.Config), ", "))
	}
	rep = RestoreReport{Target: etcd.Target{Node: o.Node}, File: o.File, Started: time.Now()}
	if rep.Snapshot, err = ReadSnapshot(ctx, o); err != nil {
		return rep, err
	}
	w := newWork(p, m, run, o.Claim, "")
	w.restores = true
	_, err = w.end(ctx, func() error {
		if err := w.settle(ctx); err != nil {
			return err
		}
		host, err := w.findTarget(ctx, &rep)
		if err != nil {
			return err
		}
		begun, others, err := w.begunRestores(&rep)
		if err != nil {
			return err
		}
		if rep.Data && rep.Bootstrapped.IsZero() {
			return fault.WithHint(fault.EtcdSnapshot.Refusedf("%s has etcd data already: it is never overwritten", o.Node),
				"if a restore from another machine put it there, you only have to wait. To go back to the snapshot on purpose, save what it has now (recast backup, or talosctl etcd snapshot), then wipe it: "+
					etcd.WipeByReset+", which also wipes whatever else that volume holds")
		}
		if err := w.claim.take(ctx, host, w.rep.Plan); err != nil {
			return err
		}
		ok, err := o.Confirm(rep)
		if err != nil {
			return err
		}
		if !ok {
			return fault.NotConfirmed.Of(fault.As(fault.Interrupted, errors.New("not confirmed; nothing was restored")))
		}
		if err := w.giveUpRestores(others); err != nil {
			return err
		}
		rep.Run = cmp.Or(begun, w.claim.id)
		return w.restore(ctx, &rep, o)
	})
	rep.Ended, rep.Outcome = time.Now(), outcome(err)
	return rep, err
}

// ReadSnapshot verifies a snapshot for a node, which must have been a member of that etcd.
func ReadSnapshot(ctx context.Context, o RestoreOptions) (etcd.Snapshot, error) {
	snap, err := etcd.ReadSnapshot(ctx, o.File, o.Copied)
	switch {
	case isLocal(err):
		return snap, fault.As(fault.Config, err)
	case err != nil:
		return snap, fault.WithHint(fault.EtcdSnapshot.Refusedf("%s: %w", o.File, err), "use another one; --copied accepts a copy of member/snap/db, which has no checksum")
	case !slices.Contains(snap.Members, o.Node):
		return snap, fault.WithHint(fault.EtcdSnapshot.Refusedf("%s is from an etcd with the members %s: %s is not one of them", o.File, strings.Join(snap.Members, ", "), o.Node),
			"is it a snapshot of another cluster? Its keys would not match this cluster's machines")
	}
	return snap, nil
}

func isLocal(err error) bool {
	_, local := errors.AsType[*fs.PathError](err)
	return local
}

// elsewhere warns about a snapshot that may be from another cluster: its member of that name had another address.
func elsewhere(rep RestoreReport) []string {
	peers := rep.Snapshot.Peers[rep.Node]
	for _, peer := range peers {
		if u, err := url.Parse(peer); err == nil && u.Hostname() == rep.Addr.String() {
			return nil
		}
	}
	return []string{fmt.Sprintf("when the snapshot was taken, %s was at %s; now it is at %s: is it from this cluster?", rep.Node, strings.Join(peers, ", "), rep.Addr)}
}

// findTarget finds the machine and its VM. host is the VM's host.
func (w *work) findTarget(ctx context.Context, rep *RestoreReport) (host string, err error) {
	ask, err := w.machines.Talos.Endpoints(ctx)
	if err != nil {
		return "", err
	}
	if rep.Target, err = etcd.FindTarget(ctx, w.machines.Talos, w.machines.Files, ask, rep.Node, nodeNames(w.Config)); err != nil {
		return "", err
	}
	rep.Warnings = elsewhere(*rep)
	vms, away, err := readable(ctx, w.Project, w.machines.Proxmox)
	switch {
	case err != nil:
		return "", err
	case away != nil:
		return "", fault.As(fault.Refused, away)
	}
	parkings, err := parking.Parkings(vms, w.Config.Cluster)
	if err != nil {
		return "", err
	}
	if slices.ContainsFunc(parkings, func(p parking.Parking) bool { return p.Record.Open && p.Record.Node == rep.Node }) {
		return "", fault.WithHint(fault.ParkedHalf.Refusedf("the replacement of %s is not finished", rep.Node), "recast status shows what finishes it; restore afterwards. If it waits for an etcd whose data is lost: talosctl bootstrap --recover-from FILE, then recast roll")
	}
	var found []cluster.VM
	for _, vm := range vms {
		if vm.UUID() == rep.UUID {
			found = append(found, vm)
		}
	}
	i := slices.IndexFunc(w.Config.Nodes, func(n config.Node) bool { return n.Name == rep.Node })
	switch id := cluster.VMID(w.Config.Nodes[i].VMID); {
	case len(found) != 1:
		return "", fault.UUIDMismatch.Refusedf("%d VMs have the SMBIOS UUID %s of the machine that answers as %s, not one", len(found), rep.UUID, rep.Node)
	case id != 0 && found[0].ID != id:
		return "", fault.UUIDMismatch.Refusedf("the machine that answers as %s is %s, not VM %d as configured", rep.Node, found[0], id)
	}
	rep.VM = found[0].String()
	return found[0].Host, nil
}

// begunRestores finds unfinished restores on this machine: the one of this snapshot, "" if
// there is none, and others.
func (w *work) begunRestores(rep *RestoreReport) (run string, others []string, err error) {
	runs, err := journal.Unfinished(w.Runs().Dir)
	if err != nil {
		return "", nil, err
	}
	for _, r := range runs {
		j, err := journal.Open(w.Runs().Dir, journal.Options{Run: r.ID, ReadOnly: true})
		if err != nil {
			return "", nil, err
		}
		var begun begunRestore
		_, err = j.Get(past.RestoreKey, &begun)
		if err := errors.Join(err, j.Close()); err != nil {
			return "", nil, err
		}
		switch {
		case begun.UUID != rep.UUID:
		case begun.SHA256 != rep.Snapshot.SHA256:
			others = append(others, r.ID)
		default:
			run, rep.Resumes = r.ID, true
			if rep.Data {
				rep.Bootstrapped = begun.Bootstrapped
			}
		}
	}
	return run, others, nil
}

// restore carries it out. The journal is finished only at the end.
func (w *work) restore(ctx context.Context, rep *RestoreReport, o RestoreOptions) error {
	j, err := journal.Open(w.Runs().Dir, journal.Options{Run: rep.Run, Sync: o.Claim.JournalSync})
	if err != nil {
		return err
	}
	defer j.Close()
	o.Claim.began(j)
	begun := begunRestore{UUID: rep.UUID, SHA256: rep.Snapshot.SHA256, Bootstrapped: rep.Bootstrapped}
	if err := j.Put(past.RestoreKey, begun); err != nil {
		return err
	}
	r := &etcd.Restore{
		Begin: etcd.Begin{
			Talos: w.claim.held.GuardTalos(w.machines.Talos), Target: rep.Target, File: o.File, Copied: o.Copied, Timing: timing(w.Config),
			Above: "restore", Say: w.run.Note, Failed: "correct what it says, or take another snapshot, and run the same command again",
			Bootstraps: func() error {
				begun.Bootstrapped = time.Now().UTC()
				return j.Put(past.RestoreKey, begun)
			},
		},
		Kube: w.machines.Kube, Left: func(text string) { rep.Afterwards = append(rep.Afterwards, text) },
	}
	w.began = true
	within, done := w.claim.whileHeld(ctx)
	defer done()
	if err := w.run.Run(within, r.Steps()); err != nil {
		return err
	}
	rep.Afterwards = append(rep.Afterwards, etcd.AfterRestore)
	return j.Finish("done")
}

// giveUpRestores finishes the journals of earlier restores, whose etcd data is replaced by
// this one.
func (w *work) giveUpRestores(runs []string) error {
	for _, run := range runs {
		j, err := journal.Open(w.Runs().Dir, journal.Options{Run: run})
		if err != nil {
			return err
		}
		if err := errors.Join(j.Finish("given up: another snapshot was restored"), j.Close()); err != nil {
			return err
		}
	}
	return nil
}

package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/kubeupgrade"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline/past"
	"github.com/recast-sh/recast/schematics"
)

type UpgradeKubernetesOptions struct {
	To      string // "": kubernetes.version of the configuration
	DryRun  bool   // only make the plan; change nothing, and do not take the claim
	Confirm func(kubeupgrade.Plan) (bool, error)
	Claim   RollOptions // as for a roll: RunID, JournalSync, Holder, Dead
}

// UpgradeKubernetesReport is what an upgrade of Kubernetes did.
type UpgradeKubernetesReport struct {
	Run     string           `json:"run,omitempty"` // "" if nothing was started
	Started time.Time        `json:"started"`
	Ended   time.Time        `json:"ended"`
	Plan    kubeupgrade.Plan `json:"plan"`
	DryRun  bool             `json:"dryRun,omitempty"`
	Outcome string           `json:"outcome"` // as in a roll
	Unsent  []string         `json:"unsent,omitempty"`
}

// UpgradeKubernetes upgrades Kubernetes on every node that Kubernetes knows:
// observe → plan → claim → confirm → plan again → check → pull → component by component.
// After an interruption, nodes may have two versions; the next UpgradeKubernetes continues.
func UpgradeKubernetes(ctx context.Context, p Project, m Machines, run *step.Runner, o UpgradeKubernetesOptions) (rep UpgradeKubernetesReport, err error) {
	rep = UpgradeKubernetesReport{Started: time.Now(), DryRun: o.DryRun, Outcome: "nothing to do"}
	o.To = cmp.Or(o.To, p.Config.Kubernetes.Version)
	if o.To == "" {
		return rep, fault.WithHint(fault.Configf("no Kubernetes version is given"), "recast upgrade-k8s --to v1.35.4, or kubernetes.version in recast.yaml")
	}
	if err := cluster.CheckKubernetesVersion(o.To); err != nil {
		return rep, err
	}
	w := newWork(p, m, run, o.Claim, past.UpgradeKey)
	w.rep.Started = rep.Started
	if o.DryRun {
		w.command = "" // no notices are sent
	}
	done, err := w.end(ctx, func() error { return w.upgradeKubernetes(ctx, &rep, o) })
	rep.Unsent = done.Unsent
	rep.Ended = time.Now()
	if err != nil {
		rep.Outcome = outcome(err)
	}
	return rep, err
}

func (w *work) upgradeKubernetes(ctx context.Context, rep *UpgradeKubernetesReport, o UpgradeKubernetesOptions) error {
	if !o.DryRun {
		if err := w.settle(ctx); err != nil {
			return err
		}
	}
	if w.claim.held != nil { // the claim of a killed run, which may have left the only API server restarting
		if err := kubeupgrade.Await(ctx, w.machines.Kube, timing(w.Config), func(text string) { w.run.Note(past.UpgradeKey, text) }); err != nil {
			return err
		}
	}
	plan, host, err := w.planUpgrade(ctx, o.To)
	if err != nil {
		return err
	}
	rep.Plan = plan
	if o.DryRun || !rep.Plan.Work() && len(rep.Plan.Refused) == 0 {
		return refusedPlan(rep.Plan)
	}
	if err := errors.Join(refusedPlan(rep.Plan), survey.NeedsToUpgradeKubernetes(host).Check(ctx, w.machines.Proxmox)); err != nil {
		return err
	}
	if err := cluster.RequireQuorum(ctx, w.machines.Proxmox); err != nil {
		return err
	}
	if err := w.claim.take(ctx, host, w.rep.Plan); err != nil {
		return err
	}
	if err := confirm(o.Confirm, rep.Plan, "not confirmed; Kubernetes was not changed"); err != nil {
		return err
	}
	if plan, err = w.planUpgradeAgain(ctx, rep.Plan); err != nil {
		return err
	}
	rep.Run, w.rep.Run, w.began = w.claim.id, w.claim.id, true
	w.tellStart(ctx)
	err = w.carryUpgradeOut(ctx, plan)
	if err == nil {
		rep.Outcome = "done"
	}
	return err
}

// planUpgrade makes a plan from the current state, and returns where to create the claim.
func (w *work) planUpgrade(ctx context.Context, to string) (plan kubeupgrade.Plan, host string, err error) {
	seen, err := observation(ctx, w.Project, Sources(w.Project, w.machines), w.Wanted(schematics.Lock{}), "", "")
	if err != nil {
		return plan, "", err
	}
	kubernetes, err := kubeupgrade.Observe(ctx, w.machines.Talos, w.machines.Kube, seen, to)
	if err != nil {
		return plan, "", err
	}
	if plan, err = kubeupgrade.NewPlan(w.Config.Cluster, to, kubernetes); err != nil || len(plan.Refused) > 0 {
		return plan, hostOf(seen), err
	}
	plan.Refused, err = plan.Foresee(ctx, w.machines.Talos, w.machines.Maintenance, w.machines.Kube)
	return plan, hostOf(seen), err
}

// planUpgradeAgain makes the plan that is carried out: under the claim, and after the answer,
// which may have taken hours. It refuses a plan that differs from the one shown.
func (w *work) planUpgradeAgain(ctx context.Context, shown kubeupgrade.Plan) (kubeupgrade.Plan, error) {
	plan, _, err := w.planUpgrade(ctx, shown.To)
	if err != nil {
		return plan, err
	}
	return plan, plan.RequireSame(shown)
}

// refusedPlan is the error of a plan that can't be carried out; nil if it can.
func refusedPlan(p kubeupgrade.Plan) error {
	if len(p.Refused) == 0 {
		return nil
	}
	return fault.KubernetesUpgrade.Refusedf("Kubernetes can't be brought to %s:\n  %s", p.To, strings.Join(p.Refused, "\n  "))
}

// hostOf is the host for the claim's VM: that of one of the nodes.
func hostOf(o observe.Observation) string {
	f, _ := cluster.Find(o.Found, func(f observe.Found) bool { return f.Host() != "" })
	return f.Host()
}

func (w *work) carryUpgradeOut(ctx context.Context, plan kubeupgrade.Plan) error {
	if err := w.finishUpgrades(); err != nil {
		return err
	}
	j, err := journal.Open(w.Runs().Dir, journal.Options{Run: w.claim.id, Sync: w.o.JournalSync})
	if err != nil {
		return err
	}
	defer j.Close()
	w.o.began(j)
	if err := j.Put(past.UpgradeKey, plan); err != nil {
		return err
	}
	u := &kubeupgrade.Upgrade{
		Talos: w.claim.held.GuardTalos(w.machines.Talos), Maintenance: w.claim.held.GuardMaintenance(w.machines.Maintenance), Kube: w.claim.held.GuardKube(w.machines.Kube),
		Plan: plan, Timing: timing(w.Config), Say: w.run.Note,
	}
	within, done := w.claim.whileHeld(ctx)
	defer done()
	err = w.claim.judged(w.run.Run(within, u.Steps()))
	return errors.Join(err, j.Finish(outcome(err)))
}

// finishUpgrades finishes the journals of killed upgrades, which this upgrade continues.
func (w *work) finishUpgrades() error {
	runs, err := journal.Unfinished(w.Runs().Dir)
	if err != nil {
		return err
	}
	for _, r := range runs {
		if err := w.finishUpgrade(r.ID); err != nil {
			return err
		}
	}
	return nil
}

func (w *work) finishUpgrade(run string) error {
	j, err := journal.Open(w.Runs().Dir, journal.Options{Run: run, Sync: w.o.JournalSync})
	if err != nil {
		return err
	}
	defer j.Close()
	var plan kubeupgrade.Plan
	found, err := j.Get(past.UpgradeKey, &plan)
	if err != nil || !found {
		return err
	}
	return j.Finish("interrupted: run " + w.claim.id + " continued it")
}

// EtcdSource reads backups of etcd.
type EtcdSource interface {
	cluster.EtcdReader
	Endpointer
}

// Endpointer knows the talosconfig's endpoints.
type Endpointer interface {
	// Endpoints returns their addresses, in the talosconfig's order.
	Endpoints(ctx context.Context) ([]netip.Addr, error)
}

// BackupOptions say where a backup goes.
type BackupOptions struct {
	To   string // a directory, or a file that does not exist; "": roll.etcdSnapshot
	Keep int    // how many backups of this cluster to keep in the directory; 0: all
}

// BackupResult is a backup that was taken.
type BackupResult struct {
	etcd.Backup
	Removed []string `json:"removed,omitempty"` // older backups
}

// Backup saves a snapshot of etcd. It changes nothing in the cluster, and needs only a
// talosconfig with the role os:etcd:backup.
func Backup(ctx context.Context, p Project, src EtcdSource, o BackupOptions, say func(string)) (BackupResult, error) {
	file, dir, err := backupFile(p.Config, o, time.Now())
	if err != nil {
		return BackupResult{}, err
	}
	ask, err := src.Endpoints(ctx)
	if err != nil {
		return BackupResult{}, err
	}
	if below, err := filepath.Rel(p.State(), file); err == nil && filepath.IsLocal(below) {
		if err := journal.KeepOutOfGit(p.State()); err != nil {
			return BackupResult{}, err
		}
	}
	b, err := etcd.BackUp(ctx, src, ask, file, say)
	if err != nil {
		return BackupResult{}, err
	}
	res := BackupResult{Backup: b}
	if o.Keep > 0 {
		res.Removed, err = removeBackups(p.Config, dir, filepath.Base(file), o.Keep)
	}
	return res, err
}

// backupTime is the format of the time in the name of a backup, in UTC.
const backupTime = "20060102T150405Z"

// backupFile returns the file of a backup, and its directory if recast chooses the name.
func backupFile(c *config.Config, o BackupOptions, now time.Time) (file, dir string, err error) {
	to := cmp.Or(o.To, c.Roll.EtcdSnapshot)
	info, err := os.Stat(to)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", "", fault.As(fault.Config, err)
	case err == nil && info.IsDir(), err != nil && (o.To == "" || strings.HasSuffix(o.To, string(filepath.Separator))):
		file = filepath.Join(to, "etcd-"+c.Cluster+"-"+now.UTC().Format(backupTime)+".db")
		if _, err := os.Lstat(file); err != nil {
			return file, to, nil
		}
	case o.Keep > 0:
		return "", "", fault.WithHint(fault.Configf("%s is a file, and --keep needs a directory", to), "--to DIR/ with --keep")
	case err != nil:
		return to, "", nil
	default:
		file = to
	}
	return "", "", fault.WithHint(fault.Configf("%s exists already, and a backup is never overwritten", file), "name another file with --to, or a directory")
}

// removeBackups removes all but the newest keep of this cluster's backups. The backup just taken always counts as
// newest: another backup's name may have a later time.
func removeBackups(c *config.Config, dir, taken string, keep int) (removed []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	older := cluster.Where(entries, func(e os.DirEntry) bool { return isBackup(c, e) && e.Name() != taken })
	names := cluster.Each(older, os.DirEntry.Name)
	slices.Sort(names)
	var problems []error
	for _, name := range names[:max(0, len(names)-(keep-1))] {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			problems = append(problems, fmt.Errorf("remove an older backup: %w", err))
			continue
		}
		removed = append(removed, name)
	}
	return removed, errors.Join(problems...)
}

// isBackup says whether a file is a backup of this cluster; snapshots of rolls are not.
func isBackup(c *config.Config, e fs.DirEntry) bool {
	rest, ours := strings.CutPrefix(e.Name(), "etcd-"+c.Cluster+"-")
	taken, ours2 := strings.CutSuffix(rest, ".db")
	_, err := time.Parse(backupTime, taken)
	return ours && ours2 && err == nil && e.Type().IsRegular()
}

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

type begunRestore struct {
	UUID, SHA256 string
	Bootstrapped time.Time // right before the request to Talos: etcd data is from then; zero: not yet
}

// Restore restores etcd of the only control plane from a snapshot: verify → find the machine → claim → confirm → upload
// → bootstrap → wait. It never touches an etcd that has data, unless an unfinished restore of the same snapshot put it
// there.
func Restore(ctx context.Context, p Project, m Machines, run *step.Runner, o RestoreOptions) (rep RestoreReport, err error) {
	if err := p.RequireNodes(o.Node); err != nil {
		return rep, err
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
		if err := confirm(o.Confirm, rep, "not confirmed; nothing was restored"); err != nil {
			return err
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
	_, local := errors.AsType[*fs.PathError](err)
	switch {
	case local:
		return snap, fault.As(fault.Config, err)
	case err != nil:
		return snap, fault.WithHint(fault.EtcdSnapshot.Refusedf("%s: %w", o.File, err), "use another one; --copied accepts a copy of member/snap/db, which has no checksum")
	case !slices.ContainsFunc(snap.Members, func(m string) bool { return cluster.IsMember(m, o.Node) }):
		return snap, fault.WithHint(fault.EtcdSnapshot.Refusedf("%s is from an etcd with the members %s: %s is not one of them", o.File, strings.Join(snap.Members, ", "), o.Node),
			"is it a snapshot of another cluster? Its keys would not match this cluster's machines")
	}
	return snap, nil
}

// elsewhere warns about a snapshot that may be from another cluster: its member with the node's name had another
// address.
func elsewhere(rep RestoreReport) []string {
	var peers []string
	for name, at := range rep.Snapshot.Peers {
		if cluster.IsMember(name, rep.Node) {
			peers = at
		}
	}
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
	found := cluster.Where(vms, func(vm cluster.VM) bool { return vm.UUID() == rep.UUID })
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

// begunRestores finds unfinished restores of the same machine in the journals here: run restores the same snapshot,
// "" if there is none; others restore other snapshots.
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

// restore carries out the restore. It finishes the journal only at the end.
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

// giveUpRestores finishes the journals of earlier restores, whose etcd data this restore replaces.
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

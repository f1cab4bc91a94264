package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/bootimage"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/pipeline/past"
	"github.com/recast-sh/recast/schematics"
)

// Plan returns what a roll would do now; rehearse is RollOptions.Rehearse. It changes nothing.
func Plan(ctx context.Context, p Project, m Machines, policy planning.Policy, rehearse *bool) (planning.Plan, error) {
	lock, err := p.Lock()
	if err != nil {
		return planning.Plan{}, err
	}
	policy.Rehearse = rehearsal(p, rehearse)
	return makePlan(ctx, p, m, lock, policy)
}

func makePlan(ctx context.Context, p Project, m Machines, lock schematics.Lock, policy planning.Policy) (planning.Plan, error) {
	past, err := p.History(lock)
	if err != nil {
		return planning.Plan{}, err
	}
	src := Sources(p, m)
	src.Past = past
	plan, _, err := planSeen(ctx, p, m, src, lock, past, policy)
	return plan, err
}

// planSeen also returns the observation that the plan is based on.
func planSeen(ctx context.Context, p Project, m Machines, src observe.Sources, lock schematics.Lock, past cluster.History, policy planning.Policy) (planning.Plan, observe.Observation, error) {
	wanted := p.Wanted(lock)
	first, err := toBegin(ctx, m, policy)
	if err != nil {
		return planning.Plan{}, observe.Observation{}, err
	}
	o, err := observation(ctx, p, src, wanted, first, policy.Rebuild)
	if err != nil {
		return planning.Plan{}, o, err
	}
	if slices.ContainsFunc(wanted, func(w cluster.Wanted) bool { return w.Surge }) && policy.Bootstrap == "" {
		if policy.Reach, err = m.Talos.Endpoints(ctx); err != nil {
			return planning.Plan{}, o, err
		}
	}
	if err := p.dropUnusable(ctx, m.Store, wanted, o); err != nil {
		return planning.Plan{}, o, err
	}
	var errTook error
	o.Took, errTook = story.Durations(p.Runs().Dir)
	plan, err := planning.New(p.Config.Cluster, wanted, o, past, p.Policy(policy))
	if errTook != nil {
		plan.Warn = append(plan.Warn, "durations of earlier rolls can't be read, so defaults are used: "+errTook.Error())
	}
	plan.Warn = append(plan.Warn, o.UnknownStorages("images.iso.storage", p.Config.Images.ISO.Storage)...)
	plan.Warn = append(plan.Warn, o.UnknownStorages("images.disk.storage", p.Config.Images.Disk.Storage)...)
	plan.Warn = append(plan.Warn, cluster.Each(parking.NotOurs(o.VMs, p.Config.Cluster), parking.Unproven.String)...)
	if p.Config.Proxmox.Publish.Verify == config.VerifyWarn {
		plan.Warn = append(plan.Warn, "boot ISOs and disk images of the right name and size are taken unseen where Proxmox may not compare them: whoever may write to their storages chooses what boots (proxmox.publish.verify: warn)")
	}
	plan.Gates, plan.Hooks = p.Gates(), p.Hooks()
	if policy.Bootstrap != "" && len(plan.Gates) > 0 {
		plan.Gates = nil
		plan.Warn = append(plan.Warn, "roll.gates are not asked: there is nothing yet that they could protect")
	}
	plan.Seal(lock.Pinned(), p.Config.Hash())
	return plan, o, err
}

// toBegin is the control plane with which a bootstrap begins the cluster; "" if there is a cluster.
func toBegin(ctx context.Context, m Machines, policy planning.Policy) (string, error) {
	if policy.Bootstrap == "" {
		return "", nil
	}
	_, err := m.Kube.Nodes(ctx)
	switch {
	case err == nil:
		return "", nil
	case cluster.IsUnanswered(err):
		return policy.Bootstrap, ctx.Err()
	}
	return "", fmt.Errorf("see whether there is a cluster already: %w", err)
}

// DriftResult is the drift of every node.
type DriftResult struct {
	Cluster string          `json:"cluster"`
	InSync  bool            `json:"inSync"` // every node was read and matches the lock, and no changed setting of a storage system is left over
	Unread  int             `json:"unread"` // nodes that could not be read
	Stale   int             `json:"stale"`
	Nodes   []observe.Drift `json:"nodes"`
	// Unlisted are nodes that the cluster has and neither recast.yaml nor roll.ignoreNodes names, sorted. They are not counted.
	Unlisted []string `json:"unlisted,omitempty"`
	// Held is what recast has set in storage systems while nodes are away.
	Held       []HeldBack `json:"held,omitempty"`
	HeldLeft   bool       `json:"heldLeft,omitempty"`   // there are such settings, and no run is active
	HeldUnread string     `json:"heldUnread,omitempty"` // why the settings could not be read; "": no error
}

// Drift compares every node with the lock. It changes nothing.
func Drift(ctx context.Context, p Project, m Machines) (DriftResult, error) {
	lock, err := p.Lock()
	if err != nil {
		return DriftResult{}, err
	}
	res, _, err := drift(ctx, p, m, lock)
	return res, err
}

// drift also returns the nodes that were found, in the order of the result.
func drift(ctx context.Context, p Project, m Machines, lock schematics.Lock) (DriftResult, []observe.Found, error) {
	past, err := p.History(lock)
	if err != nil {
		return DriftResult{}, nil, err
	}
	wanted := p.Wanted(lock)
	o, err := observe.ObserveDrift(ctx, Sources(p, m), wanted)
	if err != nil {
		return DriftResult{}, nil, err
	}
	res := DriftResult{Cluster: p.Config.Cluster}
	for i, w := range wanted {
		res.Nodes = append(res.Nodes, observe.Diff(w, o.Found[i], past))
	}
	for _, k := range o.Nodes {
		if slices.ContainsFunc(wanted, func(w cluster.Wanted) bool { return w.Name == k.Name }) || slices.Contains(p.Config.Roll.IgnoreNodes, k.Name) {
			continue
		}
		res.Unlisted = append(res.Unlisted, k.Name)
	}
	slices.Sort(res.Unlisted)
	err = res.held(ctx, p, m, o.VMs)
	res.count()
	return res, o.Found, err
}

func (r *DriftResult) count() {
	r.Unread, r.Stale = 0, 0
	for _, d := range r.Nodes {
		if len(d.Unread) > 0 {
			r.Unread++
		}
		if d.Stale {
			r.Stale++
		}
	}
	r.InSync = r.Unread == 0 && r.Stale == 0 && !r.HeldLeft
}

// ReadPlan reads a plan file that recast plan -o json has written.
func ReadPlan(file string) (*planning.Plan, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fault.WithHint(fault.Configf("read the plan: %w", err), "recast plan -o json > %s writes one", file)
	}
	plan, err := planning.Read(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return &plan, nil
}

// follow makes the plan again, and checks that it is still the saved one.
func (w *work) follow(ctx context.Context, lock schematics.Lock, saved planning.Plan) (planning.Plan, error) {
	if plan, differs, err := w.ofOtherFiles(lock, saved); differs {
		return plan, err
	}
	begun, err := begun(w.Runs(), saved)
	if err != nil {
		return planning.Plan{}, err
	}
	policy := saved.Policy()
	policy.Rehearse = w.rehearsal()
	now, err := makePlan(ctx, w.Project, w.machines, lock, policy)
	if err != nil {
		return planning.Plan{}, err
	}
	return now.Follow(saved, begun || w.o.Begun)
}

// begun says whether a run of a saved plan was started on this machine, by the journal.
func begun(r past.Runs, saved planning.Plan) (bool, error) {
	runs, err := journal.Runs(r.Dir)
	return slices.ContainsFunc(runs, func(r journal.RunInfo) bool { return strings.HasSuffix(r.ID, saved.RunSuffix()) }), err
}

// HeldBack is a setting of a storage system that recast has changed while nodes are away.
type HeldBack struct {
	What  string    `json:"what"`
	Run   string    `json:"run,omitempty"` // the run that changed the setting first; "": unknown
	Since time.Time `json:"since,omitzero"`
	Next  []Advice  `json:"next"`
}

func heldBack(holds []replica.Hold) (out []HeldBack) {
	for _, h := range holds {
		next := []Advice{{"recast roll", "gives it back once they are no longer out; so does recast undo"}, {h.Undo, "does so by hand"}}
		out = append(out, HeldBack{h.String(), h.Run, h.Since, next})
	}
	return out
}

// held adds to the result what recast has set in storage systems. The settings are left over unless a run has the
// claim: only an active run could still restore them.
func (r *DriftResult) held(ctx context.Context, p Project, m Machines, vms []cluster.VM) error {
	holds, err := m.Kube.Holds(ctx)
	if err != nil {
		r.HeldUnread = err.Error()
	}
	if r.Held = heldBack(holds); len(holds) == 0 {
		return nil
	}
	claimed, err := claim.Exists(ctx, vms, m.Leases.Lease, p.Config.Cluster, p.ClaimID())
	r.HeldLeft = !claimed
	return err
}

// DeepDrift is Drift that also reads the files of every locked extension back from each
// node, since labels can be wrong. It calls say with a line for each action.
func DeepDrift(ctx context.Context, p Project, m Machines, r images.Puller, say func(string)) (DriftResult, error) {
	lock, err := p.Lock()
	if err != nil {
		return DriftResult{}, err
	}
	res, found, err := drift(ctx, p, m, lock)
	if err != nil {
		return DriftResult{}, err
	}
	locked := newLockedFiles(r, say)
	var targets []observe.FileTarget
	var nodes []int // of each target, in res.Nodes
	for i, f := range found {
		if f.Machine == nil {
			continue // the node could not be read; the result says so
		}
		t := observe.FileTarget{Node: f.Name, Addr: f.Addr, UUID: f.Machine.UUID}
		if err := locked.want(ctx, &t, lock.Arch, build(lock, p.Config.Nodes[i].Schematic)); err != nil {
			res.Nodes[i] = res.Nodes[i].WithFiles(observe.FileCheck{}, err)
			continue // the comparison of its labels is still a result
		}
		targets, nodes = append(targets, t), append(nodes, i)
	}
	checks, errs := observe.CompareFiles(ctx, m.Files, targets, func(node, text string) { say(node + ": " + text) })
	for k, i := range nodes {
		res.Nodes[i] = res.Nodes[i].WithFiles(checks[k], errs[k])
	}
	res.count()
	return res, ctx.Err()
}

// lockedFiles reads the files of locked extension images, each image once.
type lockedFiles struct {
	puller images.Puller
	say    func(string)
	read   map[string]lockedRead // by reference and architecture
}

type lockedRead struct {
	files map[string]observe.LockedFile
	err   error
}

func newLockedFiles(r images.Puller, say func(string)) lockedFiles {
	return lockedFiles{puller: r, say: say, read: map[string]lockedRead{}}
}

// want adds the files of a build to a target, to compare. Its error becomes part of a
// result, so the text includes the hints.
func (l lockedFiles) want(ctx context.Context, t *observe.FileTarget, arch string, b cluster.Build) error {
	t.EmbedsConfig = b.EmbedsConfig
	for _, e := range b.Extensions {
		list, err := l.files(ctx, arch, e)
		if err != nil {
			return fmt.Errorf("read the locked image of extension %s: %w%s", e.Name, err, inBrackets(fault.Hints(err)))
		}
		t.Content = append(t.Content, observe.LockedFiles{Extension: e, Files: list})
	}
	return nil
}

func inBrackets(hints []string) string {
	if len(hints) == 0 {
		return ""
	}
	return " (" + strings.Join(hints, "; ") + ")"
}

func (l lockedFiles) files(ctx context.Context, arch string, e cluster.LockedExtension) (map[string]observe.LockedFile, error) {
	ref := e.Ref + "@" + e.Digest
	read, done := l.read[ref+" "+arch]
	if !done {
		l.say("reading the locked image of extension " + e.Name + " " + e.Version)
		read.files, read.err = l.extract(ctx, ref, arch)
		l.read[ref+" "+arch] = read
	}
	return read.files, read.err
}

func (l lockedFiles) extract(ctx context.Context, ref, arch string) (_ map[string]observe.LockedFile, err error) {
	body, err := l.puller.Extract(ctx, ref, arch)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	extension, err := bootimage.ReadExtension(body)
	if err != nil {
		return nil, err
	}
	// The digests are checked only when the end is reached.
	if _, err := io.Copy(io.Discard, body); err != nil {
		return nil, err
	}
	list := map[string]observe.LockedFile{}
	for name, f := range extension.Files {
		list[name] = observe.LockedFile{Mode: f.Mode, SizeBytes: f.SizeBytes, SHA256: f.SHA256, Link: f.Link, HardLink: f.HardLink}
	}
	return list, nil
}

func knownBuilds(file string, present bool, lock schematics.Lock) []observe.KnownBuild {
	var out []observe.KnownBuild
	for _, name := range lock.Names() {
		e := lock.Schematics[name]
		out = append(out, observe.KnownBuild{
			Lock: file, Present: present, Schematic: name, File: e.File, Build: build(lock, name), ISOSHA256: e.ISO.SHA256, Signer: e.Signer,
		})
	}
	return out
}

// Provenance traces one running node back to a lock. With a puller it also compares the node's files with the images of
// the build that it claims. It needs no lock: without one, links are unknown, which is no error.
func Provenance(ctx context.Context, p Project, m Machines, r images.Puller, node string, say func(string)) (observe.Provenance, error) {
	if err := p.RequireNodes(node); err != nil {
		return observe.Provenance{}, err
	}
	i := slices.Index(nodeNames(p.Config), node)
	present, past, err := locksAtHand(p)
	if err != nil {
		return observe.Provenance{}, err
	}
	found, err := findNode(ctx, p, m, p.Wanted(present)[i])
	if err != nil {
		return observe.Provenance{}, err
	}
	t := observe.Trail{Describe: describe}
	t.Known = append(knownBuilds("recast.lock", true, present), past...)
	for k, b := range t.Known {
		if b.Present && b.Schematic == p.Config.Nodes[i].Schematic {
			t.Wanted = &t.Known[k]
		}
	}
	if t.Claims, err = m.Claims.Claims(ctx, found.Addr, found.VM.UUID()); err != nil {
		return observe.Provenance{}, fmt.Errorf("read the image details of %s: %w", node, err)
	}
	if b := t.Claimant(); r != nil && b != nil {
		target := observe.FileTarget{Node: node, Addr: found.Addr, UUID: found.VM.UUID()}
		if t.Files, err = compareOne(ctx, m, r, target, *b, say); err != nil {
			t.Unread = err.Error()
		}
	}
	out := observe.Trace(t)
	out.Node, out.VM, out.Address = node, found.VM.String(), found.Addr
	return out, ctx.Err()
}

func compareOne(
	ctx context.Context, m Machines, r images.Puller, t observe.FileTarget, b observe.KnownBuild, say func(string),
) (*observe.FileCheck, error) {
	if err := newLockedFiles(r, say).want(ctx, &t, b.Build.Arch, b.Build); err != nil {
		return nil, err
	}
	checks, errs := observe.CompareFiles(ctx, m.Files, []observe.FileTarget{t}, func(node, text string) { say(node + ": " + text) })
	if errs[0] != nil {
		return nil, errs[0]
	}
	return &checks[0], nil
}

// locksAtHand reads recast.lock, which need not exist or match the configuration, and the builds of past locks.
func locksAtHand(p Project) (present schematics.Lock, past []observe.KnownBuild, err error) {
	present, err = schematics.ReadLock(p.LockFile())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return present, nil, err
	}
	h, err := schematics.ReadHistory(p.Locks().Dir)
	if err != nil {
		return present, nil, err
	}
	for _, lock := range h.Locks() {
		past = append(past, knownBuilds(filepath.Join(".recast", "locks", lock.Key()+".lock"), false, lock)...)
	}
	for _, lock := range p.Locks().Shared() {
		for _, b := range knownBuilds(SharedRuns(p), false, lock) {
			b.Shared = true
			past = append(past, b)
		}
	}
	return present, past, nil
}

// findNode returns the VM of one node, and the address of its machine.
func findNode(ctx context.Context, p Project, m Machines, w cluster.Wanted) (observe.Found, error) {
	o, err := observation(ctx, p, Sources(p, m), []cluster.Wanted{w}, "", "")
	if err != nil {
		return observe.Found{}, err
	}
	f := o.Found[0]
	switch {
	case f.Absent != nil:
		return f, observe.NotThereYet(w.Name)
	case f.VM == nil:
		return f, fault.WithHint(fault.ParkedHalf.Errorf("node %s has no VM now: its replacement is not finished", w.Name), "recast status")
	case !f.Addr.IsValid():
		return f, fmt.Errorf("node %s: %w", w.Name, observe.NoAddress(w.Name))
	}
	return f, nil
}

// describe summarizes a schematic that is not ours. It leaves out the values of kernel
// arguments and parse errors, since both may contain a token.
func describe(text string) (observe.Described, bool) {
	s, err := schematics.Parse("schematic", []byte(text))
	if err != nil {
		return observe.Described{}, false
	}
	d := observe.Described{Extensions: s.Extensions()}
	for _, arg := range (schematics.Locked{File: "schematic", Schematic: text}).KernelArgs() {
		name, _, _ := strings.Cut(arg, "=")
		d.Args = append(d.Args, name)
	}
	return d, true
}

// Explain makes the same plan as Plan, and returns the details of one node.
func Explain(ctx context.Context, p Project, m Machines, policy planning.Policy, rehearse *bool, node string) (planning.Plan, survey.Explanation, error) {
	lock, err := p.Lock()
	if err != nil {
		return planning.Plan{}, survey.Explanation{}, err
	}
	past, err := p.History(lock)
	if err != nil {
		return planning.Plan{}, survey.Explanation{}, err
	}
	policy.Rehearse = rehearsal(p, rehearse)
	plan, o, err := planSeen(ctx, p, m, Sources(p, m), lock, past, policy)
	if err != nil {
		return plan, survey.Explanation{}, err
	}
	e, err := survey.Explain(ctx, plan, node, o, past, timing(p.Config))
	return plan, e, err
}

// rehearsal says how images are tested before the first node; nil: they are not. asked
// is the command-line option, nil: use the configuration.
func rehearsal(p Project, asked *bool) *planning.Rehearsal {
	on := p.Config.Roll.Rehearse.Enabled
	if asked != nil {
		on = *asked
	}
	if !on {
		return nil
	}
	return new(p.RehearsalOn())
}

// rehearsal is the rehearsal of this run: a saved plan decides unless the option is given.
func (w *work) rehearsal() *planning.Rehearsal {
	asked := w.o.Rehearse
	if asked == nil && w.o.Saved != nil {
		asked = new(len(w.o.Saved.Trials) > 0)
	}
	return rehearsal(w.Project, asked)
}

// Left is a scratch VM, useless after its run has ended.
type Left struct {
	VMID cluster.VMID `json:"vmid"`
	Name string       `json:"name"`
	Host string       `json:"host"`
	Run  string       `json:"run"`
	Next []Advice     `json:"next"`
}

func scratchLeft(vms []cluster.VM, name string) []Left {
	var out []Left
	for _, s := range planning.ScratchVMs(vms, name) {
		out = append(out, Left{
			VMID: s.VM.ID, Name: s.VM.Name, Host: s.VM.Host, Run: s.Run,
			Next: []Advice{{"recast prune", "deletes it, once that run has ended"}, {"recast roll", "does so first, if it has anything to do"}},
		})
	}
	return out
}

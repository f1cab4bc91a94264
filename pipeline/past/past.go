// Package past reads what runs have left: what each was to do, who started it, how it ended.
package past

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/kubeupgrade"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/schematics"
)

// Run is a run as its journal on this machine has it. Fields that a killed run did not write are missing.
type Run struct {
	ID       string             `json:"id"`
	Started  time.Time          `json:"started"`
	Finished time.Time          `json:"finished,omitzero"` // zero: it is running or was killed
	Result   string             `json:"result"`            // "done", "failed", "interrupted", "given up", "running", "suspended", "killed", "running or killed"
	Error    string             `json:"error,omitempty"`
	About    *About             `json:"about,omitempty"`
	Plan     *planning.Plan     `json:"plan,omitempty"` // the original plan
	Fates    *cluster.Fates     `json:"fates,omitempty"`
	Took     []cluster.Took     `json:"took,omitempty"`
	Hooks    []planning.HookRun `json:"hooks,omitempty"`
	Upgrade  *kubeupgrade.Plan  `json:"upgrade,omitempty"` // of Kubernetes
	Restored bool               `json:"restored,omitempty"`
	Problems []string           `json:"problems,omitempty"` // parts that could not be read

	// Dirs are the directories of the run's journals, each with a log: first that of the machine that started the
	// run, then those of the machines that continued it.
	Dirs []string `json:"-"`
}

// Options identify this process and dead ones; see RollOptions.
type Options struct {
	Holder claim.Holder
	Dead   func(claim.Holder) bool
	// Suspended says whether another process is stopped on this machine; nil: never known.
	Suspended func(claim.Holder) bool
}

// Runs reads the runs of this machine, whose journals are in Dir, and copies of runs that other machines have shared,
// below Elsewhere ("": none).
type Runs struct{ Dir, Elsewhere string }

// All reads every run, newest first; what could not be read comes back as texts.
func (r Runs) All(o Options) (runs []Run, problems []string) {
	infos, err := r.List()
	if err != nil {
		problems = strings.Split(err.Error(), "\n")
	}
	runs = append(runs, cluster.Each(infos, func(info journal.RunInfo) Run { return r.Read(info.ID, o) })...)
	return runs, problems
}

// List lists the runs, newest first, each with its beginning and, if it has ended, its end.
func (r Runs) List() ([]journal.RunInfo, error) {
	dirs, err := r.dirs()
	errs := []error{err}
	var parts []journal.RunInfo
	for _, dir := range dirs {
		infos, err := journal.Runs(dir)
		errs, parts = append(errs, err), append(parts, infos...)
	}
	slices.SortStableFunc(parts, func(a, b journal.RunInfo) int { return a.Started.Compare(b.Started) })
	known := map[string]journal.RunInfo{}
	for _, info := range parts {
		if before, ok := known[info.ID]; ok {
			info = joined(before, info)
		}
		known[info.ID] = info
	}
	infos := slices.SortedFunc(maps.Values(known), journal.Newer)
	return infos, errors.Join(errs...)
}

// joined returns one run from two of its journals: the run began with the earlier journal, and its end is that of the
// journal with the latest known time.
func joined(a, b journal.RunInfo) journal.RunInfo {
	if b.Started.Before(a.Started) {
		a, b = b, a
	}
	if a.Finished.After(b.Started) && (b.Unfinished() || a.Finished.After(b.Finished)) {
		return a
	}
	b.Started = a.Started
	return b
}

// Find reads one run by its ID or a unique part of it; "" is the run that was started last.
func (r Runs) Find(id string, o Options) (Run, error) {
	infos, err := r.List()
	if len(infos) == 0 {
		return Run{}, fault.WithHint(errors.Join(fault.Configf("no run has left a journal in %s", r.Dir), err),
			"a journal is on the machine where recast roll ran, and a copy in images.mirror if there is one; recast status shows what is left in Proxmox")
	}
	if id == "" {
		last := r.Read(infos[0].ID, o)
		if err != nil {
			last.Problems = append(last.Problems, "another run; this may not be the last run: "+strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		return last, nil
	}
	var found []string
	for _, info := range infos {
		if info.ID == id {
			return r.Read(id, o), nil
		}
		if strings.Contains(info.ID, id) {
			found = append(found, info.ID)
		}
	}
	switch len(found) {
	case 1:
		return r.Read(found[0], o), nil
	case 0:
		return Run{}, fault.WithHint(errors.Join(fault.Configf("no run %q in %s", id, r.Dir), err), "recast history lists them; the last one is %s", infos[0].ID)
	}
	return Run{}, fault.WithHint(fault.Configf("%q is a part of several runs: %s", id, strings.Join(found[:min(5, len(found))], ", ")), "use more of the ID")
}

func (r Runs) Has(id string) bool {
	infos, _ := journal.Runs(r.Dir) // runs that can't be read do not count
	return slices.ContainsFunc(infos, func(info journal.RunInfo) bool { return info.ID == id })
}

// Read reads a run that List has, from all of its journals.
func (r Runs) Read(id string, o Options) Run {
	dirs, err := r.dirs()
	errs := []error{err}
	var parts []Run
	for _, dir := range dirs {
		switch p, err := part(dir, id, o); {
		case err == nil:
			parts = append(parts, p)
		case !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, err)
		}
	}
	slices.SortStableFunc(parts, func(a, b Run) int { return a.Started.Compare(b.Started) })
	run := Run{ID: id}
	for i, p := range parts {
		if i == 0 {
			run = p
			continue
		}
		run.join(p)
	}
	if err := errors.Join(errs...); err != nil {
		run.Problems = append(run.Problems, strings.Split(err.Error(), "\n")...)
	}
	return run
}

// part reads one journal of a run.
func part(dir, id string, o Options) (Run, error) {
	j, err := journal.Open(dir, journal.Options{Run: id, ReadOnly: true})
	if err != nil {
		return Run{}, err
	}
	defer j.Close()
	info, err := j.Info()
	if err != nil {
		return Run{}, err
	}
	p := Run{ID: id, Started: info.Started, Finished: info.Finished, Dirs: []string{filepath.Join(dir, id)}}
	p.Result, p.Error, _ = strings.Cut(info.Outcome, ": ")
	p.About = get[About](&p, j, AboutKey)
	if p.Plan = get[planning.Plan](&p, j, FirstPlanKey); p.Plan == nil {
		p.Plan = get[planning.Plan](&p, j, PlanKey)
	}
	p.Fates = get[cluster.Fates](&p, j, FatesKey)
	p.Upgrade = get[kubeupgrade.Plan](&p, j, UpgradeKey)
	p.Restored = get[json.RawMessage](&p, j, RestoreKey) != nil
	p.gather(j)
	if info.Unfinished() {
		p.Result = p.standing(o)
	}
	return p, nil
}

// gather reads the facts that exist per node or hook.
func (r *Run) gather(j *journal.Journal) {
	keys, err := j.Keys("")
	if err != nil {
		r.Problems = append(r.Problems, err.Error())
	}
	for _, key := range keys {
		switch {
		case cluster.IsTookKey(key):
			if took := get[cluster.Took](r, j, key); took != nil {
				r.Took = append(r.Took, *took)
			}
		case cluster.IsHookKey(key):
			if hook := get[planning.HookRun](r, j, key); hook != nil {
				r.Hooks = append(r.Hooks, *hook)
			}
		}
	}
	slices.SortStableFunc(r.Hooks, func(a, b planning.HookRun) int { return a.Started.Compare(b.Started) })
}

// standing says whether a run without an end is active, as far as is known.
func (r *Run) standing(o Options) string {
	switch {
	case r.About == nil:
	case o.Dead != nil && o.Dead(r.About.Last()):
		return "killed"
	case o.Suspended != nil && o.Suspended(r.About.Last()):
		return suspended
	case o.Holder.Boot != "" && r.About.Last().Boot == o.Holder.Boot && r.About.Last().Namespace == o.Holder.Namespace:
		return "running"
	}
	return "running or killed"
}

// Suspended says which process is suspended, and how to continue it; "": the run is not suspended, as far as is known.
func (r Run) Suspended() string {
	if r.Result != suspended {
		return ""
	}
	by := r.About.Last()
	return fmt.Sprintf("that run (%s) is suspended: %s", by, by.GoesOn())
}

// suspended is the Result of a run whose process is stopped on this machine.
const suspended = "suspended"

// Command is the recast command: "roll", "upgrade-k8s".
func (r Run) Command() string {
	switch {
	case r.About != nil:
		return r.About.Command
	case r.Upgrade != nil:
		return UpgradeKey
	case r.Restored:
		return "restore"
	}
	return "roll"
}

// Seconds is the duration of the run; 0 if it has not ended.
func (r Run) Seconds() int {
	if r.Finished.IsZero() {
		return 0
	}
	return int(r.Finished.Sub(r.Started).Round(time.Second).Seconds())
}

// Longest is the finished node with the longest outage, and that outage.
func (r Run) Longest() (node string, seconds int) {
	for _, t := range r.Took {
		if t.OutageSeconds > seconds {
			node, seconds = t.Node, t.OutageSeconds
		}
	}
	return node, seconds
}

// Counted returns how many nodes were planned, and how many were finished.
func (r Run) Counted() (done, planned int) {
	switch {
	case r.Plan != nil:
		planned = len(r.Plan.Work())
	case r.Upgrade != nil:
		planned = len(r.Upgrade.Nodes)
	}
	switch {
	case r.Fates != nil:
		return len(r.Fates.Done), planned
	case r.Upgrade != nil && r.Result == "done":
		return planned, planned
	}
	return len(r.Took), planned
}

// What is the target of the run, in a few words.
func (r Run) What() string {
	a := r.About
	switch {
	case r.Upgrade != nil:
		return "Kubernetes " + r.Upgrade.From + " → " + r.Upgrade.To
	case r.Restored:
		return "etcd from a snapshot"
	case a == nil:
		return ""
	case a.Command != "roll":
		return "the previous system"
	case a.Was != "" && a.Was != a.Talos:
		return "Talos " + a.Was + " → " + a.Talos
	}
	var parts []string
	for _, c := range a.Changes {
		for _, m := range c.Moved {
			name := cmp.Or(m.New.Name, m.Old.Name)
			if text := name + " " + versions(m.Old.Version, m.New.Version); !slices.Contains(parts, text) {
				parts = append(parts, text)
			}
		}
	}
	if len(parts) == 0 {
		return "Talos " + a.Talos
	}
	return strings.Join(parts, ", ")
}

// versions describes the change of an extension; if the version is the same, its digest changed.
func versions(was, is string) string {
	switch {
	case was == "":
		return is + " added"
	case is == "":
		return was + " removed"
	case was == is:
		return is + ", new digest"
	}
	return was + " → " + is
}

// Known reports whether the journal of any run has a fact.
func (r Runs) Known(key string) (bool, error) {
	dirs, err := r.dirs()
	if err != nil {
		return false, err
	}
	for _, dir := range dirs {
		infos, _ := journal.Runs(dir) // a run that can't be read proves nothing
		for _, info := range infos {
			j, errOpen := journal.Open(dir, journal.Options{Run: info.ID, ReadOnly: true})
			if errOpen != nil {
				continue
			}
			var fact json.RawMessage
			known, errGet := j.Get(key, &fact)
			if errClose := j.Close(); errGet == nil && errClose == nil && known {
				return true, nil
			}
		}
	}
	return false, nil
}

// Fact reads a fact of a journal, which another recast version may have written; nil if there is none.
func Fact[T any](j *journal.Journal, key string) (*T, error) {
	var raw json.RawMessage
	if found, err := j.Get(key, &raw); err != nil || !found {
		return nil, err
	}
	v := new(T)
	if err := json.Unmarshal(raw, v); err != nil {
		return nil, fmt.Errorf("journal %s: %w", key, err)
	}
	return v, nil
}

// get is Fact, with an error added to the run's problems.
func get[T any](r *Run, j *journal.Journal, key string) *T {
	v, err := Fact[T](j, key)
	if err != nil {
		r.Problems = append(r.Problems, err.Error())
	}
	return v
}

// skew is by how much the clocks of two machines may differ.
const skew = 10 * time.Minute

// dated is a run with its start, as exactly as that is known.
type dated struct {
	planning.Replacing
	info    journal.RunInfo
	by      string // the machine whose clock says when; "": unknown
	guessed bool   // the start is that in the ID: the journal is not here, and Proxmox has no time
}

// Order sorts runs that replaced system disks, the newest first. The start of a run is taken from its journal if that
// is here, else from Proxmox, else from its ID. sure is false if another run may be the newest.
func (r Runs) Order(runs []planning.Replacing) (ordered []planning.Replacing, sure bool) {
	infos, _ := r.List() // a run that can't be read counts as a run of another machine
	all := cluster.Each(runs, func(run planning.Replacing) dated { return r.date(run, infos) })
	slices.SortFunc(all, func(a, b dated) int { return journal.Newer(a.info, b.info) })
	sure = true
	for i, d := range all {
		ordered = append(ordered, d.Replacing)
		sure = sure && (i == 0 || all[0].follows(d))
	}
	return ordered, sure
}

func (r Runs) date(run planning.Replacing, infos []journal.RunInfo) dated {
	d := dated{Replacing: run, info: journal.RunInfo{ID: run.Run, Started: run.At}}
	if d.At.IsZero() {
		d.info.Started, d.guessed = journal.RunBegan(run.Run), true
	}
	i := slices.IndexFunc(infos, func(info journal.RunInfo) bool { return info.ID == run.Run })
	if i < 0 {
		return d
	}
	known := r.Read(run.Run, Options{})
	d.info, d.guessed, d.At, d.What = infos[i], false, infos[i].Started, known.Command()
	if what := known.What(); what != "" {
		d.What += ", " + what
	}
	if known.About != nil {
		d.by = known.About.By.Host
	}
	return d
}

// follows says whether d certainly started after an earlier run. Two runs never overlap, since only one has the claim.
func (d dated) follows(earlier dated) bool {
	if d.guessed || earlier.guessed {
		return false
	}
	apart := time.Duration(0)
	if d.by == "" || d.by != earlier.by {
		apart = skew
	}
	return d.info.Started.Sub(earlier.info.Started) > apart
}

// Origin is where a run comes from.
type Origin struct {
	Recast string `json:"recast,omitempty"` // its version
	Who    string `json:"who,omitempty"`    // the user, or who started the pipeline
	Commit string `json:"commit,omitempty"` // of the directory with recast.yaml
}

// About describes a run. It is kept in the run's journal for history and reports.
type About struct {
	Command string       `json:"command"` // "roll", "undo --previous", "undo --cancel"
	Cluster string       `json:"cluster"` // its name
	By      claim.Holder `json:"by"`      // the process that started it
	// Elsewhere says that another machine started the run and has the details; By only continued it.
	Elsewhere bool `json:"elsewhere,omitempty"`
	// GoneOn are the processes that continued it.
	GoneOn []claim.Holder `json:"goneOn,omitempty"`
	Origin
	Talos string `json:"talos"` // of the lock that it was started with
	Lock  string `json:"lock"`  // hash of that lock
	// Before is the previous lock, if known, and Changes are the differences.
	Before  string              `json:"before,omitempty"`
	Was     string              `json:"was,omitempty"` // its version of Talos
	Changes []schematics.Change `json:"changes,omitempty"`
	// Kubernetes is the version in the configuration.
	Kubernetes string `json:"kubernetes,omitempty"`
}

// Keys of a run's journal for history and reports.
const (
	AboutKey = "about"
	FatesKey = "fates"

	PlanKey      = "plan"       // the current or last plan
	FirstPlanKey = "plan/first" // the original plan, once another process continues the run

	UpgradeKey = "upgrade-k8s" // the plan of an upgrade of Kubernetes
	RestoreKey = "restore"     // that etcd is restored
)

// Last is the process that works or last worked on the run.
func (a About) Last() claim.Holder {
	if n := len(a.GoneOn); n > 0 {
		return a.GoneOn[n-1]
	}
	return a.By
}

// Running is a run that has not ended according to its journal on this machine: it is active or was killed.
type Running struct {
	ID      string
	Dir     string // of its journal and its log
	Started time.Time
	Plan    *planning.Plan // nil: there is none yet
}

// Running finds the newest run, if it was started on this machine and has not ended.
func (r Runs) Running() (Running, bool, error) {
	runs, err := journal.Runs(r.Dir)
	if len(runs) == 0 || !runs[0].Unfinished() {
		return Running{}, false, err
	}
	now := Running{ID: runs[0].ID, Dir: filepath.Join(r.Dir, runs[0].ID), Started: runs[0].Started}
	j, err := journal.Open(r.Dir, journal.Options{Run: now.ID, ReadOnly: true})
	if err != nil {
		return Running{}, false, err
	}
	defer j.Close()
	var plan planning.Plan
	found, err := j.Get(PlanKey, &plan)
	if found {
		now.Plan = &plan
	}
	return now, err == nil, err
}

// Outcome says how a run that was started here ended; "" while it is active.
func (r Runs) Outcome(run string) (outcome string, err error) {
	runs, err := journal.Runs(r.Dir)
	for _, info := range runs {
		if info.ID == run && !info.Unfinished() {
			return info.Outcome, nil
		}
	}
	return "", err
}

// Package past reads what runs have left: what each was to do, who started it, how it ended.
package past

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/kubeupgrade"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/story"
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

// Files of a run beside its journal.
const (
	lockName   = "recast.lock" // in a record: the lock that the run was started with
	beforeName = "before.lock" // in a record: the lock before that, if known
	digestName = "record"      // in a copy: the digest of its record
	// ParkingsName is the file of the parking VMs that were proven to be ours, in a record and beside the runs.
	ParkingsName = "parkings"
)

const (
	// keepShared is how many runs of a cluster a mirror keeps, and a machine copies.
	keepShared = 100
	// maxUnpacked is more than a journal and its log, which is rotated.
	maxUnpacked = 128 << 20
	maxLock     = 1 << 20 // bytes: every command reads them
)

// Sharing copies runs to and from a list in a registry.
type Sharing struct {
	Runs    Runs
	Records images.Records
	List    string // see images.Records
	// Lock is Locks.Text.
	Lock func(key string) []byte
	// Hide removes secrets from JSON.
	Hide func([]byte) []byte
}

// shown says whether history and reports read a fact of a run. Other facts may hold machine configurations.
func shown(key string) bool {
	return slices.Contains([]string{AboutKey, FatesKey, PlanKey, FirstPlanKey, UpgradeKey, RestoreKey}, key) || cluster.IsTookKey(key) || cluster.IsHandsOverKey(key) || cluster.IsHookKey(key)
}

// Share adds what this machine knows of a run to the list, together with the lock that the run was started with and
// the lock before that.
func (s Sharing) Share(ctx context.Context, id string) error {
	files, err := journal.Files(s.Runs.Dir, id, shown, story.LogName, story.OlderLogName)
	if err != nil {
		return err
	}
	for name, b := range files {
		files[name] = s.Hide(b)
	}
	r := images.Record{Written: time.Now(), Labels: map[string]string{"run": id}}
	run, err := part(s.Runs.Dir, id, Options{})
	if err != nil {
		return err
	}
	about := run.About
	if about != nil {
		r.Labels["talos"], r.Labels["host"] = about.Talos, about.By.Host
		for name, key := range map[string]string{lockName: about.Lock, beforeName: about.Before} {
			if text := s.Lock(key); text != nil {
				files[name] = text
			}
		}
	}
	if ours, err := os.ReadFile(filepath.Join(filepath.Dir(s.Runs.Dir), ParkingsName)); err == nil {
		files[ParkingsName] = ours
	}
	r.Name = id + "/" + partOf(about)
	content, err := packed(files)
	if err != nil {
		return err
	}
	return s.Records.Keep(ctx, s.List, r, content, keepShared)
}

// packed makes a record of files. The output is deterministic.
func packed(files map[string][]byte) ([]byte, error) {
	var b bytes.Buffer
	zipped := gzip.NewWriter(&b)
	t := tar.NewWriter(zipped)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(files[name]))}); err != nil {
			return nil, err
		}
		if _, err := t.Write(files[name]); err != nil {
			return nil, err
		}
	}
	err := errors.Join(t.Close(), zipped.Close())
	return b.Bytes(), err
}

// unpacked reads the files of a record. It fails if they take more than most bytes, headers included.
func unpacked(content []byte, most int64) (map[string][]byte, error) {
	zipped, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	files, left := map[string][]byte{}, most
	for t := tar.NewReader(io.LimitReader(zipped, most+1)); ; { // headers count, too: a few zipped bytes can unpack to millions
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		if left -= h.Size; left < 0 || h.Typeflag != tar.TypeReg {
			return nil, fmt.Errorf("%q is not a file of a run, or too large", h.Name)
		}
		if files[h.Name], err = io.ReadAll(io.LimitReader(t, h.Size)); err != nil {
			return nil, err
		}
	}
}

// Fetch copies runs of other machines from the list to this machine: the newest runs, up to the number most; 0: all.
// It skips records already copied. If a run can't be copied, it calls warn with the reason and continues.
func (s Sharing) Fetch(ctx context.Context, most int, warn func(string)) error {
	failed := map[string]error{}
	for range 2 { // an active run replaces its record
		clear(failed)
		list, err := s.list(ctx)
		if err != nil {
			return err
		}
		s.forget(list)
		if len(list) > 0 {
			if err := journal.KeepOutOfGit(filepath.Dir(s.Runs.Elsewhere)); err != nil {
				return err // the error would be the same for each run
			}
		}
		if most > 0 {
			list = list[:min(most, len(list))]
		}
		for _, r := range list {
			if err := s.fetch(ctx, r); err != nil {
				failed[r.Name] = err
			}
			if ctx.Err() != nil {
				return fmt.Errorf("read the runs in %s: %w", s.List, ctx.Err())
			}
		}
		if len(failed) == 0 {
			return nil
		}
	}
	for _, name := range slices.Sorted(maps.Keys(failed)) {
		warn(fmt.Sprintf("run %s in %s can't be read: %v", name, s.List, failed[name]))
	}
	return nil
}

// listWait is how long a registry may take to answer. Without an answer, history shows what is here.
const listWait = 5 * time.Second

func (s Sharing) list(ctx context.Context) ([]images.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, listWait)
	defer cancel()
	list, err := s.Records.List(ctx, s.List)
	if err != nil {
		return nil, fmt.Errorf("read the runs in %s: %w", s.List, err)
	}
	return list[:min(keepShared, len(list))], nil // recast keeps no more; others may have put more there
}

// forget removes copies that are no longer on the list, if there are more copies than a list keeps.
func (s Sharing) forget(list []images.Record) {
	copies, _ := filepath.Glob(filepath.Join(s.Runs.Elsewhere, "*", "*")) // the pattern is valid
	if len(copies) <= keepShared {
		return
	}
	listed := map[string]bool{}
	for _, r := range list {
		id, at, _ := strings.Cut(r.Name, "/")
		listed[filepath.Join(s.Runs.Elsewhere, at, id)] = true
	}
	for _, dir := range copies {
		if !listed[dir] {
			_ = os.RemoveAll(dir) // on failure, the next Fetch tries again
		}
	}
}

// partPattern keeps a copy below Elsewhere, whatever a registry says.
var partPattern = regexp.MustCompile(`^[a-z0-9]{1,64}$`)

func (s Sharing) fetch(ctx context.Context, r images.Record) error {
	id, at, _ := strings.Cut(r.Name, "/")
	if !partPattern.MatchString(at) {
		return errors.New("its name is not that of a run")
	}
	dir := filepath.Join(s.Runs.Elsewhere, at)
	if s.Runs.partHere(id) == at {
		return os.RemoveAll(filepath.Join(dir, id)) // this machine has the journal itself
	}
	if known, err := os.ReadFile(filepath.Join(dir, id, digestName)); err == nil && string(known) == r.Digest {
		return nil
	}
	content, err := s.Records.Read(ctx, s.List, r)
	if err != nil {
		return err
	}
	files, err := unpacked(content, maxUnpacked)
	if err != nil {
		return err
	}
	files[digestName] = []byte(r.Digest)
	return journal.Place(dir, id, files, shown, story.LogName, story.OlderLogName, lockName, beforeName, digestName, ParkingsName)
}

// locks returns the texts of the locks in the copies of other machines' runs, each once, the newest run first. It
// leaves out files that can't be read or are too long for a lock: the texts are only information.
func (r Runs) locks() (texts [][]byte) {
	copies, _ := filepath.Glob(filepath.Join(r.Elsewhere, "*", "*")) // the pattern is valid
	infos, _ := r.List()                                             // if a run can't be read, its locks come last
	place := func(dir string) int {
		at := slices.IndexFunc(infos, func(info journal.RunInfo) bool { return info.ID == filepath.Base(dir) })
		if at < 0 {
			return len(infos)
		}
		return at
	}
	slices.SortFunc(copies, func(a, b string) int {
		return cmp.Or(place(a)-place(b), strings.Compare(filepath.Base(b), filepath.Base(a)))
	})
	for _, dir := range copies {
		for _, name := range []string{lockName, beforeName} {
			file := filepath.Join(dir, name)
			if info, err := os.Stat(file); err != nil || info.Size() > maxLock {
				continue
			}
			text, err := os.ReadFile(file)
			if err == nil && !slices.ContainsFunc(texts, func(known []byte) bool { return bytes.Equal(known, text) }) {
				texts = append(texts, text)
			}
		}
	}
	return texts
}

// firstPart is the directory in Elsewhere for journals of machines that started a run. A run has one journal on each
// machine that worked on it: on the machine that started it, and on machines that continued it (About.Elsewhere).
// Copies from each of the latter are in a directory of their own.
const firstPart = "first"

func partOf(a *About) string {
	if a == nil || !a.Elsewhere {
		return firstPart
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %d %s", a.By.Host, a.By.Boot, a.By.PID, a.By.Start))
	return hex.EncodeToString(sum[:6])
}

// dirs returns the directories with journals, this machine's first.
func (r Runs) dirs() ([]string, error) {
	dirs := []string{r.Dir}
	if r.Elsewhere == "" {
		return dirs, nil
	}
	parts, err := os.ReadDir(r.Elsewhere)
	if errors.Is(err, fs.ErrNotExist) {
		return dirs, nil
	}
	if err != nil {
		return dirs, fmt.Errorf("read the runs of other machines: %w", err)
	}
	for _, p := range parts {
		if p.IsDir() {
			dirs = append(dirs, filepath.Join(r.Elsewhere, p.Name()))
		}
	}
	return dirs, nil
}

// partHere returns which part of a run this machine's journal holds; "" if there is no journal here.
func (r Runs) partHere(id string) string {
	j, err := journal.Open(r.Dir, journal.Options{Run: id, ReadOnly: true})
	if err != nil {
		return ""
	}
	defer j.Close()
	about, _ := Fact[About](j, AboutKey) // without a readable description, this machine counts as the one that started the run
	return partOf(about)
}

// join adds what another machine did to finish the run.
func (r *Run) join(p Run) {
	info := joined(journal.RunInfo{Started: r.Started, Finished: r.Finished}, journal.RunInfo{Started: p.Started, Finished: p.Finished, Outcome: "later"})
	if info.Outcome != "" {
		r.Finished, r.Result, r.Error = p.Finished, p.Result, p.Error
	}
	switch {
	case p.About == nil:
	case r.About == nil:
		r.About = p.About
	default:
		about := *r.About
		about.GoneOn = slices.Concat(about.GoneOn, append(slices.Clone(p.About.GoneOn), p.About.By))
		r.About = &about
	}
	if r.Upgrade == nil {
		r.Upgrade = p.Upgrade
	}
	r.Fates = JoinFates(r.fates(p.Fates), p.Fates)
	if r.Plan == nil {
		r.Plan = p.Plan
	}
	r.Took = slices.Concat(r.Took, p.Took)
	r.Hooks = slices.Concat(r.Hooks, p.Hooks)
	r.Problems = slices.Concat(r.Problems, p.Problems)
	r.Dirs = slices.Concat(r.Dirs, p.Dirs)
	r.Restored = r.Restored || p.Restored
}

// fates returns r's results, without the later ones. If a killed run has recorded none, nodes with a recorded
// duration count as done, and other planned nodes as left.
func (r *Run) fates(later *cluster.Fates) *cluster.Fates {
	if r.Fates != nil || later == nil || r.Plan == nil {
		return r.Fates
	}
	f := &cluster.Fates{}
	for _, n := range r.Plan.Work() {
		if slices.ContainsFunc(r.Took, func(t cluster.Took) bool { return t.Node == n.Node }) {
			f.Done = append(f.Done, n.Node)
		} else {
			f.Left = append(f.Left, n.Node)
		}
	}
	return f
}

// JoinFates joins two results. A node that is in both has the result of later.
func JoinFates(earlier, later *cluster.Fates) *cluster.Fates {
	if earlier == nil || later == nil {
		if earlier == nil {
			return later
		}
		return earlier
	}
	again := slices.Concat(later.Done, later.Failed, later.Left)
	join := func(earlier, later []string) []string {
		earlier = slices.DeleteFunc(slices.Clone(earlier), func(node string) bool { return slices.Contains(again, node) })
		all := slices.Concat([]string{}, earlier, later)
		slices.Sort(all)
		return all
	}
	return &cluster.Fates{Done: join(earlier.Done, later.Done), Failed: join(earlier.Failed, later.Failed), Left: join(earlier.Left, later.Left)}
}

// Locks are the locks that a project has had.
type Locks struct {
	Present string // recast.lock
	Dir     string // of the locks that recast lock has replaced
	Runs    Runs   // copies of other machines' runs hold their locks
}

// Known says whether this machine has, or may have, a past lock or a copy of another machine's run.
func (l Locks) Known() bool {
	for _, dir := range []string{l.Dir, l.Runs.Elsewhere} {
		if known, err := os.ReadDir(dir); len(known) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// Learn adds text, the content of recast.lock at an earlier time, to the past locks, unless recast.lock is still the
// same.
func (l Locks) Learn(text []byte, at time.Time) error {
	present, err := schematics.ReadLock(l.Present)
	if err != nil {
		return err
	}
	lock, err := schematics.ParseLock("a past lock", text)
	if err != nil || lock.Key() == present.Key() {
		return err
	}
	if err := journal.KeepOutOfGit(filepath.Dir(l.Dir)); err != nil {
		return err
	}
	return schematics.Learn(l.Dir, lock, at)
}

// Before returns the lock before the given lock, for people: this machine's, or, if it has none, that of the last run
// elsewhere.
func (l Locks) Before(lock schematics.Lock) (before schematics.Lock, found bool) {
	before, found, err := schematics.Previous(l.Dir, lock)
	if found || err != nil {
		return before, found
	}
	for _, shared := range l.Shared() {
		if shared.Key() != lock.Key() {
			return shared, true
		}
	}
	return before, false
}

// Shared returns the locks in the copies of other machines' runs, the newest first. recast trusts them only as far as
// their hashes prove: which extensions a lock hash stands for. It never takes from them what to install, only which
// files on a storage recast has uploaded: to forge that, one has to write to the storage, too.
func (l Locks) Shared() (locks []schematics.Lock) {
	for _, text := range l.Runs.locks() {
		if lock, err := schematics.ParseLock("a shared lock", text); err == nil {
			locks = append(locks, lock)
		}
	}
	return locks
}

// Text returns the text of the lock with a key; nil if there is none, or if the lock holds secrets.
func (l Locks) Text(key string) []byte {
	for _, file := range []string{l.Present, filepath.Join(l.Dir, key+".lock")} {
		lock, err := schematics.ReadLock(file)
		if err != nil || lock.Key() != key || lock.HoldsSecrets() {
			continue
		}
		if text, err := os.ReadFile(file); err == nil {
			return text
		}
	}
	return nil
}

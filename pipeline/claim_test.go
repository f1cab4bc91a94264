package pipeline

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline/past"
	"github.com/recast-sh/recast/schematics"
)

// fullShelf is a Store that counts what is stored.
type fullShelf struct {
	images.Store
	stored int
}

func (s *fullShelf) Upload(context.Context, images.Upload) error     { s.stored++; return nil }
func (s *fullShelf) Download(context.Context, images.Download) error { s.stored++; return nil }

// TestClaimedStore: files are stored only while the claim is ours.
func TestClaimedStore(t *testing.T) {
	t.Parallel()
	shelf, lost := &fullShelf{}, error(nil)
	s := claimedStore{store: shelf, write: func(ctx context.Context, send func(context.Context) error) error {
		if lost != nil {
			return lost
		}
		return send(ctx)
	}}
	for _, lost = range []error{nil, errors.New("lost")} {
		err := s.Upload(t.Context(), images.Upload{})
		errDownload := s.Download(t.Context(), images.Download{})
		for _, err := range []error{err, errDownload} {
			if !errors.Is(err, lost) || errors.Is(err, images.ErrNotSent) != (lost != nil) || shelf.stored != 2 {
				t.Errorf("stored %d times: %v", shelf.stored, err)
			}
		}
	}
}

// listing is a datacentre that records which configurations are read.
type listing struct {
	cluster.Inventory
	vms  []cluster.VM
	read []cluster.VMID
	down error
}

func (l *listing) Listed(context.Context) ([]cluster.VM, error) {
	rows := slices.Clone(l.vms)
	for i := range rows {
		rows[i].Config = nil
	}
	return rows, nil
}

func (l *listing) VMs(context.Context) ([]cluster.VM, error) {
	l.read = append(l.read, cluster.Each(l.vms, func(vm cluster.VM) cluster.VMID { return vm.ID })...)
	return slices.Clone(l.vms), nil
}

func (l *listing) VMConfig(_ context.Context, id cluster.VMID) (cluster.VM, error) {
	l.read = append(l.read, id)
	i := slices.IndexFunc(l.vms, func(vm cluster.VM) bool { return vm.ID == id })
	if i < 0 {
		return cluster.VM{}, cluster.ErrNotFound
	}
	return l.vms[i], l.down
}

// A watcher reads what changes, and what a run is about; it reads nothing else twice.
func TestWatched(t *testing.T) {
	t.Parallel()
	p, build := project(t)
	open := parking.Record{Cluster: "c1", Node: "wk1", Run: "r1", Build: build, VMID: 9031, UUID: "u-wk1", Open: true, Strategy: cluster.Recreate, Stage: parking.StageServes}
	px := &listing{vms: []cluster.VM{{ID: 100, Name: "other", Host: "pve1", Config: map[string]string{"cores": "1"}}, {ID: 9031, Name: "wk1", Host: "pve1", Running: true}}}
	w := p.Watched(px)
	look := func(what string, requests int, want ...cluster.VMID) {
		t.Helper()
		px.read = nil
		vms := must.Get(w.VMs(t.Context()))(t)
		must.Equal(t, what+": read", want, px.read)
		must.Equal(t, what+": VMs", px.vms, vms)
		must.Equal(t, what+": requests", requests, w.Requests())
	}
	look("first", 5, 100, 9031)
	look("nothing new", 1)
	px.vms = append(px.vms, cluster.VM{ID: 9089, Name: "recast-claim", Host: "pve1", Config: map[string]string{"description": claimText}}, parkingVM(t, open, nil))
	look("a run begins", 3, 9089, 9090)
	look("and goes on", 4, 9031, 9089, 9090)
	px.vms[0].Running = true
	look("another one starts", 5, 100, 9031, 9089, 9090)
	if claim, found, err := p.Claim(t.Context(), w); err != nil || !found || claim.Beat != 7 {
		t.Errorf("claim %+v, %t: %v", claim, found, err)
	}
	w.Requests()
	px.vms = px.vms[:1]
	look("it is over", 1)
	px.vms = append(px.vms, cluster.VM{ID: 9031, Name: "wk1", Host: "pve1"})
	px.down = errors.New("no route to host")
	look("one that can't be read", 6, 9031, 100, 9031)
	if _, found, err := p.Claim(t.Context(), w); found || err != nil {
		t.Errorf("a claim: %t, %v", found, err)
	}
}

func projectOf(t *testing.T) Project {
	return Project{Config: &config.Config{Dir: t.TempDir(), Cluster: "c1"}}
}

// runWith creates the journal of a run; with "" as the outcome it has no end.
func runWith(t *testing.T, p Project, id, outcome string, facts map[string]any) {
	t.Helper()
	j := must.Get(journal.Open(p.Runs().Dir, journal.Options{Run: id}))(t)
	for key, v := range facts {
		must.Do(t, j.Put(key, v))
	}
	if outcome != "" {
		must.Do(t, j.Finish(outcome))
	}
	must.Do(t, j.Close())
}

// TestOldRunsGo removes the oldest finished runs, unless a parking VM refers to them.
func TestOldRunsGo(t *testing.T) {
	t.Parallel()
	p := projectOf(t)
	made := func(n int) string { return fmt.Sprintf("20260101-0000-%04d", n) }
	for n := range keepRuns + 5 {
		outcome := "done"
		if n == 1 {
			outcome = ""
		}
		runWith(t, p, made(n), outcome, nil)
		// Their order is that of their beginning.
		info := fmt.Sprintf(`{"started":%q%s}`, time.Date(2026, 1, 1, 0, 0, n, 0, time.UTC).Format(time.RFC3339),
			map[bool]string{true: `,"finished":"2026-01-02T00:00:00Z","outcome":"done"`}[outcome != ""])
		must.Do(t, os.WriteFile(filepath.Join(p.Runs().Dir, made(n), "RUN"), []byte(info), 0o600))
	}
	must.Do(t, os.MkdirAll(filepath.Dir(p.Page(made(0))), 0o700))
	must.Do(t, os.WriteFile(p.Page(made(0)), nil, 0o600))
	away := fmt.Errorf("pve2 does not answer")
	must.FailIs(t, forgetRuns(p, func() (map[string]bool, error) { return nil, away }), away)
	must.Do(t, forgetRuns(p, func() (map[string]bool, error) { return map[string]bool{made(2): true}, nil }))
	gone := map[string]bool{made(0): true, made(3): true, made(4): true} // 1 has no end, 2 is needed
	for n := range 6 {
		must.Equal(t, made(n)+" is here", !gone[made(n)], p.Runs().Has(made(n)))
	}
	must.FailIs(t, must.Err(os.Stat(p.Page(made(0)))), os.ErrNotExist)
	must.Pass(t, forgetRuns(p, func() (map[string]bool, error) { return map[string]bool{made(2): true}, nil }))
}

func TestBackupFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	saved, own := filepath.Join(dir, "saved"), filepath.Join(dir, "own")
	const name = "etcd-c1-20261121T040507Z.db"
	for _, made := range []string{saved, filepath.Join(own, name)} {
		must.Do(t, os.MkdirAll(made, 0o700))
	}
	file := filepath.Join(dir, "there.db")
	must.Do(t, os.WriteFile(file, nil, 0o600))
	p := Project{Config: &config.Config{Cluster: "c1"}}
	p.Config.Roll.EtcdSnapshot = filepath.Join(dir, "yet", "to be made")
	cases := map[string]struct {
		o    BackupOptions
		file string
		dir  string
		err  string
	}{
		"as configured":               {BackupOptions{Keep: 3}, filepath.Join(dir, "yet", "to be made", name), p.Config.Roll.EtcdSnapshot, ""},
		"a directory":                 {BackupOptions{To: saved, Keep: 3}, filepath.Join(saved, name), saved, ""},
		"a directory yet to be made":  {BackupOptions{To: saved + "/new/"}, filepath.Join(saved, "new", name), saved + "/new/", ""},
		"a file":                      {BackupOptions{To: saved + "/one.db"}, saved + "/one.db", "", ""},
		"a file that is there":        {BackupOptions{To: file}, "", "", "there.db exists already"},
		"a name that is there":        {BackupOptions{To: own}, "", "", name + " exists already"},
		"a file, and others to go":    {BackupOptions{To: saved + "/one.db", Keep: 1}, "", "", "one.db is a file, and --keep needs a directory"},
		"a file where a directory is": {BackupOptions{To: file + "/one.db"}, "", "", "not a directory"},
	}
	for name, c := range cases {
		file, dir, err := backupFile(p.Config, c.o, time.Date(2026, 11, 21, 5, 5, 7, 9, time.FixedZone("", 3600)))
		if file != c.file || dir != c.dir && c.err == "" || (err == nil) != (c.err == "") {
			t.Errorf("%s: %q in %q, %v", name, file, dir, err)
		}
		if err != nil && (fault.KindOf(err) != fault.Config || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %v, want %q", name, err, c.err)
		}
	}
}

func TestRemoveBackups(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	others := []string{
		"etcd-c1-20261101-0421-3f2a.db",          // saved by a roll
		"etcd-c1-20261101T000000Z.db.part",       // not whole
		"etcd-c1-staging-20260101T000000Z.db",    // of another cluster
		"etcd-c10-20260101T000000Z.db",           // of another cluster
		"etcd-c1-20261399T000000Z.db", "mine.db", // whatever
	}
	ours := []string{"etcd-c1-20251231T235959Z.db", "etcd-c1-20260101T000000Z.db", "etcd-c1-20260102T000000Z.db"}
	for _, name := range append(others, ours...) {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	must.Do(t, os.Mkdir(filepath.Join(dir, "etcd-c1-20200101T000000Z.db"), 0o700))
	p := Project{Config: &config.Config{Cluster: "c1"}}
	for _, c := range []struct {
		taken string
		keep  int
		want  []string
	}{{ours[2], 9, nil}, {ours[2], 3, nil}, {ours[0], 2, ours[1:2]}, {ours[0], 1, ours[2:]}, {ours[0], 1, nil}} {
		must.Equal(t, fmt.Sprint("keep ", c.keep), c.want, must.Get(removeBackups(p.Config, dir, c.taken, c.keep))(t))
	}
	must.Equal(t, "left", len(others)+2, len(must.Get(os.ReadDir(dir))(t)))
}

// session is one process that works on a run.
type session struct {
	*work
	t *testing.T
	j *journal.Journal
}

// begin opens the journal of a run, like a roll that executes a plan.
func begin(t *testing.T, p Project, pid int, plan planning.Plan) session {
	t.Helper()
	j := must.Get(journal.Open(p.Runs().Dir, journal.Options{Run: "r"}))(t)
	w := &work{Project: p, command: "roll", o: RollOptions{Holder: claim.Holder{PID: pid, Boot: "b"}}, rep: Report{Plan: plan}}
	s := session{w, t, j}
	s.must(w.keepAbout(j, schematics.Lock{}), w.keepPlan(j), j.Resume())
	return s
}

func (s session) must(errs ...error) {
	s.t.Helper()
	must.Do(s.t, errors.Join(errs...))
}

func (s session) saw(path string, status step.Status) {
	s.tally.see(step.Event{Path: path, Status: status})
}

func (s session) took(node string) {
	s.must(s.j.Put(cluster.TookKey(node), cluster.Took{Node: node, OutageSeconds: 60}))
}

// finish ends the session as carryOut does; without it, the session was killed.
func (s session) finish(outcome string) {
	s.t.Helper()
	s.must(s.keepFates(s.j), s.j.Finish(outcome))
}

// A continued run is reported completely: its original purpose, and the results of all
// sessions. While someone continues it, it has not ended.
func TestContinuedRun(t *testing.T) {
	t.Parallel()
	both := planning.Plan{Cluster: "c1", Nodes: []planning.NodePlan{
		{Node: "wk1", Strategy: cluster.Recreate, Why: "it is stale"}, {Node: "wk2", Strategy: cluster.Recreate, Why: "it is stale"},
	}}
	rest := planning.Plan{Cluster: "c1", Run: "r", Nodes: []planning.NodePlan{{Node: "wk2", Strategy: cluster.Recreate, Resume: true, Why: "run r began to recreate it and did not finish"}}}
	must.Each(t, map[string]bool{"after it failed": true, "after it was killed": false}, func(t *testing.T, ends bool) {
		p := projectOf(t)
		told := func(gone ...int) string {
			t.Helper()
			r := must.Get(p.Runs().Find("r", past.Options{Holder: claim.Holder{Boot: "b"}, Dead: func(h claim.Holder) bool { return slices.Contains(gone, h.PID) }}))(t)
			done, planned := r.Counted()
			return fmt.Sprintf("%s, %d of %d, ended %t, first planned because %s; %s", r.Result, done, planned, !r.Finished.IsZero(), r.Plan.Nodes[0].Why, strings.Join(r.Problems, "; "))
		}
		require := func(got, want string) {
			t.Helper()
			must.Equal(t, "told as", want+", first planned because it is stale; ", got)
		}
		first := begin(t, p, 1, both)
		first.saw("roll/workers/wk1", step.Done)
		first.took("wk1")
		first.saw("roll/workers/wk2", step.Failed)
		if ends {
			first.finish("failed: wk2: no quorum")
			require(told(1), "failed, 1 of 2, ended true")
		} else {
			require(told(1), "killed, 1 of 2, ended false")
		}
		first.must(first.j.Close())

		second := begin(t, p, 2, rest)
		require(told(1), "running, 1 of 2, ended false")
		second.must(second.j.Close())
		require(told(1, 2), "killed, 1 of 2, ended false")

		third := begin(t, p, 3, rest)
		third.saw("roll/unfinished/wk2", step.Done)
		third.finish("done")
		third.must(third.j.Close())
		require(told(1, 2, 3), "done, 2 of 2, ended true")
	})
}

// A roll whose first plan was about reset machines is reported with its own plan, and a
// node that was put back does not count as one that the run has brought to its goal.
func TestTheRunsOwnPlan(t *testing.T) {
	t.Parallel()
	p := projectOf(t)
	reset := planning.Plan{Nodes: []planning.NodePlan{{Node: "wk1", Strategy: cluster.InstallReset}}}
	own := planning.Plan{Nodes: []planning.NodePlan{{Node: "wk2", Strategy: cluster.Recreate}, {Node: "wk3", Strategy: cluster.Recreate}}}
	back := planning.Plan{Run: "r", Nodes: []planning.NodePlan{{Node: "wk3", Strategy: cluster.PutBack}}}
	session := func(plan planning.Plan, fates map[string]step.Status, outcome string) {
		t.Helper()
		s := begin(t, p, 1, plan)
		for node, status := range fates {
			s.saw("roll/workers/"+node, status)
		}
		s.finish(outcome)
		s.must(s.j.Close())
	}
	require := func(want string) {
		t.Helper()
		r := must.Get(p.Runs().Find("r", past.Options{}))(t)
		done, planned := r.Counted()
		must.Equal(t, "it is told", want, fmt.Sprintf("%d of %d, %v", done, planned, *r.Fates))
	}
	session(reset, map[string]step.Status{"wk1": step.Done}, "done")
	session(own, map[string]step.Status{"wk2": step.Done, "wk3": step.Failed}, "failed: x")
	require("1 of 2, {[wk2] [wk3] []}")
	session(back, map[string]step.Status{"wk3": step.Done}, "done")
	require("1 of 2, {[wk2] [] [wk3]}")
}

// The last result of a node counts.
func TestTheLastFateOfANode(t *testing.T) {
	t.Parallel()
	p := projectOf(t)
	plan := planning.Plan{Nodes: []planning.NodePlan{{Node: "wk1", Strategy: cluster.InPlace}, {Node: "wk2", Strategy: cluster.InPlace}, {Node: "wk3", Strategy: cluster.InPlace}}}
	s := begin(t, p, 1, plan)
	s.saw("roll/workers/wk1", step.Done)
	s.saw("roll/workers/wk2", step.Failed)
	s.finish("failed: x")
	s.must(s.j.Close())
	s = begin(t, p, 2, planning.Plan{Run: "r", Nodes: plan.Nodes[:2]})
	s.saw("roll/unfinished/wk1", step.Failed)
	s.saw("roll/unfinished/wk2", step.Done)
	s.finish("failed: x")
	s.must(s.j.Close())
	r := must.Get(p.Runs().Find("r", past.Options{}))(t)
	must.Equal(t, "fates", "{[wk2] [wk1] [wk3]}", fmt.Sprint(*r.Fates))
}

// If a hook after the failed nodes fails, the run ends with that result, unless there was a worse one.
func TestAFailedHookAfterTheRun(t *testing.T) {
	t.Parallel()
	for was, want := range map[string]string{
		"done":                "failed: every node is done: hook x: it ended with 3",
		"failed: no quorum":   "failed: no quorum",
		"interrupted: Ctrl-C": "interrupted: Ctrl-C",
	} {
		p := projectOf(t)
		runWith(t, p, "r", was, nil)
		w := &work{Project: p}
		w.hooks.journal = "r"
		must.Do(t, w.noteFailed(errors.New("hook x: it ended with 3")))
		must.Equal(t, fmt.Sprintf("outcome of %q", was), want, must.Get(p.Runs().Outcome("r"))(t))
	}
}

func TestKeepAbout(t *testing.T) {
	t.Parallel()
	p := projectOf(t)
	lock := schematics.Lock{Version: 1, Talos: "v1.13.9", Schematics: map[string]schematics.Locked{"base": {BuildID: strings.Repeat("b", 64)}}}
	for _, pid := range []int{1, 1, 2} {
		j := must.Get(journal.Open(p.Runs().Dir, journal.Options{Run: "r"}))(t)
		w := &work{Project: p, command: "roll", o: RollOptions{Holder: claim.Holder{PID: pid}, Origin: past.Origin{Recast: "v1"}}}
		must.Do(t, errors.Join(w.keepAbout(j, lock), j.Close()))
	}
	r := must.Get(p.Runs().Find("r", past.Options{}))(t)
	want := &past.About{
		Command: "roll", Cluster: "c1", By: claim.Holder{PID: 1}, GoneOn: []claim.Holder{{PID: 2}}, Origin: past.Origin{Recast: "v1"},
		Talos: "v1.13.9", Lock: lock.Key(),
	}
	must.Equal(t, "about", want, r.About)
}

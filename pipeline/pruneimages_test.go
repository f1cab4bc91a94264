package pipeline

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/schematics"
)

// mirrorShelf is a repository of installers without parts: tag → digest.
type mirrorShelf map[string]string

func (m mirrorShelf) Tags(context.Context, string) ([]string, error) {
	return slices.Collect(maps.Keys(m)), nil
}

func (m mirrorShelf) Named(_ context.Context, tag string) (images.Named, bool, error) {
	digest, found := m[strings.TrimPrefix(tag, "r.acme/talos:")]
	return images.Named{Digest: digest}, found, nil
}

func (m mirrorShelf) Built(context.Context, string) (time.Time, error) {
	return time.Now().Add(-1000 * time.Hour), nil
}

func (m mirrorShelf) Referrers(context.Context, string) ([]string, error) { return nil, nil }

func (m mirrorShelf) Delete(_ context.Context, ref string) error {
	maps.DeleteFunc(m, func(_, digest string) bool { return "r.acme/talos@"+digest == ref })
	return nil
}

func digestOf(c string) string { return "sha256:" + strings.Repeat(c, 64) }

// mirrorProject is pruneProject with a mirror that has an installer of each lock and
// build, and one that a lock names under a tag of another build.
func mirrorProject(t *testing.T) (Project, *pruneSite, mirrorShelf) {
	t.Helper()
	p, s := pruneProject(t)
	p.Config.Images.Mirror = "r.acme/talos"
	lock := must.Get(schematics.ReadLock(p.LockFile()))(t)
	e := lock.Schematics["default"]
	e.Installer = "r.acme/talos@" + digestOf("1")
	lock.Schematics["default"] = e
	must.Do(t, schematics.WriteLock(p.LockFile(), lock))
	before, _, err := schematics.Previous(p.Locks().Dir, lock)
	if err != nil {
		t.Fatal(err)
	}
	tag := func(build string) string { return "v1.13.9-" + schematics.Short(build) }
	return p, s, mirrorShelf{
		images.TagOf(lock, e): digestOf("1"), images.TagOf(before, before.Schematics["default"]): digestOf("2"),
		tag(goneBuild): digestOf("3"), tag(openBuild): digestOf("4"), tag(runBuild): digestOf("5"),
		tag(strings.Repeat("d", 64)): digestOf("1"), "latest": digestOf("3"),
	}
}

func (s *pruneSite) pruneMirror(t *testing.T, p Project, shelf mirrorShelf, confirm bool) (PruneReport, error) {
	t.Helper()
	return Prune(t.Context(), p, s, s, &step.Runner{}, PruneOptions{
		Only: PruneMirror, Mirror: shelf, OlderThan: 168 * time.Hour, Holder: claim.Holder{Host: "h", Boot: "b", PID: 1, Start: "1"},
		Confirm: func(PruneReport) (bool, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.changes = append(s.changes, "ask")
			return confirm, nil
		},
	})
}

func TestPruneMirror(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, s, shelf := mirrorProject(t)
		isos := len(s.isos)
		rep := must.Get(s.pruneMirror(t, p, shelf, true))(t)
		lock := must.Get(schematics.ReadLock(p.LockFile()))(t)
		want := map[string]string{
			images.TagOf(lock, lock.Schematics["default"]): "recast.lock has it",
			"v1.13.9-dddddddddddd":                         "recast.lock has it",
			"v1.13.9-aaaaaaaaaaaa":                         "latest names the same image",
			"v1.13.9-bbbbbbbbbbbb":                         "removed",
			"v1.13.9-cccccccccccc":                         `VM 101 "wk1" on pve1 was created from it`,
		}
		got := map[string]string{}
		for _, v := range rep.Mirror {
			got[v.Tag] = strings.Join(v.Keep, "; ")
			if v.Removed {
				got[v.Tag] = "removed"
			}
			if strings.HasPrefix(v.Tag, "v1.13.8-") {
				want[v.Tag] = "the previous lock has it: the way back"
			}
		}
		if diff := cmp.Diff(want, got); diff != "" || len(want) != 6 {
			t.Errorf("%d verdicts (-want +got):\n%s", len(want), diff)
		}
		if diff := cmp.Diff([]string{"claim", "ask", "give back"}, s.changes); diff != "" || len(s.isos) != isos || len(shelf) != 6 {
			t.Errorf("%d ISOs, %d tags, changes (-want +got):\n%s", len(s.isos), len(shelf), diff)
		}
	})
}

func TestPruneLeavesTheMirrorAlone(t *testing.T) {
	t.Parallel()
	for title, tc := range map[string]struct {
		prune func(*testing.T, *pruneSite, Project, mirrorShelf) (PruneReport, error)
		fails string
		kind  fault.Kind
	}{
		"not asked for": {func(t *testing.T, s *pruneSite, p Project, _ mirrorShelf) (PruneReport, error) {
			return s.prune(t, p, true)
		}, "", 0},
		"not confirmed": {func(t *testing.T, s *pruneSite, p Project, m mirrorShelf) (PruneReport, error) {
			return s.pruneMirror(t, p, m, false)
		}, "not confirmed", fault.Interrupted},
		"there is none": {func(t *testing.T, s *pruneSite, p Project, m mirrorShelf) (PruneReport, error) {
			p.Config.Images.Mirror = ""
			return s.pruneMirror(t, p, m, true)
		}, "images.mirror is not set", fault.Config},
		"half a view": {func(t *testing.T, s *pruneSite, p Project, m mirrorShelf) (PruneReport, error) {
			s.blind = fault.Refusedf("sees half")
			return s.pruneMirror(t, p, m, true)
		}, "sees half", fault.Refused},
		"no right to see VMs": {func(t *testing.T, s *pruneSite, p Project, m mirrorShelf) (PruneReport, error) {
			s.lacks = "VM.Audit"
			return s.pruneMirror(t, p, m, true)
		}, "VM.Audit", fault.Refused},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p, s, shelf := mirrorProject(t)
				before := maps.Clone(shelf)
				rep, err := tc.prune(t, s, p, shelf)
				if err == nil && tc.fails != "" || err != nil && (tc.fails == "" || !strings.Contains(err.Error(), tc.fails) || fault.KindOf(err) != tc.kind) {
					t.Errorf("error is %v (%v), want %q in it", err, fault.KindOf(err), tc.fails)
				}
				must.Equal(t, "mirror", before, shelf)
				if tc.fails == "" && rep.Mirror != nil {
					t.Errorf("it was looked at: %v", rep.Mirror)
				}
			})
		})
	}
}

// TestPruneCache: an ISO that stays on the storages stays in the cache too.
func TestPruneCache(t *testing.T) {
	t.Parallel()
	const claimed, asked, given = "claim", "ask", "give back"
	for title, tc := range map[string]struct {
		prepare func(*pruneSite)
		only    string
		want    []string // changes on Proxmox
		gone    []string
		fails   string
	}{
		"alone": {only: PruneCache, want: []string{claimed, asked, given}, gone: []string{isoNamed(goneBuild), isoNamed(openBuild)}},
		"with all others": {
			want: []string{claimed, asked, "delete " + isoNamed(goneBuild), "delete " + isoNamed(openBuild), given},
			gone: []string{isoNamed(goneBuild), isoNamed(openBuild)},
		},
		"not asked for": {only: PruneISOs, want: []string{claimed, asked, "delete " + isoNamed(goneBuild), "delete " + isoNamed(openBuild), given}},
		"an unfinished replacement": {
			prepare: func(s *pruneSite) { s.park(`{"VM":{"ID":9,"Name":"wk9","Host":"pve1"}}`) },
			only:    PruneCache, want: []string{claimed, asked, given}, gone: []string{isoNamed(goneBuild)},
		},
		"deletes no ISO of a storage": {
			prepare: func(s *pruneSite) { s.lacks = "Datastore.Allocate" },
			only:    PruneCache, want: []string{claimed, asked, given}, gone: []string{isoNamed(goneBuild), isoNamed(openBuild)},
		},
		"no right to see VMs": {prepare: func(s *pruneSite) { s.lacks = "VM.Audit" }, only: PruneCache, fails: "VM.Audit"},
		"half a view":         {prepare: func(s *pruneSite) { s.blind = fault.Refusedf("sees half") }, only: PruneCache, fails: "sees half"},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p, s := pruneProject(t)
				err := os.MkdirAll(p.isoCache(), 0o700)
				for name, changed := range s.isos {
					file := filepath.Join(p.isoCache(), name)
					err = errors.Join(err, os.WriteFile(file, []byte("iso"), 0o600), os.Chtimes(file, changed, changed))
				}
				if err != nil {
					t.Fatal(err)
				}
				if tc.prepare != nil {
					tc.prepare(s)
				}
				rep, err := Prune(t.Context(), p, s, s, &step.Runner{}, PruneOptions{
					Only: tc.only, OlderThan: 168 * time.Hour, Holder: claim.Holder{Host: "h", Boot: "b", PID: 1, Start: "1"},
					Confirm: func(PruneReport) (bool, error) {
						s.mu.Lock()
						defer s.mu.Unlock()
						s.changes = append(s.changes, asked)
						return true, nil
					},
				})
				if err == nil && tc.fails != "" || err != nil && (tc.fails == "" || !strings.Contains(err.Error(), tc.fails) || fault.KindOf(err) != fault.Refused) {
					t.Errorf("error is %v (%v), want %q in it", err, fault.KindOf(err), tc.fails)
				}
				must.Equal(t, "changes on Proxmox", tc.want, s.changes)
				var gone []string
				for _, v := range rep.Cache {
					if _, err := os.Stat(filepath.Join(p.isoCache(), v.Name)); err != nil && v.Removed {
						gone = append(gone, v.Name)
					}
				}
				left, err := os.ReadDir(p.isoCache())
				if diff := cmp.Diff(tc.gone, gone); diff != "" || err != nil || len(left) != 5-len(gone) {
					t.Errorf("%d files are left, %v; removed from the cache (-want +got):\n%s", len(left), err, diff)
				}
			})
		})
	}
}

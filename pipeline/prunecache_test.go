package pipeline

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

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
				if diff := cmp.Diff(tc.want, s.changes); diff != "" {
					t.Errorf("changes on Proxmox (-want +got):\n%s", diff)
				}
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

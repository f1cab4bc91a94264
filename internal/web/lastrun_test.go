package web

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/past"
)

type noVMs struct{ cluster.Inventory }

func (noVMs) VMs(context.Context) ([]cluster.VM, error) { return nil, nil }

// TestTheLastRunIsTheSameEverywhere: of two runs of one minute, the one that started last has the ID that sorts first;
// and only the other one was on this machine. history, report, status, undo and ui mean the same one.
func TestTheLastRunIsTheSameEverywhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := options(t.TempDir(), "text")
		runs := o.Project.Runs()
		const first, last = "20261121-0421-ffff", "20261121-0421-0000"
		at := time.Date(2026, 11, 21, 4, 21, 10, 0, time.UTC)
		for i, dir := range []string{filepath.Join(runs.Dir, first), filepath.Join(runs.Elsewhere, "first", last)} {
			began := at.Add(time.Duration(i) * 20 * time.Millisecond)
			text := fmt.Sprintf(`{"started":%q,"finished":%q,"outcome":"done"}`, began.Format(time.RFC3339Nano), began.Add(time.Millisecond).Format(time.RFC3339Nano))
			for name, content := range map[string]string{"RUN": text, "about.json": `{"command":"roll","by":{"host":"h"}}`} {
				if err := os.MkdirAll(dir, 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		all, problems := runs.All(past.Options{})
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		if got := ui.HistoryOf(all, nil, 0, o.Log, o.Hide).Runs[0].ID; got != last {
			t.Errorf("history: %s", got)
		}
		if run, err := runs.Find("", past.Options{}); err != nil || run.ID != last {
			t.Errorf("report: %s, %v", run.ID, err)
		}
		status, err := pipeline.Status(t.Context(), o.Project, pipeline.StatusSources{Proxmox: noVMs{}})
		if err != nil || status.LastRun == nil || status.LastRun.ID != last || !status.LastRun.Elsewhere {
			t.Errorf("status: %+v, %v", status.LastRun, err)
		}
		if order, sure := runs.Order([]planning.Replacing{{Run: first}, {Run: last}}); order[0].Run != last || !sure {
			t.Errorf("undo: %v, %t", order, sure)
		}
		if page := open(t, o).page("run"); !strings.Contains(page, last) || strings.Contains(page, first) {
			t.Errorf("ui:\n%s", page)
		}
	})
}

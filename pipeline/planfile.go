package pipeline

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/pipeline/past"
	"github.com/recast-sh/recast/schematics"
)

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

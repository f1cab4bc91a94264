package rolling

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

const snapshotKey = "etcd-snapshot"

// SnapshotStep saves etcd to a directory before the first control plane is touched.
func (r *Roll) SnapshotStep(p planning.Plan, dir string) step.Step {
	all := Node{Roll: r, Path: "roll"} // stands for all nodes
	return all.Repeating("snapshot-etcd", step.Step{
		ID: "snapshot-etcd", Code: fault.EtcdSnapshot, Title: "save a snapshot of etcd to " + dir,
		Skip: func(ctx context.Context) (string, error) {
			var file string
			found, err := r.Journal.Get(snapshotKey, &file)
			if err != nil || !found {
				return "", err
			}
			if _, err := etcd.ReadSnapshot(ctx, file, false); err != nil {
				return "", nil //nolint:nilerr // gone or cut off: taken again
			}
			return "saved as " + file, nil
		},
		Do: func(ctx context.Context) error { return r.takeSnapshot(ctx, p, dir) },
	})
}

func (r *Roll) takeSnapshot(ctx context.Context, p planning.Plan, dir string) error {
	file := filepath.Join(dir, fmt.Sprintf("etcd-%s-%s.db", r.Cluster, r.Run))
	var errs []error
	for _, e := range p.ControlPlanes {
		if _, err := etcd.SaveSnapshot(ctx, file, func(w io.Writer) error { return r.Talos.EtcdSnapshot(ctx, e.Addr, 0, w) }); err != nil {
			errs = append(errs, fmt.Errorf("snapshot of etcd from %s: %w", e.Node, err))
			continue
		}
		return r.Journal.Put(snapshotKey, file)
	}
	none := fault.EtcdSnapshot.Refusedf("no control plane gave a snapshot of etcd that can be used")
	if !slices.ContainsFunc(errs, func(err error) bool { return !cluster.IsUnanswered(err) }) {
		none = &cluster.SilentError{Err: none}
	}
	return errors.Join(append(errs, none)...)
}

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
	"github.com/recast-sh/recast/internal/words"
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

// NoteEntry records on the Node which boot entry the machine's EFI variables still name, if the system disk has
// another entry: the disk was made from a disk image, or is back after a replacement. The variables outlive the disk,
// and only an installer writes them. The machine has just booted by its firmware: an entry of that name on the disk
// would have been booted (config_select_default_entry in systemd's boot.c).
func NoteEntry(n *Node) step.Step {
	look := func(ctx context.Context) (was, is cluster.Booted, err error) {
		m, err := cluster.ReadBooted(ctx, n.Talos, n.Plan.Addr)
		if err != nil {
			return was, is, fmt.Errorf("read machine %s: %w", n.Plan.Addr, err)
		}
		k, err := n.KubeNode(ctx)
		if m.NextBoot != m.BootEntry && m.BootEntry != "" {
			is.Gone = m.NextBoot
		}
		return k.Booted, is, err
	}
	return step.Step{
		ID: "note-entry", Title: "note the boot entry that an earlier disk has left",
		Skip: func(ctx context.Context) (string, error) {
			was, is, err := look(ctx)
			if err != nil || was != is {
				return "", err
			}
			return words.OrNone(is.Gone), nil
		},
		Do: func(ctx context.Context) error {
			_, is, err := look(ctx)
			if err != nil {
				return err
			}
			return n.Kube.SetBooted(ctx, n.Plan.Node, is)
		},
	}
}

// DeleteNode returns the step that deletes the node's Node, unless mayGo refuses. mayStay, if set, reports which Node
// to keep.
func DeleteNode(n *Node, title string, mayGo func(context.Context, cluster.KubeNode) error, mayStay func(cluster.KubeNode) bool) step.Step {
	look := func(ctx context.Context) (k cluster.KubeNode, done string, err error) {
		k, err = n.Kube.Node(ctx, n.Plan.Node)
		switch {
		case errors.Is(err, cluster.ErrNotFound):
			return k, "Kubernetes has none of that name", nil
		case err != nil:
			return k, "", fmt.Errorf("ask Kubernetes for node %s: %w", n.Plan.Node, err)
		case mayStay != nil && mayStay(k):
			return k, "it is that of the new machine", nil
		}
		return k, "", nil
	}
	return step.Step{
		ID: "delete-node", Title: title, Risk: step.Destructive,
		Skip: func(ctx context.Context) (string, error) { _, done, err := look(ctx); return done, err },
		Do: func(ctx context.Context) error {
			k, done, err := look(ctx)
			if err != nil || done != "" {
				return err
			}
			if err := mayGo(ctx, k); err != nil {
				return err
			}
			return fault.Prefix("delete Node "+k.Name, n.Kube.DeleteNode(ctx, k.Name, k.UID))
		},
	}
}

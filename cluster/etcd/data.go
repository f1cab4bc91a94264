package etcd

import (
	"context"
	"errors"
	"fmt"

	"github.com/recast-sh/recast/cluster"
)

// HasData reports whether the data directory of etcd on that machine holds anything.
func HasData(ctx context.Context, files cluster.FileReader, at cluster.Endpoint, uuid string) (found bool, err error) {
	err = files.Files(ctx, at.Addr, uuid, func(ctx context.Context, f cluster.MachineFiles) error {
		return f.List(ctx, DataDir, false, func(cluster.MachineFile) error { found = true; return nil })
	})
	if errors.Is(err, cluster.ErrNotFound) {
		err = nil
	}
	if err != nil {
		return false, fmt.Errorf("look for data of etcd on %s: %w", at.Node, err)
	}
	return found, nil
}

// DataDir is where Talos keeps etcd's data; it bootstraps a new etcd only if that is empty
// (internal/app/machined/internal/server/v1alpha1, Bootstrap).
const DataDir = "/var/lib/etcd"

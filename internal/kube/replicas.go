package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

// Replicas implements cluster.VolumeReader. A system that is not installed costs no
// request.
func (c VolumeReader) Replicas(ctx context.Context) ([]replica.System, error) {
	groups, err := c.groups(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for replicated volumes: %w", err)
	}
	return c.replicasOf(ctx, groups)
}

// NodeData implements cluster.VolumeReader: LocalData and Replicas with one list of
// the API groups.
func (c VolumeReader) NodeData(ctx context.Context, nodes ...cluster.KubeNode) (local map[string][]cluster.LocalData, systems []replica.System, err error) {
	groups, errGroups := c.groups(ctx)
	err = wait.All(
		func() (err error) {
			local, err = c.localData(ctx, groups, errGroups, nodes)
			return err
		},
		func() (err error) {
			if errGroups == nil {
				systems, err = c.replicasOf(ctx, groups)
			}
			return err
		},
	)
	return local, systems, err
}

func (c VolumeReader) replicasOf(ctx context.Context, groups []metav1.APIGroup) (systems []replica.System, err error) {
	var errs []error
	for _, known := range c.replicators() {
		installed, err := supports(groups, known.version)
		if installed {
			var s replica.System
			s, err = known.read(ctx)
			systems = append(systems, s)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fault.WithHint(fmt.Errorf("look for replicated volumes: %w", err),
			"roll.storage: off does not look at them, and has the roll take nodes out whatever becomes of the volumes")
	}
	return systems, nil
}

// replicator reads a storage system whose objects are of that version.
type replicator struct {
	name    string
	version schema.GroupVersion
	read    func(context.Context) (replica.System, error)
	watch   func(ctx context.Context, tell func(look bool)) error
}

func (c VolumeReader) replicators() []replicator {
	return []replicator{
		{longhornName, longhornVersion, c.longhornReplicas, c.watchLonghorn},
		{cephName, rookVersion, c.cephReplicas, c.watchCeph},
	}
}

// WatchReplicas implements cluster.VolumeReader.
func (c VolumeReader) WatchReplicas(ctx context.Context, system string, tell func(look bool)) error {
	for _, known := range c.replicators() {
		if known.name == system {
			return known.watch(ctx, tell)
		}
	}
	return fmt.Errorf("storage system %q is not known", system)
}

// watchCustom reports the objects of a kind as they change.
func watchCustom[T any](ctx context.Context, c *conn, r schema.GroupVersionResource, tell func(look bool), worth func(T) bool) error {
	body, err := c.streams.Discovery().RESTClient().Get().AbsPath("/apis", r.Group, r.Version, r.Resource).
		Param("watch", "true").SetHeader("Accept", "application/json").Stream(ctx)
	if err != nil {
		return fmt.Errorf("watch %s: %w", r.GroupResource(), c.translate(err))
	}
	defer body.Close()
	tell(false)
	for events := json.NewDecoder(body); ; {
		var event struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		err := events.Decode(&event)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, io.EOF), err == nil && event.Type == "ERROR":
			return errWatchEnded
		case err != nil:
			return fmt.Errorf("watch %s: %w", r.GroupResource(), c.translate(err))
		}
		var object T
		if json.Unmarshal(event.Object, &object) == nil && worth(object) {
			tell(true)
		}
	}
}

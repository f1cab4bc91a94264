package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/linstor"
	"github.com/recast-sh/recast/internal/mayastor"
	"github.com/recast-sh/recast/internal/wait"
)

// Replicas implements cluster.VolumeReader. A system that is not installed costs no
// request.
func (c *Client) Replicas(ctx context.Context) ([]replica.System, error) {
	groups, err := c.groups(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for replicated volumes: %w", err)
	}
	return c.replicasOf(ctx, groups)
}

// NodeData implements cluster.VolumeReader: LocalData and Replicas with one list of
// the API groups.
func (c *Client) NodeData(ctx context.Context, nodes ...cluster.KubeNode) (local map[string][]cluster.LocalData, systems []replica.System, err error) {
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

func (c *Client) replicasOf(ctx context.Context, groups []metav1.APIGroup) (systems []replica.System, err error) {
	var errs []error
	for _, known := range c.replicators() {
		read, err := known.installed(ctx, groups)
		if read != nil {
			var s replica.System
			s, err = read(ctx)
			systems = append(systems, s)
		}
		errs = append(errs, fault.WithHint(err, "%s does not look at it, and has the roll take nodes out whatever becomes of its volumes", replica.Off(known.name)))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("look for replicated volumes: %w", err)
	}
	return systems, nil
}

// skips says whether a storage system is not looked at.
func (c *Client) skips(system string) bool { return slices.Contains(c.skip, strings.ToLower(system)) }

// look reads a storage system once.
type look = func(context.Context) (replica.System, error)

// replicator knows a storage system.
type replicator struct {
	name      string
	installed func(context.Context, []metav1.APIGroup) (look, error) // how to read it; nil: it is not installed
	watch     func(ctx context.Context, tell func(look bool)) error  // nil: it can't be watched
}

// replicators are the storage systems that are looked at.
func (c *Client) replicators() []replicator {
	all := []replicator{
		{longhornName, with(longhornVersion, c.longhornReplicas), c.watchLonghorn},
		{cephName, with(rookVersion, c.cephReplicas), c.watchCeph},
		{linstor.Name, with(piraeusVersion, c.linstorReplicas), nil},
		{mayastor.Name, c.readMayastor, nil},
	}
	return slices.DeleteFunc(all, func(known replicator) bool { return c.skips(known.name) })
}

// with is for a system whose objects are of that version.
func with(version schema.GroupVersion, as look) func(context.Context, []metav1.APIGroup) (look, error) {
	return func(_ context.Context, groups []metav1.APIGroup) (look, error) {
		installed, err := supports(groups, version)
		if !installed {
			return nil, err
		}
		return as, nil
	}
}

// WatchReplicas implements cluster.VolumeReader.
func (c *Client) WatchReplicas(ctx context.Context, system string, tell func(look bool)) error {
	for _, known := range c.replicators() {
		switch {
		case known.name != system:
		case known.watch == nil:
			<-ctx.Done() // it never tells, so the wait looks as often as without a watch
			return ctx.Err()
		default:
			return known.watch(ctx, tell)
		}
	}
	return fmt.Errorf("storage system %q is not known", system)
}

// watchCustom reports the objects of a kind as they change.
func watchCustom[T any](ctx context.Context, c *Client, r schema.GroupVersionResource, tell func(look bool), worth func(T) bool) error {
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

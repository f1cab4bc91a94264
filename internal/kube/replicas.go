package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/linstor"
	"github.com/recast-sh/recast/internal/mayastor"
	"github.com/recast-sh/recast/internal/wait"
)

// Replicas implements cluster.VolumeReader. A system that is not installed costs no request.
func (c *Client) Replicas(ctx context.Context) ([]replica.System, error) {
	groups, err := c.groups(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for replicated volumes: %w", err)
	}
	return c.replicasOf(ctx, groups)
}

// NodeData implements cluster.VolumeReader: LocalData and Replicas with one list of the API groups.
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
	for _, known := range c.storageSystems() {
		version, installed, err := known.find(ctx, groups)
		if installed && err == nil {
			var s replica.System
			s, err = known.read(ctx, version)
			systems = append(systems, s)
		}
		errs = append(errs, fault.WithHint(err, "%s does not look at it, and has the roll take nodes out whatever becomes of its volumes", replica.Off(known.name)))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("look for replicated volumes: %w", err)
	}
	return systems, nil
}

type storageSystem struct {
	name  string
	find  finder
	read  func(context.Context, schema.GroupVersion) (replica.System, error) // its volumes, once
	watch func(ctx context.Context, tell func(look bool)) error              // nil: it can't be watched
	hold  *holding                                                           // nil: recast can't have it wait longer
}

// finder finds the version of a system's objects; false if the system is not installed.
type finder = func(context.Context, []metav1.APIGroup) (schema.GroupVersion, bool, error)

// holding is how a storage system is told to wait longer for a node.
type holding struct {
	// held lists the system's settings. It lists none if the system can't be asked: then recast has changed nothing.
	held func(context.Context) ([]replica.Setting, error)
	// settings lists the settings to change. It is called again whenever a change is repeated.
	settings func(context.Context) ([]replica.Setting, error)
	begin    string // what the change does; the node's name follows
	needs    string // the rights that the change takes
	// right returns the right that doctor asks for; nil: there is nothing to change.
	right  func(context.Context) (*authorizationv1.ResourceAttributes, error)
	mayNot string // what can't be done without the right
}

// storageSystems lists the systems that are looked at: all but those in Options.Skip.
func (c *Client) storageSystems() []storageSystem {
	all := []storageSystem{
		{longhornName, withVersion(longhornVersion), c.longhornReplicas, c.watchLonghorn, &holding{
			held: c.longhornHeld, settings: c.longhornSettings, begin: "hold back the rebuild of Longhorn for ",
			needs: "the verbs list and patch on settings of longhorn.io", right: c.longhornRight, mayNot: "patch settings of longhorn.io",
		}},
		{cephName, withVersion(rookVersion), c.cephReplicas, c.watchCeph, nil},
		{linstor.Name, withVersion(piraeusVersion), c.linstorReplicas, nil, &holding{
			held: c.linstorHeld, settings: c.linstorSettings, begin: "have LINSTOR wait for ",
			needs: "the verbs get and update on services/proxy of LINSTOR's controller", right: c.linstorRight, mayNot: "update services/proxy of LINSTOR's controller",
		}},
		{mayastor.Name, c.mayastorVersion, c.mayastorReplicas, nil, nil},
	}
	return slices.DeleteFunc(all, func(known storageSystem) bool { return slices.Contains(c.skip, strings.ToLower(known.name)) })
}

func (c *Client) storageSystem(name string) (storageSystem, bool) {
	all := c.storageSystems()
	return cluster.Find(all, func(known storageSystem) bool { return known.name == name })
}

// withVersion returns the finder of a system whose objects are of that version.
func withVersion(version schema.GroupVersion) finder {
	return func(_ context.Context, groups []metav1.APIGroup) (schema.GroupVersion, bool, error) {
		installed, err := supports(groups, version)
		return version, installed, err
	}
}

// WatchReplicas implements cluster.VolumeReader.
func (c *Client) WatchReplicas(ctx context.Context, system string, tell func(look bool)) error {
	known, found := c.storageSystem(system)
	switch {
	case !found:
		return fmt.Errorf("storage system %q is not known", system)
	case known.watch == nil:
		<-ctx.Done() // tell is never called, so the wait looks as often as without a watch
		return ctx.Err()
	}
	return known.watch(ctx, tell)
}

// watchCustom reports changes in the state of a kind's objects; worth says whether a change is worth a look.
func watchCustom[T any](ctx context.Context, c *Client, r schema.GroupVersionResource, tell func(look bool), state func(T) (metav1.ObjectMeta, string), worth func(was, is string) bool) error {
	body, err := c.streams.Discovery().RESTClient().Get().AbsPath("/apis", r.Group, r.Version, r.Resource).
		Param("watch", "true").SetHeader("Accept", "application/json").Stream(ctx)
	if err != nil {
		return fmt.Errorf("watch %s: %w", r.GroupResource(), c.translate(err))
	}
	defer body.Close()
	tell(false)
	states := map[string]string{}
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
		if json.Unmarshal(event.Object, &object) != nil {
			continue
		}
		meta, is := state(object)
		name := meta.Namespace + "/" + meta.Name
		was, known := states[name]
		if states[name] = is; known && worth(was, is) {
			tell(true)
		}
	}
}

// Holds implements replica.HoldReader.
func (c *Client) Holds(ctx context.Context) ([]replica.Hold, error) {
	groups, err := c.groups(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for what is held back: %w", err)
	}
	var all []replica.Hold
	var errs []error
	for _, known := range c.storageSystems() {
		if known.hold == nil {
			continue
		}
		holds, err := known.holds(ctx, groups)
		all, errs = append(all, holds...), append(errs, err)
	}
	return all, errors.Join(errs...)
}

func (s storageSystem) holds(ctx context.Context, groups []metav1.APIGroup) ([]replica.Hold, error) {
	if _, installed, err := s.find(ctx, groups); err != nil || !installed {
		return nil, err
	}
	settings, err := s.hold.held(ctx)
	if err != nil {
		return nil, err
	}
	return replica.Held(settings)
}

// HoldRebuild implements replica.Holder.
func (c *Client) HoldRebuild(ctx context.Context, system, node, run string, atLeast time.Duration) (said string, err error) {
	begin := func(h *holding) string { return h.begin + node }
	err = c.amendSettings(ctx, system, begin, func(ctx context.Context, settings []replica.Setting) error {
		said, err = replica.HoldRebuild(ctx, settings, node, run, atLeast)
		return err
	})
	return said, err
}

// GiveBack implements replica.Holder.
func (c *Client) GiveBack(ctx context.Context, system string, nodes ...string) (said string, err error) {
	begin := func(*holding) string {
		return "give back what " + system + " was told for " + strings.Join(nodes, ", ")
	}
	err = c.amendSettings(ctx, system, begin, func(ctx context.Context, settings []replica.Setting) error {
		said, err = replica.GiveBack(ctx, settings, nodes...)
		return err
	})
	return said, err
}

// amendSettings changes how long a system waits, and the memo of the change. If someone else writes between our read
// and our write, or the answer is lost, it reads the settings again and calls change again.
func (c *Client) amendSettings(ctx context.Context, system string, what func(*holding) string, change func(context.Context, []replica.Setting) error) error {
	known, _ := c.storageSystem(system)
	if known.hold == nil {
		return fmt.Errorf("the rebuild of %s can't be held back", system)
	}
	err := c.repeat(ctx, what(known.hold), func(ctx context.Context) error {
		settings, err := known.hold.settings(ctx)
		if err != nil {
			return err
		}
		return change(ctx, settings)
	})
	if fault.KindOf(err) == fault.Refused {
		err = fault.WithHint(err, "the kubeconfig needs %s; %s does not touch it", known.hold.needs, replica.Off(system))
	}
	return err
}

// MayHold implements replica.HoldReader.
func (c *Client) MayHold(ctx context.Context, system string) error {
	known, _ := c.storageSystem(system)
	if known.hold == nil {
		return nil
	}
	right, err := known.hold.right(ctx)
	if err != nil || right == nil {
		return err
	}
	may, err := c.may(ctx, right)
	switch {
	case err != nil:
		return fmt.Errorf("ask what the kubeconfig may do: %w", err)
	case !may:
		return fault.WithHint(fault.Refusedf("the kubeconfig may not %s", known.hold.mayNot), "where a node is away longer than %s waits, a roll has it wait longer, and needs that right", system)
	}
	return nil
}

package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
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
		{linstorName, withVersion(piraeusVersion), c.linstorReplicas, nil, &holding{
			held: c.linstorHeld, settings: c.linstorSettings, begin: "have LINSTOR wait for ",
			needs: "the verbs get and update on services/proxy of LINSTOR's controller", right: c.linstorRight, mayNot: "update services/proxy of LINSTOR's controller",
		}},
		{mayastorName, c.mayastorVersion, c.mayastorReplicas, nil, nil},
	}
	return slices.DeleteFunc(all, func(known storageSystem) bool { return slices.Contains(c.skip, strings.ToLower(known.name)) })
}

func (c *Client) storageSystem(name string) (storageSystem, bool) {
	return cluster.Find(c.storageSystems(), func(known storageSystem) bool { return known.name == name })
}

func withVersion(version schema.GroupVersion) finder {
	return func(_ context.Context, groups []metav1.APIGroup) (schema.GroupVersion, bool, error) {
		installed, err := supports(groups, version)
		return version, installed, err
	}
}

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

func (c *Client) HoldRebuild(ctx context.Context, system, node, run string, atLeast time.Duration) (said string, err error) {
	begin := func(h *holding) string { return h.begin + node }
	err = c.amendSettings(ctx, system, begin, func(ctx context.Context, settings []replica.Setting) error {
		said, err = replica.HoldRebuild(ctx, settings, node, run, atLeast)
		return err
	})
	return said, err
}

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

// Labels and names of Mayastor's chart (mayastor-extensions, chart/templates/mayastor/apis/api-rest-service.yaml and
// agents/core/agent-core-deployment.yaml).
const (
	mayastorName  = "Mayastor"
	mayastorGroup = "openebs.io" // also of other engines of OpenEBS
	mayastorPage  = 200          // volumes per request
	// mayastorOnline is a state of nodes, pools, replicas, children and volumes.
	mayastorOnline = "Online"
	mayastorPool   = "diskpools"
	mayastorLabel  = "app=api-rest,openebs.io/release"
	mayastorPort   = "8081"
	mayastorCore   = "app=agent-core,openebs.io/release"
	mayastorWaits  = "--faulted-child-wait-period"
	mayastorHA     = "agent-ha-cluster"
	mayastorNoHA   = "--disable-ha"
	// mayastorPatience is how long Mayastor waits for a replica unless it is told otherwise (TWAIT_SPERF in
	// mayastor-control-plane, rebuild_policies.rs).
	mayastorPatience = 10 * time.Minute
)

// diskPool is the part that we read of Mayastor's DiskPool, in each of its versions (k8s/operators/src/pool/diskpool/crd).
type diskPool struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Node  string   `json:"node"`
		Disks []string `json:"disks"` // "/dev/sdb", "aio:///dev/sdb?blk_size=4096", "aio:///var/local/openebs/io-engine/pool.img"
	} `json:"spec"`
}

// mayastorPools finds Mayastor's pools whose disk is a file of the node (io-engine, bdev/aio.rs and bdev/uring.rs).
func (l *localScan) mayastorPools(ctx context.Context, groups []metav1.APIGroup) error {
	version, installed, err := l.mayastorVersion(ctx, groups)
	if err != nil || !installed {
		return err
	}
	pools, err := listCustom[diskPool](ctx, l.Client, version.WithResource(mayastorPool), "")
	if err != nil {
		return err
	}
	for _, p := range pools {
		n := l.byName(p.Spec.Node)
		for _, disk := range p.Spec.Disks {
			u, err := url.Parse(disk)
			if n == nil || err != nil || u.Host != "" || !isPersistent(path.Clean("/"+u.Path)) {
				continue
			}
			at := path.Clean("/" + u.Path)
			n.pools = append(n.pools, cluster.LocalData{Name: "mayastor" + at, What: fmt.Sprintf("Mayastor DiskPool %s (%s)", p.Metadata.Name, at), Path: at})
		}
	}
	return nil
}

// mayastorVersion finds the version of Mayastor's pools. The API group alone proves nothing: other engines of OpenEBS
// install it, too.
func (c *Client) mayastorVersion(ctx context.Context, groups []metav1.APIGroup) (gv schema.GroupVersion, installed bool, err error) {
	versions, _ := servedVersions(groups, mayastorGroup)
	for _, version := range versions {
		gv := schema.GroupVersion{Group: mayastorGroup, Version: version}
		resources, err := c.resources(ctx, gv)
		if err != nil {
			return gv, false, err
		}
		if slices.ContainsFunc(resources, func(served metav1.APIResource) bool { return served.Name == mayastorPool }) {
			return gv, true, nil
		}
	}
	return gv, false, nil
}

// mayastorReplicas reads the volumes of Mayastor. While Mayastor can't be read, every node with a pool may have
// volumes.
func (c *Client) mayastorReplicas(ctx context.Context, version schema.GroupVersion) (replica.System, error) {
	s := replica.System{Name: mayastorName, Waits: mayastorWaits}
	pools, err := listCustom[diskPool](ctx, c, version.WithResource(mayastorPool), "")
	if err != nil || len(pools) == 0 {
		return s, err
	}
	api, found, err := c.findService(ctx, mayastorLabel, mayastorPort)
	if err != nil {
		return s, err
	}
	s.Away = "there is no Service with " + mayastorLabel
	if found {
		read, err := readMayastor(ctx, api.get)
		if !errors.Is(err, errSilent) {
			if err == nil {
				read.Waits = mayastorWaits
				read.Patience, read.Stuck, err = c.mayastorSettings(ctx, api.service.Namespace)
				read.Unstuck = "turn on agents.ha.enabled of its chart, or move the pods that use it to the node"
			}
			return read, err
		}
		s.Away = foreign.Line(err.Error())
	}
	s.Holders = cluster.Each(pools, func(p diskPool) string { return p.Spec.Node })
	return s, nil
}

// mayastorSettings reads the arguments and containers of agent-core: how long it waits, 0 if that can't be parsed,
// and why it would not move a volume's target away from a lost node; "": it would (agent-core-deployment.yaml in
// mayastor-extensions, chart/templates/mayastor/agents/core).
func (c *Client) mayastorSettings(ctx context.Context, namespace string) (waits time.Duration, stuck string, err error) {
	list, err := c.api.AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{LabelSelector: mayastorCore})
	if err != nil {
		return 0, "", fmt.Errorf("list deployments with %s: %w", mayastorCore, c.translate(err))
	}
	waits, stuck = mayastorPatience, "there is no Deployment with a container "+mayastorHA
	containers := slices.Concat(cluster.Each(list.Items, func(d appsv1.Deployment) []corev1.Container { return d.Spec.Template.Spec.Containers })...)
	if slices.ContainsFunc(containers, func(c corev1.Container) bool { return c.Name == mayastorHA }) {
		stuck = ""
	}
	for _, container := range containers {
		for _, arg := range container.Args {
			if value, ok := strings.CutPrefix(arg, mayastorWaits+"="); ok {
				waits, _ = time.ParseDuration(strings.ReplaceAll(value, " ", "")) // humantime has other units, too
			}
			if arg == mayastorNoHA || arg == mayastorNoHA+"=true" {
				stuck = "its HA agents are off (" + mayastorNoHA + ")"
			}
		}
	}
	return waits, stuck, nil
}

// The fields that are read (mayastor-control-plane, control-plane/rest/openapi-specs/v0_api_spec.yaml).
type (
	// mayastorNode has the name of its Kubernetes node (io-engine's -N in mayastor-extensions,
	// chart/templates/mayastor/io/io-engine-daemonset.yaml).
	mayastorNode struct {
		ID    string `json:"id"`
		State struct {
			Status string `json:"status"`
		} `json:"state"`
	}
	mayastorPoolState struct {
		ID   string `json:"id"`
		Spec struct {
			Node string `json:"node"`
		} `json:"spec"`
		State struct {
			Status string `json:"status"`
		} `json:"state"`
	}
	mayastorVolumes struct {
		Entries []mayastorVolume `json:"entries"`
		Next    int              `json:"next_token"`
	}
	mayastorVolume struct {
		Spec struct {
			UUID     string          `json:"uuid"`
			Replicas int             `json:"num_replicas"`
			Target   *mayastorTarget `json:"target"` // nil: not published, so no replica is written to
		} `json:"spec"`
		State struct {
			Status   string                      `json:"status"`
			Replicas map[string]mayastorTopology `json:"replica_topology"`
		} `json:"state"`
	}
	// mayastorTarget is the nexus of a volume. The nodes of the pods that use the volume, its frontends, connect to the
	// nexus; older versions are not told which (csi-driver's controller asks for the pod's node, and gets another
	// node if that one has no io-engine or is cordoned).
	mayastorTarget struct {
		Node      string `json:"node"`
		Frontends []struct {
			Name string `json:"name"`
		} `json:"frontend_nodes"`
	}
	mayastorTopology struct {
		Node  string `json:"node"`
		State string `json:"state"`
		// Child is the state of the replica in the volume's nexus; "": the volume has no nexus, or the replica is not in it.
		Child   string `json:"child-status"`
		Rebuilt *int   `json:"rebuild-progress"` // percent; nil: no rebuild runs
	}
)

func readMayastor(ctx context.Context, get exchange) (replica.System, error) {
	s := replica.System{Name: mayastorName}
	var nodes []mayastorNode
	var pools []mayastorPoolState
	var all []mayastorVolume
	// The first answer says whether the API answers the other requests.
	if err := get(ctx, "/v0/nodes", &nodes); err != nil {
		return s, err
	}
	err := wait.All(
		func() error { return get(ctx, "/v0/pools", &pools) },
		func() (err error) {
			all, err = mayastorVolumesOf(ctx, get)
			return err
		},
	)
	if err != nil {
		return s, err
	}
	s.Nodes = cluster.Each(nodes, func(n mayastorNode) replica.Node { return n.standing(pools) })
	s.Volumes = cluster.Each(all, mayastorVolume.volume)
	return s, nil
}

func mayastorVolumesOf(ctx context.Context, get exchange) (all []mayastorVolume, err error) {
	for token := 0; ; {
		var page mayastorVolumes
		if err := get(ctx, fmt.Sprintf("/v0/volumes?max_entries=%d&starting_token=%d", mayastorPage, token), &page); err != nil {
			return nil, err
		}
		all = append(all, page.Entries...)
		if page.Next <= token {
			return all, nil
		}
		token = page.Next
	}
}

// standing says whether the node's replicas can be used.
func (n mayastorNode) standing(pools []mayastorPoolState) replica.Node {
	out := replica.Node{Name: n.ID}
	if n.State.Status != mayastorOnline {
		out.Down = foreign.Line("is " + cmp.Or(n.State.Status, "unknown") + " for Mayastor")
	}
	offline := cluster.Where(pools, func(p mayastorPoolState) bool { return p.Spec.Node == n.ID && p.State.Status != mayastorOnline })
	bad := cluster.Each(offline, func(p mayastorPoolState) string {
		return foreign.Line(p.ID + " is " + cmp.Or(p.State.Status, "unknown"))
	})
	if slices.Sort(bad); len(bad) > 0 {
		out.Lacks = "its pool " + strings.Join(bad, ", ") + " for Mayastor"
	}
	return out
}

func (v mayastorVolume) volume() replica.Volume {
	published := v.Spec.Target != nil
	out := replica.Volume{Name: foreign.Line(v.Spec.UUID), Wanted: v.Spec.Replicas, Alone: v.Spec.Replicas == 1, Idle: !published && v.State.Status != "Faulted"}
	if published {
		out.Through = foreign.Line(v.Spec.Target.Node)
		for _, user := range v.Spec.Target.Frontends {
			out.Users = append(out.Users, foreign.Line(user.Name))
		}
	}
	out.Replicas = cluster.Each(slices.Sorted(maps.Keys(v.State.Replicas)), func(id string) replica.Replica { return v.State.Replicas[id].replica(published) })
	out.Robust = v.State.Status == mayastorOnline && out.Whole()
	return out
}

// replica returns the state of a replica. While a volume is published, its nexus knows which replicas are current.
// Otherwise nothing shows that, and a replica that can be opened counts as current.
func (t mayastorTopology) replica(published bool) replica.Replica {
	filled := t.Rebuilt != nil || t.Child == "Degraded"
	return replica.Replica{
		Node: t.Node, Healthy: t.State == mayastorOnline && !filled && (t.Child == mayastorOnline || !published && t.Child == ""),
		Rebuilt: filled && t.State == mayastorOnline,
	}
}

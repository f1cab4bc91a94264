package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/wait"
)

const (
	longhornName    = "Longhorn"
	longhornManager = "longhorn-manager" // its DaemonSet (types/deploy.go, LonghornManagerDaemonSetName)
	// longhornWait and longhornDrain are settings (types/setting.go).
	longhornWait  = "replica-replenishment-wait-interval"
	longhornDrain = "node-drain-policy"
)

// longhornVolumeState is the part that we read of Longhorn's Volume
// (k8s/pkg/apis/longhorn/v1beta2/volume.go).
type longhornVolumeState struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Replicas int `json:"numberOfReplicas"`
	} `json:"spec"`
	Status struct {
		State      string `json:"state"`
		Robustness string `json:"robustness"`
		Kubernetes struct {
			Namespace string `json:"namespace"`
			Claim     string `json:"pvcName"`
		} `json:"kubernetesStatus"`
	} `json:"status"`
}

// replica says how a copy is. HealthyAt is set once it is complete, and cleared
// before it is filled again; FailedAt is set when it fails, and cleared likewise
// (replica.go; isHealthyAndActiveReplica in controller/volume_controller.go).
func (r longhornReplica) replica() replica.Replica {
	s := r.Spec
	empty := s.HealthyAt == "" && s.FailedAt == ""
	return replica.Replica{
		Node:    s.Node,
		Healthy: s.HealthyAt != "" && s.FailedAt == "" && s.Active && r.Metadata.DeletionTimestamp == nil,
		Unused:  empty && s.LastHealthyAt == "",
		Rebuilt: empty && r.Status.State == "running",
	}
}

// longhornReplicas reads the volumes of Longhorn and where their copies are.
func (c *Client) longhornReplicas(ctx context.Context, _ schema.GroupVersion) (replica.System, error) {
	var volumes []longhornVolumeState
	var copies []longhornReplica
	var nodes []longhornNode
	var settings []longhornSetting
	err := wait.All(
		listing(ctx, c, "volumes", &volumes), listing(ctx, c, "replicas", &copies),
		listing(ctx, c, "nodes", &nodes), listing(ctx, c, "settings", &settings),
	)
	s := replica.System{Name: longhornName, Waits: longhornWait}
	if err != nil {
		return s, err
	}
	if s.Patience, s.Held, s.Holds, err = longhornPatience(c.waitSettings(settings)); err != nil {
		return s, err
	}
	for _, n := range nodes {
		s.Nodes = append(s.Nodes, n.standing())
	}
	// Only block-if-contains-last-replica, the default, keeps a node with the last
	// copy of a volume (types/setting.go, NodeDrainPolicy…): the others let it go, or
	// move the copy while it drains.
	policy := cmp.Or(longhornValue(settings, longhornDrain), "block-if-contains-last-replica")
	percent, err := c.longhornRebuilds(ctx, copies)
	if err != nil {
		return s, err
	}
	for _, v := range volumes {
		if v.Metadata.DeletionTimestamp == nil {
			s.Volumes = append(s.Volumes, v.volume(copies, percent, policy != "block-if-contains-last-replica"))
		}
	}
	if len(nodes) > 0 && len(volumes) > 0 {
		s.Away, err = c.longhornAway(ctx, nodes[0].Metadata.Namespace)
	}
	return s, err
}

// listing returns a function that lists objects of Longhorn.
func listing[T any](ctx context.Context, c *Client, resource string, objects *[]T) func() error {
	return func() (err error) {
		*objects, err = listCustom[T](ctx, c, longhornVersion.WithResource(resource), "")
		return err
	}
}

func longhornValue(settings []longhornSetting, name string) string {
	for _, s := range settings {
		if s.Metadata.Name == name {
			return s.Value
		}
	}
	return ""
}

func (v longhornVolumeState) volume(copies []longhornReplica, percent map[string]int, aloneGoes bool) replica.Volume {
	detached := v.Status.State == "detached"
	out := replica.Volume{
		Name: foreign.Line(v.Metadata.Namespace + "/" + v.Metadata.Name), Wanted: v.Spec.Replicas, Alone: v.Spec.Replicas == 1 && aloneGoes,
		Idle: detached && v.Status.Robustness != "faulted", Robust: v.Status.Robustness == "healthy",
	}
	if k := v.Status.Kubernetes; k.Claim != "" {
		out.Claim = foreign.Line(k.Namespace + "/" + k.Claim)
	}
	for _, r := range copies {
		if r.Metadata.Namespace == v.Metadata.Namespace && r.Spec.Volume == v.Metadata.Name && r.Spec.Node != "" {
			copied := r.replica()
			copied.Percent = percent[r.Metadata.Namespace+"/"+r.Metadata.Name]
			out.Replicas = append(out.Replicas, copied)
		}
	}
	return out
}

// standing says whether the node's copies can be used. Its disks are known by a file
// on them, which a wiped one does not have.
func (n longhornNode) standing() replica.Node {
	out := replica.Node{Name: n.Metadata.Name}
	for _, c := range n.Status.Conditions {
		if c.Type == "Ready" && c.Status != "True" {
			out.Down = foreign.Line("is not ready for Longhorn (" + cmp.Or(c.Reason, "no reason given") + ")")
		}
	}
	if len(n.Status.Conditions) == 0 {
		out.Down = "has no state for Longhorn yet"
	}
	var bad []string
	for id := range n.Spec.Disks {
		status := n.Status.Disks[id]
		if status == nil || denied(status.Conditions, "Ready") || len(status.Conditions) == 0 {
			bad = append(bad, foreign.Line(id))
		}
	}
	if slices.Sort(bad); len(bad) > 0 {
		out.Lacks = "its disk " + strings.Join(bad, ", ") + " is not ready for Longhorn"
	}
	return out
}

// longhornAway says why what Longhorn's objects say may be out of date: none of its
// managers runs.
func (c *Client) longhornAway(ctx context.Context, namespace string) (string, error) {
	var set *appsv1.DaemonSet
	set, err := c.api.AppsV1().DaemonSets(namespace).Get(ctx, longhornManager, metav1.GetOptions{})
	switch err = c.translate(err); {
	case errors.Is(err, cluster.ErrNotFound):
		return fmt.Sprintf("there is no DaemonSet %s/%s", namespace, longhornManager), nil
	case err != nil:
		return "", fmt.Errorf("read DaemonSet %s/%s: %w", namespace, longhornManager, err)
	case set.Status.NumberReady == 0:
		return fmt.Sprintf("no pod of DaemonSet %s/%s is ready", namespace, longhornManager), nil
	}
	return "", nil
}

// watchLonghorn reports volumes of Longhorn that become healthy.
func (c *Client) watchLonghorn(ctx context.Context, tell func(look bool)) error {
	robustness := func(v longhornVolumeState) (metav1.ObjectMeta, string) { return v.Metadata, v.Status.Robustness }
	return watchCustom(ctx, c, longhornVersion.WithResource("volumes"), tell, robustness, func(was, is string) bool { return was != "healthy" && is == "healthy" })
}

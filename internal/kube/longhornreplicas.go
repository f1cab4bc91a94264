package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/fault"
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

// longhornVolumeState is the part that we read of Longhorn's Volume (k8s/pkg/apis/longhorn/v1beta2/volume.go).
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

// replica returns the state of a copy. Longhorn sets HealthyAt once the copy is complete, and clears it before the
// copy is filled again; it sets FailedAt when the copy fails, and clears it likewise (replica.go;
// isHealthyAndActiveReplica in controller/volume_controller.go).
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
	if waits := c.waitSettings(settings); len(waits) > 0 {
		value, err := waits[0].Own()
		if err != nil {
			return s, err
		}
		if s.Held, err = replica.Held(waits[:1]); err != nil {
			return s, err
		}
		seconds, err := strconv.Atoi(value)
		s.Patience, s.Holds = time.Duration(seconds)*time.Second, err == nil
	}
	for _, n := range nodes {
		s.Nodes = append(s.Nodes, n.standing())
	}
	// Only block-if-contains-last-replica, the default, keeps a node with the last copy of a volume
	// (types/setting.go, NodeDrainPolicy…): the other policies let the node go, or move the copy while it drains.
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
	s, _ := cluster.Find(settings, func(s longhornSetting) bool { return s.Metadata.Name == name })
	return s.Value
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

// standing says whether the node's copies can be used. Longhorn knows a disk by a file on it, which a wiped disk does
// not have.
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

// longhornAway says why Longhorn's objects may be out of date: none of its managers runs. It returns "" if one runs.
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

func (c *Client) watchLonghorn(ctx context.Context, tell func(look bool)) error {
	robustness := func(v longhornVolumeState) (metav1.ObjectMeta, string) { return v.Metadata, v.Status.Robustness }
	return watchCustom(ctx, c, longhornVersion.WithResource("volumes"), tell, robustness, func(was, is string) bool { return was != "healthy" && is == "healthy" })
}

// holdAnnotation holds a replica.Memo as JSON, on the setting that the memo is about.
const holdAnnotation = "recast.dev/hold"

type longhornSetting struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Value    string            `json:"value"`
}

// longhornHeld reads how long Longhorn waits; it lists nothing if the setting is missing.
func (c *Client) longhornHeld(ctx context.Context) ([]replica.Setting, error) {
	all, err := c.longhornWaits(ctx)
	return c.waitSettings(all), err
}

func (c *Client) longhornWaits(ctx context.Context) ([]longhornSetting, error) {
	return listCustom[longhornSetting](ctx, c, longhornVersion.WithResource("settings"), longhornWait)
}

// longhornSettings reads how long Longhorn waits, to change it; repeat translates its errors.
func (c *Client) longhornSettings(ctx context.Context) ([]replica.Setting, error) {
	body, err := c.api.Discovery().RESTClient().Get().AbsPath("/apis", longhornVersion.Group, longhornVersion.Version, "settings").
		Param("fieldSelector", fields.OneTermEqualSelector(metav1.ObjectNameField, longhornWait).String()).Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	var list struct{ Items []longhornSetting }
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("decode settings of Longhorn: %w", err)
	}
	if len(list.Items) != 1 {
		return nil, fault.Refusedf("Longhorn has %d settings %s instead of one", len(list.Items), longhornWait)
	}
	return c.waitSettings(list.Items), nil
}

// longhornRight returns the right that a change of the setting needs; nil if the setting is missing.
func (c *Client) longhornRight(ctx context.Context) (*authorizationv1.ResourceAttributes, error) {
	all, err := c.longhornWaits(ctx)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return &authorizationv1.ResourceAttributes{
		Group: longhornVersion.Group, Resource: "settings", Verb: "patch", Name: longhornWait, Namespace: all[0].Metadata.Namespace,
	}, nil
}

// waitSettings picks the setting that says how long Longhorn waits, in seconds from 0 on (longhorn-manager,
// types/setting.go, SettingDefinitionReplicaReplenishmentWaitInterval).
func (c *Client) waitSettings(all []longhornSetting) (settings []replica.Setting) {
	for _, s := range all {
		if s.Metadata.Name != longhornWait {
			continue
		}
		settings = append(settings, replica.Setting{
			System: longhornName, Name: longhornWait, Called: "Longhorn's setting " + longhornWait, Said: longhornWait + " of Longhorn",
			Value: s.Value, Unit: time.Second, Number: strconv.Atoi, Undo: s.undo,
			Beside: s.Metadata.Annotations, Key: holdAnnotation, At: fmt.Sprintf("annotation %s of Longhorn's setting %s", holdAnnotation, longhornWait),
			Forget: "see that the setting has the value that you want, then remove it: " + s.forget(),
			Write: func(ctx context.Context, value string, m replica.Memo) error {
				return c.writeLonghorn(ctx, s, value, m)
			},
		})
	}
	return settings
}

// undo returns the command that sets the value in the memo again, or that only removes the memo if someone else has
// set the value since.
func (s longhornSetting) undo(m replica.Memo) (string, error) {
	if s.Value != m.Set {
		return s.forget(), nil
	}
	return fmt.Sprintf(`kubectl --namespace %s patch settings.longhorn.io %s --type merge --patch '{"value":"%s","metadata":{"annotations":{"%s":null}}}'`,
		s.Metadata.Namespace, longhornWait, m.Was, holdAnnotation), nil
}

func (s longhornSetting) forget() string {
	return fmt.Sprintf("kubectl --namespace %s annotate settings.longhorn.io %s %s-", s.Metadata.Namespace, longhornWait, holdAnnotation)
}

func (c *Client) writeLonghorn(ctx context.Context, s longhornSetting, value string, memo replica.Memo) error {
	text, err := memo.Text()
	if err != nil {
		return err
	}
	annotations := map[string]*string{holdAnnotation: nil}
	if text != "" {
		annotations[holdAnnotation] = &text
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": s.Metadata.ResourceVersion, "annotations": annotations}, "value": value,
	})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	return c.api.Discovery().RESTClient().Patch(types.MergePatchType).
		AbsPath("/apis", longhornVersion.Group, longhornVersion.Version, "namespaces", s.Metadata.Namespace, "settings", s.Metadata.Name).
		Body(body).Do(ctx).Error()
}

// longhornEngine is the part that we read of Longhorn's Engine: the replicas that it fills
// (k8s/pkg/apis/longhorn/v1beta2/engine.go, EngineStatus).
type longhornEngine struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Status   struct {
		Addresses map[string]string `json:"currentReplicaAddressMap"` // by replica
		Rebuilds  map[string]*struct {
			Rebuilding bool `json:"isRebuilding"`
			Percent    int  `json:"progress"`
		} `json:"rebuildStatus"` // by URL
	} `json:"status"`
}

// longhornRebuilds returns the progress, in percent, of each replica that is being filled, by namespace and name. The
// progress is only shown: without the right to list engines it is unknown (syncReplicas in
// controller/engine_controller.go looks it up likewise; GetBackendReplicaURL in engineapi).
func (c *Client) longhornRebuilds(ctx context.Context, copies []longhornReplica) (map[string]int, error) {
	filled := false
	for _, r := range copies {
		filled = filled || r.replica().Rebuilt
	}
	if !filled {
		return nil, nil
	}
	engines, err := listCustom[longhornEngine](ctx, c, longhornVersion.WithResource("engines"), "")
	if fault.KindOf(err) == fault.Refused {
		return nil, nil
	}
	percent := map[string]int{}
	for _, e := range engines {
		for name, address := range e.Status.Addresses {
			if status := e.Status.Rebuilds["tcp://"+address]; status != nil && status.Rebuilding {
				percent[e.Metadata.Namespace+"/"+name] = min(max(status.Percent, 0), 100)
			}
		}
	}
	return percent, err
}

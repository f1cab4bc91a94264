package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/siderolabs/go-kubernetes/kubernetes/upgrade"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
)

const (
	systemNamespace = "kube-system"
	proxyName       = string(cluster.KubeProxy)
	partLabel       = "k8s-app" // Talos' label on the pods of its own manifests
	// configRevision is the revision of the configuration from which Talos generated
	// a static pod (AnnotationStaticPodConfigVersion in constants.go).
	configRevision = "talos.dev/config-version"
	// fieldManager is what Talos uses for its manifests, so Talos stays the owner of the image.
	fieldManager = "talos"
)

// StaticPods lists the mirror pods of Talos' static pods.
func (c *Client) StaticPods(ctx context.Context) ([]cluster.StaticPod, error) {
	selector := fmt.Sprintf("%s in (%s, %s, %s)", partLabel, cluster.APIServer, cluster.ControllerManager, cluster.Scheduler)
	list, err := c.api.CoreV1().Pods(systemNamespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list pods of %s: %w", systemNamespace, c.translate(err))
	}
	var pods []cluster.StaticPod
	for _, p := range list.Items {
		if _, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
			pods = append(pods, staticPod(p))
		}
	}
	slices.SortFunc(pods, func(a, b cluster.StaticPod) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Component, b.Component))
	})
	return pods, nil
}

func staticPod(p corev1.Pod) cluster.StaticPod {
	s := cluster.StaticPod{Node: p.Spec.NodeName, Component: cluster.Component(p.Labels[partLabel])}
	s.Revision, _ = strconv.ParseUint(p.Annotations[configRevision], 10, 64) // without a revision it is older than any
	for _, container := range p.Spec.Containers {
		if container.Name == string(s.Component) {
			s.Image = container.Image
		}
	}
	if s.Why = string(p.Status.Phase); p.Status.Phase == corev1.PodRunning {
		s.Why = "it runs, and its probe has not succeeded"
	}
	for _, status := range p.Status.ContainerStatuses {
		if w := status.State.Waiting; w != nil {
			s.Why = foreign.Line(strings.TrimSuffix(w.Reason+": "+w.Message, ": "))
		}
	}
	s.Ready = p.DeletionTimestamp == nil && podServes(&p)
	return s
}

// ProxySet reads the DaemonSet of kube-proxy.
func (c *Client) ProxySet(ctx context.Context) (cluster.ProxySet, error) {
	set, err := c.api.AppsV1().DaemonSets(systemNamespace).Get(ctx, proxyName, metav1.GetOptions{})
	if err != nil {
		return cluster.ProxySet{}, fmt.Errorf("read DaemonSet %s: %w", proxyName, c.translate(err))
	}
	image, err := proxyImage(set)
	if err != nil {
		return cluster.ProxySet{}, err
	}
	return cluster.ProxySet{
		Image: image, Seen: set.Status.ObservedGeneration >= set.Generation, Wanted: int(set.Status.DesiredNumberScheduled),
		Updated: int(set.Status.UpdatedNumberScheduled), Available: int(set.Status.NumberAvailable),
	}, nil
}

func proxyImage(set *appsv1.DaemonSet) (string, error) {
	for _, container := range set.Spec.Template.Spec.Containers {
		if container.Name == proxyName {
			return container.Image, nil
		}
	}
	return "", fault.Refusedf("DaemonSet %s has no container of that name: it is not Talos' own", proxyName)
}

// SetProxyImage sets the image of kube-proxy's DaemonSet, in one write that fails if someone else writes meanwhile.
func (c *Client) SetProxyImage(ctx context.Context, from, to string) error {
	set, err := c.api.AppsV1().DaemonSets(systemNamespace).Get(ctx, proxyName, metav1.GetOptions{})
	if err != nil {
		return c.translate(err)
	}
	image, err := proxyImage(set)
	switch {
	case err != nil || image == to:
		return err
	case image != from:
		return fmt.Errorf("%w: its image is %s, not %s", cluster.ErrChanged, image, from)
	}
	type named map[string]string
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]string{"resourceVersion": set.ResourceVersion},
		"spec":     map[string]any{"template": map[string]any{"spec": map[string]any{"containers": []named{{"name": proxyName, "image": to}}}}},
	})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	_, err = c.api.AppsV1().DaemonSets(systemNamespace).Patch(ctx, proxyName, types.StrategicMergePatchType, body, metav1.PatchOptions{FieldManager: fieldManager})
	if apierrors.IsConflict(err) {
		return fmt.Errorf("%w: %w", cluster.ErrChanged, err)
	}
	return c.translate(err)
}

// RemovedObjects counts the objects of resources that the next version no longer serves, by Sidero's own table.
func (c *Client) RemovedObjects(ctx context.Context, from, to string) ([]string, error) {
	path, err := upgrade.NewPath(from, to)
	if err != nil {
		return nil, fault.As(fault.Refused, err)
	}
	if !path.IsSupported() {
		return nil, fault.WithHint(fault.Refusedf("this recast does not know what Kubernetes %s has removed", to), "use a newer recast")
	}
	// With a transport that has TLS and credentials, client-go takes none from its cache.
	config := &rest.Config{Host: c.host, Transport: c.rt, Timeout: requestTimeout, WarningHandler: rest.NewWarningWriter(io.Discard, rest.WarningWriterOptions{})}
	checks, err := upgrade.NewChecksWithStateProvider(path, nil, config, nil, nil, func(string, ...any) {})
	if err != nil {
		return nil, err
	}
	err = checks.Run(ctx)
	removed, found := errors.AsType[upgrade.ComponentRemovedItemsError](err)
	if !found {
		return nil, c.translate(err)
	}
	var out []string
	for resource, count := range removed.APIResources {
		out = append(out, fmt.Sprintf("Kubernetes %s no longer serves %s, and there are %d of them: convert them to a newer version", to, resource, count))
	}
	slices.Sort(out)
	return out, nil
}

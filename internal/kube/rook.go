package kube

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/cluster"
)

var rookVersion = schema.GroupVersion{Group: "ceph.rook.io", Version: "v1"}

const rookDaemons = "app in (rook-ceph-mon, rook-ceph-osd)"

type cephCluster struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		DataDir string `json:"dataDirHostPath"`
	} `json:"spec"`
}

// rookDirectories lists the directories in which monitors and OSDs of Rook have
// their state on the node, and those of every CephCluster.
func (c *Client) rookDirectories(ctx context.Context, n *corev1.Node, groups []metav1.APIGroup) (data []cluster.LocalData, all []managed, err error) {
	if installed, err := understood(groups, rookVersion); !installed {
		return nil, nil, err
	}
	clusters, err := listCustom[cephCluster](ctx, c, rookVersion.WithResource("cephclusters"), "")
	if err != nil {
		return nil, nil, err
	}
	for _, ceph := range clusters {
		if ceph.Spec.DataDir == "" {
			continue // an external Ceph
		}
		dir := path.Clean("/" + ceph.Spec.DataDir)
		all = append(all, managed{ceph.Metadata.Namespace, "rook-ceph-", dir})
		daemons, err := c.rookDaemons(ctx, n, ceph.Metadata.Namespace, dir)
		if err != nil {
			return nil, nil, err
		}
		if len(daemons) > 0 {
			what := fmt.Sprintf("Rook's directory of CephCluster %s/%s (%s)", ceph.Metadata.Namespace, ceph.Metadata.Name, strings.Join(daemons, ", "))
			data = append(data, cluster.LocalData{Name: "rook" + dir, What: what, Path: dir})
		}
	}
	return data, all, nil
}

// rookDaemons lists the kinds of daemons of a Ceph cluster that keep state
// below dir on the node. Deployments count beside pods: Rook ties a daemon to
// its node there, and no pod is left on a drained node.
func (c *Client) rookDaemons(ctx context.Context, n *corev1.Node, namespace, dir string) ([]string, error) {
	here := map[string]bool{}
	look := func(app map[string]string, spec *corev1.PodSpec) {
		hostname := spec.NodeSelector[corev1.LabelHostname]
		tied := hostname != "" && hostname == n.Labels[corev1.LabelHostname]
		if (tied || spec.NodeName == n.Name) && keepsState(spec, dir) {
			here[app["app"]] = true
		}
	}
	o := metav1.ListOptions{LabelSelector: rookDaemons}
	deployments, err := c.api.AppsV1().Deployments(namespace).List(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("list deployments: %w", c.translate(err))
	}
	for i := range deployments.Items {
		look(deployments.Items[i].Labels, &deployments.Items[i].Spec.Template.Spec)
	}
	pods, err := c.api.CoreV1().Pods(namespace).List(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", c.translate(err))
	}
	for i := range pods.Items {
		if !finished(&pods.Items[i]) {
			look(pods.Items[i].Labels, &pods.Items[i].Spec)
		}
	}
	return slices.Sorted(maps.Keys(here)), nil
}

// keepsState says whether the pod has a directory at or below dir. Every daemon
// has its logs and crash dumps there, whose loss loses no data.
func keepsState(spec *corev1.PodSpec, dir string) bool {
	return slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool {
		if v.HostPath == nil || v.Name == "rook-ceph-log" || v.Name == "rook-ceph-crash" {
			return false
		}
		return within(path.Clean(v.HostPath.Path), dir)
	})
}

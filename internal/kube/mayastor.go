package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/mayastor"
)

// Labels and names of Mayastor's chart (mayastor-extensions, chart/templates/mayastor/apis/api-rest-service.yaml and
// agents/core/agent-core-deployment.yaml).
const (
	mayastorGroup = "openebs.io" // also of other engines of OpenEBS
	mayastorPool  = "diskpools"
	mayastorLabel = "app=api-rest,openebs.io/release"
	mayastorPort  = "8081"
	mayastorCore  = "app=agent-core,openebs.io/release"
	mayastorWaits = "--faulted-child-wait-period"
	mayastorHA    = "agent-ha-cluster"
	mayastorNoHA  = "--disable-ha"
	// mayastorPatience is how long Mayastor waits for a replica unless it is told otherwise (TWAIT_SPERF in
	// mayastor-control-plane, rebuild_policies.rs).
	mayastorPatience = 10 * time.Minute
)

// diskPool is the part that we read of Mayastor's DiskPool, in each of its versions (k8s/operators/src/pool/diskpool/crd).
type diskPool struct {
	Spec struct {
		Node string `json:"node"`
	} `json:"spec"`
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
	s := replica.System{Name: mayastor.Name, Waits: mayastorWaits}
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
		read, err := mayastor.Read(ctx, api.get)
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
	for _, d := range list.Items {
		containers := d.Spec.Template.Spec.Containers
		if slices.ContainsFunc(containers, func(c corev1.Container) bool { return c.Name == mayastorHA }) {
			stuck = ""
		}
	}
	for _, d := range list.Items {
		for _, container := range d.Spec.Template.Spec.Containers {
			for _, arg := range container.Args {
				if value, ok := strings.CutPrefix(arg, mayastorWaits+"="); ok {
					waits, _ = time.ParseDuration(strings.ReplaceAll(value, " ", "")) // humantime has other units, too
				}
				if arg == mayastorNoHA || arg == mayastorNoHA+"=true" {
					stuck = "its HA agents are off (" + mayastorNoHA + ")"
				}
			}
		}
	}
	return waits, stuck, nil
}

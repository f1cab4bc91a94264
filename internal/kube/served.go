package kube

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/foreign"
)

// ServedUsers lists the pods that use volumes on iSCSI or NVMe-oF, sorted, without those that have ended or are about
// to.
func (c *Client) ServedUsers(ctx context.Context) ([]cluster.ServedUser, error) {
	claims, err := c.servedClaims(ctx)
	if err != nil {
		return nil, err
	}
	var users []cluster.ServedUser
	err = c.eachPod(ctx, "", metav1.ListOptions{}, func() { users = nil }, func(p *corev1.Pod) { users = append(users, servedUsers(p, claims)...) })
	if err != nil {
		return nil, err
	}
	slices.SortFunc(users, func(a, b cluster.ServedUser) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Volume, b.Volume))
	})
	return users, nil
}

// served is a volume of a server.
type served struct{ name, what, access, trouble string }

// servedClaims are the volumes of servers by their claims, "namespace/name", with the errors of attaching them.
func (c *Client) servedClaims(ctx context.Context) (map[string]served, error) {
	claims := map[string]served{}
	err := c.eachVolume(ctx, func() { clear(claims) }, func(pv *corev1.PersistentVolume) {
		if access := accessOf(pv); access != "" && pv.Spec.ClaimRef != nil {
			claims[pv.Spec.ClaimRef.Namespace+"/"+pv.Spec.ClaimRef.Name] = served{name: pv.Name, what: "PersistentVolume " + pv.Name, access: access}
		}
	})
	if err != nil {
		return nil, err
	}
	if len(claims) == 0 {
		return claims, nil
	}
	attachments, err := c.api.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list volume attachments: %w", c.translate(err))
	}
	for _, a := range attachments.Items {
		v := attachedVolume(a)
		for _, claim := range slices.Collect(maps.Keys(claims)) {
			if of := claims[claim]; of.name == v.Volume && a.Status.AttachError != nil {
				of.trouble = v.Trouble
				claims[claim] = of
			}
		}
	}
	return claims, nil
}

// servedUsers are the pod with each volume of a server that it uses.
func servedUsers(p *corev1.Pod, claims map[string]served) (users []cluster.ServedUser) {
	if finished(p) || p.DeletionTimestamp != nil {
		return nil
	}
	add := func(v served) {
		users = append(users, cluster.ServedUser{
			Pod: p.Namespace + "/" + p.Name, Node: p.Spec.NodeName, Volume: foreign.Line(v.what), Access: v.access, Runs: started(p), Trouble: v.trouble,
		})
	}
	for _, v := range inlineServed(p) {
		add(v)
	}
	for _, claim := range claimsOf(p) {
		if v, is := claims[p.Namespace+"/"+claim]; is {
			add(v)
		}
	}
	return users
}

// inlineServed are the volumes of servers that only the pod itself names.
func inlineServed(p *corev1.Pod) (volumes []served) {
	for _, v := range p.Spec.Volumes {
		access := ""
		switch {
		case v.ISCSI != nil:
			access = cluster.ISCSI
		case v.CSI != nil:
			access = accessIn(v.CSI.VolumeAttributes)
		}
		if access != "" {
			volumes = append(volumes, served{what: "volume " + v.Name + " of " + workload(p), access: access})
		}
	}
	return volumes
}

// started says whether the kubelet has come as far as the pod's containers, which it does once all volumes are there. A pod
// that ran before its node got another system disk has containers that are being created again, though its phase is
// Running (convertToAPIContainerStatuses and getPhase in pkg/kubelet/kubelet_pods.go).
func started(p *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses), func(c corev1.ContainerStatus) bool {
		waits := c.State.Waiting
		return c.State.Running != nil || c.State.Terminated != nil || waits != nil && !slices.Contains([]string{"", "ContainerCreating", "PodInitializing"}, waits.Reason)
	})
}

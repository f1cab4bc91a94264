package kube

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/foreign"
)

// AttachedVolumes lists the volumes of the node's VolumeAttachments, by name.
func (c *Client) AttachedVolumes(ctx context.Context, node string) ([]cluster.AttachedVolume, error) {
	// The API can't select VolumeAttachments by node.
	list, err := c.api.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list volume attachments: %w", c.translate(err))
	}
	var attached []cluster.AttachedVolume
	for _, a := range list.Items {
		if a.Spec.NodeName != node {
			continue
		}
		v := attachedVolume(a)
		c.bind(ctx, &v)
		attached = append(attached, v)
	}
	if len(attached) == 0 {
		return nil, nil
	}
	users, err := c.stayingUsers(ctx, node)
	if err != nil {
		return nil, err
	}
	for i := range attached {
		attached[i].User = users[attached[i].Claim] // none for "", which no pod names
	}
	slices.SortFunc(attached, func(a, b cluster.AttachedVolume) int { return cmp.Compare(a.Attachment, b.Attachment) })
	return attached, nil
}

// PodVolumes lists the handles of all volumes of Proxmox' CSI driver.
func (c *Client) PodVolumes(ctx context.Context) (handles []string, err error) {
	err = c.eachVolume(ctx, func() { handles = nil }, func(pv *corev1.PersistentVolume) {
		if csi := pv.Spec.CSI; csi != nil && csi.Driver == proxmoxDriver {
			handles = append(handles, csi.VolumeHandle)
		}
	})
	return handles, err
}

// stayingUsers returns the pods that a drain leaves on the node, by the claims that they use.
func (c *Client) stayingUsers(ctx context.Context, node string) (map[string]string, error) {
	pods, err := c.api.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return nil, fmt.Errorf("list pods of node %s: %w", node, c.translate(err))
	}
	users := map[string]string{}
	for i := range pods.Items {
		p := &pods.Items[i]
		if kind := stayingKind(p); kind != "" {
			for _, claim := range claimsOf(p) {
				users[p.Namespace+"/"+claim] = kind + " pod " + p.Namespace + "/" + p.Name
			}
		}
	}
	return users, nil
}

// claimsOf names the claims that a pod uses, including those created for it alone.
func claimsOf(p *corev1.Pod) []string {
	var claims []string
	for _, v := range p.Spec.Volumes {
		switch {
		case v.PersistentVolumeClaim != nil:
			claims = append(claims, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			claims = append(claims, p.Name+"-"+v.Name) // VolumeClaimName in component-helpers/storage/ephemeral
		}
	}
	return claims
}

func attachedVolume(a storagev1.VolumeAttachment) cluster.AttachedVolume {
	v := cluster.AttachedVolume{Attachment: a.Name, Driver: a.Spec.Attacher}
	if name := a.Spec.Source.PersistentVolumeName; name != nil {
		v.Volume = *name
	}
	switch {
	case a.Status.DetachError != nil:
		v.Trouble = "can't be detached: " + foreign.Line(a.Status.DetachError.Message)
	case a.Status.AttachError != nil:
		v.Trouble = "could not be attached: " + foreign.Line(a.Status.AttachError.Message)
	}
	return v
}

// bind adds the details of its PersistentVolume. Without one, or if it cannot be
// read, the volume still counts.
func (c *Client) bind(ctx context.Context, v *cluster.AttachedVolume) {
	if v.Volume == "" {
		return
	}
	pv, err := c.api.CoreV1().PersistentVolumes().Get(ctx, v.Volume, metav1.GetOptions{})
	if err != nil {
		return
	}
	if pv.Spec.CSI != nil {
		v.Handle = pv.Spec.CSI.VolumeHandle
	}
	if ref := pv.Spec.ClaimRef; ref != nil {
		v.Claim = ref.Namespace + "/" + ref.Name
	}
}

package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

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
		attached[i].User = users[attached[i].Claim] // an unknown claim is "", which no pod uses
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

// bind adds to v the details of its PersistentVolume. If there is none, or it cannot be read, the volume still counts.
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

type served struct{ name, what, access, trouble string }

// servedClaims returns the volumes of servers by their claims, "namespace/name", with the errors of attaching them.
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

// servedUsers lists the pod once with each volume of a server that it uses.
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

// inlineServed lists the volumes of servers that only the pod itself names.
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

// started says whether the kubelet has reached the pod's containers, which it does once all volumes are there. A pod
// that ran before its node got another system disk has containers that are being created again, though its phase is
// Running (convertToAPIContainerStatuses and getPhase in pkg/kubelet/kubelet_pods.go).
func started(p *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses), func(c corev1.ContainerStatus) bool {
		waits := c.State.Waiting
		return c.State.Running != nil || c.State.Terminated != nil || waits != nil && !slices.Contains([]string{"", "ContainerCreating", "PodInitializing"}, waits.Reason)
	})
}

// errWatchEnded says that the API server, or something in between, ended a watch.
var errWatchEnded = errors.New("the watch has ended")

// WatchNode implements cluster.NodeReader.
func (c *Client) WatchNode(ctx context.Context, node string, tell func(look bool)) error {
	stream, err := c.streams.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", node).String()})
	last := ""
	return c.watched(ctx, "node "+node, stream, err, tell, func(e watch.Event) bool {
		was := last
		last = ""
		if n, ok := e.Object.(*corev1.Node); ok && e.Type != watch.Deleted && isReady(n) {
			last = string(n.UID) + n.Status.NodeInfo.BootID
		}
		return last != "" && last != was
	})
}

// WatchDetached implements cluster.VolumeReader.
func (c *Client) WatchDetached(ctx context.Context, node string, tell func(look bool)) error {
	stream, err := c.streams.StorageV1().VolumeAttachments().Watch(ctx, metav1.ListOptions{}) // the API cannot select them by node
	return c.watched(ctx, "volume attachments", stream, err, tell, func(e watch.Event) bool {
		a, ok := e.Object.(*storagev1.VolumeAttachment)
		return ok && e.Type == watch.Deleted && a.Spec.NodeName == node
	})
}

func (d *draining) watchPods(ctx context.Context, tell func(look bool)) error {
	stream, err := d.streams.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", d.node).String()})
	return d.watched(ctx, "pods of node "+d.node, stream, err, tell, func(e watch.Event) bool { return e.Type == watch.Deleted })
}

func (d *draining) watchBudgets(ctx context.Context, tell func(look bool)) error {
	stream, err := d.streams.PolicyV1().PodDisruptionBudgets("").Watch(ctx, metav1.ListOptions{})
	return d.watched(ctx, "disruption budgets", stream, err, tell, func(e watch.Event) bool {
		b, ok := e.Object.(*policyv1.PodDisruptionBudget)
		return ok && e.Type == watch.Modified && b.Status.DisruptionsAllowed > 0 && d.hadPodsIn(b.Namespace)
	})
}

// watched reports that the watch is in place, and then every event worth a look. err is the error of its beginning.
func (c *Client) watched(
	ctx context.Context, what string, stream watch.Interface, err error, tell func(look bool), worth func(watch.Event) bool,
) error {
	if err != nil {
		return fmt.Errorf("watch %s: %w", what, c.translate(err))
	}
	defer stream.Stop()
	tell(false)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, open := <-stream.ResultChan():
			if !open || e.Type == watch.Error {
				return errWatchEnded
			}
			if worth(e) {
				tell(true)
			}
		}
	}
}

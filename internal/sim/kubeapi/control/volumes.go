package control

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// volumesOf are the bound PersistentVolumes that the pod uses.
func (m *Manager) volumesOf(ctx context.Context, p *corev1.Pod) ([]*corev1.PersistentVolume, error) {
	var volumes []*corev1.PersistentVolume
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		claim, err := m.store.Get(ctx, store.Claims(), p.Namespace, v.PersistentVolumeClaim.ClaimName)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		volume, err := m.store.Get(ctx, store.Volumes(), "", claim.(*corev1.PersistentVolumeClaim).Spec.VolumeName)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		volumes = append(volumes, volume.(*corev1.PersistentVolume))
	}
	return volumes, nil
}

// syncVolumes attaches the CSI volumes that pods need to their nodes and detaches unused
// ones. Other clients' attachments are left alone.
func (m *Manager) syncVolumes(ctx context.Context) error {
	wanted, err := m.wantedAttachments(ctx)
	if err != nil {
		return err
	}
	have, err := all[*storagev1.VolumeAttachment](ctx, m.store, store.Attachments())
	if err != nil {
		return err
	}
	kubelets := m.running()
	for _, a := range have {
		if wanted[a.Name] != nil || !strings.HasPrefix(a.Name, "csi-") {
			delete(wanted, a.Name)
			continue
		}
		wait := detachAfter
		if kubelets[a.Spec.NodeName] == nil {
			wait = unmountsAfter
		}
		if !m.timers.due(fmt.Sprintf("detach/%s/%s", a.UID, wait), wait) {
			continue
		}
		if _, err := m.store.Delete(ctx, store.Attachments(), "", a.Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if _, err := m.store.Create(ctx, store.Attachments(), wanted[name]); err != nil {
			return err
		}
	}
	return nil
}

// wantedAttachments are those that scheduled pods need, by name.
func (m *Manager) wantedAttachments(ctx context.Context) (map[string]*storagev1.VolumeAttachment, error) {
	pods, err := all[*corev1.Pod](ctx, m.store, store.Pods())
	if err != nil {
		return nil, err
	}
	wanted := map[string]*storagev1.VolumeAttachment{}
	for _, p := range pods {
		if p.Spec.NodeName == "" || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		volumes, err := m.volumesOf(ctx, p)
		if err != nil {
			return nil, err
		}
		for _, v := range volumes {
			if v.Spec.CSI != nil {
				a := attachment(v, p.Spec.NodeName)
				wanted[a.Name] = a
			}
		}
	}
	return wanted, nil
}

func attachment(v *corev1.PersistentVolume, node string) *storagev1.VolumeAttachment {
	sum := sha256.Sum256([]byte(v.Spec.CSI.VolumeHandle + v.Spec.CSI.Driver + node))
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("csi-%x", sum)},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: v.Spec.CSI.Driver, NodeName: node,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &v.Name},
		},
		Status: storagev1.VolumeAttachmentStatus{Attached: true},
	}
}

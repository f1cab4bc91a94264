package control

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// volumesOf returns the bound PersistentVolumes that the pod uses.
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

// syncVolumes attaches the CSI volumes that pods need to their nodes and detaches unused volumes. Other clients'
// attachments are left alone.
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

// wantedAttachments returns the attachments that scheduled pods need, by name.
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

// LetIn sets the names of the machines that the servers of iSCSI and NVMe-oF let in; they refuse all others.
func (m *Manager) LetIn(names ...string) {
	m.mu.Lock()
	m.known = append([]string{}, names...)
	m.mu.Unlock()
	m.wake()
}

// letIn reports whether the servers of the pod's volumes know the machine by its name.
func (m *Manager) letIn(ctx context.Context, p *corev1.Pod, k *kubelet) (bool, error) {
	m.mu.Lock()
	known := m.known
	m.mu.Unlock()
	if known == nil {
		return true, nil
	}
	volumes, err := m.volumesOf(ctx, p)
	if err != nil {
		return false, err
	}
	iscsi := slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.ISCSI != nil })
	nvme := false
	for _, v := range volumes {
		iscsi = iscsi || v.Spec.ISCSI != nil
		if v.Spec.CSI != nil {
			for _, value := range v.Spec.CSI.VolumeAttributes {
				iscsi, nvme = iscsi || strings.HasPrefix(value, "iqn."), nvme || strings.HasPrefix(value, "nqn.")
			}
		}
	}
	id := cmp.Or(k.MachineID, k.UUID)
	host := hex.EncodeToString([]byte(id[:16]))
	nqn := fmt.Sprintf("nqn.2017-11.dev.talos:uuid:%s-%s-%s-%s-%s", host[:8], host[8:12], host[12:16], host[16:20], host[20:])
	return (!iscsi || slices.Contains(known, "iqn.2017-11.dev.talos:"+id)) && (!nvme || slices.Contains(known, nqn)), nil
}

// waitForVolumes sets the status that the API shows for a pod whose volumes are not mounted. A pod that ran in an
// earlier boot stays in the phase Running (getPhase in pkg/kubelet/kubelet_pods.go).
func (m *Manager) waitForVolumes(ctx context.Context, p *corev1.Pod) error {
	if slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.State.Waiting != nil }) {
		return nil
	}
	fresh := withReadiness(p, corev1.ConditionFalse)
	if fresh.Status.Phase != corev1.PodRunning {
		fresh.Status.Phase = corev1.PodPending
	}
	for i := range fresh.Status.ContainerStatuses {
		c := &fresh.Status.ContainerStatuses[i]
		c.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
		if fresh.Status.Phase == corev1.PodRunning {
			c.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Reason: "ContainerStatusUnknown", ExitCode: 137}
		}
	}
	return m.writePod(ctx, fresh)
}

const (
	// cephChecks is how often Rook asks Ceph (rook, defaultStatusCheckInterval in
	// pkg/operator/ceph/cluster/cephstatus.go).
	cephChecks = 60 * time.Second
	// cephRecovers is how long Ceph takes to repair what an OSD has missed.
	cephRecovers = 30 * time.Second
)

var cephBlockPools = schema.GroupVersionResource{Group: "ceph.rook.io", Version: "v1", Resource: "cephblockpools"}

var cephClusters = schema.GroupVersionResource{Group: "ceph.rook.io", Version: "v1", Resource: "cephclusters"}

// checkCeph does what Rook's operator does, for clusters with OSDs and monitors as Deployments: once a minute it
// writes what Ceph reports. Placement groups are degraded while an OSD is down, and until its data is repaired.
// Placement groups with too few copies left are not available. The report also has the monitors in quorum
// (toCustomResourceStatus in cephstatus.go).
func (m *Manager) checkCeph(ctx context.Context) error {
	clusters, err := all[*unstructured.Unstructured](ctx, m.store, cephClusters)
	if err != nil || len(clusters) == 0 {
		return err
	}
	deployments, err := all[*appsv1.Deployment](ctx, m.store, store.Deployments())
	if err != nil {
		return err
	}
	pools, err := all[*unstructured.Unstructured](ctx, m.store, cephBlockPools)
	if err != nil {
		return err
	}
	for _, c := range clusters {
		state := m.cephState(c.GetNamespace(), deployments)
		if len(state.osds) == 0 || !m.timers.again("ceph/"+c.GetNamespace()+"/"+c.GetName(), cephChecks) {
			continue
		}
		details := state.details(slices.DeleteFunc(slices.Clone(pools), func(p *unstructured.Unstructured) bool { return p.GetNamespace() != c.GetNamespace() }))
		health := "HEALTH_OK"
		if len(details) > 0 {
			health = "HEALTH_WARN"
		}
		status := map[string]any{"health": health, "details": details, "lastChecked": stamp()}
		if err := m.setStatus(ctx, cephClusters, c, status, "ceph"); err != nil {
			return err
		}
	}
	return nil
}

// cephState is the state of the daemons of a Ceph cluster.
type cephState struct {
	osds, down       []*appsv1.Deployment
	busy             bool // what an OSD has missed is being repaired
	monitors, quorum []string
}

func (m *Manager) cephState(namespace string, deployments []*appsv1.Deployment) (s cephState) {
	for _, d := range deployments {
		up := d.Status.AvailableReplicas > 0
		switch {
		case d.Namespace != namespace:
		case d.Labels["app"] == "rook-ceph-mon":
			if s.monitors = append(s.monitors, d.Labels["mon"]); up {
				s.quorum = append(s.quorum, d.Labels["mon"])
			}
		case d.Labels["app"] == "rook-ceph-osd":
			key := "ceph/" + d.Namespace + "/" + d.Name
			if s.osds = append(s.osds, d); !up {
				s.down = append(s.down, d)
				m.degraded[key] = true
			} else if m.degraded[key] {
				if m.timers.due(key, cephRecovers) {
					delete(m.degraded, key)
				} else {
					s.busy = true
				}
			}
		}
	}
	return s
}

// details returns the health checks that fail. Without a quorum, Ceph does not answer (cephStatusOnError in
// cephstatus.go).
func (s cephState) details(pools []*unstructured.Unstructured) map[string]any {
	details := map[string]any{}
	check := func(code, format string, args ...any) {
		details[code] = map[string]any{"severity": "HEALTH_WARN", "message": fmt.Sprintf(format, args...)}
	}
	lost := len(s.monitors) - len(s.quorum)
	if lost > 0 && 2*len(s.quorum) <= len(s.monitors) {
		details["error"] = map[string]any{"severity": "Urgent", "message": "failed to get status. . timed out: exit status 1"}
		return details
	}
	if lost > 0 {
		check("MON_DOWN", "%d/%d mons down, quorum %s", lost, len(s.monitors), strings.Join(s.quorum, ","))
	}
	if len(s.down) > 0 {
		check("OSD_DOWN", "%d osds down", len(s.down))
	}
	if len(s.down) > 0 || s.busy {
		check("PG_DEGRADED", "Degraded data redundancy: 300/900 objects degraded (33.333%%), 20 pgs degraded, 20 pgs undersized")
	}
	if slices.ContainsFunc(pools, s.inactive) {
		check("PG_AVAILABILITY", "Reduced data availability: 7 pgs inactive")
	}
	return details
}

// inactive reports whether a replicated pool has placement groups with fewer copies than half, its default min_size.
func (s cephState) inactive(pool *unstructured.Unstructured) bool {
	size, _, _ := unstructured.NestedInt64(pool.Object, "spec", "replicated", "size")
	domain, _, _ := unstructured.NestedString(pool.Object, "spec", "failureDomain")
	hosts := map[string]bool{}
	for _, d := range s.down {
		hosts[d.Spec.Template.Spec.NodeSelector[corev1.LabelHostname]] = true
	}
	lost := len(hosts)
	if domain == "osd" {
		lost = len(s.down)
	}
	return int64(lost) > size/2
}

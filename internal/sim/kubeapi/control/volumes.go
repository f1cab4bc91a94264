package control

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

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

// rebuildAfter is how long Longhorn takes to rebuild a replica on another node.
const rebuildAfter = 30 * time.Second

var longhorn = schema.GroupVersion{Group: "longhorn.io", Version: "v1beta2"}

type longhornDisk struct {
	node *unstructured.Unstructured
	id   string
}

// moveReplicas does what Longhorn does when the eviction of a node or disk is requested: one volume at a time, it
// makes another replica on a node that takes replicas and has none of the volume, and then removes the old replica
// (longhorn-manager, syncReplicaEvictionRequested in controller/node_controller.go, cleanupEvictionRequestedReplicas
// in volume_controller.go, getNodeCandidates in scheduler/replica_scheduler.go). Without a node for the new replica
// nothing happens. The lab's Longhorn is the status of its nodes, and objects of kind Replica if there are any.
func (m *Manager) moveReplicas(ctx context.Context) error {
	nodes, err := all[*unstructured.Unstructured](ctx, m.store, longhorn.WithResource("nodes"))
	if err != nil || len(nodes) == 0 {
		return err
	}
	var disks []longhornDisk
	for _, n := range nodes {
		n = n.DeepCopy()
		specs, _, _ := unstructured.NestedMap(n.Object, "spec", "disks")
		for _, id := range slices.Sorted(maps.Keys(specs)) {
			disks = append(disks, longhornDisk{n, id})
		}
	}
	moving := map[string]bool{} // volumes
	for _, from := range disks {
		if !from.flag("evictionRequested") {
			continue
		}
		for _, replica := range slices.Sorted(maps.Keys(from.replicas())) {
			volume := volumeOf(replica)
			to := slices.IndexFunc(disks, func(d longhornDisk) bool { return m.takes(ctx, d, volume, disks) })
			if to < 0 || moving[volume] {
				continue
			}
			moving[volume] = true
			if !m.timers.due("longhorn/"+replica, rebuildAfter) {
				continue
			}
			if err := m.moveReplica(ctx, replica, from, disks[to]); err != nil {
				return err
			}
		}
	}
	return nil
}

func volumeOf(replica string) string {
	if i := strings.LastIndex(replica, "-r-"); i > 0 {
		return replica[:i]
	}
	return replica
}

func (d longhornDisk) flag(name string) bool {
	node, _, _ := unstructured.NestedBool(d.node.Object, "spec", name)
	disk, _, _ := unstructured.NestedBool(d.node.Object, "spec", "disks", d.id, name)
	if name == "allowScheduling" {
		return node && disk
	}
	return node || disk
}

func (d longhornDisk) replicas() map[string]any {
	replicas, _, _ := unstructured.NestedMap(d.node.Object, "status", "diskStatus", d.id, "scheduledReplica")
	return replicas
}

func (d longhornDisk) set(replicas map[string]any) error {
	return unstructured.SetNestedMap(d.node.Object, replicas, "status", "diskStatus", d.id, "scheduledReplica")
}

// takes reports whether the disk can take another replica of the volume. Longhorn skips nodes that are not Ready or
// are cordoned (disable-scheduling-on-cordoned-node).
func (m *Manager) takes(ctx context.Context, d longhornDisk, volume string, disks []longhornDisk) bool {
	o, err := m.store.Get(ctx, store.Nodes(), "", d.node.GetName())
	if err != nil || !d.flag("allowScheduling") || d.flag("evictionRequested") {
		return false
	}
	k := o.(*corev1.Node)
	has := slices.ContainsFunc(disks, func(o longhornDisk) bool {
		return o.node == d.node && slices.ContainsFunc(slices.Collect(maps.Keys(o.replicas())), func(r string) bool { return volumeOf(r) == volume })
	})
	return readiness(k) == corev1.ConditionTrue && !k.Spec.Unschedulable && !has
}

func (m *Manager) moveReplica(ctx context.Context, replica string, from, to longhornDisk) error {
	name := fmt.Sprintf("%s-r-%08x", volumeOf(replica), hashed(replica+to.node.GetName()))
	before, after := from.replicas(), to.replicas()
	if after == nil {
		after = map[string]any{}
	}
	after[name] = before[replica]
	delete(before, replica)
	if err := m.moveObject(ctx, replica, name, to); err != nil {
		return err
	}
	if err := to.set(after); err != nil {
		return err
	}
	if err := from.set(before); err != nil {
		return err
	}
	for _, d := range []longhornDisk{to, from} {
		fresh, err := m.store.Update(ctx, longhorn.WithResource("nodes"), d.node.DeepCopy(), store.Status)
		if err != nil {
			return err
		}
		d.node.SetResourceVersion(fresh.GetResourceVersion())
	}
	return nil
}

// moveObject updates the object of kind Replica of a replica, if the object exists.
func (m *Manager) moveObject(ctx context.Context, replica, name string, to longhornDisk) error {
	r := longhorn.WithResource("replicas")
	o, err := m.store.Get(ctx, r, to.node.GetNamespace(), replica)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	fresh := o.(*unstructured.Unstructured).DeepCopy()
	fresh.SetName(name)
	fresh.SetResourceVersion("")
	fresh.SetLabels(labels.Merge(fresh.GetLabels(), labels.Set{"longhornnode": to.node.GetName()}))
	uuid, _, _ := unstructured.NestedString(to.node.Object, "status", "diskStatus", to.id, "diskUUID")
	path, _, _ := unstructured.NestedString(to.node.Object, "spec", "disks", to.id, "path")
	for field, value := range map[string]string{"nodeID": to.node.GetName(), "diskID": uuid, "diskPath": path} {
		if err := unstructured.SetNestedField(fresh.Object, value, "spec", field); err != nil {
			return err
		}
	}
	if _, err := m.store.Create(ctx, r, fresh); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, err = m.store.Delete(ctx, r, to.node.GetNamespace(), replica, metav1.DeleteOptions{})
	return err
}

const (
	// replicaTimeout is how long an engine waits for a replica that does not answer (longhorn-manager,
	// SettingNameEngineReplicaTimeout).
	replicaTimeout = 8 * time.Second
	// replenishAfter is the default of replica-replenishment-wait-interval.
	replenishAfter = 600 * time.Second
)

type copies struct {
	volume   *unstructured.Unstructured
	replicas []*unstructured.Unstructured
}

// healVolumes does what Longhorn's volume controller does for attached volumes: replicas on a node that is down fail.
// One replica at a time is filled again, once its node is back or, after a wait, on another node. The volume's
// robustness follows (ReconcileEngineReplicaState and replenishReplicas in controller/volume_controller.go,
// RequireNewReplica in scheduler/replica_scheduler.go).
func (m *Manager) healVolumes(ctx context.Context) error {
	volumes, err := all[*unstructured.Unstructured](ctx, m.store, longhorn.WithResource("volumes"))
	if err != nil || len(volumes) == 0 {
		return err
	}
	nodes, err := all[*unstructured.Unstructured](ctx, m.store, longhorn.WithResource("nodes"))
	if err != nil {
		return err
	}
	if err := m.standings(ctx, nodes); err != nil {
		return err
	}
	replicas, err := all[*unstructured.Unstructured](ctx, m.store, longhorn.WithResource("replicas"))
	if err != nil {
		return err
	}
	for _, v := range volumes {
		if wanted, found, _ := unstructured.NestedInt64(v.Object, "spec", "numberOfReplicas"); !found || wanted == 0 || text(v, "status", "state") != "attached" {
			continue
		}
		c := copies{volume: v.DeepCopy()}
		for _, r := range replicas {
			if text(r, "spec", "volumeName") == v.GetName() {
				c.replicas = append(c.replicas, r.DeepCopy())
			}
		}
		if err := m.heal(ctx, c, nodes); err != nil {
			return err
		}
	}
	return nil
}

func text(u *unstructured.Unstructured, path ...string) string {
	s, _, _ := unstructured.NestedString(u.Object, path...)
	return s
}

// standings sets the condition Ready of Longhorn's nodes, where a node has the condition (syncNodeStatus… in
// controller/node_controller.go).
func (m *Manager) standings(ctx context.Context, nodes []*unstructured.Unstructured) error {
	up := m.running()
	for _, n := range nodes {
		conditions, found, _ := unstructured.NestedSlice(n.Object, "status", "conditions")
		if !found {
			continue
		}
		status, reason := "True", ""
		if up[n.GetName()] == nil {
			status, reason = "False", "KubernetesNodeNotReady"
		}
		changed := false
		for _, o := range conditions {
			c := o.(map[string]any)
			if c["type"] == "Ready" && c["status"] != status {
				c["status"], c["reason"], changed = status, reason, true
			}
		}
		if !changed {
			continue
		}
		if err := m.setStatus(ctx, longhorn.WithResource("nodes"), n, conditions, "conditions"); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) heal(ctx context.Context, c copies, nodes []*unstructured.Unstructured) error {
	up := m.running()
	healthy, busy := 0, false
	var failed []*unstructured.Unstructured
	for _, r := range c.replicas {
		has, lost := text(r, "spec", "healthyAt") != "", text(r, "spec", "failedAt") != ""
		switch key := "longhorn/" + r.GetName(); {
		case lost:
			failed = append(failed, r)
		case up[text(r, "spec", "nodeID")] == nil:
			if m.timers.due(key+"/fails", replicaTimeout) {
				if err := m.setCopy(ctx, r, text(r, "spec", "healthyAt"), stamp(), "stopped"); err != nil {
					return err
				}
				failed = append(failed, r)
			} else if has {
				healthy++
			}
		case has:
			healthy++
		case m.timers.due(key+"/fills", rebuildAfter):
			if err := m.setCopy(ctx, r, stamp(), "", "running"); err != nil {
				return err
			}
			if err := m.showFilling(ctx, c.volume, r, 1); err != nil {
				return err
			}
			healthy++
		default:
			busy = true
			if err := m.showFilling(ctx, c.volume, r, m.timers.part(key+"/fills", rebuildAfter)); err != nil {
				return err
			}
			m.timers.again(key+"/progress", rebuildAfter/4)
		}
	}
	wanted, _, _ := unstructured.NestedInt64(c.volume.Object, "spec", "numberOfReplicas")
	if !busy && healthy > 0 && healthy < int(wanted) {
		if err := m.replenish(ctx, c, failed, nodes); err != nil {
			return err
		}
	}
	robustness := "healthy"
	switch {
	case healthy == 0:
		robustness = "faulted"
	case healthy < int(wanted):
		robustness = "degraded"
	}
	if text(c.volume, "status", "robustness") == robustness {
		return nil
	}
	return m.setStatus(ctx, longhorn.WithResource("volumes"), c.volume, robustness, "robustness")
}

// replenish begins to fill a failed replica again whose node is up, or else, after the wait, a new replica on a node
// that has none of the volume.
func (m *Manager) replenish(ctx context.Context, c copies, failed, nodes []*unstructured.Unstructured) error {
	up := m.running()
	for _, r := range failed {
		if up[text(r, "spec", "nodeID")] != nil {
			return m.setCopy(ctx, r, "", "", "running")
		}
	}
	waits := replenishAfter
	if s, err := m.store.Get(ctx, longhorn.WithResource("settings"), c.volume.GetNamespace(), "replica-replenishment-wait-interval"); err == nil {
		if seconds, err := strconv.Atoi(text(s.(*unstructured.Unstructured), "value")); err == nil {
			waits = time.Duration(seconds) * time.Second
		}
	}
	if !m.timers.due("longhorn/"+c.volume.GetName()+"/replenish", waits) {
		return nil
	}
	for _, n := range nodes {
		has := slices.ContainsFunc(c.replicas, func(r *unstructured.Unstructured) bool { return text(r, "spec", "nodeID") == n.GetName() })
		if allows, _, _ := unstructured.NestedBool(n.Object, "spec", "allowScheduling"); has || !allows || up[n.GetName()] == nil {
			continue
		}
		fresh := c.replicas[0].DeepCopy()
		fresh.SetResourceVersion("")
		fresh.SetUID("")
		fresh.SetName(fmt.Sprintf("%s-r-%08x", c.volume.GetName(), hashed(c.volume.GetName()+n.GetName())))
		fresh.SetLabels(map[string]string{"longhornnode": n.GetName(), "longhornvolume": c.volume.GetName()})
		spec := fresh.Object["spec"].(map[string]any)
		spec["nodeID"], spec["healthyAt"], spec["failedAt"], spec["lastHealthyAt"] = n.GetName(), "", "", ""
		fresh.Object["status"] = map[string]any{"currentState": "running"}
		_, err := m.store.Create(ctx, longhorn.WithResource("replicas"), fresh)
		return err
	}
	return nil
}

func stamp() string { return time.Now().UTC().Format(time.RFC3339) }

func (m *Manager) setCopy(ctx context.Context, r *unstructured.Unstructured, healthyAt, failedAt, state string) error {
	spec := r.Object["spec"].(map[string]any)
	spec["healthyAt"], spec["failedAt"] = healthyAt, failedAt
	if failedAt != "" {
		spec["lastFailedAt"] = failedAt
	} else if healthyAt != "" {
		spec["lastHealthyAt"] = healthyAt
	}
	o, err := m.store.Update(ctx, longhorn.WithResource("replicas"), r, store.Main)
	if err != nil {
		return err
	}
	return m.setStatus(ctx, longhorn.WithResource("replicas"), o.(*unstructured.Unstructured), state, "currentState")
}

// showFilling writes into the volume's Engine, if the object exists, how much of a replica is filled. The real engine
// controller writes what the engine answers (refreshEngine in controller/engine_controller.go).
func (m *Manager) showFilling(ctx context.Context, volume, r *unstructured.Unstructured, part float64) error {
	return each(ctx, m.store, longhorn.WithResource("engines"), func(e *unstructured.Unstructured) error {
		addresses, _, _ := unstructured.NestedStringMap(e.Object, "status", "currentReplicaAddressMap")
		address := addresses[r.GetName()]
		if text(e, "spec", "volumeName") != volume.GetName() || address == "" {
			return nil
		}
		status := map[string]any{"isRebuilding": part < 1, "progress": int64(100 * part), "state": "in_progress", "error": ""}
		if part == 1 {
			status["state"] = "complete"
		}
		rebuilds, _, _ := unstructured.NestedMap(e.Object, "status", "rebuildStatus")
		if rebuilds == nil {
			rebuilds = map[string]any{}
		}
		rebuilds["tcp://"+address] = status
		return m.setStatus(ctx, longhorn.WithResource("engines"), e, rebuilds, "rebuildStatus")
	})
}

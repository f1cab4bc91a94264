package schedules

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/world"
)

// back binds Kubernetes volumes to nodes' system disks and then requests a rollback to
// their old system disks, as nobody should: no node may lose its present disk. In the end
// the volumes are removed again.
func (p *play) back() {
	volumes, disks, policy := p.lab.Kube.Store(), map[int]*world.Media{}, p.policy()
	for i, n := range p.lab.Nodes {
		if n.ControlPlane && p.c.EtcdOnData {
			continue // EPHEMERAL is on a separate disk
		}
		if _, err := volumes.Create(p.ctx, store.Volumes(), localVolume(n.Name)); err != nil {
			p.t.Fatal(err)
		}
		disks[i], policy.Only = p.systemDisk(i), append(policy.Only, n.Name)
	}
	if len(disks) == 0 {
		return
	}
	c := p.lab.Client()
	c.Run = p.nextRun()
	_, err := c.Rollback(p.ctx, policy)
	p.tell("rollback: %s", said(err))
	for i, disk := range disks {
		if p.systemDisk(i) != disk {
			p.fail("the system disk of %s is gone, to which data of pods is bound", p.lab.Nodes[i].Name)
		}
	}
	for _, name := range policy.Only {
		if _, err := volumes.Delete(p.ctx, store.Volumes(), "", localVolume(name).Name, metav1.DeleteOptions{}); err != nil {
			p.t.Fatal(err)
		}
	}
}

// systemDisk is the system disk of a node's VM; nil if it has none.
func (p *play) systemDisk(node int) *world.Media {
	vm, err := p.vmOf(node)
	if err != nil {
		return nil
	}
	volid, _, _ := strings.Cut(vm.Config[p.lab.Nodes[node].SystemDrive()], ",")
	return p.lab.World.Media(volid, vm.Host)
}

// localVolume is a claimed volume in a provisioner's directory on the node's system disk.
func localVolume(node string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "local-" + node},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/var/local-path/" + node}},
			ClaimRef:               &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: "data-" + node},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
}

package kube_test

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// TestServedUsers: pods with volumes on iSCSI or NVMe-oF, by claim or by themselves, run once their server lets their
// node in. In-line volumes count for the plan as PersistentVolumes do.
func TestServedUsers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		l.LetIn("iqn.of.another.node")
		time.Sleep(10 * time.Second)
		claim := func(name string, source corev1.PersistentVolumeSource) corev1.Volume {
			pv := volume("pv-"+name, source)
			pv.Spec.ClaimRef.Name = name
			l.put(t, store.Volumes(), pv)
			l.put(t, store.Claims(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: pv.Name}})
			return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}
		}
		pod := func(name, node string, volumes ...corev1.Volume) {
			l.put(t, store.Pods(), &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
				Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "x", Image: "x"}}, Volumes: volumes},
			})
		}
		iscsi := corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{TargetPortal: "10.0.0.1", IQN: "iqn.2000-01.com.example:x"}}
		pod("a", "wk1", claim("disk", iscsi), claim("nfs", csi("nfs.csi.k8s.io")))
		pod("b", "wk1", claim("fabric", csi("org.democratic-csi.x", "nqn", "nqn.2003-01.org.linux-nvme:x")))
		pod("c", "wk1", corev1.Volume{Name: "own", VolumeSource: corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{IQN: "iqn.2000-01.com.example:y"}}})
		pod("d", "", corev1.Volume{Name: "own", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "x", VolumeAttributes: map[string]string{"protocol": "nvme-tcp"}}}})
		pod("e", "wk1", claim("files", csi("nfs.csi.k8s.io")))
		l.put(t, store.Attachments(), &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: "refused"}, Spec: storagev1.VolumeAttachmentSpec{Attacher: "x", NodeName: "wk1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("pv-fabric")}},
			Status: storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "host not allowed"}},
		})
		time.Sleep(20 * time.Second)
		c := l.client(t, "system:masters")
		look := func(runs bool) {
			t.Helper()
			want := []cluster.ServedUser{
				{Pod: "default/a", Node: "wk1", Volume: "PersistentVolume pv-disk", Access: cluster.ISCSI, Runs: runs},
				{Pod: "default/b", Node: "wk1", Volume: "PersistentVolume pv-fabric", Access: cluster.NVMeoF, Runs: runs, Trouble: "could not be attached: host not allowed"},
				{Pod: "default/c", Node: "wk1", Volume: "volume own of pod default/c", Access: cluster.ISCSI, Runs: runs},
				{Pod: "default/d", Node: "wk1", Volume: "volume own of pod default/d", Access: cluster.NVMeoF, Runs: true},
			}
			got, err := c.ServedUsers(t.Context())
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		}
		look(false)
		id := node("wk1", 0).UUID
		l.LetIn(cluster.InitiatorName(cluster.ISCSI, id), cluster.InitiatorName(cluster.NVMeoF, id))
		time.Sleep(20 * time.Second)
		look(true)

		n, err := c.Node(t.Context(), "wk1")
		if err != nil {
			t.Fatal(err)
		}
		data, err := c.LocalData(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		inline := map[string]string{}
		for _, d := range data[""] {
			inline[d.What] = d.Access
		}
		if inline["volume own of pod default/c"] != cluster.ISCSI || inline["volume own of pod default/d"] != cluster.NVMeoF || len(inline) != 4 {
			t.Errorf("the plan knows %v", inline)
		}
	})
}

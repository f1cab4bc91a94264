package kube_test

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/kube"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

const hostname = "kubernetes.io/hostname"

// volume is a PersistentVolume that a claim uses.
func volume(name string, source corev1.PersistentVolumeSource, terms ...corev1.NodeSelectorTerm) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: source, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: "db-0"},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
	if len(terms) > 0 {
		pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: terms}}
	}
	return pv
}

func on(key string, values ...string) corev1.NodeSelectorTerm {
	return where(key, corev1.NodeSelectorOpIn, values...)
}

func where(key string, op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: op, Values: values}}}
}

func local() corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/var/local/x"}}
}

func hostPath() corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/opt/x"}}
}

func csi(driver string, attributes ...string) corev1.PersistentVolumeSource {
	source := &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "h", VolumeAttributes: map[string]string{}}
	for i := 0; i < len(attributes); i += 2 {
		source.VolumeAttributes[attributes[i]] = attributes[i+1]
	}
	return corev1.PersistentVolumeSource{CSI: source}
}

func (l *lab) localData(t *testing.T, c *kube.Client, node string) []cluster.LocalData {
	t.Helper()
	n, err := c.Node(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	data, err := c.LocalData(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	return data[node]
}

func TestLocalDataOfVolumes(t *testing.T) {
	t.Parallel()
	var both corev1.NodeSelectorTerm
	both.MatchExpressions = append(on(hostname, "wk1").MatchExpressions, on("rack", "b").MatchExpressions...)
	cases := map[string]struct {
		pv     *corev1.PersistentVolume
		phase  corev1.PersistentVolumePhase
		retain bool
		what   string // "" for no data on wk1
		path   string
		format string
		group  string
	}{
		"local":                      {pv: volume("a", local(), on(hostname, "wk1")), what: "PersistentVolume a (claim default/db-0)", path: "/var/local/x"},
		"local of another node":      {pv: volume("a", local(), on(hostname, "wk2"))},
		"local of either":            {pv: volume("a", local(), on(hostname, "wk1", "wk2")), what: "PersistentVolume a (claim default/db-0)", path: "/var/local/x"},
		"local by any of two terms":  {pv: volume("a", local(), on(hostname, "wk2"), on("rack", "a")), what: "PersistentVolume a (claim default/db-0)", path: "/var/local/x"},
		"local by a term half met":   {pv: volume("a", local(), both)},
		"local by exclusion":         {pv: volume("a", local(), where(hostname, corev1.NodeSelectorOpNotIn, "wk2")), what: "PersistentVolume a (claim default/db-0)", path: "/var/local/x"},
		"local by nonsense":          {pv: volume("a", local(), where("rack", "Near")), what: "PersistentVolume a (claim default/db-0)", path: "/var/local/x"},
		"local by an empty term":     {pv: volume("a", local(), corev1.NodeSelectorTerm{})},
		"hostPath":                   {pv: volume("a", hostPath(), on(hostname, "wk1")), what: "PersistentVolume a (claim default/db-0)", path: "/opt/x"},
		"hostPath of another node":   {pv: volume("a", hostPath(), on(hostname, "wk2"))},
		"hostPath without affinity":  {pv: volume("a", hostPath()), what: "PersistentVolume a (claim default/db-0, on any node)", path: "/opt/x"},
		"TopoLVM":                    {pv: volume("a", csi("topolvm.io"), on("topology.topolvm.io/node", "wk1")), what: "PersistentVolume a (claim default/db-0)", format: cluster.FormatLVM},
		"OpenEBS LVM":                {pv: volume("a", csi("local.csi.openebs.io", "openebs.io/volgroup", "lvmvg"), on("openebs.io/nodename", "wk1")), what: "PersistentVolume a (claim default/db-0)", format: cluster.FormatLVM, group: "lvmvg"},
		"OpenEBS ZFS":                {pv: volume("a", csi("zfs.csi.openebs.io", "openebs.io/poolname", "tank"), on("openebs.io/nodename", "wk1")), what: "PersistentVolume a (claim default/db-0)", format: cluster.FormatZFS, group: "tank"},
		"CSI of another kind":        {pv: volume("a", csi("kubevirt.io.hostpath-provisioner"), on("topology.hostpath.csi/node", "wk1")), what: "PersistentVolume a (claim default/db-0)"},
		"LINSTOR without Piraeus":    {pv: volume("a", csi("linstor.csi.linbit.com"), on("linbit.com/hostname", "wk1")), what: "PersistentVolume a (claim default/db-0)"},
		"TopoLVM of another node":    {pv: volume("a", csi("topolvm.io"), on("topology.topolvm.io/node", "wk2"))},
		"Proxmox CSI by zone":        {pv: volume("a", csi("csi.proxmox.sinextra.dev"), on("topology.kubernetes.io/zone", "pve1"))},
		"CSI on two nodes":           {pv: volume("a", csi("linstor.csi.linbit.com"), on("linbit.com/hostname", "wk1"), on("linbit.com/hostname", "wk2"))},
		"CSI without affinity":       {pv: volume("a", csi("driver.longhorn.io"))},
		"never claimed":              {pv: volume("a", local(), on(hostname, "wk1")), phase: corev1.VolumeAvailable, retain: true},
		"released, to be deleted":    {pv: volume("a", local(), on(hostname, "wk1")), phase: corev1.VolumeReleased},
		"released, to be kept":       {pv: volume("a", local(), on(hostname, "wk1")), phase: corev1.VolumeReleased, retain: true, what: "PersistentVolume a (kept after its release, claim default/db-0)", path: "/var/local/x"},
		"reclaim failed, to be kept": {pv: volume("a", local(), on(hostname, "wk1")), phase: corev1.VolumeFailed, retain: true, what: "PersistentVolume a (kept after its release, claim default/db-0)", path: "/var/local/x"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, "wk1", "wk2")
				time.Sleep(10 * time.Second)
				l.change(t, "wk1", func(n *corev1.Node) { n.Labels["rack"], n.Labels["topology.kubernetes.io/zone"] = "a", "pve1" })
				if tc.phase != "" {
					tc.pv.Status.Phase = tc.phase
				}
				if tc.retain {
					tc.pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
				}
				l.put(t, store.Volumes(), tc.pv)
				var want []cluster.LocalData
				if tc.what != "" {
					want = []cluster.LocalData{{Name: "pv/a", What: tc.what, Path: tc.path, Format: tc.format, Group: tc.group}}
				}
				if diff := cmp.Diff(want, l.localData(t, l.client(t, "system:masters"), "wk1")); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

// daemonPod is a pod on a node with hostPath volumes.
func daemonPod(namespace, app, node string, paths map[string]string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: app + "-" + node, Namespace: namespace, Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "x"}}},
	}
	for name, path := range paths {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{
			Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}},
		})
	}
	return p
}

// Volumes of Proxmox' CSI driver belong to no node: their handles identify them.
func TestPodVolumes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1", "wk2")
		time.Sleep(10 * time.Second)
		c := l.client(t, "system:masters")
		n, err := c.Node(t.Context(), "wk1")
		if err != nil {
			t.Fatal(err)
		}
		look := func() (map[string][]cluster.LocalData, []string) {
			data, err := c.LocalData(t.Context(), n)
			if err != nil {
				t.Fatal(err)
			}
			handles, err := c.PodVolumes(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return data, handles
		}
		l.put(t, store.Volumes(), volume("b", csi("driver.longhorn.io")))
		if data, handles := look(); len(data[""]) > 0 || len(handles) > 0 {
			t.Errorf("of another driver: %+v, %q", data[""], handles)
		}
		theirs := volume("a", csi("csi.proxmox.sinextra.dev"), on("topology.kubernetes.io/zone", "pve1"))
		theirs.Spec.CSI.VolumeHandle, theirs.Status.Phase = "lab/pve1/fast/vm-9999-media", corev1.VolumeReleased
		l.put(t, store.Volumes(), theirs)
		data, handles := look()
		want := []cluster.LocalData{{Name: "pv/a", What: "PersistentVolume a (kept after its release, claim default/db-0)", Handle: "lab/pve1/fast/vm-9999-media"}}
		if diff := cmp.Diff(want, data[""]); diff != "" {
			t.Errorf("local data (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"lab/pve1/fast/vm-9999-media"}, handles); diff != "" {
			t.Errorf("handles (-want +got):\n%s", diff)
		}
	})
}

// TestServedVolumes: volumes by iSCSI or NVMe-oF are on no node, and their servers may know nodes by name.
func TestServedVolumes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		time.Sleep(10 * time.Second)
		c := l.client(t, "system:masters")
		n, err := c.Node(t.Context(), "wk1")
		if err != nil {
			t.Fatal(err)
		}
		attributed := func(name, key, value string) {
			pv := volume(name, csi("org.democratic-csi.x"))
			pv.Spec.CSI.VolumeAttributes = map[string]string{key: value}
			l.put(t, store.Volumes(), pv)
		}
		attributed("a", "node_attach_driver", "iscsi")
		attributed("b", "node_attach_driver", "nvmeof")
		attributed("c", "targetIQN", "iqn.2000-01.com.synology:x")
		attributed("d", "protocol", "nvmf") // Mayastor's
		attributed("e", "node_attach_driver", "nfs")
		pv := volume("f", csi("x"))
		pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{TargetPortal: "10.0.0.1", IQN: "iqn.2000-01.com.synology:y"}}
		l.put(t, store.Volumes(), pv)
		data, err := c.LocalData(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, d := range data[""] {
			got[d.Name] = d.Access
		}
		want := map[string]string{"pv/a": cluster.ISCSI, "pv/b": cluster.NVMeoF, "pv/c": cluster.ISCSI, "pv/f": cluster.ISCSI}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

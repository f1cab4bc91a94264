package kube_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/kube"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/must"
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
	return must.Get(c.LocalData(t.Context(), must.Get(c.Node(t.Context(), node))(t)))(t)[node]
}

// requireData checks what is only on wk1.
func (l *lab) requireData(t *testing.T, want []cluster.LocalData) {
	t.Helper()
	must.Equal(t, "local data", want, l.localData(t, l.client(t, "system:masters"), "wk1"))
}

func TestLocalDataOfVolumes(t *testing.T) {
	t.Parallel()
	var both corev1.NodeSelectorTerm
	both.MatchExpressions = append(on(hostname, "wk1").MatchExpressions, on("rack", "b").MatchExpressions...)
	type row struct {
		pv                  *corev1.PersistentVolume
		phase               corev1.PersistentVolumePhase
		retain              bool
		what                string // "" for no data on wk1
		path, format, group string
	}
	cases := map[string]row{
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
	must.Bubbles(t, cases, func(t *testing.T, tc row) {
		l := upLab(t, "wk1", "wk2")
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
		l.requireData(t, want)
	})
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
	must.Bubble(t, func(t *testing.T) {
		l := upLab(t, "wk1", "wk2")
		c := l.client(t, "system:masters")
		n := must.Get(c.Node(t.Context(), "wk1"))(t)
		look := func() (map[string][]cluster.LocalData, []string) {
			return must.Get(c.LocalData(t.Context(), n))(t), must.Get(c.PodVolumes(t.Context()))(t)
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
		must.Equal(t, "local data", want, data[""])
		must.Equal(t, "handles", []string{"lab/pve1/fast/vm-9999-media"}, handles)
	})
}

// TestServedVolumes: volumes by iSCSI or NVMe-oF are on no node, and their servers may know nodes by name.
func TestServedVolumes(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := upLab(t, "wk1")
		c := l.client(t, "system:masters")
		n := must.Get(c.Node(t.Context(), "wk1"))(t)
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
		data := must.Get(c.LocalData(t.Context(), n))(t)
		got := map[string]string{}
		for _, d := range data[""] {
			got[d.Name] = d.Access
		}
		want := map[string]string{"pv/a": cluster.ISCSI, "pv/b": cluster.NVMeoF, "pv/c": cluster.ISCSI, "pv/f": cluster.ISCSI}
		must.Equal(t, "got", want, got)
	})
}

// writer is a pod on wk1 whose container writes to those paths of the node.
func writer(namespace, name string, paths ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec:       corev1.PodSpec{NodeName: "wk1", Containers: []corev1.Container{{Name: "main", Image: "x"}}},
	}
	for _, at := range paths {
		mount(p, at, corev1.VolumeMount{})
	}
	return p
}

// mount adds a hostPath volume to the pod and mounts it in its container.
func mount(p *corev1.Pod, at string, how corev1.VolumeMount, of ...corev1.HostPathType) *corev1.Pod {
	how.Name, how.MountPath = "at"+string(rune('a'+len(p.Spec.Volumes))), "/mnt"
	source := &corev1.HostPathVolumeSource{Path: at}
	if len(of) > 0 {
		source.Type = &of[0]
	}
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: how.Name, VolumeSource: corev1.VolumeSource{HostPath: source}})
	p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, how)
	return p
}

// owned sets a pod's controller.
func owned(p *corev1.Pod, apiVersion, kind, name string) *corev1.Pod {
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, UID: "0b5f", Controller: new(true)}}
	return p
}

// labelled is a pod with that label, of a DaemonSet with the label's value as its name.
func labelled(p *corev1.Pod, key, value string) *corev1.Pod {
	p.Labels = map[string]string{key: value}
	return ofDaemonSet(p, value)
}

func ofDaemonSet(p *corev1.Pod, name string) *corev1.Pod {
	return owned(p, "apps/v1", "DaemonSet", name)
}

func inPhase(p *corev1.Pod, phase corev1.PodPhase) *corev1.Pod {
	p.Status.Phase = phase
	return p
}

func TestLocalDataOfPods(t *testing.T) {
	t.Parallel()
	found := func(path, by string) cluster.LocalData {
		return cluster.LocalData{Name: "hostpath" + path, What: "hostPath " + path + " (" + by + ")", Path: path}
	}
	web := owned(writer("default", "web-5d4f-x2x2x", "/var/lib/web"), "apps/v1", "ReplicaSet", "web-5d4f")
	web.Labels = map[string]string{"pod-template-hash": "5d4f"}
	second := owned(writer("default", "web-5d4f-y3y3y", "/var/lib/web/"), "apps/v1", "ReplicaSet", "web-5d4f")
	second.Labels = web.Labels
	elsewhere := writer("default", "b", "/var/lib/b")
	elsewhere.Spec.NodeName = "wk2"
	setUp := writer("default", "a")
	setUp.Spec.Volumes = writer("", "", "/var/lib/a").Spec.Volumes
	setUp.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "x", VolumeMounts: []corev1.VolumeMount{{Name: "ata", MountPath: "/x"}}}}
	debugged := writer("default", "a")
	debugged.Spec.Volumes = setUp.Spec.Volumes
	debugged.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "sh", Image: "x", VolumeMounts: setUp.Spec.InitContainers[0].VolumeMounts}}}
	static := owned(writer("default", "db-wk1", "/var/lib/db"), "v1", "Node", "wk1")
	static.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	apiserver := owned(writer("kube-system", "kube-apiserver-wk1", "/var/log/audit/kube", "/var/lib/etcd"), "v1", "Node", "wk1")
	apiserver.Annotations = static.Annotations
	bound := volume("a", corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/a/"}}, on(hostname, "wk1"))
	type row struct {
		pods []*corev1.Pod
		pv   *corev1.PersistentVolume
		want []cluster.LocalData
	}
	cases := map[string]row{
		"bare pod":                  {pods: []*corev1.Pod{writer("default", "a", "/var/lib/a")}, want: []cluster.LocalData{found("/var/lib/a", "pod default/a")}},
		"unknown DaemonSet":         {pods: []*corev1.Pod{ofDaemonSet(writer("kube-system", "agent-x", "/var/lib/agent"), "agent")}, want: []cluster.LocalData{found("/var/lib/agent", "DaemonSet kube-system/agent")}},
		"two pods, one path":        {pods: []*corev1.Pod{web, second}, want: []cluster.LocalData{found("/var/lib/web", "Deployment default/web")}},
		"two workloads, one path":   {pods: []*corev1.Pod{writer("default", "b", "/var/x"), writer("default", "a", "/var/x")}, want: []cluster.LocalData{found("/var/x", "pod default/a, pod default/b")}},
		"two paths":                 {pods: []*corev1.Pod{writer("default", "a", "/var/b", "/var/a")}, want: []cluster.LocalData{found("/var/a", "pod default/a"), found("/var/b", "pod default/a")}},
		"static pod of the user":    {pods: []*corev1.Pod{static}, want: []cluster.LocalData{found("/var/lib/db", "pod default/db-wk1")}},
		"pending":                   {pods: []*corev1.Pod{inPhase(writer("default", "a", "/var/a"), corev1.PodPending)}, want: []cluster.LocalData{found("/var/a", "pod default/a")}},
		"succeeded":                 {pods: []*corev1.Pod{inPhase(writer("default", "a", "/var/a"), corev1.PodSucceeded)}},
		"failed":                    {pods: []*corev1.Pod{inPhase(writer("default", "a", "/var/a"), corev1.PodFailed)}},
		"on another node":           {pods: []*corev1.Pod{elsewhere}},
		"read-only":                 {pods: []*corev1.Pod{mount(writer("default", "a"), "/var/a", corev1.VolumeMount{ReadOnly: true})}},
		"mounted by no container":   {pods: []*corev1.Pod{daemonPod("default", "agent", "wk1", map[string]string{"state": "/var/lib/agent"})}},
		"init container":            {pods: []*corev1.Pod{setUp}, want: []cluster.LocalData{found("/var/lib/a", "pod default/a")}},
		"ephemeral container":       {pods: []*corev1.Pod{debugged}, want: []cluster.LocalData{found("/var/lib/a", "pod default/a")}},
		"subPath":                   {pods: []*corev1.Pod{mount(writer("default", "a"), "/var/lib", corev1.VolumeMount{SubPath: "a/b"})}, want: []cluster.LocalData{found("/var/lib/a/b", "pod default/a")}},
		"subPathExpr":               {pods: []*corev1.Pod{mount(writer("default", "a"), "/var/a", corev1.VolumeMount{SubPathExpr: "$(POD_NAME)"})}, want: []cluster.LocalData{found("/var/a", "pod default/a")}},
		"subPath out of the table":  {pods: []*corev1.Pod{ofDaemonSet(mount(writer("default", "a"), "/var", corev1.VolumeMount{SubPath: "lib/kubelet/pods"}), "csi")}},
		"file":                      {pods: []*corev1.Pod{mount(writer("default", "a"), "/var/a.db", corev1.VolumeMount{}, corev1.HostPathFileOrCreate)}, want: []cluster.LocalData{found("/var/a.db", "pod default/a")}},
		"socket":                    {pods: []*corev1.Pod{mount(writer("default", "a"), "/var/a.sock", corev1.VolumeMount{}, corev1.HostPathSocket)}},
		"devices":                   {pods: []*corev1.Pod{mount(mount(writer("default", "a"), "/var/a", corev1.VolumeMount{}, corev1.HostPathCharDev), "/var/b", corev1.VolumeMount{}, corev1.HostPathBlockDev)}},
		"not on EPHEMERAL":          {pods: []*corev1.Pod{writer("default", "a", "/run/a", "/var/run/a", "/etc/cni/net.d", "/dev", "/usr/libexec/kubernetes", "/variable")}},
		"/opt is on EPHEMERAL":      {pods: []*corev1.Pod{writer("default", "a", "/opt/a")}, want: []cluster.LocalData{found("/opt/a", "pod default/a")}},
		"the whole node":            {pods: []*corev1.Pod{writer("default", "a", "/")}, want: []cluster.LocalData{found("/", "pod default/a")}},
		"a path not quite":          {pods: []*corev1.Pod{writer("default", "a", "/var/run/../lib/a")}, want: []cluster.LocalData{found("/var/lib/a", "pod default/a")}},
		"table, by a Deployment":    {pods: []*corev1.Pod{owned(writer("kube-system", "csi-nfs-controller-1", "/var/lib/kubelet/pods"), "apps/v1", "ReplicaSet", "csi-nfs-controller")}},
		"table, with its label":     {pods: []*corev1.Pod{labelled(writer("kube-system", "multus-1", "/", "/var/lib/cni/multus"), "app", "multus")}},
		"table, without its label":  {pods: []*corev1.Pod{ofDaemonSet(writer("kube-system", "a", "/"), "a")}, want: []cluster.LocalData{found("/", "DaemonSet kube-system/a")}},
		"table, any name":           {pods: []*corev1.Pod{labelled(writer("openebs", "io-engine-1", "/var/local/openebs/io-engine", "/var/local/openebs/io-engine/ptpl"), "app", "io-engine")}},
		"table, beside any name":    {pods: []*corev1.Pod{labelled(writer("openebs", "io-engine-1", "/var/local/openebs", "/var/local/openebs/etcd"), "app", "io-engine")}, want: []cluster.LocalData{found("/var/local/openebs", "DaemonSet openebs/io-engine"), found("/var/local/openebs/etcd", "DaemonSet openebs/io-engine")}},
		"databases of a network":    {pods: []*corev1.Pod{writer("kube-system", "ovn-central-1", "/var/lib/ovn", "/var/log/ovn")}, want: []cluster.LocalData{found("/var/lib/ovn", "pod kube-system/ovn-central-1")}},
		"table, another kind":       {pods: []*corev1.Pod{writer("default", "a", "/var/log/a")}, want: []cluster.LocalData{found("/var/log/a", "pod default/a")}},
		"table, a neighbour's path": {pods: []*corev1.Pod{ofDaemonSet(writer("kube-system", "a", "/var/lib/kubelet2"), "a")}, want: []cluster.LocalData{found("/var/lib/kubelet2", "DaemonSet kube-system/a")}},
		"table, another namespace":  {pods: []*corev1.Pod{writer("default", "a", "/var/lib/longhorn")}, want: []cluster.LocalData{found("/var/lib/longhorn", "pod default/a")}},
		"control plane":             {pods: []*corev1.Pod{apiserver}},
		"path of a volume":          {pods: []*corev1.Pod{writer("default", "a", "/var/lib/a")}, pv: bound, want: []cluster.LocalData{{Name: "pv/a", What: "PersistentVolume a (claim default/db-0)", Path: "/var/lib/a/"}}},
	}
	must.Bubbles(t, cases, func(t *testing.T, tc row) {
		l := upLab(t, "wk1", "wk2")
		for _, p := range tc.pods {
			l.put(t, store.Pods(), p.DeepCopy())
		}
		if tc.pv != nil {
			l.put(t, store.Volumes(), tc.pv)
		}
		l.requireData(t, tc.want)
	})
}

// The programs of an ordinary cluster, with the paths in their manifests, keep no node from being recreated.
func TestOrdinaryProgramsHaveNoLocalData(t *testing.T) {
	t.Parallel()
	daemons := map[string][]string{ // DaemonSets, by namespace/name
		"kube-system/cilium":                        {"/var/run/cilium", "/var/run/cilium/netns", "/run/cilium/cgroupv2", "/sys/fs/bpf", "/opt/cni/bin", "/etc/cni/net.d", "/run/xtables.lock"},
		"kube-system/cilium-envoy":                  {"/var/run/cilium/envoy/sockets", "/var/run/cilium/envoy/artifacts"},
		"kube-system/calico-node":                   {"/var/run/calico", "/var/lib/calico", "/var/lib/cni/networks", "/var/log/calico/cni", "/opt/cni/bin", "/etc/cni/net.d", "/var/run/nodeagent"},
		"calico-system/csi-node-driver":             {"/var/run", "/var/lib/kubelet", "/var/lib/kubelet/plugins/csi.tigera.io", "/var/lib/kubelet/plugins_registry"},
		"kube-system/kube-flannel":                  {"/run/flannel", "/etc/cni/net.d", "/opt/cni/bin"},
		"kube-system/kube-proxy":                    {"/run/xtables.lock"},
		"monitoring/promtail":                       {"/run/promtail", "/var/log/pods", "/var/lib/docker/containers"},
		"monitoring/alloy":                          {"/var/log", "/var/lib/alloy/data"},
		"logging/fluent-bit":                        {"/var/log", "/var/lib/docker/containers", "/var/fluent-bit/state", "/run/fluent-bit"},
		"logging/vector":                            {"/var/lib/vector", "/var/log"},
		"metallb-system/speaker":                    {"/var/run/frr"},
		"nvidia/nvidia-device-plugin":               {"/var/lib/kubelet/device-plugins", "/var/run/cdi", "/run/nvidia/mps"},
		"nfd/node-feature-discovery":                {"/etc/kubernetes/node-feature-discovery/features.d", "/var/lib/kubelet/pod-resources"},
		"topolvm-system/topolvm-node":               {"/run/topolvm", "/var/lib/kubelet/plugins_registry/", "/var/lib/kubelet/plugins/topolvm.io/node", "/var/lib/kubelet/plugins/kubernetes.io/csi", "/var/lib/kubelet/pods/"},
		"openebs/openebs-lvm-localpv-node":          {"/dev", "/var/lib/kubelet/plugins_registry/", "/var/lib/kubelet/plugins/lvm-localpv/", "/var/lib/kubelet/"},
		"openebs/openebs-ndm":                       {"/run/udev", "/var/openebs/ndm"},
		"piraeus-datastore/linstor-satellite.wk1":   {"/etc/lvm/archive", "/var/etc/lvm/archive", "/var/etc/lvm/backup", "/var/lib/linstor.d", "/var/lib/drbd", "/var/log/linstor-satellite", "/run/drbd-shutdown-guard"},
		"piraeus-datastore/linstor-csi-node":        {"/var/lib/kubelet", "/var/lib/kubelet/plugins/linstor.csi.linbit.com"},
		"seaweedfs/seaweedfs-mount":                 {"/var/lib/seaweedfs-mount", "/var/lib/kubelet/pods"},
		"spegel/spegel":                             {"/var/lib/spegel", "/etc/cri/conf.d/hosts"},
		"kube-system/ovs-ovn":                       {"/var/lib/openvswitch", "/var/log/openvswitch", "/run/openvswitch", "/opt/cni/bin"},
		"rook-ceph/csi-rbdplugin":                   {"/var/lib/rook/rook-ceph.rbd.csi.ceph.com/log/node-plugin", "/var/lib/kubelet/plugins/rook-ceph.rbd.csi.ceph.com", "/var/lib/kubelet/pods", "/run/mount"},
		"longhorn-system/longhorn-manager":          {"/boot/", "/dev/", "/proc/", "/etc/", "/var/lib/longhorn/"},
		"longhorn-system/engine-image-ei-1":         {"/var/lib/longhorn/engine-binaries/longhornio-longhorn-engine-v1"},
		"longhorn-system/longhorn-csi-plugin":       {"/var/lib/kubelet/plugins/kubernetes.io/csi", "/var/lib/kubelet/plugins/driver.longhorn.io", "/var/lib/kubelet/pods"},
		"velero/node-agent":                         {"/var/lib/kubelet/pods", "/var/lib/kubelet/plugins"},
		"monitoring/prometheus-node-exporter-files": {"/var/lib/node_exporter/textfile_collector"},
	}
	synctest.Test(t, func(t *testing.T) {
		l := upLab(t, "wk1")
		for key, paths := range daemons {
			namespace, name, _ := strings.Cut(key, "/")
			l.put(t, store.Pods(), ofDaemonSet(writer(namespace, name+"-x", paths...), name))
		}
		exporter := mount(writer("monitoring", "node-exporter-x"), "/", corev1.VolumeMount{ReadOnly: true})
		l.put(t, store.Pods(), ofDaemonSet(exporter, "node-exporter"))
		l.put(t, store.Pods(), owned(writer("longhorn-system", "instance-manager-1", "/", "/var/lib/longhorn/unix-domain-socket"), "longhorn.io/v1beta2", "InstanceManager", "instance-manager-1"))
		l.put(t, store.Pods(), owned(writer("longhorn-system", "csi-attacher-1", "/var/lib/kubelet/plugins/driver.longhorn.io"), "apps/v1", "ReplicaSet", "csi-attacher"))
		for _, d := range l.localData(t, l.client(t, "system:masters"), "wk1") {
			t.Errorf("%s: %s", d.Name, d.What)
		}
	})
}

// What a storage system writes to directories whose contents it reports itself is reported only by it.
func TestManagedDirectoriesHaveOneName(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := upLab(t, "wk1")
		l.install(t, "ceph.rook.io", "v1", "cephclusters", "CephCluster", true)("rook", "ceph", map[string]any{"spec": map[string]any{"dataDirHostPath": "/var/rook"}})
		disks := map[string]any{"a": map[string]any{"diskType": "filesystem", "path": "/var/mnt/a/"}, "b": map[string]any{"diskType": "filesystem", "path": "/var/mnt/b"}}
		l.install(t, "longhorn.io", "v1beta2", "nodes", "Node", true)("longhorn", "wk1", longhornNode(disks, map[string]any{"a": diskStatus("True"), "b": diskStatus("True", "r1")}))
		for name, app := range map[string]string{"mon": "rook-ceph-mon", "mgr": "rook-ceph-mgr", "tool": "backup"} {
			p := writer("rook", name, "/var/rook/rook/log", "/var/rook/"+name)
			p.Labels = map[string]string{"app": app}
			l.put(t, store.Pods(), p)
		}
		l.put(t, store.Pods(), writer("longhorn", "manager", "/var/mnt/a", "/var/mnt/b"))
		l.put(t, store.Pods(), writer("other", "manager", "/var/mnt/a"))
		var got []string
		for _, d := range l.localData(t, l.client(t, "system:masters"), "wk1") {
			got = append(got, d.Name+": "+d.What)
		}
		want := []string{
			"hostpath/var/mnt/a: hostPath /var/mnt/a (pod other/manager)",
			"hostpath/var/rook/rook/log: hostPath /var/rook/rook/log (pod rook/tool)",
			"hostpath/var/rook/tool: hostPath /var/rook/tool (pod rook/tool)",
			"longhorn/var/mnt/b: Longhorn disk b (1 replicas)",
			"rook/var/rook: Rook's directory of CephCluster rook/ceph (rook-ceph-mon)",
		}
		must.Equal(t, "got", want, got)
	})
}

// A DiskPool of Mayastor in a file of the node is data, also in io-engine's own directory; one on a device is on that disk.
func TestLocalDataOfMayastor(t *testing.T) {
	t.Parallel()
	type row struct{ disk, file string }
	must.Bubbles(t, map[string]row{
		"device":           {"/dev/sdb", ""},
		"device, by aio":   {"aio:///dev/sdb?blk_size=4096", ""},
		"NVMe":             {"pcie:///0000:01:00.0", ""},
		"memory":           {"malloc:///disk0?size_mb=64", ""},
		"file, by aio":     {"aio:///var/local/x/io-engine/a", "/var/local/x/io-engine/a"},
		"file, by uring":   {"uring:///var/b.img?blk_size=512", "/var/b.img"},
		"file by its path": {"/var/local/openebs/io-engine/c/d", "/var/local/openebs/io-engine/c/d"},
	}, func(t *testing.T, tc row) {
		l := upLab(t, "wk1", "wk2")
		l.install(t, "openebs.io", "v1beta2", "diskpools", "DiskPool", true)("openebs", "p", map[string]any{"spec": map[string]any{"node": "wk1", "disks": []any{tc.disk}}})
		l.put(t, store.Pods(), labelled(writer("openebs", "io-engine-1", "/var/local/openebs/io-engine"), "app", "io-engine"))
		var want []cluster.LocalData
		if tc.file != "" {
			want = []cluster.LocalData{{Name: "mayastor" + tc.file, What: "Mayastor DiskPool p (" + tc.file + ")", Path: tc.file}}
		}
		c := l.client(t, "system:masters")
		must.Equal(t, "local data", want, l.localData(t, c, "wk1"))
		must.Equal(t, "wk2 has no pool, but data", 0, len(l.localData(t, c, "wk2")))
	})
}

func TestLocalDataOfLINSTOR(t *testing.T) {
	t.Parallel()
	pool := func(name, kind string, pairs ...string) map[string]any {
		spec := map[string]any{}
		for i := 0; i < len(pairs); i += 2 {
			spec[pairs[i]] = pairs[i+1]
		}
		return map[string]any{"name": name, kind: spec}
	}
	type row struct {
		pool map[string]any
		want cluster.LocalData
	}
	cases := map[string]row{
		"files":                   {pool("fs", "filePool", "directory", "/var/lib/linstor/fs"), cluster.LocalData{Name: "linstor/var/lib/linstor/fs", What: "LINSTOR storage pool fs (/var/lib/linstor/fs)", Path: "/var/lib/linstor/fs"}},
		"files, at the default":   {pool("fs", "fileThinPool"), cluster.LocalData{Name: "linstor/var/lib/linstor-pools/fs", What: "LINSTOR storage pool fs (/var/lib/linstor-pools/fs)", Path: "/var/lib/linstor-pools/fs"}},
		"LVM":                     {pool("ssd", "lvmPool", "volumeGroup", "vg0"), cluster.LocalData{Name: "linstor/ssd", What: "LINSTOR storage pool ssd (vg0)", Format: cluster.FormatLVM, Group: "vg0"}},
		"LVM, at the default":     {pool("ssd", "lvmPool"), cluster.LocalData{Name: "linstor/ssd", What: "LINSTOR storage pool ssd (ssd)", Format: cluster.FormatLVM, Group: "ssd"}},
		"thin LVM":                {pool("ssd", "lvmThinPool", "volumeGroup", "vg0", "thinPool", "thin"), cluster.LocalData{Name: "linstor/ssd", What: "LINSTOR storage pool ssd (vg0)", Format: cluster.FormatLVM, Group: "vg0"}},
		"thin LVM at the default": {pool("ssd", "lvmThinPool", "thinPool", "thin"), cluster.LocalData{Name: "linstor/ssd", What: "LINSTOR storage pool ssd (linstor_thin)", Format: cluster.FormatLVM, Group: "linstor_thin"}},
		"ZFS":                     {pool("tank", "zfsPool", "zPool", "tank/linstor"), cluster.LocalData{Name: "linstor/tank", What: "LINSTOR storage pool tank (tank/linstor)", Format: cluster.FormatZFS, Group: "tank/linstor"}},
		"thin ZFS":                {pool("tank", "zfsThinPool"), cluster.LocalData{Name: "linstor/tank", What: "LINSTOR storage pool tank (tank)", Format: cluster.FormatZFS, Group: "tank"}},
		"something new":           {pool("new", "spdkPool"), cluster.LocalData{Name: "linstor/new", What: "LINSTOR storage pool new (of a kind that recast does not know)"}},
	}
	must.Bubbles(t, cases, func(t *testing.T, tc row) {
		l := upLab(t, "wk1", "wk2")
		add := l.install(t, "piraeus.io", "v1", "linstorsatellites", "LinstorSatellite", false)
		add("", "wk1", map[string]any{"spec": map[string]any{"storagePools": []any{tc.pool}}})
		add("", "wk2", map[string]any{"spec": map[string]any{}})
		l.put(t, store.Pods(), ofDaemonSet(writer("piraeus-datastore", "satellite", "/var/lib/linstor/fs"), "linstor-satellite"))
		l.put(t, store.Volumes(), volume("a", csi("linstor.csi.linbit.com"), on("linbit.com/hostname", "wk1")))
		place := tc.want
		place.Name, place.What = "pv/a", "PersistentVolume a (claim default/db-0)"
		want := []cluster.LocalData{tc.want, place}
		if tc.want.Path != "/var/lib/linstor/fs" {
			want = append([]cluster.LocalData{{Name: "hostpath/var/lib/linstor/fs", What: "hostPath /var/lib/linstor/fs (DaemonSet piraeus-datastore/linstor-satellite)", Path: "/var/lib/linstor/fs"}}, want...)
		}
		c := l.client(t, "system:masters")
		must.Equal(t, "local data", want, l.localData(t, c, "wk1"))
		must.Equal(t, "wk2 has no pool of LINSTOR, but data", 0, len(l.localData(t, c, "wk2")))
	})
}

// TestServedUsers: pods with volumes on iSCSI or NVMe-oF, by claim or by themselves, run once their server lets their
// node in. In-line volumes count for the plan as PersistentVolumes do.
func TestServedUsers(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
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
			must.Equal(t, "got", want, must.Get(c.ServedUsers(t.Context()))(t))
		}
		look(false)
		id := node("wk1", 0).UUID
		l.LetIn(cluster.InitiatorName(cluster.ISCSI, id), cluster.InitiatorName(cluster.NVMeoF, id))
		time.Sleep(20 * time.Second)
		look(true)

		data := must.Get(c.LocalData(t.Context(), must.Get(c.Node(t.Context(), "wk1"))(t)))(t)
		inline := map[string]string{}
		for _, d := range data[""] {
			inline[d.What] = d.Access
		}
		must.Hold(t, inline["volume own of pod default/c"] == cluster.ISCSI && inline["volume own of pod default/d"] == cluster.NVMeoF && len(inline) == 4,
			"the plan knows %v", inline)
	})
}

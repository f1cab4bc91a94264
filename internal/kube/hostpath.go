package kube

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/foreign"
)

// managed is a directory of the node whose contents a storage system reports itself:
// what its own pods write there is not reported again.
type managed struct {
	namespace string
	app       string // prefix of its pods' label app; "": every pod of the namespace
	dir       string
}

// hostPaths finds the directories and files of each node that its pods write to
// through hostPath volumes. Pods that have ended do not count. For a single node the
// API server selects the pods.
func (l *localScan) hostPaths(ctx context.Context) error {
	var selected metav1.ListOptions
	if node := l.singleNode(); node != "" {
		selected.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
	}
	begin := func() {
		for _, n := range l.nodes {
			clear(n.writers)
		}
		l.inline = nil
	}
	return l.eachPod(ctx, "", selected, begin, func(p *corev1.Pod) {
		l.addInline(p)
		if n := l.byName(p.Spec.NodeName); n != nil {
			n.addWriter(p)
		}
	})
}

// addInline adds the volumes of servers that only the pod itself names, once for all pods of a workload.
func (l *localScan) addInline(p *corev1.Pod) {
	if finished(p) {
		return
	}
	for _, v := range inlineServed(p) {
		data := cluster.LocalData{Name: "pod/" + p.Namespace + "/" + p.Name, What: foreign.Line(v.what), Access: v.access}
		if !slices.ContainsFunc(l.inline, func(d cluster.LocalData) bool { return d.What == data.What }) {
			l.inline = append(l.inline, data)
		}
	}
}

func (n *localNode) addWriter(p *corev1.Pod) {
	if finished(p) {
		return
	}
	for _, at := range writablePaths(&p.Spec) {
		isManaged := func(m managed) bool {
			return m.namespace == p.Namespace && strings.HasPrefix(p.Labels["app"], m.app) && within(at, m.dir)
		}
		if isRegenerated(p, at) || slices.ContainsFunc(n.managed, isManaged) {
			continue
		}
		if n.writers[at] == nil {
			n.writers[at] = map[string]bool{}
		}
		n.writers[at][workload(p)] = true
	}
}

// paths returns the paths that pods write to.
func (n *localNode) paths() (data []cluster.LocalData) {
	for _, at := range slices.Sorted(maps.Keys(n.writers)) {
		by := slices.Sorted(maps.Keys(n.writers[at]))
		data = append(data, cluster.LocalData{Name: "hostpath" + at, What: fmt.Sprintf("hostPath %s (%s)", at, strings.Join(by, ", ")), Path: at})
	}
	return data
}

// writablePaths lists the paths on the node that may hold lasting data and that a container
// of the pod may write to.
func writablePaths(spec *corev1.PodSpec) []string {
	sources := map[string]string{}
	for _, v := range spec.Volumes {
		if v.HostPath != nil && !isDevice(v.HostPath.Type) {
			sources[v.Name] = v.HostPath.Path
		}
	}
	var paths []string
	look := func(mounts []corev1.VolumeMount) {
		for _, m := range mounts {
			source, ok := sources[m.Name]
			if at := path.Join("/", source, m.SubPath); ok && !m.ReadOnly && isPersistent(at) {
				paths = append(paths, at)
			}
		}
	}
	for _, c := range spec.InitContainers {
		look(c.VolumeMounts)
	}
	for _, c := range spec.Containers {
		look(c.VolumeMounts)
	}
	for _, c := range spec.EphemeralContainers {
		look(c.VolumeMounts)
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// isDevice reports whether a hostPath is a socket or a device, which hold no data.
func isDevice(t *corev1.HostPathType) bool {
	return t != nil && slices.Contains([]corev1.HostPathType{corev1.HostPathSocket, corev1.HostPathCharDev, corev1.HostPathBlockDev}, *t)
}

// isPersistent reports whether data written to a path of a Talos node survives a restart
// and is more than configuration. Besides /var that is /opt, an overlay whose writes
// go to /var/system/overlays. So are /etc/cni, /etc/kubernetes and
// /usr/libexec/kubernetes, but the CNI, Talos and the kubelet fill those
// (constants.Overlays of Talos). /var/run leads to /run; the rest is read-only or in
// memory.
func isPersistent(at string) bool {
	return at == "/" || (within(at, "/var") || within(at, "/opt")) && !within(at, "/var/run")
}

// within reports whether a path is dir or below it.
func within(at, dir string) bool {
	return at == dir || strings.HasPrefix(at, strings.TrimSuffix(dir, "/")+"/")
}

// workload names what created the pod, by a name that outlives it: "DaemonSet default/agent".
func workload(p *corev1.Pod) string {
	kind, name := "pod", p.Name
	if ref := metav1.GetControllerOfNoCopy(p); ref != nil && ref.Kind != "Node" {
		kind, name = ref.Kind, ref.Name
	}
	if hash := p.Labels["pod-template-hash"]; kind == "ReplicaSet" && hash != "" && strings.HasSuffix(name, "-"+hash) {
		kind, name = "Deployment", strings.TrimSuffix(name, "-"+hash)
	}
	return kind + " " + p.Namespace + "/" + name
}

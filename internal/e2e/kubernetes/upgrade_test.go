package kubernetes

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The Kubernetes version of the lab at first, and that of the real API server, which never
// changes.
const before, after = "v1.36.1", "v1.37.1"

// upgradeRefused are upgrades that end before anything restarts.
func (s *scene) upgradeRefused() {
	s.settled()
	s.until("kube-proxy runs everywhere", func() bool { return s.running()["kube-proxy"] == proxies(before) })
	was := s.running()
	s.must(4, "upgrade-k8s --to v1.38.0 --yes", "Kubernetes is upgraded one minor version at a time, and "+before+" → v1.38.0 skips v1.37")
	s.must(4, "upgrade-k8s --to v1.35.4 --yes", "Kubernetes goes to no version before")
	s.must(4, "upgrade-k8s --to v1.37.9 --yes", "can't fetch registry.k8s.io/kube-apiserver:v1.37.9", "nothing was restarted")
	s.must(0, "upgrade-k8s --to "+after+" --dry-run", "cluster lab: Kubernetes "+before+" → "+after, "kube-proxy:"+after)
	if diff := cmp.Diff(was, s.running()); diff != "" {
		s.t.Errorf("it changed what runs (-was +is):\n%s", diff)
	}
	s.t.Attr("kubernetes-troubles", "3")
}

// upgradeKubernetes upgrades the cluster to the version in recast.yaml, while the API
// server is killed.
func (s *scene) upgradeKubernetes() {
	s.waits(patient)
	s.wantsKubernetes(after)
	s.must(2, "drift", "Kubernetes "+before+" → "+after)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.until("the second API server is the new one", func() bool {
			return s.running()["pod kube-apiserver-cp2"] == "registry.k8s.io/kube-apiserver:"+after
		})
		s.plane.StopAPI()
		time.Sleep(2 * time.Second)
		s.plane.StartAPI()
		s.plane.WaitReady()
	}()
	said := s.run("upgrade-k8s --yes")
	<-done
	said.has(s.t, 0, "Kubernetes is "+after+" on all of 5 nodes", "upgrade-k8s --to "+strings.TrimPrefix(after, "v"))
	if diff := cmp.Diff(upgraded(), s.running()); diff != "" {
		s.t.Errorf("what runs (-want +got):\n%s", diff)
	}
	s.must(0, "drift", "5 nodes in sync")
	s.must(0, "upgrade-k8s --yes", "nothing to do")
	s.t.Attr("kubernetes-troubles", "1")
}

// wantsKubernetes writes the version into recast.yaml.
func (s *scene) wantsKubernetes(version string) {
	s.t.Helper()
	path := filepath.Join(s.dir, "recast.yaml")
	b, err := os.ReadFile(path)
	s.check(err)
	s.check(os.WriteFile(path, append(b, "kubernetes: {version: "+version+"}\n"...), 0o600))
}

// upgraded are the versions afterwards.
func upgraded() map[string]string {
	want := map[string]string{"kube-proxy": proxies(after)}
	for _, node := range []string{"cp1", "cp2", "cp3", "wk1", "wk2"} {
		want["kubelet "+node] = after
	}
	for _, node := range []string{"cp1", "cp2", "cp3"} {
		for _, c := range staticPods {
			want["pod "+c+"-"+node] = "registry.k8s.io/" + c + ":" + after
		}
	}
	return want
}

// proxies is a kube-proxy of that version that runs on every node.
func proxies(version string) string { return "registry.k8s.io/kube-proxy:" + version + ", 5 of 5 pods" }

var staticPods = []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"}

// running are the versions that Kubernetes reports: kubelets, mirror pods, and the
// DaemonSet that the real controllers roll out.
func (s *scene) running() map[string]string {
	s.t.Helper()
	is := map[string]string{}
	for _, n := range s.nodes() {
		is["kubelet "+n.Name] = n.Status.NodeInfo.KubeletVersion
	}
	pods, err := s.plane.Client.CoreV1().Pods("kube-system").List(s.t.Context(), metav1.ListOptions{})
	if err != nil {
		return is // the API server is down
	}
	ready := map[string]int{}
	for _, p := range pods.Items {
		switch {
		case slices.ContainsFunc(staticPods, func(c string) bool { return strings.HasPrefix(p.Name, c+"-") }):
			is["pod "+p.Name] = p.Spec.Containers[0].Image
		case p.Labels["k8s-app"] == "kube-proxy" && podReady(p):
			ready[p.Spec.Containers[0].Image]++
		}
	}
	set, err := s.plane.Client.AppsV1().DaemonSets("kube-system").Get(s.t.Context(), "kube-proxy", metav1.GetOptions{})
	if err != nil {
		return is
	}
	var shown []string
	for _, image := range slices.Sorted(maps.Keys(ready)) {
		shown = append(shown, fmt.Sprintf("%s, %d of %d pods", image, ready[image], set.Status.DesiredNumberScheduled))
	}
	is["kube-proxy"] = strings.Join(shown, "; ")
	return is
}

func podReady(p corev1.Pod) bool {
	return p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

package sim_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/client"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// TestKubeletInTrouble: if a kubelet does not come back, its Node becomes NotReady while
// its pods keep running; the old image repairs it.
func TestKubeletInTrouble(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	for name, c := range map[string]struct {
		version string
		defect  talosapi.Defect
		want    string // state of the service and its last event
	}{
		"not there":     {"v1.36.99", talosapi.Sound, "Failed Failed to run pre stage: "},
		"never arrives": {"v1.36.1", talosapi.Endless, "Preparing Running pre state"},
		"never ready":   {"v1.36.1", talosapi.Unready, "Running Health check failed: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				lab := start(t, sim.Options{Workers: 1}, true)
				k, machine := kubernetesClient(t, lab), machineClient(t, lab, "wk1")
				image := "ghcr.io/siderolabs/kubelet:" + c.version
				if err := lab.Trouble("wk1", talosapi.Trouble{Images: map[string]talosapi.Defect{image: c.defect}}); err != nil {
					t.Fatal(err)
				}
				reconfigure(t, machine, "kubelet:v1.35.4", "kubelet:"+c.version)
				time.Sleep(10 * time.Minute)
				if got := kubeletState(t, machine); !strings.HasPrefix(got, c.want) {
					t.Errorf("the service is %q, want %q", got, c.want)
				}
				if version, ready := nodeState(t, k, "wk1"); version != "v1.35.4" || ready != corev1.ConditionUnknown {
					t.Errorf("Node %s, ready %s", version, ready)
				}
				reconfigure(t, machine, "kubelet:"+c.version, "kubelet:v1.35.4")
				time.Sleep(time.Minute)
				if version, ready := nodeState(t, k, "wk1"); version != "v1.35.4" || ready != corev1.ConditionTrue {
					t.Errorf("mended: Node %s, ready %s, service %s", version, ready, kubeletState(t, machine))
				}
			})
		})
	}
}

func kubeletState(t *testing.T, c *client.Client) string {
	t.Helper()
	infos, err := c.ServiceInfo(t.Context(), "kubelet")
	if err != nil || len(infos) != 1 {
		t.Fatalf("%v, %v", infos, err)
	}
	events := infos[0].Service.GetEvents().GetEvents()
	return infos[0].Service.GetState() + " " + events[len(events)-1].GetMsg()
}

func nodeState(t *testing.T, k *kubernetes.Clientset, name string) (version string, ready corev1.ConditionStatus) {
	t.Helper()
	n, err := k.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			ready = c.Status
		}
	}
	return n.Status.NodeInfo.KubeletVersion, ready
}

// TestAPIServerNeverReady: if one API server starts but never answers, the cluster keeps
// the others; before Talos 1.14 nothing probes its container, so it counts as ready.
func TestAPIServerNeverReady(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	const image = "registry.k8s.io/kube-apiserver:v1.36.1"
	for talos, ready := range map[string]string{"v1.13.9": "True", "v1.14.1": "False"} {
		t.Run(talos, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				lab := start(t, sim.Options{TalosVersion: talos, ControlPlanes: 3, Workers: 1}, true)
				time.Sleep(time.Minute)
				k, machine := kubernetesClient(t, lab), machineClient(t, lab, "cp1")
				lab.BreakImage(image, talosapi.Unready)
				reconfigure(t, machine, "kube-apiserver:v1.35.4", "kube-apiserver:v1.36.1")
				time.Sleep(5 * time.Minute)
				if _, line := mirror(t, k, "kube-apiserver"); line != "kube-apiserver:v1.36.1 config 2 ready "+ready {
					t.Errorf("got %q", line)
				}
				if v, err := k.ServerVersion(); err != nil || v.GitVersion != "v1.35.4" {
					t.Errorf("the others: %v, %v", v, err)
				}
				lab.BreakImage(image, talosapi.Sound)
				reconfigure(t, machine, "kube-apiserver:v1.36.1", "kube-apiserver:v1.35.4")
				time.Sleep(time.Minute)
				if _, line := mirror(t, k, "kube-apiserver"); line != "kube-apiserver:v1.35.4 config 3 ready True" {
					t.Errorf("mended: %q", line)
				}
			})
		})
	}
}

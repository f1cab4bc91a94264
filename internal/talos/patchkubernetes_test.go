package talos_test

import (
	"fmt"
	"strings"
	"testing"

	machineconf "github.com/siderolabs/talos/pkg/machinery/config/machine"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/talos"
)

var kubernetesImages = cluster.KubernetesImages{
	APIServer: "registry.k8s.io/kube-apiserver:v1.36.1", ControllerManager: "registry.k8s.io/kube-controller-manager:v1.36.1",
	Scheduler: "registry.k8s.io/kube-scheduler:v1.36.1", KubeProxy: "registry.k8s.io/kube-proxy:v1.36.1", Kubelet: "ghcr.io/siderolabs/kubelet:v1.36.1",
}

// TestPatchKubernetesGenerated: in the output of talosctl for each version, in one
// document or in many, only the tags change, and a second patch changes no byte.
func TestPatchKubernetesGenerated(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"v1.11", "v1.12", "v1.13", "v1.14"} {
		for kind, images := range map[machineconf.Type]int{machineconf.TypeControlPlane: 5, machineconf.TypeWorker: 1} {
			t.Run(fmt.Sprint(version, " ", kind), func(t *testing.T) {
				t.Parallel()
				p := cluster.ConfigPatch{Kubernetes: kubernetesImages}
				if kind == machineconf.TypeWorker {
					p.Kubernetes = cluster.KubernetesImages{Kubelet: kubernetesImages.Kubelet}
				}
				config := string(generated(t, version, kind, false))
				patched := mustPatch(t, config, p)
				want := config
				for _, c := range cluster.Components {
					if image := p.Kubernetes.Of(c); image != "" {
						want = strings.ReplaceAll(want, strings.TrimSuffix(image, "v1.36.1")+"v1.35.4", image)
					}
				}
				if n := strings.Count(patched, ":v1.36.1"); patched != want || n != images {
					t.Errorf("%d images, got\n%s", n, patched)
				}
				if again := mustPatch(t, patched, p); again != patched {
					t.Errorf("again:\n%s", again)
				}
			})
		}
	}
}

func mustPatch(t *testing.T, config string, p cluster.ConfigPatch) string {
	t.Helper()
	patched, err := new(talos.Client).PatchConfig(cluster.Secret(config), p)
	if err != nil {
		t.Fatal(err)
	}
	return string(patched)
}

// TestPatchKubernetesKeeps: repositories and variants stay; what names no version,
// or pins another by a digest, is refused.
func TestPatchKubernetesKeeps(t *testing.T) {
	t.Parallel()
	config := string(generated(t, "v1.13", machineconf.TypeControlPlane, true))
	const apiServer, kubelet = "registry.k8s.io/kube-apiserver:v1.35.4", "ghcr.io/siderolabs/kubelet:v1.35.4"
	digest := "@sha256:" + strings.Repeat("0", 64)
	for name, c := range map[string]struct{ old, fresh, want string }{
		"a mirror":            {apiServer, "mirror.local:5000/k8s/kube-apiserver:v1.34.0", "mirror.local:5000/k8s/kube-apiserver:v1.36.1"},
		"a newer one, a slim": {kubelet, "ghcr.io/siderolabs/kubelet:v1.37.0-slim", "ghcr.io/siderolabs/kubelet:v1.36.1-slim"},
		"the same, by digest": {kubelet, kubernetesImages.Kubelet + digest, kubernetesImages.Kubelet + digest},
		"none":                {"        image: " + apiServer, "        disablePodSecurityPolicy: true", kubernetesImages.APIServer},
		"a digest":            {apiServer, apiServer + digest, ""},
		"no version":          {kubelet, "ghcr.io/siderolabs/kubelet:latest", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			edited := strings.Replace(config, c.old, c.fresh, 1)
			if edited == config {
				t.Fatalf("it has no %q", c.old)
			}
			patched, err := new(talos.Client).PatchConfig(cluster.Secret(edited), cluster.ConfigPatch{Kubernetes: kubernetesImages})
			if (err != nil) != (c.want == "") || !strings.Contains(string(patched), c.want) {
				t.Errorf("%v, want %q in\n%s", err, c.want, patched)
			}
		})
	}
}

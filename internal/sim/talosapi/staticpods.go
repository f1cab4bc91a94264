package talosapi

import (
	"context"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
)

// kubernetesConfig is what the configuration says of the Kubernetes of this
// machine, as far as anybody asks for it.
func (b *boot) kubernetesConfig(cfg config.Provider) []resource.Resource {
	var rs []resource.Resource
	if kubelet := cfg.K8sKubeletConfig(); kubelet != nil {
		r := k8s.NewKubeletConfig(k8s.NamespaceName, k8s.KubeletID)
		r.TypedSpec().Image = kubelet.Image()
		rs = append(rs, r)
	}
	if !cfg.Machine().Type().IsControlPlane() {
		return rs
	}
	server, controllers, scheduler := k8s.NewAPIServerConfig(k8s.APIServerID), k8s.NewControllerManagerConfig(k8s.ControllerManagerID), k8s.NewSchedulerConfig(k8s.SchedulerID)
	server.TypedSpec().LocalPort, server.TypedSpec().AdvertisedAddress = 6443, "$(POD_IP)"
	controllers.TypedSpec().Enabled, scheduler.TypedSpec().Enabled = true, true
	manifests := k8s.NewBootstrapManifestsConfig()
	manifests.TypedSpec().CNIName = "flannel"
	return append(rs, server, controllers, scheduler, manifests)
}

// publishStaticPods shows the control plane's pods as the kubelet runs them.
func (b *boot) publishStaticPods(ctx context.Context) error {
	b.mu.Lock()
	node := b.node
	b.mu.Unlock()
	for _, id := range []string{k8s.APIServerID, k8s.ControllerManagerID, k8s.SchedulerID} {
		r := k8s.NewStaticPodStatus(k8s.NamespaceName, "kube-system/"+id+"-"+node)
		r.TypedSpec().PodStatus = map[string]any{"phase": "Running", "conditions": []any{map[string]any{"type": "Ready", "status": "True"}}}
		if err := b.store.set(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

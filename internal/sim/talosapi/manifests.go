package talosapi

import (
	"context"
	"fmt"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"

	"github.com/recast-sh/recast/internal/sim/manifests"
)

// manifestsOf is a control plane's configuration of the objects that Talos creates in
// Kubernetes.
func manifestsOf(cfg config.Provider) manifests.Config {
	c := manifests.Of("")
	c.ProxyImage, c.CoreDNSImage = "", ""
	if token := cfg.Cluster().Token(); token != nil {
		c.TokenID, c.TokenSecret = token.ID(), token.Secret()
	}
	if p := cfg.K8sProxyConfig(); p != nil && p.Enabled() {
		c.ProxyImage, c.ProxyArguments = p.Image(), arguments(p.ExtraArgs())
	}
	if d := cfg.K8sCoreDNSConfig(); d != nil && d.Enabled() {
		c.CoreDNSImage = d.Image()
	}
	if cfg.K8sFlannelCNIConfig() == nil {
		c.FlannelImage = ""
	}
	return c
}

// publishManifests publishes these objects. Talos creates missing ones and leaves existing
// ones alone (ManifestController, ManifestApplyController).
func (b *boot) publishManifests(ctx context.Context, cfg config.Provider) error {
	if !cfg.Machine().Type().IsControlPlane() {
		return nil
	}
	c := manifestsOf(cfg)
	all, err := manifests.Render(c)
	if err != nil {
		return err
	}
	summary := k8s.NewBootstrapManifestsConfig()
	*summary.TypedSpec() = k8s.BootstrapManifestsConfigSpec{
		Server: c.Server, CNIName: "flannel", ClusterDomain: "cluster.local", DNSServiceIP: "10.96.0.10",
		ProxyEnabled: c.ProxyImage != "", ProxyImage: c.ProxyImage, ProxyArgs: c.ProxyArguments,
		CoreDNSEnabled: c.CoreDNSImage != "", CoreDNSImage: c.CoreDNSImage, FlannelEnabled: c.FlannelImage != "", FlannelImage: c.FlannelImage,
	}
	if err := b.store.set(ctx, summary); err != nil {
		return err
	}
	var rs []resource.Resource
	for _, m := range all {
		r := k8s.NewManifest(k8s.ControlPlaneNamespaceName, m.Name)
		for _, o := range m.Objects {
			r.TypedSpec().Items = append(r.TypedSpec().Items, k8s.SingleManifest{Object: o})
		}
		rs = append(rs, r)
	}
	if err := b.store.replace(ctx, k8s.ControlPlaneNamespaceName, k8s.ManifestType, rs); err != nil {
		return fmt.Errorf("render manifests: %w", err)
	}
	return nil
}

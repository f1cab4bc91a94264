package talosapi

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
)

// components are a control plane's static pods.
var components = []string{k8s.APIServerID, k8s.ControllerManagerID, k8s.SchedulerID}

// kubernetesConfig is the part of the configuration about this machine's Kubernetes, as
// far as the lab needs it.
func (b *boot) kubernetesConfig(cfg config.Provider) []resource.Resource {
	var rs []resource.Resource
	if kubelet := cfg.K8sKubeletConfig(); kubelet != nil {
		r := k8s.NewKubeletConfig(k8s.NamespaceName, k8s.KubeletID)
		r.TypedSpec().Image = kubelet.Image()
		rs = append(rs, r, b.kubeletSpec(kubelet.Image(), kubelet.ExtraArgs()))
	}
	if !cfg.Machine().Type().IsControlPlane() {
		return rs
	}
	for _, id := range components {
		rs = append(rs, b.componentConfig(cfg, id, id))
		if b.release().fourteen() {
			rs = append(rs, b.componentConfig(cfg, id, k8s.FinalPrefix+id))
		}
	}
	return rs
}

// componentConfig is the resource that a static pod is rendered from.
func (b *boot) componentConfig(cfg config.Provider, id, as string) resource.Resource {
	switch id {
	case k8s.APIServerID:
		r := k8s.NewAPIServerConfig(as)
		r.TypedSpec().LocalPort, r.TypedSpec().AdvertisedAddress = 6443, "$(POD_IP)"
		if c := cfg.K8sAPIServerConfig(); c != nil {
			r.TypedSpec().Image, r.TypedSpec().ExtraArgs = c.Image(), argValues(c.ExtraArgs())
			r.TypedSpec().StartupProbesEnabled = b.release().fourteen() && c.StartupProbesEnabled()
		}
		return r
	case k8s.ControllerManagerID:
		r := k8s.NewControllerManagerConfig(as)
		if c := cfg.K8sControllerManagerConfig(); c != nil {
			r.TypedSpec().Enabled, r.TypedSpec().Image, r.TypedSpec().ExtraArgs = c.Enabled(), c.Image(), argValues(c.ExtraArgs())
		}
		return r
	default:
		r := k8s.NewSchedulerConfig(as)
		if c := cfg.K8sSchedulerConfig(); c != nil {
			r.TypedSpec().Enabled, r.TypedSpec().Image, r.TypedSpec().ExtraArgs = c.Enabled(), c.Image(), argValues(c.ExtraArgs())
		}
		return r
	}
}

func argValues(extra map[string][]string) map[string]k8s.ArgValues {
	all := map[string]k8s.ArgValues{}
	for name, values := range extra {
		all[name] = k8s.ArgValues{Values: values}
	}
	return all
}

// renderPods publishes the control plane's rendered pods. It does nothing before etcd was
// healthy (ControlPlaneStaticPodController).
func (b *boot) renderPods(ctx context.Context) error {
	cfg := b.config()
	b.mu.Lock()
	ready := b.planes
	b.mu.Unlock()
	if !ready || !cfg.Machine().Type().IsControlPlane() {
		return nil
	}
	var rs []resource.Resource
	for _, id := range components {
		from := id
		if b.release().fourteen() {
			from = k8s.FinalPrefix + id
		}
		c, err := b.store.st.Get(ctx, b.componentConfig(cfg, id, from).Metadata())
		if err != nil {
			return fmt.Errorf("render %s: %w", id, err)
		}
		if p := b.renderPod(id, c); p != nil {
			rs = append(rs, p)
		}
	}
	return b.store.replace(ctx, k8s.NamespaceName, k8s.StaticPodType, rs)
}

// renderPod is nil for a disabled component.
func (b *boot) renderPod(id string, from resource.Resource) resource.Resource {
	var image string
	var extra map[string]k8s.ArgValues
	annotations := map[string]any{
		constants.AnnotationStaticPodConfigVersion:  from.Metadata().Version().String(),
		constants.AnnotationStaticPodSecretsVersion: "1",
	}
	container := map[string]any{"name": id}
	ask := map[string]any{"path": "/healthz", "host": "localhost", "scheme": "HTTPS"}
	probe := map[string]any{"httpGet": ask}
	switch c := from.(type) {
	case *k8s.APIServerConfig:
		image, extra = c.TypedSpec().Image, c.TypedSpec().ExtraArgs
		annotations[constants.AnnotationStaticPodConfigFileVersion] = "1"
		if c.TypedSpec().StartupProbesEnabled {
			ask["path"], ask["port"] = "/readyz", int64(c.TypedSpec().LocalPort)
			container["readinessProbe"], container["startupProbe"] = probe, probe
		}
	case *k8s.ControllerManagerConfig:
		image, extra = c.TypedSpec().Image, c.TypedSpec().ExtraArgs
		ask["port"], container["startupProbe"] = int64(10257), probe
		if !c.TypedSpec().Enabled {
			return nil
		}
	case *k8s.SchedulerConfig:
		image, extra = c.TypedSpec().Image, c.TypedSpec().ExtraArgs
		ask["port"], container["startupProbe"] = int64(10259), probe
		if !c.TypedSpec().Enabled {
			return nil
		}
	}
	container["image"], container["command"] = image, command(id, extra)
	labels := map[string]any{
		"tier": "control-plane", "k8s-app": id, "component": id, "app.kubernetes.io/name": id,
		"app.kubernetes.io/version": strings.TrimPrefix(tagOf(image), "v"), "app.kubernetes.io/component": "control-plane", "app.kubernetes.io/managed-by": "Talos",
	}
	r := k8s.NewStaticPod(k8s.NamespaceName, id)
	r.TypedSpec().Pod = map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": id, "namespace": "kube-system", "annotations": annotations, "labels": labels},
		"spec": map[string]any{
			"hostNetwork": true, "priorityClassName": "system-cluster-critical", "containers": []any{container},
		},
	}
	return r
}

// command is the relevant part of the container's command.
func command(id string, extra map[string]k8s.ArgValues) []any {
	all := map[string][]string{"profiling": {"false"}}
	if id == k8s.APIServerID {
		all["enable-admission-plugins"] = []string{"NodeRestriction"}
	}
	for name, v := range extra {
		if name == "enable-admission-plugins" { // merged (merge policies in control_plane_final.go)
			all[name] = []string{strings.Join(slices.Concat(all[name], v.Values), ",")}
			continue
		}
		all[name] = v.Values
	}
	words := []any{"/usr/local/bin/" + id}
	for _, a := range arguments(all) {
		words = append(words, a)
	}
	return words
}

// tagOf is the tag of an image's reference, "" if it has none.
func tagOf(ref string) string {
	ref, _, _ = strings.Cut(ref, "@")
	if i := strings.LastIndexByte(ref, ':'); i > strings.LastIndexByte(ref, '/') {
		return ref[i+1:]
	}
	return ""
}

// controls makes Talos render the static pods from now on, because etcd is healthy.
func (b *boot) controls(ctx context.Context) error {
	b.mu.Lock()
	b.planes = true
	b.mu.Unlock()
	if err := b.renderPods(ctx); err != nil {
		return err
	}
	b.kubelet.notify()
	return nil
}

package talosapi

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"

	"github.com/recast-sh/recast/internal/sim/manifests"
)

// The kubelet's durations, at speed 1.
const (
	kubeletEnds   = time.Second      // from an order to end until it has ended
	kubeletHealth = 2 * time.Second  // from its start until the first health check (services/kubelet.go)
	manifestCheck = 20 * time.Second // maximum delay until it sees a change of static pods: its httpCheckFrequency
	statusCheck   = 15 * time.Second // maximum delay until Talos sees a change of a static pod (KubeletStaticPodController)
)

// kubeletID is the ID of the kubelet service.
const kubeletID = "kubelet"

// kubelet is the kubelet service of one boot, with its static pods.
type kubelet struct {
	b *boot

	telling sync.Mutex // serializes reports to Kubernetes, so that the last one is current

	mu      sync.Mutex
	status  service
	ordered int             // restarts requested through the API
	done    int             // those that have begun
	pods    map[string]*pod // by component; nil until the kubelet has started some
	changed chan struct{}   // closed when its specification or a pod changes
}

func newKubelet(b *boot) *kubelet {
	return &kubelet{
		b: b, changed: make(chan struct{}), pods: map[string]*pod{},
		status: service{id: kubeletID, state: stateWaiting, message: "Waiting for service \"cri\" to be \"up\"", unknown: true, at: b.started},
	}
}

// notify wakes the waiters for a change.
func (k *kubelet) notify() {
	k.mu.Lock()
	defer k.mu.Unlock()
	close(k.changed)
	k.changed = make(chan struct{})
}

func (k *kubelet) service() service { return guarded(&k.mu, &k.status) }

// become publishes a new state of the service.
func (k *kubelet) become(ctx context.Context, state, message string, healthy, unknown bool) {
	s := service{id: kubeletID, state: state, message: message, healthy: healthy, unknown: unknown, at: time.Now()}
	if state == stateRunning && !healthy && !unknown {
		s.problem = errNoKubelet
		s.message = "Health check failed: " + errNoKubelet
	}
	holding(&k.mu, func() { k.status = s })
	k.notify()
	if err := k.b.refresh(ctx); err != nil && ctx.Err() == nil {
		k.b.m.console("service %s: %v", kubeletID, err)
	}
}

// errNoKubelet is the health check's error if the process does not listen.
const errNoKubelet = `Get "http://127.0.0.1:10248/healthz": dial tcp 127.0.0.1:10248: connect: connection refused`

// wanted returns the configured image, the generation whose change restarts the kubelet, and a channel that is closed
// when either may have changed.
func (k *kubelet) wanted() (image, generation string, changed <-chan struct{}) {
	var args []string
	if cfg := k.b.config().K8sKubeletConfig(); cfg != nil {
		image, args = cfg.Image(), arguments(cfg.ExtraArgs())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return image, fmt.Sprint(image, args, k.ordered), k.changed
}

// run keeps the service as specified: a changed specification restarts the service (KubeletServiceController).
// started is closed at the first start.
func (k *kubelet) run(ctx context.Context, started chan<- struct{}) {
	atOnce := true
	for ctx.Err() == nil {
		image, generation, _ := k.wanted()
		life, end := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			k.serve(life, image, atOnce, func() {
				if started != nil {
					close(started)
					started = nil
				}
			})
		}()
		for {
			_, now, changed := k.wanted()
			if now != generation || !awaitChange(ctx, changed, time.Time{}) {
				break
			}
		}
		end()
		<-done
		if !k.end(ctx) {
			return
		}
		atOnce = false
	}
}

// end waits for the end of the process. Its containers keep running.
func (k *kubelet) end(ctx context.Context) bool {
	if ctx.Err() != nil {
		return false
	}
	if k.service().state == stateRunning {
		k.become(ctx, stateStopping, fmt.Sprintf("Sending SIGTERM to task %s (PID %d, container %s)", kubeletID, k.b.pid(kubeletID), kubeletID), false, false)
		if !k.b.m.spend(ctx, "kubelet", kubeletEnds) {
			return false
		}
	}
	k.b.withdraw()
	k.become(ctx, stateFinished, "Service finished successfully", false, false)
	return ctx.Err() == nil
}

// serve makes one run of the service, until ctx ends. With atOnce, the first run of a boot takes no time: it is part
// of the services' start.
func (k *kubelet) serve(ctx context.Context, image string, atOnce bool, started func()) {
	b := k.b
	holding(&k.mu, func() { k.done = k.ordered })
	k.become(ctx, statePreparing, "Running pre state", false, true)
	if err := b.pullKubelet(ctx, image, atOnce); err != nil {
		if ctx.Err() == nil {
			k.become(ctx, stateFailed, fmt.Sprintf("Failed to run pre stage: %v", err), false, true)
			<-ctx.Done()
		}
		return
	}
	message := fmt.Sprintf("Started task %s (PID %d) for container %s", kubeletID, b.pid(kubeletID), kubeletID)
	if b.m.defectOf(image) == Unready {
		k.become(ctx, stateRunning, message, false, true)
		if b.m.fw.sleep(ctx, kubeletHealth) {
			k.become(ctx, stateRunning, "", false, false)
			<-ctx.Done()
		}
		return
	}
	var registering sync.WaitGroup
	defer registering.Wait()
	if served, _ := b.registers(); served {
		b.announce(image)
	} else {
		registering.Go(func() { k.register(ctx, image) })
	}
	if !atOnce {
		k.become(ctx, stateRunning, message, false, true)
		if !b.m.spend(ctx, "kubelet", kubeletHealth) {
			return
		}
	}
	k.become(ctx, stateRunning, "Health check successful", true, false)
	started()
	k.runPods(ctx)
}

// register announces the node as soon as a new cluster's API serves.
func (k *kubelet) register(ctx context.Context, image string) {
	for {
		served, changed := k.b.registers()
		if served {
			break
		}
		if !awaitChange(ctx, changed, time.Time{}) {
			return
		}
	}
	k.b.announce(image)
	k.tellPods()
}

// restart restarts the service as the API does: it returns when the process has ended and is starting again.
func (k *kubelet) restart(ctx context.Context) error {
	k.mu.Lock()
	k.ordered++
	mine := k.ordered
	k.mu.Unlock()
	k.notify()
	for {
		k.mu.Lock()
		done, changed := k.done >= mine, k.changed
		k.mu.Unlock()
		if done {
			return nil
		}
		if !awaitChange(ctx, changed, time.Time{}) {
			return ctx.Err()
		}
	}
}

// arguments returns sorted flags, as argsbuilder writes them.
func arguments(extra map[string][]string) []string {
	var all []string
	for name, values := range extra {
		for _, v := range values {
			all = append(all, "--"+name+"="+v)
		}
	}
	slices.Sort(all)
	return all
}

// kubeletSpec returns the kubelet's specification.
func (b *boot) kubeletSpec(image string, extra map[string][]string) *k8s.KubeletSpec {
	r := k8s.NewKubeletSpec(k8s.NamespaceName, k8s.KubeletID)
	r.TypedSpec().Image = image
	r.TypedSpec().Args = append([]string{
		"--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubeconfig", "--cert-dir=/var/lib/kubelet/pki", "--config=/etc/kubernetes/kubelet.yaml",
	}, arguments(extra)...)
	r.TypedSpec().Config = map[string]any{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
	return r
}

// rendered returns the static pods that Talos renders for the kubelet.
func (b *boot) rendered(ctx context.Context) (map[string]map[string]any, error) {
	all := map[string]map[string]any{}
	for _, id := range components {
		r, err := b.store.st.Get(ctx, k8s.NewStaticPod(k8s.NamespaceName, id).Metadata())
		if state.IsNotFoundError(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read static pod %s: %w", id, err)
		}
		all[id] = r.(*k8s.StaticPod).TypedSpec().Pod
	}
	return all, nil
}

// startKubelet starts the service and waits until it is healthy, as the boot sequence does, unless an order to end
// comes first.
func (b *boot) startKubelet(ctx context.Context) outcome {
	started := make(chan struct{})
	b.tasks.Go(func() { b.kubelet.run(ctx, started) })
	b.tasks.Go(func() { b.kubelet.watchPods(ctx) })
	return until(ctx, b, started)
}

// components are a control plane's static pods.
var components = []string{k8s.APIServerID, k8s.ControllerManagerID, k8s.SchedulerID}

// kubernetesConfig returns the part of the configuration about this machine's Kubernetes, as far as the lab needs it.
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

// componentConfig returns the resource that a static pod is rendered from.
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
	ready := guarded(&b.mu, &b.planes)
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

// renderPod renders a component's static pod; nil for a disabled component.
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

// command returns the relevant part of the container's command.
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

// tagOf returns the tag of an image's reference, "" if it has none.
func tagOf(ref string) string {
	ref, _, _ = strings.Cut(ref, "@")
	if i := strings.LastIndexByte(ref, ':'); i > strings.LastIndexByte(ref, '/') {
		return ref[i+1:]
	}
	return ""
}

// controls makes Talos render the static pods from now on, because etcd is healthy.
func (b *boot) controls(ctx context.Context) error {
	holding(&b.mu, func() { b.planes = true })
	if err := b.renderPods(ctx); err != nil {
		return err
	}
	b.kubelet.notify()
	return nil
}

// manifestsOf returns a control plane's configuration of the objects that Talos creates in Kubernetes.
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

// publishManifests publishes the objects of manifestsOf. Talos creates missing objects and leaves existing objects
// alone (ManifestController, ManifestApplyController).
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

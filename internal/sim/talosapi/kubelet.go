package talosapi

import (
	"context"
	"crypto/tls"
	stdx509 "crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"

	"github.com/recast-sh/recast/internal/sim/etcd"
	"github.com/recast-sh/recast/internal/sim/manifests"
)

// The kubelet's durations, at speed 1.
const (
	kubeletEnds   = time.Second      // from an order to end until it has ended
	kubeletHealth = 2 * time.Second  // from its start until the first health check (services/kubelet.go)
	manifestCheck = 20 * time.Second // maximum delay until it sees a change of static pods: its httpCheckFrequency
	statusCheck   = 15 * time.Second // maximum delay until Talos sees a change of a static pod (KubeletStaticPodController)
)

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

func (k *kubelet) notify() {
	k.mu.Lock()
	defer k.mu.Unlock()
	close(k.changed)
	k.changed = make(chan struct{})
}

func (k *kubelet) service() service { return guarded(&k.mu, &k.status) }

func (k *kubelet) become(ctx context.Context, state, message string, healthy, unknown bool) {
	s := service{id: kubeletID, state: state, message: message, healthy: healthy, unknown: unknown, at: time.Now()}
	if state == stateRunning && !healthy && !unknown {
		s.problem = errNoKubelet
		s.message = "Health check failed: " + errNoKubelet
	}
	holding(&k.mu, func() { k.status = s })
	k.notify()
	k.b.refresh(ctx)
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

func (b *boot) kubeletSpec(image string, extra map[string][]string) *k8s.KubeletSpec {
	r := k8s.NewKubeletSpec(k8s.NamespaceName, k8s.KubeletID)
	r.TypedSpec().Image = image
	r.TypedSpec().Args = append([]string{
		"--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubeconfig", "--cert-dir=/var/lib/kubelet/pki", "--config=/etc/kubernetes/kubelet.yaml",
	}, arguments(extra)...)
	r.TypedSpec().Config = map[string]any{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
	return r
}

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

// Durations of static pods, at speed 1.
const (
	podEnds     = 2 * time.Second  // from the order to end until a container has ended
	podStarts   = time.Second      // from a stored image until its container runs
	serverTime  = 8 * time.Second  // from kube-apiserver's start until it answers
	probeTime   = 5 * time.Second  // from the others' start until their startup probe succeeds
	firstPause  = 10 * time.Second // between two attempts to pull or start, doubled each time
	longestWait = 5 * time.Minute
)

// The kubelet's reasons for waiting containers.
const (
	creating     = "ContainerCreating"
	pullFailed   = "ErrImagePull"
	pullBackOff  = "ImagePullBackOff"
	crashBackOff = "CrashLoopBackOff"
)

// StaticPod is a static pod's state in its kubelet.
type StaticPod struct {
	Pod      map[string]any // as rendered by Talos
	Hash     string         // of Pod
	Ready    bool
	Waiting  string // why its container does not run, "" if it does
	Message  string // details of Waiting
	Restarts int
	Started  time.Time // when its container last started
}

// pod is a static pod and its goroutine.
type pod struct {
	StaticPod
	id   string
	stop context.CancelFunc
	done chan struct{} // closed when its container has ended
}

func (p StaticPod) image() string {
	c := p.container()
	image, _ := c["image"].(string)
	return image
}

func (p StaticPod) container() map[string]any {
	spec, _ := p.Pod["spec"].(map[string]any)
	all, _ := spec["containers"].([]any)
	if len(all) == 0 {
		return nil
	}
	c, _ := all[0].(map[string]any)
	return c
}

// probed reports whether the kubelet probes the container. A container without probes is ready as soon as it runs.
func (p StaticPod) probed() bool {
	c := p.container()
	return c["readinessProbe"] != nil || c["startupProbe"] != nil
}

func hashOf(rendered map[string]any) string { return digest(encoded(rendered)) }

// runPods keeps the static pods as Talos renders them, until ctx ends; their containers
// run until the machine goes down.
func (k *kubelet) runPods(ctx context.Context) {
	k.tellPods()
	for prompt := true; ; {
		k.mu.Lock()
		changed, none := k.changed, len(k.pods) == 0
		k.mu.Unlock()
		rendered, err := k.b.rendered(ctx)
		if err != nil {
			return // the machine goes down
		}
		switch {
		case k.has(rendered):
			prompt = false
			if !awaitChange(ctx, changed, time.Time{}) {
				return
			}
		case prompt, none: // checked at its start
			k.sync(rendered)
		case !k.b.m.fw.sleep(ctx, manifestCheck):
			return
		default:
			prompt = true
		}
	}
}

func (k *kubelet) has(rendered map[string]map[string]any) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.EqualFunc(k.pods, rendered, func(p *pod, r map[string]any) bool { return p.Hash == hashOf(r) })
}

// sync replaces changed pods. The first pods of a boot start at once: their start is part of the services' start.
func (k *kubelet) sync(rendered map[string]map[string]any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, old := range k.pods {
		if rendered[id] == nil {
			old.stop()
			delete(k.pods, id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(rendered)) {
		old := k.pods[id]
		if old != nil && old.Hash == hashOf(rendered[id]) {
			continue
		}
		life, over := k.b.life()
		ctx, stop := context.WithCancel(life)
		p := &pod{
			StaticPod: StaticPod{Pod: rendered[id], Hash: hashOf(rendered[id]), Waiting: creating},
			id:        id, stop: stop, done: make(chan struct{}),
		}
		k.pods[id] = p
		k.b.tasks.Go(func() {
			defer over()
			defer close(p.done)
			if old != nil {
				old.stop()
				<-old.done
			}
			k.live(ctx, p, old == nil)
			k.b.m.fw.sleep(life, podEnds) // until it has ended, or the boot has
		})
	}
}

// live runs the life of one pod's container.
func (k *kubelet) live(ctx context.Context, p *pod, atOnce bool) {
	b := k.b
	image := p.image()
	name := imageName{driver: common.ContainerDriver_CRI, namespace: common.ContainerdNamespace_NS_CRI, ref: image}
	for pause := firstPause; ; pause = min(2*pause, longestWait) {
		k.show(p, func() { p.Waiting, p.Message = creating, "" })
		err := b.pullForPod(ctx, name, atOnce)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return
		}
		k.show(p, func() { p.Waiting, p.Message = pullFailed, err.Error() })
		if !b.m.fw.sleep(ctx, podStarts) {
			return
		}
		k.show(p, func() {
			p.Waiting, p.Message = pullBackOff, fmt.Sprintf("Back-off pulling image %q: ErrImagePull: %v", image, err)
		})
		if !b.m.fw.sleep(ctx, pause) {
			return
		}
	}
	k.start(ctx, p, atOnce)
	if p.id == k8s.APIServerID {
		b.serveKubernetes("", false)
	}
}

// start runs the container from its start to its end.
func (k *kubelet) start(ctx context.Context, p *pod, atOnce bool) {
	b := k.b
	if !atOnce && !b.m.fw.sleep(ctx, podStarts) {
		return
	}
	running := func(ready bool) {
		k.show(p, func() { p.Waiting, p.Message, p.Ready, p.Started = "", "", ready, time.Now() })
	}
	image := p.image()
	switch b.m.defectOf(image) {
	case Loops:
		k.loop(ctx, p)
		return
	case Unready:
		running(!p.probed())
		<-ctx.Done()
		return
	}
	running(atOnce || !p.probed())
	switch {
	case atOnce:
	case p.id == k8s.APIServerID:
		if !b.m.fw.sleep(ctx, serverTime) {
			return
		}
	case !b.m.fw.sleep(ctx, probeTime):
		return
	}
	if p.id == k8s.APIServerID {
		unserving := b.m.defectOf(image) == Unserving
		if b.serveKubernetes(image, !unserving); unserving && p.container()["readinessProbe"] != nil {
			<-ctx.Done()
			return
		}
	}
	k.show(p, func() { p.Ready = true })
	<-ctx.Done()
}

// loop runs a container that ends repeatedly right after its start.
func (k *kubelet) loop(ctx context.Context, p *pod) {
	for pause := firstPause; ; pause = min(2*pause, longestWait) {
		k.show(p, func() { p.Waiting, p.Message, p.Ready, p.Started = "", "", !p.probed(), time.Now() })
		if !k.b.m.fw.sleep(ctx, podStarts) {
			return
		}
		k.show(p, func() {
			p.Waiting, p.Ready = crashBackOff, false
			p.Message = fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", pause, p.id, p.id)
			p.Restarts++
		})
		if !k.b.m.fw.sleep(ctx, pause) {
			return
		}
	}
}

// show changes a pod's visible state: in Kubernetes at once, in Talos' resources at the next check.
func (k *kubelet) show(p *pod, change func()) {
	holding(&k.mu, change)
	k.tellPods()
	k.notify()
}

func (k *kubelet) shown() map[string]StaticPod {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := map[string]StaticPod{}
	for id, p := range k.pods {
		all[id] = p.StaticPod
	}
	return all
}

// tellPods reports the pods to Kubernetes while the kubelet runs.
func (k *kubelet) tellPods() {
	k.telling.Lock()
	defer k.telling.Unlock()
	if k.b.registered() == "" || k.b.m.fw.o.Kubelet == nil {
		return
	}
	all := k.shown()
	var list []StaticPod
	for _, id := range slices.Sorted(maps.Keys(all)) {
		list = append(list, all[id])
	}
	k.b.m.fw.o.Kubelet.StaticPods(k.b.m.hw.UUID, list)
}

// watchPods publishes the kubelet's static pods as Talos resources: periodically, at once
// when all are ready, and none while the kubelet is down (KubeletStaticPodController).
func (k *kubelet) watchPods(ctx context.Context) {
	for settled := false; ; {
		changed := guarded(&k.mu, &k.changed)
		rs := k.statuses()
		if err := k.b.store.replace(ctx, k8s.NamespaceName, k8s.StaticPodStatusType, rs); err != nil {
			if ctx.Err() == nil {
				k.b.m.console("static pods: %v", err)
			}
			return
		}
		settled = settled || len(rs) > 0 && !slices.ContainsFunc(slices.Collect(maps.Values(k.shown())), func(p StaticPod) bool { return !p.Ready })
		if !awaitChange(ctx, changed, time.Time{}) {
			return
		}
		if settled && len(k.statuses()) > 0 && !k.b.m.fw.sleep(ctx, statusCheck) {
			return
		}
	}
}

func (k *kubelet) statuses() []resource.Resource {
	if k.service().state != stateRunning {
		return nil
	}
	var rs []resource.Resource
	all := k.shown()
	for _, id := range slices.Sorted(maps.Keys(all)) {
		r := k8s.NewStaticPodStatus(k8s.NamespaceName, "kube-system/"+id+"-"+k.b.nodename())
		rs = append(rs, filled(r, k8s.StaticPodStatusSpec{PodStatus: all[id].status(id, k.b.m.addr().String())}))
	}
	return rs
}

// status returns a pod's status in the kubelet's API.
func (p StaticPod) status(id, addr string) map[string]any {
	phase, truth := "Running", map[bool]string{true: "True", false: "False"}
	container := map[string]any{
		"name": id, "image": p.image(), "ready": p.Ready, "started": p.Ready, "restartCount": int64(p.Restarts),
		"state": map[string]any{"running": map[string]any{"startedAt": p.Started.UTC().Format(time.RFC3339)}},
	}
	if p.Waiting != "" {
		container["state"] = map[string]any{"waiting": map[string]any{"reason": p.Waiting, "message": p.Message}}
	}
	if p.Started.IsZero() {
		phase = "Pending"
	}
	var conditions []any
	for _, c := range []struct {
		kind string
		met  bool
	}{{"PodReadyToStartContainers", true}, {"Initialized", true}, {"Ready", p.Ready}, {"ContainersReady", p.Ready}, {"PodScheduled", true}} {
		conditions = append(conditions, map[string]any{"type": c.kind, "status": truth[c.met]})
	}
	return map[string]any{
		"phase": phase, "conditions": conditions, "hostIP": addr, "podIP": addr, "containerStatuses": []any{container},
	}
}

// APIServer is a kube-apiserver that answers.
type APIServer struct {
	Address netip.Addr // of its machine
	Version string     // "v1.35.4"
	Boot    string     // ID of the machine's boot
	Ready   bool       // to serve; an unready server answers too
	// Certificate and Clients are from the CAs of the machine's configuration. Clients are
	// the issuers of the clients' certificates.
	Certificate *tls.Certificate
	Clients     *stdx509.CertPool
}

// serveKubernetes sets the image of this control plane's answering API server ("" for
// none) and whether it is ready to serve. After gone it has no effect.
func (b *boot) serveKubernetes(image string, ready bool) {
	if b.etcdService() == nil {
		return
	}
	server, err := APIServer{}, error(nil)
	if image != "" {
		server = APIServer{Address: b.m.addr(), Version: tagOf(image), Boot: b.id, Ready: ready}
		server.Certificate, server.Clients, err = b.apiServerTLS()
	}
	h := b.m.fw.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.kubernetes, b)
	switch {
	case err != nil:
		b.m.console("kube-apiserver: %v", err)
	case image == "":
	case h.kubernetesOf != clusterID(b.config()):
		b.m.console("kube-apiserver: the lab's only Kubernetes is that of another cluster")
	default:
		h.kubernetes[b] = server
		h.served = h.served || ready
	}
	h.notify()
}

// apiServerTLS returns the server's certificate, and the authorities whose client certificates the server accepts
// (KubernetesCertSANsController and KubernetesDynamicCertsController).
func (b *boot) apiServerTLS() (*tls.Certificate, *stdx509.CertPool, error) {
	cfg := b.config()
	ca, cluster, server := cfg.K8sAPIServerCAConfig(), cfg.K8sClusterConfig(), cfg.K8sAPIServerConfig()
	if ca == nil || ca.IssuingCA() == nil || cluster == nil {
		return nil, nil, errors.New("no CA of Kubernetes is configured")
	}
	b.mu.Lock()
	host := hostOf(b.cfg, b.nodeID)
	b.mu.Unlock()
	names := []string{cluster.ClusterEndpoint().Hostname()}
	if server != nil {
		names = append(names, server.CertSANs()...)
	}
	names = append(names, "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost",
		host.Hostname, host.FQDN(), apiService, "127.0.0.1")
	options := append(serverOptions(b.m.addr(), "kube-apiserver", names...), x509.Organization("kube-master"))
	pair, _, err := issue(ca.IssuingCA(), options...)
	if err != nil {
		return nil, nil, err
	}
	clients := stdx509.NewCertPool()
	for _, accepted := range ca.AcceptedCAs() {
		if !clients.AppendCertsFromPEM(accepted.Crt) {
			return nil, nil, errors.New("an accepted CA of Kubernetes is not in PEM")
		}
	}
	return pair.Certificate, clients, nil
}

// apiService is the address of the Service kubernetes.
const apiService = "10.96.0.1"

// APIServers returns the API servers of the control planes by address; the channel is closed when they may have
// changed.
func (fw *Firmware) APIServers() ([]APIServer, <-chan struct{}) {
	fw.hub.mu.Lock()
	defer fw.hub.mu.Unlock()
	byAddress := func(a, b APIServer) int { return a.Address.Compare(b.Address) }
	return slices.SortedFunc(maps.Values(fw.hub.kubernetes), byAddress), fw.hub.changed
}

// KubernetesStorage waits until a running API server can read from its local etcd, and
// fails as etcd does if that times out.
func (fw *Firmware) KubernetesStorage(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, fw.scaled(7*time.Second))
	defer cancel()
	for {
		fw.hub.mu.Lock()
		var beside []*etcd.Cluster
		for b := range fw.hub.kubernetes {
			if c, id, ok := b.etcdService().server(); ok && !c.Status(id).Learner {
				beside = append(beside, c)
			}
		}
		changed := fw.hub.changed
		fw.hub.mu.Unlock()
		for _, c := range beside {
			if err := c.Linearizable(ctx); err == nil {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return etcd.ErrTimeout
			}
			return ctx.Err()
		case <-changed:
		}
	}
}

// registers reports whether a kubelet can register: the other nodes reach the machine, and the API of its cluster has
// served. Otherwise the channel is closed when the answer may have changed.
func (b *boot) registers() (bool, <-chan struct{}) {
	if reached, changed := b.peered(); !reached {
		return false, changed
	}
	h, id := b.m.fw.hub, clusterID(b.config())
	h.mu.Lock()
	defer h.mu.Unlock()
	return b.m.fw.o.Data == nil || h.served && h.kubernetesOf == id, h.changed
}

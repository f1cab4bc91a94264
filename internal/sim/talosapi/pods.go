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
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"

	"github.com/recast-sh/recast/internal/sim/etcd"
)

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

// image returns the image of the pod's container.
func (p StaticPod) image() string {
	c := p.container()
	image, _ := c["image"].(string)
	return image
}

// container returns the first container of the rendered pod.
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

// has reports whether the rendered pods are the kubelet's present pods.
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

// shown returns the pods by component.
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

// statuses returns the resources with the static pods' status.
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

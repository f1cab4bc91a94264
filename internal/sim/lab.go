package sim

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/recast-sh/recast/internal/sim/factoryapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

// Lab is one datacentre with everything in it.
type Lab struct {
	World    *world.World
	Recorder *record.Recorder
	Kube     *kubeapi.Server
	Registry *factoryapi.Registry
	Factory  *factoryapi.Factory
	Catalog  factoryapi.Catalog
	Talos    *talosapi.Cluster // the lab's own cluster, which an empty lab has no machines of
	Nodes    []Node

	o        Options
	leases   leases
	machines *talosapi.Firmware
	kubeCA   authority // of the lab's own cluster
	pveCert  tls.Certificate
	puller   *http.Transport
	closers  []func() error
	cancel   context.CancelFunc
	serving  sync.WaitGroup
}

// New starts every server of a lab. The machines come with Install, unless the lab is
// empty. The caller closes the lab.
func New(parent context.Context, o Options) (_ *Lab, err error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(parent)
	l := &Lab{o: o, Recorder: record.Keeping(o.Requests), Nodes: o.nodes(), cancel: cancel}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	o.Network.Latency = o.Latency
	l.World = world.New(world.Options{Cluster: "lab", Speed: o.Speed, Agent: l.agent, Timeline: &l.Recorder.Timeline})
	l.World.SetDial(o.Network.Dialer().DialContext)
	l.closers = append(l.closers, func() error { l.World.Close(); return nil })
	for _, start := range []func(context.Context) error{l.startImages, l.startProxmox, l.startTalos, l.startKubernetes, l.startControl} {
		if err := start(ctx); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// Close powers everything off and waits for it.
func (l *Lab) Close() error {
	l.cancel()
	var errs []error
	for i := len(l.closers) - 1; i >= 0; i-- {
		errs = append(errs, l.closers[i]())
	}
	l.closers = nil
	l.serving.Wait()
	l.o.Network.Wait()
	return errors.Join(errs...)
}

// Client is a client's dialer into the lab's network.
func (l *Lab) Client() *network.Dialer { return l.o.Network.Dialer() }

// delay waits for d of simulated time.
func (l *Lab) delay(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(time.Duration(float64(d) / l.o.Speed))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// serveHTTP serves plain HTTP at an address until Close.
func (l *Lab) serveHTTP(ctx context.Context, addr string, h http.Handler) error {
	listener, err := l.o.Network.Listen(addr)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", addr, err)
	}
	l.o.Network.Open(ctx, addr, func() (network.Door, bool) { return network.Door{Handler: h}, true })
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	l.serving.Go(func() {
		_ = server.Serve(listener) // ends with ErrServerClosed
	})
	l.closers = append(l.closers, server.Close)
	return nil
}

func (l *Lab) startImages(ctx context.Context) error {
	dialer := l.o.Network.Dialer()
	l.puller = &http.Transport{DialContext: dialer.DialContext}
	l.closers = append(l.closers, func() error { l.puller.CloseIdleConnections(); return nil })
	l.Registry = factoryapi.NewRegistry(l.Recorder)
	l.Catalog = factoryapi.Catalog{Registry: l.o.Registry, Transport: l.Registry.Transport()}
	if err := l.serveHTTP(ctx, l.o.Registry, l.Registry); err != nil {
		return err
	}
	versions := l.o.talosVersions()
	for _, v := range versions {
		if err := l.Catalog.Publish(ctx, v, extensions()); err != nil {
			return fmt.Errorf("publish extensions: %w", err)
		}
	}
	factory, err := factoryapi.New(factoryapi.Options{
		URL: l.factoryURL(), Registry: l.o.Registry, Transport: l.Registry.Transport(),
		Versions: append([]string{"v1.13.8"}, versions...), Recorder: l.Recorder, Delay: l.delay, SignsInstallers: l.o.SignsInstallers,
	})
	if err != nil {
		return err
	}
	l.Factory = factory
	l.closers = append(l.closers, func() error { factory.Close(); return nil })
	return l.serveHTTP(ctx, l.o.Factory, factory)
}

func (l *Lab) factoryURL() string { return "http://" + l.o.Factory }

func (l *Lab) startTalos(ctx context.Context) (err error) {
	if l.Talos = l.o.Talos; l.Talos == nil {
		l.Talos, err = talosapi.NewCluster(ClusterName, l.kubernetesURL(), l.o.TalosVersion, l.o.KubernetesVersion)
		if err != nil {
			return err
		}
	}
	ca := l.Talos.Secrets.Certs.K8s
	l.kubeCA, err = readAuthority(ca.Crt, ca.Key)
	if err != nil {
		return err
	}
	l.machines = talosapi.New(ctx, talosapi.Options{
		Network: l.o.Network, Recorder: l.Recorder, Lease: l.lease, NetworkBits: l.o.networkBits(), Speed: l.o.Speed, Times: l.o.Times, Kubelet: kubelet{l}, Console: l.console(),
		PullInstaller: l.pull, PublicImage: publicDigest, ResolveImage: l.resolve, Drain: l.drain, Uncordon: l.uncordon, Data: objects{l}, Formatted: l.formatted(),
	})
	l.World.SetFirmware(l.machines)
	return nil
}

// formatted protects the disks of an empty lab on which Talos has made user volumes: there are none before.
func (l *Lab) formatted() func(vm, volume string, disk *world.Media) {
	if !l.o.Empty {
		return nil
	}
	return func(vm, volume string, disk *world.Media) {
		l.World.Protect(world.Protected{Serial: volume + " of " + vm, Media: disk, Identity: talosapi.Volumes})
	}
}

func (l *Lab) console() func(int, string) {
	if l.o.Console == nil {
		return nil
	}
	var mu sync.Mutex
	return func(vmid int, line string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(l.o.Console, "VM %d: %s\n", vmid, line)
	}
}

func (l *Lab) kubernetesURL() string {
	return "https://" + l.o.at(kubernetesNumber, kubernetesPort)
}

func (l *Lab) startKubernetes(ctx context.Context) error {
	upstream, err := l.upstream()
	if err != nil {
		return err
	}
	planted, err := l.manifests()
	if err != nil {
		return err
	}
	l.Kube, err = kubeapi.New(ctx, kubeapi.Options{
		Version: l.Talos.KubernetesVersion, Recorder: l.Recorder, Speed: l.o.Speed,
		Storage: l.machines.KubernetesStorage, Upstream: upstream, Refused: l.refused, Manifests: planted,
	})
	if err != nil {
		return err
	}
	l.closers = append(l.closers, l.Kube.Close)
	l.serving.Go(func() { l.serveKubernetes(ctx, l.o.at(kubernetesNumber, kubernetesPort)) })
	if l.o.Empty {
		return nil
	}
	return addWorkload(ctx, l.Kube.Store(), l.o.Workers)
}

// kubelet reports the Talos machines to the Kubernetes API.
type kubelet struct{ lab *Lab }

var _ talosapi.Kubelet = kubelet{}

func (k kubelet) NodeUp(n talosapi.NodeInfo) {
	info := kubeapi.NodeInfo{
		Name: n.Name, UUID: n.UUID, MachineID: n.MachineID, BootID: n.BootID, KubeletVersion: n.KubeletVersion, OSImage: fmt.Sprintf("Talos (%s)", n.TalosVersion),
		Addresses: []string{n.Address.String()}, Labels: maps.Clone(n.Labels),
	}
	if n.ControlPlane { // Talos sets it unless allowSchedulingOnControlPlanes is set
		const role = "node-role.kubernetes.io/control-plane"
		if info.Labels == nil {
			info.Labels = map[string]string{}
		}
		info.Labels[role] = ""
		info.Taints = []corev1.Taint{{Key: role, Effect: corev1.TaintEffectNoSchedule}}
	}
	k.lab.Kube.NodeUp(info)
}

func (k kubelet) StaticPods(uuid string, pods []talosapi.StaticPod) {
	var all []kubeapi.StaticPod
	for _, p := range pods {
		s := kubeapi.StaticPod{Pod: new(corev1.Pod), Hash: p.Hash, Ready: p.Ready, Waiting: p.Waiting, Message: p.Message, Restarts: p.Restarts, Started: p.Started}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(p.Pod, s.Pod); err == nil { // Talos renders valid pods
			all = append(all, s)
		}
	}
	k.lab.Kube.StaticPods(uuid, all)
}

func (k kubelet) NodeDown(_, uuid string) { k.lab.Kube.NodeDown(uuid) }

// agent is the QEMU guest agent of the machines.
func (l *Lab) agent(vmid int) ([]world.Interface, bool) {
	return l.machines.Agent(vmid)
}

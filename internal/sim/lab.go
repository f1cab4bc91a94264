// Package sim is the [Lab]: one simulated datacentre with a Talos cluster in it, behind the real wire protocols of
// Proxmox VE, Talos, Kubernetes, the Image Factory and OCI registries, so that real clients work with it unmodified.
package sim

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/recast-sh/recast/internal/sim/etcd"
	"github.com/recast-sh/recast/internal/sim/factoryapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/manifests"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

// Lab is one datacentre with all its servers and machines.
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

// New starts every server of a lab. The machines come with Install, unless the lab is empty. The caller closes the lab.
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

// Client returns a client's dialer into the lab's network.
func (l *Lab) Client() *network.Dialer { return l.o.Network.Dialer() }

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

func (l *Lab) serveHTTP(ctx context.Context, addr string, h http.Handler) error {
	listener, err := l.o.Network.Listen(addr)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", addr, err)
	}
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

// formatted returns, for an empty lab, the function that protects a disk on which Talos has made a user volume: the
// lab has no such disks before.
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

func (l *Lab) kubernetesURL() string { return "https://" + l.o.at(kubernetesNumber, kubernetesPort) }

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

func (l *Lab) agent(vmid int) ([]world.Interface, bool) { return l.machines.Agent(vmid) }

// Options shape a lab.
type Options struct {
	Network  *network.Network
	Prefix   string // first three bytes of the addresses: "127.42.7"; many workers use the networks after it too
	Registry string // where the OCI registry listens: "127.0.0.1:5000"
	Factory  string // where the Image Factory listens: "127.0.0.1:8080"
	// Empty leaves out all machines and VMs: recast makes the cluster there. ControlPlanes and Workers have no effect.
	Empty         bool
	ControlPlanes int            // 0 means 1
	Workers       int            // 0 means 2, None none
	Domain        string         // of the machines' hostnames and of their Nodes, with its dot: ".example.org"
	Hosts         int            // Proxmox nodes; 0 means 1
	Speed         float64        // simulated seconds per real second; 0 means 1
	Times         talosapi.Times // how long the machines' work takes
	EtcdOnData    bool           // control planes have EPHEMERAL, and so etcd's data, on a persistent disk
	EtcdVolume    bool           // with EtcdOnData, that disk has the volume ETCD, of Talos 1.14 and later, instead of EPHEMERAL
	Holder        bool           // persistent disks belong to data VMs, one per host
	SharedDisks   bool           // DiskStorage is shared by all hosts
	DiskBus       string         // of the nodes' disks: "scsi", "virtio", "sata" or "ide"; "" means "scsi"
	DiskType      string         // of DiskStorage: "dir", "lvmthin", "zfspool" …; "" means "dir"
	DiskCapacity  int64          // of DiskStorage, in bytes, per host unless shared; 0 means 1 TiB
	Layouts       []Layout       // of the nodes' disks, assigned round-robin; nil: all alike, from the options above
	VMs           map[string]VM  // replace the lab's own VMs, by node name
	Platform      string         // of the images; "" means nocloud
	KernelArgs    []string       // of all schematics
	TalosVersion  string         // of the machines at first; "" means TalosVersion
	NextTalos     string         // a second version with images; "": none
	// SignsInstallers: the Image Factory has keys for Secure Boot, and signs ordinary installers too.
	SignsInstallers bool
	// KubernetesVersion is the version in the machine configurations at first; "" means KubernetesVersion.
	KubernetesVersion string
	// NoDHCP leaves out the DHCP server: the lab's own machines have static addresses, and other machines need static
	// addresses too.
	NoDHCP bool
	// Talos holds the machines' cluster secrets, from another lab with the same prefix; nil: the lab makes new secrets.
	Talos *talosapi.Cluster
	// Kubernetes is the kubeconfig of a real control plane that stores the cluster's objects; nil: the lab stores them.
	Kubernetes []byte
	// Before is called before the first VM is made; may be nil.
	Before func(*world.World) error
	// Latency delays each answer of a server, in real time.
	Latency time.Duration
	// Requests is how many requests and delays the Recorder keeps at least; 0 keeps all.
	Requests int
	// Console gets what machines print on their screens; nil drops it.
	Console io.Writer
}

// Layout is a node's disk layout.
type Layout struct {
	Bus  string // "" means Options.DiskBus
	Data int    // persistent disks of a worker
	// Filesystem of the first persistent disk, as blkid calls it; "" means "xfs".
	Filesystem string
	// SeaBIOS selects firmware without UEFI.
	SeaBIOS bool
	// NoSerials leaves serial= out of its drives, as Proxmox' own dialogue and most Terraform modules do.
	NoSerials bool
	SCSI      string // scsihw; "" means "virtio-scsi-single"
}

const (
	// TalosVersion and KubernetesVersion are the versions that a new lab runs.
	TalosVersion      = "v1.13.9"
	KubernetesVersion = "v1.35.4"

	// None means no workers at all.
	None = -1

	// ClusterName is the name of the lab's Talos cluster.
	ClusterName = "lab"

	// ISOStorage is shared by all hosts. Each host has its own DiskStorage, unless SharedDisks is set.
	ISOStorage  = "isos"
	DiskStorage = "fast"

	proxmoxPort    = "8006"
	kubernetesPort = "6443"
)

func (o Options) withDefaults() Options {
	o.ControlPlanes = cmp.Or(o.ControlPlanes, 1)
	o.Workers = max(cmp.Or(o.Workers, 2), 0)
	if o.Empty {
		o.ControlPlanes, o.Workers = 0, 0
	}
	o.Hosts = cmp.Or(o.Hosts, 1)
	o.Speed = cmp.Or(o.Speed, 1)
	o.DiskBus = cmp.Or(o.DiskBus, "scsi")
	o.DiskType = cmp.Or(o.DiskType, "dir")
	o.Platform = cmp.Or(o.Platform, "nocloud")
	o.TalosVersion = cmp.Or(o.TalosVersion, TalosVersion)
	o.KubernetesVersion = cmp.Or(o.KubernetesVersion, KubernetesVersion)
	return o
}

// Address numbers by what they are assigned to.
const (
	firstHost         = 1
	kubernetesNumber  = 10
	firstControlPlane = 11
	controlNumber     = 30
	firstWorker       = 31
	maxHosts          = 9
	maxControlPlanes  = 19
	maxWorkers        = 1000
)

func (o Options) check() error {
	switch {
	case o.Hosts > maxHosts:
		return fmt.Errorf("a lab has at most %d Proxmox nodes", maxHosts)
	case o.ControlPlanes > maxControlPlanes:
		return fmt.Errorf("a lab has at most %d control planes", maxControlPlanes)
	case o.Workers > maxWorkers:
		return fmt.Errorf("a lab has at most %d workers", maxWorkers)
	}
	if o.Empty && o.Kubernetes != nil {
		return errors.New("an empty lab can't have a real control plane: it is not the lab's to make anew")
	}
	for node, v := range o.VMs {
		if err := v.check(node); err != nil {
			return err
		}
	}
	first, err := netip.ParseAddr(o.Prefix + ".0")
	if err != nil {
		return fmt.Errorf("prefix %q: %w", o.Prefix, err)
	}
	if last := o.last(); !netip.PrefixFrom(first, o.networkBits()).Masked().Contains(o.addr(last)) {
		return fmt.Errorf("prefix %q: a lab of that size needs %d networks from there on", o.Prefix, last>>8+1)
	}
	return CheckKubernetes(o.TalosVersion, o.KubernetesVersion)
}

// talosVersions returns the Talos versions that have extensions in the lab.
func (o Options) talosVersions() []string {
	versions := slices.Compact([]string{o.TalosVersion, TalosVersion})
	if o.NextTalos != "" {
		versions = append(versions, o.NextTalos)
	}
	return versions
}

// addr returns address number n, counted from the prefix.
func (o Options) addr(n int) netip.Addr {
	b := netip.MustParseAddr(o.Prefix + ".0").As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
	return netip.AddrFrom4(b)
}

// at returns address n with a port.
func (o Options) at(n int, port string) string { return net.JoinHostPort(o.addr(n).String(), port) }

// last returns the number of the last address.
func (o Options) last() int { return firstWorker + o.Workers - 1 }

// networkBits returns the prefix length of the one network that holds all addresses.
func (o Options) networkBits() int {
	if o.last() < 255 { // 255 would be the broadcast address
		return 24
	}
	return 16
}

// State is what a roll must preserve.
type State struct {
	Disks  map[string]string `json:"disks"`            // checksums of the persistent disks: see Lab.Disks
	Etcd   []string          `json:"etcd"`             // voting members, by name
	Broken []string          `json:"broken,omitempty"` // promises broken since the lab came up
	// Requests counts the requests that the servers got, by protocol: see record.Call.
	Requests map[string]int `json:"requests"`
}

// minQuorate is the least number of control planes with which etcd survives the loss of one control plane.
const minQuorate = 3

// State looks at the lab from outside, as no client can.
func (l *Lab) State() State {
	s := State{Disks: l.Disks(), Etcd: []string{}, Broken: l.World.Violations(), Requests: l.Recorder.Requests()}
	for _, m := range l.EtcdMembers() {
		if !m.Learner {
			s.Etcd = append(s.Etcd, m.Name)
		}
	}
	if l.o.ControlPlanes >= minQuorate {
		s.Broken = append(s.Broken, l.machines.EtcdViolations()...)
	}
	s.Broken = append(s.Broken, l.machines.BootstrapViolations()...)
	return s
}

// AskState asks the running lab of a working directory for its state when the lab came up, and for its present state.
func AskState(ctx context.Context, dir string) (before, now State, err error) {
	at, err := findLab(dir)
	if err != nil {
		return before, now, err
	}
	answer, err := ask(ctx, http.MethodGet, at.Control+"/state")
	if err != nil {
		return before, now, err
	}
	if err := json.Unmarshal(answer, &now); err != nil {
		return before, now, fmt.Errorf("ask the lab: %w", err)
	}
	return at.Before, now, nil
}

// Trouble sets the faults of a node's machine; the zero Trouble clears them.
func (l *Lab) Trouble(node string, t talosapi.Trouble) error {
	id, err := l.vmid(node)
	if err != nil {
		return fmt.Errorf("make trouble: %w", err)
	}
	l.machines.Trouble(id, t)
	return nil
}

// vmid returns the VMID of one of the lab's own nodes, or of a VM of that name in an empty lab.
func (l *Lab) vmid(node string) (int, error) {
	if i := slices.IndexFunc(l.Nodes, func(n Node) bool { return n.Name == node }); i >= 0 {
		return l.Nodes[i].VMID, nil
	}
	vms := l.World.VMs()
	i := slices.IndexFunc(vms, func(vm world.VM) bool { return l.o.Empty && vm.Config["name"] == node })
	if i < 0 {
		return 0, fmt.Errorf("no node is called %s", node)
	}
	return vms[i].ID, nil
}

// SlowServers are the arguments that Slow accepts.
var SlowServers = []string{"proxmox", "talos", "kubernetes"}

// Slow stalls the API of Proxmox, of all machines, or of Kubernetes for d of simulated time; see record.Recorder.
func (l *Lab) Slow(server string, d time.Duration) error {
	if !slices.Contains(SlowServers, server) {
		return fmt.Errorf("make an API slow: %q is none of %s", server, strings.Join(SlowServers, ", "))
	}
	l.Recorder.Slow(server, time.Duration(float64(d)/l.o.Speed))
	return nil
}

// Silence makes the machines never answer the requests that silent selects; see talosapi.Firmware.
func (l *Lab) Silence(silent func(talosapi.Request) bool) { l.machines.Silence(silent) }

// upstream returns the real control plane behind the API, nil if the lab has none.
func (l *Lab) upstream() (*kubeapi.Upstream, error) {
	if l.o.Kubernetes == nil {
		return nil, nil
	}
	u, err := kubeapi.ReadUpstream(l.o.Kubernetes, nil)
	if err != nil {
		return nil, err
	}
	l.closers = append(l.closers, u.Close)
	return u, nil
}

// refused reports an error that the real control plane returned to the lab's kubelets.
func (l *Lab) refused(err error) { l.complain(fmt.Errorf("kubelets: %w", err)) }

// serveKubernetes serves the Kubernetes API until ctx ends: each API server at its machine's address, and one of them
// at the shared address. Nothing listens at the shared address while no API server runs.
func (l *Lab) serveKubernetes(ctx context.Context, shared string) {
	running := map[talosapi.APIServer]*apiServer{}
	front := &frontDoor{lab: l, addr: shared, ctx: ctx}
	for ctx.Err() == nil {
		servers, changed := l.machines.APIServers()
		wanted := map[talosapi.APIServer]bool{}
		for _, s := range servers {
			wanted[s] = true
		}
		for s, r := range running {
			if !wanted[s] {
				front.leave(r)
				r.end()
				delete(running, s)
			}
		}
		for _, s := range servers {
			if running[s] == nil {
				running[s] = l.startAPIServer(ctx, s)
				if s.Ready {
					front.join(running[s])
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
	for _, r := range running {
		front.leave(r)
		r.end()
	}
}

// apiServer answers at its machine's address, and on connections handed over from the shared address.
type apiServer struct {
	shared *network.Queue
	cancel context.CancelFunc
	done   sync.WaitGroup
}

func (l *Lab) startAPIServer(ctx context.Context, s talosapi.APIServer) *apiServer {
	ctx, cancel := context.WithCancel(ctx)
	r := &apiServer{shared: network.NewQueue(), cancel: cancel}
	addr := net.JoinHostPort(s.Address.String(), kubernetesPort)
	who := kubeapi.Identity{Version: s.Version, Certificate: s.Certificate, ClientCA: s.Clients, Unready: !s.Ready}
	serve := func(on net.Listener) {
		r.done.Go(func() {
			if err := l.Kube.Serve(ctx, on, who); err != nil {
				l.complain(err)
			}
		})
	}
	own, err := l.o.Network.Listen(addr)
	if err != nil {
		l.complain(fmt.Errorf("listen on %s: %w", addr, err))
	} else {
		serve(own)
	}
	serve(r.shared)
	return r
}

func (r *apiServer) end() {
	r.cancel()
	r.done.Wait()
}

func (l *Lab) complain(err error) {
	if l.o.Console != nil {
		fmt.Fprintf(l.o.Console, "Kubernetes API: %v\n", err)
	}
}

// frontDoor hands connections to the shared address to the API server that has run
// longest, like a load balancer with a preferred backend.
type frontDoor struct {
	lab  *Lab
	addr string
	ctx  context.Context // of the lab

	mu       sync.Mutex
	listener net.Listener // nil while no API server runs
	behind   []*apiServer
}

func (f *frontDoor) join(r *apiServer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.behind = append(f.behind, r)
	if f.listener != nil {
		return
	}
	listener, err := f.lab.o.Network.Listen(f.addr)
	if err != nil {
		f.lab.complain(fmt.Errorf("listen on %s: %w", f.addr, err))
		return
	}
	f.listener = listener
	f.lab.serving.Go(func() { f.accept(listener) })
}

func (f *frontDoor) leave(r *apiServer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.behind = slices.DeleteFunc(slices.Clone(f.behind), func(b *apiServer) bool { return b == r })
	if len(f.behind) == 0 && f.listener != nil {
		_ = f.listener.Close() // refuse new connections
		f.listener = nil
	}
}

func (f *frontDoor) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		f.mu.Lock()
		var to *apiServer
		if len(f.behind) > 0 {
			to = f.behind[0]
		}
		f.mu.Unlock()
		if to == nil || to.shared.Hand(f.ctx, conn) != nil {
			_ = conn.Close() // no API server takes it
		}
	}
}

// manifests returns the objects that Talos has applied to the lab's own cluster.
func (l *Lab) manifests() ([]map[string]any, error) {
	c := manifests.Of(l.Talos.KubernetesVersion)
	c.TokenID, c.TokenSecret, _ = strings.Cut(l.Talos.Secrets.Secrets.BootstrapToken, ".")
	all, err := manifests.Render(c)
	if err != nil {
		return nil, err
	}
	return manifests.Objects(all, !strings.HasPrefix(l.o.TalosVersion, "v1.12.")), nil
}

// objects are what the Kubernetes API keeps in etcd.
type objects struct{ lab *Lab }

var _ talosapi.Data = objects{}

func (o objects) Revision() uint64 { return o.lab.Kube.Revision() }

func (o objects) Dump(ctx context.Context) ([]etcd.KeyValue, error) {
	all, err := o.lab.Kube.Dump(ctx)
	var out []etcd.KeyValue
	for _, kv := range all {
		out = append(out, etcd.KeyValue(kv))
	}
	return out, err
}

func (o objects) Load(_ context.Context, data []etcd.KeyValue) error {
	var all []kubeapi.Stored
	for _, kv := range data {
		all = append(all, kubeapi.Stored(kv))
	}
	return o.lab.Kube.Load(all)
}

func (o objects) Renew(ctx context.Context, planted []map[string]any) error {
	return o.lab.Kube.Renew(ctx, planted)
}

// formEtcd creates the etcd cluster of the control planes as if bootstrapped long ago.
// It returns each member's data by node name.
func (l *Lab) formEtcd() map[string]talosapi.EtcdData {
	var peers []talosapi.EtcdPeer // named by the hostname alone
	for _, n := range l.Nodes {
		if n.ControlPlane {
			peers = append(peers, talosapi.EtcdPeer{Name: strings.TrimSuffix(n.Name, l.o.Domain), Addr: n.Addr})
		}
	}
	if len(peers) == 0 {
		return nil
	}
	out := map[string]talosapi.EtcdData{}
	for i, d := range l.machines.FormEtcd(l.Talos, peers...) {
		out[peers[i].Name+l.o.Domain] = d
	}
	return out
}

// EtcdMembers lists the members of etcd, by name.
func (l *Lab) EtcdMembers() []talosapi.EtcdMember { return l.machines.EtcdMembers() }

// EtcdViolations lists each loss of etcd's quorum after all members had run, and each second etcd that a bootstrap
// formed for one Talos cluster. Tests with several control planes expect an empty list.
func (l *Lab) EtcdViolations() []string {
	return append(l.machines.EtcdViolations(), l.machines.BootstrapViolations()...)
}

// NodeIDsBegin sets the first characters of the node IDs of machines that are installed from now on: lists sort by
// node ID.
func (l *Lab) NodeIDsBegin(with string) { l.machines.NodeIDsBegin(with) }

// BreakEtcd sets the fault of a control plane's etcd; the zero fault clears it.
func (l *Lab) BreakEtcd(node string, f talosapi.EtcdFault) error {
	id, err := l.vmid(node)
	if err != nil {
		return fmt.Errorf("break etcd: %w", err)
	}
	if slices.ContainsFunc(l.Nodes, func(n Node) bool { return n.Name == node && !n.ControlPlane }) {
		return fmt.Errorf("break etcd: %s is a worker", node)
	}
	l.machines.BreakEtcd(id, f)
	return nil
}

// addWorkload deploys a web server with two replicas for drains to move. With several workers, its budget allows one
// replica to be missing.
func addWorkload(ctx context.Context, s store.Store, workers int) error {
	labels := map[string]string{"app": "web"}
	web := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: metav1.NamespaceDefault, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "registry.k8s.io/e2e-test-images/agnhost"}}},
			},
		},
	}
	if _, err := s.Create(ctx, store.Deployments(), web); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make Deployment web: %w", err)
	}
	if workers < 2 {
		return nil
	}
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: metav1.NamespaceDefault},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels}},
	}
	if _, err := s.Create(ctx, store.Budgets(), budget); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make PodDisruptionBudget web: %w", err)
	}
	return nil
}

// ControlFile tells the commands that talk to a running lab where it is.
const ControlFile = "lab.json"

const controlPort = "7000"

type controlAddress struct {
	Control string `json:"control"` // URL
	Before  State  `json:"before"`  // when the lab came up
}

// Patch republishes an extension for each Talos version of the lab: same version, new digest. It returns the digest for
// Options.TalosVersion. Without restartFactory the factory keeps serving what it has cached.
func (l *Lab) Patch(ctx context.Context, extension string, restartFactory bool) (digest string, err error) {
	_, digest, err = l.Catalog.Patch(ctx, l.o.TalosVersion, extension)
	if err == nil && l.o.NextTalos != "" {
		_, _, err = l.Catalog.Patch(ctx, l.o.NextTalos, extension)
	}
	if err == nil && restartFactory {
		l.Factory.Restart()
	}
	return digest, err
}

// startControl serves the requests of recast lab's other commands.
func (l *Lab) startControl(ctx context.Context) error {
	mux := http.NewServeMux()
	handle := func(pattern string, do func(r *http.Request) (out string, err error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			out, err := do(r)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			fmt.Fprint(w, out)
		})
	}
	handle("POST /patch/{extension}", func(r *http.Request) (string, error) {
		digest, err := l.Patch(r.Context(), r.PathValue("extension"), r.URL.Query().Get("stale-factory") == "")
		return digest + "\n", err
	})
	handle("POST /pveum", func(r *http.Request) (string, error) { return l.Pveum(r.URL.Query()["arg"]) })
	handle("POST /shell/{node}", func(r *http.Request) (string, error) {
		out, err := l.Shell(r.PathValue("node")).Run(r.URL.Query()["arg"])
		if err != nil {
			return "", errors.New(shellMessage(err))
		}
		return out, nil
	})
	handle("POST /slow/{server}", func(r *http.Request) (string, error) {
		d, err := time.ParseDuration(r.URL.Query().Get("for"))
		if err != nil {
			return "", err
		}
		return "", l.Slow(r.PathValue("server"), d)
	})
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(l.State()) // fails only if the client is gone
	})
	return l.serveHTTP(ctx, l.controlAddr(), mux)
}

func (l *Lab) controlAddr() string { return l.o.at(controlNumber, controlPort) }

// Announce writes the lab's control address into a working directory, for the commands that run there.
func (l *Lab) Announce(dir string) error {
	b, err := json.Marshal(controlAddress{Control: "http://" + l.controlAddr(), Before: l.State()})
	if err != nil {
		return fmt.Errorf("announce the lab: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, ControlFile), append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("announce the lab: %w", err)
	}
	return nil
}

// AskPatch makes the running lab of a working directory republish an extension; see Lab.Patch.
func AskPatch(ctx context.Context, dir, extension string, restartFactory bool) (digest string, err error) {
	query := url.Values{}
	if !restartFactory {
		query.Set("stale-factory", "1")
	}
	answer, err := order(ctx, dir, "/patch/"+url.PathEscape(extension), query)
	return strings.TrimSpace(answer), err
}

// AskPveum runs a pveum command in the running lab of a working directory.
func AskPveum(ctx context.Context, dir string, args []string) (string, error) {
	return order(ctx, dir, "/pveum", url.Values{"arg": args})
}

// AskShell runs a command in the shell of one of the running lab's Proxmox nodes.
func AskShell(ctx context.Context, dir, node string, args []string) (string, error) {
	return order(ctx, dir, "/shell/"+url.PathEscape(node), url.Values{"arg": args})
}

// AskSlow stalls an API of the running lab; see Lab.Slow.
func AskSlow(ctx context.Context, dir, server string, d time.Duration) error {
	_, err := order(ctx, dir, "/slow/"+url.PathEscape(server), url.Values{"for": {d.String()}})
	return err
}

// order sends a command to the running lab of a working directory.
func order(ctx context.Context, dir, path string, query url.Values) (string, error) {
	at, err := findLab(dir)
	if err != nil {
		return "", err
	}
	answer, err := ask(ctx, http.MethodPost, at.Control+path+"?"+query.Encode())
	return string(answer), err
}

func findLab(dir string) (at controlAddress, err error) {
	b, err := os.ReadFile(filepath.Join(dir, ControlFile))
	if err != nil {
		return at, fmt.Errorf("find the lab: %w", err)
	}
	if err := json.Unmarshal(b, &at); err != nil {
		return at, fmt.Errorf("find the lab: %s: %w", ControlFile, err)
	}
	return at, nil
}

func ask(ctx context.Context, method, target string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, target, nil)
	if err != nil {
		return nil, fmt.Errorf("ask the lab: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the lab: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("ask the lab: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(strings.TrimSpace(string(answer)))
	}
	return answer, nil
}

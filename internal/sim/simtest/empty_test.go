package simtest

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc/codes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/kubectl/pkg/drain"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/kube"
	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/schematics"
)

// founder makes a cluster in an empty lab by hand, with secrets of its own.
type founder struct {
	*Lab
	*session
	ours      *talosapi.Cluster
	installer string
	iso       string // volume ID
}

// newFounder is a founder of a cluster that is drafted with one control plane.
func newFounder(t *testing.T, lab *Lab, talos string) *founder {
	t.Helper()
	ours := valueOf(talosapi.NewCluster("ours", "https://127.42.7.10:6443", talos, sim.KubernetesVersion))(t)
	return lab.founder(ours, lab.draft(draft{controlPlanes: 1, hosts: 1, ours: ours}).lock, talos)
}

// founder publishes the ISO and connects, for a cluster whose recast.yaml and talosconfig are there.
func (l *Lab) founder(ours *talosapi.Cluster, lock schematics.Lock, talos string) *founder {
	l.t.Helper()
	must(l.t, l.Client().Publish(l.t.Context()))
	s := l.session()
	l.t.Cleanup(s.end)
	isos := valueOf(s.machines.Proxmox.(*pve.Client).ISOs(l.t.Context(), "pve1", sim.ISOStorage))(l.t)
	return &founder{
		Lab: l, session: s, ours: ours, iso: sim.ISOStorage + ":iso/" + isos[0].Name,
		installer: "127.0.0.1:8080/nocloud-installer/" + lock.Schematics["default"].SchematicID + ":" + talos,
	}
}

// founded is the static address of a machine.
func founded(name string) netip.Addr {
	return netip.AddrFrom4([4]byte{127, 42, 7, byte(11 + slices.Index(controlPlanes, name))})
}

// start makes a VM over the Proxmox API and boots the ISO. A worker gets its address by DHCP.
func (f *founder) start(id int, name string) (uuid string) {
	if strings.HasPrefix(name, "cp") {
		return f.startAt(id, name, founded(name))
	}
	return f.startAt(id, name, netip.Addr{})
}

// startAt is start of a machine with that address, or with one by DHCP.
func (f *founder) startAt(id int, name string, addr netip.Addr) (uuid string) {
	ctx := f.t.Context()
	uuid = fmt.Sprintf("5ec0ffee-0000-4000-8000-%012d", id)
	vm := map[string]string{
		"name": name, "memory": "4096", "cores": "2", "scsihw": "virtio-scsi-single", "scsi0": "fast:10", "smbios1": "uuid=" + uuid,
		"net0": "virtio,bridge=vmbr0", "ide2": f.iso + ",media=cdrom", "boot": "order=scsi0;ide2",
	}
	if addr.IsValid() {
		vm["ide0"], vm["ipconfig0"] = "fast:cloudinit", "ip="+addr.String()+"/24,gw=127.42.7.1"
	}
	must(f.t, f.machines.Proxmox.CreateVM(ctx, "pve1", cluster.VMID(id), vm))
	made := valueOf(f.machines.Proxmox.VM(ctx, cluster.VMID(id)))(f.t)
	must(f.t, f.machines.Proxmox.Start(ctx, made))
	return uuid
}

func (f *founder) configure(addr netip.Addr, uuid, name string) {
	config := valueOf(f.ours.MachineConfig(talosapi.Machine{Hostname: name, ControlPlane: strings.HasPrefix(name, "cp"), Installer: f.installer}))(f.t)
	must(f.t, f.talos.ApplyConfig(f.t.Context(), addr, uuid, config))
}

// bootstrap is talosctl bootstrap.
func bootstrap(ctx context.Context, c *client.Client) error {
	return c.Bootstrap(ctx, &machineapi.BootstrapRequest{})
}

func (f *founder) bootstrap(addr netip.Addr) error {
	return f.TalosctlAt(f.t.Context(), addr, bootstrap)
}

// bootstrapSoon repeats bootstrap until the machine is there and accepts it.
func (f *founder) bootstrapSoon(addr netip.Addr) {
	f.t.Helper()
	early := false
	for began := time.Now(); time.Since(began) < 10*time.Minute; time.Sleep(5 * time.Second) {
		err := f.bootstrap(addr)
		switch client.StatusCode(err) {
		case codes.OK:
			require(f.t, early, "a machine that installs Talos accepted a bootstrap")
			return
		case codes.FailedPrecondition:
			early = true
		case codes.Unavailable, codes.DeadlineExceeded:
		default:
			f.t.Fatal(err)
		}
	}
	f.t.Fatal("no bootstrap in 10 minutes")
}

// blank finds the machine in maintenance mode with that UUID among those with a lease.
func (f *founder) blank(uuid string) netip.Addr {
	for n := range 20 {
		addr := netip.AddrFrom4([4]byte{127, 42, 7, byte(231 + n)})
		if m, err := f.talos.MaintenanceMachine(f.t.Context(), addr); err == nil && m.UUID == uuid {
			return addr
		}
	}
	f.t.Fatalf("no machine %s in maintenance mode", uuid)
	return netip.Addr{}
}

func (f *founder) kubeconfig(addr netip.Addr) (file []byte) {
	must(f.t, f.TalosctlAt(f.t.Context(), addr, func(ctx context.Context, c *client.Client) (err error) {
		file, err = c.Kubeconfig(ctx)
		return err
	}))
	return file
}

// nodes are the Ready nodes that a kubeconfig shows at an address of the API.
func (f *founder) nodes(kubeconfig []byte, at string) (ready []string, err error) {
	file := bytes.ReplaceAll(kubeconfig, []byte("127.42.7.10:6443"), []byte(at+":6443"))
	k := valueOf(kube.New(file, kube.Options{Dial: f.Lab.Lab.Client().DialContext, Poll: time.Second}))(f.t)
	defer k.Close()
	nodes, err := k.Nodes(f.t.Context())
	for _, n := range nodes {
		if n.Ready {
			ready = append(ready, n.Name)
		}
	}
	return ready, err
}

func (f *founder) requireNodes(kubeconfig []byte, at netip.Addr, want ...string) {
	f.t.Helper()
	got := valueOf(f.nodes(kubeconfig, at.String()))(f.t)
	require(f.t, slices.Equal(got, want), "Ready nodes at %s: %q; want %q", at, got, want)
}

// sharedAddress is that of the load balancer before the API servers.
var sharedAddress = netip.MustParseAddr("127.42.7.10")

var certificateAuthority = regexp.MustCompile(`certificate-authority-data: \S+`)

// TestClusterFromNothing makes a cluster in an empty lab, with secrets that the lab has not
// made: a control plane, then another, and workers.
func TestClusterFromNothing(t *testing.T) {
	eachIn(t, func(talos string) sim.Options { return sim.Options{Empty: true, TalosVersion: talos} }, map[string]string{
		"1.12": "v1.12.7", "1.13": "v1.13.9", "1.14": "v1.14.1",
	}, func(t *testing.T, lab *Lab, talos string) {
		f := newFounder(t, lab, talos)
		cp1, cp2 := founded("cp1"), founded("cp2")
		uuid := f.start(101, "cp1")
		time.Sleep(time.Minute)
		requireCode(t, f.bootstrap(cp1), codes.Unavailable) // its certificate is not that of the cluster
		f.configure(cp1, uuid, "cp1")
		for _, at := range []netip.Addr{sharedAddress, cp1} {
			require(t, errOf(lab.Lab.Client().DialContext(t.Context(), "tcp", at.String()+":6443")) != nil,
				"there is a Kubernetes API at %s", at)
		}
		f.bootstrapSoon(cp1)
		time.Sleep(time.Minute)
		requireCode(t, f.bootstrap(cp1), codes.AlreadyExists)
		kubeconfig := f.kubeconfig(cp1)
		f.requireNodes(kubeconfig, sharedAddress, "cp1")
		f.requireNodes(kubeconfig, cp1, "cp1")
		other, err := lab.Kubeconfig("system:masters", time.Hour) // by the lab's own CA
		must(t, err)
		require(t, errOf(f.nodes(other, sharedAddress.String())) != nil, "the API's certificate is not of the cluster's CA")
		require(t, errOf(f.nodes(certificateAuthority.ReplaceAll(other, certificateAuthority.Find(kubeconfig)), sharedAddress.String())) != nil,
			"a client's certificate of another CA is accepted")
		require(t, errOf(lab.Kube.Store().Get(t.Context(), store.Deployments(), "default", "web")) != nil,
			"a new cluster has the lab's workload")
		must(t, errOf(lab.Kube.Store().Get(t.Context(), store.Deployments(), "kube-system", "coredns")))

		uuids := map[string]string{"cp2": f.start(102, "cp2"), "wk1": f.start(103, "wk1"), "wk2": f.start(104, "wk2")}
		time.Sleep(time.Minute)
		wk1, wk2 := f.blank(uuids["wk1"]), f.blank(uuids["wk2"])
		f.configure(cp2, uuids["cp2"], "cp2")
		f.configure(wk1, uuids["wk1"], "wk1")
		f.configure(wk2, uuids["wk2"], "wk2")
		time.Sleep(5 * time.Minute)
		f.requireNodes(kubeconfig, cp2, "cp1", "cp2", "wk1", "wk2")
		require(t, f.bootstrap(wk1) != nil, "a worker accepted a bootstrap")
		members := valueOf(f.talos.Members(t.Context()))(t)
		require(t, len(members) == 4, "members %+v", members)
		lab.requireEtcd()
		lab.RequireIntact()
	})
}

// TestBootstrapTwice: a bootstrap of a second control plane makes a second etcd.
func TestBootstrapTwice(t *testing.T) {
	inLab(t, sim.Options{Empty: true}, func(t *testing.T, lab *Lab) {
		f := newFounder(t, lab, sim.TalosVersion)
		uuids := map[string]string{"cp1": f.start(101, "cp1"), "cp2": f.start(102, "cp2")}
		time.Sleep(time.Minute)
		for name, uuid := range uuids {
			f.configure(founded(name), uuid, name)
		}
		time.Sleep(3 * time.Minute)
		requireNone(t, lab.allStored(store.Nodes(), ""), "before the bootstrap there are nodes")
		must(t, f.bootstrap(founded("cp1")))
		requireNone(t, lab.EtcdViolations(), "one bootstrap")
		must(t, f.bootstrap(founded("cp2")))
		time.Sleep(time.Minute)
		v := lab.EtcdViolations()
		require(t, len(v) == 1 && strings.Contains(v[0], " formed etcd number 2"), "two bootstraps: %q", v)
		s := lab.State()
		require(t, len(s.Broken) == 1, "recast lab check says %q", s.Broken)
	})
}

func requireCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	requireSame(t, want, client.StatusCode(err), "%v (-want +got)", err)
}

// TestOutsideClients uses a lab served by recast lab up with other clients, like a user in another terminal.
func TestOutsideClients(t *testing.T) {
	long(t)
	t.Parallel()
	dir := labUp(t)
	t.Run("machinery", func(t *testing.T) { talksTalos(t, filepath.Join(dir, "talosconfig")) })
	t.Run("client-go and kubectl drain", func(t *testing.T) { drains(t, filepath.Join(dir, "kubeconfig")) })
}

// labUp builds recast, serves a lab with it until the test ends, and returns its working directory.
func labUp(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	binary := filepath.Join(dir, "recast")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../../../cmd/recast").CombinedOutput(); err != nil {
		t.Fatalf("build recast: %v\n%s", err, out)
	}
	lab := filepath.Join(dir, "lab")
	var out bytes.Buffer
	c := exec.CommandContext(t.Context(), binary, "lab", "up", "--dir", lab, "--speed", "40")
	c.Stdout, c.Stderr = &out, &out
	must(t, c.Start())
	t.Cleanup(func() {
		if err := c.Wait(); err == nil { // the test's context has killed it
			t.Logf("the lab ended by itself:\n%s", out.String())
		}
	})
	for range 1800 {
		if _, err := os.Stat(filepath.Join(lab, "lab.json")); err == nil {
			return lab
		}
		<-time.After(100 * time.Millisecond) // waiting for another process
	}
	t.Fatal("the lab never got ready")
	return ""
}

func talksTalos(t *testing.T, talosconfig string) {
	config := valueOf(clientconfig.Open(talosconfig))(t)
	c := valueOf(client.New(t.Context(), client.WithConfig(config)))(t)
	defer c.Close()
	version := valueOf(c.Version(t.Context()))(t)
	requireSame(t, "v1.13.9", version.GetMessages()[0].GetVersion().GetTag(), "Talos (-want +got)")
	extensions := valueOf(safe.StateListAll[*runtime.ExtensionStatus](t.Context(), c.COSI))(t)
	require(t, extensions.Len() >= 2, "%d extensions", extensions.Len())
}

func drains(t *testing.T, kubeconfig string) {
	config := valueOf(clientcmd.BuildConfigFromFlags("", kubeconfig))(t)
	api := valueOf(kubernetes.NewForConfig(config))(t)
	node := valueOf(api.CoreV1().Nodes().Get(t.Context(), "wk1", metav1.GetOptions{}))(t)
	helper := &drain.Helper{
		Ctx: t.Context(), Client: api, Timeout: time.Minute, GracePeriodSeconds: -1, IgnoreAllDaemonSets: true, DeleteEmptyDirData: true,
		EvictErrorRetryDelay: 100 * time.Millisecond, Out: t.Output(), ErrOut: t.Output(),
	}
	must(t, drain.RunCordonOrUncordon(helper, node, true))
	must(t, drain.RunNodeDrain(helper, "wk1"))
	pods := valueOf(api.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=wk1"}))(t)
	for _, p := range pods.Items {
		require(t, len(p.OwnerReferences) != 0 && p.OwnerReferences[0].Kind == "DaemonSet", "pod %s is still there", p.Name)
	}
}

package talosapi_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	netres "github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

// lab is a cluster's firmware and the images that its machines can pull.
type lab struct {
	t       *testing.T
	net     *network.Network
	rec     *record.Recorder
	fw      *talosapi.Firmware
	cluster *talosapi.Cluster

	mu         sync.Mutex
	installers map[string]artefact.Image
	screen     []string
	kubelets   []string
	pods       []talosapi.StaticPod // latest report
}

func newLab(t *testing.T, change ...func(*talosapi.Options)) *lab {
	t.Helper()
	return newLabOf(t, "v1.13.9", change...)
}

// newLabOf is newLab with the configurations of another version of Talos.
func newLabOf(t *testing.T, talos string, change ...func(*talosapi.Options)) *lab {
	t.Helper()
	c := must.Get(talosapi.NewCluster("lab", "https://127.42.7.10:6443", talos, "v1.35.4"))(t)
	l := &lab{
		t: t, net: network.Memory(), rec: record.New(), cluster: c,
		installers: map[string]artefact.Image{oldRef: image("old"), newRef: image("new")},
	}
	o := talosapi.Options{
		Network: l.net, Recorder: l.rec, Kubelet: l,
		Lease: func(mac string) (netip.Addr, bool) {
			var n int
			_, err := fmt.Sscanf(mac, "02:00:00:00:00:%X", &n)
			return netip.MustParseAddr(fmt.Sprintf("127.42.7.%d", n)), err == nil
		},
		PullInstaller: func(_ context.Context, ref, _ string) ([]byte, error) {
			l.mu.Lock()
			defer l.mu.Unlock()
			img, ok := l.installers[ref]
			if !ok {
				return nil, talosapi.ErrNoImage
			}
			return ukiOf(t, img), nil
		},
		Console: func(vmid int, line string) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.screen = append(l.screen, fmt.Sprintf("%d: %s", vmid, line))
		},
	}
	for _, f := range change {
		f(&o)
	}
	l.fw = talosapi.New(t.Context(), o)
	return l
}

// NodeUp implements talosapi.Kubelet.
func (l *lab) NodeUp(n talosapi.NodeInfo) {
	l.note("up %s %s cp=%v", n.Name, n.KubeletVersion, n.ControlPlane)
}

// NodeDown implements talosapi.Kubelet.
func (l *lab) NodeDown(name, _ string) { l.note("down %s", name) }

// StaticPods implements talosapi.Kubelet.
func (l *lab) StaticPods(_ string, pods []talosapi.StaticPod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pods = pods
}

// note records an event of a node.
func (l *lab) note(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kubelets = append(l.kubelets, fmt.Sprintf(format, args...))
}

// lines returns the events recorded on a list so far.
func (l *lab) lines(list *[]string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(*list)
}

const (
	cpAddr     = "127.42.7.11"
	workerAddr = "127.42.7.31"
	oldRef     = "registry.example/installer/old:v1.13.9"
	newRef     = "registry.example/installer/new:v1.13.9"
)

// each runs f for every case in a bubble of its own.
func each[T any](t *testing.T, cases map[string]T, f func(t *testing.T, name string, c T)) {
	t.Helper()
	t.Parallel()
	named := map[string]func(*testing.T){}
	for name, c := range cases {
		named[name] = func(t *testing.T) { f(t, name, c) }
	}
	must.Bubbles(t, named, func(t *testing.T, run func(*testing.T)) { run(t) })
}

// inLab runs a test with an empty lab, in a bubble.
func inLab(t *testing.T, test func(*testing.T, *lab)) {
	t.Helper()
	must.Bubble(t, func(t *testing.T) { test(t, newLab(t)) })
}

func want(t *testing.T, what, got, want string) {
	t.Helper()
	must.Hold(t, got == want, "%s: %s\nwant %s", what, got, want)
}

func requireError(t *testing.T, what string, err error, code codes.Code, text string) {
	t.Helper()
	must.Hold(t, client.StatusCode(err) == code && (code == codes.OK || strings.Contains(err.Error(), text)),
		"%s: %v, want %s: %s", what, err, code, text)
}

// version is the build of an image with another version of Talos.
func version(build, talos string) artefact.Image {
	img := image(build)
	img.TalosVersion = talos
	return img
}

// image is what a factory would build for one lock.
func image(build string) artefact.Image {
	return artefact.Image{
		TalosVersion: "v1.13.9", Arch: "amd64", Platform: "nocloud",
		Cmdline:     "talos.platform=nocloud console=ttyS0 recast.lock=sha256-" + build,
		SchematicID: "schematic-" + build, SchematicYAML: "customization: {extraKernelArgs: [recast.lock=sha256-" + build + "]}\n",
		SchematicAuthor: "Image Factory (http://127.0.0.1:8080)",
		Extensions: []artefact.Extension{{
			Name: "iscsi-tools", Version: "v0.2.0", Author: "Sidero Labs",
			Files: map[string][]byte{"/usr/local/sbin/iscsid": []byte("iscsid of " + build)},
		}},
	}
}

// box is a VM's hardware outside of any world.
type box struct {
	l     *lab
	hw    world.Hardware
	guest world.Guest

	mu     sync.Mutex
	drives []world.Drive
	off    chan struct{} // closed when the machine has powered itself off
}

// box is the VM that gets that address by DHCP. It ends with the test's context at the latest.
func (l *lab) box(addr string, drives ...world.Drive) *box {
	b := &box{l: l, drives: drives}
	n := netip.MustParseAddr(addr).As4()[3]
	vmid := 8990 + int(n)
	b.hw = world.Hardware{
		VMID: vmid, Name: fmt.Sprintf("vm%d", vmid), Host: "pve1", MACs: []string{fmt.Sprintf("02:00:00:00:00:%02X", n)}, Arch: "amd64", Memory: 4096,
		UUID:      fmt.Sprintf("00000000-0000-4000-8000-%012d", vmid),
		BootOrder: []string{"virtio0", "ide2"},
		NVRAM:     world.NewMedia(nil),
		Drives: func() []world.Drive {
			b.mu.Lock()
			defer b.mu.Unlock()
			return slices.Clone(b.drives)
		},
	}
	return b
}

func (b *box) on() {
	off := make(chan struct{})
	var once sync.Once
	b.off = off
	hw := b.hw
	hw.PowerOff = func() { once.Do(func() { close(off) }) }
	b.guest = b.l.fw.PowerOn(&hw)
}

func disk(key, serial string, gib int64, content []byte) world.Drive {
	return world.Drive{Key: key, Serial: serial, SizeBytes: gib << 30, Media: world.NewMedia(content)}
}

func cdrom(content []byte) world.Drive {
	d := world.Drive{Key: "ide2", CDROM: true, SizeBytes: int64(len(content))}
	if content != nil {
		d.Media = world.NewMedia(content)
	}
	return d
}

func (l *lab) iso(img artefact.Image) []byte {
	l.t.Helper()
	return must.Get(artefact.ISO(img))(l.t)
}

// config is a machine configuration that installs on the disk with serial "system".
func (l *lab) config(m talosapi.Machine) []byte {
	l.t.Helper()
	if m.InstallSerial == "" {
		m.InstallSerial = "system"
	}
	m.InstallDisk = "/dev/vda"
	return must.Get(l.cluster.MachineConfig(m))(l.t)
}

// cp1 is the configuration of the control plane.
func cp1(installer string) talosapi.Machine {
	return talosapi.Machine{Hostname: "cp1", ControlPlane: true, Installer: installer}
}

// controlPlane starts cp1, on which img is installed, the only member of an old etcd.
// Without a control plane, workers have no API.
func (l *lab) controlPlane(img artefact.Image) *box {
	l.t.Helper()
	member := l.fw.FormEtcd(l.cluster, talosapi.EtcdPeer{Name: "cp1", Addr: netip.MustParseAddr(cpAddr)})[0]
	system := must.Get(talosapi.WithEtcd(l.installed(l.config(cp1(oldRef)), img), member))(l.t)
	b := l.box(cpAddr, disk("virtio0", "system", 10, system), cdrom(nil))
	b.hw.NVRAM.Write(talosapi.NVRAM(img))
	b.on()
	return b
}

// node is controlPlane, once it is ready, with a client of its administrator.
func (l *lab) node(img artefact.Image) (*box, *client.Client) {
	l.t.Helper()
	b := l.controlPlane(img)
	l.running(cpAddr)
	return b, l.client(cpAddr, role.Admin)
}

// worker starts wk1, on which build old is installed.
func (l *lab) worker() *box {
	l.t.Helper()
	conf := l.config(talosapi.Machine{Hostname: "wk1", Installer: oldRef})
	b := l.box(workerAddr, disk("virtio0", "system", 10, l.installed(conf, image("old"))))
	b.on()
	return b
}

// blank starts a machine with an empty system disk, and perhaps others, from the ISO of
// img, and waits until it is in maintenance mode. The registry has its installer, newRef.
func (l *lab) blank(addr string, img artefact.Image, others ...world.Drive) (*box, *client.Client) {
	l.t.Helper()
	l.mu.Lock()
	l.installers[newRef] = img
	l.mu.Unlock()
	b := l.box(addr, slices.Concat([]world.Drive{disk("virtio0", "system", 10, nil)}, others, []world.Drive{cdrom(l.iso(img))})...)
	b.on()
	return b, l.maintained(addr)
}

// maintained waits until the machine at addr is in maintenance mode.
func (l *lab) maintained(addr string) *client.Client {
	l.t.Helper()
	c := l.insecure(addr)
	l.awaitStage(c, runtime.MachineStageMaintenance)
	return c
}

// status is the stage and readiness of a machine.
func (l *lab) status(c *client.Client) (string, error) {
	s, err := get[*runtime.MachineStatus](l.t.Context(), c, runtime.NewMachineStatus().Metadata())
	if err != nil {
		return "", err
	}
	text := []string{fmt.Sprintf("%s ready=%t", s.TypedSpec().Stage, s.TypedSpec().Status.Ready)}
	for _, u := range s.TypedSpec().Status.UnmetConditions {
		text = append(text, u.Name+": "+u.Reason)
	}
	return strings.Join(text, " "), nil
}

// shows requires that machines have printed these texts.
func (l *lab) shows(texts ...string) {
	l.t.Helper()
	must.Contain(l.t, "the screen", strings.Join(l.lines(&l.screen), "\n"), texts...)
}

func (l *lab) installed(conf []byte, img artefact.Image) []byte {
	l.t.Helper()
	return must.Get(l.fw.Preinstalled(conf, ukiOf(l.t, img), false))(l.t)
}

// ukiOf is a boot image as in an installer. Rebuilding it from its content would lose the DOS part.
func ukiOf(t *testing.T, img artefact.Image) []byte {
	t.Helper()
	b := slices.Clone(must.Get(artefact.UKI(img))(t))
	copy(b[0x40:], "as the installer has it")
	return b
}

// client is a client of a machine with that role.
func (l *lab) client(addr string, r role.Role) *client.Client {
	l.t.Helper()
	return l.clientWith(addr, must.Get(l.cluster.Talosconfig(r, addr))(l.t))
}

func (l *lab) clientWith(addr string, talosconfig []byte) *client.Client {
	l.t.Helper()
	conf := must.Get(clientconfig.FromBytes(talosconfig))(l.t)
	return l.dial(client.WithConfig(conf), client.WithEndpoints(addr))
}

// insecure is a client of a machine in maintenance mode.
func (l *lab) insecure(addr string) *client.Client {
	l.t.Helper()
	return l.dial(client.WithTLSConfig(&tls.Config{InsecureSkipVerify: true}), client.WithEndpoints(addr))
}

func (l *lab) dial(opts ...client.OptionFunc) *client.Client {
	l.t.Helper()
	d := l.net.Dialer()
	c := must.Get(client.New(l.t.Context(), append(opts, client.WithGRPCDialOptions(
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }),
	))...))(l.t)
	l.t.Cleanup(func() { _ = c.Close() })
	return c
}

// running waits until the machine at addr is a ready node.
func (l *lab) running(addr string) {
	l.t.Helper()
	l.awaitStage(l.client(addr, role.Reader), runtime.MachineStageRunning)
}

func (l *lab) awaitStage(c *client.Client, want runtime.MachineStage) {
	l.t.Helper()
	for last, end := "", time.Now().Add(10*time.Minute); last != want.String()+" ready=true"; time.Sleep(time.Second) {
		if time.Now().After(end) {
			l.t.Fatalf("the machine never was %s; last seen: %s; screen: %q", want, last, l.lines(&l.screen))
		}
		now, err := l.status(c)
		if last = now; err != nil {
			last = err.Error()
		}
	}
}

func get[T resource.Resource](ctx context.Context, c *client.Client, ptr resource.Pointer) (T, error) {
	return safe.StateGet[T](ctx, c.COSI, ptr)
}

// nodeFacts is what tests check of a machine.
type nodeFacts struct {
	uuid, version, cmdline, entry, schematic, extensions, bootID, hostname, identity string
}

func facts(t *testing.T, c *client.Client) nodeFacts {
	t.Helper()
	return must.Get(readFacts(t.Context(), c))(t)
}

// readFacts leaves the fields of missing resources empty.
func readFacts(ctx context.Context, c *client.Client) (nodeFacts, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var f nodeFacts
	exts, err := safe.StateListAll[*runtime.ExtensionStatus](ctx, c.COSI)
	if err != nil {
		return f, err
	}
	var lines []string
	for e := range exts.All() {
		m := e.TypedSpec().Metadata
		lines = append(lines, m.Name+" "+m.Version+" "+e.TypedSpec().Image)
		if m.Name == "schematic" {
			f.schematic = m.Version
		}
	}
	f.extensions = strings.Join(lines, ", ")
	if r, err := get[*hardware.SystemInformation](ctx, c, hardware.NewSystemInformation(hardware.SystemInformationID).Metadata()); err == nil {
		f.uuid = r.TypedSpec().UUID
	}
	if r, err := get[*runtime.Version](ctx, c, runtime.NewVersion().Metadata()); err == nil {
		f.version = r.TypedSpec().Version
	}
	if r, err := get[*runtime.KernelCmdline](ctx, c, runtime.NewKernelCmdline().Metadata()); err == nil {
		f.cmdline = r.TypedSpec().Cmdline
	}
	if r, err := get[*runtime.BootedEntry](ctx, c, runtime.NewBootedEntrySpec().Metadata()); err == nil {
		f.entry = r.TypedSpec().BootedEntry
	}
	f.hostname, _ = hostname(ctx, c)
	if r, err := get[*cluster.Identity](ctx, c, cluster.NewIdentity(cluster.NamespaceName, cluster.LocalIdentity).Metadata()); err == nil {
		f.identity = r.TypedSpec().NodeID
	}
	if b, err := readFile(ctx, c, "/proc/sys/kernel/random/boot_id"); err == nil {
		f.bootID = strings.TrimSpace(b)
	}
	return f, nil
}

// hostname is the name of the machine that answers.
func hostname(ctx context.Context, c *client.Client) (string, error) {
	r, err := get[*netres.HostnameStatus](ctx, c, netres.NewHostnameStatus(netres.NamespaceName, netres.HostnameID).Metadata())
	if err != nil {
		return "", err
	}
	return r.TypedSpec().Hostname, nil
}

func readFile(ctx context.Context, c *client.Client, path string) (string, error) {
	r, err := c.Read(ctx, path)
	if err != nil {
		return "", err
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	return string(b), err
}

// volumes is "ID phase location", sorted.
func volumes(t *testing.T, c *client.Client) string {
	t.Helper()
	all := must.Get(safe.StateListAll[*block.VolumeStatus](t.Context(), c.COSI))(t)
	var lines []string
	for v := range all.All() {
		if v.TypedSpec().Type != block.VolumeTypeDirectory {
			lines = append(lines, fmt.Sprintf("%s %s %s", v.Metadata().ID(), v.TypedSpec().Phase, v.TypedSpec().Location))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, ", ")
}

// partitionIDs maps each partition's device to its UUIDs.
func partitionIDs(t *testing.T, c *client.Client) map[resource.ID]string {
	t.Helper()
	all := must.Get(safe.StateListAll[*block.DiscoveredVolume](t.Context(), c.COSI))(t)
	ids := map[resource.ID]string{}
	for v := range all.All() {
		if v.TypedSpec().Type == "partition" {
			ids[v.Metadata().ID()] = v.TypedSpec().PartitionUUID + " " + v.TypedSpec().UUID
		}
	}
	return ids
}

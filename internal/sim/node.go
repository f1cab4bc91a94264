package sim

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/constants"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/pveapi"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

// Node is one Talos machine of the lab.
type Node struct {
	Name         string
	ControlPlane bool
	VMID         int
	Host         string
	UUID         string
	MAC          string
	Addr         netip.Addr
	Schematic    string // name in recast.yaml
	Persistent   bool   // has a persistent disk
	Holder       int    // VMID of the data VM that owns the first of them; 0: the node's own VM
	bus          string // of its disks
	data         int    // persistent disks
	seabios      bool   // its firmware, instead of OVMF
	noSerials    bool   // its drives have no serial=
	scsi         string // its SCSI controller
	filesystem   string // of the first persistent disk
}

// nodes spreads the machines over the hosts and numbers them.
func (o Options) nodes() []Node {
	var out []Node
	add := func(prefix string, n, firstID, firstAddr int, cp bool, schematic string) {
		for i := range n {
			id := firstID + i
			layout := o.layout(len(out))
			if cp {
				layout.Data = 0
				if o.EtcdOnData {
					layout.Data = 1
				}
			}
			holder := 0
			if o.Holder {
				holder = o.firstHolder() + len(out)%o.Hosts
			}
			name := fmt.Sprintf("%s%d%s", prefix, i+1, o.Domain)
			if v, own := o.VMs[name]; own {
				layout = Layout{Bus: v.bus()}
			}
			out = append(out, Node{
				Holder: holder, Name: name, ControlPlane: cp, VMID: id, Host: hostName(len(out) % o.Hosts),
				UUID: fmt.Sprintf("5ec0ffee-0000-4000-8000-%012d", id), MAC: fmt.Sprintf("BC:24:11:00:%02X:%02X", id>>8&0xff, id&0xff),
				Addr: o.addr(firstAddr + i), Schematic: schematic, Persistent: layout.Data > 0, bus: layout.Bus, data: layout.Data, seabios: layout.SeaBIOS,
				noSerials: layout.NoSerials, scsi: cmp.Or(layout.SCSI, "virtio-scsi-single"),
				filesystem: cmp.Or(layout.Filesystem, "xfs"),
			})
		}
	}
	add("cp", o.ControlPlanes, firstControlPlaneID, firstControlPlane, true, "default")
	add("wk", o.Workers, firstWorkerID, firstWorker, false, "storage")
	return out
}

func (o Options) layout(i int) Layout {
	if len(o.Layouts) == 0 {
		return Layout{Bus: o.DiskBus, Data: 1}
	}
	l := o.Layouts[i%len(o.Layouts)]
	l.Bus = cmp.Or(l.Bus, o.DiskBus)
	return l
}

func hostName(i int) string { return fmt.Sprintf("pve%d", i+1) }

// The VMIDs of the first VM of each kind.
const (
	firstControlPlaneID = 9001
	firstWorkerID       = 9031
)

// firstHolder returns the VMID of the first host's data VM, above those of the workers.
func (o Options) firstHolder() int { return max(9201, firstWorkerID+o.Workers) }

// config returns the VM's configuration as a person would write it. data is the holder's volume that is the node's
// persistent disk; "" gives the VM a disk of its own.
func (n Node) config(data string) map[string]string {
	c := map[string]string{
		"name": n.Name, "cores": "2", "memory": "4096", "cpu": "host", "machine": "q35", "bios": "ovmf", "ostype": "l26", "agent": "1",
		"onboot": "1", "scsihw": n.scsi, "smbios1": "uuid=" + n.UUID, "tags": "talos",
		"net0": "virtio=" + n.MAC + ",bridge=vmbr0", "ide2": "none,media=cdrom", "boot": "order=" + n.drive(0) + ";ide2",
		"description": "Talos node " + n.Name + " of cluster " + ClusterName,
		"efidisk0":    DiskStorage + ":1,efitype=4m,pre-enrolled-keys=0",
	}
	if n.seabios {
		c["bios"] = "seabios"
		delete(c, "efidisk0")
	}
	options := map[string]string{"scsi": ",iothread=1,discard=on,ssd=1", "virtio": ",iothread=1,discard=on"}[n.bus]
	c[n.drive(0)] = DiskStorage + ":10" + options + n.serial("sys-"+n.Name)
	if n.Persistent {
		c[n.drive(1)] = cmp.Or(data, DiskStorage+":20") + options + n.serial(n.dataSerial())
	}
	for i := 2; i <= n.data; i++ {
		c[n.drive(i)] = fmt.Sprintf("%s:%d%s%s", DiskStorage, firstDataGiB-1+i, options, n.serial(n.moreSerial(i)))
	}
	return c
}

// firstDataGiB is the size of a node's first persistent disk; each further disk is 1 GiB larger.
const firstDataGiB = 20

// drive returns the key of the node's disk i: 0 is the system disk, the others are persistent.
func (n Node) drive(i int) string { return n.bus + strconv.Itoa(i) }

// serial returns a drive's serial option, or "" for a node without serials.
func (n Node) serial(name string) string {
	if n.noSerials {
		return ""
	}
	return ",serial=" + name
}

// moreSerial returns the serial of persistent disk i (2, 3, …).
func (n Node) moreSerial(i int) string { return fmt.Sprintf("data%d-%s", i, n.Name) }

func (n Node) dataSerial() string { return "data-" + n.Name }

// onData returns the configuration document that puts a volume of Talos on the persistent disk. The document selects
// the disk by size, because Talos shows no serial for SCSI disks.
func (n Node) onData(volume string) string {
	return "apiVersion: v1alpha1\nkind: VolumeConfig\nname: " + volume + "\nprovisioning:\n  diskSelector:\n    match: disk.size > 15u * GB && !disk.cdrom\n"
}

// userVolume returns the configuration document of the volume on the first persistent disk, as people write it (see
// layouts): Talos finds it by its label, u-data. Talos 1.13 has no volumes in other formats (FilesystemSpec.Validate
// in user_volume_config.go).
func (n Node) userVolume() []string {
	if n.filesystem != "xfs" && n.filesystem != "ext4" {
		return nil
	}
	return []string{"apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: data\nprovisioning:\n  diskSelector:\n    match: '!system_disk'\n  minSize: 10GB\nfilesystem:\n  type: " + n.filesystem + "\n"}
}

// content returns the user data on a node's persistent disk.
func (n Node) content(disk string) []byte {
	return []byte(strings.Repeat("what only "+n.Name+" has"+disk+"\n", 100))
}

// SystemDrive returns the key of the node's system disk.
func (n Node) SystemDrive() string { return n.drive(0) }

// VM replaces the lab's own VM of a node. The lab sets its name, its SMBIOS UUID and the MACs.
type VM struct {
	Config    map[string]string // as qm create takes it: a new disk is "local-lvm:20"
	Documents []string          // additional machine configuration documents
	Content   map[string][]byte // of disks that are not blank, by key
}

// systemDisk returns the key of Talos' disk: the first disk in the boot order.
func (v VM) systemDisk() string {
	for key := range strings.SplitSeq(strings.TrimPrefix(v.Config["boot"], "order="), ";") {
		if d := v.Config[key]; d != "" && !strings.HasPrefix(key, "net") && !strings.Contains(d, "media=cdrom") {
			return key
		}
	}
	return ""
}

func (v VM) bus() string { return strings.TrimRight(v.systemDisk(), "0123456789") }

// ephemeralElsewhere reports whether a document puts EPHEMERAL on another disk.
func (v VM) ephemeralElsewhere() bool {
	return slices.ContainsFunc(v.Documents, func(d string) bool {
		return strings.Contains(d, "kind: VolumeConfig") && strings.Contains(d, "name: EPHEMERAL") && strings.Contains(d, "diskSelector")
	})
}

func (v VM) check(node string) error {
	switch key := v.systemDisk(); {
	case !strings.HasSuffix(key, "0"):
		return fmt.Errorf("VM of %s: its boot order begins with no disk that has the number 0", node)
	case v.Content[key] != nil:
		return fmt.Errorf("VM of %s: %s is for Talos to write on", node, key)
	}
	return nil
}

// complete returns the configuration with the lab's own settings added.
func (v VM) complete(n Node) map[string]string {
	c := map[string]string{"smbios1": "uuid=" + n.UUID}
	for key, value := range v.Config {
		number, isNet := strings.CutPrefix(key, "net")
		switch model, rest, _ := strings.Cut(value, ","); {
		case isNet && number == "0":
			value = model + "=" + n.MAC + "," + rest
		case isNet:
			value = model + "=" + n.MAC[:9] + "0" + number + n.MAC[11:] + "," + rest
		case key == "smbios1":
			value = c["smbios1"] + "," + value
		}
		c[key] = value
	}
	c["name"] = n.Name
	return c
}

// installVM makes the machine of a node with a VM from Options.VMs.
func (l *Lab) installVM(n Node, v VM, installer string, uki []byte, member talosapi.EtcdData) error {
	m := talosapi.Machine{Hostname: n.Name, ControlPlane: n.ControlPlane, Installer: installer, Documents: v.Documents}
	system, err := l.preinstalled(m, v.bus(), uki, v.ephemeralElsewhere(), n.ControlPlane, member)
	if err != nil {
		return err
	}
	content := map[string]*world.Media{v.systemDisk(): world.NewMedia(system)}
	if v.Config["efidisk0"] != "" {
		img, err := artefact.ReadUKI(uki)
		if err != nil {
			return err
		}
		content["efidisk0"] = world.NewMedia(talosapi.NVRAM(img))
	}
	for key, bytes := range v.Content {
		content[key] = world.NewMedia(bytes)
	}
	return l.World.DefineVM(n.Host, n.VMID, v.complete(n), content)
}

// The DHCP pool for machines without a reservation, as the last byte of the address.
// Addresses above the pool are free for static use.
const (
	firstLease = 231
	lastLease  = 250
)

// leases are the DHCP leases of machines without a reservation. As with Talos, no machine releases its lease; when
// the pool is empty, the oldest lease expires.
type leases struct {
	mu   sync.Mutex
	macs []string // by address, the oldest first
	at   map[string]netip.Addr
	free map[string]bool // names of nodes without a reservation
}

// Reserve says whether DHCP reserves a node's address, which is the default. Without a reservation the machine gets a
// free address from the pool.
func (l *Lab) Reserve(node string, reserved bool) {
	l.leases.mu.Lock()
	defer l.leases.mu.Unlock()
	if l.leases.free == nil {
		l.leases.free = map[string]bool{}
	}
	l.leases.free[node] = !reserved
}

// lease returns the DHCP server's answer to a MAC; false without a DHCP server.
func (l *Lab) lease(mac string) (netip.Addr, bool) {
	l.leases.mu.Lock()
	defer l.leases.mu.Unlock()
	if l.o.NoDHCP {
		return netip.Addr{}, false
	}
	for _, n := range l.Nodes {
		if n.MAC == mac && !l.leases.free[n.Name] {
			return n.Addr, true
		}
	}
	if addr, known := l.leases.at[mac]; known {
		return addr, true
	}
	addr := netip.Addr{}
	if n := len(l.leases.macs); n <= lastLease-firstLease {
		addr = l.o.addr(max(firstLease, l.o.last()+1) + n) // above the workers' addresses
	} else { // the oldest lease has expired
		addr = l.leases.at[l.leases.macs[0]]
		delete(l.leases.at, l.leases.macs[0])
		l.leases.macs = slices.Delete(l.leases.macs, 0, 1)
	}
	if l.leases.at == nil {
		l.leases.at = map[string]netip.Addr{}
	}
	l.leases.macs, l.leases.at[mac] = append(l.leases.macs, mac), addr
	return addr, true
}

// How often a drain retries.
const (
	evictionPause = 5 * time.Second // while a budget forbids the eviction
	deletionPause = time.Second     // until a pod is gone
)

// drain does what a Talos node does before it goes down on its own: it marks the node as cordoned by Talos, evicts
// all its pods at once and waits until they are gone.
func (l *Lab) drain(ctx context.Context, node string) error {
	err := l.editNode(ctx, node, func(n *corev1.Node) bool {
		if n.Spec.Unschedulable {
			return false // already cordoned
		}
		n.Spec.Unschedulable = true
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		n.Annotations[constants.AnnotationCordonedKey] = constants.AnnotationCordonedValue
		return true
	})
	if err != nil {
		return fmt.Errorf("cordon %s: %w", node, err)
	}
	pods, _, err := l.Kube.Store().List(ctx, store.Pods(), "")
	if err != nil {
		return fmt.Errorf("drain %s: %w", node, err)
	}
	errs := make([]error, len(pods))
	var evictions sync.WaitGroup
	for i, o := range pods {
		if p := o.(*corev1.Pod); p.Spec.NodeName == node && movable(p) {
			evictions.Go(func() {
				if err := l.evict(ctx, p); err != nil {
					errs[i] = fmt.Errorf("evict %s/%s: %w", p.Namespace, p.Name, err)
				}
			})
		}
	}
	evictions.Wait()
	return errors.Join(errs...)
}

// movable reports whether a drain evicts a pod. A drain leaves static pods, pods of a DaemonSet and pods without a
// controller (Drain in Talos' kubernetes.go).
func movable(p *corev1.Pod) bool {
	owner := metav1.GetControllerOf(p)
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	return !mirror && p.DeletionTimestamp == nil && owner != nil && owner.Kind != "DaemonSet"
}

// evict evicts a pod as soon as its budget allows and waits until it is gone.
func (l *Lab) evict(ctx context.Context, p *corev1.Pod) error {
	for {
		err := l.Kube.Evict(ctx, p.Namespace, p.Name, metav1.DeleteOptions{})
		if err == nil {
			break
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		if !apierrors.IsTooManyRequests(err) {
			return err
		}
		if err := l.delay(ctx, evictionPause); err != nil {
			return err
		}
	}
	for {
		now, err := l.Kube.Store().Get(ctx, store.Pods(), p.Namespace, p.Name)
		if apierrors.IsNotFound(err) || err == nil && now.GetUID() != p.UID {
			return nil
		}
		if err != nil {
			return err
		}
		if err := l.delay(ctx, deletionPause); err != nil {
			return err
		}
	}
}

// uncordon removes the cordon if drain set it.
func (l *Lab) uncordon(ctx context.Context, node string) error {
	for {
		err := l.editNode(ctx, node, func(n *corev1.Node) bool {
			if n.Annotations[constants.AnnotationCordonedKey] != constants.AnnotationCordonedValue {
				return false
			}
			n.Spec.Unschedulable = false
			delete(n.Annotations, constants.AnnotationCordonedKey)
			return true
		})
		if !apierrors.IsNotFound(err) { // the kubelet may not have registered yet
			return err
		}
		if err := l.delay(ctx, deletionPause); err != nil {
			return err
		}
	}
}

// editNode applies change to a Node until the result is stored; change returns false to leave the Node unchanged.
func (l *Lab) editNode(ctx context.Context, name string, change func(*corev1.Node) bool) error {
	for {
		n, err := l.Kube.Node(ctx, name)
		if err != nil {
			return err
		}
		n.Annotations = maps.Clone(n.Annotations)
		if !change(n) {
			return nil
		}
		if _, err := l.Kube.Store().Update(ctx, store.Nodes(), n, store.Main); !apierrors.IsConflict(err) {
			return err
		}
	}
}

const (
	tokenID     = "recast@pve!lab"
	tokenSecret = "5ec0ffee-1ab0-4000-8000-000000000001"

	// PoorToken exists but has no permissions: a token with privilege separation and no
	// entry of its own in the access control list.
	PoorToken = "poor@pve!lab=5ec0ffee-1ab0-4000-8000-000000000002"
)

// Token returns the API token that recast is meant to use.
func (l *Lab) Token() string { return tokenID + "=" + tokenSecret }

// Privileges returns the smallest role that can roll by recreate, on any layout.
func Privileges() []string {
	return []string{
		"VM.Allocate", "VM.Audit", "VM.PowerMgmt", "VM.Config.Disk", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Memory",
		"VM.Config.Network", "VM.Config.HWType", "VM.Config.Options", "VM.GuestAgent.Audit",
		"Datastore.AllocateSpace", "Datastore.Audit", "Datastore.AllocateTemplate", "SDN.Use", "Sys.Audit",
	}
}

func (l *Lab) startProxmox(ctx context.Context) error {
	w := l.World
	w.AddStorage(world.Storage{ID: ISOStorage, Type: "cephfs", Shared: true, Content: []string{"iso"}})
	w.AddStorage(world.Storage{ID: "local", Type: "dir", Content: []string{"iso", "vztmpl", "snippets", "import"}})
	w.AddStorage(world.Storage{ID: DiskStorage, Type: l.o.DiskType, Shared: l.o.SharedDisks, Capacity: l.o.DiskCapacity, Content: []string{"images"}})
	w.AddRole("Recast", Privileges()...)
	w.AddToken(world.Token{ID: tokenID, Secret: tokenSecret, Privsep: true})
	for _, who := range []string{"recast@pve", tokenID} {
		w.Grant(world.ACL{Path: "/", Who: who, Role: "Recast", Propagate: true})
	}
	w.AddToken(world.Token{ID: "poor@pve!lab", Secret: PoorToken[len("poor@pve!lab="):], Privsep: true})

	var addrs []string
	for i := range l.o.Hosts {
		addrs = append(addrs, l.o.addr(firstHost+i).String())
	}
	cert, err := issuePair(nil, "pve", addrs)
	if err != nil {
		return err
	}
	l.pveCert = cert
	for i, addr := range addrs {
		host := hostName(i)
		w.AddHost(host)
		listener, err := l.o.Network.Listen(addr + ":" + proxmoxPort)
		if err != nil {
			return fmt.Errorf("listen on %s: %w", addr, err)
		}
		server := pveapi.New(w, l.Recorder, host)
		server.Serve(listener, cert)
		l.closers = append(l.closers, server.Close)
	}
	return nil
}

// authority signs certificates that are valid for ten years from now.
type authority struct {
	pair tls.Certificate
	pem  []byte
}

func readAuthority(certPEM, keyPEM []byte) (authority, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return authority{}, fmt.Errorf("read CA: %w", err)
	}
	return authority{pair: pair, pem: certPEM}, nil
}

const tenYears = 10 * 365 * 24 * time.Hour

// issue makes a certificate for a server at those addresses, or for a client. A nil authority makes a self-signed
// certificate.
func issue(life time.Duration, a *authority, subject pkix.Name, addrs []string) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, nil, fmt.Errorf("make serial number: %w", err)
	}
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: serial, Subject: subject, NotBefore: now.Add(-time.Minute), NotAfter: now.Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, addr := range addrs {
		if ip := net.ParseIP(addr); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, addr)
		}
	}
	parent, signer := t, any(key)
	if a != nil {
		parent, signer = a.pair.Leaf, a.pair.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, t, parent, key.Public(), signer)
	if err != nil {
		return nil, nil, fmt.Errorf("sign certificate: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("write key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), nil
}

func issuePair(a *authority, name string, addrs []string) (tls.Certificate, error) {
	certPEM, keyPEM, err := issue(tenYears, a, pkix.Name{CommonName: name}, addrs)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(certPEM, keyPEM)
}

// fingerprint returns a certificate's SHA-256 as Proxmox shows it: "AA:BB:…".
func fingerprint(c tls.Certificate) string {
	sum := sha256.Sum256(c.Certificate[0])
	hex := make([]string, len(sum))
	for i, b := range sum {
		hex[i] = fmt.Sprintf("%02X", b)
	}
	return strings.Join(hex, ":")
}

package simtest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/exchange/exchangetest"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/pve/api/apitest"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/pveapi"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
)

// A matrix lab has one Proxmox node with one stopped VM.
const (
	matrixHost     = "pve1"
	matrixEndpoint = "127.42.8.1:8006"
	matrixCluster  = "matrix"
	matrixNode     = "wk1"
	matrixVM       = 9011
	matrixHolder   = 200
	matrixParking  = 9900
	matrixISO      = "local:iso/recast-v1.13.9-3f2a-nocloud-amd64.iso"
	matrixImage    = "local:import/recast-v1.13.9-3f2a-nocloud-amd64.raw"
	matrixToken    = "recast@pve!matrix"
	matrixSecret   = "5ec0ffee-3a71-4000-8000-000000000001"

	matrixSystemGiB = 12 // of the new system disk; the old one is smaller
)

// matrixLab is a simulated Proxmox with fault injection. An exchange needs nothing else, so one takes milliseconds.
type matrixLab struct {
	t        *testing.T
	world    *world.World
	recorder *record.Recorder
	network  *network.Network
	cert     tls.Certificate
	shape    matrixShape
	disks    []matrixDisk // all initial volumes

	mu      sync.Mutex
	named   map[string]string // latest volid of each in a configuration
	mends   []func()          // end the faults that outlast a call
	late    []*matrixLate
	busy    bool          // at the latest check, work was in progress
	broken  []string      // promises found broken after some call
	clients []*pve.Client // to be closed
}

type matrixDisk struct {
	name  string // its name in test failures
	media *world.Media
	held  bool // by a holder, whose configuration always names it
}

func newMatrixLab(t *testing.T, shape matrixShape) *matrixLab {
	l := &matrixLab{
		t: t, world: world.New(world.Options{Cluster: matrixCluster}), recorder: record.New(), network: network.Memory(),
		cert: apitest.NewCertificate(t), shape: shape, named: map[string]string{},
	}
	listener := valueOf(l.network.Listen(matrixEndpoint))(t)
	l.world.AddHost(matrixHost)
	server := pveapi.New(l.world, l.recorder, matrixHost)
	server.Serve(listener, l.cert)
	t.Cleanup(func() {
		for _, c := range l.clients {
			c.Close()
		}
		l.world.Close()
		must(t, server.Close())
	})
	// The role of a roll, and what the shape's settings need.
	l.world.AddRole("Recast", append(sim.Privileges(), "VM.Config.Cloudinit", "Sys.Modify", "Sys.Console")...)
	l.world.AddToken(world.Token{ID: matrixToken, Secret: matrixSecret, Privsep: true})
	for _, who := range []string{"recast@pve", matrixToken} {
		l.world.Grant(world.ACL{Path: "/", Who: who, Role: "Recast", Propagate: true})
	}
	l.build()
	return l
}

// matrixLife is one process of recast, from its start to its end or death.
type matrixLife struct {
	*matrixLab
	px     *pve.Client
	dialer *network.Dialer
	cancel context.CancelFunc
}

// live starts a process that knows nothing of earlier ones.
func (l *matrixLab) live(ctx context.Context) (context.Context, *matrixLife) {
	ctx, cancel := context.WithCancel(ctx)
	life := &matrixLife{matrixLab: l, dialer: l.network.Dialer(), cancel: cancel}
	px := valueOf(pve.New(api.Options{
		Endpoints: []string{"https://" + matrixEndpoint}, Token: cluster.Secret(matrixToken + "=" + matrixSecret),
		Fingerprint: apitest.Fingerprint(l.cert.Leaf), Dial: life.dialer.DialContext, Poll: 2 * time.Second,
	}))(l.t)
	px.Trust(cluster.Trust{Pools: []string{"talos"}}) // of the parking VM that was there before
	life.px = px
	l.clients = append(l.clients, px)
	return ctx, life
}

func (life *matrixLife) kill() {
	life.dialer.Cut()
	life.cancel()
}

// exchange is all that a process does: it begins or resumes the exchange, and completes it, forward or back.
func (life *matrixLife) exchange(ctx context.Context, strategy cluster.Strategy, putBack bool) error {
	return life.run(ctx, life.exchangeBy(strategy), putBack)
}

func (life *matrixLife) exchangeBy(strategy cluster.Strategy) *exchangetest.Exchange {
	named := func(volid string) func(context.Context) (string, error) {
		return func(context.Context) (string, error) { return volid, nil }
	}
	run := "20000101-0000-" + string(strategy)
	x := &exchangetest.Exchange{
		Proxmox: life.px, Record: parking.Record{Cluster: matrixCluster, Node: matrixNode, Run: run, Build: "3f2a", Strategy: strategy}, VMID: matrixVM,
		SystemGiB: matrixSystemGiB, ParkingIDs: []cluster.VMID{matrixParking, matrixParking + 1, matrixParking + 2},
		ISO: named(matrixISO), Image: named(matrixImage), DiskBytes: int64(len(matrixDiskImage())),
	}
	if life.shape.prepared {
		x.Record.Prepared = matrixImage
	}
	return x
}

func (life *matrixLife) run(ctx context.Context, x *exchangetest.Exchange, putBack bool) error {
	if err := exchange.AwaitOwnTasks(ctx, life.px, func(cluster.VMID) bool { return true }, 2*time.Second, nil); err != nil {
		return err
	}
	steps, err := x.Begin(ctx, putBack)
	if err != nil {
		return err
	}
	return (&step.Runner{}).Run(ctx, steps)
}

func matrixDiskImage() []byte { return bytes.Repeat([]byte("a disk of Talos."), 1<<10) }

type ownership string

const (
	ownDisks  ownership = "own"
	heldDisks ownership = "held"
	bothDisks ownership = "mixed"
)

func ownerships() []ownership { return []ownership{ownDisks, heldDisks, bothDisks} }

type matrixShape struct {
	owned                                 ownership
	data                                  int // data disks
	efi, tpm, cloudInit, unused, orphan   bool
	ha, protection, onboot, kept, startup bool
	walled                                bool // it has a firewall
	prepared                              bool // the new system disk is made from a disk image
}

func (s matrixShape) withPrepared(prepared bool) matrixShape {
	s.prepared = prepared
	return s
}

// usualShape is the shape in the matrix. Properties other than the ownership of disks are spread over the three.
func usualShape(owned ownership, strategy cluster.Strategy) matrixShape {
	return matrixShape{
		owned: owned, data: 2, efi: true, tpm: true, cloudInit: true, unused: true, onboot: owned != heldDisks,
		ha: owned != heldDisks, protection: owned == ownDisks, startup: owned == bothDisks,
		kept: strategy == cluster.Rollback || owned == bothDisks,
	}
}

func drawShape(r *rand.Rand, strategy cluster.Strategy) matrixShape {
	coin := func() bool { return r.IntN(2) == 0 }
	return matrixShape{
		owned: ownerships()[r.IntN(3)], data: 1 + r.IntN(4), efi: coin(), tpm: coin(), cloudInit: coin(), unused: coin(), orphan: coin(),
		ha: coin(), protection: coin(), onboot: coin(), startup: coin(), kept: strategy == cluster.Rollback || coin(), prepared: coin() && strategy != cluster.Rollback,
	}
}

func (s matrixShape) held(i int) bool {
	return s.owned == heldDisks || s.owned == bothDisks && i%2 == 0
}

func (l *matrixLab) build() {
	w := l.world
	w.AddStorage(world.Storage{ID: "local", Type: "dir", Content: []string{"iso", "vztmpl", "snippets", "import"}})
	w.AddStorage(world.Storage{ID: "data", Type: "dir", Content: []string{"images"}})
	w.AddStorage(world.Storage{ID: "fast", Type: "lvmthin", Content: []string{"images"}})
	w.AddPool("talos")
	must(l.t, w.AddISO("local", matrixHost, strings.TrimPrefix(matrixISO, "local:iso/"), []byte("boot me")))
	must(l.t, w.AddImage("local", matrixHost, strings.TrimPrefix(matrixImage, "local:import/"), matrixDiskImage()))
	l.buildVM(l.buildHolder())
	if l.shape.walled {
		w.SetFirewall(matrixVM, wholeFirewall())
	}
	if l.shape.kept {
		l.buildParking()
	}
	for _, d := range l.disks {
		w.Protect(world.Protected{Serial: d.name, Media: d.media, Held: d.held})
	}
	if l.shape.orphan {
		media := world.NewMedia([]byte("nobody knows whose"))
		must(l.t, errOf(w.Alloc("data", matrixHost, matrixVM, 1<<30, media)))
		l.disks = append(l.disks, matrixDisk{name: "the orphan", media: media})
	}
	if l.shape.ha {
		w.AddHARule(world.HARule{ID: "apart", Type: "node-affinity", Resources: []string{"vm:9011"}, Options: map[string]string{"nodes": matrixHost}})
		w.AddHA(world.HAResource{SID: "vm:9011", State: "stopped", Options: map[string]string{"comment": "a node", "max_restart": "2"}})
	}
}

// define makes a VM whose disks have distinct content.
func (l *matrixLab) define(id int, config, disks map[string]string, held bool) {
	content := map[string]*world.Media{}
	for _, key := range slices.Sorted(maps.Keys(disks)) {
		name := fmt.Sprintf("%s of VM %d", key, id)
		content[key] = world.NewMedia([]byte("this was " + name))
		l.disks = append(l.disks, matrixDisk{name: name, media: content[key], held: held})
	}
	config = maps.Clone(config)
	maps.Copy(config, disks)
	must(l.t, l.world.DefineVM(matrixHost, id, config, content))
}

func (l *matrixLab) vm() (world.VM, error) { return l.world.LookupVM(matrixHost, matrixVM) }

func (l *matrixLab) buildHolder() map[string]string {
	held, disks := map[string]string{}, map[string]string{}
	for i := range l.shape.data {
		if l.shape.held(i) {
			disks[fmt.Sprintf("scsi%d", i+1)] = "data:20,serial=held-" + fmt.Sprint(i+1)
		}
	}
	if len(disks) == 0 {
		return held
	}
	l.define(matrixHolder, map[string]string{"name": "data", "memory": "16", "protection": "1"}, disks, true)
	vm := valueOf(l.world.LookupVM(matrixHost, matrixHolder))(l.t)
	for key := range disks {
		volid, _, _ := strings.Cut(vm.Config[key], ",")
		held[key] = volid + ",backup=0,discard=on,iothread=1,serial=held-" + key
	}
	return held
}

func (l *matrixLab) buildVM(held map[string]string) {
	s := l.shape
	config := map[string]string{
		"name": matrixNode, "memory": "4096", "cores": "2", "cpu": "x86-64-v2-AES", "ostype": "l26", "machine": "q35", "scsihw": "virtio-scsi-single",
		"agent": "1", "net0": "virtio=BC:24:11:00:00:11,bridge=vmbr0", "smbios1": "uuid=00000000-0000-4000-8000-000000009011", "pool": "talos",
		"tags": "talos;worker", "description": "A worker.\nMind the *disks*.", "boot": "order=scsi0;ide2;net0", "ide2": "none,media=cdrom", "serial0": "socket",
		"balloon": "0", "vmgenid": "00000000-0000-4000-8000-0000000090ff",
	}
	maps.Copy(config, held)
	disks := map[string]string{"scsi0": "data:10,discard=on,iothread=1,ssd=1"}
	for i := range s.data {
		if !s.held(i) {
			storage := []string{"data", "fast"}[i%2]
			disks[fmt.Sprintf("scsi%d", i+1)] = fmt.Sprintf("%s:%d,backup=0,iothread=1,serial=data-%d", storage, 20+i, i+1)
		}
	}
	for _, o := range []struct {
		on         bool
		in         map[string]string
		key, value string
	}{
		{s.onboot, config, "onboot", "1"},
		{s.protection, config, "protection", "1"},
		{s.startup, config, "startup", "order=2,up=30"},
		{s.cloudInit, config, "ide0", "data:cloudinit"},
		{s.cloudInit, config, "ipconfig0", "ip=dhcp"},
		{s.cloudInit, config, "ciuser", "talos"},
		{s.efi, config, "bios", "ovmf"},
		{s.efi, disks, "efidisk0", "data:1,efitype=4m,pre-enrolled-keys=0"},
		{s.tpm, disks, "tpmstate0", "fast:1,version=v2.0"},
		{s.unused, disks, "unused0", "data:3"},
	} {
		if o.on {
			o.in[o.key] = o.value
		}
	}
	l.define(matrixVM, config, disks, false)
}

func (l *matrixLab) buildParking() {
	rec := parking.Record{
		Cluster: matrixCluster, Node: matrixNode, Run: "19991231-0000-dead", Build: "1e0f", Strategy: cluster.Recreate,
		VMID: matrixVM, UUID: "00000000-0000-4000-8000-000000009011", VMName: matrixNode,
		Kept: []parking.KeptDisk{{Key: "scsi30", Run: "19991231-0000-dead", Slot: "scsi0", Options: "discard=on,iothread=1,serial=older,ssd=1", Talos: "v1.12.0"}},
	}
	l.define(matrixParking, map[string]string{
		"name": "recast-parking-" + matrixNode, "memory": "16", "protection": "1", "onboot": "0", "pool": "talos",
		"description": valueOf(rec.Description())(l.t), "boot": " ",
	}, map[string]string{"scsi30": "data:8,backup=0,discard=on,iothread=1,serial=older,ssd=1"}, false)
}

type matrixName struct {
	vm         int
	key, volid string
}

func (n matrixName) String() string { return strconv.Itoa(n.vm) + "-" + n.key }

func (l *matrixLab) names() map[*world.Media][]matrixName {
	names := map[*world.Media][]matrixName{}
	for _, vm := range l.world.VMs() {
		for _, config := range []map[string]string{vm.Config, vm.Pending} {
			for key, value := range config {
				if !cluster.IsDiskKey(key) {
					continue
				}
				volid, _, _ := strings.Cut(value, ",")
				if media := l.world.Media(volid, vm.Host); media != nil {
					names[media] = append(names[media], matrixName{vm.ID, key, volid})
				}
			}
		}
	}
	for _, list := range names {
		slices.SortFunc(list, func(a, b matrixName) int {
			return cmp.Or(cmp.Compare(a.vm, b.vm), strings.Compare(a.key, b.key))
		})
	}
	return names
}

// lookAfter is look after a call that can have changed something, itself or by an earlier call's worker.
func (l *matrixLab) lookAfter(call record.Call) {
	busy := l.working()
	l.mu.Lock()
	was := l.busy
	l.busy = busy
	l.mu.Unlock()
	if call.Mutation || was || busy {
		l.look(call)
	}
}

func (l *matrixLab) working() bool {
	return slices.ContainsFunc(l.world.Tasks(), func(t world.Task) bool { return t.Running })
}

func (l *matrixLab) look(call record.Call) {
	names := l.names()
	problems := some(l.world.Violations(), func(v string) (string, bool) {
		// A volume may lack a name for a moment, if the record says so.
		return v, !strings.HasSuffix(v, "no VM's configuration names its volume")
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	problems = append(problems, l.startedWithout(names)...)
	for _, d := range l.disks {
		problems = append(problems, l.lookAt(d, names[d.media])...)
	}
	for _, p := range problems {
		l.broken = append(l.broken, fmt.Sprintf("after %s %s: %s", call.Method, call.Path, p))
	}
}

// lookAt lists problems with the names of one volume; mu must be held.
func (l *matrixLab) lookAt(d matrixDisk, names []matrixName) (problems []string) {
	var runnable []int
	var others []string
	for _, n := range names {
		if n.vm == matrixHolder && d.held {
			continue
		}
		others = append(others, n.String())
		if !l.isParking(n.vm) && !slices.Contains(runnable, n.vm) {
			runnable = append(runnable, n.vm)
		}
	}
	switch {
	case d.name == "the orphan":
		if len(names) > 0 {
			problems = append(problems, fmt.Sprintf("%s, which nobody had named, is %v", d.name, names))
		}
	case len(runnable) > 1:
		problems = append(problems, fmt.Sprintf("%s is in several VMs that may run: %v", d.name, runnable))
	case len(others) > 1:
		problems = append(problems, fmt.Sprintf("%s has several names: %v", d.name, others))
	case len(names) == 0 && !l.intended(l.named[d.name]):
		problems = append(problems, fmt.Sprintf("%s, which was %s, has no name, and no record says that it is on its way", d.name, l.named[d.name]))
	case len(names) > 0:
		l.named[d.name] = names[0].volid
	}
	return problems
}

// isParking says whether recast must never start a VM.
func (l *matrixLab) isParking(id int) bool { return id >= matrixParking && id < matrixParking+100 }

// intended says whether an open record says that this very volume is being handed over.
func (l *matrixLab) intended(volid string) bool {
	return slices.ContainsFunc(l.world.VMs(), func(vm world.VM) bool {
		rec, ok, err := parking.ReadRecord(cluster.VM{Config: vm.Config})
		return err == nil && ok && rec.Open && rec.Intent != nil && rec.Intent.Volid == volid
	})
}

// startedWithout lists disks that a running VM lacks because they are parked; mu must be held.
func (l *matrixLab) startedWithout(names map[*world.Media][]matrixName) (problems []string) {
	vm, err := l.vm()
	if err != nil || !vm.Running {
		return nil
	}
	for _, d := range l.disks {
		mine := strings.HasSuffix(d.name, fmt.Sprintf("of VM %d", matrixVM))
		if mine && d.name != fmt.Sprintf("scsi0 of VM %d", matrixVM) && slices.ContainsFunc(names[d.media], func(n matrixName) bool { return l.isParking(n.vm) }) {
			problems = append(problems, fmt.Sprintf("VM %d runs without %s, which is parked", matrixVM, d.name))
		}
	}
	if vm.Config["scsi0"] == "" {
		problems = append(problems, fmt.Sprintf("VM %d runs without a system disk", matrixVM))
	}
	return problems
}

func (l *matrixLab) volumes() map[string]*world.Media {
	all := map[string]*world.Media{}
	for _, storage := range []string{"data", "fast"} {
		for _, v := range valueOf(l.world.Volumes(storage, matrixHost))(l.t) {
			all[v.Volid] = l.world.Media(v.Volid, matrixHost)
		}
	}
	return all
}

func (l *matrixLab) unfreed() (gone []string) {
	there := slices.Collect(maps.Values(l.volumes()))
	return some(l.disks, func(d matrixDisk) (string, bool) { return d.name + " was freed", !slices.Contains(there, d.media) })
}

// sweep deletes, as root, the new volumes that no configuration names, and lists them.
func (l *matrixLab) sweep() (left []string) {
	names, volumes := l.names(), l.volumes()
	for _, volid := range slices.Sorted(maps.Keys(volumes)) {
		media := volumes[volid]
		if len(names[media]) > 0 || slices.ContainsFunc(l.disks, func(d matrixDisk) bool { return d.media == media }) {
			continue
		}
		left = append(left, volid)
		must(l.t, l.done(l.world.DeleteVolume("root@pam", matrixHost, volid)))
	}
	return left
}

func (l *matrixLab) done(upid string, err error) error {
	l.world.WaitTask(upid)
	return err
}

// removeHalfMade removes, as root, VMs of which only the creation's lock exists.
func (l *matrixLab) removeHalfMade(which func(id int) bool) (found bool) {
	for _, vm := range l.world.VMs() {
		if vm.Config["lock"] != "create" || !which(vm.ID) {
			continue
		}
		found = true
		l.world.SetLock(vm.ID, "")
		must(l.t, l.done(l.world.DestroyVM("root@pam", vm.Host, world.DestroyRequest{ID: vm.ID})))
	}
	return found
}

// settle waits for all work, and repairs the faults around the exchange, as time and administrators do.
func (l *matrixLab) settle() {
	l.mu.Lock()
	mends := l.mends
	l.mends = nil
	l.mu.Unlock()
	for _, mend := range mends {
		mend()
	}
	l.world.NoMoreFailures()
	l.world.SetQuorum(true)
	l.world.SetDaemon(matrixHost, true)
	if len(mends) > 0 {
		time.Sleep(2 * time.Minute) // of the bubble: a booting host starts the VMs with onboot=1
	}
	l.rest()
	// The host may have started the VM at boot, which is fine while it has all its disks: an exchange needs a stopped VM.
	if vm, err := l.vm(); err == nil && vm.Running {
		l.look(record.Call{Method: "booting"})
		must(l.t, errOf(l.world.Stop("root@pam", matrixHost, matrixVM)))
		l.rest()
	}
}

func (l *matrixLab) rest() {
	for l.working() {
		time.Sleep(5 * time.Second) // of the bubble
	}
}

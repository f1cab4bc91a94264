package contract

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange/exchangetest"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
)

// exchangeCluster is the Talos cluster in the tests' records and claims: it identifies
// parking VMs and claims of a killed run.
const exchangeCluster = "recast-contract"

// exchanged is a VM like a Talos node's whose system is to be exchanged.
type exchanged struct {
	s      *server
	id     int
	holder int // owns some of its data disks; 0: none
	park   int // free number for its parking VM
	iso    string
	before machine
}

// belongings says who owns the data disks of a node.
type belongings map[string]bool // key -> another VM owns it

func belongingsOfAll() map[string]belongings {
	return map[string]belongings{
		"own disks":                   {"scsi1": false, "scsi2": false},
		"disks of another VM":         {"scsi1": true, "scsi2": true},
		"one of its own, one another": {"scsi1": false, "scsi2": true},
	}
}

// mixed is one disk of each kind.
func mixed() belongings { return belongings{"scsi1": false, "scsi2": true} }

// newNode makes a VM with everything that a Talos node's may have and that the token may
// set. It is never started.
func (s *server) newNode(b belongings, form ...string) *exchanged {
	s.t.Helper()
	form = append(form, "bios=ovmf", "machine=q35", "cpu=x86-64-v2-AES", "cores=2", "numa=1", "memory=512", "balloon=0",
		"ostype=l26", "agent=enabled=1,fstrim_cloned_disks=1", "tablet=0", "vga=serial0", "serial0=socket", "rng0=source=/dev/urandom",
		"hotplug=network,disk,usb", "net0=virtio=BC:24:11:00:00:01,bridge="+s.place.bridge+",queues=2",
		"ide0="+s.place.storage+":cloudinit", "ipconfig0=ip=192.0.2.10/24,gw=192.0.2.1", "nameserver=192.0.2.53", "searchdomain=example.com",
		"efidisk0="+s.disk()+",efitype=4m,pre-enrolled-keys=0", "tpmstate0="+s.disk()+",version=v2.0")
	if !given(form, "boot") {
		form = append(form, "boot=order=scsi0;ide2;net0")
	}
	if slices.Contains(s.privileges("/"), "Sys.Modify") {
		form = append(form, "startup=order=3,up=30")
	}
	return s.makeNode(b, s.data, form...)
}

// newPlainNode makes a VM with only what an exchange has to distinguish: disks, a CD
// drive, an identity. It can be started.
func (s *server) newPlainNode(form ...string) *exchanged {
	s.t.Helper()
	return s.makeNode(mixed(), s.blank, form...)
}

// blank is a new blank data disk of a unique size.
func (s *server) blank(key string) string {
	return s.place.storage + ":" + map[string]string{"scsi1": "1", "scsi2": "3"}[key]
}

func (s *server) makeNode(b belongings, data func(key string) string, form ...string) *exchanged {
	s.t.Helper()
	x := &exchanged{s: s, id: s.freeID(), park: s.freeID(), iso: s.bootISO()}
	for _, f := range []string{
		"scsihw=virtio-scsi-single", "onboot=1", "protection=1", "tags=recast-contract;talos",
		"smbios1=uuid=" + newUUID() + ",manufacturer=cmVjYXN0,base64=1", "description=" + marker + "\n\nkeep & this = \"line\", 100%: ä\n",
		"ide2=none,media=cdrom", "boot=order=scsi0;ide2", "scsi0=" + s.place.storage + ":2,serial=system,discard=on,ssd=1,iothread=1",
	} {
		if key, _, _ := strings.Cut(f, "="); !given(form, key) {
			form = append(form, f)
		}
	}
	if s.place.pool != "" {
		form = append(form, "pool="+s.place.pool)
	}
	form = append(form, x.dataDisks(b, data)...)
	s.taskOK(http.MethodPost, "/nodes/"+s.place.node+"/qemu", marked(x.id, form...)...)
	x.fill()
	x.before = s.machine(x.id)
	return x
}

// dataDisks are those of a node; those of another VM are created there first.
func (x *exchanged) dataDisks(b belongings, data func(key string) string) (form []string) {
	x.s.t.Helper()
	options := map[string]string{
		"scsi1": ",serial=data-1,discard=on,ssd=1,iothread=1,backup=0",
		"scsi2": ",serial=data-2,discard=on,aio=threads,cache=none",
	}
	var held []string
	for key, isHeld := range b {
		if isHeld {
			held = append(held, key+"="+data(key))
		} else {
			form = append(form, key+"="+data(key)+options[key])
		}
	}
	if len(held) == 0 {
		return form
	}
	x.holder = x.s.newVM(held...)
	for key, isHeld := range b {
		if isHeld {
			form = append(form, key+"="+x.s.volid(x.holder, key)+options[key])
		}
	}
	return form
}

// fill gives every disk without imported content unique content in the simulator, which
// then protects it.
func (x *exchanged) fill() {
	x.s.t.Helper()
	if x.s.sim == nil {
		return
	}
	for key, d := range x.s.machine(x.id).Drives {
		m := x.s.sim.world.Media(d.volid, x.s.place.node)
		if m.Size() == 0 {
			m.Write([]byte(key + " of VM " + itoa(x.id)))
		}
		x.s.sim.world.Protect(world.Protected{Serial: key + "-" + itoa(x.id), Media: m, Held: d.Owner != x.id})
	}
}

// newClient is a recast client with its own connection, like that of another process.
func (s *server) newClient() *pve.Client {
	s.t.Helper()
	o := s.trusting()
	if s.sim == nil {
		o.Poll = pollTasks
	}
	return s.connect(o)
}

// node is the name of the node.
func (x *exchanged) node() string { return "node-" + itoa(x.id) }

// process is one that exchanges the node's system, and only has Proxmox.
func (x *exchanged) process(px cluster.Proxmox, strategy cluster.Strategy, run string) *exchangetest.Exchange {
	return &exchangetest.Exchange{
		Proxmox: px, Record: parking.Record{Cluster: exchangeCluster, Node: x.node(), Run: run, Build: "b0", Strategy: strategy}, VMID: cluster.VMID(x.id),
		ParkingIDs: []cluster.VMID{cluster.VMID(x.park)}, ISO: func(context.Context) (string, error) { return x.iso, nil },
	}
}

// open begins an exchange of the node and returns its steps.
func (x *exchanged) open(px cluster.Proxmox, strategy cluster.Strategy, run string) (step.Step, error) {
	return x.process(px, strategy, run).Begin(x.s.t.Context(), false)
}

// parking finds the node's parking VM as recast does; nil if there is none.
func (x *exchanged) parking(px cluster.Proxmox) (*parking.Parking, error) {
	return x.process(px, "", "").Parking(x.s.t.Context())
}

// exchange begins an exchange, or resumes it, and completes it.
func (x *exchanged) exchange(px cluster.Proxmox, strategy cluster.Strategy, run string) error {
	return x.resume(px, strategy, run, false)
}

// interrupt ends an exchange before it is complete.
func (x *exchanged) interrupt(t *testing.T, px *dying, strategy cluster.Strategy) {
	t.Helper()
	if err := x.exchange(px, strategy, "r1"); err == nil {
		t.Fatal("it was not interrupted")
	}
}

func (s *server) carryOut(root step.Step) error {
	return (&step.Runner{}).Run(s.t.Context(), root)
}

// resume finishes an unfinished exchange, as another process; putBack cancels it instead.
func (x *exchanged) resume(px cluster.Proxmox, strategy cluster.Strategy, run string, putBack bool) error {
	steps, err := x.process(px, strategy, run).Begin(x.s.t.Context(), putBack)
	if err != nil {
		return err
	}
	return x.s.carryOut(steps)
}

// intact checks the simulator's promises since its beginning.
func (s *server) intact(t *testing.T) {
	t.Helper()
	if s.sim == nil {
		return
	}
	for _, broken := range s.sim.world.Violations() {
		t.Error(broken)
	}
}

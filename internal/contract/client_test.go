package contract

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	noise "math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange/exchangetest"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/checkup"
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

// newNode makes a VM with everything that a Talos node's may have and that the token may set. It is never started.
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

// fill gives every disk without imported content unique content in the simulator, which then protects it.
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

func (s *server) newClient() *pve.Client {
	s.t.Helper()
	o := s.trusting()
	if s.sim == nil {
		o.Poll = pollTasks
	}
	return s.connect(o)
}

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

func (x *exchanged) parking(px cluster.Proxmox) (*parking.Parking, error) {
	return x.process(px, "", "").Parking(x.s.t.Context())
}

func (x *exchanged) exchange(px cluster.Proxmox, strategy cluster.Strategy, run string) error {
	return x.resume(px, strategy, run, false)
}

func (x *exchanged) interrupt(t *testing.T, px *dying, strategy cluster.Strategy) {
	t.Helper()
	err := x.exchange(px, strategy, "r1")
	must.Be(t, err != nil, "it was not interrupted")
}

func (s *server) carryOut(root step.Step) error { return (&step.Runner{}).Run(s.t.Context(), root) }

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

// pollTasks is how often exchanges poll a task of a real server: most take less than a second.
const pollTasks = 250 * time.Millisecond

func newUUID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// bootISO is the ISO that exchanges put into the CD drive: uploaded once per test.
func (s *server) bootISO() (volid string) {
	s.t.Helper()
	name := isoPrefix + "boot.iso"
	if s.isoSize(s.place.node, s.place.isoStorage, name) < 0 {
		s.ownISO(s.place.isoStorage + ":iso/" + name)
		s.uploadOK(iso(), file(name, "an ISO"))
	}
	return s.place.isoStorage + ":iso/" + name
}

// image is the content of a data disk: its size and the number of bytes written, so that its volume is recognizable by
// its allocation. The content is random, so that a compressing file system can't shrink it.
type image struct {
	size, written int
	seed          byte
}

func dataImages() map[string]image {
	return map[string]image{
		"scsi1": {size: 768 << 10, written: 128 << 10, seed: 1},
		"scsi2": {size: 1 << 20, written: 512 << 10, seed: 2},
	}
}

func (i image) bytes() []byte {
	b := make([]byte, i.size)
	_, _ = noise.NewChaCha8([32]byte{i.seed}).Read(b[:i.written]) // never fails
	return b
}

// imports says whether the ISO storage takes images of disks. Since 8.3 Proxmox allows
// that for "local" by default, unless its contents were set.
func (s *server) imports() bool {
	s.t.Helper()
	return strings.Contains(text(s.storageConfig(s.place.isoStorage)["content"]), "import")
}

// data is a new data disk in a create call: one with recognizable content if an image can
// be imported, a blank one of a unique size otherwise.
func (s *server) data(key string) string {
	s.t.Helper()
	if !s.imports() {
		return s.blank(key)
	}
	return s.place.storage + ":0,import-from=" + s.dataImage(key)
}

func (s *server) dataImage(key string) (volid string) {
	s.t.Helper()
	name := isoPrefix + key + ".raw"
	volid = s.place.isoStorage + ":import/" + name
	if s.row(volid) == nil {
		s.ownISO(volid)
		e := s.wait(s.upload(part{name: "content", value: "import"}, file(name, string(dataImages()[key].bytes()))))
		must.Be(s.t, e.Exit == "OK", "upload of %s ended with %q: %q", name, e.Exit, e.Log)
	}
	return volid
}

// machine is a VM as an exchange must leave or restore it, without what Proxmox regenerates.
type machine struct {
	Config map[string]string // all but renewed and drives
	Drives map[string]driveIs
	Pool   string
	HA     string   // its state in HA; "": not managed
	Loose  []string // volumes with its number that it does not name
}

// driveIs is what must stay the same of a disk, wherever it was meanwhile.
type driveIs struct {
	Options []string // sorted, including size
	Owner   int      // VMID in the volume's name
	Size    string   // of the volume, in bytes
	Format  string
	Used    allocated
	Bytes   string // their SHA-256, in the simulator

	volid string
}

// allocated is the allocated size of a volume. A file system may still be writing, or may trim what it had reserved.
type allocated int64

const settling = 64 << 10

var settled = cmp.Options{
	cmp.Comparer(func(a, b allocated) bool { return max(a, b)-min(a, b) <= settling }),
	cmpopts.IgnoreUnexported(driveIs{}), cmpopts.EquateEmpty(),
}

// renewed is the complete list of what Proxmox regenerates for a new VM and nobody can
// set, besides the names of volumes.
func renewed() []string { return []string{"digest", "meta", "vmgenid"} }

func (s *server) machine(id int) machine {
	s.t.Helper()
	m := machine{Config: s.config(id), Drives: map[string]driveIs{}, Pool: s.poolOf(id), HA: s.managedAs(id)}
	named := []string{}
	for _, key := range slices.Sorted(maps.Keys(m.Config)) {
		value := m.Config[key]
		switch {
		case slices.Contains(renewed(), key):
			delete(m.Config, key)
		case key == "description": // Proxmox appends a line break
			m.Config[key] = strings.TrimRight(value, "\n")
		case !cluster.IsDiskKey(key):
		case strings.Contains(value, "cloudinit"): // Proxmox adds its size later
			volid, _, _ := strings.Cut(value, ",")
			named = append(named, volid)
			value, _, _ = strings.Cut(value, ",size=")
			m.Config[key] = value
		case !strings.Contains(value, "media=cdrom"):
			delete(m.Config, key)
			m.Drives[key] = s.driveIs(key, value)
			named = append(named, m.Drives[key].volid)
		}
	}
	for _, volid := range s.volumes(s.place.storage, id) {
		if !slices.Contains(named, volid) {
			m.Loose = append(m.Loose, volid)
		}
	}
	return m
}

func (s *server) driveIs(key, value string) driveIs {
	s.t.Helper()
	d := must.Get(cluster.ParseDisk(key, value))(s.t)
	slices.Sort(d.Options)
	info := object(s.t, s.get(s.content(d.Volid)))
	used, _ := info["used"].(float64)
	out := driveIs{
		Options: d.Options, Owner: int(d.Owner), Size: text(info["size"]), Format: text(info["format"]), Used: allocated(used), volid: d.Volid,
	}
	if s.sim != nil {
		out.Bytes = s.sim.world.Media(d.Volid, s.place.node).SHA256()
	}
	return out
}

// managedAs is the state that HA requests for a VM; "" if it is not managed, or not visible.
func (s *server) managedAs(id int) string {
	s.t.Helper()
	r := s.do(http.MethodGet, haResources)
	rows, _ := r.Data.([]any)
	for _, row := range rows {
		if o := object(s.t, row); o["sid"] == "vm:"+itoa(id) {
			return text(o["state"])
		}
	}
	return ""
}

func (m machine) clone() machine {
	m.Config, m.Drives = maps.Clone(m.Config), maps.Clone(m.Drives)
	return m
}

// renewedBy is the machine after an exchange for a blank system disk: unchanged except for that and the run's mark.
func (m machine) renewedBy(run string, serial string) machine {
	m = m.markedBy(run)
	system := m.Drives["scsi0"]
	system.Options = slices.Clone(system.Options)
	for i, o := range system.Options {
		if strings.HasPrefix(o, "serial=") {
			system.Options[i] = "serial=" + serial
		}
	}
	system.Options = append(system.Options, fmt.Sprintf("wwn=0x3%.15s", fmt.Sprintf("%x", sha256.Sum256([]byte(serial)))))
	slices.Sort(system.Options)
	system.Used, system.Bytes = 0, ""
	m.Drives["scsi0"] = system
	return m
}

func (m machine) markedBy(run string) machine {
	m = m.clone()
	text, _, _ := strings.Cut(m.Config["description"], "\nrecast: run=")
	m.Config["description"] = text + "\nrecast: run=" + run + " build=b0"
	return m
}

// wantMachine compares the VM with the expected one.
func (x *exchanged) wantMachine(t *testing.T, what string, want machine) {
	t.Helper()
	got := x.s.machine(x.id)
	if want.Drives["scsi0"].Bytes == "" { // a blank one
		system := got.Drives["scsi0"]
		must.Hold(t, x.s.sim == nil || x.s.sim.world.Media(system.volid, x.s.place.node).Size() <= 0,
			"%s: scsi0 is not blank", what)
		system.Used, system.Bytes = 0, "" // a storage may preallocate
		got.Drives["scsi0"] = system
	}
	must.Equal(t, what+": the VM", want, got, settled)
}

// wantKept requires the node's parking VM to be protected, with a closed record, and with
// only old system disks, the newest last.
func (x *exchanged) wantKept(t *testing.T, what string, systems ...driveIs) {
	t.Helper()
	parking, err := x.parking(x.s.client)
	if err != nil || parking == nil {
		t.Errorf("%s: parking VM: %v, %v", what, parking, err)
		return
	}
	rec, id := parking.Record, int(parking.VM.ID)
	if rec.Open || rec.PutBack || rec.Intent != nil || len(rec.Disks) > 0 || len(rec.Kept) != len(systems) || parking.VM.Config["protection"] != "1" {
		t.Errorf("%s: record %+v, protection %q", what, rec, parking.VM.Config["protection"])
		return
	}
	got, want := x.s.machine(id), map[string]driveIs{}
	for i, d := range systems {
		d.Owner, d.Options = id, notBackedUp(d.Options)
		want[rec.Kept[i].Key] = d
	}
	must.Equal(t, what+": what is parked", want, got.Drives, settled)
	must.Equal(t, what+": what is parked without a name", 0, len(got.Loose))
}

// wantGivenUp is wantKept after a cancelled exchange: the new system disk, if it was made, is the parked one.
func (x *exchanged) wantGivenUp(t *testing.T, what, run string, made bool) {
	t.Helper()
	parking, err := x.parking(x.s.client)
	if err == nil && parking != nil && len(parking.Record.Kept) == 0 && !made {
		x.wantKept(t, what)
		return
	}
	if err != nil || parking == nil || len(parking.Record.Kept) != 1 || !parking.Record.Kept[0].GivenUp || parking.Record.Kept[0].Run != run {
		t.Errorf("%s: parking VM %v, %v", what, parking, err)
		return
	}
	x.wantKept(t, what, x.replacement(run))
}

func notBackedUp(options []string) []string {
	out := slices.DeleteFunc(slices.Clone(options), func(o string) bool { return strings.HasPrefix(o, "backup=") })
	out = append(out, "backup=0")
	slices.Sort(out)
	return out
}

func values(form ...string) map[string]string {
	out := map[string]string{}
	for _, f := range form {
		key, value, _ := strings.Cut(f, "=")
		out[key] = value
	}
	delete(out, "vmid")
	return out
}

func (s *server) read(id int) cluster.VM {
	s.t.Helper()
	vm := must.Get(s.client.VM(s.t.Context(), cluster.VMID(id)))(s.t)
	return vm
}

// TestClientErrors: recast's client recognizes Proxmox's refusals.
func TestClientErrors(t *testing.T) {
	story(t, "a VM that there is not", 0, func(t *testing.T, s *server) {
		must.FailIs(t, must.Err(s.client.VM(t.Context(), cluster.VMID(s.freeID()))), cluster.ErrNotFound)
	})
	story(t, "a VMID that is taken", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		wantError(t, cluster.ErrExists, s.client.CreateVM(t.Context(), s.place.node, cluster.VMID(id), values(marked(id)...)))
	})
	story(t, "a configuration that is another one", 0, func(t *testing.T, s *server) {
		id, other := s.newVM("scsi0="+s.place.storage+":1"), s.newVM()
		vm := s.read(id)
		vm.Digest = strings.Repeat("0", 40)
		for name, err := range map[string]error{
			"at once":     s.client.SetConfig(t.Context(), vm, map[string]string{"onboot": "1"}, nil),
			"by a worker": s.client.SetConfig(t.Context(), vm, map[string]string{"ide2": "none,media=cdrom"}, nil),
			"free":        s.client.FreeDisk(t.Context(), vm, "scsi0"),
			"move":        s.client.MoveDisk(t.Context(), vm, "scsi0", cluster.VMID(other), "scsi0"),
		} {
			must.Hold(t, errors.Is(err, cluster.ErrChanged), "%s: %v", name, err)
		}
	})
	story(t, "parameters, one by one", 0, func(t *testing.T, s *server) {
		s.wrong("nosuch")
		err := s.client.SetConfig(t.Context(), s.read(s.newVM()), map[string]string{"nosuch": "1"}, nil)
		e, ok := errors.AsType[*api.Error](err)
		must.Hold(t, ok && e.Status == http.StatusBadRequest && e.Params["nosuch"] == unknown &&
			strings.HasPrefix(e.Reason+e.Message, "Parameter verification failed."), "%+v", err)
	})
	story(t, "a task that fails, with its log", 0, func(t *testing.T, s *server) {
		id := s.freeID()
		volid := s.place.isoStorage + ":iso/recast-contract-nosuch.iso"
		err := s.client.CreateVM(t.Context(), s.place.node, cluster.VMID(id), values(marked(id, "ide2="+volid+",media=cdrom")...))
		e, ok := errors.AsType[*api.TaskError](err)
		must.Hold(t, ok && e.UPID.Type == "qmcreate" && e.UPID.ID == itoa(id) &&
			strings.Contains(e.Exit, "volume '"+volid+"' does not exist"), "%v", err)
	})
}

// TestClientIsNotLetIn: recast's client reports a failed authentication without an additional delay.
func TestClientIsNotLetIn(t *testing.T) {
	story(t, "with a wrong secret", 0, func(t *testing.T, s *server) {
		id, _, _ := strings.Cut(s.place.token, "=")
		o := s.trusting()
		o.Token = cluster.Secret(id + "=" + secret[:35] + "f")
		began := time.Now()
		err := s.asking(o)
		e, ok := errors.AsType[*api.Error](err)
		took := time.Since(began)
		must.Hold(t, ok && e.Status == http.StatusUnauthorized && took >= 2900*time.Millisecond && took <= 6*time.Second, "%v after %v", err, took)
	})
	story(t, "by a certificate that is not the pinned one", 0, func(t *testing.T, s *server) {
		o := s.trusting()
		o.Fingerprint = strings.Repeat("AB:", 31) + "AB"
		_, ok := errors.AsType[*api.FingerprintError](s.asking(o))
		must.Hold(t, ok, "it was let in")
	})
}

// trusting is a client's options to reach and trust the server.
func (s *server) trusting() api.Options {
	o := api.Options{Endpoints: []string{s.place.endpoint}, Token: cluster.Secret(s.place.token), Fingerprint: os.Getenv("PVE_FINGERPRINT")}
	if s.sim != nil {
		o.Fingerprint, o.RootCAs, o.Dial = "", s.http.Transport.(*http.Transport).TLSClientConfig.RootCAs, s.sim.network.Dialer().DialContext
	}
	return o
}

func (s *server) asking(o api.Options) error {
	s.t.Helper()
	_, err := s.connect(o).Quorate(s.t.Context())
	return err
}

type change struct {
	prepare func(s *server) (id int)
	do      func(s *server, c *pve.Client, id int) error
	done    func(s *server, id int) (got any)
	want    any
	again   bool // it may be retried
}

func changes() map[string]change {
	to := 0 // the VM that gets the disk
	disk := func(s *server) int { return s.newVM("scsi1=" + s.place.storage + ":1,serial=a") }
	return map[string]change{
		"create": {
			prepare: (*server).freeID,
			do: func(s *server, c *pve.Client, id int) error {
				return c.CreateVM(s.t.Context(), s.place.node, cluster.VMID(id), values(marked(id, "tags=b;a", "scsi1="+s.place.storage+":1,serial=a,discard=on")...))
			},
			done: func(s *server, id int) any { return strings.Contains(s.config(id)["scsi1"], "serial=a") }, want: true, again: true,
		},
		"set": {
			prepare: func(s *server) int { return s.newVM("agent=1") },
			do: func(s *server, c *pve.Client, id int) error {
				return c.SetConfig(s.t.Context(), s.read(id), map[string]string{"onboot": "1", "description": marker + "\nchanged\n"}, []string{"agent"})
			},
			done: func(s *server, id int) any { return s.config(id)["onboot"] }, want: "1", again: true,
		},
		"set a drive": {
			prepare: disk,
			do: func(s *server, c *pve.Client, id int) error {
				return c.SetConfig(s.t.Context(), s.read(id), map[string]string{"ide2": "none,media=cdrom", "scsi2": s.place.storage + ":1,serial=b,discard=on"}, nil)
			},
			done: func(s *server, id int) any { return len(s.volumes(s.place.storage, id)) }, want: 2, again: true,
		},
		"free a disk": {
			prepare: disk,
			do:      func(s *server, c *pve.Client, id int) error { return c.FreeDisk(s.t.Context(), s.read(id), "scsi1") },
			done:    func(s *server, id int) any { return len(s.volumes(s.place.storage, id)) }, want: 0, again: true,
		},
		"free a detached disk": {
			prepare: func(s *server) int {
				id := disk(s)
				s.put(s.vm(id, "config"), "delete=scsi1")
				return id
			},
			do:   func(s *server, c *pve.Client, id int) error { return c.FreeDisk(s.t.Context(), s.read(id), "unused0") },
			done: func(s *server, id int) any { return len(s.volumes(s.place.storage, id)) }, want: 0, again: true,
		},
		"move a disk": {
			prepare: func(s *server) int {
				to = s.newVM()
				return disk(s)
			},
			do: func(s *server, c *pve.Client, id int) error {
				return c.MoveDisk(s.t.Context(), s.read(id), "scsi1", cluster.VMID(to), "scsi4")
			},
			done: func(s *server, _ int) any { return strings.Contains(s.config(to)["scsi4"], "serial=a") }, want: true,
		},
		"delete": {
			prepare: disk,
			do:      func(s *server, c *pve.Client, id int) error { return c.DeleteVM(s.t.Context(), s.read(id)) },
			done:    func(s *server, id int) any { return len(s.volumes(s.place.storage, id)) }, want: 0,
		},
		"start": {
			prepare: func(s *server) int { return s.newVM() },
			do:      func(s *server, c *pve.Client, id int) error { return c.Start(s.t.Context(), s.read(id)) },
			done: func(s *server, id int) any {
				return object(s.t, s.get(s.vm(id, "status/current")))["status"]
			},
			want: "running",
		},
	}
}

// TestClientLosesAnswers: every answer to a change by recast's client is lost: the client
// detects that the change was made.
func TestClientLosesAnswers(t *testing.T) {
	for name, test := range changes() {
		story(t, name, 0, func(t *testing.T, s *server) {
			id := test.prepare(s)
			px, lost := s.losing(false)
			must.Do(t, test.do(s, px, id))
			same(t, test.want, test.done(s, id))
			same(t, int32(1), lost.Load())
		})
	}
}

// TestClientLosesChanges: a change does not arrive. One with a digest, or for a new VMID,
// is retried; for any other the result is an error that says that the outcome is unknown.
func TestClientLosesChanges(t *testing.T) {
	for _, name := range []string{"create", "set a drive", "delete"} {
		test := changes()[name]
		story(t, name, 0, func(t *testing.T, s *server) {
			id := test.prepare(s)
			px, _ := s.losing(true)
			err := test.do(s, px, id)
			must.Hold(t, test.again == (err == nil) && !test.again == errors.Is(err, cluster.ErrLostAnswer), "error is %v", err)
			got := test.done(s, id)
			must.Hold(t, cmp.Equal(test.want, got) == test.again, "%v; error %v", got, err)
		})
	}
}

// losing is a recast client that loses the first answer to a change; before it arrives, the change itself. The client
// sees no reason phrases, as behind proxies that use HTTP/2.
func (s *server) losing(before bool) (px *pve.Client, lost *atomic.Int32) {
	s.t.Helper()
	lost = new(atomic.Int32)
	o := s.trusting()
	o.Wrap = func(inner http.RoundTripper) http.RoundTripper {
		return trip(func(req *http.Request) (*http.Response, error) {
			loses := req.Method != http.MethodGet && lost.CompareAndSwap(0, 1)
			if loses && before {
				httptrace.ContextClientTrace(req.Context()).GotConn(httptrace.GotConnInfo{}) // it was on its way
				return nil, io.ErrUnexpectedEOF
			}
			resp, err := inner.RoundTrip(req)
			if err == nil && loses {
				_, err = io.Copy(io.Discard, resp.Body)
				return nil, errors.Join(io.ErrUnexpectedEOF, err, resp.Body.Close())
			}
			if err == nil {
				resp.Status = strconv.Itoa(resp.StatusCode)
			}
			return resp, err
		})
	}
	return s.connect(o), lost
}

type trip func(*http.Request) (*http.Response, error)

func (t trip) RoundTrip(req *http.Request) (*http.Response, error) { return t(req) }

// TestPermissions: /access/permissions, on which doctor relies.
func TestPermissions(t *testing.T) {
	story(t, "a path that does not exist has what comes from above", 0, func(t *testing.T, s *server) {
		id := s.freeID()
		for _, path := range []string{"/vms/" + itoa(id), "/storage/nosuch"} {
			answer := object(t, s.get("/access/permissions", "path="+path))
			held, there := answer[path]
			must.Be(t, len(answer) == 1 && there, "asked about %s: %v", path, answer)
			for privilege, propagates := range object(t, held) {
				p := text(propagates)
				must.Hold(t, p == "0" || p == "1", "%s at %s is %v, neither 0 nor 1", privilege, path, propagates)
			}
		}
	})
	story(t, "a token with nothing is shown that, and no one else's", poorToken, func(t *testing.T, s *server) {
		for form, want := range map[string]any{"path=/vms": map[string]any{"/vms": map[string]any{}}, "": map[string]any{}} {
			r := s.poor(http.MethodGet, "/access/permissions?"+form)
			same(t, http.StatusOK, r.Code)
			same(t, want, r.Data)
		}
	})
	story(t, "the state of the cluster is not shown without Sys.Audit", poorToken, func(t *testing.T, s *server) {
		at := "/nodes/" + s.place.node
		for path, want := range map[string]int{
			"/cluster/status": http.StatusForbidden, at + "/time": http.StatusForbidden,
			"/version": http.StatusOK, "/nodes": http.StatusOK, at + "/version": http.StatusOK, // everybody may see them
		} {
			r := s.poor(http.MethodGet, path)
			must.Hold(t, r.Code == want, "GET %s: %s", path, r.Status)
		}
	})
}

// TestUserPermissions: the permissions of a token's user, which are shown with Sys.Audit on /access.
func TestUserPermissions(t *testing.T) {
	run(t, 0, func(t *testing.T, s *server) {
		audits := slices.Contains(s.privileges("/access"), "Sys.Audit")
		standing := must.Get(s.client.Standing(t.Context(), []string{"/vms"}))(t)
		at := standing["/vms"]
		same(t, audits, at.Whole)
		for privilege := range at.Token {
			_, has := at.User[privilege]
			must.Hold(t, !at.Whole || has, "the token has %s on /vms, its user has not", privilege)
		}
	})
}

// TestDoctor is the part of recast doctor that needs no Talos, for the recreation of a VM of these tests.
func TestDoctor(t *testing.T) {
	story(t, "a token with nothing lacks all of it", poorToken, func(t *testing.T, s *server) {
		needs := survey.NeedsToRoll([]string{s.place.isoStorage}, []string{s.place.node}, cluster.Recreate)
		missing := must.Get(needs.Missing(t.Context(), s.poorClient()))(t)
		same(t, len(needs), len(missing.Lacks))
	})
	story(t, "what a recreate takes is compared with what the token has", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0="+s.place.storage+":1,serial=system", "scsi1="+s.place.storage+":1,serial=data", "net0=virtio,bridge="+s.place.bridge)
		res := s.doctor(id)
		for _, n := range res.Needs {
			has := slices.Contains(s.privileges(n.Path), n.Privilege)
			if n.Granted && !has || !n.Granted && has && n.Path != "/vms" && n.Path != "/" { // there it must also propagate
				t.Errorf("%s on %s: granted %v, has %v", n.Privilege, n.Path, n.Granted, has)
			}
		}
		for _, want := range []string{
			"Sys.Audit on /", "VM.Allocate on /vms", "VM.Config.Disk on /vms", "Datastore.AllocateSpace on /storage/" + s.place.storage,
			"Datastore.AllocateTemplate on /storage/" + s.place.isoStorage, "SDN.Use on /sdn/zones/localnetwork/" + s.place.bridge,
		} {
			must.Hold(t, slices.ContainsFunc(res.Needs, func(n checkup.NeedStatus) bool { return n.Privilege+" on "+n.Path == want }), "%s is not said to be needed", want)
		}
		major, _, _ := strings.Cut(res.Version, ".")
		must.Hold(t, major == "8" || major == "9", "version %q", res.Version)
	})
	story(t, "nothing but what the token lacks is in the way", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0="+s.place.storage+":1,serial=system", "net0=virtio,bridge="+s.place.bridge)
		for _, c := range s.doctor(id).Checks {
			must.Hold(t, c.State != checkup.Problem || strings.HasPrefix(c.What, "clock of ") || c.Group != checkup.GroupProxmox && c.Group != checkup.GroupStorage, "%s: %s: %s", c.Group, c.What, c.Seen)
		}
	})
	story(t, "a VM's protection is not in the way", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0="+s.place.storage+":1,serial=system", "protection=1")
		against := s.doctor(id).Nodes[0].Against[cluster.Recreate]
		must.Hold(t, !slices.ContainsFunc(against, func(r string) bool { return strings.Contains(r, "protect") }),
			"against recreate: %q", against)
	})
}

func (s *server) doctor(id int) checkup.Result {
	s.t.Helper()
	c := &config.Config{
		Cluster: "contract", Dir: s.t.TempDir(), Talos: config.Talos{Version: "v1.13.9"},
		Proxmox: config.Proxmox{VMIDs: config.VMIDRange{First: s.place.last, Last: s.place.last}},
		Nodes:   []config.Node{{Name: "n1", Schematic: "default", VMID: id, Strategy: "recreate"}},
	}
	c.Images.ISO = config.ISO{Storage: []string{s.place.isoStorage}, Delivery: "auto"}
	c.Roll.MaxUnavailable.PerHost = 1
	absent := fault.Configf("there is none here")
	return checkup.Run(s.t.Context(), pipeline.Project{Config: c}, checkup.Sources{
		Proxmox: s.client, Endpoints: []checkup.Endpoint{{URL: s.place.endpoint, Hosts: s.client.Hosts}},
		ErrTalos: absent, ErrKube: absent, ErrImages: absent,
	})
}

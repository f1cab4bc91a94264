package exchange

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/sim/must"
)

type kv = map[string]string

// guarded is an exchange of VM 101, whose disks are parked on VM 9900.
type guarded struct {
	*clustertest.Proxmox
	r    *Replace
	held parking.ParkedDisk
	rec  parking.Record
}

var wall = cluster.FirewallConfig{Options: cluster.FirewallEntry{"enable": "1"}}

func newGuarded() *guarded {
	vm := cluster.VM{ID: 101, Name: "wk1", Host: "pve1", Config: kv{"smbios1": "uuid=u", "description": "recast: run=r1 build=b", "scsi0": "fast:vm-101-disk-0", "scsi1": "fast:vm-101-disk-1,serial=data"}}
	disks := []parking.ParkedDisk{
		{Key: "scsi0", ParkKey: "scsi30", Volid: "fast:vm-101-disk-0", System: true},
		{Key: "scsi1", ParkKey: "scsi1", Volid: "fast:vm-101-disk-1", Options: "serial=data"},
	}
	g := &guarded{
		Proxmox: clustertest.NewProxmox(vm, cluster.VM{ID: 9900, Name: "recast-parking-wk1", Host: "pve1", Config: kv{"scsi30": "fast:vm-9900-disk-0,backup=0", "scsi1": "fast:vm-9900-disk-1,serial=data,backup=0", "protection": "1"}}),
		rec:     parking.Record{Cluster: "c1", Node: "wk1", Run: "r1", VMID: 101, Open: true, Strategy: cluster.Recreate, Stage: parking.StageServes, Disks: disks, SpareKey: "scsi29"},
	}
	g.Volumes = []string{"fast:vm-9900-disk-0", "fast:vm-9900-disk-1"}
	g.Set(101, kv{"scsi0": "", "scsi1": ""})
	g.held = held
	g.r = &Replace{Proxmox: g, Strategy: cluster.Recreate, Run: "r1", Build: "b", VM: vm, Parking: 9900, Disks: disks, Serial: "blank", Late: new(Late)}
	g.r.ISO = func(context.Context) (string, error) { return "isos:iso/x.iso", g.Call("asked") }
	return g
}

// recorded writes the record.
func (g *guarded) recorded() {
	description, err := g.rec.Description()
	if err != nil {
		panic(err)
	}
	if g.Guests[9900].Config["description"] == "" {
		g.Set(9900, kv{"description": description})
	}
}

// on changes settings of a VM.
func on(id cluster.VMID, config kv) func(*guarded) { return func(g *guarded) { g.Set(id, config) } }

func vm(change func(*cluster.VM)) func(*guarded) { return func(g *guarded) { g.Change(101, change) } }

func park(change func(*cluster.VM)) func(*guarded) {
	return func(g *guarded) { g.Change(9900, change) }
}

// late calls do after that many changes.
func late(changes int, do func(*guarded)) func(*guarded) {
	return func(g *guarded) {
		g.At = func() {
			if len(g.Done) == changes {
				g.At = nil
				do(g)
			}
		}
	}
}

func all(changes ...func(*guarded)) func(*guarded) {
	return func(g *guarded) {
		for _, change := range changes {
			change(g)
		}
	}
}

// call is an operation on an exchange, and the state that it starts from.
type call struct {
	do    func(g *guarded, ctx context.Context) error
	ready func(*guarded)
	done  string // what it does if nothing is in the way
}

const intended = "set 9900 map[description:record protection:1] delete []\n"

var (
	running   = func(vm *cluster.VM) { vm.Running = true }
	elsewhere = func(vm *cluster.VM) { vm.Host = "pve2" }
	deleted   = func(g *guarded) { delete(g.Guests, 101) }
	other     = on(101, kv{"smbios1": "uuid=other"})
	noQuorum  = func(g *guarded) { g.NoQuorum = true }
	was       = func(config kv) func(*guarded) { return func(g *guarded) { maps.Copy(g.r.VM.Config, config) } }
	bad       = kv{"scsi5": ","} // not a valid drive
	here      = all(on(101, kv{"scsi0": "fast:vm-101-disk-0", "scsi1": "fast:vm-101-disk-1,serial=data"}), on(9900, kv{"scsi30": "", "scsi1": ""}))
	parked    = all(on(101, kv{"scsi0": "", "scsi1": ""}), on(9900, kv{"scsi30": "fast:vm-9900-disk-0,backup=0", "scsi1": "fast:vm-9900-disk-1,serial=data,backup=0"}))
	held      = parking.ParkedDisk{Key: "scsi2", Volid: "fast:vm-200-disk-0", Holder: 200}
	intent    = parking.Intent{From: 101, Key: "scsi1", Volid: "fast:vm-101-disk-1", To: 9900, ToKey: "scsi1", Options: "serial=data,backup=0"}
	blank     = on(101, kv{"scsi0": "fast:vm-101-disk-5,serial=blank"})
	reimage   = func(g *guarded) { g.r.Strategy = cluster.Reimage }
	putBack   = func(g *guarded) { g.r.Strategy = cluster.PutBack }
	holding   = func(g *guarded) { g.r.Disks = append(g.r.Disks, held) }
	// unusedTwice is an unused volume, and one that was detached from the parking VM.
	unusedTwice = func(g *guarded) {
		g.r.Disks = append(g.r.Disks, parking.ParkedDisk{Key: "unused0", ParkKey: "unused0", Volid: "fast:vm-101-disk-8"})
		g.Set(101, kv{"unused0": "fast:vm-101-disk-8"})
		g.Set(9900, kv{"unused0": "fast:vm-9900-disk-8"})
	}
	walled = func(g *guarded) { g.r.Firewall, g.Firewalls[101], g.Firewalls[9900] = wall.Sum(), wall, wall }
	begun  = func(g *guarded) { g.rec.Intent = &intent }
	record = func(change func(*parking.Record)) func(*guarded) { return func(g *guarded) { change(&g.rec) } }
	note   = func(text string) func(*guarded) { return on(9900, kv{"description": text}) }
	kept   = KeptRef{Cluster: "c1", Node: "wk1", Parking: 9900, Key: "scsi20", Run: "r0", Volid: "fast:vm-9900-disk-7"}
	// cutOff is a hand-over of scsi1 that was interrupted after the volume was renamed.
	cutOff = all(here, begun, func(g *guarded) { g.Volumes = []string{"fast:vm-101-disk-0", "fast:vm-9900-disk-1"} })
)

func said(why string, err error) error {
	if err == nil && why != "" {
		return errors.New("said " + why)
	}
	return err
}

// calls are all operations that destroy or create something, or give a disk to another VM.
var calls = map[string]call{
	"delete":        {func(g *guarded, ctx context.Context) error { return g.r.deleteSame(ctx) }, nil, "delete 101"},
	"delete late":   {func(g *guarded, ctx context.Context) error { return g.r.deleteVM(ctx) }, nil, intended + "delete 101\n" + intended},
	"delete all":    {func(g *guarded, ctx context.Context) error { return g.r.deleteSame(ctx) }, walled, "delete 101"},
	"emptied":       {func(g *guarded, ctx context.Context) error { return said(g.r.emptied(ctx)) }, all(here, on(101, kv{"description": ""})), ""},
	"attach":        {func(g *guarded, ctx context.Context) error { return g.r.attach(ctx, g.r.Disks[1]) }, nil, intended + "move scsi1 of 9900 to scsi1 of 101\nset 101 map[scsi1:fast:vm-101-moved-disk-1,serial=data] delete []"},
	"attach again":  {func(g *guarded, ctx context.Context) error { return g.r.attach(ctx, g.r.Disks[1]) }, all(on(101, kv{"scsi1": "fast:vm-101-disk-7,backup=0"}), on(9900, kv{"scsi1": ""})), "set 101 map[scsi1:fast:vm-101-disk-7,serial=data] delete []"},
	"attach held":   {func(g *guarded, ctx context.Context) error { return g.r.attach(ctx, held) }, nil, "set 101 map[scsi2:fast:vm-200-disk-0] delete []"},
	"attached":      {func(g *guarded, ctx context.Context) error { return said(g.r.attached(ctx, g.r.Disks[1])) }, nil, ""},
	"attached held": {func(g *guarded, ctx context.Context) error { return said(g.r.attached(ctx, held)) }, nil, ""},
	"park":          {func(g *guarded, ctx context.Context) error { return g.r.park(ctx, g.r.Disks[1]) }, here, intended + "move scsi1 of 101 to scsi1 of 9900\nset 9900 map[scsi1:fast:vm-9900-moved-disk-1,serial=data,backup=0] delete []"},
	"park again":    {func(g *guarded, ctx context.Context) error { return g.r.park(ctx, g.r.Disks[1]) }, nil, ""},
	"park system":   {func(g *guarded, ctx context.Context) error { return g.r.park(ctx, g.r.Disks[0]) }, all(here, asks), intended + "move scsi0 of 101 to scsi30 of 9900\nset 9900 map[scsi30:fast:vm-9900-moved-disk-0,backup=0] delete []"},
	"detach":        {func(g *guarded, ctx context.Context) error { return g.r.park(ctx, g.held) }, on(101, kv{"scsi2": "fast:vm-200-disk-0"}), "set 101 map[] delete [scsi2]"},
	"spare":         {func(g *guarded, ctx context.Context) error { _, _, err := g.r.newToPark(ctx); return err }, blank, ""},
	"park new":      {func(g *guarded, ctx context.Context) error { return g.r.ParkNew(ctx) }, all(blank, asks), intended + intended + "move scsi0 of 101 to scsi29 of 9900\nset 9900 map[scsi29:fast:vm-9900-moved-disk-5,serial=blank,backup=0] delete []"},
	"blank":         {func(g *guarded, ctx context.Context) error { return g.r.GiveSystem(ctx) }, reimage, "set 101 map[ide2:isos:iso/x.iso,media=cdrom onboot:0] delete []\nset 101 map[boot:order=scsi0;ide2 description:recast: run=r1 build=b scsi0:fast:0,serial=blank,wwn=" + cluster.WWN("blank") + "] delete []"},
	"prepare": {
		func(g *guarded, ctx context.Context) error { return g.r.prepareDisk(ctx) }, preparing,
		intended + "set 9900 map[scsi29:fast:0,import-from=isos:import/x.qcow2,ssd=1,serial=blank,wwn=" + cluster.WWN("blank") + ",backup=0] delete []\ngrow scsi29 of 9900 to 10737418240",
	},
	"possible": {func(g *guarded, ctx context.Context) error { return g.r.RequirePossible(ctx) }, preparing, ""},
	"create prepared": {func(g *guarded, ctx context.Context) error {
		err := g.r.createVM(ctx)
		if config := g.Guests[101].Config; err == nil && (config["ide2"] != "none,media=cdrom" || config["scsi0"] != "") {
			err = errors.New("it has another drive than its empty CD drive")
		}
		return err
	}, all(preparing, deleted, was(kv{"ide2": "isos:iso/mine.iso,media=cdrom"})), "create 101"},
	"prepared": {func(g *guarded, ctx context.Context) error { return said(g.r.isPrepared(ctx)) }, preparing, ""},
	"give": {
		func(g *guarded, ctx context.Context) error { return g.r.GiveSystem(ctx) }, prepared,
		intended + "move scsi29 of 9900 to scsi0 of 101\n" +
			"set 101 map[boot:order=scsi0 protection:1 scsi0:fast:vm-101-moved-disk-9,ssd=1,serial=blank] delete []",
	},
	"give, reimage": {
		func(g *guarded, ctx context.Context) error { return g.r.GiveSystem(ctx) }, all(prepared, reimage),
		marked + "\n" + intended + "move scsi29 of 9900 to scsi0 of 101\n" +
			"set 101 map[boot:order=scsi0 scsi0:fast:vm-101-moved-disk-9,ssd=1,serial=blank] delete []",
	},
	"given":   {func(g *guarded, ctx context.Context) error { return said(g.r.systemGiven(ctx)) }, prepared, ""},
	"has":     {func(g *guarded, ctx context.Context) error { return said(g.r.hasSystem(ctx)) }, prepared, ""},
	"restore": {func(g *guarded, ctx context.Context) error { return g.r.restoreSystem(ctx) }, restoring, "set 101 map[description:recast: run=r1 build=b onboot:0] delete []\n" + intended + "move scsi20 of 9900 to scsi0 of 101\nset 101 map[boot:order=scsi0] delete []"},
	"create":  {func(g *guarded, ctx context.Context) error { return g.r.createVM(ctx) }, deleted, "create 101"},
	"create new": {func(g *guarded, ctx context.Context) error {
		err := g.r.createVM(ctx)
		if err == nil && g.Guests[101].Config["efidisk0"] == "" {
			err = errors.New("it has no place for its EFI variables")
		}
		return err
	}, all(deleted, was(kv{"bios": "ovmf"}), func(g *guarded) { g.r.Strategy = cluster.Create }), "create 101"},
	"create old":               {func(g *guarded, ctx context.Context) error { return g.r.createOld(ctx) }, deleted, "create 101"},
	"keep off":                 {func(g *guarded, ctx context.Context) error { _, err := g.r.KeepOff(ctx); return err }, all(on(101, kv{"onboot": "1"}), func(g *guarded) { g.HA = &cluster.HAResource{} }), intended + "remove HA of 101\n" + intended + "set 101 map[onboot:0] delete []"},
	"stands still":             {func(g *guarded, ctx context.Context) error { return said(g.r.StandsStill(ctx)) }, all(here, vm(running), on(101, kv{"scsi1": ""})), ""},
	"compare":                  {func(g *guarded, ctx context.Context) error { return g.r.compareDisks(ctx) }, all(here, holder), ""},
	"alone":                    {alone, all(here, holder), ""},
	"has disk":                 {func(g *guarded, ctx context.Context) error { return said(g.r.hasSystem(ctx)) }, nil, ""},
	"kept":                     {func(g *guarded, ctx context.Context) error { return said(g.r.kept(ctx)) }, nil, ""},
	"give up":                  {func(g *guarded, ctx context.Context) error { return g.r.giveUp(ctx) }, nil, strings.TrimSpace(intended)},
	"firewall":                 {func(g *guarded, ctx context.Context) error { return g.r.KeepFirewall(ctx) }, all(walled, func(g *guarded) { delete(g.Firewalls, 9900) }), intended + "firewall 9900\n" + intended},
	"firewall of a whole VM":   {func(g *guarded, ctx context.Context) error { return g.r.giveFirewall(ctx) }, all(walled, func(g *guarded) { delete(g.Firewalls, 9900) }), ""},
	"reshape":                  {reshapes, shaped, reshaped},
	"shape new":                {reshapes, all(shaped, func(g *guarded) { g.r.Strategy = cluster.Create }), reshaped + "\ngrow scsi1 of 101 to 20G"},
	"migrate":                  {migrates, moving, "migrate 101 to pve2"},
	"migrated":                 {func(g *guarded, ctx context.Context) error { return said(g.r.migrated(ctx, "pve2", false)) }, moving, ""},
	"has shape":                {func(g *guarded, ctx context.Context) error { return said(g.r.reshaped(ctx)) }, shaped, ""},
	"free":                     {free, keeping, "set 9900 map[protection:0] delete []\nfree fast:vm-9900-disk-7,backup=0 of 9900\n" + intended},
	"forget":                   {free, all(keeping, on(9900, kv{"scsi20": ""})), strings.TrimSpace(intended)},
	"open":                     {open, here, "create 9901"},
	"open again":               {open, all(here, earlier), strings.TrimSpace(intended)},
	"settle without the spare": {func(g *guarded, ctx context.Context) error { return g.r.settle(ctx) }, spareGone(parking.Intent{From: 101, Key: "scsi0", To: 9900, ToKey: "scsi29"}), ""},
	"finish hand-over": {
		func(g *guarded, ctx context.Context) error { return g.r.mover().once(ctx, intent, nil) }, cutOff,
		"set 9900 map[scsi1:fast:vm-9900-disk-1,serial=data,backup=0] delete []\nset 101 map[] delete [scsi1]",
	},
	"finish hand-over, protected": {
		func(g *guarded, ctx context.Context) error { return g.r.mover().once(ctx, intent, nil) }, all(cutOff, on(101, kv{"protection": "1"})),
		"set 9900 map[scsi1:fast:vm-9900-disk-1,serial=data,backup=0] delete []\nset 101 map[protection:0] delete []\nset 101 map[] delete [scsi1]",
	},
	"hand over what was moved": {
		func(g *guarded, ctx context.Context) error {
			return g.r.mover().once(ctx, parking.Intent{From: 101, Key: "scsi1", To: 9900, ToKey: "scsi1"}, nil)
		},
		all(here, begun, volumes("slow:vm-101-disk-0"), on(101, kv{"scsi1": "slow:vm-101-disk-0,serial=data"})),
		intended + "move scsi1 of 101 to scsi1 of 9900",
	},
	"hand over after another": {
		func(g *guarded, ctx context.Context) error { return g.r.mover().once(ctx, systemIntent, nil) }, cutOff,
		"set 9900 map[scsi1:fast:vm-9900-disk-1,serial=data,backup=0] delete []\nset 101 map[] delete [scsi1]\n" + intended + "move scsi0 of 101 to scsi30 of 9900",
	},
}

// TestReplaceCalls: if nothing is in the way, each call does its work; if any call to Proxmox fails, so does it.
func TestReplaceCalls(t *testing.T) {
	t.Parallel()
	for name, c := range calls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, err := c.run(t, nil, clustertest.Which{})
			got := strings.Join(g.Done, "\n")
			must.Be(t, err == nil && got == strings.TrimSpace(c.done), "%v, done:\n%s\nwant:\n%s", err, got, c.done)
			for at := range len(g.Made) {
				if failed, err := c.run(t, nil, g.Which(at)); !errors.Is(err, clustertest.ErrBroken) || len(failed.Done) > len(g.Done) {
					t.Errorf("call %d failed: %v, done:\n%s", at+1, err, strings.Join(failed.Done, "\n"))
				}
			}
		})
	}
}

// run makes the call, after change if it is not nil. The call to Proxmox that fails names fails.
func (c call) run(t *testing.T, change func(*guarded), fails clustertest.Which) (*guarded, error) {
	g := newGuarded()
	for _, change := range []func(*guarded){c.ready, change} {
		if change != nil {
			change(g)
		}
	}
	g.recorded()
	g.Fails = fails
	return g, c.do(g, t.Context())
}

// guard is a call after a change: it is refused, or it is not.
type guard struct {
	do     string
	change func(*guarded)
	err    string // "": it is not refused
	done   string
}

// TestReplaceGuards: recast checks what it destroys or hands over right before it does so.
func TestReplaceGuards(t *testing.T) {
	t.Parallel()
	for _, row := range slices.Concat(deletionRows(), diskRows(), systemRows(), recordRows(), handOverRows(), preparedRows(), keptRows(), openRows(), shapeRows(), moveRows()) {
		t.Run(row.do+": "+cmp.Or(row.err, "not refused"), func(t *testing.T) {
			t.Parallel()
			g, err := calls[row.do].run(t, row.change, clustertest.Which{})
			must.Equal(t, "done", strings.TrimSpace(row.done), strings.Join(g.Done, "\n"))
			clustertest.CheckErr(t, err, row.err, "there is no", "is not a drive", "it has data", "Proxmox reported it moved", "moved back", "system disk of")
		})
	}
}

const reshaped = "set 101 map[description:recast: run=r1 build=b memory:8192] delete []"

func reshapes(g *guarded, ctx context.Context) error { return g.r.reshape(ctx) }

func migrates(g *guarded, ctx context.Context) error { return g.r.migrate(ctx, "pve2") }

// moving has disks that all hosts see.
func moving(g *guarded) {
	here(g)
	g.SharedDisks, g.r.Strategy, g.r.Disks = true, cluster.Reshape, nil
}

// shaped wants more memory and a larger disk for the VM.
func shaped(g *guarded) {
	here(g)
	g.r.Strategy = cluster.Reshape
	g.Set(101, kv{"memory": "4096", "scsi0": "fast:vm-101-disk-0,size=10G", "scsi1": "fast:vm-101-disk-1,serial=data,size=10G"})
	g.r.Shape = cluster.Shape{Settings: kv{"memory": "8192"}, Disks: []cluster.ShapeDisk{{Key: "scsi1", SizeGiB: 20}}}
}

func hasData(g *guarded) { g.r.Asks = func(context.Context) error { return errors.New("it has data") } }

func asks(g *guarded) { g.r.Asks = func(context.Context) error { return g.Call("asked") } }

// preparing is an exchange whose new system disk is to be made from a disk image.
func preparing(g *guarded) {
	here(g)
	g.rec.Prepared, g.Imports = "x.qcow2", "2G"
	g.r.Prepared, g.r.DiskBytes = "x.qcow2", 2<<30
	g.r.VM.Config["scsi0"] = "fast:vm-101-disk-0,ssd=1,size=10G"
	g.r.VM.Config["ide2"] = "none,media=cdrom"
	g.r.Image = func(context.Context) (string, error) { return "isos:import/x.qcow2", g.Call("asked") }
}

// prepared has that disk on the parking VM, where the old one is, too.
func prepared(g *guarded) {
	preparing(g)
	parked(g)
	g.rec.Kept = []parking.KeptDisk{{Key: "scsi29", Run: "r1", Slot: "scsi0", Options: "ssd=1,serial=blank", GivenUp: true}}
	g.Set(9900, kv{"scsi29": "fast:vm-9900-disk-9,ssd=1,serial=blank,backup=0,size=10G"})
}

// restoring is a rollback to a kept disk.
func restoring(g *guarded) {
	g.r.Strategy, g.r.Restore = cluster.Rollback, &parking.KeptDisk{Key: "scsi20", Run: "r0", Slot: "scsi0"}
	g.Set(9900, kv{"scsi20": "fast:vm-9900-disk-7"})
}

// holder attaches a disk of VM 200 to the VM, as before the exchange.
func holder(g *guarded) {
	g.Guests[200] = cluster.VM{ID: 200, Name: "holder", Host: "pve1", Config: kv{"scsi0": held.Volid}}
	g.r.Disks = append(g.r.Disks, held)
	g.r.VM.Config["scsi2"] = held.Volid
	g.Set(101, kv{"scsi2": held.Volid})
}

// keeping gives the parking VM an old system disk and a closed record.
func keeping(g *guarded) {
	g.rec.Open, g.rec.Kept = false, []parking.KeptDisk{{Key: "scsi20", Run: "r0", Slot: "scsi0"}}
	g.Set(9900, kv{"scsi20": kept.Volid + ",backup=0"})
}

func free(g *guarded, ctx context.Context) error {
	return kept.Free(ctx, g, func(context.Context) ([]cluster.Use, error) {
		vms, err := g.VMs(ctx)
		return parking.UsesOf(vms), err
	})
}

// alone is asked right before the VM is started.
func alone(g *guarded, ctx context.Context) error {
	vm, err := g.VM(ctx, 101)
	if err != nil {
		return err
	}
	others, err := ReadOthers(ctx, g, 101)
	if err != nil {
		return err
	}
	return others.RequireAlone(ctx, g, vm)
}

// systemIntent is the next hand-over after that of scsi1.
var systemIntent = parking.Intent{From: 101, Key: "scsi0", Volid: "fast:vm-101-disk-0", To: 9900, ToKey: "scsi30"}

// volumes sets what volumes the storages have.
func volumes(volids ...string) func(*guarded) { return func(g *guarded) { g.Volumes = volids } }

// spareGone is a hand-over of a disk that no storage has any more.
func spareGone(in parking.Intent) func(*guarded) {
	in.Volid = "fast:vm-101-disk-5"
	return all(volumes(), record(func(rec *parking.Record) { rec.Intent = &in }))
}

// handOverRows are about an interrupted hand-over.
func handOverRows() []guard {
	const attached = "set 9900 map[scsi1:fast:vm-9900-disk-1,serial=data,backup=0] delete []"
	const movedAgain = intended + "move scsi1 of 101 to scsi1 of 9900"
	return []guard{
		{"finish hand-over", park(running), "was started by someone else", ""},
		{"finish hand-over", noQuorum, "has no quorum", attached},
		{"finish hand-over", volumes(), "has no volume that could be it", ""},
		{"finish hand-over", volumes("fast:vm-9900-disk-1", "fast:vm-9900-disk-2"), "2 volumes could be it", ""},
		{"finish hand-over", volumes("fast:vm-101-disk-1", "fast:vm-9900-disk-1"), "2 volumes could be it", ""},
		{"finish hand-over", volumes("fast:vm-101-disk-1"), "", movedAgain},
		{"finish hand-over", all(volumes("fast:vm-101-disk-8"), on(101, kv{"scsi1": "fast:vm-101-disk-8,serial=data"})), "not fast:vm-101-disk-1 as planned", ""},
		{"finish hand-over", all(volumes("fast:vm-101-disk-8"), on(101, kv{"scsi1": "fast:vm-101-disk-8,serial=other"})), "has no volume that could be it", ""},
		{"finish hand-over", record(func(rec *parking.Record) {
			rec.Intent = &parking.Intent{From: 101, Key: "scsi", To: 9900, ToKey: "scsi1", Volid: "x"}
		}), "is not a drive", ""},
		{"finish hand-over", on(101, kv{"scsi1": ""}), "", attached},
		{"finish hand-over", late(1, volumes("fast:vm-101-disk-1")), "", attached},
		{"finish hand-over", on(9900, kv{"scsi1": "fast:vm-9900-disk-1"}), "", "set 101 map[] delete [scsi1]"},
		{"finish hand-over", all(note("recast-record: {"), func(g *guarded) { g.FailAt = 3 }), "can't be read", ""},
		{"settle without the spare", volumes("fast:vm-9900-disk-7"), "", "set 9900 map[scsi29:fast:vm-9900-disk-7] delete []"},
		{"settle without the spare", on(101, kv{"scsi0": "fast:vm-101-disk-5"}), "has no volume that could be it", ""},
		{"settle without the spare", all(spareGone(systemIntent), on(9900, kv{"scsi30": ""})), "has no volume that could be it", ""},
		{"settle without the spare", spareGone(parking.Intent{From: 9900, Key: "scsi29", To: 101, ToKey: "scsi0"}), "has no volume that could be it", ""},
		{"settle without the spare", all(spareGone(parking.Intent{From: 9900, Key: "scsi29", To: 101, ToKey: "scsi0"}), putBack), "", ""},
		{"settle without the spare", all(spareGone(parking.Intent{From: 9900, Key: "scsi30", To: 101, ToKey: "scsi0"}), on(9900, kv{"scsi30": ""}), putBack), "has no volume that could be it", ""},
		{"hand over after another", noQuorum, "has no quorum", attached},
	}
}

const marked = "set 101 map[description:recast: run=r1 build=b ide2:none,media=cdrom onboot:0] delete []"

// preparedRows are about a system disk that is made from a disk image.
func preparedRows() []guard {
	const imported = intended + "set 9900 map[scsi29:fast:0,import-from=isos:import/x.qcow2,ssd=1,serial=blank,wwn=0x3ff71cf74abb3ccb,backup=0] delete []"
	size := func(size string) func(*guarded) { return func(g *guarded) { g.Imports = size } }
	return []guard{
		{"prepare", func(g *guarded) { g.r.DiskBytes = 11 << 30 }, "the disk in x.qcow2 has 11 GiB, and scsi0", ""},
		{"possible", func(g *guarded) {
			g.r.Image = func(context.Context) (string, error) { return "", errors.New("there is no image") }
		}, "there is no image", ""},
		{"possible", func(g *guarded) {
			g.r.Prepared, g.r.ISO = "", func(context.Context) (string, error) { return "", errors.New("there is no ISO") }
		}, "there is no ISO", ""},
		{"prepare", was(kv{"scsi0": ","}), "no volume in", ""},
		{"prepare", on(9900, kv{"scsi29": ","}), "no volume in", ""},
		{"prepare", noQuorum, "has no quorum", ""},
		{"prepare", size("1G"), "it was not imported whole", imported},
		{"prepare", size("10G"), "", imported},
		{"prepare", late(1, on(9900, kv{"scsi29": "fast:vm-9900-disk-9"})), "someone else put it there", intended},
		{"prepare", late(2, on(9900, kv{"scsi29": "fast:vm-7-disk-9,serial=blank"})), "Proxmox reported that it has made scsi29", imported},
		{"prepare", note("recast-record: {"), "can't be read", ""},
		{"prepare", on(9900, kv{"scsi29": "fast:vm-9900-disk-9,serial=blank,size=2G"}), "", "grow scsi29 of 9900 to 10737418240"},
		{
			"prepare", all(on(9900, kv{"scsi29": "fast:vm-9900-disk-9,serial=blank,size=2G"}), func(g *guarded) { g.Grown = true }),
			"", "grow scsi29 of 9900 to 10737418240\nset 9900 map[scsi29:fast:vm-9900-disk-9,serial=blank] delete []",
		},
		{"prepared", on(9900, kv{"scsi29": "fast:vm-9900-disk-9,serial=blank,size=1G"}), "", ""},
		{"prepared", record(func(rec *parking.Record) {
			rec.SpareKey, rec.Intent = "scsi29", &parking.Intent{From: 101, Key: "scsi29", To: 9900}
		}), "", ""},
		{"prepared", record(func(rec *parking.Record) {
			rec.SpareKey, rec.Intent = "scsi29", &parking.Intent{From: 9900, Key: "scsi1", To: 101}
		}), "", ""},
		{"prepared", record(func(rec *parking.Record) {
			rec.SpareKey, rec.Intent = "scsi29", &parking.Intent{From: 9900, Key: "scsi29", To: 101}
		}), "said it is on its way to VM 101", ""},
		{"prepare", on(9900, kv{"scsi29": "fast:vm-9900-disk-9,serial=blank,size=1G"}), "it was not imported whole", ""},
		{"prepared", on(9900, kv{"scsi29": "fast:vm-9900-disk-9,serial=blank,size=2G"}), "", ""},
		{"prepared", on(9900, kv{"scsi29": "fast:vm-9900-disk-9,serial=other,size=10G"}), "", ""},
		{"prepared", on(9900, kv{"scsi29": "fast:vm-9900-disk-9,serial=blank,size=10G"}), "said scsi29 of VM 9900", ""},
		{"prepared", on(101, kv{"scsi0": "fast:vm-101-disk-9,serial=blank"}), "said VM 101", ""},
		{"prepared", func(g *guarded) { g.r.Prepared = "" }, "said its new system disk is to be blank", ""},
		{"give", vm(running), "was started by someone else", ""},
		{"give", other, "is not the one that run r1 made or renewed", ""},
		{"give", deleted, "is not the one that run r1 made or renewed", ""},
		{"give", record(func(rec *parking.Record) { rec.Kept = nil }), "names no prepared system disk", ""},
		{"give", on(9900, kv{"scsi29": ""}), "has no scsi29 to hand over", ""},
		{"give", on(101, kv{"scsi0": "fast:vm-101-disk-3"}), "only one of them is the disk that is to change hands", ""},
		{"give", noQuorum, "has no quorum", intended},
		{"give, reimage", vm(running), "was started by someone else", ""},
		{"give, reimage", was(kv{"description": strings.Repeat("x", cluster.MaxDescription)}), "Proxmox allows", ""},
		{"give, reimage", was(bad), "no volume in", ""},
		{"given", on(101, kv{"scsi0": "fast:vm-101-disk-9,ssd=1,serial=blank,wwn=0x3ff71cf74abb3ccb", "boot": "order=scsi0"}), "said scsi0 of VM 101", ""},
		{"given", on(101, kv{"scsi0": "fast:vm-101-disk-9,ssd=1,serial=blank,wwn=0x3ff71cf74abb3ccb,backup=0", "boot": "order=scsi0"}), "", ""},
		{"given", on(101, kv{"scsi0": "fast:vm-101-disk-9,ssd=1,serial=blank,wwn=0x3ff71cf74abb3ccb", "boot": "order=ide2"}), "", ""},
		{"given", all(vm(running), on(101, kv{"scsi0": "fast:vm-101-disk-9,ssd=1,serial=blank,wwn=0x3ff71cf74abb3ccb", "boot": "order=ide2"})), "said scsi0 of VM 101", ""},
		{"has", on(101, kv{"scsi0": "fast:vm-101-disk-9,ssd=1,serial=blank,wwn=0x3ff71cf74abb3ccb", "boot": "order=scsi0"}), "said scsi0 of VM 101", ""},
		{"has", on(101, kv{"scsi0": "fast:vm-101-disk-9,ssd=1,serial=blank,wwn=0x3ff71cf74abb3ccb,backup=0", "boot": "order=scsi0"}), "", ""},
		{"has", all(vm(running), on(101, kv{"scsi0": "fast:vm-101-disk-9,serial=blank,backup=0"})), "said scsi0 of VM 101", ""},
		{"has", all(func(g *guarded) { g.r.Prepared = "" }, on(101, kv{"scsi0": "fast:vm-101-disk-9,serial=blank,backup=0"})), "said scsi0 of VM 101", ""},
	}
}

// keptRows are about an old system disk that is to be freed.
func keptRows() []guard {
	const lifted = "set 9900 map[protection:0] delete []\n"
	return []guard{
		{"free", func(g *guarded) { delete(g.Guests, 9900) }, "", ""},
		{"free", note("recast-record: {"), "can't be read", ""},
		{"free", note("mine"), "is not the parking VM of node wk1 any more", ""},
		{"free", record(func(rec *parking.Record) { rec.Cluster = "c2" }), "is not the parking VM of node wk1 any more", ""},
		{"free", record(func(rec *parking.Record) { rec.Node = "wk2" }), "is not the parking VM of node wk1 any more", ""},
		{"free", record(func(rec *parking.Record) { rec.Kept = nil }), "", ""},
		{"free", record(func(rec *parking.Record) { rec.Open = true }), "holds the unfinished replacement", ""},
		{"free", on(9900, kv{"scsi20": kept.Volid}), "someone changed it", ""},
		{"free", on(9900, kv{"scsi20": "fast:vm-9900-disk-8,backup=0"}), "not fast:vm-9900-disk-7 as shown", ""},
		{"free", func(g *guarded) { g.Tied.Snapshots = []string{"daily"} }, "has snapshots (daily)", ""},
		{"free", on(101, kv{"scsi9": kept.Volid}), "refers to it as well", ""},
		{"free", on(9900, kv{"protection": ""}), "", "free fast:vm-9900-disk-7,backup=0 of 9900\n" + intended},
		{"free", noQuorum, "has no quorum", lifted},
		{"free", late(1, on(9900, kv{"scsi20": "fast:vm-9900-disk-8,backup=0"})), "not fast:vm-9900-disk-7 as shown", lifted + "set 9900 map[protection:1] delete []"},
		{"forget", record(func(rec *parking.Record) { rec.Open = true }), "holds the unfinished replacement", ""},
		{"free", late(2, func(g *guarded) { g.rec.Open = true; g.Set(9900, kv{"description": ""}); g.recorded() }), "its record is open", lifted + "free fast:vm-9900-disk-7,backup=0 of 9900"},
		{"free", late(2, on(9900, kv{"scsi20": "fast:vm-9900-disk-8"})), "is there again", lifted + "free fast:vm-9900-disk-7,backup=0 of 9900"},
	}
}

func open(g *guarded, ctx context.Context) error {
	system, err := cluster.ParseDisk("scsi0", g.Guests[101].Config["scsi0"])
	if err != nil {
		return err
	}
	opening := parking.Record{Cluster: "c1", Node: "wk1", Run: "r1", Strategy: g.r.Strategy}
	mem, err := Remember(ctx, g, g.Guests[101], system, opening)
	if err != nil {
		return err
	}
	var park *parking.Parking
	if g.rec.Memory == "earlier" {
		park = &parking.Parking{VM: g.Guests[9900], Record: g.rec}
	}
	_, _, err = OpenParking(ctx, g, opening, mem, park, []cluster.VMID{9901}, new(parking.Numbers), func(cluster.VMID) error { return nil })
	return err
}

// earlier gives the node the parking VM of a finished exchange.
func earlier(g *guarded) { g.rec.Memory, g.rec.Open, g.rec.Disks = "earlier", false, nil }

// openRows are about an exchange that is to begin.
func openRows() []guard {
	return []guard{
		{"possible", func(g *guarded) { g.r.Strategy = cluster.Rollback }, "names no kept system disk", ""},
		{"possible", all(restoring, was(kv{"description": strings.Repeat("x", cluster.MaxDescription)})), "Proxmox allows", ""},
		{"possible", all(restoring, func(g *guarded) {
			g.r.Image = func(context.Context) (string, error) { return "", errors.New("there is no image") }
		}), "", ""},
		{"possible", was(kv{"hookscript": "x"}), "has hookscript, which only root@pam may set", ""},
		{"possible", all(reimage, was(kv{"hookscript": "x"})), "", ""},
		{"open", on(101, bad), "no volume in", ""},
		{"open again", park(elsewhere), "disks can be handed over on one host only", ""},
		{"open again", record(func(rec *parking.Record) { rec.Open, rec.Run = true, "r0" }), "has an open record of run r0", ""},
	}
}

// deletionRows are about the deletion of the old VM.
func deletionRows() []guard {
	return []guard{
		{"delete", on(101, kv{"parent": "theirs"}), "a snapshot or pending changes (theirs)", ""},
		{"delete", on(101, kv{"vmstate": "fast:vm-101-state-x"}), "(fast:vm-101-state-x)", ""},
		{"delete", vm(func(vm *cluster.VM) { vm.Pending = []string{"scsi5"} }), "(scsi5)", ""},
		{"delete", all(on(101, kv{"hookscript": "x"}), was(kv{"hookscript": "x"})), "has hookscript, which only root@pam may set", ""},
		{"delete", on(101, kv{"hookscript": "x"}), "has hookscript, which only root@pam may set", ""},
		{"delete", was(kv{"hookscript": "x"}), "has hookscript, which only root@pam may set", ""},
		{"delete", on(101, kv{"scsi5": "fast:vm-101-data-cloudinit"}), "still owns scsi5", ""},
		{"delete", on(101, kv{"ide0": "fast:101/vm-101-cloudinit.qcow2,media=cdrom"}), "", "delete 101"},
		{"delete", on(101, bad), "scsi5: no volume in", ""},
		{"delete", on(9900, kv{"scsi1": ""}), "scsi1 is not on parking VM 9900", ""},
		{"delete", on(9900, kv{"scsi1": "fast:vm-9900-disk-1,serial=data"}), "scsi1 is not on parking VM 9900", ""},
		{"delete", on(9900, kv{"scsi1": "fast:vm-7-disk-1,serial=data,backup=0"}), "which is not its own", ""},
		{"delete", all(holding, on(101, kv{"scsi2": held.Volid})), "scsi2 is not on parking VM 9900", ""},
		{"delete", holding, "", "delete 101"},
		{"delete", other, "is not the VM that was planned", ""},
		{"delete", vm(func(vm *cluster.VM) { vm.Name = "wk9" }), "is not the VM that was planned", ""},
		{"delete", vm(elsewhere), "is not the VM that was planned", ""},
		{"delete", vm(running), "was started by someone else", ""},
		{"delete", vm(func(vm *cluster.VM) { vm.Lock = "suspended" }), "is locked (suspended)", ""},
		{"delete", all(on(101, kv{"memory": "2048"}), was(kv{"memory": "1024"})), "memory was changed", ""},
		{"delete", all(on(101, kv{"onboot": "0"}), was(kv{"onboot": "1"})), "", "delete 101"},
		{"delete", all(on(101, kv{"memory": "2048\n"}), was(kv{"memory": "2048"})), "", "delete 101"},
		{"delete", was(kv{"memory": "1024"}), "memory is gone", ""},
		{"delete", on(101, kv{"memory": "1024"}), "memory is new", ""},
		{"delete", func(g *guarded) { g.Firewalls[101] = wall }, "the firewall of", ""},
		{"delete all", func(g *guarded) { delete(g.Firewalls, 9900) }, "the firewall of VM 9900", ""},
		{"delete", noQuorum, "has no quorum", ""},
		{"delete", deleted, "", ""},
		{"delete", was(kv{"tags": ""}), "tags is gone", ""},
		{"emptied", all(parked, on(101, bad)), "no volume in", ""},
		{"emptied", all(parked, on(101, kv{"scsi5": "fast:vm-101-disk-5"})), "which was not there when it was remembered", ""},
		{"emptied", all(parked, unusedTwice), "", ""},
		{"emptied", all(parked, unusedTwice, on(101, kv{"unused0": ""})), "said VM 101 \"wk1\" on pve1 owns no disk", ""},
		{"emptied", all(parked, reimage), "said its system disk is parked", ""},
		{"emptied", on(101, kv{"description": "recast: run=r1 build=b"}), "said VM 101 was renewed by this run", ""},
		{"emptied", all(on(101, kv{"description": "recast: run=r1 build=b"}), func(g *guarded) { g.r.Strategy = cluster.Remove }), "", ""},
		{"emptied", deleted, "said VM 101 is deleted", ""},
		{"emptied", all(deleted, reimage), "was deleted by someone else", ""},
		{"emptied", other, "it is not the VM that was planned", ""},
	}
}

// diskRows are about disks that are handed over.
func diskRows() []guard {
	return []guard{
		{"attach", deleted, "is not the one that run r1 made", ""},
		{"attach", all(deleted, putBack, was(kv{"smbios1": ""})), "is not the one that run r1 made", ""},
		{"attach held", vm(running), "was started by someone else", ""},
		{"attached held", on(101, kv{"scsi2": "fast:vm-200-disk-9"}), "which is not the disk that it had there", ""},
		{"attach", other, "is not the one that run r1 made", ""},
		{"attach", on(101, kv{"description": "recast: run=r2 build=b"}), "is not the one that run r1 made", ""},
		{"attach", vm(running), "was started by someone else", ""},
		{"attach", on(101, kv{"scsi1": "fast:vm-101-disk-7"}), "only one of them is the disk", ""},
		{"attach", all(begun, on(101, kv{"scsi1": "fast:vm-101-disk-1"})), "", "set 101 map[] delete [scsi1]\n" + calls["attach"].done},
		{"attach", late(2, deleted), "was deleted by someone else when it had just got its scsi1", intended + "move scsi1 of 9900 to scsi1 of 101"},
		{"attach", late(2, on(101, kv{"scsi1": ","})), "after its disk was moved back", intended + "move scsi1 of 9900 to scsi1 of 101"},
		{"attached", on(101, kv{"scsi1": "fast:vm-7-disk-1,serial=data"}), "which is not the disk that it had there", ""},
		{"attached", on(101, kv{"scsi1": ","}), "no volume in", ""},
		{"attached", on(101, kv{"scsi1": "fast:vm-101-disk-1,serial=data"}), "said scsi1 is fast:vm-101-disk-1 again", ""},
		{"attached", on(101, kv{"scsi1": "fast:vm-101-disk-1"}), "", ""},
		{"attached", deleted, "", ""},
		{"park", on(9900, kv{"scsi1": "fast:vm-9900-disk-1,serial=data"}), "only one of them is the disk", ""},
		{"park", vm(running), "was started by someone else", ""},
		{"park", park(running), "was started by someone else", ""},
		{"park", vm(elsewhere), "was on pve1 when its replacement was begun", ""},
		{"park", park(elsewhere), "was on pve1 when its replacement was begun", ""},
		{"park", on(101, kv{"scsi1": ""}), "has no scsi1 to hand over", ""},
		{"park", on(101, kv{"scsi1": ","}), "no volume in", ""},
		{"park", on(101, kv{"scsi1": "fast:vm-101-disk-6"}), "not fast:vm-101-disk-1 as planned", ""},
		{"park", func(g *guarded) { g.r.Disks[1].Volid = ""; g.Set(101, kv{"scsi1": "fast:vm-7-disk-1"}) }, "belongs to VM 7", ""},
		{"park", noQuorum, "has no quorum", intended},
		{"park", late(1, vm(running)), "was started by someone else", intended},
		{"park", late(2, on(9900, kv{"scsi1": ""})), "Proxmox reported it moved", intended + "move scsi1 of 101 to scsi1 of 9900"},
		{"park", note("recast-record: {"), "can't be read", ""},
		{"park", note("mine"), "no longer says so", ""},
		{"park", record(func(rec *parking.Record) { rec.Open = false }), "no longer has an open record of run r1", ""},
		{"park", record(func(rec *parking.Record) { rec.Run = "r2" }), "no longer has an open record of run r1", ""},
		{"park system", hasData, "it has data", ""},
		{"detach", deleted, "", ""},
		{"detach", vm(running), "was started by someone else", ""},
		{"detach", on(101, kv{"scsi2": ","}), "no volume in", ""},
		{"detach", on(101, kv{"scsi2": "fast:vm-200-disk-1"}), "not fast:vm-200-disk-0 of VM 200 as planned", ""},
		{"detach", on(101, kv{"scsi2": "fast:vm-101-disk-0"}), "not fast:vm-200-disk-0 of VM 200 as planned", ""},
		{"detach", func(g *guarded) { g.held.Holder = 201 }, "not fast:vm-200-disk-0 of VM 201 as planned", ""},
		{"detach", noQuorum, "has no quorum", ""},
	}
}

// systemRows are about the VM that gets another system disk.
func systemRows() []guard {
	return []guard{
		{"spare", on(101, kv{"scsi0": "fast:vm-101-disk-6,serial=theirs"}), "not the disk blank that run r1 made", ""},
		{"spare", vm(running), "runs, or is not of run r1", ""},
		{"spare", deleted, "runs, or is not of run r1", ""},
		{"spare", on(101, kv{"description": "recast: run=r2 build=b"}), "runs, or is not of run r1", ""},
		{"spare", on(9900, kv{"scsi30": ""}), "is not on parking VM 9900", ""},
		{"park new", on(101, kv{"scsi0": ""}), "", ""},
		{"park new", hasData, "it has data", ""},
		{"park new", note("mine"), "no longer says so", ""},
		{"blank", on(101, kv{"scsi0": "fast:vm-101-disk-6,serial=theirs"}), "someone else put it there", "set 101 map[ide2:isos:iso/x.iso,media=cdrom onboot:0] delete []"},
		{"blank", on(101, kv{"scsi0": "fast:vm-7-disk-6"}), "which is not its own", "set 101 map[ide2:isos:iso/x.iso,media=cdrom onboot:0] delete []"},
		{
			"blank", func(g *guarded) {
				g.r.Strategy, g.r.Blank = cluster.Recreate, &cluster.BlankSetting{Key: "ipconfig0", Value: "ip=dhcp"}
			}, "",
			strings.NewReplacer("scsi0;ide2 description:recast: run=r1 build=b", "scsi0;ide2 description:recast: run=r1 build=b ipconfig0:ip=dhcp protection:1").Replace(calls["blank"].done),
		},
		{"blank", noQuorum, "has no quorum", "set 101 map[ide2:isos:iso/x.iso,media=cdrom onboot:0] delete []"},
		{"blank", other, "it is not the VM that was planned", ""},
		{"blank", deleted, "VM 101 is gone", ""},
		{"blank", vm(running), "was started by someone else", ""},
		{"blank", was(bad), "no volume in", ""},
		{"blank", was(kv{"scsi0": ""}), "no volume in", ""},
		{"blank", func(g *guarded) { g.r.Disks[0].System = false }, "its record names no system disk", ""},
		{"blank", was(kv{"description": strings.Repeat("x", cluster.MaxDescription)}), "Proxmox allows", "set 101 map[ide2:isos:iso/x.iso,media=cdrom onboot:0] delete []"},
		{"restore", func(g *guarded) { g.r.Restore = nil }, "names no kept system disk", ""},
		{"restore", was(bad), "no volume in", "set 101 map[description:recast: run=r1 build=b onboot:0] delete []"},
		{"restore", was(kv{"description": strings.Repeat("x", cluster.MaxDescription)}), "Proxmox allows", ""},
		{"restore", func(g *guarded) { g.r.Disks[0].System = false }, "its record names no system disk", "set 101 map[description:recast: run=r1 build=b onboot:0] delete []"},
		{"create", noQuorum, "has no quorum", ""},
		{"create", was(bad), "no volume in", ""},
		{"create", was(kv{"description": strings.Repeat("x", cluster.MaxDescription)}), "Proxmox allows", ""},
		{"create", func(g *guarded) { g.r.Disks[0].System = false }, "its record names no system disk", ""},
		{"create old", noQuorum, "has no quorum", ""},
		{"keep off", other, "it is not the VM that was planned", ""},
		{"keep off", vm(elsewhere), "was on pve1 when its replacement was begun", ""},
		{"stands still", other, "it is not the VM that was planned", ""},
		{"stands still", deleted, "said VM 101 is deleted", ""},
		{"stands still", vm(func(vm *cluster.VM) { vm.Running = false }), "said VM 101 \"wk1\" on pve1 is off", ""},
		{"stands still", vm(func(vm *cluster.VM) { vm.Running, vm.HA = false, true }), "", ""},
		{"stands still", on(101, kv{"scsi1": "fast:vm-101-disk-1"}), "said VM 101 \"wk1\" on pve1 has every disk", ""},
		{"stands still", on(101, kv{"scsi1": "fast:vm-101-disk-1", "scsi0": "fast:vm-101-disk-5,serial=blank"}), "", ""},
	}
}

// recordRows are about the drives and the record.
func recordRows() []guard {
	return []guard{
		{"compare", deleted, "VM 101 is gone", ""},
		{"compare", was(bad), "no volume in", ""},
		{"compare", on(101, bad), `=VM 101 "wk1" on pve1: scsi5: no volume in ","=`, ""},
		{"compare", all(vm(running), on(101, kv{"scsi5": "fast:vm-9999-x"}), func(g *guarded) {
			g.r.Pods = func(context.Context) ([]string, error) { return nil, clustertest.ErrBroken }
		}), clustertest.ErrBroken.Error(), ""},
		{"compare", on(101, kv{"scsi1": ""}), "has no scsi1, which was", ""},
		{"compare", was(kv{"ide2": "none,media=cdrom"}), "", ""},
		{"compare", on(101, kv{"scsi1": "fast:vm-101-disk-1"}), "has options", ""},
		{"compare", on(101, kv{"scsi2": "fast:vm-200-disk-9"}), "before: fast:vm-200-disk-0", ""},
		{"compare", on(101, kv{"scsi5": "fast:vm-101-disk-9"}), "which the old VM did not have", ""},
		{"compare", all(on(101, kv{"scsi5": "fast:vm-9999-pvc-0b5f"}), func(g *guarded) { g.r.VM.Pods = []string{"fast:vm-9999-pvc-0b5f"} }), "a pod's volume, although it was drained", ""},
		{"alone", on(101, bad), "no volume in", ""},
		{"alone", on(200, kv{"scsi7": "fast:vm-101-disk-1"}), "the volume of scsi1 is also scsi7 of VM 200: qm set 200 --delete scsi7 keeps the volume", ""},
		{"alone", func(g *guarded) { delete(g.Guests, 200) }, "whose that is, does not exist", ""},
		{"alone", func(g *guarded) { g.ListedOn = 200 }, "", ""},
		{"alone", func(g *guarded) { g.Change(200, running) }, "the volume of scsi2 is also scsi0 of VM 200: qm shutdown 200", ""},
		{"alone", all(func(g *guarded) { g.Change(200, running) }, on(200, kv{"scsi0": "none,media=cdrom"})), "is running", ""},
		{"has disk", on(101, kv{"scsi0": "fast:vm-101-disk-5"}), "said scsi0 of VM 101", ""},
		{"has disk", on(101, kv{"scsi0": "fast:vm-7-disk-5"}), "which is not its own", ""},
		{"has disk", deleted, "", ""},
		{"kept", note("recast-record: {"), "can't be read", ""},
		{"kept", note("mine"), "no longer says so", ""},
		{"kept", record(func(rec *parking.Record) { rec.Open = false }), "said the old system disk is on VM 9900", ""},
		{"give up", note("recast-record: {"), "can't be read", ""},
		{"give up", func(g *guarded) { g.r.Restore = &parking.KeptDisk{} }, "can't be cancelled", ""},
		{"firewall", func(g *guarded) { delete(g.Firewalls, 101) }, "the firewall of VM 101", ""},
	}
}

// moveRows are about a VM that is migrated while it is off.
func moveRows() []guard {
	local, locked := func(g *guarded) { g.SharedDisks = false }, vm(func(vm *cluster.VM) { vm.Lock = "migrate" })
	return []guard{
		{"migrate", vm(running), "was started by someone else", ""},
		{"migrate", other, "is not the VM that was planned", ""},
		{"migrate", deleted, "VM 101 is gone", ""},
		{"migrate", noQuorum, "has no quorum", ""},
		{"migrate", local, "a migration would replace it by a copy", ""},
		{"migrate", func(g *guarded) { g.Against.Allowed = false }, "does not know pve2", ""},
		{"migrated", vm(elsewhere), "said VM 101", ""},
		{"migrated", all(vm(elsewhere), locked), "", ""},
		{"migrated", vm(running), "said VM 101", ""},
		{"migrated", deleted, "", ""},
		{"migrated", local, "said it stays there", ""},
		{"migrate", locked, "is locked (migrate)", ""},
		{"keep off", all(vm(elsewhere), func(g *guarded) { g.r.Disks = nil }), "", calls["keep off"].done},
	}
}

// shapeRows are about a VM that is given another shape.
func shapeRows() []guard {
	has, unmarked, odd := on(101, kv{"memory": "8192"}), on(101, kv{"description": ""}), on(101, kv{"scsi1": ","})
	return []guard{
		{"reshape", vm(running), "was started by someone else", ""},
		{"reshape", other, "is not the VM that was planned", ""},
		{"reshape", deleted, "VM 101 is gone", ""},
		{"reshape", noQuorum, "has no quorum", ""},
		{"reshape", was(kv{"description": strings.Repeat("x", cluster.MaxDescription)}), "Proxmox allows", ""},
		{"reshape", odd, "no volume in", ""},
		{"reshape", all(has, unmarked), "", "set 101 map[description:recast: run=r1 build=b] delete []"},
		{"has shape", odd, "no volume in", ""},
		{"has shape", has, "said VM 101", ""},
		{"has shape", all(has, unmarked), "", ""},
		{"has shape", vm(running), "said VM 101", ""},
		{"has shape", deleted, "", ""},
	}
}

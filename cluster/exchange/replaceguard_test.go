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

// TestReplaceCalls: if nothing is in the way, each call does its work; if any call to Proxmox
// fails, so does it.
func TestReplaceCalls(t *testing.T) {
	t.Parallel()
	for name, c := range calls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, err := c.run(t, nil, clustertest.Which{})
			if got := strings.Join(g.Done, "\n"); err != nil || got != strings.TrimSpace(c.done) {
				t.Fatalf("%v, done:\n%s\nwant:\n%s", err, got, c.done)
			}
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

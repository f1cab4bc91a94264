package simtest

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/sim/world"
)

var matrixSchedules = flag.Int("matrix.schedules", 1, "so many random schedules of faults")

// schedule is a random story of one exchange: processes that continue it one after the
// other, forward or back, each into a fault.
type schedule struct {
	strategy cluster.Strategy
	shape    matrixShape
	lives    []scheduledLife
	back     bool // the last, undisturbed process cancels
}

// scheduledLife is one process of a schedule.
type scheduledLife struct {
	back    bool
	strikes []matrixStrike
	hasty   bool // the next one begins at once, while Proxmox still works for this one
}

func (s schedule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s of %+v", s.strategy, s.shape)
	for i, life := range s.lives {
		fmt.Fprintf(&b, "\n  process %d, back %t, hasty %t:", i+1, life.back, life.hasty)
		for _, strike := range life.strikes {
			fmt.Fprintf(&b, " %s at %d", strike.fault.name, strike.at)
		}
	}
	fmt.Fprintf(&b, "\n  the last process, back %t", s.back)
	return b.String()
}

// drawSchedule draws one with about as many calls as an undisturbed exchange.
func drawSchedule(r *rand.Rand, strategy cluster.Strategy, shape matrixShape, ref matrixReference) schedule {
	s := schedule{strategy: strategy, shape: shape}
	gaveUp := func() bool { return strategy != cluster.Rollback && r.IntN(4) == 0 }
	faults := matrixFaults()
	for left := 1 + r.IntN(4); left > 0; {
		life := scheduledLife{back: gaveUp(), hasty: r.IntN(2) == 0}
		for range min(left, 1+r.IntN(2)) {
			f := faults[r.IntN(len(faults))]
			meets := 0
			for _, call := range ref.calls {
				if f.strikesAt(call.Call) {
					meets++
				}
			}
			left--
			life.strikes = append(life.strikes, matrixStrike{f, 1 + r.IntN(max(1, meets))})
		}
		s.lives = append(s.lives, life)
	}
	s.back = gaveUp()
	return s
}

// leaves says whether Proxmox itself may leave a volume behind.
func (s schedule) leaves() bool {
	return slices.ContainsFunc(s.lives, func(life scheduledLife) bool {
		return slices.ContainsFunc(life.strikes, func(strike matrixStrike) bool { return strike.fault.leaves })
	})
}

// TestMatrixSchedules draws exchanges with several faults one after the other; each must
// end in one of the two final worlds.
func TestMatrixSchedules(t *testing.T) {
	for n := range *matrixSchedules {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(*matrixSeed, uint64(n)))
			strategy := []cluster.Strategy{cluster.Recreate, cluster.Reimage, cluster.Rollback}[r.IntN(3)]
			shape := drawShape(r, strategy)
			ref := undisturbedExchange(t, strategy, shape, nil, false)
			s := drawSchedule(r, strategy, shape, ref)
			defer func() { // a bubble that fails ends its test
				if t.Failed() {
					t.Logf("-matrix.seed=%d -run 'TestMatrixSchedules/%d$':\n%s", *matrixSeed, n, s)
				}
			}()
			struck := 0
			synctest.Test(t, func(t *testing.T) { struck = s.play(t, ref) })
			t.Attr("schedules", "1")
			t.Attr("struck", strconv.Itoa(struck))
		})
	}
}

// play runs a schedule and returns how many of its faults have struck.
func (s schedule) play(t *testing.T, ref matrixReference) (struck int) {
	t.Helper()
	l := newMatrixLab(t, s.shape)
	backwards := false
	for _, life := range s.lives {
		struck += l.suffer(s.strategy, life)
		backwards = backwards || life.back
	}
	if err := l.goOn(t.Context(), s.strategy, s.back); err != nil {
		t.Errorf("the last process: %v\n%s", err, l.state())
	}
	for _, problem := range l.deviations(ref, backwards || s.back, s.leaves()) {
		t.Error(problem)
	}
	return struck
}

// suffer runs one process into its faults. Their effects in Proxmox are repaired before
// the next process, unless that is hasty.
func (l *matrixLab) suffer(strategy cluster.Strategy, scheduled scheduledLife) (struck int) {
	l.removeHalfMade(func(int) bool { return true })
	ctx, life := l.live(l.t.Context())
	hits := life.strike(scheduled.strikes...)
	_ = life.exchange(ctx, strategy, scheduled.back) // only the last process must succeed
	life.cancel()
	for _, hit := range hits {
		if hit.seq > 0 {
			struck++
		}
	}
	if !scheduled.hasty {
		l.settle()
	}
	return struck
}

// ownership is who owns the data disks.
type ownership string

const (
	ownDisks  ownership = "own"
	heldDisks ownership = "held"
	bothDisks ownership = "mixed"
)

func ownerships() []ownership { return []ownership{ownDisks, heldDisks, bothDisks} }

// matrixSystemGiB is the size of the new system disk; the old one is smaller.
const matrixSystemGiB = 12

// matrixShape is the VM before the exchange.
type matrixShape struct {
	owned                                 ownership
	data                                  int // data disks
	efi, tpm, cloudInit, unused, orphan   bool
	ha, protection, onboot, kept, startup bool
	walled                                bool // it has a firewall
	prepared                              bool // the new system disk is made from a disk image
}

// withPrepared is the shape whose new system disk is made from a disk image.
func (s matrixShape) withPrepared(prepared bool) matrixShape {
	s.prepared = prepared
	return s
}

// usualShape is the shape in the matrix. Properties that don't depend on the ownership of
// disks are spread over the three.
func usualShape(owned ownership, strategy cluster.Strategy) matrixShape {
	return matrixShape{
		owned: owned, data: 2, efi: true, tpm: true, cloudInit: true, unused: true, onboot: owned != heldDisks,
		ha: owned != heldDisks, protection: owned == ownDisks, startup: owned == bothDisks,
		kept: strategy == cluster.Rollback || owned == bothDisks,
	}
}

// drawShape draws a random shape.
func drawShape(r *rand.Rand, strategy cluster.Strategy) matrixShape {
	coin := func() bool { return r.IntN(2) == 0 }
	return matrixShape{
		owned: ownerships()[r.IntN(3)], data: 1 + r.IntN(4), efi: coin(), tpm: coin(), cloudInit: coin(), unused: coin(), orphan: coin(),
		ha: coin(), protection: coin(), onboot: coin(), startup: coin(), kept: strategy == cluster.Rollback || coin(), prepared: coin() && strategy != cluster.Rollback,
	}
}

// run is the ID of the run that exchanges the VM.
func (s matrixShape) run(strategy cluster.Strategy) string {
	return "20000101-0000-" + string(strategy)
}

// held says whether data disk i belongs to the holder.
func (s matrixShape) held(i int) bool {
	return s.owned == heldDisks || s.owned == bothDisks && i%2 == 0
}

// build makes the VM, its holder and the parking VM of an earlier exchange.
func (l *matrixLab) build() error {
	w := l.world
	w.AddStorage(world.Storage{ID: "local", Type: "dir", Content: []string{"iso", "vztmpl", "snippets", "import"}})
	w.AddStorage(world.Storage{ID: "data", Type: "dir", Content: []string{"images"}})
	w.AddStorage(world.Storage{ID: "fast", Type: "lvmthin", Content: []string{"images"}})
	w.AddPool("talos")
	if err := w.AddISO("local", matrixHost, strings.TrimPrefix(matrixISO, "local:iso/"), []byte("boot me")); err != nil {
		return err
	}
	if err := w.AddImage("local", matrixHost, strings.TrimPrefix(matrixImage, "local:import/"), matrixDiskImage()); err != nil {
		return err
	}
	held, err := l.buildHolder()
	if err != nil {
		return err
	}
	if err := l.buildVM(held); err != nil {
		return err
	}
	if l.shape.walled {
		w.SetFirewall(matrixVM, wholeFirewall())
	}
	if l.shape.kept {
		if err := l.buildParking(); err != nil {
			return err
		}
	}
	if l.shape.orphan {
		media := world.NewMedia([]byte("nobody knows whose"))
		if _, err := w.Alloc("data", matrixHost, matrixVM, 1<<30, media); err != nil {
			return err
		}
		l.disks = append(l.disks, matrixDisk{name: "the orphan", media: media})
	}
	if l.shape.ha {
		w.AddHARule(world.HARule{ID: "apart", Type: "node-affinity", Resources: []string{"vm:9011"}, Options: map[string]string{"nodes": matrixHost}})
		w.AddHA(world.HAResource{SID: "vm:9011", State: "stopped", Options: map[string]string{"comment": "a node", "max_restart": "2"}})
	}
	for _, d := range l.disks {
		if d.name != "the orphan" {
			w.Protect(world.Protected{Serial: d.name, Media: d.media, Held: d.held})
		}
	}
	return nil
}

// define makes a VM whose disks have distinct content.
func (l *matrixLab) define(id int, config, disks map[string]string, held bool) error {
	content := map[string]*world.Media{}
	for _, key := range slices.Sorted(maps.Keys(disks)) {
		name := fmt.Sprintf("%s of VM %d", key, id)
		content[key] = world.NewMedia([]byte("this was " + name))
		l.disks = append(l.disks, matrixDisk{name: name, media: content[key], held: held})
	}
	config = maps.Clone(config)
	maps.Copy(config, disks)
	return l.world.DefineVM(matrixHost, id, config, content)
}

// buildHolder makes the VM that owns the node's data disks, and returns the node's drives
// that name them.
func (l *matrixLab) buildHolder() (held map[string]string, err error) {
	held, disks := map[string]string{}, map[string]string{}
	for i := range l.shape.data {
		if l.shape.held(i) {
			disks[fmt.Sprintf("scsi%d", i+1)] = "data:20,serial=held-" + fmt.Sprint(i+1)
		}
	}
	if len(disks) == 0 {
		return held, nil
	}
	if err := l.define(matrixHolder, map[string]string{"name": "data", "memory": "16", "protection": "1"}, disks, true); err != nil {
		return nil, err
	}
	vm, err := l.world.LookupVM(matrixHost, matrixHolder)
	if err != nil {
		return nil, err
	}
	for key := range disks {
		volid, _, _ := strings.Cut(vm.Config[key], ",")
		held[key] = volid + ",backup=0,discard=on,iothread=1,serial=held-" + key
	}
	return held, nil
}

func (l *matrixLab) buildVM(held map[string]string) error {
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
	options := []struct {
		on         bool
		key, value string
	}{
		{s.onboot, "onboot", "1"},
		{s.protection, "protection", "1"},
		{s.startup, "startup", "order=2,up=30"},
		{s.cloudInit, "ide0", "data:cloudinit"},
		{s.cloudInit, "ipconfig0", "ip=dhcp"},
		{s.cloudInit, "ciuser", "talos"},
		{s.efi, "bios", "ovmf"},
	}
	for _, o := range options {
		if o.on {
			config[o.key] = o.value
		}
	}
	if s.efi {
		disks["efidisk0"] = "data:1,efitype=4m,pre-enrolled-keys=0"
	}
	if s.tpm {
		disks["tpmstate0"] = "fast:1,version=v2.0"
	}
	if s.unused {
		disks["unused0"] = "data:3"
	}
	return l.define(matrixVM, config, disks, false)
}

// buildParking makes the parking VM of an earlier exchange, with the node's previous
// system disk.
func (l *matrixLab) buildParking() error {
	rec := parking.Record{
		Cluster: matrixCluster, Node: matrixNode, Run: "19991231-0000-dead", Build: "1e0f", Strategy: cluster.Recreate,
		VMID: matrixVM, UUID: "00000000-0000-4000-8000-000000009011", VMName: matrixNode,
		Kept: []parking.KeptDisk{{Key: "scsi30", Run: "19991231-0000-dead", Slot: "scsi0", Options: "discard=on,iothread=1,serial=older,ssd=1", Talos: "v1.12.0"}},
	}
	text, err := rec.Description()
	if err != nil {
		return err
	}
	return l.define(matrixParking, map[string]string{
		"name": "recast-parking-" + matrixNode, "memory": "16", "protection": "1", "onboot": "0", "pool": "talos", "description": text, "boot": " ",
	}, map[string]string{"scsi30": "data:8,backup=0,discard=on,iothread=1,serial=older,ssd=1"}, false)
}

// matrixKey orders "9011-scsi1" by VM, then key.
func matrixKey(a, b matrixName) int {
	return cmp.Or(cmp.Compare(a.vm, b.vm), strings.Compare(a.key, b.key))
}

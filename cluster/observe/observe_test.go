package observe

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

// A storage that Proxmox does not list may be shared.
func TestLocalStorages(t *testing.T) {
	t.Parallel()
	o := Observation{Storages: []cluster.Storage{{Name: "bulk", Type: "nfs"}, {Name: "fast", Type: "lvmthin", Shared: true}}}
	got := []bool{o.Local("bulk"), o.Local("fast"), o.Local("unlisted")}
	must.Equal(t, "got", []bool{true, false, false}, got)
}

func TestParkingVMsOfANode(t *testing.T) {
	t.Parallel()
	const (
		run1 = "20260101-0000-aaaa"
		run2 = "20260102-0000-aaaa"
	)
	other := parkingOn(9099, "pve1", true, run1)
	other.Record.Node = "wk2"
	type row struct {
		parkings []parking.Parking
		want     cluster.VMID // of the one that is chosen for a VM on pve1
		last     string
		err      string
	}
	cases := map[string]row{
		"none":                       {parkings: []parking.Parking{other}, last: " 0"},
		"beside the VM":              {parkings: []parking.Parking{parkingOn(9001, "pve1", false, run1), other}, want: 9001, last: "scsi30 9001"},
		"left behind":                {parkings: []parking.Parking{parkingOn(9001, "pve2", false, run1)}, last: "scsi30 9001"},
		"one on each host":           {parkings: []parking.Parking{parkingOn(9001, "pve2", false, run1), parkingOn(9002, "pve1", false, run2)}, want: 9002, last: "scsi30 9002"},
		"the newer disk elsewhere":   {parkings: []parking.Parking{parkingOn(9001, "pve2", false, run2), parkingOn(9002, "pve1", false, run1)}, want: 9002, last: "scsi30 9001"},
		"of several the last":        {parkings: []parking.Parking{parkingOn(9001, "pve1", false, run1, "20260101-0000-0000")}, want: 9001, last: "scsi29 9001"},
		"the open one":               {parkings: []parking.Parking{parkingOn(9001, "pve1", false, run1), parkingOn(9002, "pve2", true)}, want: 9002, last: "scsi30 9001"},
		"two open ones":              {parkings: []parking.Parking{parkingOn(9001, "pve1", true), parkingOn(9002, "pve2", true)}, err: `node wk1 has two parking VMs with an unfinished replacement: VM 9001 "recast-parking-wk1" on pve1 and VM 9002 "recast-parking-wk1" on pve2`},
		"two on one host":            {parkings: []parking.Parking{parkingOn(9001, "pve2", false), parkingOn(9002, "pve2", false)}, err: `node wk1 has two parking VMs on pve2: VM 9001 "recast-parking-wk1" on pve2 and VM 9002 "recast-parking-wk1" on pve2`},
		"an open and a closed there": {parkings: []parking.Parking{parkingOn(9001, "pve2", false), parkingOn(9002, "pve2", true)}, err: `node wk1 has two parking VMs on pve2: VM 9001 "recast-parking-wk1" on pve2 and VM 9002 "recast-parking-wk1" on pve2`},
		"two on one host, both written there": {
			parkings: []parking.Parking{written(parkingOn(9001, "pve1", false, run1)), written(parkingOn(9002, "pve1", false, run2))}, want: 9002, last: "scsi30 9002",
		},
		"two on one host, one a copy": {
			parkings: []parking.Parking{written(parkingOn(9001, "pve1", false, run1)), parkingOn(9002, "pve1", false, run2)},
			err:      `node wk1 has two parking VMs on pve1: VM 9001 "recast-parking-wk1" on pve1 and VM 9002 "recast-parking-wk1" on pve1`,
		},
		"a copy on another host": {
			parkings: []parking.Parking{parkingOn(9001, "pve1", false, run1), parkingOn(9002, "pve2", false, run2, run1)},
			err:      `two parking VMs say that they keep the system disk of node wk1 that run 20260101-0000-aaaa replaced: VM 9001 "recast-parking-wk1" on pve1 and VM 9002 "recast-parking-wk1" on pve2`,
		},
	}
	must.Each(t, cases, func(t *testing.T, tc row) {
		o := Observation{
			VMs:     []cluster.VM{{ID: 101, Host: "pve1", Config: map[string]string{"smbios1": "uuid=u"}}},
			Nodes:   []cluster.KubeNode{{Name: "wk1", UUID: "u"}},
			Parking: tc.parkings,
		}
		f, err := MatchNodes(cluster.Wanted{Name: "wk1"}, &o, nil)
		if err != nil || tc.err != "" {
			must.Hold(t, fault.KindOf(err) == fault.Refused && err.Error() == tc.err && len(fault.Hints(err)) != 0,
				"err = %v, hints %q", err, fault.Hints(err))
			return
		}
		var got cluster.VMID
		if f.Parking != nil {
			got = f.Parking.VM.ID
		}
		last, on, _ := f.LastKept()
		must.Equal(t, "takes, and kept last", []any{tc.want, tc.last}, []any{got, fmt.Sprintf("%s %d", last.Key, on.ID)})
	})
}

// written is a parking VM whose record says that it was written into that VM.
func written(p parking.Parking) parking.Parking {
	p.Record.Parking = p.VM.ID
	return p
}

func parkedAt(i int) string { return []string{"scsi30", "scsi29"}[i] }

func parkingOn(id cluster.VMID, host string, open bool, kept ...string) parking.Parking {
	p := parking.Parking{VM: cluster.VM{ID: id, Name: "recast-parking-wk1", Host: host}, Record: parking.Record{Node: "wk1", UUID: "u", Open: open}}
	for i, run := range kept {
		p.Record.Kept = append(p.Record.Kept, parking.KeptDisk{Key: parkedAt(i), Run: run, Nth: map[string]int{"20260101-0000-aaaa": 1, "20260102-0000-aaaa": 2}[run]})
	}
	return p
}

type podKube struct {
	cluster.KubeReader
	node string
	err  error
}

func (k podKube) OwnNode(context.Context) (string, error) { return k.node, k.err }

func TestReadOwnPod(t *testing.T) {
	t.Parallel()
	silent := fmt.Errorf("no answer: %w", cluster.ErrNotNow)
	forbidden := fault.As(fault.Refused, errors.New("forbidden"))
	type row struct {
		kube podKube
		seen Observation
		want OwnPod
		err  error
	}
	must.Each(t, map[string]row{
		"a pod of this cluster":        {kube: podKube{node: "wk1"}, want: OwnPod{Node: "wk1"}},
		"no pod of it":                 {},
		"forbidden":                    {kube: podKube{err: forbidden}, want: OwnPod{Err: forbidden}},
		"no answer":                    {kube: podKube{err: silent}, want: OwnPod{Err: silent}, err: silent},
		"no answer, a node is out":     {kube: podKube{err: silent}, seen: Observation{Dark: silent}, want: OwnPod{Err: silent}},
		"no answer, it is broken":      {kube: podKube{err: silent}, seen: Observation{First: "cp1", Rebuild: "sum"}, want: OwnPod{Err: silent}},
		"there is no cluster to be in": {kube: podKube{node: "wk1"}, seen: Observation{First: "cp1"}},
	}, func(t *testing.T, c row) {
		o := c.seen
		err := o.readOwnPod(t.Context(), Sources{Kube: c.kube})
		must.Hold(t, o.OwnPod == c.want && errors.Is(err, c.err) && (err == nil) == (c.err == nil),
			"%+v, %v; want %+v, %v", o.OwnPod, err, c.want, c.err)
	})
}

// TestParkingsOf: two clusters of one name on one Proxmox don't take each other's disks.
func TestParkingsOf(t *testing.T) {
	t.Parallel()
	other := func(open bool) parking.Parking {
		return clustertest.Edited(clustertest.Park(9901, "pve1", "wk1", "scsi30 r2"), func(p *parking.Parking) { p.Record.UUID, p.Record.Open = "u-other", open })
	}
	type row struct {
		all  []parking.Parking
		uuid string
		want []cluster.VMID
		err  string
	}
	must.Each(t, map[string]row{
		"its own":                      {all: []parking.Parking{clustertest.ParkWK1("scsi30 r1")}, uuid: "u-wk1", want: []cluster.VMID{9900}},
		"another node's":               {all: []parking.Parking{clustertest.ParkWK1("scsi30 r1"), clustertest.Park(9902, "pve1", "wk2")}, uuid: "u-wk1", want: []cluster.VMID{9900}},
		"of another VM of that name":   {all: []parking.Parking{clustertest.ParkWK1("scsi30 r1"), other(false)}, uuid: "u-wk1", want: []cluster.VMID{9900}},
		"owner unknown":                {all: []parking.Parking{clustertest.ParkWK1("scsi30 r1"), other(false)}, err: "two parking VMs on pve1"},
		"another one, being replaced":  {all: []parking.Parking{other(true)}, uuid: "u-wk1", err: "whose SMBIOS UUID is u-other, not u-wk1"},
		"its own, Kubernetes not read": {all: []parking.Parking{other(true)}, want: []cluster.VMID{9901}},
	}, func(t *testing.T, c row) {
		mine, err := parkingsOf(c.all, "wk1", c.uuid)
		got := cluster.Each(mine, func(p parking.Parking) cluster.VMID { return p.VM.ID })
		must.Equal(t, "parking VMs", c.want, got)
		if (err == nil) != (c.err == "") || err != nil && (!strings.Contains(err.Error(), c.err) || fault.KindOf(err) != fault.Refused) {
			t.Errorf("err = %v, want %q", err, c.err)
		}
	})
}

// TestUnknownStorages: publish would refuse them after the build; a plan reports them before.
func TestUnknownStorages(t *testing.T) {
	t.Parallel()
	o := Observation{Storages: []cluster.Storage{{Name: "cephfs"}, {Name: "local"}}}
	want := []string{`images.iso.storage: storage "cefs" is unknown: Proxmox has none of that name, or the token lacks Datastore.Audit on /storage/cefs. recast publish and recast roll would refuse it; there are: cephfs, local`}
	must.Equal(t, "got", want, o.UnknownStorages("images.iso.storage", []string{"local", "cefs"}))
	o.Storages = append(o.Storages, cluster.Storage{Name: "cefs"})
	must.Equal(t, "all are known", 0, len(o.UnknownStorages("images.iso.storage", []string{"local", "cefs"})))
}

// TestTracesOfABrokenCluster: what bootstrap finds of a cluster may be a cluster that is broken. It is rebuilt, and no
// machine or disk of it is to be deleted first.
func TestTracesOfABrokenCluster(t *testing.T) {
	t.Parallel()
	runs := cluster.VM{ID: 9001, Name: "cp1", Host: "pve1", Running: true}
	o := Observation{First: "cp1", Parking: []parking.Parking{{VM: cluster.VM{ID: 9090, Host: "pve1"}, Record: parking.Record{Node: "cp1", Kept: []parking.KeptDisk{{Key: "scsi30", Run: "r1"}}}}}}
	texts := append(o.TracesOfCluster("cp1"), "it has "+runs.String()+asItIs(runs)+": "+o.whose("give that VM another name"))
	must.Be(t, len(texts) == 2, "%v", texts)
	for _, text := range texts {
		if !strings.Contains(text, "recast rebuild cp1 --from SNAPSHOT") || strings.Contains(text, "delete") || strings.Contains(text, "destroy it ") {
			t.Error(text)
		}
	}
	must.Contain(t, "text", texts[1], "which runs")
	if text := (Observation{}).whose("give that VM another name"); strings.Contains(text, "rebuild") || strings.Contains(text, "delete") {
		t.Errorf("of one node of a cluster that works: %s", text)
	}
}

// TestGoneForGood: a Node that is Ready has a machine, and is not to be deleted.
func TestGoneForGood(t *testing.T) {
	t.Parallel()
	ready, not := goneForGood(&cluster.KubeNode{Name: "wk1", Ready: true}), goneForGood(&cluster.KubeNode{Name: "wk1"})
	if ready != "" || goneForGood(nil) != "" || !strings.Contains(not, "if its VM is gone for good: kubectl delete node wk1,") {
		t.Errorf("ready: %s\nnot: %s", ready, not)
	}
}

// TestNamesThatAreOff: where nothing of the cluster answers, VMs that are off and have the name of a node are named;
// surge nodes and other people's VMs are not.
func TestNamesThatAreOff(t *testing.T) {
	t.Parallel()
	wanted := []cluster.Wanted{{Name: "cp1"}, {Name: "cp2"}, {Name: "wk-surge1", Surge: true}}
	vms := []cluster.VM{
		{ID: 101, Name: "cp1", Host: "pve1", Running: true},
		{ID: 102, Name: "cp2", Host: "pve1"},
		{ID: 103, Name: "wk-surge1", Host: "pve1"},
		{ID: 104, Name: "printer", Host: "pve1"},
	}
	got := fault.Hints(namesThatAreOff(errors.New("no answer"), wanted, vms))
	want := []string{`VM 102 "cp2" on pve1 has the name of a node, and is switched off: start VM 102 "cp2" on pve1 in Proxmox`}
	must.Equal(t, "hints", want, got)
}

func TestKubernetesOrder(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fit  kubernetesFit
		want string
	}{
		"either":           {kubernetesFit{}, "the roll leaves it; recast upgrade-k8s --to v1.37.0 brings it there, best after the roll"},
		"Talos first":      {kubernetesFit{present: "too old"}, "first the roll, then recast upgrade-k8s --to v1.37.0: too old"},
		"Kubernetes first": {kubernetesFit{coming: "too new"}, "first recast upgrade-k8s --to v1.37.0, then the roll: too new"},
		"in between":       {kubernetesFit{present: "a", coming: "b"}, "the wanted Talos does not support what runs"},
		"never":            {kubernetesFit{present: "a", both: "no"}, "talos.version and kubernetes.version do not go together: no"},
	} {
		tc.fit.runs, tc.fit.wanted = "v1.36.0", "v1.37.0"
		got := tc.fit.order()
		must.Hold(t, strings.HasPrefix(got, "Kubernetes v1.36.0 → v1.37.0: "+tc.want), "%s: %s", name, got)
	}
}

// TestSigned: signed and unsigned builds can have the same lock hash.
func TestSigned(t *testing.T) {
	t.Parallel()
	const hash = "sha256-a"
	signed := cluster.Build{TalosVersion: "v1.13.9", LockHash: hash, SecureBoot: true}
	plain := cluster.Build{TalosVersion: "v1.13.9", LockHash: hash}
	older := cluster.Build{TalosVersion: "v1.13.8", LockHash: hash}
	for name, tc := range map[string]struct {
		wanted cluster.Build
		past   map[string]cluster.Build
		want   bool
	}{
		"signed in a past lock":        {cluster.Build{}, map[string]cluster.Build{"s": signed, "o": older}, true},
		"signed in the present one":    {signed, nil, true},
		"in both forms":                {signed, map[string]cluster.Build{"p": plain}, false},
		"the other way round":          {plain, map[string]cluster.Build{"s": signed}, false},
		"not signed":                   {cluster.Build{}, map[string]cluster.Build{"p": plain}, false},
		"in no lock that is here":      {cluster.Build{}, map[string]cluster.Build{"o": older}, false},
		"another version is no excuse": {cluster.Build{}, map[string]cluster.Build{"o": {TalosVersion: "v1.13.8", LockHash: hash, SecureBoot: true}}, false},
	} {
		must.Equal(t, name, tc.want, (Observation{PastBuilds: tc.past}).Signed(cluster.Wanted{Build: tc.wanted}, parking.KeptDisk{Build: hash, Talos: "v1.13.9"}))
	}
}

// TestSupersededIsTidy: a disk that a killed roll had begun to free is the node's only reason, and leaves it Tidy.
func TestSupersededIsTidy(t *testing.T) {
	t.Parallel()
	p := clustertest.Park(9900, "pve1", "wk1", "scsi30 r1", "scsi29 r2")
	must.Equal(t, "drift", 0, len(diffKept(p)))
	p.Record.Kept[0].Going = true
	d := Drift{Reasons: diffKept(p)}
	if !d.Tidy() || len(d.Reasons) != 1 || d.Reasons[0].Code != "superseded-disk" {
		t.Errorf("drift %+v: tidy %t", d, d.Tidy())
	}
	p.Record.Open = true
	must.Equal(t, "drift of an unfinished replacement", 0, len(diffKept(p)))
}

// answering is a machine that is asked for parts.
type answering struct {
	cluster.TalosReader
	machine cluster.Machine
	err     error
	asked   int
}

func (a *answering) ReadParts(_ context.Context, _ netip.Addr, parts cluster.MachineParts) (cluster.Machine, error) {
	a.asked++
	return clustertest.Parts(a.machine, parts), a.err
}

func (*answering) Unsupported(_, _, _ string) []string { return nil }

// TestMachinesAreCompleted: a plan that has something to do has the whole of each machine, in one boot of it.
func TestMachinesAreCompleted(t *testing.T) {
	t.Parallel()
	volumes := []cluster.Volume{{Device: "sda1", Disk: "sda", Label: "EPHEMERAL"}}
	type row struct {
		change  func(first, now *cluster.Machine)
		err     error
		asked   int
		volumes bool // are known
		unread  bool
	}
	must.Each(t, map[string]row{
		"as wanted":    {change: func(_, _ *cluster.Machine) {}},
		"stale":        {change: func(first, now *cluster.Machine) { first.TalosVersion, now.TalosVersion = "v1.0.0", "v1.0.0" }, asked: 1, volumes: true},
		"restarted":    {change: func(first, now *cluster.Machine) { first.TalosVersion, now.BootID = "v1.0.0", "b2" }, asked: 2, volumes: true},
		"hidden":       {change: func(first, _ *cluster.Machine) { first.ConfigHidden = true }, asked: 2, volumes: true},
		"silent now":   {change: func(first, _ *cluster.Machine) { first.TalosVersion = "v1.0.0" }, err: errors.New("no answer"), asked: 1, unread: true},
		"another's VM": {change: func(first, now *cluster.Machine) { first.TalosVersion, now.UUID = "v1.0.0", "u2" }, asked: 2, unread: true},
	}, func(t *testing.T, c row) {
		first := clustertest.InSync()
		first.BootID = "b1"
		now := first
		c.change(&first, &now)
		now.Volumes = volumes
		talos := &answering{machine: now, err: c.err}
		w := cluster.Wanted{Name: "wk1", Build: clustertest.WantedBuild()}
		vm := cluster.VM{ID: 101, Name: "wk1", Running: true, Config: map[string]string{"smbios1": "uuid=u1"}}
		found := []Found{{Name: "wk1", Addr: netip.MustParseAddr("10.0.0.1"), VM: &vm, Machine: &first}}
		done := must.Get(Sources{Talos: talos, Past: clustertest.Past}.complete(t.Context(), []cluster.Wanted{w}, found))(t)
		f := found[0]
		if done != (c.asked > 0) || talos.asked != c.asked || (f.Machine == nil) != c.unread || (len(f.Errs) > 0) != c.unread {
			t.Fatalf("done %t, asked %d times, machine %+v: %v", done, talos.asked, f.Machine, f.Errs)
		}
		if !c.unread && ((f.Machine.Volumes != nil) != c.volumes || f.Machine.BootID != now.BootID || f.Machine.TalosVersion != now.TalosVersion) {
			t.Errorf("machine %+v", f.Machine)
		}
	})
}

var (
	thinStorage  = cluster.Storage{Name: "thin", Type: "lvmthin", Pool: "pve/data"}
	thickStorage = cluster.Storage{Name: "thick", Type: "lvm", Pool: "vg", Thick: true}
	sharedThick  = cluster.Storage{Name: "san", Type: "lvm", Pool: "san", Thick: true, Shared: true}
	plainStorage = cluster.Storage{Name: "dir", Type: "dir"}
)

func roomWith(totalGiB, freeGiB int64, pools ...cluster.ThinPool) cluster.Room {
	room := cluster.Room{ThinPools: pools}
	for _, s := range []cluster.Storage{plainStorage, sharedThick, thickStorage, thinStorage} {
		room.Storages = append(room.Storages, cluster.StorageRoom{Name: s.Name, Active: true, Total: totalGiB << 30, Free: freeGiB << 30})
	}
	return room
}

func newDisk(node, host string, s cluster.Storage, gib int64) NewDisk {
	return NewDisk{Node: node, Host: host, Storage: s, Bytes: gib << 30}
}

// newDisks are of the nodes a, b and so on, on pve1.
func newDisks(s cluster.Storage, gib ...int64) (disks []NewDisk) {
	for i, size := range gib {
		disks = append(disks, newDisk(string(rune('a'+i)), "pve1", s, size))
	}
	return disks
}

const spaceRemedy = "while the old one stays parked: free old ones with recast prune, take fewer nodes at once with --only, or move the disk to another storage"

// roomCase is new disks on one storage.
type roomCase struct {
	disks  []NewDisk
	room   cluster.Room
	atOnce int
	want   []string // by disk
	warn   []string
}

func checkRoom(t *testing.T, tc roomCase) {
	uses := SpaceUses(tc.disks, map[string]cluster.Room{"pve1": tc.room})
	must.Be(t, len(uses) == 1, "%+v", uses)
	must.Equal(t, "got", tc.want, uses[0].Lacks(tc.atOnce))
	must.Equal(t, "got", tc.warn, uses[0].Warn())
}

func TestRoomForDisks(t *testing.T) {
	t.Parallel()
	freeing := newDisks(thickStorage, 10, 10)
	freeing[0].Freed = 10 << 30
	pool := cluster.ThinPool{VG: "pve", Name: "data", Size: 100 << 30, MetaSize: 100 << 20, MetaUsed: 10 << 20}
	fullMeta := pool
	fullMeta.MetaUsed = pool.MetaSize - 1<<20
	const onceFull = " full if the new system disks filled up while the old ones are parked: once it is full, every disk on it fails: extend it, or free old system disks with recast prune"
	noPools, noThick := roomWith(100, 50), roomWith(100, 50)
	noPools.ErrPools, noThick.Storages[2].Active = errors.New("no lvs"), false
	must.Each(t, map[string]roomCase{
		"thick takes it all": {
			newDisks(thickStorage, 10, 10, 10), roomWith(100, 25), 1,
			[]string{"", "", "storage thick on pve1 has 25 GiB free, but a new system disk takes 10 GiB there besides 20 GiB for a, b before it " + spaceRemedy},
			nil,
		},
		"thick, to the last byte": {newDisks(thickStorage, 25), roomWith(100, 25), 1, []string{""}, nil},
		"thick, alone too large": {
			newDisks(thickStorage, 26), roomWith(100, 25), 1,
			[]string{"storage thick on pve1 has 25 GiB free, but a new system disk takes 26 GiB there " + spaceRemedy},
			nil,
		},
		"what the one before frees": {freeing, roomWith(100, 12), 1, []string{"", ""}, nil},
		"not while that is under way": {
			freeing, roomWith(100, 12), 2,
			[]string{"", "storage thick on pve1 has 12 GiB free, but a new system disk takes 10 GiB there besides 10 GiB for a before it " + spaceRemedy},
			nil,
		},
		"thin takes what is written": {
			newDisks(plainStorage, 10, 40), roomWith(1000, 12), 1,
			[]string{"", ""},
			[]string{"storage dir on pve1 would be 104%" + onceFull},
		},
		"thin, too little": {
			newDisks(plainStorage, 10, 50), roomWith(1000, 12), 1,
			[]string{"", "storage dir on pve1 has 12 GiB free, but a new system disk takes 10 GiB there besides 4096 MiB for a before it " + spaceRemedy},
			[]string{"storage dir on pve1 would be 105%" + onceFull},
		},
		"thin, a small disk": {newDisks(plainStorage, 2), roomWith(100, 50), 1, []string{""}, nil},
		"a thin pool":        {newDisks(thinStorage, 10), roomWith(100, 50, pool), 1, []string{""}, nil},
		"a thin pool's metadata": {
			newDisks(thinStorage, 10), roomWith(100, 50, fullMeta), 1,
			[]string{"the metadata of thin pool pve/data on pve1 has 1 MiB left, and the new system disks take 3 MiB: extend it (lvextend --poolmetadatasize)"},
			nil,
		},
		"a thin pool that is not listed": {
			newDisks(thinStorage, 10), roomWith(100, 50), 1,
			[]string{""},
			[]string{"how full the metadata of thin pool pve/data on pve1 is can't be determined: Proxmox does not list it"},
		},
		"thin pools that can't be read": {
			newDisks(thinStorage, 10), noPools, 1,
			[]string{""},
			[]string{"how full the metadata of thin pool pve/data on pve1 is can't be determined: no lvs"},
		},
		"not active": {newDisks(thickStorage, 1), noThick, 1, []string{"storage thick is not active on pve1: see pvesm status there"}, nil},
		"not for disks": {
			newDisks(cluster.Storage{Name: "isos"}, 1), roomWith(100, 50), 1,
			[]string{"storage isos takes no disks on pve1: see its content, nodes and state (pvesm status)"},
			nil,
		},
		"a host that does not answer": {
			newDisks(thickStorage, 1),
			cluster.Room{Err: errors.New("no route")},
			1,
			[]string{"the room on pve1 can't be read: no route"},
			nil,
		},
		"a host that was not read": {[]NewDisk{newDisk("a", "pve2", thickStorage, 1)}, cluster.Room{}, 1, []string{"nobody asked pve2 for its room"}, nil},
		"a drive without size": {
			newDisks(thickStorage, 0), roomWith(100, 50), 1,
			[]string{"how large its new system disk is to be can't be determined: the drive has no size=: run qm disk rescan, or set nodes[].systemDisk.sizeGiB"},
			nil,
		},
	}, checkRoom)
}

// Storages on one pool are counted together, on all hosts.
func TestSpaceIsCountedOnce(t *testing.T) {
	t.Parallel()
	second := thickStorage
	second.Name = "thick2"
	sparse := cluster.Storage{Name: "dir2", Type: "dir"}
	disks := []NewDisk{
		newDisk("a", "pve1", thickStorage, 1), newDisk("b", "pve2", thickStorage, 2), newDisk("c", "pve1", second, 4),
		newDisk("d", "pve1", sharedThick, 8), newDisk("e", "pve2", sharedThick, 16), newDisk("f", "pve1", plainStorage, 1), newDisk("g", "pve1", sparse, 1),
	}
	var got []string
	for _, use := range SpaceUses(disks, nil) {
		nodes := cluster.Each(use.Disks, func(d NewDisk) string { return d.Node })
		got = append(got, use.Storage+" of "+use.Host+": "+strings.Join(nodes, " ")+", "+cluster.Size(use.Takes()))
	}
	want := []string{
		"thick of pve1: a c, 5120 MiB", "thick of pve2: b, 2048 MiB", "san of pve1: d e, 24 GiB",
		"dir of pve1: f, 1024 MiB", "dir2 of pve1: g, 1024 MiB",
	}
	must.Equal(t, "got", want, got)
}

func TestCompareFiles(t *testing.T) {
	t.Parallel()
	must.Each(t, fileCases, func(t *testing.T, c fileCase) {
		machine := &fakeFiles{files: c.node, fail: c.fail}
		target := FileTarget{Node: "wk1", UUID: "uuid-1", Content: c.locked, EmbedsConfig: c.embeds}
		said := 0
		checks, errs := CompareFiles(t.Context(), machine, []FileTarget{target}, func(node, text string) { said++ })
		must.Equal(t, "check", c.want, checks[0])
		if c.err != "" != (errs[0] != nil) || c.err != "" && errs[0].Error() != c.err || said != 1 {
			t.Errorf("err = %v, %d lines", errs[0], said)
		}
	})
}

// TestCompareFilesOfMany: if one machine can't be read, the others still are.
func TestCompareFilesOfMany(t *testing.T) {
	t.Parallel()
	locked := []LockedFiles{content("tool", map[string]string{"/usr/local/a": "good"})}
	machine := readOnly{files: map[string]string{"/usr/local/a": "good"}}
	var targets []FileTarget
	for i := range 9 {
		target := FileTarget{Node: fmt.Sprintf("wk%d", i), UUID: "uuid-1", Content: locked}
		if i == 4 {
			target.UUID = "uuid-2"
		}
		targets = append(targets, target)
	}
	var said []string
	checks, errs := CompareFiles(t.Context(), machine, targets, func(node, _ string) { said = append(said, node) })
	for i := range targets {
		if want := i != 4; want != (errs[i] == nil) || want != (checks[i].Files == 1) {
			t.Errorf("%d: %+v, %v", i, checks[i], errs[i])
		}
	}
	must.Equal(t, "said of", len(targets), len(said))
}

func content(name string, files map[string]string) LockedFiles {
	c := LockedFiles{Extension: cluster.LockedExtension{Name: name, Version: "v1"}, Files: map[string]LockedFile{}}
	for path, text := range files {
		if link, ok := strings.CutPrefix(text, "→ "); ok {
			c.Files[path] = LockedFile{Mode: fs.ModeSymlink | 0o777, Link: link}
			continue
		}
		text, hard := strings.CutPrefix(text, "= ")
		c.Files[path] = LockedFile{Mode: 0o644, SizeBytes: int64(len(text)), SHA256: strings.TrimPrefix(print256(text), "sha256:"), HardLink: hard}
	}
	return c
}

// fakeFiles is a machine with files; a text that begins with "→ " is a link.
type fakeFiles struct {
	files map[string]string
	fail  map[string]error // by path or directory
	read  []string
}

func (f *fakeFiles) Files(ctx context.Context, _ netip.Addr, uuid string, look func(context.Context, cluster.MachineFiles) error) error {
	if uuid != "uuid-1" {
		return errors.New("another machine")
	}
	return look(ctx, f)
}

func (f *fakeFiles) List(_ context.Context, dir string, deep bool, each func(cluster.MachineFile) error) error {
	if err := f.fail[dir]; err != nil {
		return err
	}
	entries := map[string]cluster.MachineFile{}
	for name, text := range f.files {
		below, ok := strings.CutPrefix(name, dir+"/")
		if !ok {
			continue
		}
		for parent := path.Dir(below); parent != "."; parent = path.Dir(parent) {
			entries[path.Join(dir, parent)] = cluster.MachineFile{Path: path.Join(dir, parent), Mode: fs.ModeDir | 0o755}
		}
		entries[name] = cluster.MachineFile{Path: name, Mode: 0o755, SizeBytes: int64(len(text))}
		if link, ok := strings.CutPrefix(text, "→ "); ok {
			entries[name] = cluster.MachineFile{Path: name, Mode: fs.ModeSymlink | 0o777, Link: link}
		}
	}
	if len(entries) == 0 {
		return fmt.Errorf("list %s: %w", dir, cluster.ErrNotFound)
	}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		if !deep && path.Dir(name) != dir {
			continue
		}
		if err := each(entries[name]); err != nil {
			return err
		}
	}
	return nil
}

func (f *fakeFiles) Read(_ context.Context, name string, sizeBytes int64, w io.Writer) error {
	f.read = append(f.read, name)
	if err := f.fail[name]; err != nil {
		return err
	}
	if int64(len(f.files[name])) != sizeBytes {
		return errors.New("another size")
	}
	_, err := io.WriteString(w, f.files[name])
	return err
}

type fileCase struct {
	locked []LockedFiles
	node   map[string]string
	fail   map[string]error
	embeds bool
	want   FileCheck
	err    string
}

// fileCases are locked files, the files on the node, and the expected result.
var fileCases = map[string]fileCase{
	"nothing locked, nothing there": {node: map[string]string{"/usr/bin/init": "talos"}, want: FileCheck{}},
	"the same": {
		locked: []LockedFiles{content("tool", map[string]string{
			"/usr/local/bin/tool": "tool", "/usr/local/bin/link": "→ tool", "/usr/lib/firmware/a/b.bin": "blob", "/etc/cri/conf.d/10.part": "conf",
		})},
		node: map[string]string{
			"/usr/local/bin/tool": "tool", "/usr/local/bin/link": "→ tool", "/usr/lib/firmware/a/b.bin": "blob", "/etc/cri/conf.d/10.part": "conf",
			"/etc/cri/conf.d/00.part": "of Talos", "/usr/lib/firmware/a/c.bin": "of another", "/usr/local/share/schematic/cafe": "", "/usr/local/share/ca-certificates": "→ /etc/ssl",
		},
		want: FileCheck{Files: 4, Bytes: 12},
	},
	"other bytes, the same size": {
		locked: []LockedFiles{content("tool", map[string]string{"/usr/local/bin/tool": "good"})},
		node:   map[string]string{"/usr/local/bin/tool": "evil"},
		want:   FileCheck{Files: 1, Bytes: 4, Differ: []FileDiff{toolDiff("/usr/local/bin/tool", "evil")}},
	},
	"another size": {
		locked: []LockedFiles{content("tool", map[string]string{"/usr/local/bin/tool": "good"})},
		node:   map[string]string{"/usr/local/bin/tool": "evil and longer"},
		want:   FileCheck{Files: 1, Bytes: 15, Differ: []FileDiff{toolDiff("/usr/local/bin/tool", "evil and longer")}},
	},
	"missing, with its directory": {
		locked: []LockedFiles{content("tool", map[string]string{"/usr/local/bin/tool": "good", "/usr/lib/udev/rules.d/9": "rule"})},
		node:   map[string]string{"/usr/local/lib/x/y": "→ z"},
		want: FileCheck{Files: 2, Differ: []FileDiff{
			{Path: "/usr/lib/udev/rules.d/9", Extension: "tool v1", Wanted: print256("rule")},
			{Path: "/usr/local/bin/tool", Extension: "tool v1", Wanted: print256("good")},
			{Path: "/usr/local/lib/x/y", Found: "link to z"},
		}},
	},
	"extra": {
		node: map[string]string{"/usr/local/bin/backdoor": "evil", "/usr/local/etc/talos/config.yaml": "version: v1alpha1", "/usr/local/share/ca-certificates": "→ /evil"},
		want: FileCheck{Bytes: 21, Differ: []FileDiff{
			{Path: "/usr/local/bin/backdoor", Found: print256("evil")},
			{Path: "/usr/local/etc/talos/config.yaml", Found: print256("version: v1alpha1")},
			{Path: "/usr/local/share/ca-certificates", Found: "link to /evil"},
		}},
	},
	"an embedded configuration is no extra file": {
		node: map[string]string{"/usr/local/etc/talos/config.yaml": "version: v1alpha1"}, embeds: true, want: FileCheck{},
	},
	"a link where a file should be, and the other way round": {
		locked: []LockedFiles{content("tool", map[string]string{"/usr/local/a": "good", "/usr/local/b": "→ a"})},
		node:   map[string]string{"/usr/local/a": "→ b", "/usr/local/b": "good"},
		want: FileCheck{Files: 2, Bytes: 4, Differ: []FileDiff{
			{Path: "/usr/local/a", Extension: "tool v1", Found: "link to b", Wanted: print256("good")},
			{Path: "/usr/local/b", Extension: "tool v1", Found: print256("good"), Wanted: "link to a"},
		}},
	},
	"a hard link, which imager makes an empty file": {
		locked: []LockedFiles{content("tool", map[string]string{"/usr/local/a": "good", "/usr/local/b": "= good", "/usr/local/c": "= good", "/usr/local/d": "= good"})},
		node:   map[string]string{"/usr/local/a": "", "/usr/local/b": "", "/usr/local/c": "good", "/usr/local/d": "evil"},
		want:   FileCheck{Files: 4, Bytes: 8, Differ: []FileDiff{toolDiff("/usr/local/a", ""), toolDiff("/usr/local/d", "evil")}},
	},
	"a directory where a file should be": {
		locked: []LockedFiles{content("tool", map[string]string{"/usr/local/a": "good"})},
		node:   map[string]string{"/usr/local/a/b": "good"},
		want: FileCheck{Files: 1, Bytes: 4, Differ: []FileDiff{
			{Path: "/usr/local/a", Extension: "tool v1", Found: "a directory", Wanted: print256("good")},
			{Path: "/usr/local/a/b", Found: print256("good")},
		}},
	},
	"one extension over another": {
		locked: []LockedFiles{
			content("a", map[string]string{"/usr/local/both": "of a", "/usr/local/other": "of a"}),
			content("b", map[string]string{"/usr/local/both": "of b", "/usr/local/other": "of b"}),
		},
		node: map[string]string{"/usr/local/both": "of a", "/usr/local/other": "of c"},
		want: FileCheck{Files: 2, Bytes: 8, Differ: []FileDiff{
			{Path: "/usr/local/other", Extension: "b v1", Found: print256("of c"), Wanted: print256("of b")},
		}},
	},
	"what a service makes while it runs": {
		locked: []LockedFiles{content("agent", map[string]string{"/usr/local/lib/containers/agent/agent": "good", "/usr/local/lib/containers/agent/other": "good"})},
		node: map[string]string{
			"/usr/local/lib/containers/agent/agent": "good", "/usr/local/lib/containers/agent/other": "evil",
			"/usr/local/lib/containers/agent/etc/hosts": "", "/usr/local/lib/containers/agent/run/log": "line", "/usr/local/lib/containersx": "evil",
		},
		want: FileCheck{
			Files: 2, Bytes: 12, NotCompared: []string{"2 files below /usr/local/lib/containers/agent of no extension image: a service makes files there while it runs"},
			Differ: []FileDiff{
				{Path: "/usr/local/lib/containers/agent/other", Extension: "agent v1", Found: print256("evil"), Wanted: print256("good")},
				{Path: "/usr/local/lib/containersx", Found: print256("evil")},
			},
		},
	},
	"what a node does not show": {
		locked: []LockedFiles{content("ucode", map[string]string{
			"/usr/lib/firmware/intel-ucode/06-9e-09": "a", "/lib/firmware/amd-ucode/microcode_amd.bin": "b", "/usr/lib/firmware/amd-ucode/README": "c",
			"/usr/lib/modules/6.18-talos/modules.dep": "d", "/usr/lib/modules/6.18-talos/kernel/modules.ko": "e",
		})},
		node: map[string]string{"/usr/lib/firmware/amd-ucode/README": "c", "/usr/lib/modules/6.18-talos/modules.dep": "D", "/usr/lib/modules/6.18-talos/kernel/modules.ko": "e"},
		want: FileCheck{Files: 2, Bytes: 2, NotCompared: []string{
			"1 file of extension ucode v1: the list of kernel modules: it is generated for every image",
			"2 files of extension ucode v1: CPU microcode: it is loaded before the system starts and is no file on a node",
		}},
	},
	"many": {
		locked: []LockedFiles{content("tool", many)},
		node:   map[string]string{"/usr/local/extra": "x"},
		want: FileCheck{Files: 12, More: 5, Differ: func() (all []FileDiff) {
			for _, name := range slices.Sorted(maps.Keys(many))[:maxFileDiffs] {
				all = append(all, FileDiff{Path: name, Extension: "tool v1", Wanted: print256("x")})
			}
			return all
		}()},
	},
	"a file that can't be read": {
		locked: []LockedFiles{content("tool", map[string]string{"/usr/local/a": "good"})},
		node:   map[string]string{"/usr/local/a": "good"}, fail: map[string]error{"/usr/local/a": errors.New("not authorized")},
		err: "read its files: not authorized",
	},
	"a directory that can't be listed": {
		node: map[string]string{"/usr/local/a": "good"}, fail: map[string]error{"/usr/local": errors.New("I/O error")},
		err: "read its files: I/O error",
	},
}

// many is more files than a result names.
var many = func() map[string]string {
	files := map[string]string{}
	for i := range 12 {
		files[fmt.Sprintf("/usr/local/bin/%02d", i)] = "x"
	}
	return files
}()

// toolDiff is a file of tool v1 that should say "good".
func toolDiff(path, found string) FileDiff {
	return FileDiff{Path: path, Extension: "tool v1", Found: print256(found), Wanted: print256("good")}
}

func print256(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// readOnly is many machines with the same files.
type readOnly struct{ files map[string]string }

func (r readOnly) Files(ctx context.Context, addr netip.Addr, uuid string, look func(context.Context, cluster.MachineFiles) error) error {
	return (&fakeFiles{files: r.files}).Files(ctx, addr, uuid, look)
}

// reads returns one volume, whose ID names the configuration and the Talos that reads it.
type reads struct{ cluster.Maintenance }

func (reads) ConfigVolumes(text cluster.Secret, talos string) ([]cluster.ConfigVolume, error) {
	if string(text) == "bad" {
		return nil, errors.New("unreadable")
	}
	return []cluster.ConfigVolume{{ID: string(text) + " " + talos}}, nil
}

// TestConfigVolumes: volumes are read where the machine may get other ones, by whatever it boots with next.
func TestConfigVolumes(t *testing.T) {
	t.Parallel()
	same, staged := cluster.Configs{Stored: []byte("a: 1"), Active: []byte("a: 1")}, cluster.Configs{Stored: []byte("a: 2"), Active: []byte("a: 1")}
	file := &cluster.FoundFile{Volumes: []cluster.ConfigVolume{{ID: "u-data"}}}
	const wanted = "v1.14.1"
	for name, tc := range map[string]struct {
		has        cluster.Configs
		runs       string
		file       *cluster.FoundFile
		hidden     bool
		now, keeps string
		err        string
	}{
		"the same":       {has: same, runs: "v1.13.9"},
		"a file":         {has: same, runs: wanted, file: file, now: "a: 1 v1.14.1", keeps: "a: 1 v1.14.1"},
		"staged":         {has: staged, runs: "v1.13.9", now: "a: 1 v1.13.9", keeps: "a: 2 v1.14.1"},
		"an older Talos": {has: same, runs: "v1.15.0", now: "a: 1 v1.15.0", keeps: "a: 1 v1.14.1"},
		"unreadable":     {has: cluster.Configs{Stored: []byte("bad"), Active: []byte("a: 1")}, runs: wanted, now: "a: 1 v1.14.1", err: "unreadable"},
		"hidden":         {has: staged, runs: wanted, hidden: true},
	} {
		f := Found{File: tc.file, Machine: &cluster.Machine{Configs: tc.has, ConfigHidden: tc.hidden, RunningSystem: cluster.RunningSystem{TalosVersion: tc.runs}}}
		got := readConfigVolumes(reads{}, cluster.Wanted{Build: cluster.Build{TalosVersion: wanted}}, &f)
		must.Hold(t, ids(got.Runs) == tc.now && ids(got.Keeps) == tc.keeps && (got.Err != nil) == (tc.err != ""),
			"%s: %+v", name, got)
	}
}

func ids(volumes []cluster.ConfigVolume) string {
	out := cluster.Each(volumes, func(v cluster.ConfigVolume) string { return v.ID })
	return strings.Join(out, ", ")
}

// TestSelectorsWhileDisksAreMissing: what matches nothing may match a disk that the VM is to get.
func TestSelectorsWhileDisksAreMissing(t *testing.T) {
	t.Parallel()
	none := cluster.DiskSelector{ID: "u-x", Document: "UserVolumeConfig x", Kind: cluster.ForPartition}
	vm := func(scsi1 string) cluster.VM {
		vm := cluster.VM{ID: 101, Config: map[string]string{"scsi0": "fast:vm-101-disk-0,size=10G"}}
		if scsi1 != "" {
			vm.Config["scsi1"] = scsi1
		}
		return vm
	}
	for name, tc := range map[string]struct {
		vm      cluster.VM
		shape   cluster.Shape
		unknown bool
	}{
		"a disk is added":       {vm(""), cluster.Shape{Disks: []cluster.ShapeDisk{{Key: "scsi1", Storage: "fast", SizeGiB: 20}}}, true},
		"a disk grows":          {vm("fast:vm-101-disk-1,size=10G"), cluster.Shape{Disks: []cluster.ShapeDisk{{Key: "scsi1", SizeGiB: 20}}}, true},
		"another option":        {vm("fast:vm-101-disk-1,size=10G"), cluster.Shape{Disks: []cluster.ShapeDisk{{Key: "scsi1", Options: []string{"ssd=1"}}}}, false},
		"recast makes no such":  {vm(""), cluster.Shape{Disks: []cluster.ShapeDisk{{Key: "scsi1"}}}, false},
		"only memory":           {vm(""), cluster.Shape{Settings: map[string]string{"memory": "4096"}}, false},
		"the VM is as it is to": {vm(""), cluster.Shape{}, false},
	} {
		differences := must.Get(shape.Compare(tc.vm, nil, tc.shape))(t)
		f := Found{VM: &tc.vm, Shape: differences, File: &cluster.FoundFile{Selectors: []cluster.DiskSelector{none}}}
		got := f.Selectors(func(string) bool { return false })
		must.Hold(t, (got[0].Unknown != "") == tc.unknown && f.File.Selectors[0].Unknown == "", "%s: %+v", name, got)
	}
}

// TestHasVolume: a reset machine shows which volumes it had by the labels of their partitions.
func TestHasVolume(t *testing.T) {
	t.Parallel()
	m := cluster.Machine{Volumes: []cluster.Volume{{Disk: "sdb", Label: "u-x"}}, VolumeStatuses: []cluster.VolumeStatus{{ID: "u-w", Location: "/dev/sdc"}, {ID: "u-y", Phase: "failed"}}}
	for id, want := range map[string]bool{"u-x": true, "u-w": true, "u-y": false, "u-z": false} {
		runs, reset := Found{Machine: &m}, Found{Blank: &cluster.BlankMachine{Machine: m}}
		must.Equal(t, id, []bool{want, want}, []bool{runs.HasVolume(id), reset.HasVolume(id)})
	}
	must.Equal(t, "a machine that does not answer has it", false, (&Found{}).HasVolume("u-x"))
}

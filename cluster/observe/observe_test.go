package observe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/parking"
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
			if fault.KindOf(err) != fault.Refused || err.Error() != tc.err || len(fault.Hints(err)) == 0 {
				t.Errorf("err = %v, hints %q", err, fault.Hints(err))
			}
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
		if o.OwnPod != c.want || !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
			t.Errorf("%+v, %v; want %+v, %v", o.OwnPod, err, c.want, c.err)
		}
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
		var got []cluster.VMID
		for _, p := range mine {
			got = append(got, p.VM.ID)
		}
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
	if len(texts) != 2 {
		t.Fatal(texts)
	}
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
		if got := tc.fit.order(); !strings.HasPrefix(got, "Kubernetes v1.36.0 → v1.37.0: "+tc.want) {
			t.Errorf("%s: %s", name, got)
		}
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

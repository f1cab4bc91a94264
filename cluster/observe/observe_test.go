package observe

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
)

// A storage that Proxmox does not list may be shared.
func TestLocalStorages(t *testing.T) {
	t.Parallel()
	o := Observation{Storages: []cluster.Storage{{Name: "bulk", Type: "nfs"}, {Name: "fast", Type: "lvmthin", Shared: true}}}
	got := []bool{o.Local("bulk"), o.Local("fast"), o.Local("unlisted")}
	if diff := cmp.Diff([]bool{true, false, false}, got); diff != "" {
		t.Error(diff)
	}
}

func TestParkingVMsOfANode(t *testing.T) {
	t.Parallel()
	const (
		run1 = "20260101-0000-aaaa"
		run2 = "20260102-0000-aaaa"
	)
	other := parkingOn(9099, "pve1", true, run1)
	other.Record.Node = "wk2"
	cases := map[string]struct {
		parkings []parking.Parking
		want     cluster.VMID // of the one that is chosen for a VM on pve1
		last     string
		err      string
	}{
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
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
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
			if got != tc.want || fmt.Sprintf("%s %d", last.Key, on.ID) != tc.last {
				t.Errorf("takes %d, last kept %s of %d; want %d, %s", got, last.Key, on.ID, tc.want, tc.last)
			}
		})
	}
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
	for name, c := range map[string]struct {
		kube podKube
		seen Observation
		want OwnPod
		err  error
	}{
		"a pod of this cluster":        {kube: podKube{node: "wk1"}, want: OwnPod{Node: "wk1"}},
		"no pod of it":                 {},
		"forbidden":                    {kube: podKube{err: forbidden}, want: OwnPod{Err: forbidden}},
		"no answer":                    {kube: podKube{err: silent}, want: OwnPod{Err: silent}, err: silent},
		"no answer, a node is out":     {kube: podKube{err: silent}, seen: Observation{Dark: silent}, want: OwnPod{Err: silent}},
		"no answer, it is broken":      {kube: podKube{err: silent}, seen: Observation{First: "cp1", Rebuild: "sum"}, want: OwnPod{Err: silent}},
		"there is no cluster to be in": {kube: podKube{node: "wk1"}, seen: Observation{First: "cp1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := c.seen
			err := o.readOwnPod(t.Context(), Sources{Kube: c.kube})
			if o.OwnPod != c.want || !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
				t.Errorf("%+v, %v; want %+v, %v", o.OwnPod, err, c.want, c.err)
			}
		})
	}
}

// TestParkingsOf: two clusters of one name on one Proxmox don't take each other's disks.
func TestParkingsOf(t *testing.T) {
	t.Parallel()
	other := func(open bool) parking.Parking {
		return clustertest.Edited(clustertest.Park(9901, "pve1", "wk1", "scsi30 r2"), func(p *parking.Parking) { p.Record.UUID, p.Record.Open = "u-other", open })
	}
	for name, c := range map[string]struct {
		all  []parking.Parking
		uuid string
		want []cluster.VMID
		err  string
	}{
		"its own":                      {all: []parking.Parking{clustertest.ParkWK1("scsi30 r1")}, uuid: "u-wk1", want: []cluster.VMID{9900}},
		"another node's":               {all: []parking.Parking{clustertest.ParkWK1("scsi30 r1"), clustertest.Park(9902, "pve1", "wk2")}, uuid: "u-wk1", want: []cluster.VMID{9900}},
		"of another VM of that name":   {all: []parking.Parking{clustertest.ParkWK1("scsi30 r1"), other(false)}, uuid: "u-wk1", want: []cluster.VMID{9900}},
		"owner unknown":                {all: []parking.Parking{clustertest.ParkWK1("scsi30 r1"), other(false)}, err: "two parking VMs on pve1"},
		"another one, being replaced":  {all: []parking.Parking{other(true)}, uuid: "u-wk1", err: "whose SMBIOS UUID is u-other, not u-wk1"},
		"its own, Kubernetes not read": {all: []parking.Parking{other(true)}, want: []cluster.VMID{9901}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mine, err := parkingsOf(c.all, "wk1", c.uuid)
			var got []cluster.VMID
			for _, p := range mine {
				got = append(got, p.VM.ID)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("parking VMs (-want +got):\n%s", diff)
			}
			if (err == nil) != (c.err == "") || err != nil && (!strings.Contains(err.Error(), c.err) || fault.KindOf(err) != fault.Refused) {
				t.Errorf("err = %v, want %q", err, c.err)
			}
		})
	}
}

// TestUnknownStorages: publish would refuse them after the build; a plan reports them
// before.
func TestUnknownStorages(t *testing.T) {
	t.Parallel()
	o := Observation{Storages: []cluster.Storage{{Name: "cephfs"}, {Name: "local"}}}
	want := []string{`images.iso.storage: storage "cefs" is unknown: Proxmox has none of that name, or the token lacks Datastore.Audit on /storage/cefs. recast publish and recast roll would refuse it; there are: cephfs, local`}
	if diff := cmp.Diff(want, o.UnknownStorages("images.iso.storage", []string{"local", "cefs"})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	o.Storages = append(o.Storages, cluster.Storage{Name: "cefs"})
	if got := o.UnknownStorages("images.iso.storage", []string{"local", "cefs"}); len(got) > 0 {
		t.Errorf("all are known: %q", got)
	}
}

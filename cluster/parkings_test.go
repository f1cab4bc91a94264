package cluster

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/fault"
)

// TestParkingsOf: two clusters of one name on one Proxmox don't take each other's disks.
func TestParkingsOf(t *testing.T) {
	t.Parallel()
	other := func(open bool) Parking {
		return editedPark(prunePark(9901, "pve1", "wk1", "scsi30 r2"), func(p *Parking) { p.Record.UUID, p.Record.Open = "u-other", open })
	}
	for name, c := range map[string]struct {
		all  []Parking
		uuid string
		want []VMID
		err  string
	}{
		"its own":                      {all: []Parking{parkWK1("scsi30 r1")}, uuid: "u-wk1", want: []VMID{9900}},
		"another node's":               {all: []Parking{parkWK1("scsi30 r1"), prunePark(9902, "pve1", "wk2")}, uuid: "u-wk1", want: []VMID{9900}},
		"of another VM of that name":   {all: []Parking{parkWK1("scsi30 r1"), other(false)}, uuid: "u-wk1", want: []VMID{9900}},
		"whose it is can't be told":    {all: []Parking{parkWK1("scsi30 r1"), other(false)}, err: "two parking VMs on pve1"},
		"another one, being replaced":  {all: []Parking{other(true)}, uuid: "u-wk1", err: "whose SMBIOS UUID is u-other, not u-wk1"},
		"its own, Kubernetes not read": {all: []Parking{other(true)}, want: []VMID{9901}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mine, err := parkingsOf(c.all, "wk1", c.uuid)
			var got []VMID
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

func TestParked(t *testing.T) {
	t.Parallel()
	p := editedPark(parkWK1("scsi30 r1"), func(p *Parking) {
		p.Record.Disks = []ParkedDisk{{Key: "scsi0", ParkKey: "scsi29", System: true}, {Key: "scsi1", ParkKey: "scsi1"}, {Key: "scsi2", Holder: 9101}}
	})
	if got := p.Parked(); got != nil {
		t.Errorf("before anything is handed over: %v", got)
	}
	p.VM.Config["scsi1"] = "dir:9900/vm-9900-disk-0.raw,size=8G"
	if diff := cmp.Diff([]string{"scsi1"}, p.Parked()); diff != "" {
		t.Errorf("parked (-want +got):\n%s", diff)
	}
}

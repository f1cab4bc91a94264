package parking

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/must"
)

// prunePark is a parking VM of node with kept disks "key run"; each has its drive.
func prunePark(id cluster.VMID, host, node string, kept ...string) Parking {
	p := Parking{
		VM:     cluster.VM{ID: id, Name: "recast-parking-" + node, Host: host, Config: map[string]string{"protection": "1"}},
		Record: Record{Cluster: "c1", Node: node, VMID: 101, UUID: "u-" + node},
	}
	for i, k := range kept {
		key, run, _ := strings.Cut(k, " ")
		nth, _ := strconv.Atoi(strings.TrimPrefix(run, "r")) // 0 if run has no number
		p.Record.Kept = append(p.Record.Kept, KeptDisk{Key: key, Run: run, Nth: nth, Slot: "scsi0", Options: "serial=s" + run + ",size=10G", Talos: "v1.13.8"})
		p.VM.Config[key] = fmt.Sprintf("fast:vm-%d-disk-%d,backup=0,serial=s%s,size=10G", id, i, run)
	}
	return p
}

func parkWK1(kept ...string) Parking { return prunePark(9900, "pve1", "wk1", kept...) }

func editedPark(p Parking, edit func(*Parking)) Parking { edit(&p); return p }

// TestStaleEntriesKeepTheirKeys: while the record has an entry for a drive that someone removed,
// nothing else is parked under its key.
func TestStaleEntriesKeepTheirKeys(t *testing.T) {
	t.Parallel()
	p := parkWK1("scsi30 r1", "scsi29 r2")
	delete(p.VM.Config, "scsi30")
	mem := Memory{SystemKey: "scsi0", VM: cluster.VM{ID: 101, Name: "wk1", Host: "pve1", Config: map[string]string{"scsi0": "fast:vm-101-disk-0,size=10G", "scsi30": "fast:vm-101-disk-1,size=10G"}}}
	rec := must.Get(Record{Cluster: "c1", Node: "wk1", Strategy: cluster.Recreate}.Opened(mem, &p))(t)
	got := map[string]string{}
	for _, d := range rec.Disks {
		got[d.Key] = d.ParkKey
	}
	must.Equal(t, "parked as", map[string]string{"scsi0": "scsi28", "scsi30": "scsi0"}, got)
}

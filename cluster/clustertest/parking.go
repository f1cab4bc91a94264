package clustertest

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
)

// Park is a parking VM of node with kept disks "key run"; each has its drive.
func Park(id cluster.VMID, host, node string, kept ...string) parking.Parking {
	p := parking.Parking{
		VM:     cluster.VM{ID: id, Name: "recast-parking-" + node, Host: host, Config: map[string]string{"protection": "1"}},
		Record: parking.Record{Cluster: "c1", Node: node, VMID: 101, UUID: "u-" + node, Strategy: cluster.Recreate, Stage: parking.StageServes},
	}
	for i, k := range kept {
		key, run, _ := strings.Cut(k, " ")
		nth, _ := strconv.Atoi(strings.TrimPrefix(run, "r")) // 0 if run has no number
		p.Record.Kept = append(p.Record.Kept, parking.KeptDisk{Key: key, Run: run, Nth: nth, Slot: "scsi0", Options: "serial=s" + run + ",size=10G", Talos: "v1.13.8"})
		p.VM.Config[key] = fmt.Sprintf("fast:vm-%d-disk-%d,backup=0,serial=s%s,size=10G", id, i, run)
	}
	return p
}

// Described is the parking VM with its record in the description.
func Described(t *testing.T, p parking.Parking) cluster.VM {
	t.Helper()
	description, err := p.Record.Description()
	if err != nil {
		t.Fatal(err)
	}
	p.VM.Config = maps.Clone(p.VM.Config)
	p.VM.Config["description"] = description
	return p.VM
}

// ParkWK1 is the parking VM of wk1.
func ParkWK1(kept ...string) parking.Parking { return Park(9900, "pve1", "wk1", kept...) }

// Edited is p after edit.
func Edited(p parking.Parking, edit func(*parking.Parking)) parking.Parking { edit(&p); return p }

package pipeline

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/pipeline/past"
)

// TestKnownParkings: what this machine, or another one, has proven is known; a VM with the number and another UUID is not.
func TestKnownParkings(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	k := knownParkings{filepath.Join(dir, ".recast", past.ParkingsName), filepath.Join(dir, "elsewhere")}
	vm := func(id cluster.VMID, uuid string) cluster.VM {
		return cluster.VM{ID: id, Config: map[string]string{"smbios1": "uuid=" + uuid}}
	}
	knows := func(id cluster.VMID, uuid string) bool { return must.Get(k.Has(vm(id, uuid)))(t) }
	must.Equal(t, "at first", false, knows(9001, "a"))
	must.Do(t, k.Add(vm(9001, "a")))
	must.Do(t, k.Add(vm(9002, "b")))
	must.Hold(t, knows(9001, "a") && knows(9002, "b") && !knows(9001, "c") && !knows(9002, "a") && !knows(9001, ""), "what it knows")
	must.Do(t, k.Add(vm(9001, "c"))) // the first one is gone
	must.Hold(t, !knows(9001, "a") && knows(9001, "c") && knows(9002, "b"), "what it knows of another VM with the number")
	there := filepath.Join(k.elsewhere, "m", "run")
	must.Do(t, os.MkdirAll(there, 0o700))
	must.Do(t, os.WriteFile(filepath.Join(there, past.ParkingsName), []byte("9003 d\n"), 0o600))
	must.Hold(t, knows(9003, "d") && !knows(9003, "a"), "what another machine has proven")
}

// TestOthersKeepTheirImages: what an unfinished replacement of somebody else needs stays, and a record that can't be read stops nobody.
func TestOthersKeepTheirImages(t *testing.T) {
	t.Parallel()
	mem := parking.Memory{VM: cluster.VM{ID: 700, Name: "cp7", Config: map[string]string{"ide2": "isos:iso/theirs.iso,media=cdrom"}}}
	rec := parking.Record{Cluster: "theirs", Node: "cp7", Run: "r1", VMID: 700, Open: true, Strategy: cluster.Recreate, Stage: parking.StageServes, Memory: must.Get(mem.Pack())(t)}
	other := func(notes string) cluster.VM {
		return cluster.VM{ID: 9901, Name: "recast-parking-cp7", NotOurs: "no task log has it", Config: map[string]string{"description": notes}}
	}
	uses := must.Get(openUses([]cluster.VM{other(must.Get(rec.Description())(t))}))(t)
	must.Hold(t, len(uses) == 1 && slices.Contains(uses[0].Values, "isos:iso/theirs.iso,media=cdrom"), "uses %+v", uses)
	must.Equal(t, "uses of what can't be read", 0, len(must.Get(openUses([]cluster.VM{other("recast-record: {")}))(t)))
}

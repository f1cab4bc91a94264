package planning

import (
	"testing"

	"github.com/recast-sh/recast/cluster"
)

// TestScratchVMs: a copy of a scratch VM is not one, whichever way its mark names the VM.
func TestScratchVMs(t *testing.T) {
	t.Parallel()
	byUUID, byNumber := ScratchMark("r1", "c1", "u"), ScratchMarkOf("r1", "c1", "disks", 9800)
	for name, c := range map[string]struct {
		id                cluster.VMID
		name, uuid, notes string
		want              string // its UUID; "": it is none
	}{
		"by UUID":                     {9800, "recast-rehearse-9800", "u", "text\n\n" + byUUID + "\n", "u"},
		"a copy":                      {9801, "recast-rehearse-9801", "v", byUUID, ""},
		"by number":                   {9800, "recast-rehearse-9800", "made up", "text\n\n" + byNumber + "\n", "disks"},
		"a copy of that":              {9801, "recast-rehearse-9801", "v", byNumber, ""},
		"a copy with its name":        {9801, "recast-rehearse-9800", "v", byNumber, ""},
		"of another cluster":          {9800, "recast-rehearse-9800", "u", ScratchMark("r1", "c2", "u"), ""},
		"a node's, with a run's mark": {9800, "recast-rehearse-9800", "u", cluster.RunMark + "r1 build=b", ""},
		"renamed":                     {9800, "web", "u", byUUID, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vm := cluster.VM{ID: c.id, Name: c.name, Config: map[string]string{"smbios1": "uuid=" + c.uuid, "description": c.notes}}
			got := ""
			for _, s := range ScratchVMs([]cluster.VM{vm}, "c1") {
				got = s.UUID
			}
			if got != c.want {
				t.Errorf("UUID %q, want %q", got, c.want)
			}
		})
	}
}

package parking

import (
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/must"
)

func TestRemembered(t *testing.T) {
	t.Parallel()
	was := cluster.VM{ID: 101, Name: "wk1", Host: "pve1", Config: map[string]string{"ide2": "local:iso/a.iso,media=cdrom"}}
	packed := must.Get(Memory{VM: was, SystemKey: "scsi0"}.Pack())(t)
	must.Equal(t, "remembered", was, must.Get(Record{Node: "wk1", Memory: packed}.Remembered())(t))
	for _, broken := range []string{"", "?", packed[:len(packed)/2]} {
		if _, err := (Record{Node: "wk1", VMID: 101, Memory: broken}).Remembered(); err == nil {
			t.Errorf("reads %q", broken)
		}
	}
}

func TestMadeFrom(t *testing.T) {
	t.Parallel()
	for description, want := range map[string]string{
		"":                                  "",
		"mine":                              "",
		MarkDescription("mine", "r1", "ab"): "ab",
		"a\nrecast: run=r1 build=cd more":   "cd",
		"recast: run=r1":                    "",
		"text recast: run=r1 build=cd":      "",
	} {
		must.Equal(t, description, want, (cluster.VM{Config: map[string]string{"description": description}}).MadeFrom())
	}
}

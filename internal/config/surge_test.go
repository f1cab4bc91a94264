package config_test

import (
	"testing"

	"github.com/recast-sh/recast/internal/config"
)

// surgeCases are problems of the node s1 and of roll.surge.
func surgeCases() map[string]problemCase {
	const system = "{slot: scsi0, storage: fast, size: 10G, system: true}"
	file := func(node, disks, roll string) string {
		return small + "  - {name: s1, schematic: default, " + node + "}\nvmClasses: {w: {memory: 4096, disks: [" + disks + "]}}\nroll: {surge: " + roll + "}\n"
	}
	const whole = "surge: true, class: w, host: pve1"
	return map[string]problemCase{
		"without a class":      {file("surge: true, host: pve1", system, "1"), `16:36: nodes[1].surge: "s1" is made by a roll, and lacks class`},
		"without a host":       {file("surge: true, class: w", system, "1"), `16:36: nodes[1].surge: "s1" is made by a roll, and lacks host`},
		"without system disk":  {file(whole, "{slot: scsi0, storage: fast, system: true}", "1"), `16:36: nodes[1].surge: "s1" is made by a roll, and lacks a disk with system: true, storage and size in its class`},
		"with a data disk":     {file(whole, system+", {slot: scsi1, storage: fast, size: 5G}", "1"), `16:36: nodes[1].surge: "s1" has more than a system disk (scsi1): what is on that would be lost when the node is removed: give it a class without`},
		"with a holder":        {file(whole+", holder: 500", system, "1"), `16:36: nodes[1].surge: "s1" has a holder, whose disks are persistent: a surge node has only a system disk`},
		"more than there are":  {file(whole, system, "2"), "18:8: roll.surge: 2 asks for more nodes than have surge: true, which are 1 (line 13): add a worker with surge: true, a class and a host, or lower it"},
		"a share of none":      {withRoll("surge: 10%"), "17:3: roll.surge: 10% asks for more nodes than have surge: true, which are 0 (line 13): add a worker with surge: true, a class and a host, or lower it"},
		"no number":            {withRoll("surge: some"), `17:3: roll.surge: "some" is neither a number nor a percentage: write it like 2 or 20%`},
		"a section":            {withRoll("surge: {workers: 1}"), "17:3: roll.surge: must be a number such as 1 or a percentage such as 10%, not a section"},
		"less than none":       {withRoll("surge: -1"), "17:3: roll.surge: must be at least 1"},
		"more than all of all": {withRoll("surge: 101%"), `17:3: roll.surge: "101%" is more than all of them: 100% is the most`},
	}
}

func TestSurge(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		surge         string
		workers, want int
	}{
		{"0", 10, 0}, {"1", 10, 1}, {"3", 2, 3}, {"10%", 10, 1}, {"10%", 11, 2}, {"1%", 1, 1}, {"100%", 7, 7}, {"50%", 0, 1},
	} {
		var s config.Surge
		if err := s.UnmarshalText([]byte(c.surge)); err != nil {
			t.Fatal(err)
		}
		if got := s.Of(c.workers); got != c.want {
			t.Errorf("%s of %d = %d, want %d", c.surge, c.workers, got, c.want)
		}
		if s.String() != c.surge {
			t.Errorf("%s prints as %s", c.surge, s)
		}
	}
	if got := (config.Surge{}).Of(5); got != 0 {
		t.Errorf("without roll.surge there are %d", got)
	}
}

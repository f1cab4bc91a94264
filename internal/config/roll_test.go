package config_test

import (
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

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

// TestStorage: one word is for all systems, a section for some, and what is written is read as the same.
func TestStorage(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		off     string
		written string
	}{
		"on":                            {"", "on"},
		"off":                           {"longhorn ceph linstor mayastor", "off"},
		"{linstor: off}":                {"linstor", "longhorn: on, ceph: on, linstor: off, mayastor: on"},
		"{ceph: on}":                    {"", "on"},
		"{longhorn: off, ceph: off}":    {"longhorn ceph", "longhorn: off, ceph: off, linstor: on, mayastor: on"},
		"{mayastor: off, longhorn: on}": {"mayastor", "longhorn: on, ceph: on, linstor: on, mayastor: off"},
	} {
		c, err := config.Parse("recast.yaml", []byte(small+"roll: {storage: "+text+"}\n"), options(map[string]string{"HOME": "/home/me"}))
		if err != nil {
			t.Fatal(err)
		}
		if off := strings.Join(c.Roll.Storage.Off(), " "); off != want.off {
			t.Errorf("%s: off is %q, want %q", text, off, want.off)
		}
		b, err := yaml.Dump(c.Roll.Storage)
		if written := strings.Join(slices.Collect(strings.SplitSeq(strings.ReplaceAll(strings.TrimSpace(string(b)), "'", ""), "\n")), ", "); err != nil || written != want.written {
			t.Errorf("%s is written as %q, %v", text, written, err)
		}
	}
}

func rehearseCases() map[string]problemCase {
	rehearse := func(s string) string { return withRoll("rehearse: {" + s + "}") }
	at := func(endpoint string) string {
		return strings.Replace(rehearse("addresses: [192.0.2.250/24]"), "https://pve1:8006", endpoint, 1)
	}
	return map[string]problemCase{
		"scratch address, bare":      {rehearse("addresses: [192.0.2.250]"), `17:26: roll.rehearse.addresses[0]: "192.0.2.250" is not an IPv4 address with the length of its network's prefix: write it like 192.0.2.250/24`},
		"scratch address, network":   {rehearse("addresses: [192.0.2.0/24]"), `17:26: roll.rehearse.addresses[0]: "192.0.2.0/24" is not the address of one machine in a network of several`},
		"scratch address, broadcast": {rehearse("addresses: [192.0.2.255/24]"), `17:26: roll.rehearse.addresses[0]: "192.0.2.255/24" is not the address of one machine in a network of several`},
		"scratch address, twice":     {rehearse("addresses: [192.0.2.250/24, 192.0.2.250/24]"), `17:42: roll.rehearse.addresses[1]: "192.0.2.250/24" is listed already`},
		"scratch address, gateway":   {rehearse("addresses: [192.0.2.1/24], gateway: 192.0.2.1"), `17:41: roll.rehearse.gateway: "192.0.2.1" is one of the addresses: scratch VMs would take it from the gateway`},
		"scratch address, Proxmox":   {at("https://192.0.2.250:8006"), `17:26: roll.rehearse.addresses[0]: "192.0.2.250/24" is the address of proxmox.endpoints[0] (line 11): choose an unused one`},
		"gateway, elsewhere":         {rehearse("addresses: [192.0.2.250/24], gateway: 198.51.100.1"), `17:43: roll.rehearse.gateway: "198.51.100.1" is in no network of the addresses`},
	}
}

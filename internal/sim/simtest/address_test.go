package simtest

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
)

// wk1's address in its machine configuration.
const (
	staticAddress = "apiVersion: v1alpha1\nkind: LinkConfig\nname: eth0\naddresses:\n  - address: 127.42.7.31/24\nroutes:\n  - gateway: 127.42.7.1\n"
	vlanAddress   = "apiVersion: v1alpha1\nkind: VLANConfig\nname: eth0.42\nvlanID: 42\nparent: eth0\naddresses:\n  - address: 127.42.7.31/24\n"
	dhcpAddress   = "apiVersion: v1alpha1\nkind: DHCPv4Config\nname: eth0\n"
)

const onlyHere = "its address 127.42.7.31 (eth0) is in its machine configuration alone, so a blank machine would not have it: "

const orByDHCP = "; or reserve it for MAC bc:24:11:00:23:47 in DHCP and have the machine configuration say dhcp: true there; or use in-place"

// addressed gives wk1 a document about its address; reserved says whether DHCP reserves the
// address.
func (l *Lab) addressed(t *testing.T, document string, reserved bool) {
	t.Helper()
	s, err := l.Client().connect(t.Context())
	must(t, err)
	defer s.end()
	if reserved { // before the machine asks
		l.Reserve("wk1", true)
	}
	n := l.node("wk1")
	config, err := s.machines.Talos.MachineConfig(t.Context(), n.Addr)
	must(t, err)
	documents := slices.DeleteFunc(strings.Split(string(config), "---\n"), func(doc string) bool { return strings.Contains(doc, "\nkind: LinkConfig\n") })
	must(t, s.machines.Talos.ReplaceConfig(t.Context(), n.Addr, n.UUID, cluster.Secret(strings.Join(append(documents, document), "---\n"))))
	if !reserved {
		l.Reserve("wk1", false)
	}
}

// settings are those of wk1's VM, without what Proxmox or a roll regenerates.
func (l *Lab) settings() map[string]string {
	out := maps.Clone(l.vmConfig(wk1))
	for _, key := range []string{"digest", "meta", "vmgenid", "boot", "description", "scsi0", "scsi1", "efidisk0"} {
		delete(out, key)
	}
	return out
}

// renewal is a roll that gives wk1 a new system disk. It may be killed at a moment, and then
// resumed, or the replacement cancelled.
type renewal struct {
	strategy cluster.Strategy
	killed   moment
	recover  bool
}

// play does all that in a lab where the node is stale. Its plan has that note; killed is called
// where it was killed.
func (r renewal) play(t *testing.T, lab *Lab, note string, killed func()) {
	t.Helper()
	if n := planOf(t, lab, "wk1"); !slices.Contains(n.Notes, note) || len(n.Refused) > 0 {
		t.Errorf("refused %q, notes %q", n.Refused, n.Notes)
	}
	if r.killed != (moment{}) {
		c := lab.Client()
		c.killedAt(t, r.killed, c.roll(onlyWorker))
		time.Sleep(time.Minute)
		killed()
	}
	if r.recover {
		must(t, lab.Client().giveUp("wk1")(t.Context()))
	} else {
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		requireDrift(t, lab, "cp1")
	}
	lab.RequireIntact()
}

// TestStaticAddressOnNoCloud: a node whose address is only in its machine configuration
// gets a new system disk, because its blank machine is told the address, and the VM is
// unchanged.
func TestStaticAddressOnNoCloud(t *testing.T) {
	long(t)
	eachInLab(t, oneWorker(), map[string]renewal{
		"recreate":                 {strategy: cluster.Recreate},
		"recreate, with a VM":      {strategy: cluster.Recreate, killed: after("create-vm")},
		"recreate, blank":          {strategy: cluster.Recreate, killed: before("bring-up/configure")},
		"recreate, given up":       {strategy: cluster.Recreate, killed: before("bring-up/configure"), recover: true},
		"reimage":                  {strategy: cluster.Reimage},
		"reimage, with a disk":     {strategy: cluster.Reimage, killed: after("blank-disk")},
		"reimage, nearly finished": {strategy: cluster.Reimage, killed: before("finish/restore-settings")},
		"reimage, given up":        {strategy: cluster.Reimage, killed: before("bring-up/configure"), recover: true},
	}, func(t *testing.T, lab *Lab, r renewal) {
		strategy(r.strategy)(lab)
		lab.addressed(t, staticAddress, false)
		whileOff(change("ide0=fast:cloudinit", "ipconfig0=ip=dhcp"))(lab)
		lab.Patch(everywhere)
		before := lab.settings()
		const note = "its blank machine gets the node's address from the VM's cloud-init drive: ipconfig0 is gw=127.42.7.1,ip=127.42.7.31/24 for that boot, and as before at the end"
		r.play(t, lab, note, func() {
			if got := lab.settings()["ipconfig0"]; got != "gw=127.42.7.1,ip=127.42.7.31/24" {
				t.Errorf("where it was killed the VM has ipconfig0: %s", got)
			}
		})
		if diff := cmp.Diff(before, lab.settings()); diff != "" {
			t.Errorf("settings of the VM (-before +after):\n%s", diff)
		}
		if n := planOf(t, lab, "wk1"); n.Addr.String() != "127.42.7.31" {
			t.Errorf("it is at %s", n.Addr)
		}
	})
}

// TestStaticAddressOnMetal: a blank machine would have another address, so there is none,
// and every remedy in the plan works.
func TestStaticAddressOnMetal(t *testing.T) {
	long(t)
	const (
		platform = "set images.platform to nocloud, then recast lock: recast then has the VM's cloud-init drive tell the blank machine its address"
		drive    = "give the VM a cloud-init drive (qm set 9031 --scsi30 fast:cloudinit)"
	)
	eachInLab(t, oneWorker(), map[string]func(t *testing.T, lab *Lab){
		"in-place": nil,
		"DHCP":     func(t *testing.T, lab *Lab) { lab.addressed(t, dhcpAddress, true) },
		"nocloud": func(t *testing.T, lab *Lab) {
			change("scsi30=fast:cloudinit")(lab)
			if got := planOf(t, lab, "wk1").Why; !strings.Contains(got, onlyHere+platform+orByDHCP) {
				t.Errorf("with a cloud-init drive: %s", got)
			}
			lab.Replace("recast.yaml", "platform: metal", "platform: nocloud")
			lab.Patch(everywhere)
		},
	}, func(t *testing.T, lab *Lab, remedy func(t *testing.T, lab *Lab)) {
		lab.lockImages("platform: metal")
		lab.addressed(t, staticAddress, false)
		const reason = onlyHere + platform + ", and " + drive + orByDHCP
		for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
			config := lab.Read("recast.yaml")
			strategy(s)(lab)
			requireRefused(t, lab.Client().roll(onlyWorker)(t.Context()), reason)
			lab.Write("recast.yaml", config)
		}
		n := planOf(t, lab, "wk1")
		if want := "in-place: recreate and reimage are impossible (" + reason + ")"; n.Strategy != cluster.InPlace || n.Why != want {
			t.Errorf("%s: %s", n.Strategy, n.Why)
		}
		want := cluster.InPlace
		if remedy != nil {
			remedy(t, lab)
			want = cluster.Recreate
		}
		if n := planOf(t, lab, "wk1"); n.Strategy != want || len(n.Refused) > 0 {
			t.Errorf("with the remedy it is %s: %s %q", n.Strategy, n.Why, n.Refused)
		}
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		if m := lab.machine("wk1"); !strings.Contains(string(lab.Read("recast.yaml")), "platform: "+m.Platform) {
			t.Errorf("it runs platform %s", m.Platform)
		}
		lab.RequireIntact()
	})
}

// TestAddressOnAVLAN: neither DHCP nor a cloud-init drive creates the link.
func TestAddressOnAVLAN(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.addressed(t, vlanAddress, true)
		whileOff(change("ide0=fast:cloudinit"))(lab)
		lab.Patch(everywhere)
		const reason = "its address 127.42.7.31 is on eth0.42 (vlan), a link that only its machine configuration makes, so a blank machine would not have it: " +
			"have Proxmox tag the VM's network card instead (tag= of netN), and give the address to the card itself, or use in-place"
		if n := planOf(t, lab, "wk1"); n.Strategy != cluster.InPlace || n.Why != "in-place: recreate and reimage are impossible ("+reason+")" {
			t.Errorf("%s: %s", n.Strategy, n.Why)
		}
	})
}

// Package reach says how a machine will be reached once nothing is on its system
// disk: which of its addresses Talos has in maintenance mode as well, and what the
// VM's cloud-init drive has to say for that.
package reach

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Address is one of a machine's addresses as its Talos shows it.
type Address struct {
	Prefix  netip.Prefix
	Link    string     // "eth0"
	Kind    string     // of the link: "vlan", "bond", …; "" for a network card
	MAC     string     // of a network card
	Layer   Layer      // of Talos' network configuration that the address comes from
	Lease   Lease      // of an address of layer Operator
	Gateway netip.Addr // of the default route over the link; invalid: there is none
}

// Layer says where Talos has an address from (machinery, resources/network/configlayer.go).
type Layer string

// The layers. Kernel is not one of Talos': no part of Talos asked for the address.
const (
	Kernel        Layer = ""
	Cmdline       Layer = "cmdline"
	Platform      Layer = "platform"
	Operator      Layer = "operator"
	Configuration Layer = "configuration"
)

// Lease says how an address of layer Operator was obtained.
type Lease struct {
	Operator string // "dhcp4", "dhcp6", "vip"; "": unknown
	DUID     bool   // it identifies itself to the server by a DUID of the configuration
}

// Blank is the VM that will boot with nothing on its system disk.
type Blank struct {
	ID         int
	Config     map[string]string // of the VM, as Proxmox has it
	CloudInit  string            // key of its cloud-init drive; "": it has none
	Storage    string            // for a new cloud-init drive
	Platform   string            // of the boot ISO: "nocloud", "metal"
	KernelArgs []string          // that its schematic adds
	NoNetwork  string            // the command that takes network= out of cicustom
}

// Setting is one of a VM's settings as it must be for the blank boot.
type Setting struct{ Key, Value string }

// Obstacle is why a blank machine will not have an address; the zero value: it will.
type Obstacle struct {
	Text    string // with a remedy
	Command string // that lifts it, as root on the VM's host; "": none does
	Config  string // what recast.yaml must also say before the next recast lock: "images.platform: nocloud"
}

func inWords(format string, args ...any) Obstacle {
	return Obstacle{Text: fmt.Sprintf(format, args...)}
}

// Find says how the blank machine will have that address, one of the machine's present addresses:
// by itself, if set is nil, or with a setting of the VM. against says why it will not.
func Find(addr netip.Addr, all []Address, b Blank) (set *Setting, against Obstacle) {
	i := slices.IndexFunc(all, func(a Address) bool { return a.Prefix.Addr() == addr })
	if i < 0 {
		return nil, inWords("Talos does not show where its address %s comes from (talosctl -n %s get addresses), so whether a blank machine would have it can't be determined: use in-place", addr, addr)
	}
	a := all[i]
	card := b.card(a.MAC)
	switch {
	case a.Layer == Operator && a.Lease.Operator == "vip":
		return nil, inWords("its address %s is a virtual one, which any control plane may take: have the kubelet register another (machine.kubelet.nodeIP.validSubnets), then run the same command again", addr)
	case a.Kind != "":
		return nil, a.unmade()
	case card == "":
		return nil, inWords("its address %s is on %s with MAC %s, which none of the VM's network cards has: look at netN of VM %d", addr, a.Link, a.MAC, b.ID)
	}
	switch a.Layer {
	case Operator:
		return b.leased(a, card)
	case Platform, Configuration:
		return b.given(a, card)
	case Cmdline:
		return nil, b.argued(a)
	case Kernel:
		return nil, a.announced()
	}
	return nil, inWords("its address %s is of layer %s, which says nothing of a blank machine: use in-place", addr, a.Layer)
}

// unmade says why a blank machine has no address on a link that only the configuration makes.
func (a Address) unmade() Obstacle {
	text := fmt.Sprintf("its address %s is on %s (%s), a link that only its machine configuration makes, so a blank machine would not have it: ", a.Prefix.Addr(), a.Link, a.Kind)
	switch a.Kind {
	case "vlan":
		return Obstacle{Text: text + "have Proxmox tag the VM's network card instead (tag= of netN), and give the address to the card itself, or use in-place"}
	case "bond":
		return Obstacle{Text: text + "have the Proxmox host make the bond below its bridge, and give the address to the VM's network card itself, or use in-place"}
	}
	return Obstacle{Text: text + "give the address to the VM's network card itself, or use in-place"}
}

// leased is about an address from DHCP. Talos requests one on every card that has no other
// configuration, in maintenance mode, too (controllers/network/operator_config.go).
func (b Blank) leased(a Address, card string) (*Setting, Obstacle) {
	switch {
	case a.Lease.Operator != "dhcp4":
		return nil, inWords("its address %s comes from %s, which a blank machine does not ask: have DHCPv4 give it its address, or use in-place", a.Prefix.Addr(), orNone(a.Lease.Operator))
	case a.Lease.DUID:
		return nil, inWords("its address %s is leased to the DUID of its machine configuration, which a blank machine does not have: reserve it for MAC %s in DHCP and take clientIdentifier out of DHCPv4Config, or use in-place", a.Prefix.Addr(), a.MAC)
	}
	// Talos does not request an address by itself for a card that the drive configures.
	if given := b.Config["ipconfig"+card]; b.readsDrive() && given != "" && option(given, "ip") != "dhcp" {
		return &Setting{"ipconfig" + card, ipconfig(given, "ip", "dhcp", "gw", "")}, Obstacle{}
	}
	return nil, Obstacle{}
}

// given is about an address from the machine's configuration, or from its platform, which Talos
// copies to the system disk (platform_config_store.go).
func (b Blank) given(a Address, card string) (*Setting, Obstacle) {
	addr, key := a.Prefix.Addr(), "ipconfig"+card
	ip, gw := "ip", "gw"
	if addr.Is6() {
		ip, gw = "ip6", "gw6"
	}
	if was, err := netip.ParsePrefix(option(b.Config[key], ip)); err == nil && was.Addr() == addr && b.readsDrive() {
		return nil, Obstacle{}
	}
	gateway, err := a.gateway()
	value := ipconfig(b.Config[key], ip, a.Prefix.String(), gw, gateway)
	if against := b.untold(a, key, value); against.Text != "" || err.Text != "" {
		return nil, cmp.Or(against, err)
	}
	return &Setting{key, value}, Obstacle{}
}

// gateway is the gateway that a cloud-init drive can state for the address's network; "": none.
func (a Address) gateway() (string, Obstacle) {
	addr := a.Prefix.Addr()
	switch {
	case !a.Gateway.IsValid() || a.Gateway.Is6() != addr.Is6():
		return "", Obstacle{}
	case a.Prefix.Contains(a.Gateway), addr.Is6():
		return a.Gateway.String(), Obstacle{}
	}
	// nocloud's format has no route to such a gateway
	return "", inWords("its gateway %s is not in the network of its address %s, which a cloud-init drive can't tell a blank machine: reserve the address for MAC %s in DHCP and have the machine configuration say dhcp: true there, or use in-place", a.Gateway, a.Prefix, a.MAC)
}

// untold says why the VM's cloud-init drive would not give that setting, which has its address, to
// the blank machine.
func (b Blank) untold(a Address, key, value string) Obstacle {
	var first []string
	var o Obstacle
	if b.Platform != "nocloud" {
		o.Config = "images.platform: nocloud"
		first = append(first, "set images.platform to nocloud, then recast lock: recast then has the VM's cloud-init drive tell the blank machine its address")
	}
	custom, lasting := b.Config["cicustom"], ""
	if a.Layer == Platform { // nothing else has the address once the system disk is replaced
		lasting = fmt.Sprintf(" --%s %s", key, value)
	}
	switch {
	case b.CloudInit == "":
		o.Command = fmt.Sprintf("qm set %d --%s %s:cloudinit", b.ID, b.freeDrive(), b.Storage) + lasting
		first = append(first, fmt.Sprintf("give the VM a cloud-init drive (%s)", o.Command))
	case strings.Contains(","+custom, ",network="):
		o.Command = b.NoNetwork + lasting
		first = append(first, fmt.Sprintf("take the network= part out of cicustom (%s)", custom))
	case b.otherFormat():
		o.Command = fmt.Sprintf("qm set %d --citype nocloud", b.ID)
		first = append(first, fmt.Sprintf("set citype of VM %d to nocloud (%s)", b.ID, o.Command))
	}
	if len(first) == 0 {
		return Obstacle{}
	}
	where := "its machine configuration alone"
	if a.Layer == Platform {
		where = "a copy on its system disk alone"
	}
	o.Text = fmt.Sprintf("its address %s (%s) is in %s, so a blank machine would not have it: %s; or reserve it for MAC %s in DHCP and have the machine configuration say dhcp: true there; or use in-place",
		a.Prefix.Addr(), a.Link, where, strings.Join(first, ", and "), a.MAC)
	return o
}

// argued is about an address from a kernel argument, which is part of an image.
func (b Blank) argued(a Address) Obstacle {
	for _, arg := range b.KernelArgs {
		if rest, ok := strings.CutPrefix(arg, "ip="); ok {
			rest = strings.NewReplacer("[", "", "]", "").Replace(rest)
			if rest == a.Prefix.Addr().String() || strings.HasPrefix(rest, a.Prefix.Addr().String()+":") {
				return Obstacle{}
			}
		}
	}
	return inWords("its address %s is one of a kernel argument ip= that the schematic does not have, so a blank machine would not have it: have DHCP or the machine configuration give it its address, and roll in-place once", a.Prefix.Addr())
}

// announced is about an address that the kernel made from a router advertisement: it stays the same
// if it is made from the card's MAC.
func (a Address) announced() Obstacle {
	if a.Prefix.Addr().Is6() && a.Prefix.Addr() == eui64(a.Prefix, a.MAC) {
		return Obstacle{}
	}
	return inWords("its address %s comes from nothing that Talos knows of and is not made of MAC %s, so whether a blank machine would have it can't be determined: use in-place", a.Prefix.Addr(), a.MAC)
}

func orNone(s string) string {
	if s == "" {
		return "nothing that Talos names"
	}
	return s
}

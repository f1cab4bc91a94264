package cluster

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// MachineAddress is an address of a machine, as its Talos shows it.
type MachineAddress struct {
	Prefix  netip.Prefix
	Link    string       // "eth0"
	Kind    string       // of the link: "vlan", "bond", …; "" for a network card
	MAC     string       // of a network card
	Layer   AddressLayer // of Talos' network configuration that the address comes from
	Lease   AddressLease // of an address of layer Operator
	Gateway netip.Addr   // of the default route over the link; invalid: there is none
}

// AddressLayer is the part of Talos' network configuration that an address comes from (machinery,
// resources/network/configlayer.go).
type AddressLayer string

// The layers. LayerKernel is not a layer of Talos: no part of Talos asked for the address.
const (
	LayerKernel        AddressLayer = ""
	LayerCmdline       AddressLayer = "cmdline"
	LayerPlatform      AddressLayer = "platform"
	LayerOperator      AddressLayer = "operator"
	LayerConfiguration AddressLayer = "configuration"
)

// AddressLease says how an address of layer operator was obtained.
type AddressLease struct {
	Operator string // "dhcp4", "dhcp6", "vip"; "": unknown
	DUID     bool   // the machine identifies itself to the DHCP server by a DUID of its configuration
}

// blankVM is a VM that will boot with nothing on its system disk.
type blankVM struct {
	ID         int
	Config     map[string]string // of the VM, as Proxmox has it
	CloudInit  string            // key of its cloud-init drive; "": it has none
	Storage    string            // for a new cloud-init drive
	Platform   string            // of the boot ISO: "nocloud", "metal"
	KernelArgs []string          // that its schematic adds
	NoNetwork  string            // the command that takes network= out of cicustom
}

// BlankSetting is a setting that a VM must have for the blank boot.
type BlankSetting struct{ Key, Value string }

// AddressObstacle says why a blank machine will not have its address; the zero value: it will have the address.
type AddressObstacle struct {
	Text    string // with a remedy
	Command string // lifts the obstacle, run as root on the VM's host; "": no command does
	Config  string // what recast.yaml must also say before the next recast lock: "images.platform: nocloud"
}

func addressObstacle(format string, args ...any) AddressObstacle {
	return AddressObstacle{Text: fmt.Sprintf(format, args...)}
}

// reachBlank says how the blank machine will have addr, one of the machine's present addresses: by itself if set is
// nil, else with that setting of the VM. against says why the machine will not have addr.
func reachBlank(addr netip.Addr, all []MachineAddress, b blankVM) (set *BlankSetting, against AddressObstacle) {
	i := slices.IndexFunc(all, func(a MachineAddress) bool { return a.Prefix.Addr() == addr })
	if i < 0 {
		return nil, addressObstacle("Talos does not show where its address %s comes from (talosctl -n %s get addresses), so whether a blank machine would have it can't be determined: use in-place", addr, addr)
	}
	a := all[i]
	card := b.card(a.MAC)
	switch {
	case a.Layer == LayerOperator && a.Lease.Operator == "vip":
		return nil, addressObstacle("its address %s is a virtual one, which any control plane may take: have the kubelet register another (machine.kubelet.nodeIP.validSubnets), then run the same command again", addr)
	case a.Kind != "":
		return nil, a.unmade()
	case card == "":
		return nil, addressObstacle("its address %s is on %s with MAC %s, which none of the VM's network cards has: look at netN of VM %d", addr, a.Link, a.MAC, b.ID)
	}
	switch a.Layer {
	case LayerOperator:
		return b.leased(a, card)
	case LayerPlatform, LayerConfiguration:
		return b.given(a, card)
	case LayerCmdline:
		return nil, b.argued(a)
	case LayerKernel:
		return nil, a.announced()
	}
	return nil, addressObstacle("its address %s is of layer %s, which says nothing of a blank machine: use in-place", addr, a.Layer)
}

// unmade says why a blank machine has no address on a link that only the configuration makes.
func (a MachineAddress) unmade() AddressObstacle {
	text := fmt.Sprintf("its address %s is on %s (%s), a link that only its machine configuration makes, so a blank machine would not have it: ", a.Prefix.Addr(), a.Link, a.Kind)
	switch a.Kind {
	case "vlan":
		return AddressObstacle{Text: text + "have Proxmox tag the VM's network card instead (tag= of netN), and give the address to the card itself, or use in-place"}
	case "bond":
		return AddressObstacle{Text: text + "have the Proxmox host make the bond below its bridge, and give the address to the VM's network card itself, or use in-place"}
	}
	return AddressObstacle{Text: text + "give the address to the VM's network card itself, or use in-place"}
}

// leased handles an address from DHCP. Talos requests an address on every card without other configuration, also in
// maintenance mode (controllers/network/operator_config.go).
func (b blankVM) leased(a MachineAddress, card string) (*BlankSetting, AddressObstacle) {
	switch {
	case a.Lease.Operator != "dhcp4":
		return nil, addressObstacle("its address %s comes from %s, which a blank machine does not ask: have DHCPv4 give it its address, or use in-place", a.Prefix.Addr(), cmp.Or(a.Lease.Operator, "nothing that Talos names"))
	case a.Lease.DUID:
		return nil, addressObstacle("its address %s is leased to the DUID of its machine configuration, which a blank machine does not have: reserve it for MAC %s in DHCP and take clientIdentifier out of DHCPv4Config, or use in-place", a.Prefix.Addr(), a.MAC)
	}
	// Talos does not request an address by itself for a card that the drive configures.
	if given := b.Config["ipconfig"+card]; b.readsDrive() && given != "" && option(given, "ip") != "dhcp" {
		return &BlankSetting{"ipconfig" + card, ipconfig(given, "ip", "dhcp", "gw", "")}, AddressObstacle{}
	}
	return nil, AddressObstacle{}
}

// given handles an address from the machine configuration, or from the platform. Talos copies what the platform says
// to the system disk (platform_config_store.go).
func (b blankVM) given(a MachineAddress, card string) (*BlankSetting, AddressObstacle) {
	addr, key := a.Prefix.Addr(), "ipconfig"+card
	ip, gw := "ip", "gw"
	if addr.Is6() {
		ip, gw = "ip6", "gw6"
	}
	if was, err := netip.ParsePrefix(option(b.Config[key], ip)); err == nil && was.Addr() == addr && b.readsDrive() {
		return nil, AddressObstacle{}
	}
	gateway, err := a.gateway()
	value := ipconfig(b.Config[key], ip, a.Prefix.String(), gw, gateway)
	if against := b.untold(a, key, value); against.Text != "" || err.Text != "" {
		return nil, cmp.Or(against, err)
	}
	return &BlankSetting{key, value}, AddressObstacle{}
}

// gateway returns the gateway that a cloud-init drive can state for the address's network; "": none.
func (a MachineAddress) gateway() (string, AddressObstacle) {
	addr := a.Prefix.Addr()
	switch {
	case !a.Gateway.IsValid() || a.Gateway.Is6() != addr.Is6():
		return "", AddressObstacle{}
	case a.Prefix.Contains(a.Gateway), addr.Is6():
		return a.Gateway.String(), AddressObstacle{}
	}
	// nocloud's format has no route to such a gateway
	return "", addressObstacle("its gateway %s is not in the network of its address %s, which a cloud-init drive can't tell a blank machine: reserve the address for MAC %s in DHCP and have the machine configuration say dhcp: true there, or use in-place", a.Gateway, a.Prefix, a.MAC)
}

// untold says why the VM's cloud-init drive would not give the blank machine the setting with its address.
func (b blankVM) untold(a MachineAddress, key, value string) AddressObstacle {
	var first []string
	var o AddressObstacle
	if b.Platform != "nocloud" {
		o.Config = "images.platform: nocloud"
		first = append(first, "set images.platform to nocloud, then recast lock: recast then has the VM's cloud-init drive tell the blank machine its address")
	}
	custom, lasting := b.Config["cicustom"], ""
	if a.Layer == LayerPlatform { // nothing else has the address once the system disk is replaced
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
		return AddressObstacle{}
	}
	where := "its machine configuration alone"
	if a.Layer == LayerPlatform {
		where = "a copy on its system disk alone"
	}
	o.Text = fmt.Sprintf("its address %s (%s) is in %s, so a blank machine would not have it: %s; or reserve it for MAC %s in DHCP and have the machine configuration say dhcp: true there; or use in-place",
		a.Prefix.Addr(), a.Link, where, strings.Join(first, ", and "), a.MAC)
	return o
}

// argued handles an address from a kernel argument. Kernel arguments are part of an image.
func (b blankVM) argued(a MachineAddress) AddressObstacle {
	for _, arg := range b.KernelArgs {
		if rest, ok := strings.CutPrefix(arg, "ip="); ok {
			rest = strings.NewReplacer("[", "", "]", "").Replace(rest)
			if rest == a.Prefix.Addr().String() || strings.HasPrefix(rest, a.Prefix.Addr().String()+":") {
				return AddressObstacle{}
			}
		}
	}
	return addressObstacle("its address %s is one of a kernel argument ip= that the schematic does not have, so a blank machine would not have it: have DHCP or the machine configuration give it its address, and roll in-place once", a.Prefix.Addr())
}

// announced handles an address that the kernel made from a router advertisement. The address stays the same if it is
// made from the card's MAC.
func (a MachineAddress) announced() AddressObstacle {
	if a.Prefix.Addr().Is6() && a.Prefix.Addr() == eui64(a.Prefix, a.MAC) {
		return AddressObstacle{}
	}
	return addressObstacle("its address %s comes from nothing that Talos knows of and is not made of MAC %s, so whether a blank machine would have it can't be determined: use in-place", a.Prefix.Addr(), a.MAC)
}

// card returns the number of the VM's network card with that MAC; "" if no card has it.
func (b blankVM) card(mac string) string {
	for key, value := range b.Config {
		n, ok := strings.CutPrefix(key, "net")
		if _, err := strconv.Atoi(n); !ok || err != nil {
			continue
		}
		for option := range strings.SplitSeq(value, ",") {
			// "virtio=BC:24:11:00:00:01": the model has the MAC, or macaddr does.
			if _, is, _ := strings.Cut(option, "="); mac != "" && strings.EqualFold(is, mac) {
				return n
			}
		}
	}
	return ""
}

// readsDrive says whether the boot ISO takes its network from the VM's ipconfigN.
func (b blankVM) readsDrive() bool {
	return b.Platform == "nocloud" && b.CloudInit != "" && !b.otherFormat() && !strings.Contains(","+b.Config["cicustom"], ",network=")
}

// otherFormat says whether the drive is written in a format other than nocloud's. The default for Windows is another
// format (qemu-server, Cloudinit.pm, get_cloudinit_format).
func (b blankVM) otherFormat() bool {
	if citype := b.Config["citype"]; citype != "" {
		return citype != "nocloud"
	}
	return strings.HasPrefix(b.Config["ostype"], "w")
}

// freeDrive returns the key of an unused SCSI drive of the VM: Proxmox can hot-plug a SCSI drive, but not an IDE drive.
func (b blankVM) freeDrive() string {
	for n := 30; n > 0; n-- {
		if key := fmt.Sprintf("scsi%d", n); b.Config[key] == "" {
			return key
		}
	}
	return "scsi0"
}

func option(value, name string) string {
	for part := range strings.SplitSeq(value, ",") {
		if is, ok := strings.CutPrefix(part, name+"="); ok {
			return is
		}
	}
	return ""
}

// ipconfig returns a value of ipconfigN with this address and gateway of one IP version. Settings of the other
// version stay.
func ipconfig(old, ip, address, gw, gateway string) string {
	parts := slices.DeleteFunc(strings.Split(old, ","), func(part string) bool {
		name, _, _ := strings.Cut(part, "=")
		return name == "" || name == ip || name == gw
	})
	parts = append(parts, ip+"="+address)
	if gateway != "" {
		parts = append(parts, gw+"="+gateway)
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

// eui64 returns the address that a card with that MAC gives itself in a network.
func eui64(network netip.Prefix, mac string) netip.Addr {
	hw, err := net.ParseMAC(mac)
	if err != nil || len(hw) != 6 || network.Bits() > 64 {
		return netip.Addr{}
	}
	b := network.Masked().Addr().As16()
	copy(b[8:], []byte{hw[0] ^ 2, hw[1], hw[2], 0xff, 0xfe, hw[3], hw[4], hw[5]})
	return netip.AddrFrom16(b)
}

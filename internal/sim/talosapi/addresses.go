package talosapi

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config"
	configtypes "github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// attachment is a machine's network attachment. It has one address, from the first of
// these that sets one: its configuration, its platform, DHCP. The zero value is not
// attached.
type attachment struct {
	link    string // "eth0", "eth0.42"
	kind    string // of a virtual link: network.LinkKindVLAN, network.LinkKindBond
	prefix  netip.Prefix
	gateway netip.Addr
	layer   network.ConfigLayer
	asked   network.ConfigLayer // the layer that requested DHCP, which gave the address
	duid    bool                // the DHCP request used a DUID
}

// addr is the machine's address; invalid if it is not attached.
func (m *machine) addr() netip.Addr { return m.attached().prefix.Addr() }

func (m *machine) attached() attachment {
	if a := m.net.Load(); a != nil {
		return *a
	}
	return attachment{}
}

// attach determines the attachment with that image and configuration. cfg is nil in
// maintenance mode, where only the cloud-init drive and DHCP count.
func (m *machine) attach(image artefact.Image, cfg config.Provider) attachment {
	if m.unplugged || len(m.hw.MACs) == 0 {
		return attachment{}
	}
	if a, says := m.configuredAt(cfg); says {
		return a
	}
	if a, says := m.platformAt(image); says {
		return a
	}
	return m.leased(attachment{link: "eth0", asked: network.ConfigDefault})
}

// configuredAt is the attachment in a configuration, in separate documents or in
// machine.network.
func (m *machine) configuredAt(cfg config.Provider) (a attachment, says bool) {
	if cfg == nil {
		return a, false
	}
	for _, l := range cfg.NetworkCommonLinkConfigs() {
		at := attachment{link: l.Name(), kind: kindOf(l), layer: network.ConfigMachineConfiguration}
		for _, r := range l.Routes() {
			if !r.Destination().IsPresent() {
				at.gateway = r.Gateway().ValueOrZero()
			}
		}
		for _, address := range l.Addresses() {
			at.prefix = address.Address()
			return at, true
		}
	}
	if asked := cfg.NetworkDHCPv4Configs(); len(asked) > 0 {
		d, kind := asked[0], ""
		for _, l := range cfg.NetworkCommonLinkConfigs() {
			if l.Name() == d.Name() {
				kind = kindOf(l)
			}
		}
		return m.leased(attachment{link: d.Name(), kind: kind, asked: network.ConfigMachineConfiguration, duid: d.ClientIdentifier() == nethelpers.ClientIdentifierDUID}), true
	}
	if cfg.Machine() == nil || cfg.Machine().Network() == nil {
		return a, false
	}
	for _, d := range cfg.Machine().Network().Devices() {
		if a, says = m.deviceAt(d); says {
			return a, true
		}
	}
	return a, false
}

// deviceAt is the attachment by an interface of machine.network or one of its VLANs.
func (m *machine) deviceAt(d configtypes.Device) (attachment, bool) {
	link := d.Interface()
	if link == "" { // by a selector
		link = "eth0"
	}
	kind := ""
	if d.Bond() != nil {
		kind = network.LinkKindBond
	}
	if a, says := m.legacyAt(link, kind, d.Addresses(), d.Routes(), d.DHCP()); says {
		return a, true
	}
	for _, v := range d.Vlans() {
		if a, says := m.legacyAt(nethelpers.VLANLinkName(link, v.ID()), network.LinkKindVLAN, v.Addresses(), v.Routes(), v.DHCP()); says {
			return a, true
		}
	}
	return attachment{}, false
}

func (m *machine) legacyAt(link, kind string, addresses []string, routes []configtypes.Route, dhcp bool) (attachment, bool) {
	a := attachment{link: link, kind: kind, layer: network.ConfigMachineConfiguration, asked: network.ConfigMachineConfiguration}
	for _, r := range routes {
		if r.Network() == "" || r.Network() == "0.0.0.0/0" {
			a.gateway, _ = netip.ParseAddr(r.Gateway())
		}
	}
	for _, address := range addresses {
		if prefix, err := netip.ParsePrefix(address); err == nil {
			a.prefix = prefix
			return a, true
		}
	}
	if dhcp {
		return m.leased(a), true
	}
	return a, false
}

func kindOf(l configtypes.NetworkCommonLinkConfig) string {
	switch l.(type) {
	case configtypes.NetworkVLANConfig:
		return network.LinkKindVLAN
	case configtypes.NetworkBondConfig:
		return network.LinkKindBond
	}
	return ""
}

// platformAt is the attachment by the cloud-init drive, for an image of platform nocloud.
// A card that it names gets no default DHCP operator (OperatorConfigController).
func (m *machine) platformAt(image artefact.Image) (attachment, bool) {
	for i := range m.hw.MACs {
		said := m.hw.CloudInit[i]
		if image.Platform != "nocloud" || said == "" {
			continue
		}
		a := attachment{link: "eth" + strconv.Itoa(i), layer: network.ConfigPlatform, asked: network.ConfigPlatform}
		for part := range strings.SplitSeq(said, ",") {
			switch name, value, _ := strings.Cut(part, "="); {
			case name == "ip" && value == "dhcp":
				return m.leased(a), true
			case name == "ip":
				a.prefix, _ = netip.ParsePrefix(value)
			case name == "gw":
				a.gateway, _ = netip.ParseAddr(value)
			}
		}
		return a, true
	}
	return attachment{}, false
}

// userData is the machine configuration on a CD with cloud-init data, which an image of
// platform nocloud reads before it would enter maintenance mode
// (controllers/config/acquire.go, platform/nocloud/nocloud.go, Configuration). Proxmox's
// own drive begins with #cloud-config, which Talos ignores.
func (m *machine) userData(image artefact.Image) (firstConfig, bool) {
	if image.Platform != "nocloud" {
		return firstConfig{}, false
	}
	for _, d := range m.devices() {
		if raw, is := artefact.UserData(d.bytes()); is && d.CDROM {
			_, err := parseConfig(raw)
			return firstConfig{raw: raw}, err == nil
		}
	}
	return firstConfig{}, false
}

// leased is the attachment with the DHCP address of the link's card.
func (m *machine) leased(a attachment) attachment {
	card := 0
	if n, ok := strings.CutPrefix(a.link, "eth"); ok {
		n, _, _ = strings.Cut(n, ".")
		card, _ = strconv.Atoi(n)
	}
	if card >= len(m.hw.MACs) {
		return attachment{}
	}
	addr, ok := m.fw.o.Lease(m.hw.MACs[card])
	if !ok {
		return attachment{}
	}
	a.prefix, a.layer = netip.PrefixFrom(addr, m.fw.o.NetworkBits), network.ConfigOperator
	return a
}
